"""A whole model's forward passes, and what codecs cost beside its prefill."""

import json
import re
import sys
from typing import Any, Dict, List

from kernels import REPETITIONS, benchmark, spread_of
from machine import ROOT, Bundle, Clock, Failed, run, text_of
from model import Model
from report import Report

CONTEXT = 512
BATCHES = [1, 2, 4, 8, 16, 32, 64]


def lengths(bundle: Bundle) -> List[int]:
    return [128] if bundle.small else [4096, 1024, 16384]


def forward(bundle: Bundle, report: Report, model: Model, clock: Clock, prefill: List[int], batches: List[int]) -> None:
    """Prefill of so many tokens; decode of batches behind a context."""
    model.wait(clock)
    context = 64 if bundle.small else CONTEXT
    command = [bundle.program("model_bench"), f"--model={model.consumer}", f"--device={bundle.device}",
               f"--threads={bundle.threads}", "--benchmark_format=json", "--prefill=" + ",".join(map(str, prefill)),
               "--decode=" + ",".join(f"{batch}:{context}" for batch in batches)]
    command += [REPETITIONS, *(["--benchmark_min_time=0.02"] if bundle.small else ["--chunk=4096", "--benchmark_min_time=0.1"])]
    described = text_of(command)
    _, rows, lacking = benchmark(command, clock.left())
    for name, row in rows.items():
        if name.startswith("Prefill/"):
            tokens = int(name.split("/")[1])
            if tokens == lengths(bundle)[0]:
                report.add("prefill_gemm_share", row["of_gemm"], "share", ">= 0.55", described, tokens=tokens,
                           **spread_of(row))
            report.add(f"prefill_rate_{tokens}", row["tokens/s"], "tokens/s", None, described, gemm_share=row["of_gemm"],
                       **spread_of(row))
        else:
            batch = int(re.findall(r":(\d+)", name)[0])
            if batch == 1:
                report.add("decode_bandwidth_share", row["of_bandwidth"], "share", ">= 0.8", described, context=context,
                           **spread_of(row))
            report.add(f"decode_rate_batch_{batch}", row["tokens/s"], "tokens/s", None, described, context=context,
                       bandwidth_share=row["of_bandwidth"], **spread_of(row))
    for name in [*(f"prefill_rate_{tokens}" for tokens in prefill), *(f"decode_rate_batch_{batch}" for batch in batches)]:
        report.missing(name, "tokens/s", None, described, lacking or "it was not printed")


