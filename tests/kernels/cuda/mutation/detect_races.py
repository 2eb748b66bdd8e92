#!/usr/bin/env python3
"""Builds tests of kernels with ThreadSanitizer as a race detector (races.h), whatever the build, and expects no report.

    detect_races.py --build build/release [--work FOLDER] [--jobs 1]

First the detector itself has to report races that are made on purpose. Then come the kernels that order their memory by more than
one kind of barrier, each by some of its cases; the preset tsan runs all cases of all kernels. Exit code 1: a report, or a
failure, in a case, or a case that was not run.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from programs import ENVIRONMENT, ROOT, DoesNotCompile, Programs  # noqa: E402

LIMIT_S = 120
# By path from tests/kernels/cuda: the cases, and how many they are.
CHOSEN = {
    "races_test.cc": ("Races*", 3),  # what orders nothing is reported
    "attention/simt_warpgroup_test.cc": ("WgmmaOperands*", 2),  # operands of wgmma, from its beginning to its wait
    "attention/wgmma_attention_test.cc": ("*AttendsToOneTileOfKeys:*GoesRoundTheRing", 2),  # producers, numbered barriers, wgmma
    "gemm/batch_gemm_test.cc": ("*IsTheProduct", 1),  # asynchronous copies, fences, counts of blocks
    "gemm/adapted_gemm_test.cc": ("*ARowIsTheSameBits*", 1),  # sums that other blocks await
    "attention/mma_attention_test.cc": ("*PrefillMovesWholeChunks:*DecodeSplitsKeysAndJoinsThem", 2),  # asynchronous copies, fences
    "gemm/fused_gemm_test.cc": ("*GateAndUpMeetInOneBlock", 1),  # a norm and sums in one memory
    "gemm/low_rank_test.cc": ("*OwnAdapter", 1),  # sums of warps
    "sample_test.cc": ("*ThroughTies", 1),  # atomic additions
}


def passed(program: Path, cases: str, wanted: int) -> Tuple[bool, str]:
    words = [str(program), "--gtest_brief=0", f"--gtest_filter={cases}"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, errors="replace",
                         env={**os.environ, **ENVIRONMENT})
    said = ran.stdout + ran.stderr
    right = len(re.findall(r"^\[       OK \]", said, re.MULTILINE))
    return ran.returncode == 0 and right == wanted, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--work", type=Path, help="a folder that keeps the programs")
    parser.add_argument("--jobs", type=int, default=1, help="of compilers at once")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        # No header is another than the tree's.
        programs = Programs(options.build.resolve(), work, Path(folder) / "overlay", 0, options.jobs)
        built = {source: programs.pool.submit(programs.built, source, "tsan") for source in CHOSEN}
        for source, (cases, wanted) in CHOSEN.items():
            try:
                program = built[source].result()
            except DoesNotCompile as why:
                print(f"{source}: {why}")
                return 1
            begin = time.monotonic()
            right, said = passed(program, cases, wanted)
            print(f"{source} {cases}: {'no report' if right else 'FAILED'}, {time.monotonic() - begin:.1f} s", flush=True)
            if not right:
                failed = True
                print(said[-20000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
