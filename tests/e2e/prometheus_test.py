"""A real Prometheus scrapes the running stack, under stack.py: rules load, every target is up, the dashboard has data, and what
its TTFT histogram says agrees with this client's own clock (mean within 5 %, quantiles within one bucket), over handoffs and
the consumer's local prefills. On a busy machine the client itself may read late: it has three attempts.

Exit code 77: Prometheus is not installed.
"""

import bisect
import http.client
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Dict, List, Set

from stack import ROOT, free_ports

ATTEMPTS = 3
REQUESTS = 48
CLIENTS = 3
WAIT_S = 60
PASSAGES = 2  # questions' passages in one prompt: long enough that a client's own overhead is small beside it


def prompts(attempt: int) -> List[str]:
    """Each attempt's own, so that no cache knows them."""
    lines = (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[attempt * (REQUESTS + PASSAGES):]
    entries = [json.loads(line) for line in lines[: REQUESTS + PASSAGES]]
    return ["\n".join(entries[i + j]["context"] for j in range(PASSAGES)) + "\n" + entries[i]["question"]
            for i in range(REQUESTS)]


def ask(connection: http.client.HTTPConnection, prompt: str, fidelity: str) -> float:
    """Seconds from the request's last byte to the first text of its answer."""
    body = json.dumps({"model": "chat", "stream": True, "temperature": 0, "max_tokens": 8,
                       "messages": [{"role": "user", "content": prompt}], "aludel": {"fidelity": fidelity}})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    begin = time.monotonic()
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {reply.read().decode()}")
    first = None
    for line in reply:
        if first is None and re.search(rb'"delta":\{"content":"[^"]', line):
            first = time.monotonic() - begin
    if first is None:
        raise RuntimeError("an answer without text")
    return first


def measure(gateway: urllib.parse.SplitResult, attempt: int) -> List[float]:
    waiting = [(prompt, ("exact", "fast")[i % 2]) for i, prompt in enumerate(prompts(attempt))]
    lock, seconds, errors = threading.Lock(), [], []

    def work() -> None:
        connection = http.client.HTTPConnection(gateway.hostname, gateway.port, timeout=60)
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    prompt, fidelity = waiting.pop()
                ttft = ask(connection, prompt, fidelity)
                with lock:
                    seconds.append(ttft)
        except (OSError, RuntimeError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return seconds


class Prometheus:
    """Debian's Prometheus over the shipped configuration, its ports replaced by the stack's."""

    def __init__(self, folder: Path, stack: Path) -> None:
        moved: Dict[str, str] = {}
        for used in stack.glob("*.textproto"):
            ports = [re.findall(r"127\.0\.0\.1:(\d+)", file.read_text()) for file in (ROOT / "configs" / used.name, used)]
            moved.update(zip(*ports))
        text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
        text = re.sub(r"127\.0\.0\.1:(\d+)", lambda at: f"127.0.0.1:{moved[at.group(1)]}", text)
        text = re.sub(r"(scrape|evaluation)_interval: \d+s", r"\1_interval: 1s", text)
        (folder / "prometheus.yml").write_text(text)
        for rules in ("rules.yml", "alerts.yml"):
            shutil.copy(ROOT / "deploy/prometheus" / rules, folder)
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.url[len('http://'):]}"], stdout=self.log, stderr=self.log)

    def get(self, path: str, **parameters: str) -> Dict:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=5) as r:
            return json.load(r)["data"]

    def value(self, query: str) -> float:
        result = self.get("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else math.nan

    def await_value(self, query: str, wanted: float) -> None:
        deadline = time.monotonic() + WAIT_S
        found = None
        while time.monotonic() < deadline:
            try:
                found = self.value(query)
                if found == wanted:
                    return
            except OSError as error:
                found = error
            time.sleep(0.2)
        raise RuntimeError(f"{query}: found {found} after {WAIT_S} s, want {wanted}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(15)
        self.log.close()


def check_rules(prometheus: Prometheus) -> None:
    """Every rule and alert of the files is evaluated."""
    files = [(ROOT / "deploy/prometheus" / name).read_text() for name in ("rules.yml", "alerts.yml")]
    wanted = sum(len(re.findall(r"^ +- (?:record|alert): ", text, re.MULTILINE)) for text in files)
    deadline = time.monotonic() + WAIT_S
    while True:
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        broken = [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] == "err"]
        assert not broken, broken
        if len(rules) == wanted and all(rule["health"] == "ok" for rule in rules):
            return
        assert time.monotonic() < deadline, [(rule["name"], rule["health"]) for rule in rules]
        time.sleep(0.2)


# Nothing is checked in the shadow, no traces are exported, no request has to wait, no run stalls, no site has a limit, and no artifact is switched.
NOT_MEASURED = {"Tokens that local prefill would not have chosen", "KL to local prefill", "Checks", "Tokens checked", "Exported spans",
                "Wait for a place at a decode server", "Stalls", "Links to other sites", "Switches"}


def check_dashboard(prometheus: Prometheus) -> None:
    """Prometheus takes every query of the dashboard, and each panel has something to show, soon: a rate takes two looks."""
    deadline = time.monotonic() + WAIT_S
    while not (empty := empty_panels(prometheus)) <= NOT_MEASURED:
        assert time.monotonic() < deadline, empty
        time.sleep(0.5)


def empty_panels(prometheus: Prometheus) -> Set[str]:
    empty = set()
    for panel in json.loads((ROOT / "deploy/grafana/aludel.json").read_text())["panels"]:
        queries = [target["expr"].replace("$model", ".*").replace("$__rate_interval", "30s") for target in panel.get("targets", [])]
        assert not any("$" in query for query in queries), queries
        if queries and not any([prometheus.get("query", query=query)["result"] for query in queries]):
            empty.add(panel["title"])
    return empty


def check_ttft(prometheus: Prometheus, begin: float, seconds: List[float]) -> None:
    """What Prometheus saw since its time `begin`."""
    name = 'aludel_time_to_first_token_seconds{part}{{job="aludel-gateway", model="chat"}}'

    def since(part: str, by: str = "") -> str:
        series = name.format(part=part)
        return f"sum {by} ({series}) - sum {by} ({series} @ {begin:.3f})"

    prometheus.await_value(since("_count"), len(seconds))
    mean = prometheus.value(since("_sum")) / len(seconds)
    own = statistics.mean(seconds)
    print(f"mean TTFT of {len(seconds)} requests: client {own * 1e3:.2f} ms, Prometheus {mean * 1e3:.2f} ms, "
          f"{abs(mean - own) / own:.2%} apart")
    assert abs(mean - own) <= 0.05 * own
    buckets = prometheus.get("query", query=f"sum by (le) ({name.format(part='_bucket')})")["result"]
    bounds = sorted(float(one["metric"]["le"]) for one in buckets)
    for q in (0.5, 0.9):
        theirs = prometheus.value(f"histogram_quantile({q}, {since('_bucket', 'by (le)')})")
        ours = sorted(seconds)[math.ceil(q * len(seconds)) - 1]
        apart = abs(bisect.bisect_left(bounds, theirs) - bisect.bisect_left(bounds, ours))
        print(f"p{q * 100:.0f}: client {ours * 1e3:.2f} ms, Prometheus {theirs * 1e3:.2f} ms, {apart} buckets apart")
        assert apart <= 1
    stages = prometheus.value('sum(aludel_time_to_first_token_stage_seconds_sum{job="aludel-gateway", model="chat"})')
    total = prometheus.value(f"sum({name.format(part='_sum')})")
    assert abs(stages - total) <= 1e-3 * total, (stages, total)


def main() -> int:
    if shutil.which("prometheus") is None:
        print("skipped: prometheus_e2e: prometheus is not installed (Debian: prometheus)")
        return 77
    gateway = urllib.parse.urlsplit(os.environ["GATEWAY_URL"])
    with tempfile.TemporaryDirectory(prefix="aludel-prometheus-") as folder:
        prometheus = Prometheus(Path(folder), Path(os.environ["STACK_FOLDER"]))
        try:
            connection = http.client.HTTPConnection(gateway.hostname, gateway.port, timeout=60)
            ask(connection, prompts(ATTEMPTS)[0], "exact")  # wires everything up
            prometheus.await_value('sum(up{job=~"aludel-.*"})', 4)
            prometheus.await_value('sum(aludel_time_to_first_token_seconds_count{job="aludel-gateway"})', 1)
            for attempt in range(ATTEMPTS):
                begin = time.time()
                seconds = measure(gateway, attempt)
                try:
                    check_ttft(prometheus, begin, seconds)
                    break
                except AssertionError:
                    if attempt + 1 == ATTEMPTS:
                        raise
            handed_over = prometheus.value('sum(aludel_plans_total{plan="remote"})')
            assert handed_over > 0, handed_over
            check_rules(prometheus)
            check_dashboard(prometheus)
        except Exception:
            prometheus.log.flush()
            sys.stderr.write((Path(folder) / "log").read_text()[-3000:])
            raise
        finally:
            prometheus.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
