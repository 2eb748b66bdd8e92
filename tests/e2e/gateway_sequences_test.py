"""Random sequences of requests against a real gateway before a real decode server, whose answers are known:
pipelined, chunked, with trailers, byte by byte, malformed at the end, by clients that half-close, reset, stop
reading, or are there when the gateway is told to stop (SIGTERM, now and then twice). What is answered is answered in
order, once, and with that request's answer; what has begun ends; where neither side breaks off, every request is
answered; the gateway stops in time with 0, and the decode server holds nothing of any request afterwards.

    gateway_sequences_test.py --bin build/release/bin [--seconds 25] [--seed N]

Exits with 1 and the findings.
"""

import argparse
import collections
import json
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from chaos_fleet import Server, load_prompts
from stack import free_ports

CLIENTS = 5
MAX_HEADER_BYTES = 4096
MAX_BODY_BYTES = 60000
DRAIN_S = 10
# Until a connection has all its answers, on a busy machine.
LIMIT_S = 60
DRAWN_TOKENS = (1, 4, 12)

Answer = Tuple[int, str]  # status, and what tells it from other answers


class Known(NamedTuple):
    """A request with its answer."""
    method: str
    target: str
    body: str
    answer: Answer
    completion: bool  # which a half-closed client may not get


def gist(status: int, body: bytes) -> Answer:
    """What of a response is the same each time."""
    text = body.decode()
    if "data: " in text:
        told, end = "", "nothing"
        for line in text.splitlines():
            if line == "data: [DONE]":
                end = "[DONE]"
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return status, f"{told} error {event['error']['message']}"
                told += "".join(choice["text"] for choice in event.get("choices", []))
        return status, f"{told} {end}"
    parsed = json.loads(text)
    if "choices" in parsed:
        return status, parsed["choices"][0]["text"] + " [DONE]"
    if "error" in parsed:
        return status, parsed["error"]["message"]
    return status, text


def take_answer(received: bytearray) -> Optional[Tuple[int, bytes]]:
    """One whole response off the front."""
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    head = bytes(received[:head_end]).decode().lower()
    status = int(head.split()[1])
    at, body = head_end + 4, b""
    if "\r\ncontent-length:" in head:
        size = int(head.split("\r\ncontent-length:")[1].split("\r\n")[0])
        body = bytes(received[at:at + size])
        if len(body) < size:
            return None
        at += size
    elif "\r\ntransfer-encoding: chunked" in head:
        while True:
            line_end = received.find(b"\r\n", at)
            if line_end < 0:
                return None
            size = int(received[at:line_end], 16)
            at = line_end + 2
            if len(received) < at + size + 2:
                return None
            body += received[at:at + size]
            at += size + 2
            if size == 0:
                break
    del received[:at]
    return status, body


def frame(draw: random.Random, known: Known) -> bytes:
    """The request's bytes."""
    head = f"{known.method} {known.target} HTTP/1.1\r\nHost: x\r\n"
    if draw.random() < 0.2:
        head += f"X-Pad: {'p' * draw.randrange(1000)}\r\n"
    body = known.body.encode()
    if known.method == "GET":
        return f"{head}\r\n".encode()
    if draw.random() < 0.6:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    framed = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    while body:
        size = draw.randrange(1, 200)
        chunk, body = body[:size], body[size:]
        framed += f"{len(chunk):x}{draw.choice(('', ';a=b'))}\r\n".encode() + chunk + b"\r\n"
    return framed + b"0\r\n" + draw.randrange(3) * b"Trailer: x\r\n" + b"\r\n"


MALFORMED = (b"garbage\r\n\r\n", b"GET /version HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
             b"GET /version HTTP/1.1\r\nHost: x\r\n" + MAX_HEADER_BYTES * b"a",
             b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n",
             b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
             b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
             b"GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")


