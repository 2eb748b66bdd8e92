"""What a slow remote of the prefix store costs requests, and one that hangs. A real redis-server, two prefill servers, a decode server and
a gateway with the demo pair on this machine.

    slow_remote.py overlap --bin build/release/bin [--rates 20e6,50e6]
    slow_remote.py hang --bin build/release/bin [--hangs 16] [--requests 8]

overlap: the beginnings of prompts are at the remote, behind a link of so many bytes a second; what follows is new. The time of a run on
the prefill server, from its request to its last frame, and the time to the first token. Two folders of binaries (--bin A --bin B) take turns.

hang: a remote stops answering (SIGSTOP) again and again. Each time the first request meets a remote that has just stopped, the others one
that is known to hang; each request is new, and is asked of two servers without a remote, too, in random order: the quantiles of the times to
the first token, and of what the server with the remote took longer than the first of those without, request by request. Beside that, what the
second of these took longer: the machine's own doing. A remote that has hung several times is tried only every 5 s, which this waits for.
"""

import argparse
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from chaos_fleet import Server, ask  # noqa: E402
from stack import free_ports  # noqa: E402

WORDS = "river garden piano red blue Orla Igor drives plays the a car harp house sings quick north mill bridge stone".split()
FORMAT = "raw"


class Redis:
    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.process = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
                                        stdout=subprocess.DEVNULL)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.thaw()
        self.process.kill()
        self.process.wait()


class Link:
    """Passes connections on. What comes back from the remote does so at a rate in all."""

    def __init__(self, to: int) -> None:
        self.to, self.rate, self.free_at = to, 0.0, 0.0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self.to))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, True), daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket, limited: bool) -> None:
        try:
            while True:
                data = source.recv(16384)
                if not data:
                    break
                if limited and self.rate:
                    with self.lock:
                        self.free_at = max(self.free_at, time.monotonic()) + len(data) / self.rate
                        wait = self.free_at - time.monotonic()
                    if wait > 0:
                        time.sleep(wait)
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Fleet:
    """A prefill server with this remote, a decode server and a gateway."""

    def __init__(self, binaries: Path, folder: Path, remote: str) -> None:
        folder.mkdir()
        self.binaries, self.folder = binaries, folder
        self.ports = free_ports(6)
        ports = self.ports
        self.prefill = self.start_prefill(remote)
        self.others = [Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{ports[2]}" admin_listen: "127.0.0.1:{ports[3]}" served_model_name: "chat" prefill_targets: "127.0.0.1:{ports[0]}"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 4 prefix_cache: false }} codec {{ artifact: "deploy/demo/codec" }}
planner {{ min_remote_tokens: 16 }} store {{ memory_bytes: 0 }} handoff_timeout_ms: 60000 hedge {{ late_min_ms: 60000 }}
probe_interval_ms: 200 probe_max_interval_ms: 200
""", folder, ports[3]), Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{ports[4]}" admin_listen: "127.0.0.1:{ports[5]}"
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{ports[2]}" }}
""", folder, ports[5])]
        for server in self.others:
            server.start()
        for server in self.others:
            server.wait_ready()
        self.wait_for_prefill()

    def start_prefill(self, remote: str) -> Server:
        """`remote`: settings of the store."""
        prefill = Server("prefill", self.binaries / "aludel-prefill", f"""
listen: "127.0.0.1:{self.ports[0]}" admin_listen: "127.0.0.1:{self.ports[1]}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 4 prefix_cache: false }} codec {{ artifact: "deploy/demo/codec" }}
send_arena_bytes: 67108864 store {{ memory_bytes: 268435456 {remote} }}
""", self.folder, self.ports[1])
        prefill.start()
        prefill.wait_ready()
        return prefill

    def restart_prefill(self, remote: str) -> None:
        self.prefill.end()
        self.prefill = self.start_prefill(remote)
        time.sleep(1)  # the decode server notices that the former one has gone
        self.wait_for_prefill()

    def wait_for_prefill(self) -> None:
        ready = re.compile(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$', re.MULTILINE)
        while not ready.search(self.others[0].get("/metrics") or ""):
            time.sleep(0.05)

    def metric(self, name: str) -> float:
        """Of the prefill server, over all labels that follow."""
        found = re.findall("^" + re.escape(name) + r"[^ ]* (\S+)$", self.prefill.get("/metrics") or "", re.MULTILINE)
        return sum(map(float, found))

    def wait_metric(self, name: str, value: float) -> None:
        until = time.monotonic() + 60
        while self.metric(name) != value:
            if time.monotonic() > until:
                raise RuntimeError(f"{name} is {self.metric(name)}, want {value}")
            time.sleep(0.01)

    def ask(self, prompt: str) -> Dict:
        body = {"model": "chat", "prompt": prompt, "temperature": 0, "max_tokens": 1, "ignore_eos": True,
                "aludel": {"format": FORMAT, "timeout_ms": 60000}}
        status, answer = ask(self.ports[4], body, 70)
        if status != 200 or answer["aludel"]["plan"] != "remote":
            raise RuntimeError(f"{status} {answer}")
        return answer["aludel"]

    def stop(self) -> None:
        for server in (self.prefill, *self.others):
            server.end()


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count))


