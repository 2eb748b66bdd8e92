#!/usr/bin/env python3
"""Runs every `curl` example of the documents below against a running gateway (GATEWAY_URL), as it is written but for the
address. An example must be answered with 200 and a body that is JSON, or a stream that ends with [DONE]; one that asks for
codes must be answered over codes.

    stack.py --bin build/release/bin -- readme_examples.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://127.0.0.1:8080"
DOCUMENTS = ("README.md", "server/gateway/API.md")


def examples(document: str) -> List[str]:
    """The shell blocks of a document, cut into their curl commands."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [command for block in blocks for command in re.split(r"\n(?=curl )", block.strip())
            if command.startswith("curl ") and ADDRESS in command]


def report_of(body: str) -> Dict:
    """The `aludel` object of an answer, whole or streamed; empty where it has none."""
    events = [line[len("data: "):] for line in body.splitlines() if line.startswith("data: {")]
    for text in events or [body]:
        answer = json.loads(text)
        if isinstance(answer, dict) and isinstance(answer.get("aludel"), dict):
            return answer["aludel"]
    return {}


def check(command: str, url: str) -> str:
    """What is wrong with the answer; empty for nothing."""
    asks_for_codes = '"fidelity": "fast"' in command or '"format": "aludel-' in command
    command = command.replace(ADDRESS, url).replace("curl ", "curl -sS -m 60 -w '\\n%{http_code}' ", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr}"
    body, _, status = done.stdout.rpartition("\n")
    if status != "200":
        return f"status {status}: {body}"
    if "/metrics" in command:
        return "" if "aludel_" in body else "no metrics"
    if body.startswith("data: ") and not body.rstrip().endswith("data: [DONE]"):
        return f"the stream does not end: {body[-300:]}"
    try:
        report = report_of(body)
    except ValueError as error:
        return f"{error}: {body[:300]}"
    # A prompt shorter than planner.min_remote_tokens would be prefilled by the decode server.
    if asks_for_codes and report.get("plan") not in ("remote", "cached"):
        return f"it asks for codes, and the plan is {report.get('plan')!r}: {report.get('fallback_reason')}"
    return ""


def main() -> int:
    url = os.environ["GATEWAY_URL"]
    faults = 0
    for document in DOCUMENTS:
        commands = examples(document)
        if not commands:
            print(f"FAILED: {document} has no curl example")
            faults += 1
        for command in commands:
            fault = check(command, url)
            print(f"{'FAILED' if fault else 'ok'}: {document}: {command.splitlines()[0]}")
            if fault:
                print(f"  {fault}")
                faults += 1
    return 0 if faults == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
