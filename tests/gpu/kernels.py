"""Tests on the device and benchmarks of operations."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from machine import Bundle, Clock, Failed, run, say, text_of
from report import Report

SMALL_TESTS = ["ops_test", "device_test", "handoff_test"]
# What the others rest on comes first.
FIRST_TESTS = ["ops_test", "gemm_ops_test", "paged_ops_test", "device_test", "decode_graphs_test", "transformer_test"]


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
    failures = {f"{case['classname']}.{case['name']}": case["failures"][0]["failure"] for case in cases if "failures" in case}
    skipped = sum(case.get("result") == "SKIPPED" for case in cases)
    if not cases or skipped == len(cases):
        report.missing(row, unit, bound, described, "all its tests were skipped" if cases else "it holds no such test")
        return
    report.add(row, len(failures), unit, bound, described, tests=len(cases), skipped=skipped, failed=list(failures)[:20])
    say(f"  {name}: {len(cases)} tests, {skipped} skipped, {len(failures)} failed")
    for test, why in list(failures.items())[:5]:
        say(f"    {test}: {' '.join(why.split())[:600]}")


def unit(bundle: Bundle, report: Report, clock: Clock) -> None:
    """A process for each file: an error that CUDA keeps, and a crash, are those of one file."""
    files = test_files(bundle)
    ordered = [*(name for name in FIRST_TESTS if name in files), *sorted(set(files) - set(FIRST_TESTS))]
    names = [name for name in (SMALL_TESTS if bundle.small else ordered) if report.value(f"failed_tests_{name}") is None]
    workers = 1 if bundle.small else min(4, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda name: run_test(bundle, report, name, files[name], clock.left()), names))


def finished(output: str) -> Tuple[Dict[str, Any], Dict[str, Dict[str, Any]]]:
    """Google Benchmark's JSON, which may end anywhere: its context, and what had been measured by name: the mean of its
    timings, and `spread`, by how much of that they are apart, where there are several."""
    head, begin, entries = output[output.find("{"):].partition('"benchmarks": [')
    if not begin:
        raise ValueError("no benchmark was begun")
    context = json.loads(head.rstrip().rstrip(",") + "}")["context"]
    timings: Dict[str, List[Dict[str, Any]]] = {}
    while True:
        entries = entries.lstrip(" \n,")
        try:
            row, end = json.JSONDecoder().raw_decode(entries)
        except ValueError:  # the end of the list, or of what was written
            return context, {name: together(rows) for name, rows in timings.items()}
        if row.get("run_type") != "aggregate":
            timings.setdefault(re.sub(r"/repeats:\d+|/real_time$", "", row["name"]), []).append(row)
        entries = entries[end:]


def together(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The mean of each figure of a benchmark's repetitions."""
    mean = {key: sum(row[key] for row in rows) / len(rows) if isinstance(value, float) else value
            for key, value in rows[0].items()}
    if len(rows) > 1 and mean.get("real_time"):
        times = [row["real_time"] for row in rows]
        mean["spread"] = float(f"{(max(times) - min(times)) / mean['real_time']:.3g}")
    return mean


def spread_of(row: Dict[str, Any]) -> Dict[str, Any]:
    """For a row of the report."""
    return {"spread": row["spread"]} if "spread" in row else {}


def benchmark(command: List[str], limit: float) -> Tuple[Dict[str, Any], Dict[str, Dict[str, Any]], Optional[str]]:
    """Context, rows, and why there are no more where the command did not come to its end."""
    try:
        return (*finished(run(command, limit)), None)
    except Failed as error:
        try:
            return (*finished(error.output), str(error))
        except ValueError:
            raise error from None


REPETITIONS = "--benchmark_repetitions=2"

# By length, and what is asked for where it is not the device's own choice.
BOUNDS = {("8k", ""): ">= 0.5", ("8k", "mma"): ">= 0.35", ("8k", "grid"): ""}


