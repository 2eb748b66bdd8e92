"""What do handoffs do to the answers that are being decoded beside them? Streams a few long answers and measures the times
between their tokens: alone, while prompts are handed over to the same decode server, and while it prefills the same prompts
itself.

    handoff_interference.py --bin build/release/bin [--streams 4] [--rate 5] [--seconds 10]

Needs a machine that is otherwise idle. Times are the client's, between two tokens' events.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from stack import Stack  # noqa: E402

WORDS = "river garden piano red blue Orla Igor drives plays the a car harp house sings quick north mill bridge stone".split()


def post(port: int, body: Dict) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"model": "chat", "temperature": 0, "ignore_eos": True, **body}),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {answer.read().decode()}")
    return answer


def stream(port: int, until: float, gaps: List[float]) -> None:
    """One answer after the other."""
    while time.monotonic() < until:
        answer = post(port, {"prompt": "Orla plays the harp", "max_tokens": 900, "stream": True, "aludel": {"fidelity": "exact"}})
        last = None
        for line in answer:
            now = time.monotonic()
            if now >= until:
                break
            if not line.startswith(b"data: {"):
                continue
            if last is not None:
                gaps.append(now - last)
            last = now
        answer.close()


def disturb(port: int, until: float, rate: float, words: int, plan: Dict, expected: str, done: List[int]) -> None:
    """Fresh prompts at their times, whether or not earlier ones have ended; one token each."""
    draw = random.Random(3)
    threads = []

    def one(prompt: str) -> None:
        answer = json.loads(post(port, {"prompt": prompt, "max_tokens": 1, "aludel": plan}).read())
        if answer["aludel"]["plan"] != expected:
            raise RuntimeError(f"want plan {expected}: {answer['aludel']}")
        done.append(1)

    while time.monotonic() < until:
        threads.append(threading.Thread(target=one, args=(" ".join(draw.choice(WORDS) for _ in range(words)),)))
        threads[-1].start()
        time.sleep(draw.expovariate(rate))
    for thread in threads:
        thread.join()


def measure(port: int, options: argparse.Namespace, plan: Optional[Dict], expected: str) -> None:
    gaps: List[float] = []
    done: List[int] = []
    until = time.monotonic() + options.seconds
    threads = [threading.Thread(target=stream, args=(port, until, gaps)) for _ in range(options.streams)]
    if plan is not None:
        threads.append(threading.Thread(target=disturb, args=(port, until, options.rate, options.words, plan, expected, done)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cuts = statistics.quantiles(gaps, n=1000)
    print(f"{expected or 'alone':>7} | {len(done) / options.seconds:4.1f} prompts/s | {len(gaps)} tokens | "
          f"p50 {1e3 * cuts[499]:.2f} ms, p99 {1e3 * cuts[989]:.2f} ms, p99.9 {1e3 * cuts[998]:.2f} ms", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rate", type=float, default=5, help="prompts a second beside them")
    parser.add_argument("--words", type=int, default=500, help="of such a prompt")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--format", default="aludel-p2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-interference-") as folder:
        stack = Stack(options.bin.resolve(), Path(folder), {})
        try:
            stack.wait_until_ready()
            port = stack.ports["gateway"]["listen"]
            for plan, expected in ((None, ""), ({"format": options.format}, "remote"), ({"fidelity": "exact"}, "local"),
                                   (None, "")):
                measure(port, options, plan, expected)
        finally:
            stack.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
