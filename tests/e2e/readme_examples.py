#!/usr/bin/env python3
"""Runs every `curl` example of README.md against a running gateway (GATEWAY_URL), as it is written but for the
address. An example must be answered with 200 and a body that is JSON, or a stream that ends with [DONE].

    stack.py --bin build/release/bin -- readme_examples.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://127.0.0.1:8080"


def examples() -> List[str]:
    """The shell blocks of README.md, cut into their curl commands."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return [command for block in blocks for command in re.split(r"\n(?=curl )", block.strip())
            if command.startswith("curl ") and ADDRESS in command]


def check(command: str, url: str) -> str:
    """What is wrong with the answer; empty for nothing."""
    command = command.replace(ADDRESS, url).replace("curl ", "curl -sS -m 60 -w '\\n%{http_code}' ", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr}"
    body, _, status = done.stdout.rpartition("\n")
    if status != "200":
        return f"status {status}: {body}"
    if body.startswith("data: "):
        return "" if body.rstrip().endswith("data: [DONE]") else f"the stream does not end: {body[-300:]}"
    if "/metrics" in command:
        return "" if "aludel_" in body else "no metrics"
    try:
        json.loads(body)
    except ValueError as error:
        return f"{error}: {body[:300]}"
    return ""


def main() -> int:
    url = os.environ["GATEWAY_URL"]
    commands = examples()
    faults = 0
    for command in commands:
        fault = check(command, url)
        print(f"{'FAILED' if fault else 'ok'}: {command.splitlines()[0]}")
        if fault:
            print(f"  {fault}")
            faults += 1
    if not commands:
        print("README.md has no curl example")
    return 0 if commands and faults == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
