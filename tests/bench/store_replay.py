"""What is placement in the prefix store worth on real servers? Plays a slice of a trace to a gateway, a decode server that keeps nothing
and a prefill server whose store has little memory (and a disk, with --disk), under each placement: the time to the first
token, and the share of prompt tokens that each tier had.

    store_replay.py --bin build/release/bin --trace conversations.jsonl [--slice 300] [--memory 4e6,16e6]

Each request asks for one of --formats, drawn once and for all, so that every placement is asked for the same codes and the answers have
the same loss. One that asks for the first alone is "LRU with one format". The demo's artifact is repacked into embedded codes
first. Four processes run on this machine: want two idle cores.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from chaos_fleet import Server  # noqa: E402
from routing_goodput import MAX_TOKENS, trace_slice  # noqa: E402
from stack import ROOT, free_ports  # noqa: E402

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
    def __init__(self, binaries: Path, folder: Path, artifact: Path, formats: List[str], placement: str, memory: int, disk: int) -> None:
        prefill, prefill_admin, decode, decode_admin, self.port, gateway_admin = free_ports(6)
        codec = f'codec {{ artifact: "{artifact}" ' + " ".join(f'formats: "{name}"' for name in formats) + " }"
        kept = f'disk {{ path: "{folder / "disk"}" bytes: {disk} }}' if disk else ""
        self.prefill = Server("prefill", binaries / "aludel-prefill", f"""
listen: "127.0.0.1:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 16 prefix_cache: false }}
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

    def stop(self) -> None:
        for server in reversed(self.servers):
            server.end()


def play(fleet: Fleet, binaries: Path, folder: Path, requests: List[Dict], options: argparse.Namespace) -> Dict:
    """A client for each format."""
    draw = random.Random(options.seed)
    formats = options.formats.split(",")
    asked: Dict[str, List[Dict]] = {name: [] for name in formats}
    for request in requests:
        asked[draw.choice(formats)].append(request)
    clients = []
    for number, name in enumerate(formats):
        trace = folder / f"trace-{number}.jsonl"
        trace.write_text("".join(json.dumps(request) + "\n" for request in asked[name]))
        clients.append(subprocess.Popen(
            [str(binaries / "aludel-bench"), "serve", "--url", f"http://127.0.0.1:{fleet.port}", "--model", "chat", "--trace",
             str(trace), "--block-tokens", str(options.block_tokens), "--tokenizer", "deploy/demo/chat", "--speed",
             str(options.speed), "--max-tokens", str(MAX_TOKENS), "--format", name, "--json", str(folder / f"load-{number}.json")],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for client in clients:
        if client.wait() != 0:
            raise RuntimeError("aludel-bench serve failed")
    reports = [json.loads((folder / f"load-{number}.json").read_text()) for number in range(len(formats))]
    done = [report for report in reports if report["completed"]]
    answered = sum(report["completed"] for report in done)
    tokens = sum(report["completed"] * report["mean_tokens"]["prompt"] for report in done)
    text = fleet.prefill.get("/metrics") or ""
    hits: Dict[str, float] = {}
    for tier, value in HIT_TOKENS.findall(text):
        hits[tier] = hits.get(tier, 0) + float(value) / tokens
    return {"answered": answered, "requests": len(requests), "hits": hits, "cuts": sum(float(value) for value in CUTS.findall(text)),
            "mean": sum(report["completed"] * report["ttft_ms"]["mean"] for report in done) / answered,
            "p90": max(report["ttft_ms"]["p90"] for report in done)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--slice", type=int, default=300, help="requests of the trace")
    parser.add_argument("--block-tokens", type=int, default=32, help="that a block of 512 of the trace becomes")
    parser.add_argument("--speed", type=float, default=2, help="plays the trace so many times as fast")
    parser.add_argument("--formats", default="aludel-p0,aludel-p0@3,aludel-p0@1", help="asked for equally often; @N: its first N planes")
    parser.add_argument("--placements", default="lru,utility")
    parser.add_argument("--memory", default="4e6,16e6", help="bytes of the store, each tried")
    parser.add_argument("--disk", type=float, default=0, help="bytes of its disk; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    binaries = options.bin.resolve()
    requests = trace_slice(options.trace, options.slice, options.block_tokens)
    print(f"{len(requests)} requests in {options.formats}")
    print("memory, MB | placement | mean time to the first token, ms | worst p90 of a format | found, % of tokens | cut chunks | answered")
    with tempfile.TemporaryDirectory(prefix="aludel-replay-") as name:
        artifact = repack(binaries, Path(name))
        for memory in options.memory.split(","):
            for placement in options.placements.split(","):
                folder = Path(name) / f"{memory}-{placement}"
                folder.mkdir()
                fleet = Fleet(binaries, folder, artifact, options.formats.split(","), placement, int(float(memory)), int(options.disk))
                try:
                    fleet.start()
                    row = play(fleet, binaries, folder, requests, options)
                finally:
                    fleet.stop()
                found = ", ".join(f"{tier} {100 * share:.1f}" for tier, share in sorted(row["hits"].items()))
                print(f"{float(memory) / 1e6:10.1f} | {placement:9} | {row['mean']:32.1f} | {row['p90']:21.1f} | {found:18} | "
                      f"{row['cuts']:10.0f} | {row['answered']} of {row['requests']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