class Client:
    """One connection from its plan to its end. Says in `fault` what must not be."""

    def __init__(self, draw: random.Random, port: int, requests: List[Known], stopping: Callable[[], bool],
                 cut_short: Callable[[], bool]) -> None:
        self.draw, self.stopping, self.cut_short = draw, stopping, cut_short
        deep = draw.random() < 0.2
        self.plan = [draw.choice([one for one in requests if not deep or not one.completion])
                     for _ in range(draw.randrange(300, 900) if deep else draw.randrange(12))]
        self.malformed = draw.random() < 0.3
        self.bytes = b"".join(frame(draw, one) for one in self.plan)
        self.bytes += draw.choice(MALFORMED) if self.malformed else b""
        self.slow = not deep and draw.random() < 0.3
        self.half_closes = draw.random() < 0.3
        self.leaves_at = draw.randrange(1, len(self.bytes) + 2) if draw.random() < 0.3 else 0
        self.received, self.answers = bytearray(), 0
        self.refused = self.closed = False
        self.outcome, self.fault = "answered", ""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setblocking(False)

    def run(self) -> None:
        try:
            self.exchange()
        finally:
            self.socket.close()

    def exchange(self) -> None:
        sent, until, silent_until = 0, time.monotonic() + LIMIT_S, 0.0
        while not self.fault and not self.closed and not self.refused:
            if self.answers == len(self.plan) and not self.malformed and sent == len(self.bytes):
                break
            if time.monotonic() > until:
                self.fault = (f"{self.answers} of {len(self.plan)} answers after {LIMIT_S} s, "
                              f"{bytes(self.received[:200])!r}")
                return
            if self.leaves_at and sent >= self.leaves_at:
                self.outcome = "left"
                if self.draw.random() < 0.5:  # by a reset
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            writes = sent < len(self.bytes)
            if not writes and self.half_closes:
                self.half_closes, self.outcome = False, "half-closed"
                try:
                    self.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
            reads = time.monotonic() >= silent_until
            if reads and self.draw.random() < 0.02:
                silent_until = time.monotonic() + self.draw.uniform(0, 0.3)
            readable, writable, _ = select.select([self.socket] if reads else [], [self.socket] if writes else [], [],
                                                  0.05)
            if writable:
                size = self.draw.randrange(1, 40) if self.slow else self.draw.randrange(1, 20000)
                try:
                    sent += self.socket.send(self.bytes[sent:sent + size])
                except BlockingIOError:
                    pass
                except OSError:
                    sent = len(self.bytes)  # refused meanwhile; what was answered may be there to be read
                if self.slow:
                    time.sleep(self.draw.uniform(0, 0.01))
            if readable:
                self.receive()
        self.judge()

    def receive(self) -> None:
        try:
            piece = self.socket.recv(self.draw.randrange(1, 20000))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.closed = not piece
        self.received += piece
        while not self.fault and not self.refused and (answer := take_answer(self.received)) is not None:
            self.check(gist(*answer))

    def check(self, answer: Answer) -> None:
        if self.answers < len(self.plan) and answer == self.plan[self.answers].answer:
            self.answers += 1
            return
        self.refused = True
        # What is malformed has its error behind all answers; a client that has gone may be told so.
        if self.answers == len(self.plan) and self.malformed and 400 <= answer[0] < 600:
            return
        if self.outcome == "half-closed" and self.plan[self.answers:] and self.plan[self.answers].completion:
            return
        if self.stopping() and (answer[0] == 503 or self.cut_short()):
            return
        wanted = self.plan[self.answers] if self.answers < len(self.plan) else None
        self.fault = f"answer {self.answers} of {len(self.plan)} is {answer}, want {wanted} ({self.outcome})"

    def judge(self) -> None:
        """The connection is at its end."""
        if self.fault or self.refused or self.outcome == "left":
            return
        if self.received and not self.cut_short() and not self.outcome == "half-closed":
            self.fault = f"an answer that breaks off: {bytes(self.received[:300])!r}"
        if self.answers == len(self.plan) or self.stopping():
            return
        if self.outcome == "half-closed" and self.plan[self.answers].completion:
            return
        self.fault = (f"closed after {self.answers} of {len(self.plan)} answers ({self.outcome}); "
                      f"next {self.plan[self.answers]}")


class Sequences:
    """The servers, what they answer, and the rounds."""

    def __init__(self, binaries: Path, folder: Path, seed: int) -> None:
        self.seed = seed
        self.port, decode_port, decode_admin = free_ports(3)
        self.decode = Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode_port}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "chat"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: {4 * CLIENTS} kv_blocks: 1024 }}
