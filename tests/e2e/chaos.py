"""Chaos on real processes: kills, stops and restarts servers under load, over a data plane that loses, spoils and
doubles frames, with clients that leave and deadlines that pass; and checks that nothing hangs, leaks or lies.

    chaos.py --bin build/release/bin --requests 20000 --seed 7 [--state FILE]
    chaos.py --bin build/release/bin --tight --seconds 600          # too little room, and times without a server
    chaos.py --bin build/release/bin --calm --seconds 3600          # a soak: nobody disturbs, slopes at the end

Two prefill servers, two decode servers of "chat" and a gateway. First the same servers, undisturbed, answer every
prompt in every format, handed over and from the cache, greedily. Then each request of the run must end in time: with
that very answer of the plan and format that its response names, or, where its deadline is short, with a clean error.
Decode servers end in the midst of their answers, one at a time: no request with time left may fail of which nothing
was sent, and a stream that breaks off has sent the beginning of an answer. (With --tight, clean errors are ends,
too.) Every --every requests the servers are left alone until they are idle: no block, ticket, run or frame memory may
be left, and memory and descriptors are noted. Everything that happens is drawn from the seed and the request's
number: --seed 7 --start 4000 repeats what happens from there, and --state goes on where an interrupted run ended.
Exits with 1 and the finding's seed and number when a check fails.
"""

import argparse
import collections
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Tuple

from chaos_fleet import ANY, Fleet, Server, Truncated, ask, load_prompts, named_plan, request_body

FORMATS = ("exact", "raw", "aludel-p2", "aludel-p0", "scd")
DEFAULT_TIMEOUT_MS = 20000
# Between a deadline and its error in the client's hands. On a busy machine also several times what a sleep of ours is
# late, as several threads must get their turn.
GRACE_S = 1.0
TURNS = 4
CLEAN_ERRORS = {429, 503, 504}  # no room; no server, or it went; deadline
PROBE_S = 0.2  # the gateway's interval
# Two servers that a busy machine keeps from answering a probe for a second at once would be an outage of its making.
PATIENT_PROBE_MS = 5000


def is_deadline(answer: Dict) -> bool:
    """The error of a request whose time is over, or will be before a server has time for it."""
    return "deadline" in answer["error"].get("message", "").lower()


