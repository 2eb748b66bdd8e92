"""How much sooner is the first token where frames come in two parts (NAME@N+), over links of so many Mb/s? Real servers: the
prefill server runs in a network namespace at the far end of a veth pair that tc caps. Passages of the demo are asked about, each
once, in turns whole and in two parts, so that neither side knows a prompt.

    two_parts.py --bin build/release/bin --codec build/embedded [--format aludel-p0] [--base 1] [--links 1,10] [--prompts 10]
                 [--tokens 64]
"""

import argparse
import http.client
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from chaos_fleet import Server  # noqa: E402
from link_test import FAR, NEAR, FarServer, Link, command, inside, wait  # noqa: E402
from stack import ROOT, free_ports  # noqa: E402


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
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "demo"
engine {{ directory: "deploy/demo/chat" threads: 1 }} {coding}
transport {{ listen: "{NEAR}:{data}" }} prefill_targets: "{FAR}:{prefill}" handoff_timeout_ms: 60000
probe_timeout_ms: 20000
""", folder, decode_admin),
            Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}"
models {{ name: "demo" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{decode}" }}
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

    def ask(self, prompt: str, form: str, tokens: int) -> Dict[str, float]:
        """Milliseconds to the first token and to the last, and bytes."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "aludel": {"format": form}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        first, report = 0.0, {}
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice["text"] for choice in event.get("choices", [])) and not first:
                first = time.monotonic()
            report = event.get("aludel", report)
        end = time.monotonic()
        connection.close()
        if report.get("plan") != "remote" or report.get("format") != form:
            raise RuntimeError(f"not handed over as {form}: {report}")
        return {"first": 1e3 * (first - begin), "all": 1e3 * (end - begin), "bytes": report["payload_bytes"]}


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


def passages() -> Iterator[str]:
    """Of two passages each; no two begin alike."""
    contexts = []
    for line in (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines():
        context = json.loads(line)["context"]
        if context not in contexts:
            contexts.append(context)
    for i in range(len(contexts)):
        yield f"{i} " + " ".join(contexts[(i + k) % len(contexts)] for k in range(2))


def measure(link: Link, options: argparse.Namespace, folder: Path) -> None:
    formats = [options.format, f"{options.format}@{options.base}+"]
    print(f"| link, Mb/s | format | bytes before the first token | ms to it: median (all) | ms to token {options.tokens} "
          "| tokens before the other planes |\n|---|---|---|---|---|---|")
    for mbps in options.links.split(","):
        cap(link, float(mbps))
        (folder / mbps).mkdir()
        fleet = Fleet(link, options.bin.resolve(), folder / mbps, options.codec.resolve(), formats)
        try:
            fleet.start()
            prompts = passages()
            for form in formats:
                fleet.ask(next(prompts), form, options.tokens)  # wires everything up
                await_quiet(link)
            before = {name: fleet.metric(f"aludel_tokens_before_upgrade_{name}") for name in ("sum", "count")}
            seen: Dict[str, List[Dict[str, float]]] = {form: [] for form in formats}
            for _ in range(options.prompts):
                for form in formats:
                    await_quiet(link)
                    seen[form].append(fleet.ask(next(prompts), form, options.tokens))
            complete = fleet.metric("aludel_tokens_before_upgrade_count") - before["count"]
            tokens = (fleet.metric("aludel_tokens_before_upgrade_sum") - before["sum"]) / max(complete, 1)
            for form in formats:
                first = sorted(one["first"] for one in seen[form])
                late = f"{tokens:.1f} in {complete:.0f} of {options.prompts}" if form == formats[1] else ""
                print(f"| {mbps} | `{form}` | {statistics.mean(one['bytes'] for one in seen[form]):.0f} "
                      f"| {statistics.median(first):.0f} ({first[0]:.0f} to {first[-1]:.0f}) "
                      f"| {statistics.median(one['all'] for one in seen[form]):.0f} | {late} |", flush=True)
        finally:
            fleet.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--codec", type=Path, required=True, help="an artifact with embedded codes")
    parser.add_argument("--format", default="aludel-p0")
    parser.add_argument("--base", type=int, default=1, help="planes before the first token")
    parser.add_argument("--links", default="1,10", help="Mb/s")
    parser.add_argument("--prompts", type=int, default=10, help="of each format")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    options = parser.parse_args()
    if (status := inside("two_parts")) is not None:
        return status
    link = Link()
    with tempfile.TemporaryDirectory(prefix="aludel-two-parts-") as folder:
        try:
            measure(link, options, Path(folder))
        finally:
            link.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
