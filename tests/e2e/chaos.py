"""Chaos on real processes: kills, stops and restarts servers under load, over a data plane that loses, spoils and
doubles frames, with clients that leave and deadlines that pass; and checks that nothing hangs, leaks or lies.

    chaos.py --bin build/release/bin --requests 20000 --seed 7 [--state FILE]
    chaos.py --bin build/release/bin --calm --seconds 3600          # a soak: nobody disturbs, slopes at the end

Two prefill servers, two decode servers of "chat" and a gateway. First the same servers, undisturbed, answer every
prompt in every format, handed over and from the cache, greedily. Then each request of the run must end in time: with
that very answer of the plan and format that its response names, or with a clean error. Every --every requests the servers are left alone until they are
idle: no block, ticket, run or frame memory may be left, and memory and descriptors are noted. Everything that happens
is drawn from the seed and the request's number: --seed 7 --start 4000 repeats what happens from there, and --state
goes on where an interrupted run ended. Exits with 1 and the finding's seed and number when a check fails.
"""

import argparse
import collections
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from stack import ROOT, free_ports

MAX_TOKENS = 12
FORMATS = ("exact", "raw", "aludel-p2", "aludel-p0", "scd")
ANY = "any"  # the server's choice, whose late handoffs are hedged
BLOCK_TOKENS = 16  # of the servers' prefix caches
DEFAULT_TIMEOUT_MS = 20000
# Between a deadline and its error in the client's hands. On a busy machine also several times what a sleep of ours is
# late, as several threads must get their turn.
GRACE_S = 1.0
TURNS = 4
CLEAN_ERRORS = {429, 503, 504}  # no room; no server, or it went; deadline
IDLE_METRICS = re.compile(r'^(aludel_tickets_open|aludel_kv_blocks\{[^}]*state="reserved"\}'
                          r'|aludel_frame_arena_bytes\{state="reserved"\}'
                          r'|aludel_num_requests_(?:running|waiting)\{[^}]*\}) (\S+)$', re.MULTILINE)


