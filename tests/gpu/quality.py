"""What codes lose on the device, beside what they lose on the CPU: `aludel-eval` of the demo pair, the same questions."""

import json
from typing import Any, Dict

from machine import ROOT, Bundle, Clock, run, text_of
from report import Report

FORMATS = ["aludel-p2", "int8"]
# Of the CPU's KL. Both round to bf16, in other orders: single questions go either way, their mean hardly.
BOUND = "<= 1.1"


def losses(bundle: Bundle, device: str, questions: int, limit: float) -> Dict[str, Dict[str, Any]]:
    """By format: of the report what its quality is."""
    out = bundle.work / f"quality-{device.replace(':', '-')}"
    pair = [f"--{role}={ROOT / 'deploy/demo' / name}" for role, name in (("producer", "base"), ("consumer", "chat"), ("codec", "codec"))]
    run([bundle.program("aludel-eval"), *pair, f"--qa={ROOT / 'deploy/demo/questions.jsonl'}", f"--questions={questions}",
         f"--formats={','.join(FORMATS)}", f"--device={device}", f"--threads={bundle.threads}", f"--out={out}"], limit)
    return {one["name"]: one for one in json.loads((out / "report.json").read_text())["formats"]}


def quality(bundle: Bundle, report: Report, clock: Clock) -> None:
    questions = 4 if bundle.small else 200
    command = f"tests/gpu/run.sh --device {bundle.device} --only quality"
    want = losses(bundle, "cpu", questions, clock.left() / 2)
    found = losses(bundle, bundle.device, questions, clock.left())
    for name in FORMATS:
        mine, theirs = found[name], want[name]
        report.add(f"quality_kl_{name}", mine["kl"] / theirs["kl"], "ratio", BOUND, command, questions=questions,
                   kl=mine["kl"], cpu_kl=theirs["kl"], f1=mine["f1"], cpu_f1=theirs["f1"])