def remote_at(port: int, max_wait_ms: int) -> str:
    return f'remote {{ address: "127.0.0.1:{port}" max_wait_ms: {max_wait_ms} }}'


def overlap_round(fleet: Fleet, redis: Redis, link: Link, rate: float, options: argparse.Namespace, draw: random.Random) -> Dict:
    beginnings = [words(draw, options.stored_words) for _ in range(options.requests + 1)]
    fleet.restart_prefill(remote_at(redis.port, 5000))
    fleet.wait_metric('aludel_store_open{tier="remote"', 1)
    for text in beginnings:
        fleet.ask(text)
    fleet.wait_metric("aludel_store_remote_queued_bytes", 0)
    link.rate = 0
    fleet.restart_prefill(remote_at(link.port, 5000))
    fleet.wait_metric('aludel_store_open{tier="remote"', 1)
    runs: List[float] = []
    first_tokens: List[float] = []
    hits = 0.0
    for number, text in enumerate(beginnings):
        before, tokens = fleet.metric('aludel_handoff_seconds_sum{direction="sent"'), fleet.metric('aludel_store_hit_tokens_total{tier="remote"')
        report = fleet.ask(text + " " + words(draw, options.new_words))
        while fleet.metric('aludel_handoff_seconds_sum{direction="sent"') == before:  # the run ends a moment after its last frame
            time.sleep(0.005)
        if number == 0:  # connects, and touches every page
            link.rate = rate
            continue
        runs.append(fleet.metric('aludel_handoff_seconds_sum{direction="sent"') - before)
        first_tokens.append(report["ttft"])
        hits += fleet.metric('aludel_store_hit_tokens_total{tier="remote"') - tokens
    return {"runs": runs, "first_tokens": first_tokens, "hits": hits / options.requests}


def overlap(options: argparse.Namespace) -> int:
    draw = random.Random(options.seed)
    redis = Redis()
    link = Link(redis.port)
    with tempfile.TemporaryDirectory(prefix="aludel-slow-") as name:
        fleets = []
        try:
            for number, binaries in enumerate(options.bin):
                fleets.append(Fleet(binaries.resolve(), Path(name) / str(number), remote_at(redis.port, 5000)))
            print("remote, MB/s | binaries | a run's last frame after, ms: median (least, most) | first token, ms | tokens of the remote")
            for rate in map(float, options.rates.split(",")):
                rows: List[Dict] = [{"runs": [], "first_tokens": [], "hits": []} for _ in fleets]
                for _ in range(options.rounds):
                    for fleet, row in zip(fleets, rows):
                        found = overlap_round(fleet, redis, link, rate, options, draw)
                        row["runs"] += found["runs"]
                        row["first_tokens"] += found["first_tokens"]
                        row["hits"].append(found["hits"])
                for binaries, row in zip(options.bin, rows):
                    runs = [1000 * seconds for seconds in row["runs"]]
                    print(f"{rate / 1e6:8.1f} | {binaries} | {statistics.median(runs):.1f} ({min(runs):.1f}, {max(runs):.1f}) | "
                          f"{1000 * statistics.median(row['first_tokens']):.1f} | {statistics.mean(row['hits']):.0f}", flush=True)
        finally:
            for fleet in fleets:
                fleet.stop()
            redis.end()
    return 0