def engine(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    forward(bundle, report, model, clock,
            [tokens for tokens in lengths(bundle) if report.value(f"prefill_rate_{tokens}") is None],
            [batch for batch in ([1] if bundle.small else BATCHES) if report.value(f"decode_rate_batch_{batch}") is None])


def otherwise(bundle: Bundle, report: Report, batches: List[int], flag: str, suffix: str, model: Model,
              limit: float) -> Dict[int, float]:
    """Decode with a flag that `engine` does not give, by batch: by how much slower than there."""
    context = 64 if bundle.small else CONTEXT
    command = [bundle.program("model_bench"), f"--model={model.consumer}", f"--device={bundle.device}",
               f"--threads={bundle.threads}", flag, "--benchmark_format=json", "--prefill=",
               "--decode=" + ",".join(f"{batch}:{context}" for batch in batches),
               f"--benchmark_min_time={0.02 if bundle.small else 0.1}", REPETITIONS]
    described = text_of(command)
    try:
        _, rows, lacking = benchmark(command, limit)
    except Failed as error:
        rows, lacking = {}, str(error)
    slower = {}
    for batch in batches:
        row, name = rows.get(f"Decode/batch:{batch}/context:{context}"), f"decode_rate_batch_{batch}_{suffix}"
        if row is None:
            report.missing(name, "tokens/s", None, described, lacking or "it was not printed")
            continue
        report.add(name, row["tokens/s"], "tokens/s", None, described, context=context, **spread_of(row))
        usual = report.value(f"decode_rate_batch_{batch}")
        if usual:
            slower[batch] = usual / row["tokens/s"]
    return slower


def graphs(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    """Decode steps launched one operation after the other, where `engine` has them as CUDA graphs; with the library's products
    for batches where `engine` has our own; and with kernels that begin before those in front of them have ended."""
    model.wait(clock)
    command = f"tests/gpu/run.sh --device {bundle.device} --only engine,graphs"
    alone = otherwise(bundle, report, [1] if bundle.small else [1, 8, 64], "--graphs=off", "without_graphs", model,
                      clock.left() / 3)
    for batch, slower in alone.items():
        report.add(f"decode_graph_speedup_batch_{batch}", slower, "ratio", ">= 1", command)
    library = otherwise(bundle, report, [1] if bundle.small else [16, 32, 64], "--batch-gemm=off", "library_gemm", model,
                        clock.left() / 2)
    for batch, slower in library.items():
        report.add(f"decode_batch_gemm_speedup_batch_{batch}", slower, "ratio", ">= 1", command)
    early = otherwise(bundle, report, [1] if bundle.small else [1, 2, 4, 8, 16], "--dependent-launch=on", "early_launch", model,
                      clock.left())
    for batch, slower in early.items():
        report.add(f"decode_early_launch_speedup_batch_{batch}", 1 / slower, "ratio", None, command)


def fp8(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    """Decode and prefill with weights in FP8, beside those in bf16 of `engine`."""
    model.wait(clock)
    described = f"tests/gpu/run.sh --device {bundle.device} --only engine,fp8"
    slower = otherwise(bundle, report, [1] if bundle.small else [1, 8, 64], "--weights=fp8", "fp8", model, clock.left() / 2)
    for batch, ratio in slower.items():
        report.add(f"decode_fp8_speedup_batch_{batch}", 1 / ratio, "ratio", ">= 1.2" if batch == 1 and bundle.on_card else None,
                   described)
    tokens = lengths(bundle)[0]
    command = [bundle.program("model_bench"), f"--model={model.consumer}", f"--device={bundle.device}",
               f"--threads={bundle.threads}", "--weights=fp8", "--benchmark_format=json", f"--prefill={tokens}", "--decode=",
               *(["--benchmark_min_time=0.02"] if bundle.small else ["--chunk=4096", "--benchmark_min_time=0.1"]), REPETITIONS]
    _, rows, lacking = benchmark(command, clock.left())
    row, name = rows.get(f"Prefill/{tokens}"), f"prefill_rate_{tokens}_fp8"
    if row is None:
        report.missing(name, "tokens/s", None, text_of(command), lacking or "it was not printed")
        return
    report.add(name, row["tokens/s"], "tokens/s", None, text_of(command), gemm_share=row["of_gemm"], **spread_of(row))
    usual = report.value(f"prefill_rate_{tokens}")
    if usual:
        report.add("prefill_fp8_speedup", row["tokens/s"] / usual, "ratio", ">= 1.2" if bundle.on_card else None, described,
                   tokens=tokens)


def codec(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    model.wait(clock, codecs=True)
    command = [bundle.program("aludel-bench"), "codec", "--producer", str(model.producer), "--consumer", str(model.consumer),
               "--codec", str(model.codec), "--formats", ",".join(model.formats()), "--device", bundle.device,
               "--threads", str(bundle.threads)]
    command += ["--tokens", "128", "--repeats", "2"] if bundle.small else ["--tokens", "4096", "--repeats", "4"]
    described = text_of(command)
    output = run(command, clock.left())
    default = model.formats()[0]
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) != 10 or cells[0] not in model.formats():
            continue
        name = "codec_prefill_share" + ("" if cells[0] == default else f"_{cells[0]}")
        report.add(name, float(cells[7].rstrip(" %")) / 100, "share", "<= 0.05" if cells[0] == default else None, described,
                   bytes_per_token=float(cells[1]), encode_tokens_per_second=float(cells[2]),
                   reconstruct_tokens_per_second=float(cells[4]), recompute_prefill_share=float(cells[9].rstrip(" %")) / 100,
                   spread=float(f"{float(cells[8].rstrip(' %')) / 100:.3g}"))


ADAPTERS, RANK = 8, 16
# Lines of what `aludel-bench engine --adapters` prints, and the rows that they are.
ADAPTER_STEPS = {f"{ADAPTERS} rows over {ADAPTERS} adapters of rank {RANK}": ("adapters_step_ratio", "<= 1.1"),
                 f"{ADAPTERS} rows of one adapter": ("adapters_step_ratio_of_one", None),
                 "tokens of a prompt, one adapter": ("adapters_prefill_ratio", None)}


def adapters(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    """A decode step whose rows each have an adapter of their own over the base's step, which takes turns with it."""
    model.wait(clock)
    command = [bundle.program("aludel-bench"), "engine", "--model", str(model.consumer), "--device", bundle.device,
               "--threads", str(bundle.threads), "--adapters", str(ADAPTERS), "--rank", str(RANK), "--requests", str(ADAPTERS)]
    command += ["--steps", "2", "--max-num-batched-tokens", "64"] if bundle.small else \
               ["--steps", "20", "--max-num-batched-tokens", "1024"]
    described = text_of(command)
    for line in run(command, clock.left()).splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        found = next((row for name, row in ADAPTER_STEPS.items() if cells[0].endswith(name)), None)
        if found is not None and len(cells) == 6:
            report.add(found[0], float(cells[2]), "ratio", found[1], described, milliseconds=float(cells[1]),
                       spread=float(f"{float(cells[3].rstrip(' %')) / 100:.3g}"))


PEERS = ["torch", "transformers"]


def peers(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    """PyTorch and transformers with random weights of the same shape, in a process of their own that finds libraries as
    they do. Both sides are of one run: what an earlier one left of ours is measured again."""
    script = ROOT / "tests/gpu/peers.py"
    command = [sys.executable, str(script), "--device", "cuda" if bundle.on_card else "cpu"]
    if bundle.small:
        command.append("--small")
    described = " ".join(["python3", "tests/gpu/peers.py", *command[2:]])
    reason = "not measured"
    try:
        output = run(command, clock.left(), {"LD_LIBRARY_PATH": bundle.loader_path})
    except Failed as error:
        output, reason = error.output, str(error)
    answer: Dict[str, Dict[str, Any]] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            answer.update(json.loads(line))
    ours = {"prefill": f"prefill_rate_{lengths(bundle)[0]}", "decode": "decode_rate_batch_1"}
    if any("prefill" in answer.get(peer, {}) for peer in PEERS) and not report.now.issuperset(ours.values()):
        forward(bundle, report, model, clock, lengths(bundle)[:1], [1])
    for peer in PEERS:
        figures = answer.get(peer, {"reason": reason})
        for what, bound in (("prefill", ">= 1.1"), ("decode", ">= 2")):
            name, mine, theirs = f"{what}_vs_{peer}", report.value(ours[what]), figures.get(what)
            if theirs is None or mine is None:
                report.missing(name, "ratio", bound, described, str(figures.get("reason", "our own rate is missing")))
            else:
                # As far as both together may be off.
                spread = report.rows[ours[what]].get("spread", 0) + figures.get(f"{what}_spread", 0)
                report.add(name, mine / theirs, "ratio", bound, described, ours=mine, theirs=theirs, spread=round(spread, 4),
                           version=figures.get("version"))
    peak = report.value("gemm_peak")
    theirs = answer.get("gemm", {}).get("tflops")
    if theirs:
        report.add("gemm_peak_torch", theirs, "TFLOP/s", None, described, **spread_of(answer["gemm"]))
    if theirs and peak:
        # Every share of a product is one of ours: where ours is slow they all flatter.
        spread = report.rows["gemm_peak"].get("spread", 0) + answer["gemm"].get("spread", 0)
        report.add("gemm_peak_vs_torch", peak / theirs, "ratio", ">= 0.95", described, ours=peak, theirs=theirs,
                   spread=round(spread, 4))
    else:
        report.missing("gemm_peak_vs_torch", "ratio", ">= 0.95", described, reason)
    for name, timed in answer.get("attention_8k", {}).items():
        if peak:
            flops = 4.0 * 8192 * (8193 / 2) * 4096
            report.add(f"attention_gemm_share_8k_{name}", flops / timed["seconds"] / (peak * 1e12), "share", None, described,
                       spread=timed["spread"])
