"""What does routing by prefix give on real servers? Plays conversations, or a slice of a trace, to 2 prefill servers, 3 decode
servers and 2 gateways with the demo pair, under each policy: goodput at an objective for the first token, and the share of prompts that was in decode servers'
caches, beside the share that one cache without bounds would have.

    routing_goodput.py --bin build/release/bin [--speed 4] [--policies prefix,round_robin] [--slo-ttft-ms 500]
    routing_goodput.py --bin build/release/bin --trace conversations.jsonl --slice 600 --speed 8

Seven servers and two clients run on this machine: with fewer idle cores than that only hits mean something.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from chaos_fleet import Server  # noqa: E402
from stack import free_ports  # noqa: E402

TRACE_BLOCK = 512  # tokens that a trace's hash_id names; --block-tokens makes it fewer
CONTEXT = 1024  # of the demo pair
MAX_TOKENS = 8
HITS = re.compile(r'^aludel_prefix_cache_hits_total\{[^}]*\} (\S+)$', re.MULTILINE)
QUERIES = re.compile(r'^aludel_prefix_cache_queries_total\{[^}]*\} (\S+)$', re.MULTILINE)


def conversations(count: int, turns: int, gap_ms: float, seed: int) -> List[Dict]:
    """Each turn is two blocks longer, over a system prompt of two blocks that all share."""
    requests = []
    for turn in range(turns):
        order = list(range(count))
        random.Random(seed + turn).shuffle(order)
        for place, one in enumerate(order):
            blocks = [0, 1] + [1000 * (one + 1) + block for block in range(2 * (turn + 1))]
            requests.append({"timestamp": (turn * count + place) * gap_ms, "input_length": TRACE_BLOCK * len(blocks),
                             "output_length": 64, "hash_ids": blocks})
    return requests


def trace_slice(trace: Path, count: int, block_tokens: int) -> List[Dict]:
    """The first requests whose prompts are within the pair's context once blocks are shorter."""
    longest = (CONTEXT - 64 - MAX_TOKENS) * TRACE_BLOCK // block_tokens
    requests: List[Dict] = []
    with trace.open() as lines:
        for line in lines:
            request = json.loads(line)
            if request["input_length"] <= longest:
                requests.append(request)
            if len(requests) == count:
                break
    return requests


def ideal_hits(requests: List[Dict]) -> float:
    seen, hits, tokens = set(), 0, 0
    for request in requests:
        prefix = 0
        for end in range(1, len(request["hash_ids"]) + 1):
            beginning = tuple(request["hash_ids"][:end])
            if beginning in seen:
                prefix = end
            seen.add(beginning)
        hits, tokens = hits + prefix, tokens + len(request["hash_ids"])
    return hits / tokens


class Fleet:
    def __init__(self, binaries: Path, folder: Path, policy: str, objective_ms: int, kv_blocks: int) -> None:
        ports = iter(free_ports(14))
        self.servers: List[Server] = []
        prefills, decodes = "", ""
        for number in (1, 2):
            port, admin = next(ports), next(ports)
            prefills += f' prefill_targets: "127.0.0.1:{port}"'
            self.add(f"prefill-{number}", "aludel-prefill", binaries, folder, admin, f"""
listen: "127.0.0.1:{port}" admin_listen: "127.0.0.1:{admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 16 }}
codec {{ artifact: "deploy/demo/codec" }} send_arena_bytes: 33554432
""")
        self.decodes = []
        for number in (1, 2, 3):
            port, admin = next(ports), next(ports)
            decodes += f' decode_targets: "127.0.0.1:{port}"'
            self.decodes.append(self.add(f"decode-{number}", "aludel-decode", binaries, folder, admin, f"""
listen: "127.0.0.1:{port}" admin_listen: "127.0.0.1:{admin}" served_model_name: "chat" {prefills}
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 16 kv_blocks: {kv_blocks} }}
codec {{ artifact: "deploy/demo/codec" }} planner {{ fidelity: "fast" min_remote_tokens: 32 }}
"""))
        self.gateways = []
        for number in (1, 2):
            port, admin = next(ports), next(ports)
            self.gateways.append(port)
            self.add(f"gateway-{number}", "aludel-gateway", binaries, folder, admin, f"""
listen: "127.0.0.1:{port}" admin_listen: "127.0.0.1:{admin}"
models {{ name: "chat" directory: "deploy/demo/chat" {decodes} }}
routing {{ policy: "{policy}" objective_ttft_ms: {objective_ms} }}
""")

    def add(self, name: str, binary: str, binaries: Path, folder: Path, admin: int, config: str) -> Server:
        self.servers.append(Server(name, binaries / binary, config, folder, admin))
        return self.servers[-1]

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()

    def cache_hits(self) -> float:
        """Of prompt tokens that decode servers looked up."""
        texts = [server.get("/metrics") or "" for server in self.decodes]
        hits, queries = (sum(float(value) for text in texts for value in pattern.findall(text)) for pattern in (HITS, QUERIES))
        return hits / max(queries, 1)

    def stop(self) -> None:
        for server in reversed(self.servers):
            server.end()


