#!/usr/bin/env python3
"""What each ingredient of the preset aludel buys: calibrates base -> chat for one loss, one layer native, with all of
them, then with each switched off alone, and prints the bytes that the same loss then costs. About half an hour of one core; calibrations that
are there already are not repeated.

    deploy/demo/ablate.py [--out DIR] [--max-kl X] [--bin DIR]
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Switch -> flags in place of the default's; the number is that of the ingredient in the method.
VARIANTS = {
    "all ingredients": [],
    "1 encoder by the producer's principal components": ["--encoder-for", "producer"],
    "2 without the sensitivity metric": ["--sensitivity-prompts", "0"],
    "3 uniform bits": ["--allocation", "uniform"],
    "4 fixed bit widths": ["--packing", "fixed"],
    "5 linear decoder": ["--linear"],
    "6 no native layer": ["--native-layers", "0"],
    "6 no side information": ["--native-layers", "-1"],
    "7 with 4 head and 16 tail tokens native": ["--head-tokens", "4", "--tail-tokens", "16"],
    "11 every layer by itself": ["--group-layers", "1"],
}


def calibrate(name: str, flags: list, options: argparse.Namespace, prompts: Path) -> str:
    """One line of the table."""
    out = options.out / re.sub(r"\W+", "-", name)
    command = [options.bin / "aludel-calibrate", "--producer", ROOT / "deploy/demo/base", "--consumer",
               ROOT / "deploy/demo/chat", "--data", prompts, "--out", out, "--work", options.out / "work", "--keep-work",
               "--threads", "1", "--format", "aludel-ablation", "--max-kl", str(options.max_kl), "--steps",
               str(options.steps), "--compute-share", "0.135"]
    for flag, value in (("--native-layers", "1"), ("--sensitivity-prompts", "200")):
        if flag not in flags:
            command += [flag, value]
    manifest = out / "artifact.json"
    if not manifest.exists():
        run = subprocess.run([str(part) for part in command + flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            floor = re.search(r"floors at \d+ bytes/token: (.*?)\. More", run.stderr)
            if floor is None:
                sys.exit(f"{name}: {run.stderr}")
            return f"| {name} | not met | {floor[1]} |"
    decoder = json.loads(manifest.read_text())["formats"][0]["decoders"][0]
    return f"| {name} | {decoder['bytes_per_token']:.1f} | {decoder['kl']:.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/ablation")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--max-kl", type=float, default=0.15)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = options.out / "calibration-1600.jsonl"
    if not prompts.exists():
        with prompts.open("w") as file:
            subprocess.run([sys.executable, ROOT / "deploy/demo/train/questions.py", "--seed", "1001", "--count", "1600",
                            "--min-tokens", "150"], stdout=file, check=True)
    print(f"| ingredient | bytes/token at KL {options.max_kl:g} (95 % bound) | mean KL on held-out prompts |\n|---|---|---|")
    for name, flags in VARIANTS.items():
        print(calibrate(name, flags, options, prompts), flush=True)


if __name__ == "__main__":
    main()