class Chaos:
    """One run: the draw of each request and fault, the workers, the checks."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.prompts = load_prompts(options.prompts, options.context_bytes)
        self.expected: Dict[Tuple[int, str, str], str] = {}  # by prompt, format and how that came
        self.lock = threading.Lock()
        self.next = options.start
        self.counts: collections.Counter = collections.Counter()
        self.findings: List[str] = []
        # By server: seconds, starts, resident kilobytes, descriptors, registered bytes.
        self.footprints: Dict[str, List[Tuple[float, int, int, int, float]]] = collections.defaultdict(list)
        self.reasons: collections.Counter = collections.Counter()  # why streams broke off
        self.worst_late = 0.0
        self.worst_sleep = 0.0  # the longest that a short sleep took too long
        self.began = time.monotonic()
        if options.state and options.state.exists():
            state = json.loads(options.state.read_text())
            if state["seed"] == options.seed:
                self.next, self.counts = state["next"], collections.Counter(state["counts"])

    def room(self) -> int:
        """One decode server can answer all clients, and what those who left have left behind."""
        return 8 if self.options.tight else 3 * self.options.clients

    def learn(self) -> None:
        """The undisturbed answers."""
        folder = self.folder / "undisturbed"
        folder.mkdir()
        fleet = Fleet(self.options.bin, folder, "", self.options.seed, handoff_timeout_ms=60000, room=self.room())
        try:
            fleet.start()
            for number in range(len(self.prompts)):
                for form in FORMATS:
                    self.learn_one(fleet, number, form)
        except RuntimeError as error:
            tails = "\n".join(f"--- {name}\n{server.log_tail()}" for name, server in fleet.servers.items())
            raise RuntimeError(f"{error}\n{tails}") from error
        finally:
            codes = fleet.stop()
        if any(codes.values()):
            raise RuntimeError(f"undisturbed servers did not exit with 0 on SIGTERM: {codes}")

    def learn_one(self, fleet: Fleet, number: int, form: str) -> None:
        """Exact answers are one, cached or not; in a format an idle gateway's first server takes the second from its cache.

        On a busy machine that server may look unready or slow for a while, half a minute each time (kBelievedSeconds), and
        the other one has no cache: then again."""
        wanted = {"local"} if form == "exact" else {"remote", "cached"}
        found = set()
        least, asked = 2 if form == "exact" else 3, 0
        give_up = time.monotonic() + 150
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
        leave_events = draw.choice((0, 1, 4, 10))
        hurried = draw.random() < (0.0 if self.options.calm else 0.15)
        timeout_ms = draw.choice((1, 5, 20, 50, 100, 300, 1000)) if hurried else DEFAULT_TIMEOUT_MS
        body = request_body(self.prompts[prompt], form)
        body["stream"] = draw.random() < 0.5
        body["aludel"]["timeout_ms"] = timeout_ms
        if not (leaves and body["stream"]):
            leave_events = 0
        start = time.monotonic()
        try:
            status, answer = ask(port, body, timeout_ms / 1000 + 15,
                                 leave_after if leaves and not leave_events else None, leave_events)
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
                self.find(number, f"prompt {prompt} in {form} as {report.get('plan')} {named}: got {got!r}, "
                                  f"want {want!r}")
        elif status == 599:
            outcome = self.check_broken_off(number, prompt, hurried, answer)
        elif status != 0:
            if status not in CLEAN_ERRORS or "message" not in answer.get("error", {}):
                self.find(number, f"status {status}: {answer}")
            elif not self.options.tight and not hurried:
                self.find(number, f"failed although nothing was sent: {status} {answer}")
        with self.lock:
            self.counts[outcome] += 1
            self.counts["requests"] += 1
            self.worst_late = max(self.worst_late, late)
        if late > GRACE_S + TURNS * self.worst_sleep:
            self.find(number, f"{late:.2f} s past its deadline of {timeout_ms} ms ({outcome})")

    def check_broken_off(self, number: int, prompt: int, hurried: bool, answer: Dict) -> str:
        """What to call the end of a stream that ended with an error event. It may where text had left: no other server
        may be able to go on over the same cache. What had left is the beginning of an answer."""
        told, error = answer["told"], answer["error"]
        if "message" not in error:
            self.find(number, f"an error event without a message: {answer}")
            return "stream broken off"
        if not any(text.startswith(told) for key, text in self.expected.items() if key[0] == prompt):
            self.find(number, f"prompt {prompt}: broken off after {told!r}, which begins no answer")
        if hurried and is_deadline(answer):
            return "error 504 in a stream"
        if not told and not hurried and not self.options.tight:
            self.find(number, f"failed although nothing was sent: {answer}")
        with self.lock:
            self.reasons[re.sub(r"\d+", "N", error["message"])[:120]] += 1
        return "stream broken off"

    def disturb(self, fleet: Fleet, block: int, stop: threading.Event) -> None:
        """The faults of one block of requests. Unless --tight, one decode server is always there to answer."""
        draw = random.Random(f"{self.options.seed}/block {block}")
        while not stop.wait(draw.uniform(0.2, 2.0)):
            name = draw.choice([one for one in fleet.servers if one != "gateway"])
            kind = draw.choice(("kill", "kill", "stop", "term"))
            server = fleet.servers[name]
            if not self.options.tight and name.startswith("decode"):
                while fleet.ready_decodes() != 2 and not stop.wait(0.1):
                    pass
                if stop.is_set():
                    return
            pause = draw.uniform(0.1, 3.0) if kind == "stop" else draw.uniform(0.0, 1.0)
            with self.lock:
                self.counts[f"{kind} {name.split('-')[0]}"] += 1
            if kind == "stop":
                server.process.send_signal(signal.SIGSTOP)
                stop.wait(pause)
                server.process.send_signal(signal.SIGCONT)
                self.settle(server)
                continue
            # A process that has only begun has no hand on SIGTERM yet, and ends by it.
            if kind == "kill" or server.get("/health") is None:
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
            self.settle(server)

    def settle(self, server: Server) -> None:
        """Until the server serves and the gateway has had the time to ask it, so that its word on it is no old one."""
        if self.options.tight or not server.name.startswith("decode"):
            return
        server.wait_ready()
        time.sleep(2 * PROBE_S)

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
        fleet = Fleet(self.options.bin, folder, self.options.faults, self.options.seed, room=self.room(),
                      probe_timeout_ms=1000 if self.options.tight else PATIENT_PROBE_MS)
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
            cut = fleet.metric_sum(r'^aludel_cut_answers_total\{[^}]*outcome="(\w+)"[^}]*\} (\S+)$')
            print(f"answers whose decode server was lost under them: {cut}; "
                  f"why streams broke off: {dict(self.reasons)}")
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
    parser.add_argument("--context-bytes", type=int, default=10000, help="of each prompt's context")
    parser.add_argument("--tight", action="store_true", help="little room, and both decode servers may be down at once")
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
