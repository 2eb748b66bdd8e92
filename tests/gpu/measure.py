"""The parts of tests/gpu/run.sh, one after the other, each with its own limit; see there."""

import argparse
import datetime
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple

import engine
import kernels
import parity
import ttft
from machine import ROOT, Bundle, Clock, describe_device, fail, say
from model import Model
from report import Report


class Part(NamedTuple):
    name: str
    seconds: float  # its share of eight minutes; what one part leaves is the next one's
    rows: List[str]  # of which it must say something
    run: Callable[[Clock], None]


def parts_of(bundle: Bundle, report: Report, model: Model) -> List[Part]:
    """The most wanted first: what is last is what lacks time."""
    return [
        Part("unit", 60, [f"failed_tests_{name}" for name in kernels.SMALL_TESTS],
             lambda clock: kernels.unit(bundle, report, clock)),
        Part("ops", 50, ["gemm_peak", "copy_bandwidth", "attention_gemm_share_8k", "attention_gemm_share_8k_wgmma"],
             lambda clock: kernels.ops(bundle, report, clock)),
        Part("engine", 70, ["prefill_gemm_share", "decode_bandwidth_share"],
             lambda clock: engine.engine(bundle, report, model, clock)),
        Part("ttft", 150, [], lambda clock: ttft.ttft(bundle, report, model, clock)),
        Part("peers", 60, [f"{what}_vs_{peer}" for peer in engine.PEERS for what in ("prefill", "decode")],
             lambda clock: engine.peers(bundle, report, model, clock)),
        Part("parity", 45, ["greedy_parity"], lambda clock: parity.parity(bundle, report, clock)),
        Part("codec", 40, ["codec_prefill_share"], lambda clock: engine.codec(bundle, report, model, clock)),
        Part("graphs", 40, ["decode_rate_batch_1_without_graphs"],
             lambda clock: engine.graphs(bundle, report, model, clock)),
        Part("sanitizer", 90, ["sanitizer_memcheck", "sanitizer_racecheck", "sanitizer_memcheck_wgmma"],
             lambda clock: kernels.sanitizer(bundle, report, clock)),
    ]


def measure(part: Part, report: Report, whole: Clock, minutes: float) -> None:
    """Runs it; whatever happens, its rows are there afterwards and the file holds what is known."""
    seconds = min(part.seconds * minutes / 8, whole.left())
    begin = time.monotonic()
    say(f"== {part.name} (at most {seconds:.0f} s)")
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
    report.write()
    say(f"   {time.monotonic() - begin:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--only", default="", help="parts, comma-separated")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device != "cpu" and not re.fullmatch(r"cuda:\d+", options.device):
        fail(f'--device is "{options.device}", want cpu or cuda:N')
    with tempfile.TemporaryDirectory(prefix="aludel-gpu-") as work:
        bundle = Bundle(options.bundle, options.device, options.small, Path(work))
        name, driver = describe_device(options.device)
        today = datetime.date.today().isoformat()
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        out = options.out or ROOT / "tests/gpu/results" / f"{plain}-{today}.json"
        report = Report(out, {"device": name, "driver": driver, "commit": bundle.commit(), "date": today})
        model = Model(bundle)
        parts = parts_of(bundle, report, model)
        only = [one for one in options.only.split(",") if one]
        unknown = set(only) - {part.name for part in parts}
        if unknown:
            fail(f"--only names {', '.join(sorted(unknown))}, want of {', '.join(part.name for part in parts)}")
        chosen = [part for part in parts if not only or part.name in only]
        whole = Clock(60 * options.minutes)
        try:
            if {part.name for part in chosen} & {"engine", "ttft", "codec", "graphs"}:
                model.start()
            for part in chosen:
                measure(part, report, whole, options.minutes)
        finally:
            model.stop()
    print(f"\n{report.table()}\n\n{out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
