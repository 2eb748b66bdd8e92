#!/usr/bin/env python3
"""What each ingredient of the preset aludel buys: calibrates base -> chat without recomputed layers and with closed-form
decoders at two rates, then with each ingredient switched alone, and prints the loss at both rates and the bytes that buy
the same loss (between the rates, on the straight line of log KL over log bytes). Rates are low on purpose: above them
the loss is what the decoder cannot predict, and bytes buy little. About 20 minutes of one core; calibrations that are
there already are not repeated.

    deploy/demo/ablate.py [--out DIR] [--bin DIR]

Another pair has its own rates and flags; what stands behind -- goes to every calibration, and a variant's own flags
go before it:

    deploy/demo/ablate.py --producer BASE --consumer TUNE --data prompts.jsonl --out DIR --rates 400,780 \\
        --only '^(none|3|6 off)' -- --compute bf16 --group-layers 5 --recomputed-layers 2 --sensitivity-prompts 0
"""

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

ROOT = Path(__file__).resolve().parents[2]
ALL = "none: all ingredients, closed-form decoder"
# What is switched -> flags; the number is that of the ingredient in the method.
VARIANTS = {
    ALL: [],
    "1 off: the producer's principal components": ["--encoder-for", "producer"],
    "2 off: no sensitivity metric": ["--sensitivity-prompts", "0"],
    "3 off: four bits for every latent": ["--allocation", "uniform"],
    "4 off: no entropy coding": ["--packing", "fixed"],
    "5 on: MLP decoder, 3,000 steps": ["--steps", "3000", "--tuning", "0"],
    "5 on: the same, tuned for two passes": ["--steps", "3000", "--tuning", "2"],
    "6 off: no side information": ["--recomputed-layers", "-1"],
    "6 on: one recomputed layer": ["--recomputed-layers", "1"],
    "7 on: 4 head and 16 tail tokens recomputed": ["--head-tokens", "4", "--tail-tokens", "16"],
    "11 off: each layer by itself": ["--group-layers", "1"],
}
# Of every calibration, where neither a variant nor the command line says otherwise.
DEFAULTS = ["--recomputed-layers", "0", "--sensitivity-prompts", "100", "--compute-share", "0.3", "--threads", "1"]


def with_defaults(flags: List[str], defaults: List[str]) -> List[str]:
    """The flags, and those of the defaults (each with one value) that they do not name."""
    missing = [pair for pair in zip(defaults[::2], defaults[1::2]) if pair[0] not in flags]
    return flags + [part for pair in missing for part in pair]


def calibrate(name: str, rate: int, options: argparse.Namespace) -> Tuple[float, float]:
    """Bytes a token and KL on held-out prompts."""
    out = options.out / f"{re.sub(chr(92) + 'W+', '-', name)}-{rate}"
    flags = with_defaults(with_defaults(VARIANTS[name], options.flags), DEFAULTS)
    command: List = [options.bin / "aludel-calibrate", "--producer", options.producer, "--consumer", options.consumer,
                     "--data", options.data, "--out", out, "--work", options.out / "work", "--keep-work",
                     "--format", "aludel-ablation", "--bytes-per-token", rate]
    if "--steps" not in flags:
        command.append("--linear")
    manifest = out / "artifact.json"
    if not manifest.exists():
        run = subprocess.run([str(part) for part in command + flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
        if run.returncode != 0:
            sys.exit(f"{name}: {run.stderr}")
    decoder = json.loads(manifest.read_text())["formats"][0]["decoders"][0]
    return decoder["bytes_per_token"], decoder["kl"]


def bytes_at(kl: float, points: List[Tuple[float, float]]) -> str:
    (few, high), (many, low) = points
    if not low <= kl <= high:
        return f"below {few:.0f}" if kl > high else f"above {many:.0f}"
    share = math.log(high / kl) / math.log(high / low)
    return f"{few * (many / few) ** share:.0f}"


def demo_prompts(out: Path) -> Path:
    prompts = out / "calibration-1600.jsonl"
    if not prompts.exists():
        with prompts.open("w") as file:
            subprocess.run([sys.executable, ROOT / "deploy/demo/train/questions.py", "--seed", "1001", "--count", "1600",
                            "--min-tokens", "150"], stdout=file, check=True)
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/ablation")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--producer", default=ROOT / "deploy/demo/base")
    parser.add_argument("--consumer", default=ROOT / "deploy/demo/chat")
    parser.add_argument("--data", type=Path, help="calibration prompts (default: 1,600 of the demo's generator)")
    parser.add_argument("--rates", default="8,40", help="two, bytes a token (default 8,40)")
    parser.add_argument("--only", default="", help="regular expression: the variants to compare")
    parser.add_argument("flags", nargs="*", help="flags of aludel-calibrate, each with its value")
    options = parser.parse_args()
    rates = [int(rate) for rate in options.rates.split(",")]
    if len(rates) != 2 or not 0 < rates[0] < rates[1]:
        parser.error(f"--rates wants two rising numbers, found {options.rates}")
    demo = [parser.get_default(name) for name in ("producer", "consumer")] == [options.producer, options.consumer]
    if not demo and options.out == parser.get_default("out"):
        parser.error("another pair than the demo's wants an --out of its own: what is there already is not calibrated again")
    if len(options.flags) % 2:
        parser.error("behind -- every flag wants one value")
    options.out.mkdir(parents=True, exist_ok=True)
    options.data = options.data or demo_prompts(options.out)
    print(f"| switched | KL at {rates[0]} B/token | KL at {rates[1]} B/token | bytes at equal KL |\n|---|---|---|---|")
    target = None
    for name in VARIANTS:
        if not re.search(options.only, name):
            continue
        points = [calibrate(name, rate, options) for rate in rates]
        if target is None:  # the first variant's at the middle of the two rates
            target = math.sqrt(points[0][1] * points[1][1])
        print(f"| {name} | {points[0][1]:.4f} | {points[1][1]:.4f} | {bytes_at(target, points)} |", flush=True)


if __name__ == "__main__":
    main()