def play(fleet: Fleet, binaries: Path, folder: Path, requests: List[Dict], options: argparse.Namespace, fidelity: str,
         speed: float) -> Dict[str, float]:
    """Each request to a gateway at random, as a balancer before them would have it."""
    chosen = random.Random(options.seed)
    halves: List[List[Dict]] = [[], []]
    for request in requests:
        halves[chosen.randrange(2)].append(request)
    clients = []
    for number, half in enumerate(halves):
        trace = folder / f"trace-{number}.jsonl"
        trace.write_text("".join(json.dumps(request) + "\n" for request in half))
        clients.append(subprocess.Popen(
            [str(binaries / "aludel-bench"), "serve", "--url", f"http://127.0.0.1:{fleet.gateways[number]}", "--model", "chat",
             "--trace", str(trace), "--block-tokens", str(options.block_tokens), "--tokenizer", "deploy/demo/chat", "--speed", str(speed),
             "--max-tokens", str(MAX_TOKENS), "--fidelity", fidelity, "--slo-ttft-ms", str(options.slo_ttft_ms),
             "--json", str(folder / f"load-{number}.json")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for client in clients:
        if client.wait() != 0:
            raise RuntimeError("aludel-bench serve failed")
    reports = [json.loads((folder / f"load-{number}.json").read_text()) for number in (0, 1)]
    return {"goodput": sum(report["goodput_per_second"] for report in reports),
            "good": sum(report["good"] for report in reports) / len(requests)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--policies", default="prefix,round_robin")
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--gap-ms", type=float, default=250, help="between two requests, at speed 1")
    parser.add_argument("--trace", type=Path, help="play its beginning instead of made-up conversations")
    parser.add_argument("--slice", type=int, default=600, help="requests of the trace")
    parser.add_argument("--block-tokens", type=int, default=64, help="that a block of 512 of a trace, or of a conversation, becomes")
    parser.add_argument("--low-speed", type=float, default=1, help="of the load for hits")
    parser.add_argument("--speed", type=float, default=4, help="of the load for goodput")
    parser.add_argument("--slo-ttft-ms", type=int, default=500)
    parser.add_argument("--kv-blocks", type=int, default=1024, help="of a decode server; 16 tokens each")
    parser.add_argument("--fidelity", default="fast", help="of the load for goodput; exact: decode servers prefill")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    binaries = options.bin.resolve()
    requests = (trace_slice(options.trace, options.slice, options.block_tokens) if options.trace else
                conversations(options.conversations, options.turns, options.gap_ms, options.seed))
    print(f"{len(requests)} requests; ideal hits {ideal_hits(requests):.3f}")
    print("policy      | low load, exact: hits | of ideal | under load: goodput/s | share in time")
    goodput = {}
    for policy in options.policies.split(","):
        with tempfile.TemporaryDirectory(prefix="aludel-routing-") as name:
            fleet = Fleet(binaries, Path(name), policy, options.slo_ttft_ms, options.kv_blocks)
            try:
                fleet.start()
                play(fleet, binaries, Path(name), requests, options, "exact", options.low_speed)
                hits = fleet.cache_hits()
                # Other conversations, that no cache has.
                fresh = [{**request, "hash_ids": [10 ** 6 + block for block in request["hash_ids"]]} for request in requests]
                row = play(fleet, binaries, Path(name), fresh, options, options.fidelity, options.speed)
            finally:
                fleet.stop()
        goodput[policy] = row["goodput"]
        print(f"{policy:11} | {hits:21.3f} | {hits / ideal_hits(requests):8.3f} | {row['goodput']:21.2f} | {row['good']:.3f}",
              flush=True)
    if {"prefix", "round_robin"} <= goodput.keys():
        print(f"prefix over round_robin: {goodput['prefix'] / max(goodput['round_robin'], 1e-9):.2f} (goal 1.3)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
