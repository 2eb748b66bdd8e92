"""Do N prompts at once fare as well as the same number sent a few at a time? Starts the stack, and for each count
prints the goodput (answers a second that came whole within --deadline-ms, which goes along with each request) of a
client that sends all at once, and of one with --throttled under way, in --repeat pairs that change their order.

    at_once.py --bin build/release/bin [--counts 64,640] [--throttled 16] [--deadline-ms 60000] [--repeat 3]

Fails where the median of a count's ratios is below --bar, or where a request was neither answered nor refused by
prediction.
Needs a machine that is otherwise idle; the clients run on it too.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from stack import Stack  # noqa: E402


def load(binaries: Path, url: str, requests: int, concurrency: int, deadline: int, seed: int) -> Dict:
    """Prompts of their own for each seed, so that no cache has seen them."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([str(binaries / "aludel-bench"), "serve", "--url", url, "--model", "chat", "--requests",
                        str(requests), "--concurrency", str(concurrency), "--max-tokens", "24", "--ignore-eos", "--deadline-ms",
                        str(deadline), "--slo-e2e-ms", str(deadline), "--timeout", str(2 * deadline / 1000), "--seed",
                        str(seed), "--json", out.name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--counts", default="64,640")
    parser.add_argument("--throttled", type=int, default=16, help="requests under way of the throttled client")
    parser.add_argument("--deadline-ms", type=int, default=60000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--bar", type=float, default=0.95)
    options = parser.parse_args()
    binaries = options.bin.resolve()
    failed = False
    with tempfile.TemporaryDirectory(prefix="aludel-at-once-") as folder:
        stack = Stack(binaries, Path(folder), {})
        try:
            stack.wait_until_ready()
            seed = 1
            load(binaries, stack.url, 2 * options.throttled, options.throttled, options.deadline_ms, seed)  # warm
            print("prompts | at once: goodput/s, answered, TTFT p50 and p99 ms | "
                  f"{options.throttled} at a time: the same | ratio")
            for count in (int(one) for one in options.counts.split(",")):
                ratios = []
                for turn in range(options.repeat):
                    figures = {}
                    for concurrency in (count, options.throttled)[::1 if turn % 2 == 0 else -1]:
                        seed += 1
                        figures[concurrency] = load(binaries, stack.url, count, concurrency, options.deadline_ms, seed)
                    at_once, throttled = figures[count], figures[options.throttled]
                    ratios.append(at_once["goodput_per_second"] / throttled["goodput_per_second"])
                    cells = [f"{one['goodput_per_second']:.2f}, {one['completed']} of {one['requests']}, "
                             f"{one['ttft_ms']['p50']:.0f} and {one['ttft_ms']['p99']:.0f}"
                             for one in (at_once, throttled)]
                    print(f"{count} | {cells[0]} | {cells[1]} | {ratios[-1]:.3f}", flush=True)
                    unpredicted = {error: times for error, times in at_once["errors"].items()
                                   if not error.startswith("HTTP 429")}
                    if unpredicted:
                        print(f"  neither answered nor refused by prediction: {unpredicted}")
                        failed = True
                median = statistics.median(ratios)
                print(f"RESULT: {count} at once have {median:.3f} of the goodput of {options.throttled} at a time "
                      f"(median of {options.repeat}; bar {options.bar})", flush=True)
                failed = failed or median < options.bar
        finally:
            stack.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
