"""A full disk: servers whose log cannot be written go on serving and leave cleanly; tools that cannot write their result say
which file, end with an error and leave no half of it behind. (The disk: /dev/full, and a limit on the size of files.)

    full_disk_test.py --bin build/release/bin
"""

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

from chaos_fleet import Fleet, ask, load_prompts, request_body

LIMIT_BYTES = 100_000


def limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the limit kills; a full disk does not
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))


def check_tool(command: List[str], out: Path) -> None:
    done = subprocess.run(command, preexec_fn=limit_files, capture_output=True, text=True, timeout=120)
    # Its own last word: a sanitizer may have one more.
    name = Path(command[0]).name
    last = ([""] + [line for line in done.stderr.splitlines() if line.startswith(name)])[-1]
    print(f"code {done.returncode}, {last}")
    assert done.returncode > 0, (done.returncode, done.stderr)  # not by a signal
    assert str(out) in last, last
    left = [file for file in out.parent.rglob(f"{out.name}*/**/*") if file.is_file() and file.suffix != ".json"]
    assert not left, f"{left} is still there"
    assert not (out / "artifact.json").exists() and not (out / "config.json").exists(), "half a result looks whole"


def check_servers(binaries: Path, folder: Path) -> None:
    fleet = Fleet(binaries, folder, "", seed=1)
    try:
        for name in fleet.servers:
            (folder / f"{name}.log").symlink_to("/dev/full")
        fleet.start()
        for prompt in load_prompts(4):
            status, answer = ask(fleet.gateway_port, request_body(prompt, "aludel-p2"), 20)
            assert status == 200, (status, answer)
        # A client that leaves, and a refusal, are lines that are logged.
        assert ask(fleet.gateway_port, {"model": "nobody", "prompt": "x"}, 20)[0] == 404
        assert not fleet.wait_idle()
    finally:
        codes = fleet.stop()
    assert not any(codes.values()), codes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    options = parser.parse_args()
    binaries = options.bin.resolve()
    with tempfile.TemporaryDirectory(prefix="aludel-full-") as folder:
        model = Path(folder) / "model"
        check_tool([str(binaries / "aludel-bench"), "make-model", "--shape", "tiny", "--out", str(model)], model)
        codec = Path(folder) / "codec"
        check_tool([str(binaries / "aludel-calibrate"), "--preset", "scd", "--producer", "deploy/demo/base", "--consumer",
                    "deploy/demo/chat", "--data", "deploy/demo/calibration.jsonl", "--prompts", "4", "--aligner-tokens", "64",
                    "--aligner-epochs", "1", "--out", str(codec)], codec)
        check_servers(binaries, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
