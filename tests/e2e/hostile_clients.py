"""Clients that cost more than they bring, against a running gateway: idle connections, headers that trickle in
(slowloris), bodies that are too long or that no path takes, trailers without end, deep pipelines. Meanwhile new requests
must be answered, and the hostile ones shed.

    stack.py --bin BIN --add "gateway=max_connections: 12000 read_timeout_ms: 4000" -- hostile_clients.py --idle 10000

The defaults are short enough for a test; the line above is the long run.
"""

import argparse
import http.client
import json
import os
import re
import resource
import socket
import statistics
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import List

BODY = json.dumps({"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "who is Orla"}],
                   "aludel": {"fidelity": "exact"}})
PROBES = 20
SHED_S = 20  # read_timeout_ms of the gateway's configuration is well below


def probe(gateway: urllib.parse.SplitResult) -> List[float]:
    """Seconds of new connections, each with one whole completion."""
    seconds = []
    for _ in range(PROBES):
        begin = time.monotonic()
        connection = http.client.HTTPConnection(gateway.hostname, gateway.port, timeout=10)
        connection.request("POST", "/v1/chat/completions", BODY, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        connection.close()
        assert reply.status == 200, reply.status
        seconds.append(time.monotonic() - begin)
    return seconds


def connect(gateway: urllib.parse.SplitResult, count: int) -> List[socket.socket]:
    return [socket.create_connection((gateway.hostname, gateway.port), timeout=10) for _ in range(count)]


def tell(what: str, seconds: List[float]) -> None:
    print(f"{what}: {len(seconds)} new requests, median {statistics.median(seconds) * 1e3:.1f} ms, "
          f"slowest {max(seconds) * 1e3:.1f} ms")


def idle(gateway: urllib.parse.SplitResult, count: int) -> None:
    held = connect(gateway, count)
    for one in held:  # served once, and kept
        one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for one in held:
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
    tell(f"beside {count} idle connections", probe(gateway))
    for one in held:
        one.close()


def slowloris(gateway: urllib.parse.SplitResult, count: int) -> None:
    slow = connect(gateway, count)
    begin = time.monotonic()
    for one in slow:
        one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    tell(f"beside {count} trickling headers", probe(gateway))
    shed = 0
    while shed < count and time.monotonic() < begin + SHED_S:
        time.sleep(0.5)
        still = []
        for one in slow:
            one.setblocking(False)
            try:
                one.send(b"a")
                answer = one.recv(4096)
            except BlockingIOError:
                still.append(one)
                continue
            except OSError:
                answer = b"HTTP/1.1 408"  # reset after the answer
            assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
            shed += 1
            one.close()
        slow = still
    assert shed == count, f"{shed} of {count} shed"
    print(f"{count} trickling headers shed within {time.monotonic() - begin:.1f} s")


def oversized(gateway: urllib.parse.SplitResult) -> None:
    for head in (b"Content-Length: 4000000000\r\n\r\n",
                 b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 0x100000 + b"\r\n100000\r\n"):
        client = connect(gateway, 1)[0]
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + head)
        if b"chunked" in head:
            try:
                while True:
                    client.sendall(b"x" * 0x100000 + b"\r\n100000\r\n")
            except OSError:
                pass  # refused while it was sending
        else:
            assert client.recv(4096).startswith(b"HTTP/1.1 413")
        client.close()
    tell("after oversized bodies", probe(gateway))


def resident_bytes(gateway: urllib.parse.SplitResult) -> int:
    with urllib.request.urlopen(f"http://{gateway.netloc}/metrics", timeout=10) as reply:
        found = re.search(r"^process_resident_memory_bytes (\S+)$", reply.read().decode(), re.MULTILINE)
    return int(float(found.group(1)))


def unwanted_bodies(gateway: urllib.parse.SplitResult, count: int) -> None:
    """A path that takes no body keeps none."""
    before = resident_bytes(gateway)
    clients = connect(gateway, count)
    for one in clients:
        one.settimeout(10)
        try:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 3_900_000)
        except OSError:
            pass  # refused while it was sending
    grown = resident_bytes(gateway) - before
    for one in clients:
        one.close()
    assert grown < 64 << 20, grown
    print(f"{count} bodies of 4 MB for /health: {grown / 1e6:.1f} MB more in memory")


def trailers(gateway: urllib.parse.SplitResult) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    for trailer in (b"a: " + b"b" * 70000 + b"\r\n\r\n", b"a: b\r\n" * 5_000_000):
        client = connect(gateway, 1)[0]
        try:
            client.sendall(head + trailer)
            assert client.recv(4096).startswith(b"HTTP/1.1 431")
        except ConnectionError:
            pass  # refused while it was sending
        client.close()
    tell("after trailers of 70 kB and 30 MB", probe(gateway))


def pipeline(gateway: urllib.parse.SplitResult, count: int) -> None:
    client = connect(gateway, 1)[0]
    client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * count)
    client.shutdown(socket.SHUT_WR)
    answers = b""
    while piece := client.recv(1 << 16):
        answers += piece
    client.close()
    assert answers.count(b"HTTP/1.1 200") == count, answers.count(b"HTTP/1.1 200")
    print(f"{count} pipelined requests answered")


def accounted(gateway: urllib.parse.SplitResult, slow: int) -> None:
    """Everything shed is counted; lines in the log are bounded."""
    with urllib.request.urlopen(f"http://{gateway.netloc}/metrics", timeout=10) as reply:
        counts = {(path, int(status)): int(value) for path, status, value in re.findall(
            r'^aludel_http_requests_total\{path="([^"]+)",status="(\d+)"\} (\d+)$', reply.read().decode(), re.MULTILINE)}
    assert counts.get(("/v1/chat/completions", 408), 0) == slow, counts
    assert counts.get(("/v1/chat/completions", 413), 0) == 2, counts
    log = (Path(os.environ["STACK_FOLDER"]) / "gateway.log").read_text()
    assert 1 <= log.count("status=408") <= 1 + slow // 2, log.count("status=408")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=500, help="idle connections")
    parser.add_argument("--slow", type=int, default=100, help="connections whose header trickles in")
    parser.add_argument("--bodies", type=int, default=60, help="bodies for a path that takes none")
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if limit < options.idle + 100:
        print(f"skipped: hostile_clients: only {limit} open files are allowed")
        return 77
    gateway = urllib.parse.urlsplit(os.environ["GATEWAY_URL"])
    probe(gateway)
    tell("alone", probe(gateway))
    idle(gateway, options.idle)
    slowloris(gateway, options.slow)
    oversized(gateway)
    unwanted_bodies(gateway, options.bodies)
    trailers(gateway)
    pipeline(gateway, 1900)
    accounted(gateway, options.slow)
    return 0


if __name__ == "__main__":
    sys.exit(main())
