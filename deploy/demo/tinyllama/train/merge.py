#!/usr/bin/python3
"""Writes a base model with an adapter merged into it as a model directory in bf16.

    merge.py --adapter build/models/tinyllama-short-lora --out build/models/tinyllama-short
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Optional, Sequence

import torch

from lora import Adapter, merge

from reference import load_weights, write_safetensors  # lora.py puts its folder on the path

ROOT = Path(__file__).resolve().parents[4]
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json")


def write_merged(base: Path, adapter: Path, out: Path) -> None:
    """Merges in float32, rounds once, and renames the finished directory to `out`."""
    if out.exists():
        raise ValueError(f"{out} exists: choose another --out")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        merged = merge(load_weights(base, torch.float32), Adapter.load(adapter))
        for name in list(merged):
            merged[name] = merged[name].to(torch.bfloat16)
        write_safetensors(partial / "model.safetensors", merged)
        for name in COPIED:
            shutil.copyfile(base / name, partial / name)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "build/models/tinyllama-1.1b-chat"
    parser.add_argument(
        "--model", type=Path, default=default, help="base model (default: what fetch.py wrote)"
    )
    parser.add_argument("--adapter", type=Path, required=True, help="directory that train.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="directory to write; must not exist")
    options = parser.parse_args(arguments)
    try:
        write_merged(options.model, options.adapter, options.out)
    except (OSError, ValueError) as error:
        print(f"merge: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
