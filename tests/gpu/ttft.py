"""Time to first token over a hand-over, against the consumer's own prefill (the oracle), with both servers on one card.

One prefill server for each link rate; the rate is a cap in our transport. Where the path between two processes of this machine
reaches the rate uncapped, the cap is the link; above that the row is tagged `emulated`: its payloads arrive no sooner than the
link would bring them, and no sooner than this machine's path does, so that what the row says of a format is too slow if
anything. Random weights have no quality: the figures are of speed only.
"""

import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from machine import ROOT, Bundle, Clock, Failed, run, say, text_of
from model import NATIVE_LAYERS, Model
from report import Report

sys.path.insert(0, str(ROOT / "tests/e2e"))
from stack import free_ports  # noqa: E402

LENGTHS = [1024, 4096, 16384]
LINKS = [100, 200, 25, 10]  # Gb/s, the most wanted first
TRANSPORTS = "posix,cma,tcp"
READY_S = 90.0
GIB = 1 << 30


def label(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


class Servers:
    """Prefill, decode and gateway over one link; stopped by `stop`."""

    def __init__(self, bundle: Bundle, model: Model, gbps: float, folder: Path) -> None:
        names = ["prefill", "prefill_admin", "decode", "decode_admin", "gateway"]
        self.ports = dict(zip(names, free_ports(len(names))))
        small = bundle.small
        engine = (f'device: "{bundle.device}" threads: {bundle.threads} max_sequences: 2 ' +
                  ("kv_blocks: 256" if small else f"kv_bytes: {5 * GIB} max_context: 17408 chunk_tokens: 2048"))
        arena = "" if small else f"{{}}_arena_bytes: {2 * GIB} handover_window_bytes: {GIB}"
        formats = " ".join(f'formats: "{name}"' for name in model.formats())
        codec = f'codec {{ artifact: "{model.codec}" {formats} }}'
        at = {name: f'"127.0.0.1:{port}"' for name, port in self.ports.items()}
        texts = {
            "aludel-prefill": f'''listen: {at["prefill"]} admin_listen: {at["prefill_admin"]} {codec} {arena.format("send")}
                engine {{ directory: "{model.producer}" {engine} }} frame_cache_bytes: {(1 if small else 8) * GIB}
                transport {{ ucx_transports: "{TRANSPORTS}" emulated_bytes_per_second: {gbps * 1e9 / 8} }}''',
            "aludel-decode": f'''listen: {at["decode"]} admin_listen: {at["decode_admin"]} {codec} {arena.format("receive")}
                engine {{ directory: "{model.consumer}" prefix_cache: false {engine} }} served_model_name: "m"
                transport {{ ucx_transports: "{TRANSPORTS}" }} prefill_targets: {at["prefill"]}
                handover_timeout_ms: 30000''',
            "aludel-gateway": f'''listen: {at["gateway"]} prefill_targets: {at["prefill"]}
                models {{ name: "m" directory: "{model.consumer}" decode_targets: {at["decode"]} }}'''}
        self.folder = folder
        self.processes: Dict[str, subprocess.Popen] = {}
        for name, text in texts.items():
            (folder / f"{name}.textproto").write_text(text)
            with open(folder / f"{name}.log", "wb") as log:
                self.processes[name] = subprocess.Popen([bundle.program(name), "--config", str(folder / f"{name}.textproto")],
                                                        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def check(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                tail = " ".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-3:])
                raise Failed(f"{name} ended with code {process.returncode}: {tail}")

    def get(self, port: str, path: str) -> Tuple[int, str]:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=2)
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except OSError:
            return 0, ""

    def wait_until_ready(self, limit: float) -> None:
        deadline = time.monotonic() + min(READY_S, limit)
        ready = re.compile(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$', re.MULTILINE)
        while time.monotonic() < deadline:
            self.check()
            if ready.search(self.get("decode_admin", "/metrics")[1]) and self.get("gateway", "/ready?model=m")[0] == 200:
                return
            time.sleep(0.1)
        raise Failed("the servers were not ready in time")

    def first_token(self, ids: List[int], how: Dict[str, str]) -> Tuple[float, Dict[str, Any]]:
        """Seconds that the client waited for one token, and what the servers say of it."""
        body = json.dumps({"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "aludel": how})
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["gateway"], timeout=60)
        connection.connect()
        begin = time.monotonic()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        seconds = time.monotonic() - begin
        if reply.status != 200:
            self.check()
            raise Failed(f"status {reply.status}: {text[:200]}")
        return seconds, json.loads(text)["aludel"]

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Study:
    def __init__(self, bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
        self.bundle, self.report, self.model, self.clock = bundle, report, model, clock
        self.lengths = [256] if bundle.small else LENGTHS
        self.links = [1] if bundle.small else LINKS
        self.repeats = 1 if bundle.small else 3
        self.draw = random.Random(1)
        self.path_gbps: Optional[float] = None
        self.oracle: Dict[int, Tuple[float, Dict[str, Any]]] = {}
        self.command = f"tests/gpu/run.sh --device {bundle.device} --only ttft"

    def name(self, state: str, tokens: int, link: float, form: str) -> str:
        return f"ttft_speedup_{state}_{label(tokens)}_{link}g" + ("" if form == self.model.formats()[0] else f"_{form}")

    def bound(self, state: str, tokens: int, link: float, form: str) -> Optional[str]:
        if form != self.model.formats()[0] or state != "warm" or link != 100:
            return None
        return {1024: ">= 2.65", 16384: ">= 10"}.get(tokens)

    def measure_path(self) -> None:
        """What two processes of this machine reach without a cap."""
        command = [self.bundle.program("aludel-bench"), "link", "--size", str(8 << 20), "--transports", TRANSPORTS,
                   "--devices", "", "--milliseconds", "300" if self.bundle.small else "1500"]
        found = re.search(r"([0-9.]+) MB/s", run(command, min(20.0, self.clock.left())))
        if found is None:
            raise Failed(f"{text_of(command)}: names no rate")
        self.path_gbps = float(found.group(1)) * 8 / 1e3
        self.report.add("link_path", self.path_gbps, "Gb/s", None, text_of(command))

    def prompt(self, tokens: int) -> List[int]:
        """One that nobody has seen."""
        return [self.draw.randrange(300, 2000) for _ in range(tokens)]

    def median(self, samples: List[Tuple[float, Dict[str, Any]]]) -> Tuple[float, Dict[str, Any]]:
        middle = statistics.median_low([seconds for seconds, _ in samples])
        return next(sample for sample in samples if sample[0] == middle)

    def measure_oracle(self, servers: Servers, tokens: int) -> None:
        exact = {"fidelity": "exact"}
        servers.first_token(self.prompt(tokens), exact)
        samples = [servers.first_token(self.prompt(tokens), exact) for _ in range(self.repeats)]
        self.oracle[tokens] = self.median(samples)
        self.report.add(f"ttft_oracle_{label(tokens)}", self.oracle[tokens][0], "s", None, self.command,
                        stages=self.oracle[tokens][1]["stages"])

    def measure_format(self, servers: Servers, tokens: int, link: float, form: str) -> None:
        samples: Dict[str, List[Tuple[float, Dict[str, Any]]]] = {"cold": [], "warm": []}
        servers.first_token(self.prompt(tokens), {"format": form})
        for _ in range(self.repeats):
            prompt = self.prompt(tokens)
            for state in ("cold", "warm"):
                seconds, about = servers.first_token(prompt, {"format": form})
                if about["plan"] != "remote" or about["fallback_reason"] is not None:
                    raise Failed(f"{form} fell back: plan {about['plan']}, {about['fallback_reason']}")
                samples[state].append((seconds, about))
        for state, found in samples.items():
            seconds, about = self.median(found)
            handed_over = about["handed_over_tokens"]
            native = NATIVE_LAYERS if form.startswith("aludel-p") else 0
            self.report.add(
                self.name(state, tokens, link, form), self.oracle[tokens][0] / seconds, "ratio",
                self.bound(state, tokens, link, form), self.command, p=native,
                bytes_per_token=round(about["payload_bytes"] / max(1, handed_over), 1), native_tokens=tokens - handed_over,
                link_measured_gbps=round(self.path_gbps or 0, 2), emulated=link > (self.path_gbps or 0), seconds=round(seconds, 5),
                oracle_seconds=round(self.oracle[tokens][0], 5), stages=about["stages"],
                operating_point=self.model.operating_point if native else form, note="a rehearsal" if self.bundle.small else "speed only: random weights")

    def over(self, link: float) -> None:
        with tempfile.TemporaryDirectory(prefix="aludel-ttft-") as folder:
            servers = Servers(self.bundle, self.model, link, Path(folder))
            try:
                servers.wait_until_ready(self.clock.left())
                for tokens in self.lengths:
                    try:
                        if tokens not in self.oracle:
                            self.measure_oracle(servers, tokens)
                    except Failed as error:
                        self.lack(str(error), tokens=tokens)
                        servers.check()
                        continue
                    for form in self.model.formats():
                        if self.clock.left() < 5:
                            raise Failed("no time was left")
                        try:
                            self.measure_format(servers, tokens, link, form)
                        except Failed as error:
                            self.lack(str(error), tokens=tokens, link=link, form=form)
                            servers.check()
                    say(f"  {link} Gb/s, {label(tokens)}: " + ", ".join(
                        f"{form} {self.report.value(self.name('warm', tokens, link, form)) or 0:.2f}"
                        for form in self.model.formats()) + " (warm)")
            finally:
                servers.stop()

    def lack(self, reason: str, tokens: Optional[int] = None, link: Optional[float] = None,
             form: Optional[str] = None) -> None:
        """Rows that are not there yet, of what is named or of everything, are null."""
        for one_link in [link] if link else self.links:
            for one_length in [tokens] if tokens else self.lengths:
                for one_form in [form] if form else self.model.formats():
                    for state in ("warm", "cold"):
                        self.report.missing(self.name(state, one_length, one_link, one_form), "ratio",
                                            self.bound(state, one_length, one_link, one_form), self.command, reason)


def ttft(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    study = Study(bundle, report, model, clock)
    try:
        model.wait(clock)
        study.measure_path()
    except Failed as error:
        study.lack(str(error))
        raise
    for link in study.links:
        try:
            study.over(link)
        except Failed as error:
            study.lack(str(error), link=link)
            say(f"  {link} Gb/s: {error}")
