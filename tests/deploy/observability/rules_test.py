"""Rules, alerts and dashboard: promtool accepts them, and they name only metrics and labels that the servers have."""

import json
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Iterator, Set

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "aludel.json"
# What PromQL itself brings along, and Prometheus writes about every scrape.
PROMETHEUS_OWN = {"up"}


def exported() -> Set[str]:
    """Names of series that classes of server/ register."""
    source = "".join(file.read_text() for file in (ROOT / "server").rglob("*.cc"))
    names = set()
    for kind, name in re.findall(r'\b(Counter|Gauge|Histogram)\(\s*"(\w+)"', source):
        names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "Histogram" else {name}
    return names


def recorded() -> Set[str]:
    return set(re.findall(r"record: (\S+)", (PROMETHEUS / "rules.yml").read_text()))


def series_of(expression: str) -> Set[str]:
    """Names of series in a PromQL expression: identifiers that are neither called nor labels."""
    expression = re.sub(r'"[^"]*"', '""', expression)
    expression = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", expression)
    expression = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\b *(\([^)]*\))?", "", expression)
    names = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?![a-zA-Z0-9_:]*\s*\()", expression)
    functions = {"sum", "max", "min", "avg", "rate", "histogram_quantile", "and", "or", "unless", "le"}
    return {name for name in names if name not in functions}


def queries(panels) -> Iterator[str]:
    for panel in panels:
        for target in panel.get("targets", []):
            yield target["expr"]
        yield from queries(panel.get("panels", []))


class RulesTest(unittest.TestCase):
    def promtool(self, *arguments: str) -> None:
        if shutil.which("promtool") is None:
            print("\nskipped: promtool on the rules: promtool is not installed (Debian: prometheus)", flush=True)
            self.skipTest("promtool is not installed")
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_accepts_configuration_rules_and_alerts(self) -> None:
        self.promtool("check", "config", "deploy/prometheus/prometheus.yml")

    def test_alerts_fire_when_they_should_and_only_then(self) -> None:
        self.promtool("test", "rules", "tests/deploy/observability/alerts_test.yml")

    def test_every_alert_fires_in_a_test(self) -> None:
        fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n",
                               (ROOT / "tests/deploy/observability/alerts_test.yml").read_text()))
        self.assertEqual(fired, set(re.findall(r"- alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text())))

    def test_rules_and_alerts_name_only_series_that_exist(self) -> None:
        known = exported() | recorded() | PROMETHEUS_OWN
        for file in ("rules.yml", "alerts.yml"):
            text = (PROMETHEUS / file).read_text()
            expressions = re.findall(r"expr: (?:>-\n((?: {10,}.*\n)+)|(.*)\n)", text)
            self.assertEqual(len(expressions), text.count("expr:"))
            for folded, plain in expressions:
                self.assertLessEqual(series_of(folded or plain), known, folded or plain)

    def test_dashboard_names_only_series_that_exist(self) -> None:
        dashboard = json.loads(DASHBOARD.read_text())
        known = exported() | recorded() | PROMETHEUS_OWN
        expressions = list(queries(dashboard["panels"]))
        self.assertGreater(len(expressions), 20)
        for expression in expressions:
            names = series_of(expression)
            self.assertTrue(names, expression)
            self.assertLessEqual(names, known, expression)
        ids = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_dashboard_shows_every_family_that_the_servers_export(self) -> None:
        """On a panel, or in what a rule records for one."""
        rules = dict(re.findall(r"- record: (\S+)\n +expr: ((?:.+\n)(?: {10,}.+\n)*)", (PROMETHEUS / "rules.yml").read_text()))
        self.assertEqual(set(rules), recorded())
        waiting = list(queries(json.loads(DASHBOARD.read_text())["panels"]))
        shown: Set[str] = set()
        while waiting:
            found = series_of(waiting.pop()) - shown
            shown |= found
            waiting += [rules[name] for name in found if name in rules]
        histograms = {name[: -len("_bucket")] for name in exported() if name.endswith("_bucket")}
        hidden = {name for name in exported() - shown if not name.endswith(("_bucket", "_sum", "_count"))}
        hidden |= {name for name in histograms if not {name + "_bucket", name + "_sum", name + "_count"} & shown}
        self.assertEqual(hidden, set())

    def test_dashboard_panels_do_not_overlap(self) -> None:
        taken = set()
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells


if __name__ == "__main__":
    unittest.main()