class Server:
    """One process that can be killed, stopped and started again on its ports."""

    def __init__(self, name: str, binary: Path, config: str, folder: Path, admin: int) -> None:
        self.name, self.binary, self.folder, self.admin = name, binary, folder, admin
        self.config = folder / f"{name}.textproto"
        self.config.write_text(config)
        self.process: Optional[subprocess.Popen] = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen([str(self.binary), "--config", str(self.config)], cwd=ROOT,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def get(self, path: str) -> Optional[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=5) as reply:
                return reply.read().decode()
        except (OSError, http.client.HTTPException):
            return None

    def wait_ready(self, limit: float = 60) -> None:
        until = time.monotonic() + limit
        while self.get("/ready") is None:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}\n{self.log_tail()}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} was not ready within {limit} s\n{self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self) -> str:
        log = self.folder / f"{self.name}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.is_file() else ""

    def leftovers(self) -> Dict[str, float]:
        """What requests still hold; empty when there is nothing."""
        text = self.get("/metrics")
        if text is None:
            return {"no answer": 1}
        return {name: float(value) for name, value in IDLE_METRICS.findall(text) if float(value) != 0}

    def footprint(self) -> Tuple[int, int]:
        """Resident kilobytes and open descriptors."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)), len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Fleet:
    """All servers. `faults` is put into the prefill servers' transport.testing settings."""

    def __init__(self, binaries: Path, folder: Path, faults: str, seed: int, handoff_timeout_ms: int = 2000) -> None:
        ports = iter(free_ports(10))
        grpc: Dict[str, int] = {}
        self.servers: Dict[str, Server] = {}
        for number in (1, 2):
            name = f"prefill-{number}"
            grpc[name], admin = next(ports), next(ports)
            # One always computes, the other also sends from its cache of frames.
            self.add(name, "aludel-prefill", binaries, folder, admin, f"""
listen: "127.0.0.1:{grpc[name]}" admin_listen: "127.0.0.1:{admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 8 kv_blocks: 512 }}
codec {{ artifact: "deploy/demo/codec" }}
transport {{ testing {{ seed: {seed + number} {faults} }} }}
send_arena_bytes: 33554432 frame_cache_bytes: {0 if number == 1 else 4 << 20} drain_timeout_ms: 3000
""")
        for number in (1, 2):
            name = f"decode-{number}"
            grpc[name], admin = next(ports), next(ports)
            order = ("prefill-1", "prefill-2") if number == 1 else ("prefill-2", "prefill-1")
            # One remembers what was handed over, the other asks each time.
            self.add(name, "aludel-decode", binaries, folder, admin, f"""
listen: "127.0.0.1:{grpc[name]}" admin_listen: "127.0.0.1:{admin}" served_model_name: "chat"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 8 kv_blocks: 512
          prefix_cache: {"true" if number == 1 else "false"} }}
codec {{ artifact: "deploy/demo/codec" }}
transport {{ }}
receive_arena_bytes: 33554432 handoff_timeout_ms: {handoff_timeout_ms} drain_timeout_ms: 3000
planner {{ min_remote_tokens: {BLOCK_TOKENS} }}
hedge {{ max_running: 2 late_share: 0 late_min_ms: {2 if number == 1 else 20} }}
{" ".join(f'prefill_targets: "127.0.0.1:{grpc[one]}"' for one in order)}
probe_interval_ms: 200 probe_max_interval_ms: 400 probe_timeout_ms: 1000
""")
        listen = next(ports)
        self.gateway_port = listen
        self.add("gateway", "aludel-gateway", binaries, folder, listen, f"""
listen: "127.0.0.1:{listen}"
models {{ name: "chat" directory: "deploy/demo/chat" {" ".join(
    f'decode_targets: "127.0.0.1:{grpc[name]}"' for name in ("decode-1", "decode-2"))} }}
probe_interval_ms: 200 probe_timeout_ms: 1000
""")

    def add(self, name: str, binary: str, binaries: Path, folder: Path, admin: int, config: str) -> None:
        self.servers[name] = Server(name, binaries / binary, config, folder, admin)

    def start(self) -> None:
        for server in self.servers.values():
            server.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Every server is, and every decode server can use both prefill servers."""
        for server in self.servers.values():
            server.wait_ready()
        until = time.monotonic() + 30
        for name in ("decode-1", "decode-2"):
            ready = r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$'
            while len(re.findall(ready, self.servers[name].get("/metrics") or "", re.MULTILINE)) != 2:
                if time.monotonic() > until:
                    raise RuntimeError(f"{name} does not find both prefill servers ready")
                time.sleep(0.05)

    def wait_idle(self, limit: float = 15) -> Dict[str, Dict[str, float]]:
        """What is left after `limit`; empty as soon as nothing is."""
        until = time.monotonic() + limit
        while True:
            left = {name: held for name, server in self.servers.items() if (held := server.leftovers())}
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.1)

    def metric_sum(self, pattern: str) -> Dict[str, float]:
        """Counters of all servers since their last start, by what the pattern's group found."""
        sums: Dict[str, float] = collections.defaultdict(float)
        for server in self.servers.values():
            for label, value in re.findall(pattern, server.get("/metrics") or "", re.MULTILINE):
                sums[label] += float(value)
        return dict(sums)

    def stop(self) -> Dict[str, int]:
        return {name: server.end() for name, server in self.servers.items()}


class Truncated(Exception):
    """The connection ended before the response did."""


