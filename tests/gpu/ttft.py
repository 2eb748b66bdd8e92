"""Time to first token over a handoff, against the consumer's local prefill (the oracle), with both servers on one card.

The rate is a cap in our transport that a prefill server has from its start: the decode server stays, and each link has a
prefill server of its own, the most wanted link first. What an earlier run has measured is kept; where time is short there are
fewer repeats, before rows are left out. Where the path between two processes of this machine reaches the rate uncapped, the
cap is the link; above that the row is tagged `emulated`: its payloads arrive no sooner than the link would bring them, and no
sooner than this machine's path does, so that what the row says of a format is too slow if anything. Random weights have no
quality: the figures are of speed only.
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
from typing import Any, Callable, Dict, List, Optional, Tuple

from machine import ROOT, Bundle, Clock, Failed, run, say, text_of
from model import RECOMPUTED_LAYERS, Model
from report import Report

sys.path.insert(0, str(ROOT / "tests/e2e"))
from stack import free_ports  # noqa: E402

LENGTHS = [1024, 4096, 16384]
LINKS = [100, 10, 25, 200]  # Gb/s, the most wanted first
TRANSPORTS = "posix,cma,tcp"
READY_S = 90.0
# Before each attempt at a warm sample: an answer may be out before its frames are in the producer's cache.
WARM_WAITS_S = [0.05, 0.1, 0.2, 0.4, 0.8]
GIB = 1 << 30


def label(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


class Servers:
    """Decode and gateway, and prefill over one link after the other; stopped by `stop`."""

    def __init__(self, bundle: Bundle, model: Model, folder: Path) -> None:
        names = ["prefill", "prefill_admin", "decode", "decode_admin", "gateway"]
        self.ports = dict(zip(names, free_ports(len(names))))
        small = bundle.small
        engine = (f'device: "{bundle.device}" threads: {bundle.threads} max_num_seqs: 2 ' +
                  ("kv_blocks: 256" if small else f"kv_bytes: {5 * GIB} max_context: 17408 max_num_batched_tokens: 2048"))
        arena = "" if small else f"{{}}_arena_bytes: {2 * GIB} handoff_window_bytes: {GIB}"
        formats = " ".join(f'formats: "{name}"' for name in model.formats())
        codec = f'codec {{ artifact: "{model.codec}" {formats} }}'
        at = {name: f'"127.0.0.1:{port}"' for name, port in self.ports.items()}
        self.prefill = f'''listen: {at["prefill"]} admin_listen: {at["prefill_admin"]} {codec} {arena.format("send")}
            engine {{ directory: "{model.producer}" {engine} }} frame_cache_bytes: {(1 if small else 8) * GIB}'''
        texts = {
            "aludel-decode": f'''listen: {at["decode"]} admin_listen: {at["decode_admin"]} {codec} {arena.format("receive")}
                engine {{ directory: "{model.consumer}" prefix_cache: false {engine} }} served_model_name: "m"
                transport {{ kind: "ucx" trusted_network: true ucx_transports: "{TRANSPORTS}" }} prefill_targets: {at["prefill"]}
                handoff_timeout_ms: 30000 probe_interval_ms: 200 probe_max_interval_ms: 500''',
            "aludel-gateway": f'''listen: {at["gateway"]} prefill_targets: {at["prefill"]}
                models {{ name: "m" directory: "{model.consumer}" decode_targets: {at["decode"]} }}'''}
        self.bundle, self.folder = bundle, folder
        self.processes: Dict[str, subprocess.Popen] = {}
        for name, text in texts.items():
            self.start(name, text)

    def start(self, name: str, text: str) -> None:
        config = self.folder / f"{name}.textproto"
        config.write_text(text)
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen([self.bundle.program(name), "--config", str(config)], cwd=ROOT,
                                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def link(self, gbps: float, clock: Clock) -> None:
        """A prefill server behind a link of that rate, instead of the one before; returns when all are ready."""
        deadline = Clock(min(READY_S, clock.left()))
        if "aludel-prefill" in self.processes:
            end(self.processes.pop("aludel-prefill"))
            self.wait_until(lambda: not self.ready(), deadline)
        self.start("aludel-prefill", f'''{self.prefill}
            transport {{ kind: "ucx" trusted_network: true ucx_transports: "{TRANSPORTS}" testing {{ bytes_per_second: {gbps * 1e9 / 8} }} }}''')
        self.wait_until(self.ready, deadline)

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

    def ready(self) -> bool:
        found = re.search(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$',
                          self.get("decode_admin", "/metrics")[1], re.MULTILINE)
        return found is not None and self.get("gateway", "/ready?model=m")[0] == 200

    def frame_cache_hits(self) -> int:
        """Prompts that the prefill server had all frames of."""
        found = re.search(r'^aludel_frame_cache_lookups_total\{[^}]*result="hit"[^}]*\} (\d+)$',
                          self.get("prefill_admin", "/metrics")[1], re.MULTILINE)
        if found is None:
            raise Failed("aludel-prefill does not say how often its frame cache was hit")
        return int(found.group(1))

    def wait_until(self, condition: Callable[[], bool], deadline: Clock) -> None:
        while not condition():
            self.check()
            if deadline.left() < 0:
                raise Failed("the servers were not ready in time")
            time.sleep(0.1)

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
            end(process)


def end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


Sample = Tuple[float, Dict[str, Any]]  # seconds, and what the servers say of them


def median(samples: List[Sample]) -> Sample:
    middle = statistics.median_low([seconds for seconds, _ in samples])
    return next(sample for sample in samples if sample[0] == middle)


def allowance(left: float, rows: int, links: int, start: float) -> float:
    """Seconds for the next of so many rows, when so many links are still to be begun and each takes `start`."""
    return (left - links * start) / rows


class Study:
    def __init__(self, bundle: Bundle, report: Report, model: Model) -> None:
        self.bundle, self.report, self.model = bundle, report, model
        self.lengths = [256] if bundle.small else LENGTHS
        self.links = [1, 4] if bundle.small else LINKS
        self.repeats = 1 if bundle.small else 3
        self.draw = random.Random(1)
        self.path_gbps: Optional[float] = None
        self.oracle: Dict[int, Sample] = {}
        self.start_seconds = 0.0  # of a prefill server
        self.command = f"tests/gpu/run.sh --device {bundle.device} --only ttft"

    def name(self, state: str, tokens: int, link: float, form: str) -> str:
        return f"ttft_speedup_{state}_{label(tokens)}_{link}g" + ("" if form == self.model.formats()[0] else f"_{form}")

    def names(self) -> List[str]:
        return [self.name(state, tokens, link, form) for link in self.links for tokens in self.lengths
                for form in self.model.formats() for state in ("warm", "cold")]

    def wanted(self, link: float) -> List[Tuple[int, str]]:
        """Lengths and formats that lack a row."""
        return [(tokens, form) for tokens in self.lengths for form in self.model.formats()
                if None in [self.report.value(self.name(state, tokens, link, form)) for state in ("warm", "cold")]]

    def bound(self, state: str, tokens: int, link: float, form: str) -> Optional[str]:
        if form != self.model.formats()[0] or state != "warm" or link != 100:
            return None
        return {1024: ">= 2.65", 16384: ">= 10"}.get(tokens)

    def measure_path(self, clock: Clock) -> None:
        """What two processes of this machine reach without a cap."""
        command = [self.bundle.program("aludel-bench"), "link", "--size", str(8 << 20), "--transports", TRANSPORTS,
                   "--devices", "", "--kinds", "ucx", "--no-bounds", "--milliseconds",
                   "300" if self.bundle.small else "1500"]
        found = re.search(r"([0-9.]+) MB/s", run(command, min(20.0, clock.left())))
        if found is None:
            raise Failed(f"{text_of(command)}: names no rate")
        self.path_gbps = float(found.group(1)) * 8 / 1e3
        self.report.add("link_path", self.path_gbps, "Gb/s", None, text_of(command))

    def prompt(self, tokens: int) -> List[int]:
        """One that nobody has seen."""
        return [self.draw.randrange(300, 2000) for _ in range(tokens)]

    def measure_oracle(self, servers: Servers, tokens: int) -> None:
        exact = {"fidelity": "exact"}
        servers.first_token(self.prompt(tokens), exact)
        samples = [servers.first_token(self.prompt(tokens), exact) for _ in range(self.repeats)]
        self.oracle[tokens] = median(samples)
        self.report.add(f"ttft_oracle_{label(tokens)}", self.oracle[tokens][0], "s", None, self.command,
                        stages=self.oracle[tokens][1]["stages"])

    def handed_over(self, servers: Servers, prompt: List[int], form: str) -> Sample:
        seconds, about = servers.first_token(prompt, {"format": form})
        if about["plan"] != "remote" or about["fallback_reason"] is not None:
            raise Failed(f"{form} fell back: plan {about['plan']}, {about['fallback_reason']}")
        return seconds, about

    def warm(self, servers: Servers, prompt: List[int], form: str) -> Optional[Sample]:
        """All of it from the producer's frame cache, which counts that; None where that never comes."""
        for wait in WARM_WAITS_S:
            time.sleep(wait)
            hits = servers.frame_cache_hits()
            sample = self.handed_over(servers, prompt, form)
            if servers.frame_cache_hits() > hits:
                return sample
        return None

    def measure_format(self, servers: Servers, tokens: int, link: float, form: str, allowed: Clock) -> None:
        samples: Dict[str, List[Sample]] = {"cold": [], "warm": []}
        self.handed_over(servers, self.prompt(tokens), form)
        for _ in range(self.repeats):
            before = allowed.left()
            prompt = self.prompt(tokens)
            samples["cold"].append(self.handed_over(servers, prompt, form))
            warm = self.warm(servers, prompt, form)
            if warm is not None:
                samples["warm"].append(warm)
            if 2 * allowed.left() < before:  # another one would take longer than what is left
                break
        for state, found in samples.items():
            name, bound = self.name(state, tokens, link, form), self.bound(state, tokens, link, form)
            if not found:
                self.report.missing(name, "ratio", bound, self.command, "never warm: a prompt that came "
                                    f"{len(WARM_WAITS_S)} times again found not all its frames in the producer's cache")
                continue
            seconds, about = median(found)
            handed_over = about["handed_over_tokens"]
            recomputed = RECOMPUTED_LAYERS if form.startswith("aludel-p") else 0
            self.report.add(
                name, self.oracle[tokens][0] / seconds, "ratio", bound, self.command, p=recomputed,
                bytes_per_token=round(about["payload_bytes"] / max(1, handed_over), 1), recomputed_tokens=tokens - handed_over,
                link_measured_gbps=round(self.path_gbps or 0, 2), emulated=link > (self.path_gbps or 0),
                seconds=round(seconds, 5), oracle_seconds=round(self.oracle[tokens][0], 5), samples=len(found), stages=about["stages"],
                # Else its report came after the first token, and what it did is in `transfer`.
                producer_reported=about["stages"]["prefill"] > 0 or state == "warm",
                operating_point=self.model.operating_point if recomputed else form,
                note="a rehearsal" if self.bundle.small else "speed only: random weights")

    def over(self, servers: Servers, link: float, clock: Clock) -> None:
        before = clock.left()
        servers.link(link, clock)
        self.start_seconds = before - clock.left()
        for tokens, form in self.wanted(link):
            later = [one for one in self.links[self.links.index(link) + 1:] if self.wanted(one)]
            rows = len(self.wanted(link)) + sum(len(self.wanted(one)) for one in later)
            if clock.left() < 5:
                raise Failed("no time was left")
            try:
                if tokens not in self.oracle:
                    self.measure_oracle(servers, tokens)
                allowed = Clock(allowance(clock.left(), rows, len(later), self.start_seconds))
                self.measure_format(servers, tokens, link, form, allowed)
                warm = self.report.value(self.name("warm", tokens, link, form))
                say(f"  {link} Gb/s, {label(tokens)}, {form}: {warm or 0:.2f} (warm)")
            except Failed as error:
                self.lack(str(error), [link], tokens, form)
                servers.check()
            self.report.write()

    def lack(self, reason: str, links: List[float], tokens: Optional[int] = None, form: Optional[str] = None) -> None:
        """Rows that are not there yet, of what is named or of everything, are null."""
        for link in links:
            for one_length in [tokens] if tokens else self.lengths:
                for one_form in [form] if form else self.model.formats():
                    for state in ("warm", "cold"):
                        self.report.missing(self.name(state, one_length, link, one_form), "ratio",
                                            self.bound(state, one_length, link, one_form), self.command, reason)


def ttft(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    study = Study(bundle, report, model)
    try:
        model.wait(clock, codecs=True)
        study.measure_path(clock)
    except Failed as error:
        study.lack(str(error), study.links)
        raise
    with tempfile.TemporaryDirectory(prefix="aludel-ttft-") as folder:
        servers: Optional[Servers] = None
        try:
            for link in study.links:
                if not study.wanted(link):
                    continue
                try:
                    servers = servers or Servers(bundle, model, Path(folder))
                    study.over(servers, link, clock)
                except Failed as error:
                    study.lack(str(error), [link])
                    say(f"  {link} Gb/s: {error}")
                    if servers is not None:
                        servers.stop()
                    servers = None
        finally:
            if servers is not None:
                servers.stop()
