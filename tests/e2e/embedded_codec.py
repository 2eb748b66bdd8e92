"""The demo's codec with its codes in planes, for tests of cut frames and of frames in two parts."""

import shutil
from pathlib import Path

from link_test import command
from stack import ROOT

PLANES = 5


def make_embedded(binaries: Path, folder: Path) -> Path:
    codec = folder / "embedded"
    shutil.copytree(ROOT / "deploy/demo/codec", codec)
    command(str(binaries / "aludel-calibrate"), "--producer", str(ROOT / "deploy/demo/base"), "--consumer",
            str(ROOT / "deploy/demo/chat"), "--data", str(ROOT / "deploy/demo/calibration.jsonl"), "--prompts", "60", "--out",
            str(codec), "--store", "int8", "--repack", "--packing", "embedded", "--planes", str(PLANES), "--threads", "1")
    return codec