def ask(port: int, body: Dict, limit: float, leave_after: Optional[float] = None) -> Tuple[int, Dict]:
    """Status and JSON of a completion; of a stream the last chunk's, with the whole text. (0, {}) after leaving."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        if leave_after is not None:
            time.sleep(leave_after)
            return 0, {}
        response = connection.getresponse()
        if not body.get("stream") or response.status != 200:
            return response.status, json.loads(response.read())
        text, last, done = "", {}, False
        for line in response.read().decode().splitlines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return 599, event
                if event.get("choices"):
                    text += event["choices"][0]["text"]
                last = event if "aludel" in event else last
        if not done:
            raise Truncated("the stream ended without [DONE] or an error")
        return 200, {"choices": [{"text": text}], "aludel": last.get("aludel", {})}
    finally:
        connection.close()


def request_body(prompt: str, form: str) -> Dict:
    extension = {"fidelity": "exact"} if form == "exact" else {} if form == ANY else {"format": form}
    return {"model": "chat", "prompt": prompt, "temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True,
            "aludel": extension}


def named_plan(report: Dict) -> Tuple[str, str]:
    """What the response says that its answer was computed from: a format, and how that came.

    A prompt is answered from the cache where all its full blocks are there, for min_remote_tokens is a block; only
    handoffs of the same prompt bring them, for no two prompts begin alike. So "cached" promises one answer, too.
    """
    plan = report.get("plan")
    return (report["format"], plan) if plan in ("remote", "cached") else ("exact", "local")


def load_prompts(count: int) -> List[str]:
    lines = (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[:count]
    questions = [json.loads(line) for line in lines]
    return [f"{one['context']} {one['question']}" for one in questions]


class Chaos:
    """One run: the draw of each request and fault, the workers, the checks."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.prompts = load_prompts(options.prompts)
        self.expected: Dict[Tuple[int, str, str], str] = {}  # by prompt, format and how that came
        self.lock = threading.Lock()
        self.next = options.start
        self.counts: collections.Counter = collections.Counter()
        self.findings: List[str] = []
        # By server: seconds, starts, resident kilobytes, descriptors, registered bytes.
        self.footprints: Dict[str, List[Tuple[float, int, int, int, float]]] = collections.defaultdict(list)
        self.worst_late = 0.0
        self.worst_sleep = 0.0  # the longest that a short sleep took too long
        self.began = time.monotonic()
        if options.state and options.state.exists():
            state = json.loads(options.state.read_text())
            if state["seed"] == options.seed:
                self.next, self.counts = state["next"], collections.Counter(state["counts"])

    def learn(self) -> None:
        """The undisturbed answers."""
        folder = self.folder / "undisturbed"
        folder.mkdir()
        fleet = Fleet(self.options.bin, folder, "", self.options.seed, handoff_timeout_ms=60000)
        try:
            fleet.start()
            for number in range(len(self.prompts)):
                for form in FORMATS:
                    self.learn_one(fleet, number, form)
        finally:
            codes = fleet.stop()
        if any(codes.values()):
            raise RuntimeError(f"undisturbed servers did not exit with 0 on SIGTERM: {codes}")

    def learn_one(self, fleet: Fleet, number: int, form: str) -> None:
        """Exact answers are one, cached or not; in a format an idle gateway's first server takes the second from its cache.

        On a busy machine that server may look unready for a while, and the other one has no cache: then again."""
        wanted = {"local"} if form == "exact" else {"remote", "cached"}
        found = set()
        least, asked = 2 if form == "exact" else 3, 0
        give_up = time.monotonic() + 20
        while asked < least or (found != wanted and time.monotonic() < give_up):
            time.sleep(0.1 if asked >= least else 0)
            asked += 1
            status, answer = ask(fleet.gateway_port, request_body(self.prompts[number], form), 60)
            report, text = answer.get("aludel", {}), answer["choices"][0]["text"] if status == 200 else ""
            found.add(report.get("plan"))
            if status != 200 or self.expected.setdefault((number, *named_plan(report)), text) != text:
                raise RuntimeError(f"undisturbed: prompt {number} in {form}: {status} {answer}, {self.expected}")
        if found != wanted:
            raise RuntimeError(f"undisturbed: prompt {number} in {form}: found plans {found}, want {wanted}")

    def find(self, number: int, text: str) -> None:
        with self.lock:
            self.findings.append(f"seed {self.options.seed} request {number}: {text}")
            print(f"FINDING {self.findings[-1]}", flush=True)

    def one(self, number: int, port: int) -> None:
        """Request `number`, drawn from the seed alone."""
        draw = random.Random(f"{self.options.seed}/{number}")
        prompt, form = draw.randrange(len(self.prompts)), draw.choice((*FORMATS, ANY))
        leaves = draw.random() < (0.0 if self.options.calm else 0.2)
        leave_after = draw.choice((0.0, 0.002, 0.02, 0.1, 0.3))
        hurried = draw.random() < (0.0 if self.options.calm else 0.15)
        timeout_ms = draw.choice((1, 5, 20, 50, 100, 300, 1000)) if hurried else DEFAULT_TIMEOUT_MS
        body = request_body(self.prompts[prompt], form)
        body["stream"] = draw.random() < 0.5
        body["aludel"]["timeout_ms"] = timeout_ms
        start = time.monotonic()
        try:
            status, answer = ask(port, body, timeout_ms / 1000 + 15, leave_after if leaves else None)
        except (OSError, http.client.HTTPException, ValueError, Truncated) as error:
            self.find(number, f"no clean end after {time.monotonic() - start:.2f} s: {type(error).__name__} {error}")
            return
        late = time.monotonic() - start - timeout_ms / 1000
        outcome = "left" if status == 0 else f"error {status}"
        if status == 200:
            report = answer["aludel"]
            outcome = f"{report.get('plan')}"
            named = named_plan(report)
            got, want = answer["choices"][0]["text"], self.expected.get((prompt, *named))
            if got != want or (named[0] not in ("exact", form) and form != ANY):
                self.find(number, f"prompt {prompt} in {form} as {report.get('plan')} {named}: got {got!r}, want {want!r}")
        elif status == 599:
            if "message" not in answer["error"]:
                self.find(number, f"an error event without a message: {answer}")
        elif status != 0 and (status not in CLEAN_ERRORS or "message" not in answer.get("error", {})):
            self.find(number, f"status {status}: {answer}")
        with self.lock:
            self.counts[outcome] += 1
            self.counts["requests"] += 1
            self.worst_late = max(self.worst_late, late)
        if late > GRACE_S + TURNS * self.worst_sleep:
            self.find(number, f"{late:.2f} s past its deadline of {timeout_ms} ms ({outcome})")

    def disturb(self, fleet: Fleet, block: int, stop: threading.Event) -> None:
        """The faults of one block of requests."""
        draw = random.Random(f"{self.options.seed}/block {block}")
        while not stop.wait(draw.uniform(0.2, 2.0)):
            name = draw.choice([one for one in fleet.servers if one != "gateway"])
            kind = draw.choice(("kill", "kill", "stop", "term"))
            server = fleet.servers[name]
            pause = draw.uniform(0.1, 3.0) if kind == "stop" else draw.uniform(0.0, 1.0)
            with self.lock:
                self.counts[f"{kind} {name.split('-')[0]}"] += 1
            if kind == "stop":
                server.process.send_signal(signal.SIGSTOP)
                stop.wait(pause)
                server.process.send_signal(signal.SIGCONT)
                continue
            if kind == "kill":
                server.process.kill()
                server.process.wait()
            else:
                server.process.terminate()
                try:
                    if (code := server.process.wait(30)) != 0:
                        self.find(-1, f"{name} exited with {code} on SIGTERM\n{server.log_tail()}")
                except subprocess.TimeoutExpired:
                    self.find(-1, f"{name} did not exit within 30 s of SIGTERM\n{server.log_tail()}")
                    server.process.kill()
                    server.process.wait()
            stop.wait(pause)
            server.start()

    def watch(self, fleet: Fleet, stop: threading.Event) -> None:
        """Nobody disturbs the gateway; servers end only where somebody ended them."""
        shown = time.monotonic()
        while True:
            before = time.monotonic()
            if stop.wait(0.1):
                return
            self.worst_sleep = max(self.worst_sleep, time.monotonic() - before - 0.1)
            if time.monotonic() - shown < 5:
                continue
            shown = time.monotonic()
            with self.lock:
                counts = dict(self.counts)
            done, seconds = counts.pop("requests", 0), time.monotonic() - self.began
            listed = ", ".join(f"{key} {value}" for key, value in sorted(counts.items()))
            print(f"[{seconds:.0f} s] {done} requests, findings {len(self.findings)}: {listed}", flush=True)
            if fleet.servers["gateway"].process.poll() is not None:
                self.find(-1, "the gateway ended\n" + fleet.servers["gateway"].log_tail())
                return

    def block(self, fleet: Fleet, number: int, end: int) -> None:
        """Requests up to `end` under faults; then quiet, and a look at what is left."""
        stop = threading.Event()
        disturber = threading.Thread(target=self.disturb, args=(fleet, number, stop))

        def work() -> None:
            while not self.findings and not self.out_of_time():
                with self.lock:
                    mine, self.next = self.next, self.next + 1
                    if mine >= end:
                        self.next = end
                        return
                self.one(mine, fleet.gateway_port)

        workers = [threading.Thread(target=work) for _ in range(self.options.clients)]
        for thread in workers if self.options.calm else [disturber, *workers]:
            thread.start()
        for worker in workers:
            worker.join()
        stop.set()
        if not self.options.calm:
            disturber.join()
        fleet.wait_ready()
        if left := fleet.wait_idle():
            self.find(end, f"left after {end} requests: {left}")
        for name, server in fleet.servers.items():
            registered = sum(float(value) for value in re.findall(
                r'^aludel_frame_arena_bytes\{state="total"\} (\S+)$', server.get("/metrics") or "", re.MULTILINE))
            self.footprints[name].append(
                (time.monotonic() - self.began, server.starts, *server.footprint(), registered))
        if self.options.state:
            self.options.state.write_text(json.dumps({"seed": self.options.seed, "next": self.next,
                                                      "counts": dict(self.counts)}))

    def show_footprints(self, name: str, rows: List[Tuple[float, int, int, int, float]]) -> None:
        """Of the process that a server was last; slopes over the second half, when caches and heaps are warm."""
        half = rows[len(rows) // 2:]
        slopes = []
        for column, unit in ((2, "kB"), (3, "descriptors"), (4, "registered bytes")):
            mean_x = sum(row[0] for row in half) / len(half)
            mean_y = sum(row[column] for row in half) / len(half)
            spread = sum((row[0] - mean_x) ** 2 for row in half)
            slope = sum((row[0] - mean_x) * (row[column] - mean_y) for row in half) / spread if spread else 0.0
            slopes.append(f"{rows[0][column]:.0f} -> {rows[-1][column]:.0f} {unit}, {3600 * slope:+.0f} an hour")
        print(f"{name}, started {rows[-1][1]} times, {len(rows)} looks: {'; '.join(slopes)}")

    def out_of_time(self) -> bool:
        return bool(self.options.seconds) and time.monotonic() - self.began > self.options.seconds

    def run(self) -> int:
        self.learn()
        print(f"seed {self.options.seed}: {len(self.expected)} undisturbed answers known", flush=True)
        self.began = time.monotonic()
        folder = self.folder / "disturbed"
        folder.mkdir()
        fleet = Fleet(self.options.bin, folder, self.options.faults, self.options.seed)
        stop = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(fleet, stop))
        last = self.options.start + self.options.requests
        try:
            fleet.start()
            watcher.start()
            while self.next < last and not self.findings and not self.out_of_time():
                number = self.next // self.options.every
                self.block(fleet, number, min(last, (number + 1) * self.options.every))
            dropped = fleet.metric_sum(r'^aludel_frames_dropped_total\{reason="(\w+)"\} (\S+)$')
            injected = fleet.metric_sum(r'^aludel_transport_messages_total\{event="(emulated_fault)"\} (\S+)$')
            hedges = fleet.metric_sum(r'^aludel_engine_events_total\{event="hedge_(\w+)",[^}]*\} (\S+)$')
            print(f"since each server's last start: dropped frames {dropped}, {injected}, hedges {hedges}")
            for name, rows in self.footprints.items():
                self.show_footprints(name, [row for row in rows if row[1] == rows[-1][1]])
        finally:
            stop.set()
            if watcher.ident is not None:
                watcher.join()
            codes = fleet.stop()
        if any(codes.values()):
            self.find(-1, f"servers did not exit with 0 on SIGTERM: {codes}")
        if self.findings:
            for server in fleet.servers.values():
                print(f"--- {server.name}\n{server.log_tail()}", file=sys.stderr)
        print(f"RESULT seed {self.options.seed}: {self.counts['requests']} requests in "
              f"{time.monotonic() - self.began:.0f} s, latest end {self.worst_late:.2f} s after its deadline "
              f"(sleeps were up to {self.worst_sleep:.2f} s late), "
              f"{len(self.findings)} findings, {dict(sorted(self.counts.items()))}", flush=True)
        return 1 if self.findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first request")
    parser.add_argument("--requests", type=int, default=10 ** 6)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; 0: after --requests")
    parser.add_argument("--every", type=int, default=1000, help="requests between looks at what is left")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--faults", help="transport.testing settings of the prefill servers",
                        default="drop_rate: 0.01 corrupt_rate: 0.01 duplicate_rate: 0.01")
    parser.add_argument("--calm", action="store_true", help="no kills, no faults, no clients that leave")
    parser.add_argument("--state", type=Path, help="where to note progress, and go on from")
    parser.add_argument("--keep", type=Path, help="folder for configurations and logs")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    if options.calm:
        options.faults = ""
    with tempfile.TemporaryDirectory(prefix="aludel-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return Chaos(options, folder.resolve()).run()


if __name__ == "__main__":
    sys.exit(main())
