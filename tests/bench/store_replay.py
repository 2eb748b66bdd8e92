"""What is placement in the prefix store worth on real servers, and what of it is left after a restart? Plays a slice
of a trace to a gateway, a decode server that keeps nothing and a prefill server whose store has little memory and a
disk, or none (--disk 0), under each placement: the time to the first token, and the share of prompt tokens that each
tier had, for each half of the slice.

    store_replay.py --bin build/release/bin --trace conversations.jsonl [--memory 4e6,16e6] [--disk 0,256e6]

Each is played twice: once as it is, and once with every server stopped and started again in the middle. What a
restart costs is the second half of the one beside that of the other: the halves themselves differ, as conversations
grow. Both runs pause there.

Each request asks for one of --formats, drawn once and for all, so that every placement is asked for the same codes
and the answers have the same loss. One that asks for the first alone is "LRU with one format". The demo's artifact is
repacked into embedded codes first. Four processes run on this machine: want two idle cores where the times are to
mean something; what is found does not depend on them, but for requests that come while others compute the same.
"""

import argparse
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from chaos_fleet import Server  # noqa: E402
from routing_goodput import MAX_TOKENS, trace_slice  # noqa: E402
from stack import ROOT, free_ports  # noqa: E402

READY = re.compile(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$', re.MULTILINE)
QUEUED = re.compile(r"^aludel_store_queued_bytes (\S+)$", re.MULTILINE)
HIT_TOKENS = re.compile(r'^aludel_store_hit_tokens_total\{[^}]*tier="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)
CUTS = re.compile(r"^aludel_store_cuts_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


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
        """Tokens by tier, and cuts, since the server's start."""
        text = self.prefill.get("/metrics") or ""
        counts: Dict[str, float] = {"cuts": sum(float(value) for value in CUTS.findall(text))}
        for tier, value in HIT_TOKENS.findall(text):
            counts[tier] = counts.get(tier, 0) + float(value)
        return counts


def play(fleet: Fleet, binaries: Path, folder: Path, requests: List[Dict], options: argparse.Namespace) -> Dict:
    """A client for each format. The trace begins with the first of the requests, whose formats are in "format"."""
    before = fleet.found()
    first = requests[0]["timestamp"]
    formats = options.formats.split(",")
    asked: Dict[str, List[Dict]] = {name: [] for name in formats}
    for request in requests:
        asked[request["format"]].append({**request, "timestamp": request["timestamp"] - first})
    clients = []
    for number, name in enumerate(formats):
        trace = folder / f"trace-{number}.jsonl"
        trace.write_text("".join(json.dumps(request) + "\n" for request in asked[name]))
        clients.append(subprocess.Popen(
            [str(binaries / "aludel-bench"), "serve", "--url", f"http://127.0.0.1:{fleet.port}", "--model", "chat", "--trace",
             str(trace), "--block-tokens", str(options.block_tokens), "--tokenizer", "deploy/demo/chat", "--speed",
             str(options.speed), "--max-tokens", str(MAX_TOKENS), "--format", name, "--json", str(folder / f"load-{number}.json")],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        for client in clients:
            if client.wait() != 0:
                raise RuntimeError("aludel-bench serve failed")
    finally:
        for client in clients:
            client.kill()
    reports = [json.loads((folder / f"load-{number}.json").read_text()) for number in range(len(formats))]
    done = [report for report in reports if report["completed"]]
    answered = sum(report["completed"] for report in done)
    tokens = sum(report["completed"] * report["mean_tokens"]["prompt"] for report in done)
    counts = {name: count - before.get(name, 0) for name, count in fleet.found().items()}
    cuts = counts.pop("cuts")
    return {"answered": answered, "hits": {tier: count / tokens for tier, count in counts.items()}, "cuts": cuts,
            "mean": sum(report["completed"] * report["ttft_ms"]["mean"] for report in done) / answered,
            "p90": max(report["ttft_ms"]["p90"] for report in done)}


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
    parser.add_argument("--speed", type=float, default=2, help="plays the trace so many times as fast")
    parser.add_argument("--formats", default="aludel-p0,aludel-p0@3,aludel-p0@1", help="asked for equally often; @N: its first N planes")
    parser.add_argument("--placements", default="lru,utility")
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
    print("memory, MB | disk, MB | placement | restart | first half | second half | "
          "mean time to the first token there, ms | cut chunks | answered")
    with tempfile.TemporaryDirectory(prefix="aludel-replay-") as name:
        artifact = repack(binaries, Path(name))
        for memory, disk, placement, restart in itertools.product(
                options.memory.split(","), options.disk.split(","), options.placements.split(","), (False, True)):
            folder = Path(name) / f"{memory}-{disk}-{placement}-{restart}"
            folder.mkdir()
            fleet = Fleet(binaries, folder, artifact, formats, placement, int(float(memory)), int(float(disk)),
                          options.chunk_tokens)
            try:
                fleet.start()
                rows = [play(fleet, binaries, folder, halves[0], options)]
                fleet.pause(restart)
                rows.append(play(fleet, binaries, folder, halves[1], options))
            finally:
                fleet.stop()
            again = "yes" if restart else "no"
            cuts, answered = (sum(row[what] for row in rows) for what in ("cuts", "answered"))
            print(f"{float(memory) / 1e6:10.1f} | {float(disk) / 1e6:8.0f} | {placement:9} | {again:7} | "
                  f"{shares(rows[0])} | {shares(rows[1])} | {rows[1]['mean']:8.1f} | {cuts:6.0f} | "
                  f"{answered} of {len(requests)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
