"""One pass of Nsight Compute over the kernels that a step spends its time in, of two of the model's layers: the tool follows
each launch, so that reading all of the weights would take its time."""

import csv
import io
import re
import shutil
import statistics
from typing import Any, Dict, List

from machine import Bundle, Clock, Failed, run, text_of
from model import Model
from report import Report

# Names of kernels/cuda, by the phase that they are met in.
KERNELS = {"prefill": ["WgmmaAttention", "RopeWriteKv", "Silu", "Norm"],
           "decode": ["Bf16Product", "NormQkv", "NormGateUp", "MmaAttention"],
           "batch": ["BatchProduct"]}
DECODED = {"decode": "1:512", "batch": "32:512"}  # sequences, and what each has before
METRICS = {"gpu__time_duration.sum": "microseconds",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
           "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory_percent",
           "sm__warps_active.avg.pct_of_peak_sustained_active": "warps_percent",
           "launch__registers_per_thread": "registers",
           "smsp__sass_inst_executed_op_local.sum": "local_accesses"}
OPTIONAL = "smsp__sass_inst_executed_op_local.sum"  # not every version and card has it; an unknown name fails the whole pass
LAUNCHES = 60


def figures_of(output: str) -> Dict[str, Dict[str, Any]]:
    """Of the tool's raw CSV page: the median of each metric by kernel, its template arguments left out."""
    begin = output.find('"ID"')
    found: Dict[str, Dict[str, List[float]]] = {}
    for row in csv.DictReader(io.StringIO(output[begin:] if begin >= 0 else "")):
        name = re.search(r"(\w+)[<(]", (row.get("Kernel Name") or "").replace("(anonymous namespace)::", ""))
        if name is None:
            continue  # the row of units
        for metric, label in METRICS.items():
            try:
                value = float(row[metric].replace(",", ""))
            except (KeyError, ValueError):
                continue
            found.setdefault(name.group(1), {}).setdefault(label, []).append(value)
    return {name: {**{label: statistics.median(values) for label, values in metrics.items()},
                   "launches": max(map(len, metrics.values()))} for name, metrics in found.items()}


def measure(command: List[str], clock: Clock, passes: int) -> str:
    """What the tool printed; where it failed early, without the metric that it may not know."""
    begin = clock.left()
    try:
        return run(command, begin / passes)
    except Failed as error:
        if figures_of(error.output) or clock.left() < begin - begin / passes / 2:
            raise
        metrics = ",".join(metric for metric in METRICS if metric != OPTIONAL)
        return run([metrics if part == ",".join(METRICS) else part for part in command], begin / passes - (begin - clock.left()))


def profile(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    tool = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    for index, (phase, kernels) in enumerate(KERNELS.items()):
        command = [tool or "ncu", "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS),
                   "-k", f"regex:^({'|'.join(kernels)})$", "--launch-count", str(LAUNCHES), "--kill", "yes",
                   bundle.program("model_bench"), f"--model={model.shallow}", f"--device={bundle.device}", "--graphs=off",
                   "--prefill=1024" if phase == "prefill" else "--prefill=",
                   f"--decode={DECODED.get(phase, '')}", "--benchmark_min_time=0.01"]
        described = text_of(command)
        rows = [f"profile_{phase}_{kernel}" for kernel in kernels]
        reason = "the device is not a card" if not bundle.on_card else "Nsight Compute (ncu) is not installed" if tool is None else ""
        found: Dict[str, Dict[str, Any]] = {}
        if not reason:
            model.wait(clock)
            try:
                output = measure(command, clock, len(KERNELS) - index)
            except Failed as error:
                output, reason = error.output, str(error)
            found = figures_of(output)
        for row, kernel in zip(rows, kernels):
            figures = found.get(kernel)
            if figures is None or "microseconds" not in figures:
                report.missing(row, "us", None, described, reason or "it was not launched")
                continue
            report.add(row, figures["microseconds"] / 1e3, "us", None, described,
                       **{name: value for name, value in figures.items() if name != "microseconds"})
