"""The servers of chaos.py and of other tests that end some: processes on ports of their own, what they hold, and a
client that says how an answer ended."""

import collections
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from stack import ROOT, free_ports, own_kernels

MAX_TOKENS = 12
BLOCK_TOKENS = 16  # of the servers' prefix caches
IDLE_METRICS = re.compile(r'^(aludel_tickets_open|aludel_kv_blocks\{[^}]*state="reserved"\}'
                          r'|aludel_frame_arena_bytes\{state="reserved"\}'
                          r'|aludel_num_requests_(?:running|waiting)\{[^}]*\}) (\S+)$', re.MULTILINE)
ANY = "any"  # the server's choice of a format, whose late handoffs are hedged


class Server:
    """One process that can be killed, stopped and started again on its ports."""

    def __init__(self, name: str, binary: Path, config: str, folder: Path, admin: int) -> None:
        self.name, self.binary, self.folder, self.admin = name, binary, folder, admin
        self.config = folder / f"{name}.textproto"
        self.config.write_text(config)
        self.process: Optional[subprocess.Popen] = None
        self.starts = 0

    def launcher(self) -> List[str]:
        """What goes before the server's own command."""
        return []

    def start(self) -> None:
        self.starts += 1
        with open(self.folder / f"{self.name}.log", "ab") as log:
            words = [*self.launcher(), str(self.binary), "--config", str(self.config)]
            self.process = subprocess.Popen(words, cwd=ROOT,
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


def check_fleet(servers: List[Server], check: Callable[[], None]) -> None:
    """Runs `check`, then ends the servers: their last lines are shown where it fails, and all must exit with 0."""
    try:
        check()
    except AssertionError:
        for server in servers:
            print(f"--- {server.name}\n{server.log_tail()}", file=sys.stderr)
        raise
    finally:
        codes = [server.end() for server in servers]
    assert not any(codes), codes


class Fleet:
    """All servers. `faults` is put into the prefill servers' transport.testing settings; a decode server has room for
    `room` sequences, and is taken for down where it does not answer the gateway for `probe_timeout_ms`."""

    def __init__(self, binaries: Path, folder: Path, faults: str, seed: int, handoff_timeout_ms: int = 2000,
                 room: int = 8, probe_timeout_ms: int = 1000) -> None:
        ports = iter(free_ports(10))
        grpc: Dict[str, int] = {}
        self.servers: Dict[str, Server] = {}
        for number in (1, 2):
            name = f"prefill-{number}"
            grpc[name], admin = next(ports), next(ports)
            # One always computes, the other also sends from its cache of frames.
            self.add(name, "aludel-prefill", binaries, folder, admin, f"""
listen: "127.0.0.1:{grpc[name]}" admin_listen: "127.0.0.1:{admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 8 kv_blocks: 512{own_kernels()} }}
codec {{ artifact: "deploy/demo/codec" }}
transport {{ testing {{ seed: {seed + number} {faults} }} }}
send_arena_bytes: 33554432 store {{ memory_bytes: {0 if number == 1 else 4 << 20} }} drain_timeout_ms: 3000
""")
        for number in (1, 2):
            name = f"decode-{number}"
            grpc[name], admin = next(ports), next(ports)
            order = ("prefill-1", "prefill-2") if number == 1 else ("prefill-2", "prefill-1")
            # One remembers what was handed over, the other asks each time.
            self.add(name, "aludel-decode", binaries, folder, admin, f"""
listen: "127.0.0.1:{grpc[name]}" admin_listen: "127.0.0.1:{admin}" served_model_name: "chat"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: {room} kv_blocks: {64 * room}{own_kernels()}
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
probe_interval_ms: 200 probe_timeout_ms: {probe_timeout_ms}
""")

    def add(self, name: str, binary: str, binaries: Path, folder: Path, admin: int, config: str) -> None:
        self.servers[name] = Server(name, binaries / binary, config, folder, admin)

    def start(self) -> None:
        for server in self.servers.values():
            server.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Every server is, every decode server can use both prefill servers, and the gateway both decode servers."""
        for server in self.servers.values():
            server.wait_ready()
        until = time.monotonic() + 30
        while self.ready_decodes() != 2:
            if time.monotonic() > until:
                raise RuntimeError("the gateway does not find both decode servers ready")
            time.sleep(0.05)
        for name in ("decode-1", "decode-2"):
            ready = r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$'
            while len(re.findall(ready, self.servers[name].get("/metrics") or "", re.MULTILINE)) != 2:
                if time.monotonic() > until:
                    raise RuntimeError(f"{name} does not find both prefill servers ready")
                time.sleep(0.05)

    def ready_decodes(self) -> int:
        """As the gateway sees them."""
        return len(re.findall(r"^aludel_decode_target_ready\{[^}]*\} 1$", self.servers["gateway"].get("/metrics") or "",
                              re.MULTILINE))

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


def ask(port: int, body: Dict, limit: float, leave_after: Optional[float] = None,
        leave_events: int = 0) -> Tuple[int, Dict]:
    """Status and JSON of a completion; of a stream the last chunk's, with the whole text. (0, {}) after leaving: so
    many seconds after asking, or with so many events of a stream. A stream that ends with an error event is 599, that
    event, with the text before it under "told"."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        if leave_after is not None:
            time.sleep(leave_after)
            return 0, {}
        response = connection.getresponse()
        if not body.get("stream") or response.status != 200:
            return response.status, json.loads(response.read())
        text, last, done, events = "", {}, False, 0
        for raw in response:
            line = raw.decode().rstrip("\r\n")
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                events += 1
                if events == leave_events:
                    return 0, {}
                event = json.loads(line[6:])
                if "error" in event:
                    return 599, {**event, "told": text}
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


def load_prompts(count: int, context_bytes: int = 10000) -> List[str]:
    """Demo questions behind their contexts, or the first bytes of those. No two begin alike."""
    lines = (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()
    questions = {one["context"][:BLOCK_TOKENS]: one for one in reversed([json.loads(line) for line in lines])}
    return [f"{one['context'][:context_bytes]} {one['question']}" for one in reversed(questions.values())][:count]
