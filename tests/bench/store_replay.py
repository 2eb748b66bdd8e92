"""What is placement in the prefix store worth on real servers, and what of it is left after a restart? Plays a slice
of a trace to a gateway, a decode server that keeps nothing and a prefill server whose store has little memory and a
disk, or none (--disk 0), in several arms: the share of prompt tokens that each tier had, for the first half of the
slice, the second, and the first again, the time to the first token, and the bytes that the tiers held and the disk took.

    store_replay.py --bin build/release/bin --trace conversations.jsonl [--memory 4e6,16e6] [--disk 0,256e6]

Each is played twice: once as it is, and once with every server stopped and started again before each of the latter two.
What a restart costs is a part of the one beside that of the other: the parts themselves differ, as conversations
grow. Both runs wait there until all is written.

One client asks, one request after another (--clients 1): then the steps of the engine, and so the stored chunks, are the
same in both, and nothing depends on how fast the machine is. With several, prompts share steps and wait for one another,
and two runs of the same differ.

An arm is a placement: each request asks for one of --formats, drawn once and for all, so that every placement is asked for
the same codes and the answers have the same loss. Or it is PLACEMENT:FORMAT, and all requests ask for that one:
"lru:aludel-p0@3" is "LRU with one format", whose loss is that format's. The demo's artifact is repacked into embedded
codes first.
"""

import argparse
import itertools
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from chaos_fleet import Server, ask  # noqa: E402
from routing_goodput import TRACE_BLOCK, trace_slice  # noqa: E402
from stack import ROOT, free_ports  # noqa: E402

