#!/usr/bin/env python3
"""Writes deploy/kubernetes/components/monitoring/prometheus-rule.yaml from rules.yml and alerts.yml, word for word;
with --check only says whether it is what they make.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "kubernetes/components/monitoring/prometheus-rule.yaml"
HEAD = """# Made from deploy/prometheus/rules.yml and alerts.yml by make_prometheus_rule.py; change them and run it.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: aludel
spec:
  groups:
"""


def made() -> str:
    text = HEAD
    for name in ("rules.yml", "alerts.yml"):
        before, groups = (HERE / name).read_text().split("groups:\n")
        text += "".join(f"  {line}\n" if line else "\n" for line in (before + groups).rstrip("\n").split("\n"))
    return text


if __name__ == "__main__":
    if "--check" not in sys.argv:
        OUT.write_text(made())
    elif OUT.read_text() != made():
        sys.exit(f"{OUT.name} is not what rules.yml and alerts.yml make: run {Path(__file__).name}")
