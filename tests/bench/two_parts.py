"""What do frames in two parts (NAME@N+) give and cost over links of so many Mb/s? Real servers: the prefill server runs in a
network namespace at the far end of a veth pair that tc caps. A passage of the demo is handed over, and the answer to it is given
(served_kl.py): its sentences in another order, so that it leans on what was handed over. All caches are cold. Each passage is asked
about in every way: whole frames, their first planes alone, in two parts, and local prefill.

    two_parts.py --bin build/release/bin [--codec build/embedded] [--format aludel-p0] [--base 1] [--links 1,10,100] [--prompts 6]
                 [--json FILE]

The tables tell how soon tokens came, after which one the other planes did, and the KL to the oracle of the answer so far, after
tokens and after milliseconds, as the served answers tell it. FILE has every answer and token: `upgrade_after_tokens` and `upgrade_after_ms`
are null where the other planes did not come in time, and `times_ms` and `kl` have a number for each token.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from chaos_fleet import Server  # noqa: E402
from embedded_codec import make_embedded  # noqa: E402
from link_test import FAR, NEAR, FarServer, Link, command, inside, wait  # noqa: E402
from served_kl import ask, losses  # noqa: E402
from stack import ROOT, free_ports  # noqa: E402

MODEL = "demo"
LOCAL = "local prefill"
SO_FAR_TOKENS = (8, 16, 32, 64, 128, 256)
SO_FAR_MS = (50, 100, 200, 400, 800, 1600)
CONTROL_KL = 1e-3  # answers of local prefill are the oracle's, but for the batches that they are computed in

Row = Dict[str, Any]


class Fleet:
    """A prefill server at the link's far end, a decode server and a gateway at the near one."""

    def __init__(self, link: Link, binaries: Path, folder: Path, codec: Path, formats: List[str]) -> None:
        prefill, prefill_admin, decode, decode_admin, data, self.port = free_ports(6)
        coding = f"codec {{ artifact: '{codec}' formats: {json.dumps(formats)} }}"
        self.servers = [
            FarServer(link, "prefill", binaries / "aludel-prefill", f"""
listen: "{FAR}:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 }} {coding}
""", folder, prefill_admin),
            Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "{MODEL}"
engine {{ directory: "deploy/demo/chat" threads: 1 }} {coding}
transport {{ listen: "{NEAR}:{data}" }} prefill_targets: "{FAR}:{prefill}" handoff_timeout_ms: 60000
probe_timeout_ms: 20000
""", folder, decode_admin),
            Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}"
models {{ name: "{MODEL}" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{decode}" }}
""", folder, self.port)]

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        wait(lambda: self.metric(r'aludel_prefill_target_state\{state="ready"[^}]*\}') == 1, 60, "the prefill server")

    def stop(self) -> None:
        for server in self.servers:
            server.end()

    def metric(self, pattern: str) -> float:
        """Of the decode server; the sum over all samples."""
        found = re.findall(rf"^{pattern} (\S+)$", self.servers[1].get("/metrics") or "", re.MULTILINE)
        return sum(float(value) for value in found)

    def upgrades(self) -> Tuple[float, float]:
        """How many came whole, and the tokens before them."""
        count, tokens = (self.metric(f"aludel_tokens_before_upgrade_{name}") for name in ("count", "sum"))
        return count, tokens

    def answer(self, passage: str, text: str, way: str, salt: str) -> Row:
        about = {"fidelity": "exact"} if way == LOCAL else {"format": way}
        before = self.upgrades()
        served = ask(self.port, MODEL, passage, text, about, salt)
        report = served.report
        if (report.get("plan"), report.get("format")) != (("local", "") if way == LOCAL else ("remote", way)):
            raise RuntimeError(f"not {way}: {report}")
        after = self.upgrades()
        came = int(after[1] - before[1]) if after[0] > before[0] else None
        scored = losses(self.port, MODEL, served)
        return {"way": way, "prompt_tokens": len(served.prompt), "bytes": report["payload_bytes"], "upgrade_after_tokens": came,
                "upgrade_after_ms": served.times[came] if came is not None and came < len(served.times) else None,
                "times_ms": served.times, "kl": [one for one, _ in scored], "unlisted": [one for _, one in scored]}


def cap(link: Link, mbps: float) -> None:
    """As Link.cap, but that no more than a packet leaves at once: a base may be as small as the other's burst."""
    command(*link.inside, "tc", "qdisc", "replace", "dev", "far", "root", "tbf", "rate", f"{round(1e6 * mbps)}bit",
            "burst", "2kb", "latency", "1s")


def await_quiet(link: Link) -> None:
    """What an earlier answer did without may still be on the link."""
    before = -1
    while (now := link.received()) != before:
        before = now
        time.sleep(0.4)


