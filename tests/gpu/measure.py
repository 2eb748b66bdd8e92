"""The parts of tests/gpu/run.sh, one after the other, each with its own limit; see there."""

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Tuple

import calibrate
import cublas
import engine
import kernels
import parity
import profile_kernels
import quality
import sanitizer
import ttft
from card import Clocks, warm_peers
from machine import ROOT, Bundle, Clock, Failed, describe_device, fail, say
from model import Model
from report import Report


class Part(NamedTuple):
    name: str
    share: float  # of the time, in seconds of eight minutes
    rows: List[str]  # of which it must say something
    run: Callable[[Clock], None]


def parts_of(bundle: Bundle, report: Report, model: Model) -> List[Part]:
    """The most wanted first: what is last is what lacks time."""
    return [
        Part("unit", 50, [f"failed_tests_{name}" for name in kernels.SMALL_TESTS],
             lambda clock: kernels.unit(bundle, report, clock)),
        Part("attention", 30, ["gemm_peak", "copy_bandwidth", "attention_gemm_share_8k", "attention_gemm_share_8k_grid",
                               "attention_gemm_share_8k_mma"],
             lambda clock: kernels.attention(bundle, report, clock)),
        Part("parity", 25, ["greedy_parity"], lambda clock: parity.parity(bundle, report, clock)),
        Part("quality", 20, [f"quality_kl_{name}" for name in quality.FORMATS],
             lambda clock: quality.quality(bundle, report, clock)),
        Part("engine", 50, ["prefill_gemm_share", "decode_bandwidth_share"],
             lambda clock: engine.engine(bundle, report, model, clock)),
        Part("ttft", 80, ttft.Study(bundle, report, model).names(),
             lambda clock: ttft.ttft(bundle, report, model, clock)),
        Part("sanitizer", 30, [row for _, _, row in sanitizer.RUNS],
             lambda clock: sanitizer.sanitizer(bundle, report, clock)),
        Part("peers", 35, ["gemm_peak_vs_torch", *(f"{what}_vs_{peer}" for peer in engine.PEERS for what in ("prefill", "decode"))],
             lambda clock: engine.peers(bundle, report, model, clock)),
        Part("codec", 20, ["codec_prefill_share"], lambda clock: engine.codec(bundle, report, model, clock)),
        Part("graphs", 20, ["decode_rate_batch_1_without_graphs", "decode_rate_batch_1_early_launch"],
             lambda clock: engine.graphs(bundle, report, model, clock)),
        Part("fp8", 20, ["decode_rate_batch_1_fp8", f"prefill_rate_{engine.lengths(bundle)[0]}_fp8"],
             lambda clock: engine.fp8(bundle, report, model, clock)),
        Part("adapters", 20, [name for name, _ in engine.ADAPTER_STEPS.values()],
             lambda clock: engine.adapters(bundle, report, model, clock)),
        Part("calibrate", 35, ["calibrate_kl", "calibrate_minutes"], lambda clock: calibrate.calibrate(bundle, report, model, clock)),
        Part("ops", 25, [], lambda clock: kernels.ops(bundle, report, clock)),
        Part("profile", 20, [f"profile_{phase}_{name}" for phase, names in profile_kernels.KERNELS.items() for name in names],
             lambda clock: profile_kernels.profile(bundle, report, model, clock)),
    ]


WARM_SECONDS = 40.0  # for reading PyTorch from disk
WITH_MODEL = {"calibrate", "engine", "peers", "codec", "ttft", "graphs", "adapters", "fp8", "profile"}


def limit(shares: List[float], index: int, whole: float, left: float) -> float:
    """Seconds for the part at `index`: what is left but for the shares of those behind it. So a part has what those before it
    did not use, and one alone has everything."""
    return left - whole * sum(shares[index + 1:]) / sum(shares)


