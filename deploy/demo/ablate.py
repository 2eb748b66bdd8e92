#!/usr/bin/env python3
"""What each ingredient of the preset aludel buys: calibrates base -> chat without recomputed layers and with closed-form
decoders at two rates, then with each ingredient switched alone, and prints the loss at both rates and the bytes that buy
the same loss (between the rates, on the straight line of log KL over log bytes). Rates are low on purpose: above them
the loss is what the decoder cannot predict, and bytes buy little. About 20 minutes of one core; calibrations that are
there already are not repeated.

    deploy/demo/ablate.py [--out DIR] [--bin DIR]
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
RATES = (8, 40)  # bytes a token
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


def calibrate(name: str, rate: int, options: argparse.Namespace, prompts: Path) -> Tuple[float, float]:
    """Bytes a token and KL on held-out prompts."""
    out = options.out / f"{re.sub(chr(92) + 'W+', '-', name)}-{rate}"
    flags = VARIANTS[name]
    command: List = [options.bin / "aludel-calibrate", "--producer", ROOT / "deploy/demo/base", "--consumer",
                     ROOT / "deploy/demo/chat", "--data", prompts, "--out", out, "--work", options.out / "work",
                     "--keep-work", "--threads", "1", "--format", "aludel-ablation", "--bytes-per-token", rate,
                     "--compute-share", "0.3"]
    for flag, value in (("--recomputed-layers", "0"), ("--sensitivity-prompts", "100")):
        if flag not in flags:
            command += [flag, value]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/ablation")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = options.out / "calibration-1600.jsonl"
    if not prompts.exists():
        with prompts.open("w") as file:
            subprocess.run([sys.executable, ROOT / "deploy/demo/train/questions.py", "--seed", "1001", "--count", "1600",
                            "--min-tokens", "150"], stdout=file, check=True)
    print(f"| switched | KL at {RATES[0]} B/token | KL at {RATES[1]} B/token | bytes at equal KL |\n|---|---|---|---|")
    target = None
    for name in VARIANTS:
        points = [calibrate(name, rate, options, prompts) for rate in RATES]
        if target is None:  # all ingredients at the middle of the two rates
            target = math.sqrt(points[0][1] * points[1][1])
        print(f"| {name} | {points[0][1]:.4f} | {points[1][1]:.4f} | {bytes_at(target, points)} |", flush=True)


if __name__ == "__main__":
    main()
