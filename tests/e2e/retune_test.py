"""From traffic to a better codec, as deploy/OPERATING.md says it: a gateway writes the prompts that it serves, aludel-calibrate
tunes a copy of the artifact on them, aludel-inspect publishes that, and the servers follow while they serve. The copy has the
old encoder and another decoder; one version back is one command. Only Python's standard library.

    retune_test.py --bin build/release/bin
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

from artifact_switch_test import DEMO, FORMAT, SERVERS, ask, metric, wait_for
from stack import ROOT, Stack

QUESTIONS = 10
HELD_OUT = "deploy/demo/calibration.jsonl"  # other prompts than those that are asked
DECODER = f"{FORMAT}.chat.decoder.safetensors"
ENTRIES = [json.loads(line) for line in (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[:QUESTIONS]]


def run(binaries: Path, *arguments: str) -> str:
    """What a program says; that it fails is an error."""
    done = subprocess.run([str(binaries / arguments[0]), *arguments[1:]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{arguments}: {done.stdout}"
    return done.stdout


def manifest(artifact: Path) -> Dict[str, Dict]:
    return {one["name"]: one for one in json.loads((artifact / "artifact.json").read_text())["formats"]}


def captured(file: Path) -> List[List[int]]:
    return [json.loads(line)["ids"] for line in file.read_text().splitlines()] if file.exists() else []


def serve(stack: Stack, version: str) -> None:
    """Every server has come to this version, and answers by it come from the prefill server."""
    for server in SERVERS:
        wait_for(f"{server} uses {version}", lambda: metric(stack, server, "aludel_artifact_info", f'version="{version}"') == 1)
    for entry in ENTRIES[:3]:
        plan = ask(stack, entry, "chat", max_staleness_ms=10 ** 9)["aludel"]["plan"]
        assert plan == "remote", f"{version}: {plan}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    binaries = parser.parse_args().bin.resolve()
    with tempfile.TemporaryDirectory(prefix="aludel-retune-") as name:
        folder = Path(name)
        versions, tuned, capture = folder / "codec", folder / "next", folder / "capture.jsonl"
        run(binaries, "aludel-inspect", "artifact", "publish", str(versions), str(DEMO))
        stack = Stack(binaries, folder, {"gateway": f'\ncapture {{ file: "{capture}" }}\n'}, replaced={
            'artifact: "deploy/demo/codec"': f'artifact: "{versions / "current"}" reload_interval_ms: 50'})
        try:
            stack.wait_until_ready()
            serve(stack, "0001")
            for entry in ENTRIES[3:]:
                ask(stack, entry, "chat")
            wait_for(f"{QUESTIONS} prompts in {capture}", lambda: len(captured(capture)) >= QUESTIONS)
            prompts = captured(capture)
            assert len(prompts) == QUESTIONS and min(map(len, prompts)) > 10, [len(prompt) for prompt in prompts]

            shutil.copytree(versions / "current", tuned)
            said = run(binaries, "aludel-calibrate", "--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat", "--data", HELD_OUT,
                       "--prompts", "10", "--out", str(tuned), "--retune", "--format", FORMAT, "--tuning", "1", "--tuning-data", str(capture))
            print(said)
            old, new = manifest(versions / "current"), manifest(tuned)
            assert new[FORMAT]["encoder"] == old[FORMAT]["encoder"], "prefill servers and their stores would begin anew"
            assert (tuned / DECODER).read_bytes() != (DEMO / DECODER).read_bytes(), "nothing was tuned"
            assert {name: one for name, one in new.items() if name != FORMAT} == {
                name: one for name, one in old.items() if name != FORMAT}, "another format was touched"

            run(binaries, "aludel-inspect", "artifact", "publish", str(versions), str(tuned))
            serve(stack, "0002")
            run(binaries, "aludel-inspect", "artifact", "rollback", str(versions))
            serve(stack, "0001")
            stack.check()
            return 0
        except (AssertionError, RuntimeError):
            print(stack.log_tails(), file=sys.stderr)
            raise
        finally:
            stack.stop()


if __name__ == "__main__":
    sys.exit(main())
