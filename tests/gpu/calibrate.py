"""Calibration with models and large products on the device: of the demo pair what it loses beside the CPU's, and how long one of
the 8B shape is to take there, from what is measured of each kind of work."""

import json
import random
import re
from pathlib import Path
from typing import List

from machine import ROOT, Bundle, Clock, Failed, run, text_of
from model import Model
from report import Report

RECOMPUTED = ["--recomputed-layers=2", "--linear"]
# Of the CPU's KL: products differ in their last bits, a ridge that is chosen may be its neighbor.
KL_BOUND = "<= 1.1"
MINUTES_BOUND = "<= 10"
UNITS = {"s": 1 / 60, "min": 1.0, "h": 60.0}


def flags(bundle: Bundle, device: str, producer: Path, consumer: Path, data: Path, out: Path) -> List[str]:
    return [bundle.program("aludel-calibrate"), f"--producer={producer}", f"--consumer={consumer}", f"--data={data}", f"--out={out}",
            f"--device={device}", f"--threads={bundle.threads}", *RECOMPUTED]


def loss(bundle: Bundle, device: str, limit: float) -> float:
    """KL of the demo pair's held-out prompts over codes that were fitted to the others."""
    out = bundle.work / f"calibrated-{device.replace(':', '-')}"
    demo = ROOT / "deploy/demo"
    run([*flags(bundle, device, demo / "base", demo / "chat", demo / "questions.jsonl", out), "--bytes-per-token=64",
         f"--prompts={40 if bundle.small else 200}"], limit)
    return json.loads((out.parent / f"{out.name}.report/aludel-p2.json").read_text())["chosen"]["kl"]


def planned_minutes(printed: str) -> float:
    """Of the plan's last line."""
    found = re.findall(r"^needs .* about ([0-9.]+) (s|min|h)\b", printed, re.MULTILINE)
    if not found:
        raise Failed(f"no plan in: {printed[-300:]}")
    return float(found[-1][0]) * UNITS[found[-1][1]]


def calibrate(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    command = f"tests/gpu/run.sh --device {bundle.device} --only calibrate"
    theirs = loss(bundle, "cpu", clock.left() / 3)
    mine = loss(bundle, bundle.device, clock.left() / 2)
    report.add("calibrate_kl", mine / theirs, "ratio", KL_BOUND, command, kl=mine, cpu_kl=theirs)
    model.wait(clock)
    draw = random.Random(1)
    prompts, tokens = (20, 64) if bundle.small else (400, 512)
    data = bundle.work / "calibration.jsonl"
    data.write_text("".join(json.dumps({"ids": [draw.randrange(3, 1900) for _ in range(tokens)]}) + "\n" for _ in range(prompts)))
    dry = [*flags(bundle, bundle.device, model.producer, model.consumer, data, bundle.work / "planned"), "--dry-run",
           "--bytes-per-token=2048" if not bundle.small else "--bytes-per-token=64", "--compute=bf16"]
    printed = run(dry, clock.left())
    report.add("calibrate_minutes", planned_minutes(printed), "min", MINUTES_BOUND if bundle.on_card else None, text_of(dry),
               tokens=prompts * tokens, plan=printed.splitlines()[-12:])