def measure(part: Part, report: Report, clocks: Clocks, seconds: float) -> None:
    """Runs it; whatever happens, its rows are there afterwards, the card's clocks beside them, and the file holds what is
    known."""
    begin, before = time.monotonic(), set(report.now)
    say(f"== {part.name} (at most {seconds:.0f} s)")
    report.part = part.name
    reason = "its command printed no such row"
    try:
        if seconds < 3:
            raise TimeoutError("no time was left for it")
        part.run(Clock(seconds))
    except Exception as error:  # a part that fails does not lose the others
        reason = f"{type(error).__name__}: {error}"
        say(f"   failed: {reason}")
    for row in part.rows:
        report.missing(row, "", None, f"tests/gpu/run.sh --only {part.name}", reason)
    beside = clocks.between(begin, time.monotonic())
    for row in report.now - before:
        report.rows[row].update(beside)
    report.write()
    say(f"   {time.monotonic() - begin:.0f} s")


def chosen_of(parts: List[Part], only: str, again: bool, report: Report) -> List[Part]:
    """Those that are asked for, and that the report lacks something of."""
    names = [one for one in only.split(",") if one]
    unknown = set(names) - {part.name for part in parts}
    if unknown:
        fail(f"--only names {', '.join(sorted(unknown))}, want of {', '.join(part.name for part in parts)}")
    chosen = [part for part in parts if not names or part.name in names]
    if again:
        for part in chosen:
            report.forget(part.name)
    kept = [part.name for part in chosen if report.complete(part.name, part.rows)]
    if kept:
        say(f"kept from an earlier run, --again measures anew: {', '.join(kept)}")
    return [part for part in chosen if part.name not in kept]


def settle(process: subprocess.Popen, seconds: float) -> None:
    """Waits for its end, and no longer than that."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def results_of(named: Optional[Path], file: str) -> Tuple[Path, Optional[Path]]:
    """The file that is gone on with, and a copy of it. $OUT, where it is set, is a folder whose files are carried back, and
    may be empty again in the next run: that one goes on with the tree's."""
    tree = ROOT / "tests/gpu/results" / file
    if named is not None:
        return named, None
    return tree, Path(os.environ["OUT"]) / file if os.environ.get("OUT") else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--only", default="", help="parts, comma-separated")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device != "cpu" and not re.fullmatch(r"cuda:\d+", options.device):
        fail(f'--device is "{options.device}", want cpu or cuda:N')
    whole = Clock(60 * options.minutes)
    with tempfile.TemporaryDirectory(prefix="aludel-gpu-") as work:
        bundle = Bundle(options.bundle, options.device, options.small, Path(work))
        if bundle.on_card:
            major = (bundle.manifest.get("cuda") or "13").split(".")[0]
            try:
                folder = cublas.find(f"libcublasLt.so.{major}", cublas.folders(major, sys.path))
            except Failed as error:
                fail(str(error))
            os.environ["LD_LIBRARY_PATH"] = cublas.loader_path(folder)
            say(f"cuBLASLt: {folder or 'where the loader looks'}")
        name, driver = describe_device(options.device)
        today = datetime.date.today().isoformat()
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        kept, copy = results_of(options.out, f"{plain}-{today}.json")
        report = Report(kept, {"device": name, "driver": driver, "commit": bundle.commit(), "date": today}, copy)
        model = Model(bundle)
        clocks = Clocks(options.device)
        warming = None
        try:
            report.write()  # also where nothing is left to measure, $OUT has it
            chosen = chosen_of(parts_of(bundle, report, model), options.only, options.again, report)
            if {part.name for part in chosen} & WITH_MODEL:
                model.start(whole)
            warming = warm_peers(bundle, sys.executable) if "peers" in {part.name for part in chosen} else None
            shares = [part.share for part in chosen]
            for index, part in enumerate(chosen):
                if warming is not None and part.name != "unit":  # nothing that is timed runs beside it
                    settle(warming, min(WARM_SECONDS, whole.left() / 8))
                    warming = None
                measure(part, report, clocks, limit(shares, index, 60 * options.minutes, whole.left()))
        finally:
            if warming is not None:
                settle(warming, 0)
            clocks.stop()
            model.stop()
    print(f"\n{report.table()}\n\n{copy or kept}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
