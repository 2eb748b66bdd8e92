"""aludel-calibrate is killed behind its checkpoints and at random points, and started again until it is done. Its artifact
must have the bytes of one that was not disturbed, and what a killed run has finished must not be computed again.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

ROOT = Path(__file__).resolve().parents[2]
KILLS = 3  # at random points, beside those behind checkpoints
SECONDS = 240  # that no run takes
GROWING = (".tuned", ".tuning")  # what tuning goes on in


class Job(NamedTuple):
    flags: List[str]
    checkpoints: List[str]  # behind which it is killed, in the order in which they come
    files: Dict[str, int]  # of a kind, that it leaves
    passages: int  # to tune by, with four questions about each


JOBS = {
    # A network for each of two consumers; then the passes that tune them, each of which writes one file anew.
    "networks": Job(["--recomputed-layers", "5", "--sensitivity-prompts", "4", "--steps", "100", "--tuning", "2"],
                    [".training", ".training", ".tuned", ".tuned", ".tuned"], {".training": 2, ".tuned": 1}, passages=1),
    # Closed forms, which corrections tune to answers about passages: one file for each consumer.
    "passages": Job(["--recomputed-layers", "2", "--sensitivity-prompts", "0", "--linear", "--tuning-epochs", "4", "--tuning-batch", "1"],
                    [".states", ".answers", ".tuning", ".tuning", ".tuning"], {".tuning": 2}, passages=8),
}


def command(binary: Path, job: Job, out: Path, tuning: Path, more: List[str]) -> List[str]:
    return [str(binary), "--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat", "--consumer", "deploy/demo/base+deploy/demo/json",
            "--data", "deploy/demo/calibration.jsonl", "--out", str(out), "--prompts", "20", "--bytes-per-token", "32",
            "--tuning-data", str(tuning), "--threads", "1", *job.flags, *more]


def write_tuning(path: Path, passages: int) -> None:
    lines = [json.loads(line) for line in (ROOT / "deploy/demo/calibration.jsonl").read_text().splitlines()[30:50]]
    path.write_text("".join(json.dumps({**lines[i], "question": other["question"]}) + "\n"
                            for i in range(passages) for other in lines[i:i + 4]))


def hashes(folder: Path) -> Dict[str, str]:
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*")) if file.is_file()}


def whole_files(work: Path) -> Dict[str, Tuple[int, int]]:
    """What a run leaves for the next, by its name: what it writes anew is another file with another inode or time."""
    found = {}
    for file in work.rglob("*") if work.exists() else []:
        try:
            status = file.stat()
        except FileNotFoundError:  # it has just got its name
            continue
        measured = file.parent.name == "pilot"  # and removed: the plan's
        if file.is_file() and not measured and not file.name.endswith(".partial"):
            found[str(file.relative_to(work))] = (status.st_ino, status.st_mtime_ns)
    return found


def kept(before: Dict[str, Tuple[int, int]], after: Dict[str, Tuple[int, int]]) -> None:
    """Tuning goes on in its file; whatever else was whole is used as it is."""
    for name, file in before.items():
        if not name.endswith(GROWING):
            assert after.get(name) == file, f"{name} was made again: {file}, {after.get(name)}"


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def behind(process: subprocess.Popen, work: Path, kind: str) -> bool:
    """Waits until a new file of this kind is whole; False where the run ends before."""
    known = {item for item in whole_files(work).items() if item[0].endswith(kind)}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        if {item for item in whole_files(work).items() if item[0].endswith(kind)} - known:
            return True
        time.sleep(0.01)
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--job", choices=JOBS, default="networks")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kills", type=int, default=KILLS)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    rng = random.Random(args.seed)
    binary, job = args.bin / "aludel-calibrate", JOBS[args.job]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tuning = folder / "tuning.jsonl"
        write_tuning(tuning, job.passages)
        out, work = folder / "killed", folder / "killed.work"

        def run(to: Path, *more: str) -> None:
            subprocess.run(command(binary, job, to, tuning, list(more)), cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def start() -> subprocess.Popen:
            return subprocess.Popen(command(binary, job, out, tuning, []), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        begin = time.monotonic()
        run(folder / "whole")
        took = time.monotonic() - begin
        wanted = hashes(folder / "whole")
        assert any(file.endswith(".safetensors") for file in wanted), wanted

        for kind in job.checkpoints:
            before = whole_files(work)
            process = start()
            assert behind(process, work, kind), f"no new {kind}: {before}, exit status {process.poll()}"
            kill(process)
            kept(before, whole_files(work))
            assert not out.exists(), "half an artifact"

        killed = 0
        for _ in range(args.kills):
            before = whole_files(work)
            process = start()
            time.sleep(rng.random() * took)
            if process.poll() is not None:
                assert process.returncode == 0, process.returncode
                break
            kill(process)
            killed += 1
            assert not out.exists() or hashes(out) == wanted, "half an artifact"
            if not out.exists():  # else it may have begun to remove them
                kept(before, whole_files(work))

        run(out, "--keep-work")
        assert hashes(out) == wanted, (hashes(out), wanted)
        done = whole_files(work)
        for kind, files in job.files.items():
            assert sum(name.endswith(kind) for name in done) == files, done
        # All of it is found again: nothing is made anew, the tuning not either.
        run(out, "--keep-work")
        assert hashes(out) == wanted, (hashes(out), wanted)
        assert whole_files(work) == done, (whole_files(work), done)
        run(out)
        assert hashes(out) == wanted, (hashes(out), wanted)
        assert not work.exists(), "intermediate files are removed in the end"
        # Beside the artifact and its report only what a kill in the middle of writing the artifact leaves.
        left = sorted(one for one in os.listdir(folder) if ".partial-" not in one)
        assert left == ["killed", "killed.report", "tuning.jsonl", "whole", "whole.report"], left
        print(f"{len(job.checkpoints)} kills behind checkpoints, {killed} at random points; undisturbed {took:.1f} s")


if __name__ == "__main__":
    main()
