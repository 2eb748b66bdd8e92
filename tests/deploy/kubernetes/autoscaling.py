"""What autoscalers would read: a Prometheus that scrapes the pods as the PodMonitors say, and the queries that
prometheus-adapter makes of deploy/prometheus/adapter.yml.
"""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

from cluster import Cluster
from pods import Object, matches

ROOT = Path(__file__).resolve().parents[3]
ADAPTER = ROOT / "deploy/prometheus/adapter.yml"
NAMESPACE = "aludel"
PORT = 9090
STARTS_S = 60


def rules() -> Dict[str, Object]:
    """The adapter's for metrics of pods, by the name that an autoscaler asks for."""
    import yaml
    return {one["name"]["as"]: one for one in yaml.safe_load(ADAPTER.read_text())["rules"]}


def external_rules() -> Dict[str, Object]:
    """Likewise for external metrics."""
    import yaml
    return {one["name"]["as"]: one for one in yaml.safe_load(ADAPTER.read_text())["externalRules"]}


def query_of(rule: Object, pods: List[str]) -> str:
    """The query for one metric of some pods, made as the adapter makes it."""
    series = rule["seriesQuery"].split("{")[0]
    (label,) = [name for name, one in rule["resources"]["overrides"].items() if one["resource"] == "pod"]
    named = "|".join(pods)
    for field, value in (("Series", series), ("LabelMatchers", f'namespace="{NAMESPACE}",{label}=~"{named}"'),
                         ("GroupBy", label)):
        rule = {**rule, "metricsQuery": rule["metricsQuery"].replace(f"<<.{field}>>", value)}
    assert "<<" not in rule["metricsQuery"], rule
    return rule["metricsQuery"]


def external_query_of(metric: Object) -> str:
    """The query for an external metric of the namespace, of an autoscaler's `metric`."""
    rule, selector = external_rules()[metric["name"]], metric["selector"]
    matchers = [f'namespace="{NAMESPACE}"', *(f'{name}="{value}"' for name, value in selector.get("matchLabels", {}).items())]
    for one in selector.get("matchExpressions", []):
        assert one["operator"] == "In", one
        matchers.append(f'{one["key"]}=~"{"|".join(one["values"])}"')
    query: str = rule["metricsQuery"]
    for field, value in (("Series", rule["seriesQuery"].split("{")[0]), ("LabelMatchers", ",".join(matchers))):
        query = query.replace(f"<<.{field}>>", value)
    assert "<<" not in query, rule
    return query


class Prometheus:
    """Scrapes every pod once a second."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        jobs = []
        for monitor in cluster.of("PodMonitor"):
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            chosen = [pod for pod in cluster.pods() if matches(monitor["spec"]["selector"], pod.labels)]
            jobs.append({"job_name": chosen[0].labels[monitor["spec"]["jobLabel"]], "metrics_path": endpoint["path"],
                         "scrape_interval": "1s", "scrape_timeout": "1s", "static_configs": [
                             {"targets": [f"{pod.ip}:{pod.ports[endpoint['port']]}"],
                              "labels": {"namespace": NAMESPACE, "pod": pod.name}} for pod in chosen]})
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))

    def __enter__(self) -> "Prometheus":
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml",
                 f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address=127.0.0.1:{PORT}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + STARTS_S
        while True:
            try:
                self.ask("up")
                return self
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__(None, None, None)
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.1)

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(self, query: str, at: Optional[float] = None) -> List[Dict[str, Any]]:
        """The samples of an instant query."""
        fields = {"query": query, **({} if at is None else {"time": f"{at:.3f}"})}
        url = f"http://127.0.0.1:{PORT}/api/v1/query?{urllib.parse.urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.loads(reply.read())["data"]["result"]

    def number(self, query: str, at: Optional[float] = None) -> float:
        """Of a query that has one sample or, as 0, none; what KEDA reads."""
        samples = self.ask(query, at)
        assert len(samples) <= 1, query
        return sum(float(sample["value"][1]) for sample in samples)