""", folder, decode_admin)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}" drain_timeout_ms: {1000 * DRAIN_S} probe_interval_ms: 100 probe_timeout_ms: 5000
max_header_bytes: {MAX_HEADER_BYTES} max_body_bytes: {MAX_BODY_BYTES} max_total_body_bytes: 200000
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{decode_port}" }}
""", folder, self.port)
        self.findings: List[str] = []
        self.counts: collections.Counter = collections.Counter()
        self.requests: List[Known] = []

    def learn(self) -> None:
        """What an undisturbed gateway answers, each on a connection of its own."""
        for method, target, body in self.drawn_requests():
            with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as client:
                known = Known(method, target, body, (0, ""), target == "/v1/completions")
                client.sendall(frame(random.Random(0), known))
                received = bytearray()
                while (answer := take_answer(received)) is None:
                    piece = client.recv(65536)
                    assert piece, f"no answer to {known}"
                    received += piece
            self.requests.append(known._replace(answer=gist(*answer)))

    @staticmethod
    def drawn_requests() -> List[Tuple[str, str, str]]:
        asked = [("GET", "/version", ""), ("GET", "/health", ""), ("GET", "/nothing/here", ""),
                 ("GET", "/v1/models/none", ""),
                 ("POST", "/tokenize", '{"model": "chat", "prompt": "who has the harp"}'),
                 ("POST", "/tokenize", json.dumps({"model": "chat", "prompt": 2000 * "a harp "})),
                 ("POST", "/tokenize", '{"model": "chat", "prompt": '),
                 ("POST", "/detokenize", '{"model": "chat", "tokens": [300, 301, 302]}')]
        for number, prompt in enumerate(load_prompts(6, 60)):
            for tokens in DRAWN_TOKENS:
                body: Dict = {"model": "chat", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
                body.update({"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0})
                asked += [("POST", "/v1/completions", json.dumps({**body, "stream": stream}))
                          for stream in (False, True)]
        return asked

    def round(self, number: int) -> None:
        """Clients for a while; then the gateway stops under them, or after them."""
        draw = random.Random(f"{self.seed}/{number}")
        stopping, ended, cut_short = threading.Event(), threading.Event(), threading.Event()

        def work(mine: int) -> None:
            own = random.Random(f"{self.seed}/{number}/{mine}")
            while not ended.is_set() and not self.findings:
                try:
                    client = Client(own, self.port, self.requests, stopping.is_set, cut_short.is_set)
                except OSError:
                    if not stopping.is_set():
                        self.findings.append("no connection")
                    return
                client.run()
                self.counts[client.outcome] += 1
                self.counts["answers"] += client.answers
                if client.fault:
                    self.findings.append(f"round {number}, client {mine}: {client.fault}")

        workers = [threading.Thread(target=work, args=(mine,)) for mine in range(CLIENTS)]
        for worker in workers:
            worker.start()
        time.sleep(draw.uniform(0.5, 2.0))
        twice = draw.random() < 0.2
        if draw.random() < 0.3:  # after them
            ended.set()
            for worker in workers:
                worker.join()
        stopping.set()
        if twice:
            cut_short.set()
        self.gateway.process.send_signal(signal.SIGTERM)
        if twice:
            time.sleep(draw.uniform(0, 0.1))
            self.gateway.process.send_signal(signal.SIGTERM)
        try:
            code = self.gateway.process.wait(DRAIN_S + 10)
            if code != 0 and not twice:
                self.findings.append(f"round {number}: the gateway ended with {code}\n{self.gateway.log_tail()}")
            if code < 0 and -code != signal.SIGTERM:
                self.findings.append(f"round {number}: the gateway died of signal {-code}\n{self.gateway.log_tail()}")
        except subprocess.TimeoutExpired:
            self.findings.append(f"round {number}: the gateway has not stopped\n{self.gateway.log_tail()}")
            self.gateway.process.kill()
            self.gateway.process.wait()
        ended.set()
        for worker in workers:
            worker.join()

    def run(self, seconds: float) -> int:
        self.decode.start()
        self.gateway.start()
        try:
            self.decode.wait_ready()
            self.gateway.wait_ready()
            self.learn()
            rounds, end = 0, time.monotonic() + seconds
            while not self.findings and time.monotonic() < end:
                self.round(rounds)
                rounds += 1
                self.gateway.start()
                self.gateway.wait_ready()
            until = time.monotonic() + 15
            while (left := self.decode.leftovers()) and time.monotonic() < until:
                time.sleep(0.1)
            if left:
                self.findings.append(f"the decode server holds {left}")
        finally:
            codes = [self.gateway.end(), self.decode.end()]
        if any(codes):
            self.findings.append(f"the servers ended with {codes}")
        for finding in self.findings:
            print(f"FINDING seed {self.seed}: {finding}")
        print(f"seed {self.seed}: {rounds} rounds, {dict(sorted(self.counts.items()))}, {len(self.findings)} findings")
        return 1 if self.findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-sequences-") as folder:
        return Sequences(options.bin.resolve(), Path(folder), options.seed).run(options.seconds)


if __name__ == "__main__":
    sys.exit(main())