READY = re.compile(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$', re.MULTILINE)
QUEUED = re.compile(r"^aludel_store_queued_bytes (\S+)$", re.MULTILINE)
HIT_TOKENS = re.compile(r'^aludel_store_hit_tokens_total\{[^}]*tier="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
FAILURES = re.compile(r'^aludel_store_(?:failures|memory_rejects)_total\{[^}]*reason="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
BYTES = re.compile(r'^aludel_store_bytes\{[^}]*tier="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
WRITTEN = re.compile(r"^aludel_store_written_bytes_total (\S+)$", re.MULTILINE)
EVICTIONS = re.compile(r'^aludel_store_evictions_total\{[^}]*tier="disk"[^}]*\} (\S+)$', re.MULTILINE)


def repack(binaries: Path, folder: Path) -> Path:
    artifact = folder / "codec"
    shutil.copytree(ROOT / "deploy/demo/codec", artifact)
    subprocess.run([str(binaries / "aludel-calibrate"), "--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat",
                    "--threads", "2", "--data", "deploy/demo/calibration.jsonl", "--prompts", "20", "--repack", "--packing",
                    "embedded", "--out", str(artifact)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return artifact


class Fleet:
    def __init__(self, binaries: Path, folder: Path, artifact: Path, formats: List[str], placement: str, memory: int,
                 disk: int, chunk_tokens: int) -> None:
        prefill, prefill_admin, decode, decode_admin, self.port, gateway_admin = free_ports(6)
        codec = f'codec {{ artifact: "{artifact}" ' + " ".join(f'formats: "{name}"' for name in formats) + " }"
        kept = f'disk {{ path: "{folder / "disk"}" bytes: {disk} }}' if disk else ""
        self.prefill = Server("prefill", binaries / "aludel-prefill", f"""
listen: "127.0.0.1:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 16 max_num_batched_tokens: {chunk_tokens}
          prefix_cache: false }}
{codec} send_arena_bytes: 33554432
store {{ memory_bytes: {memory} placement: "{placement}" {kept} }}
""", folder, prefill_admin)
        self.servers = [self.prefill, Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "chat" prefill_targets: "127.0.0.1:{prefill}"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 16 prefix_cache: false }}
{codec} planner {{ min_remote_tokens: 16 }} store {{ memory_bytes: 0 }} handoff_timeout_ms: 60000
""", folder, decode_admin), Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}" admin_listen: "127.0.0.1:{gateway_admin}"
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{decode}" }}
""", folder, gateway_admin)]

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        until = time.monotonic() + 60
        while not READY.search(self.servers[1].get("/metrics") or ""):
            if time.monotonic() > until:
                raise RuntimeError("the decode server does not find the prefill server ready")
            time.sleep(0.05)

    def stop(self) -> None:
        for server in reversed(self.servers):
            server.end()

    def pause(self, restart: bool) -> None:
        """Until what waits for the disk is written, as at a stop."""
        if restart:
            for server in reversed(self.servers):
                if server.end() != 0:
                    raise RuntimeError(f"{server.name} did not stop cleanly")
            return self.start()
        until = time.monotonic() + 60
        while any(float(bytes) > 0 for bytes in QUEUED.findall(self.prefill.get("/metrics") or "")):
            if time.monotonic() > until:
                raise RuntimeError("the disk takes more than 60 s")
            time.sleep(0.05)

    def found(self) -> Dict[str, float]:
        """Tokens by tier since the server's start."""
        counts: Dict[str, float] = {}
        for tier, value in HIT_TOKENS.findall(self.prefill.get("/metrics") or ""):
            counts[tier] = counts.get(tier, 0) + float(value)
        return counts

    def held(self) -> str:
        """Megabytes by tier, and those written to the disk since the server's start."""
        text = self.prefill.get("/metrics") or ""
        tiers = [f"{tier} {float(value) / 1e6:.2f}" for tier, value in BYTES.findall(text) if float(value) > 0]
        written = sum(float(value) for value in WRITTEN.findall(text))
        return ", ".join(tiers + ([f"written {written / 1e6:.2f}"] if written else []))

    def failures(self) -> str:
        """What could not be kept, written or read since the server's start, and what the disk dropped."""
        text = self.prefill.get("/metrics") or ""
        counts = [f"{reason} {value}" for reason, value in FAILURES.findall(text) if float(value) > 0]
        dropped = sum(float(value) for value in EVICTIONS.findall(text))
        return ", ".join(counts + ([f"{dropped:.0f} dropped from disk"] if dropped else [])) or "none"


def prompt_of(request: Dict, block_tokens: int) -> List[int]:
    """Token ids: the same of the same block."""
    tokens: List[int] = []
    left = request["input_length"]
    for block in request["hash_ids"]:
        draw = random.Random(block)
        length = min(left, TRACE_BLOCK) * block_tokens // TRACE_BLOCK
        tokens += [draw.randrange(100, 400) for _ in range(max(1, length))]
        left -= TRACE_BLOCK
    return tokens


def play(fleet: Fleet, requests: List[Dict], one_format: str, options: argparse.Namespace) -> Dict:
    """With `one_format` all requests ask for it."""
    before = fleet.found()
    turns: Iterator[Dict] = iter(requests)
    lock = threading.Lock()
    times: List[float] = []
    tokens: List[int] = []

    def client() -> None:
        while True:
            with lock:
                request = next(turns, None)
            if request is None:
                return
            prompt = prompt_of(request, options.block_tokens)
            body = {"model": "chat", "prompt": prompt, "temperature": 0, "max_tokens": 1, "ignore_eos": True,
                    "aludel": {"format": one_format or request["format"], "timeout_ms": 60000}}
            status, answer = ask(fleet.port, body, 70)
            if status == 200 and answer["aludel"]["plan"] == "remote":
                times.append(answer["aludel"]["ttft"])
                tokens.append(len(prompt))

    clients = [threading.Thread(target=client) for _ in range(options.clients)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    counts = {name: count - before.get(name, 0) for name, count in fleet.found().items()}
    return {"answered": len(times), "hits": {tier: count / sum(tokens) for tier, count in counts.items()},
            "mean": 1000 * sum(times) / len(times)}


def shares(row: Dict) -> str:
    hits = row["hits"]
    tiers = ", ".join(f"{tier} {100 * share:.1f}" for tier, share in sorted(hits.items()) if share > 0)
    return f"{100 * sum(hits.values()):5.1f} ({tiers})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--slice", type=int, default=300, help="requests of the trace")
    parser.add_argument("--block-tokens", type=int, default=32, help="that a block of 512 of the trace becomes")
    parser.add_argument("--chunk-tokens", type=int, default=64, help="of one step, and so of a stored chunk at most")
    parser.add_argument("--clients", type=int, default=1, help="that ask at once")
    parser.add_argument("--formats", default="aludel-p0,aludel-p0@3,aludel-p0@1", help="asked for equally often; @N: its first N planes")
    parser.add_argument("--arms", default="lru,utility", help="placements, each perhaps as PLACEMENT:FORMAT, see above")
    parser.add_argument("--memory", default="4e6,16e6", help="bytes of the store, each tried")
    parser.add_argument("--disk", default="0,256e6", help="bytes of its disk, each tried; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    binaries = options.bin.resolve()
    formats = options.formats.split(",")
    draw = random.Random(options.seed)
    requests = [{**request, "format": draw.choice(formats)}
                for request in trace_slice(options.trace, options.slice, options.block_tokens)]
    halves = [requests[: len(requests) // 2], requests[len(requests) // 2:]]
    print(f"{len(requests)} requests in {options.formats}; found, % of tokens, in all and by tier")
    print("memory, MB | disk, MB | arm | restarts | first half | second half | first half again | "
          "mean time to the first token there, ms | answered | MB then | failures")
    with tempfile.TemporaryDirectory(prefix="aludel-replay-") as name:
        artifact = repack(binaries, Path(name))
        for memory, disk, arm, restart in itertools.product(
                options.memory.split(","), options.disk.split(","), options.arms.split(","), (False, True)):
            placement, _, one_format = arm.partition(":")
            folder = Path(name) / f"{memory}-{disk}-{arm.replace(':', '-')}-{restart}"
            folder.mkdir()
            fleet = Fleet(binaries, folder, artifact, formats, placement, int(float(memory)), int(float(disk)),
                          options.chunk_tokens)
            rows: List[Dict] = []
            failures: List[str] = []
            try:
                fleet.start()
                for part in (halves[0], halves[1], halves[0]):
                    if rows:
                        fleet.pause(restart)
                    rows.append(play(fleet, part, one_format, options))
                    failures.append(fleet.failures())
                fleet.pause(restart=False)
                held = fleet.held()
            finally:
                fleet.stop()
            answered = sum(row["answered"] for row in rows)
            asked = len(requests) + len(halves[0])
            print(f"{float(memory) / 1e6:10.1f} | {float(disk) / 1e6:8.0f} | {arm:16} | {'two' if restart else 'none':8} | "
                  f"{' | '.join(shares(row) for row in rows)} | {rows[2]['mean']:8.1f} | {answered} of {asked} | {held} | "
                  f"{'; '.join(failures) if restart else failures[-1]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
