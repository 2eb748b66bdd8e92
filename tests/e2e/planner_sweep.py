"""Does the planner choose well? Measures every way of getting a prompt's cache over emulated link rates, prompt lengths
and cache states, then lets the planner choose, and says how far its choices are from the best single option.

    planner_sweep.py --bin build/release/bin [--rates 2e5,2e6,2e7,2e8] [--lengths 60,250,550] [--repeat 11]

Needs a machine that is otherwise idle. "cold": nobody has seen the prompt. "warm": the prefill server has its frames in
its cache. Times to the first token are medians of --repeat rounds, each of which takes every option and the planner once
in random order, as the decode server and gateway report them. The planner's choice is what it took most often. Exits with
1 where that option takes more than --within times the best one's and 2 ms longer.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple

from chaos_fleet import Server, ask
from stack import free_ports

OPTIONS = ("local", "aludel-p2", "aludel-p0", "scd", "reuse-only", "raw")
WORDS = "river garden piano red blue Orla Igor drives plays the a car harp house sings quick north mill bridge stone".split()


class Trio:
    """A prefill server behind a link of `rate` bytes a second (0: as it is), a decode server that plans, and a gateway."""

    def __init__(self, binaries: Path, folder: Path, rate: float) -> None:
        ports = free_ports(5)
        self.port = ports[4]
        configs = {"aludel-prefill": (ports[1], f"""
listen: "127.0.0.1:{ports[0]}" admin_listen: "127.0.0.1:{ports[1]}"
engine {{ directory: "deploy/demo/base" threads: 1 }} codec {{ artifact: "deploy/demo/codec" }}
transport {{ 
  {f"testing {{ bytes_per_second: {rate} delay_ms: 1 }}" if rate else ""} }}
"""), "aludel-decode": (ports[3], f"""
listen: "127.0.0.1:{ports[2]}" admin_listen: "127.0.0.1:{ports[3]}" served_model_name: "chat"
engine {{ directory: "deploy/demo/chat" threads: 1 prefix_cache: false }} codec {{ artifact: "deploy/demo/codec" }}
transport {{ }} prefill_targets: "127.0.0.1:{ports[0]}"
handoff_timeout_ms: 30000 probe_interval_ms: 200
planner {{ by_prediction: true min_remote_tokens: 1 }}
"""), "aludel-gateway": (ports[4], f"""
listen: "127.0.0.1:{ports[4]}"
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{ports[2]}" }}
""")}
        self.servers = [Server(name, binaries / name, config, folder, admin)
                        for name, (admin, config) in configs.items()]
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        while 'state="ready"' not in (self.servers[1].get("/metrics") or ""):
            time.sleep(0.05)
        time.sleep(1)

    def report(self, prompt: str, option: str) -> Dict:
        """What the response says of itself."""
        body = {"model": "chat", "prompt": prompt, "temperature": 0, "max_tokens": 1, "ignore_eos": True, "aludel": {}}
        if option == "local":
            body["aludel"]["fidelity"] = "exact"
        elif option == "planner":
            body["aludel"]["fidelity"] = "fast"
        else:
            body["aludel"]["format"] = option
        status, answer = ask(self.port, body, 60)
        # What the planner tries, local prefill may overtake.
        if status != 200 or (answer["aludel"]["plan"] == "fallback" and option != "planner"):
            raise RuntimeError(f"{option}: {status} {answer}")
        return answer["aludel"]

    def ttft(self, prompt: str, option: str) -> Tuple[float, str]:
        """Seconds to the first token, and what was done: "local" or the format."""
        report = self.report(prompt, option)
        return report["ttft"], report["format"] if report["plan"] == "remote" else "local"

    def stop(self) -> None:
        for server in self.servers:
            server.end()


def fresh_prompt(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


def measure_row(trio: Trio, words: int, state: str, repeat: int, draw: random.Random) -> Dict:
    """All options and the planner in turn, `repeat` times: what changes on the machine meanwhile changes for all."""
    known = {option: fresh_prompt(draw, words) for option in OPTIONS}
    known["planner"] = fresh_prompt(draw, words)

    def prompt(option: str) -> str:
        return known[option] if state == "warm" and option != "local" else fresh_prompt(draw, words)

    if state == "warm":
        for option in OPTIONS[1:]:
            trio.ttft(known[option], option)
            trio.ttft(known["planner"], option)
    seconds: Dict[str, List[float]] = {option: [] for option in known}
    choices: List[str] = []
    for _ in range(repeat):
        for option in draw.sample(sorted(known), len(known)):
            ttft, done = trio.ttft(prompt(option), option)
            seconds[option].append(ttft)
            if option == "planner":
                choices.append(done)
    median = {option: statistics.median(times) for option, times in seconds.items()}
    measured = {option: median[option] for option in OPTIONS}
    choice = statistics.mode(choices)
    return {"words": words, "state": state, "measured": measured, "choice": choice, "actual": median["planner"],
            "share": choices.count(choice) / repeat, "ratio": measured[choice] / min(measured.values())}


def sweep_rate(trio: Trio, lengths: List[int], repeat: int, draw: random.Random) -> List[Dict]:
    """Rows of one link rate."""
    # The planner's own way of learning: a few requests of several lengths.
    for _ in range(24):
        trio.ttft(fresh_prompt(draw, draw.choice(lengths)), "planner")
    return [measure_row(trio, words, state, repeat, draw) for words in lengths for state in ("cold", "warm")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--rates", default="2e5,2e6,2e7,2e8", help="bytes per second of the link")
    parser.add_argument("--lengths", default="60,250,550", help="words in a prompt")
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--within", type=float, default=1.10)
    options = parser.parse_args()
    lengths = [int(one) for one in options.lengths.split(",")]
    draw = random.Random(1)
    bad = 0
    print("rate B/s | words | state | " + " | ".join(f"{one} ms" for one in OPTIONS)
          + " | planner took | its ms | of best")
    for rate in (float(one) for one in options.rates.split(",")):
        with tempfile.TemporaryDirectory(prefix="aludel-sweep-") as folder:
            trio = Trio(options.bin.resolve(), Path(folder), rate)
            try:
                for row in sweep_rate(trio, lengths, options.repeat, draw):
                    far = row["ratio"] > options.within and (
                        row["measured"][row["choice"]] - min(row["measured"].values()) > 0.002)
                    bad += far
                    print(f"{rate:.0e} | {row['words']} | {row['state']} | "
                          + " | ".join(f"{1000 * row['measured'][one]:.1f}" for one in OPTIONS)
                          + f" | {row['choice']} ({100 * row['share']:.0f} %) | {1000 * row['actual']:.1f} | {row['ratio']:.2f}"
                          + (" FAR" if far else ""), flush=True)
            finally:
                trio.stop()
    print(f"RESULT: {bad} choices are more than {options.within} times the best")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