def quantiles(values: List[float]) -> str:
    ordered = sorted(1000 * value for value in values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return f"{len(ordered):5} | p50 {at(.5):6.1f} | p90 {at(.9):6.1f} | p99 {at(.99):6.1f} | most {ordered[-1]:6.1f}"


def ask_all(fleets: List[Fleet], text: str, draw: random.Random) -> Tuple[float, ...]:
    """Times to the first token, by server, of a prompt that is new to all of them."""
    took = {number: fleets[number].ask(text)["ttft"] for number in draw.sample(range(len(fleets)), len(fleets))}
    return tuple(took[number] for number in range(len(fleets)))


def hang(options: argparse.Namespace) -> int:
    draw = random.Random(options.seed)
    redis = Redis()
    binaries = options.bin[0].resolve()
    with tempfile.TemporaryDirectory(prefix="aludel-slow-") as name:
        fleets: List[Fleet] = []
        try:
            fleets.append(Fleet(binaries, Path(name) / "remote", remote_at(redis.port, options.max_wait_ms)))
            fleets.append(Fleet(binaries, Path(name) / "none", ""))
            fleets.append(Fleet(binaries, Path(name) / "too", ""))
            hanging = fleets[0]
            for fleet in fleets:
                for _ in range(5):
                    fleet.ask(words(draw, options.new_words))
            times: Dict[str, List[Tuple[float, ...]]] = {"it answers": [], "meets a hang": [], "after it": []}
            for _ in range(options.hangs):
                hanging.wait_metric('aludel_store_open{tier="remote"', 1)
                for _ in range(2):
                    times["it answers"].append(ask_all(fleets, words(draw, options.new_words), draw))
                hanging.wait_metric("aludel_store_remote_queued_bytes", 0)
                redis.freeze()
                for number in range(options.requests):
                    what = "after it" if number else "meets a hang"
                    times[what].append(ask_all(fleets, words(draw, options.new_words), draw))
                redis.thaw()
            print(f"{options.hangs} hangs, {options.requests} requests to each, max_wait_ms {options.max_wait_ms}; "
                  "ms to the first token, and what it took longer than without a remote")
            for what, rows in times.items():
                print(f"{what:13} | with the remote | {quantiles([remote for remote, _, _ in rows])}")
                print(f"{what:13} | without         | {quantiles([none for _, none, _ in rows])}")
                print(f"{what:13} | longer          | {quantiles([remote - none for remote, none, _ in rows])}")
                print(f"{what:13} | another without | {quantiles([other - none for _, none, other in rows])}", flush=True)
            late, errors = (hanging.metric(f'aludel_store_remote_failures_total{{reason="{reason}"') for reason in ("late", "error"))
            print(f"found silent: {errors:.0f}, late: {late:.0f}")
        finally:
            redis.thaw()
            for fleet in fleets:
                fleet.stop()
            redis.end()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("what", choices=("overlap", "hang"))
    parser.add_argument("--bin", type=Path, action="append", required=True, help="folder of the server binaries")
    parser.add_argument("--requests", type=int, default=8, help="of a round, or to a remote that hangs")
    parser.add_argument("--hangs", type=int, default=16, help="hang: how often the remote stops")
    parser.add_argument("--rounds", type=int, default=2, help="overlap: of each rate and folder, which take turns")
    parser.add_argument("--rates", default="20e6,50e6", help="overlap: bytes a second from the remote")
    parser.add_argument("--stored-words", type=int, default=330, help="overlap: that the remote has of a prompt")
    parser.add_argument("--new-words", type=int, default=260, help="that it has not")
    parser.add_argument("--max-wait-ms", type=int, default=10, help="hang: as the setting")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return overlap(options) if options.what == "overlap" else hang(options)


if __name__ == "__main__":
    sys.exit(main())
