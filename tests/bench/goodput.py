"""How gently does overload degrade? Offers the stack multiples of what it can serve and prints goodput: answers a second that
came whole within --deadline-ms, out of all that were sent. Once with that deadline in the requests, so that servers can refuse
what would come too late, and once without it.

    goodput.py --bin build/release/bin [--deadline-ms 1500] [--multiples 0.5,0.8,1,1.5,2,3]

Needs a machine that is otherwise idle; the clients run on it too.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from stack import Stack  # noqa: E402


def load(binaries: Path, url: str, rate: float, seconds: float, objective: int, deadline: int) -> Dict:
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        requests = max(20, int(rate * seconds))
        subprocess.run([str(binaries / "aludel-bench"), "serve", "--url", url, "--model", "chat", "--rate", str(rate),
                        "--requests", str(requests), "--max-tokens", "24", "--slo-e2e-ms", str(objective),
                        "--deadline-ms", str(deadline), "--seed", str(int(rate * 1000)), "--json", out.name],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--deadline-ms", type=int, default=1500)
    parser.add_argument("--multiples", default="0.5,0.8,1,1.5,2,3")
    parser.add_argument("--seconds", type=float, default=10, help="of load for each row")
    options = parser.parse_args()
    multiples = [float(one) for one in options.multiples.split(",")]
    binaries = options.bin.resolve()
    worst = 1.0
    with tempfile.TemporaryDirectory(prefix="aludel-goodput-") as folder:
        stack = Stack(binaries, Path(folder), {}, replaced={"max_num_seqs: 16": "max_num_seqs: 128"})
        try:
            stack.wait_until_ready()
            load(binaries, stack.url, 20, 3, 0, 0)  # warm
            # All at once and nobody refused: what it serves is what it can serve.
            capacity = load(binaries, stack.url, 1000, 0.1, 0, 0)["requests_per_second"]
            print(f"capacity {capacity:.1f} requests/s; deadline {options.deadline_ms} ms")
            print("offered | deadline sent: goodput/s | of best | answered | refused or late | not sent: goodput/s | of best")
            best = {True: 0.0, False: 0.0}
            for multiple in multiples:
                row = {}
                for sent in (True, False):
                    row[sent] = load(binaries, stack.url, multiple * capacity, options.seconds, options.deadline_ms,
                                     options.deadline_ms if sent else 0)
                    best[sent] = max(best[sent], row[sent]["goodput_per_second"])
                share = {sent: row[sent]["goodput_per_second"] / max(best[sent], 1e-9) for sent in row}
                if multiple > 1:
                    worst = min(worst, share[True])
                errors = ", ".join(f"{count} {name}" for name, count in row[True]["errors"].items()) or "none"
                print(f"{multiple:.1f} x | {row[True]['goodput_per_second']:.1f} | {share[True]:.2f} | "
                      f"{row[True]['completed']} of {row[True]['requests']} | {errors} | "
                      f"{row[False]['goodput_per_second']:.1f} | {share[False]:.2f}", flush=True)
        finally:
            stack.stop()
    print(f"RESULT: with deadlines goodput under overload stays above {worst:.2f} of the best")
    return 0


if __name__ == "__main__":
    sys.exit(main())
