"""Does the time of an answer tell whether another tenant has asked the same? One tenant's prompts are stored; then
they are asked for again by the tenant (a hit), by another one (who must not find them), and beside each a prompt as
long that was never asked for (a miss). With the prompts in the decode server's prefix cache, and in the memory, on
the disk and at the remote of the prefill server's store.

    salt_timing.py --bin build/release/bin [--prompts 40]

Prints the medians of the time to a first token that ends the answer, as a client measures it, and two ratios: another
tenant's over a miss, which is to be 1, and the own hit's over a miss. The three requests of a prompt follow one
another in random order, so that what else the machine does falls on all alike; the interval is that of 99 % of
resamplings of the prompts. Exits with 1 where that of the first ratio does not hold 1, or the own hit is not faster.
That each does the same work is a test of its own: store_feed_test and
PrefixStore.ARequestOfAnotherSaltDoesWhatAMissDoes.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from chaos_fleet import Server  # noqa: E402
from stack import free_ports  # noqa: E402

PLACES = ("prefix cache", "memory", "disk", "remote")
KINDS = ("own", "other", "miss")
RESAMPLINGS = 2000


class Fleet:
    def __init__(self, binaries: Path, folder: Path, place: str) -> None:
        prefill, prefill_admin, decode, decode_admin, self.port, gateway_admin, redis = free_ports(7)
        tiers = {"disk": f'disk {{ path: "{folder / "disk"}" bytes: 1073741824 }}',
                 "remote": f'remote {{ address: "127.0.0.1:{redis}" max_wait_ms: 200 }}'}
        self.place = place
        self.redis = ["redis-server", "--port", str(redis), "--save", "", "--bind", "127.0.0.1"]
        self.process = None
        codec = 'codec { artifact: "deploy/demo/codec" }'
        self.prefill = Server("prefill", binaries / "aludel-prefill", f"""
listen: "127.0.0.1:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 4 prefix_cache: false }}
{codec} store {{ {tiers.get(place, "")} }}
""", folder, prefill_admin)
        self.decode = Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}"
served_model_name: "chat" prefill_targets: "127.0.0.1:{prefill}"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 4 kv_blocks: 8192
          prefix_cache: {"true" if place == "prefix cache" else "false"} }}
{codec} planner {{ min_remote_tokens: 16 }} store {{ memory_bytes: 0 }} handoff_timeout_ms: 60000
""", folder, decode_admin)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}" admin_listen: "127.0.0.1:{gateway_admin}"
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{decode}" }}
""", folder, gateway_admin)

    def start(self) -> None:
        if self.place == "remote":
            self.process = subprocess.Popen(self.redis, stdout=subprocess.DEVNULL)
        for server in (self.prefill, self.decode, self.gateway):
            server.start()
        for server in (self.prefill, self.decode, self.gateway):
            server.wait_ready()
        self.wait_prefill()

    def wait_metric(self, server: Server, pattern: str) -> None:
        until = time.monotonic() + 60
        while not re.search(pattern, server.get("/metrics") or "", re.MULTILINE):
            if time.monotonic() > until:
                raise RuntimeError(f"{server.name}: no {pattern} within 60 s")
            time.sleep(0.05)

    def wait_prefill(self) -> None:
        self.wait_metric(self.decode, r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$')
        if self.place == "remote":
            self.wait_metric(self.prefill, r'^aludel_store_open\{tier="remote"\} 1$')

    def restart_prefill(self) -> None:
        """What was in its memory is on disk or at the remote alone."""
        if self.place == "remote":
            self.wait_metric(self.prefill, r"^aludel_store_remote_queued_bytes 0$")
        assert self.prefill.end() == 0
        self.wait_metric(self.decode, r'^aludel_prefill_target_state\{[^}]*state="down"[^}]*\} 1$')
        self.prefill.start()
        self.prefill.wait_ready()
        self.wait_prefill()

    def stop(self) -> None:
        for server in (self.gateway, self.decode, self.prefill):
            server.end()
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def ask(port: int, prompt: List[int], salt: str) -> Tuple[float, int]:
    """Seconds, and cached tokens."""
    body = json.dumps({"model": "chat", "prompt": prompt, "temperature": 0, "max_tokens": 1, "cache_salt": salt,
                       "aludel": {"format": "aludel-p0"}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.connect()
        begun = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        seconds = time.perf_counter() - begun
        assert response.status == 200, answer
        return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    finally:
        connection.close()


def measure(fleet: Fleet, draw: random.Random, prompts: int, tokens: int) -> Dict[str, List[float]]:
    def prompt() -> List[int]:
        return [draw.randrange(100, 400) for _ in range(tokens)]

    stored = [prompt() for _ in range(prompts)]
    for one in stored:
        ask(fleet.port, one, "alice")
    if fleet.place in ("disk", "remote"):
        fleet.restart_prefill()
    for _ in range(3):
        ask(fleet.port, prompt(), "warm-up")
    seconds: Dict[str, List[float]] = {kind: [] for kind in KINDS}
    for one in stored:
        for kind in draw.sample(KINDS, len(KINDS)):
            took, cached = ask(fleet.port, prompt() if kind == "miss" else one, "alice" if kind == "own" else "bob")
            assert (cached > tokens // 2) == (kind == "own"), (fleet.place, kind, cached)
            seconds[kind].append(took)
    return seconds


def interval(draw: random.Random, over: List[float], under: List[float]) -> Tuple[float, float]:
    ratios = []
    for _ in range(RESAMPLINGS):
        chosen = [draw.randrange(len(over)) for _ in over]
        ratios.append(statistics.median(over[i] for i in chosen) / statistics.median(under[i] for i in chosen))
    ratios.sort()
    return ratios[RESAMPLINGS // 200], ratios[-1 - RESAMPLINGS // 200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=900, help="of each prompt; the demo pair's context is 1,024")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    failed = False
    print("where | own hit, ms | another's, ms | miss, ms | another's over miss (99 %) | own over miss (99 %)")
    for place in options.places.split(","):
        if place == "remote" and shutil.which("redis-server") is None:
            print("remote: no redis-server here, left out")
            continue
        with tempfile.TemporaryDirectory(prefix="aludel-salts-") as folder:
            fleet = Fleet(options.bin.resolve(), Path(folder), place)
            try:
                fleet.start()
                seconds = measure(fleet, draw, options.prompts, options.tokens)
            finally:
                fleet.stop()
        medians = {kind: statistics.median(values) for kind, values in seconds.items()}
        other = interval(draw, seconds["other"], seconds["miss"])
        own = interval(draw, seconds["own"], seconds["miss"])
        failed |= not other[0] <= 1 <= other[1] or own[1] >= 1
        times = " | ".join(f"{1e3 * medians[kind]:7.2f}" for kind in KINDS)
        print(f"{place:12} | {times} | "
              f"{medians['other'] / medians['miss']:.3f} ({other[0]:.3f} to {other[1]:.3f}) | "
              f"{medians['own'] / medians['miss']:.3f} ({own[0]:.3f} to {own[1]:.3f})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