def add_operation(report: Report, name: str, row: Dict[str, Any], described: str) -> None:
    share = "of_gemm" if "of_gemm" in row and not re.search(r"rows:(1|16|32|64)/", name) else "of_bandwidth"
    report.add(f"op {name}", row[share], share.replace("_", " "), None, described,
               microseconds=float(f"{row['real_time'] / 1e3:.5g}"), **spread_of(row))


def attention(bundle: Bundle, report: Report, clock: Clock) -> None:
    """The machine's peaks; attention, with a block for each piece of prefill's work, and with the kernel of other GPUs than
    Hopper's."""
    only = "Attention/sequences:1/rows:512/context:0" if bundle.small else "Attention/"
    runs: List[Tuple[str, str, List[str]]] = [("", only, [])]
    if bundle.on_card and not bundle.small:
        prefill = "Attention/.*/rows:(2048|4096|8192)/"
        runs += [("grid", prefill, ["--persistent-attention=off"]), ("mma", prefill, ["--instructions=mma"])]
    for index, (kind, names, flags) in enumerate(runs):
        suffix = f"_{kind}" if kind else ""
        command = ops_command(bundle, names) + flags
        described = text_of(command)
        lacking: Optional[str] = None
        try:
            context, rows, lacking = benchmark(command, clock.left() / (len(runs) - index))
            if not kind:
                for row_name, key, unit, scale in (("copy_bandwidth", "bandwidth_gb_s", "GB/s", 1),
                                                   ("gemm_peak", "gemm_gflop_s", "TFLOP/s", 1e-3)):
                    report.add(row_name, scale * float(context[key]), unit, None, described,
                               spread=float(f"{float(context[key + '_spread']):.3g}"))
            for name, row in rows.items():
                long = re.fullmatch(r"Attention/sequences:1/rows:(4096|8192)/context:0", name)
                if long:
                    length = f"{int(long.group(1)) // 1024}k"
                    report.add(f"attention_gemm_share_{length}{suffix}", row["of_gemm"], "share",
                               BOUNDS.get((length, kind)) or None, described, **spread_of(row))
                add_operation(report, f"{name} {kind}".rstrip(), row, described)
        except Failed as error:
            lacking = str(error)
        if lacking:
            say(f"   {lacking}")
            report.missing(f"attention_gemm_share_8k{suffix}", "share", BOUNDS["8k", kind] or None, described, lacking)


def ops_command(bundle: Bundle, names: str) -> List[str]:
    command = [bundle.program("ops_bench"), f"--device={bundle.device}", f"--threads={bundle.threads}",
               f"--benchmark_filter={names}", "--benchmark_format=json",
               f"--benchmark_min_time={0.01 if bundle.small else 0.05}", REPETITIONS]
    return [*command, "--shape=8b"] if bundle.on_card and not bundle.small else command


BY_LIBRARY = "by cuBLASLt"


def ops(bundle: Bundle, report: Report, clock: Clock) -> None:
    """Every operation but attention; and products of a batch's rows by the library, where our own kernel is the device's choice."""
    runs = [("", "rows:512/out:1024|RmsNorm/512" if bundle.small else "-^Attention/", [])]
    if bundle.on_card and not bundle.small:
        runs.insert(0, (BY_LIBRARY, "Gemm/rows:(32|64)/", ["--batch-gemm=off"]))
    for index, (by, names, flags) in enumerate(runs):
        command = [*ops_command(bundle, names), *flags]
        described = text_of(command)
        _, rows, lacking = benchmark(command, clock.left() if index == len(runs) - 1 else clock.left() / 4)
        for name, row in rows.items():
            add_operation(report, f"{name} {by}".rstrip(), row, described)
        unreached = f"op (those not reached) {by}".rstrip()
        if lacking:
            report.missing(unreached, "", None, described, f"{lacking}; {len(rows)} had been measured")
        else:
            report.rows.pop(unreached, None)
