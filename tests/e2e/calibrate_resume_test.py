"""aludel-calibrate is killed at random points, and at ones just behind a new intermediate file, and started again until it
is done. Its artifact must have the bytes of one that nobody disturbed.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]
KILLS = 8


def command(binary: Path, out: Path, more: List[str]) -> List[str]:
    return [str(binary), "--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat", "--consumer", "deploy/demo/base+deploy/demo/json",
            "--data", "deploy/demo/calibration.jsonl", "--out", str(out), "--prompts", "20", "--recomputed-layers", "5", "--bytes-per-token", "32",
            "--sensitivity-prompts", "4", "--steps", "100", "--tuning", "1", "--threads", "1", *more]


def hashes(folder: Path) -> Dict[str, str]:
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*")) if file.is_file()}


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def behind_a_file(process: subprocess.Popen, work: Path, known: set, within: float) -> None:
    """Until a file that is not in `known` has begun or is whole."""
    end = time.monotonic() + within
    while time.monotonic() < end and process.poll() is None:
        if work.exists() and {str(file) for file in work.rglob("*") if file.is_file()} - known:
            return
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kills", type=int, default=KILLS)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    rng = random.Random(args.seed)
    binary = args.bin / "aludel-calibrate"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.monotonic()
        subprocess.run(command(binary, folder / "whole", []), cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        took = time.monotonic() - begin
        wanted = hashes(folder / "whole")
        assert any(file.endswith(".safetensors") for file in wanted), wanted
        out, work = folder / "killed", folder / "killed.work"
        killed = 0
        for attempt in range(args.kills):
            known = {str(file) for file in work.rglob("*") if file.is_file()} if work.exists() else set()
            process = subprocess.Popen(command(binary, out, []), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if attempt % 2 == 0:
                behind_a_file(process, work, known, took)
                time.sleep(rng.random() * 0.1)
            else:
                time.sleep(rng.random() * took)
            if process.poll() is not None:
                assert process.returncode == 0, process.returncode
                break
            kill(process)
            killed += 1
            assert not out.exists() or hashes(out) == wanted, "half an artifact"
        assert killed > 0, "it was too fast to be killed"
        subprocess.run(command(binary, out, []), cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert hashes(out) == wanted, (hashes(out), wanted)
        assert not work.exists(), "intermediate files are removed in the end"
        # Beside the artifact and its report only what a kill in the middle of writing the artifact leaves.
        left = sorted(one for one in os.listdir(folder) if ".partial-" not in one)
        assert left == ["killed", "killed.report", "whole", "whole.report"], left
        print(f"{killed} kills; undisturbed {took:.1f} s")


if __name__ == "__main__":
    main()
