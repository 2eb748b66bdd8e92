"""Tests on the device, under compute-sanitizer too, and benchmarks of operations."""

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List

from machine import Bundle, Clock, Failed, run, say, text_of
from report import Report

SMALL_TESTS = ["ops_test", "device_test", "hand_over_test"]


def test_command(bundle: Bundle, only: str) -> List[str]:
    return [bundle.program("gpu_tests"), f"--gtest_filter={only}"]


def ops_filter(bundle: Bundle) -> str:
    """Of ops_test, which leaves ALUDEL_TEST_DEVICE aside: it has its own list of devices."""
    return "*/Cuda*" if bundle.on_card else "*/CpuThreads1"


def test_files(bundle: Bundle) -> Dict[str, str]:
    """What gpu_tests holds: a filter for the tests of each source file."""
    listing = bundle.work / "tests.json"
    run([bundle.program("gpu_tests"), "--gtest_list_tests", f"--gtest_output=json:{listing}"], 30)
    suites: Dict[str, List[str]] = {}
    for suite in json.loads(listing.read_text())["testsuites"]:
        suites.setdefault(Path(suite["testsuite"][0]["file"]).stem, []).append(f"{suite['name']}.*")
    return {**{name: ":".join(filters) for name, filters in suites.items()}, "ops_test": ops_filter(bundle)}


def run_test(bundle: Bundle, report: Report, name: str, only: str, limit: float) -> None:
    command = test_command(bundle, only)
    described = f"ALUDEL_TEST_DEVICE={bundle.device} {text_of(command)}"
    row, unit, bound = f"failed_tests_{name}", "tests", "== 0"
    output = bundle.work / f"{name}.json"
    reason = "it wrote no result"
    try:
        run([*command, f"--gtest_output=json:{output}"], limit, {"ALUDEL_TEST_DEVICE": bundle.device})
    except Failed as error:
        reason = str(error)
    try:
        result: Dict[str, Any] = json.loads(output.read_text())
    except (OSError, ValueError):
        report.missing(row, unit, bound, described, reason)
        return
    cases = [case for suite in result["testsuites"] for case in suite["testsuite"]]
    failed = [f"{case['classname']}.{case['name']}" for case in cases if "failures" in case]
    skipped = sum(case.get("result") == "SKIPPED" for case in cases)
    if not cases or skipped == len(cases):
        report.missing(row, unit, bound, described, "all its tests were skipped" if cases else "it holds no such test")
        return
    report.add(row, len(failed), unit, bound, described, tests=len(cases), skipped=skipped, failed=failed[:20])
    say(f"  {name}: {len(cases)} tests, {skipped} skipped, {len(failed)} failed")


def unit(bundle: Bundle, report: Report, clock: Clock) -> None:
    """A process for each file: an error that CUDA keeps, and a crash, are those of one file."""
    files = test_files(bundle)
    names = SMALL_TESTS if bundle.small else sorted(files)
    workers = 1 if bundle.small else min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda name: run_test(bundle, report, name, files[name], clock.left()), names))


def sanitise(bundle: Bundle, report: Report, tool: str, tests: str, row: str, limit: float) -> None:
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
    try:
        output = run(command, limit)
    except Failed as error:
        report.missing(row, what, bound, described, str(error))
        return
    summary = re.search(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    if summary is None:
        report.missing(row, what, bound, described, "its output has no summary: " + output.strip()[-200:])
        return
    report.add(row, int(summary.group(1) or summary.group(2)), what, bound, described)


def sanitizer(bundle: Bundle, report: Report, clock: Clock) -> None:
    limit = clock.left()
    runs = [("memcheck", "*/Cuda", "sanitizer_memcheck"), ("racecheck", "*/Cuda", "sanitizer_racecheck"),
            ("memcheck", "*Atten*/Cudawgmma", "sanitizer_memcheck_wgmma")]
    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(lambda one: sanitise(bundle, report, *one, limit), runs))


def measured(output: str) -> Dict[str, Any]:
    """Google Benchmark's JSON, by name; its context beside them."""
    result = json.loads(output[output.index("{"):])
    rows = {re.sub(r"/real_time$", "", one["name"]): one for one in result["benchmarks"]}
    return {"context": result["context"], "rows": rows}


LONG_PREFILL = {"Attention/sequences:1/rows:8192/context:0": "attention_gemm_share_8k",
                "Attention/sequences:1/rows:4096/context:0": "attention_gemm_share_4k"}


def wgmma(bundle: Bundle, report: Report, clock: Clock) -> None:
    """Prefill attention's other kernel, which is Hopper's alone."""
    command = [bundle.program("ops_bench"), f"--device={bundle.device}", "--instructions=wgmma", "--shape=8b",
               "--benchmark_filter=Attention/.*/rows:(2048|4096|8192)/", "--benchmark_format=json"]
    described = text_of(command)
    try:
        rows = measured(run(command, clock.left()))["rows"]
    except Failed as error:
        report.missing("attention_gemm_share_8k_wgmma", "share", ">= 0.5", described, str(error))
        return
    for name, row in rows.items():
        if name in LONG_PREFILL:
            report.add(f"{LONG_PREFILL[name]}_wgmma", row["of_gemm"], "share", ">= 0.5", described)
        report.add(f"op {name} wgmma", row["of_gemm"], "of gemm", None, described,
                   microseconds=float(f"{row['real_time'] / 1e3:.5g}"))


def ops(bundle: Bundle, report: Report, clock: Clock) -> None:
    command = [bundle.program("ops_bench"), f"--device={bundle.device}", f"--threads={bundle.threads}",
               "--benchmark_format=json", f"--benchmark_min_time={0.01 if bundle.small else 0.1}"]
    if bundle.small:
        command.append("--benchmark_filter=rows:512/out:1024|Attention/sequences:1/rows:512/context:0|RmsNorm/512")
    elif bundle.on_card:
        command.append("--shape=8b")
    described = text_of(command)
    result = measured(run(command, clock.left()))
    context = result["context"]
    report.add("copy_bandwidth", float(context["bandwidth_gb_s"]), "GB/s", None, described)
    report.add("gemm_peak", float(context["gemm_gflop_s"]) / 1e3, "TFLOP/s", None, described)
    for name, row in result["rows"].items():
        if name in LONG_PREFILL and "of_gemm" in row:
            bound = ">= 0.5" if "8192" in name else None
            report.add(LONG_PREFILL[name], row["of_gemm"], "share", bound, described)
        share = "of_gemm" if "of_gemm" in row and not re.search(r"rows:(1|16)/", name) else "of_bandwidth"
        report.add(f"op {name}", row[share], share.replace("_", " "), None, described,
                   microseconds=float(f"{row['real_time'] / 1e3:.5g}"))
    if bundle.on_card and not bundle.small:
        wgmma(bundle, report, clock)