def questions(count: int) -> List[Tuple[str, str]]:
    """Passages, and their sentences in another order."""
    passages: List[str] = []
    for line in (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines():
        passage = json.loads(line)["context"]
        if passage not in passages:
            passages.append(passage)
    asked = []
    for i, passage in enumerate(passages[:count]):
        said = [one + "." for one in passage.rstrip(".").split(". ")]
        random.Random(i).shuffle(said)
        asked.append((passage, " ".join(said)))
    if len(asked) < count:
        raise RuntimeError(f"there are {len(asked)} passages, want {count}")
    return asked


def measure(link: Link, options: argparse.Namespace, folder: Path) -> List[Row]:
    ways = [options.format, f"{options.format}@{options.base}", f"{options.format}@{options.base}+", LOCAL]
    codec = options.codec or make_embedded(options.bin.resolve(), folder)
    rows: List[Row] = []
    for mbps in options.links.split(","):
        cap(link, float(mbps))
        (folder / mbps).mkdir()
        fleet = Fleet(link, options.bin.resolve(), folder / mbps, codec.resolve(), ways[:-1])
        try:
            fleet.start()
            # The first passage wires everything up.
            for i, (passage, text) in enumerate(questions(options.prompts + 1)):
                for way in ways:
                    await_quiet(link)
                    row = fleet.answer(passage, text, way, f"{i} {way}")
                    if i > 0:
                        rows.append({"link_mbps": float(mbps), "passage": i, **row})
        finally:
            fleet.stop()
    return rows


def check(rows: List[Row]) -> None:
    """Figures whose control is not near 0 are of no use."""
    own = [kl for row in rows if row["way"] == LOCAL for kl in row["kl"]]
    if not statistics.mean(own) < CONTROL_KL:
        raise RuntimeError(f"local prefill has a KL of {statistics.mean(own)} to itself")


def so_far(rows: List[Row], many: Callable[[Row], int]) -> str:
    """The mean KL of the tokens that `many` tells of each answer, with their number."""
    taken = [row["kl"][:many(row)] for row in rows]
    tokens = sum(map(len, taken))
    return f"{sum(map(sum, taken)) / tokens:.4f} ({tokens / len(rows):.0f})" if tokens else "none yet"


def show(rows: List[Row], head: List[str], cells: Callable[[List[Row]], List[str]]) -> None:
    print("| link, Mb/s | way | " + " | ".join(head) + " |" + "\n" + "|---" * (2 + len(head)) + "|")
    for mbps in dict.fromkeys(row["link_mbps"] for row in rows):
        for way in dict.fromkeys(row["way"] for row in rows):
            some = [row for row in rows if (row["link_mbps"], row["way"]) == (mbps, way)]
            print(f"| {mbps:g} | {way if way == LOCAL else f'`{way}`'} | " + " | ".join(cells(some)) + " |")
    print()


def times(rows: List[Row]) -> List[str]:
    first = sorted(row["times_ms"][0] for row in rows)
    came = [row for row in rows if row["upgrade_after_ms"] is not None]
    upgraded = ["", ""] if not came else [
        f"{statistics.median(row['upgrade_after_tokens'] for row in came):.0f} in {len(came)} of {len(rows)}",
        f"{statistics.median(row['upgrade_after_ms'] for row in came):.0f}"]
    return [f"{statistics.mean(row['bytes'] for row in rows):.0f}",
            f"{statistics.median(first):.0f} ({first[0]:.0f} to {first[-1]:.0f})",
            f"{statistics.median(row['times_ms'][-1] for row in rows):.0f}", *upgraded]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--codec", type=Path, help="an artifact with embedded codes; default: the demo's, repacked")
    parser.add_argument("--format", default="aludel-p0")
    parser.add_argument("--base", type=int, default=1, help="planes before the first token")
    parser.add_argument("--links", default="1,10,100", help="Mb/s")
    parser.add_argument("--prompts", type=int, default=6, help="passages")
    parser.add_argument("--json", type=Path, help="a file for every answer")
    options = parser.parse_args()
    if (status := inside("two_parts")) is not None:
        return status
    link = Link()
    with tempfile.TemporaryDirectory(prefix="aludel-two-parts-") as folder:
        try:
            rows = measure(link, options, Path(folder))
        finally:
            link.end()
    check(rows)
    if options.json:
        options.json.write_text(json.dumps(rows))
    tokens = [len(row["times_ms"]) for row in rows]
    unlisted = statistics.mean(statistics.mean(row["unlisted"]) for row in rows)
    print(f"Prompts of {statistics.mean(row['prompt_tokens'] for row in rows):.0f} tokens, answers of {min(tokens)} to {max(tokens)}; "
          f"the lists leave out {unlisted:.3f} of the oracle's probability.\n")
    show(rows, ["bytes before the first token", "ms to it: median (all)", "ms to the last", "other planes come after tokens",
                "after ms"], times)
    print("KL to the oracle of the answer so far, mean nats a token (tokens of an answer); after tokens:\n")
    show(rows, [str(n) for n in SO_FAR_TOKENS], lambda some: [so_far(some, lambda row, n=n: n) for n in SO_FAR_TOKENS])
    print("And after milliseconds:\n")
    show(rows, [str(ms) for ms in SO_FAR_MS],
         lambda some: [so_far(some, lambda row, ms=ms: sum(came <= ms for came in row["times_ms"])) for ms in SO_FAR_MS])
    return 0


if __name__ == "__main__":
    sys.exit(main())
