"""Do computing and sending overlap? The cold time to the first token of a handoff whose prefill and whose transfer take
equally long, against the longer of the two; one layer of one chunk a frame.

    build/release/bin/aludel-bench make-model --shape qwen2-0.5b --out /tmp/half --tokenizer deploy/demo/base
    build/release/bin/aludel-bench make-codec --producer /tmp/half --consumer /tmp/half --out /tmp/half-codec --group-layers 1
    overlap.py --bin build/release/bin --model /tmp/half --codec /tmp/half-codec --formats raw,aludel-p2

What producing takes is measured over a link without a limit, before and after; the link's rate is then set so that the
payload takes as long. The weights may be random: nobody reads the answers. Exits with 1 above --within.
"""

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Tuple

from chaos_fleet import Server, ask
from stack import free_ports

WORDS = "river garden piano red blue Orla Igor drives plays the a car harp house sings quick north mill bridge stone".split()


class Trio:
    """A prefill server whose link can be set, a decode server and a gateway."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.ports = options, folder, free_ports(5)
        ports, model, codec = self.ports, options.model, f'codec {{ artifact: "{options.codec}" }}' if options.codec else ""
        self.draw = random.Random(1)
        self.prefill = self.make_prefill(0)
        self.others = [Server("decode", options.bin / "aludel-decode", f"""
listen: "127.0.0.1:{ports[2]}" admin_listen: "127.0.0.1:{ports[3]}" served_model_name: "m"
engine {{ directory: "{model}" threads: 1 max_num_seqs: 2 max_context: 2048 }} {codec}
transport {{ }} prefill_targets: "127.0.0.1:{ports[0]}"
handoff_timeout_ms: 120000 probe_interval_ms: 200 probe_max_interval_ms: 200
""", folder, ports[3]), Server("gateway", options.bin / "aludel-gateway", f"""
listen: "127.0.0.1:{ports[4]}"
models {{ name: "m" directory: "{model}" decode_targets: "127.0.0.1:{ports[2]}" }}
""", folder, ports[4])]
        for server in (self.prefill, *self.others):
            server.start()
        for server in (self.prefill, *self.others):
            server.wait_ready()
        self.wait_for_prefill()

    def make_prefill(self, rate: float) -> Server:
        codec = f'codec {{ artifact: "{self.options.codec}" }}' if self.options.codec else ""
        return Server("prefill", self.options.bin / "aludel-prefill", f"""
listen: "127.0.0.1:{self.ports[0]}" admin_listen: "127.0.0.1:{self.ports[1]}"
engine {{ directory: "{self.options.model}" threads: 1 max_num_seqs: 2 max_context: 2048 }} {codec}
transport {{ {f"testing {{ bytes_per_second: {rate} }}" if rate else ""} }}
store {{ memory_bytes: 0 }} run_timeout_ms: 120000
""", self.folder, self.ports[1])

    def wait_for_prefill(self) -> None:
        time.sleep(1)  # the decode server notices that the former one has gone
        ready = re.compile(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$', re.MULTILINE)
        while not ready.search(self.others[0].get("/metrics") or ""):
            time.sleep(0.05)

    def set_rate(self, rate: float) -> None:
        """Bytes a second from the prefill server; 0: no limit."""
        self.prefill.end()
        self.prefill = self.make_prefill(rate)
        self.prefill.start()
        self.prefill.wait_ready()
        self.wait_for_prefill()
        self.ask(self.options.formats[0])  # connects, and touches every page

    def ask(self, form: str) -> Dict:
        """The report of one request that nobody has seen before."""
        prompt = " ".join(self.draw.choice(WORDS) for _ in range(self.options.words))
        body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 1, "ignore_eos": True,
                "aludel": {"format": form, "timeout_ms": 120000}}
        status, answer = ask(self.ports[4], body, 130)
        if status != 200 or answer["aludel"]["plan"] != "remote":
            raise RuntimeError(f"{form}: {status} {answer}")
        return answer["aludel"]

    def stop(self) -> None:
        for server in (self.prefill, *self.others):
            server.end()


def timed(trio: Trio, form: str) -> Tuple[Dict, float]:
    """A report, and how long the prefill server was busy with the run, by its own clock."""
    def seconds() -> float:
        sums = re.findall(r'^aludel_handoff_seconds_sum\{[^}]*direction="sent"[^}]*\} (\S+)$',
                          trio.prefill.get("/metrics") or "", re.MULTILINE)
        return sum(map(float, sums))
    before = seconds()
    report = trio.ask(form)
    while seconds() == before:  # the run ends a moment after its last frame
        time.sleep(0.01)
    return report, seconds() - before


def measure(trio: Trio, form: str, repeat: int) -> float:
    trio.set_rate(0)
    free = [timed(trio, form) for _ in range(repeat)]
    computing = statistics.median(seconds for _, seconds in free)
    rate = free[0][0]["payload_bytes"] / computing
    trio.set_rate(rate)
    linked = [trio.ask(form) for _ in range(repeat)]
    trio.set_rate(0)
    free += [timed(trio, form) for _ in range(repeat)]
    computing = statistics.median(seconds for _, seconds in free)
    payload = statistics.median(report["payload_bytes"] for report in linked)
    ttft = statistics.median(report["ttft"] for report in linked)
    alone = statistics.median(report["ttft"] for report, _ in free)
    ratio = ttft / max(computing, payload / rate)
    print(f"{form}: producing {computing:.3f} s, sending {payload:.0f} bytes {payload / rate:.3f} s, first token after {ttft:.3f} s "
          f"({alone:.3f} s over a link without limit): {ratio:.3f} of the longer", flush=True)
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--codec", default="")
    parser.add_argument("--formats", default="raw", type=lambda text: text.split(","))
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--within", type=float, default=1.15)
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    with tempfile.TemporaryDirectory(prefix="aludel-overlap-") as folder:
        trio = Trio(options, Path(folder))
        try:
            worst = max(measure(trio, form, options.repeat) for form in options.formats)
        finally:
            trio.stop()
    print(f"RESULT: at most {worst:.3f} of the longer of producing and sending")
    return 0 if worst <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
