"""Kernels under compute-sanitizer."""

import re
import shutil
from typing import Optional, Tuple

from kernels import test_command
from machine import Bundle, Clock, Failed, run, text_of
from report import Report

# The most wanted first. One after the other: side by side they would all be cut short.
RUNS = [("memcheck", "*/Cuda", "sanitizer_memcheck"), ("racecheck", "*/Cuda", "sanitizer_racecheck"),
        ("memcheck", "*Atten*/Cudamma", "sanitizer_memcheck_mma")]
SHARES = [0.4, 0.4, 0.2]


def errors_of(output: str) -> Tuple[Optional[int], int]:
    """What the tool's summary counts, or without one what it had reported; and how many tests had run."""
    tests = len(re.findall(r"\[ +(?:OK|FAILED) +\] .*\(\d+ ms\)", output))
    summary = re.search(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    if summary:
        return int(summary.group(1) or summary.group(2)), tests
    if tests == 0:
        return None, 0
    return len(re.findall(r"^=+ (?:Error: |Warning: )?(?:Invalid|Misaligned|Race reported|Potential|Program hit|Out-of)",
                          output, re.MULTILINE)), tests


def sanitize(bundle: Bundle, report: Report, tool: str, tests: str, row: str, limit: float) -> None:
    what, bound = "errors", "== 0"
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    command = [found or "compute-sanitizer", "--tool", tool, *test_command(bundle, tests)]
    described = text_of(command)
    if not bundle.on_card:
        report.missing(row, what, bound, described, "it checks CUDA kernels, and the device is not a card")
        return
    if found is None:
        report.missing(row, what, bound, described, "compute-sanitizer is not installed")
        return
    reason = ""
    try:
        output = run(command, limit)
    except Failed as error:
        output, reason = error.output, str(error)
    errors, done = errors_of(output)
    if errors is None:
        report.missing(row, what, bound, described, reason or "its output has no summary: " + output.strip()[-200:])
    elif reason:
        # Of the tests that it came to; a run with --again begins anew.
        report.add(row, errors, what, bound, described, tests=done, partial=reason[:200])
    else:
        report.add(row, errors, what, bound, described, tests=done)


def sanitizer(bundle: Bundle, report: Report, clock: Clock) -> None:
    lacking = [(one, share) for one, share in zip(RUNS, SHARES) if report.value(one[2]) is None]
    for index, (one, share) in enumerate(lacking):
        rest = sum(share for _, share in lacking[index:])
        sanitize(bundle, report, *one, clock.left() * share / rest)
