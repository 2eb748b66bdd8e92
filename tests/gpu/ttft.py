"""Time to first token over a handoff, against the consumer's local prefill (the oracle), with both servers on one card:
`aludel-bench ttft`, the most wanted link first.

Links are caps. Where the path between two processes of this machine reaches the rate uncapped, the cap is the link; above that
the row is tagged `emulated`: its payloads arrive no sooner than the link would bring them, and no sooner than this machine's
path does, so that what the row says of a format is too slow if anything. Random weights have no quality: the figures are of
speed only.
"""

import json
import re
from typing import Any, Dict, List, Optional

from card import SharedCard
from machine import Bundle, Clock, Failed, run, say, text_of
from model import RECOMPUTED_LAYERS, Model
from report import Report

LENGTHS = [1024, 4096, 16384]
LINKS = [100, 10, 25, 200]  # Gb/s, the most wanted first
TRANSPORTS = "posix,cma,tcp"
GIB = 1 << 30


def label(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def spread_of(*rows: Dict[str, Any]) -> Dict[str, float]:
    """By how much of the median the slowest and the quickest sample are apart, of all rows together, where there are several."""
    if any(row["samples"] < 2 for row in rows):
        return {}
    return {"spread": round(sum((row["seconds"]["most"] - row["seconds"]["least"]) / row["seconds"]["median"] for row in rows), 4)}


class Study:
    def __init__(self, bundle: Bundle, report: Report, model: Model) -> None:
        self.bundle, self.report, self.model = bundle, report, model
        self.lengths = [256] if bundle.small else LENGTHS
        self.links = [1, 4] if bundle.small else LINKS
        self.repeats = 1 if bundle.small else 3
        self.path_gbps: Optional[float] = None
        self.card_shared_by: Optional[str] = None
        self.command = f"tests/gpu/run.sh --device {bundle.device} --only ttft"

    def name(self, state: str, tokens: int, link: float, form: str) -> str:
        return f"ttft_speedup_{state}_{label(tokens)}_{link}g" + ("" if form == self.model.formats()[0] else f"_{form}")

    def names_over(self, link: float) -> List[str]:
        return [self.name(state, tokens, link, form) for tokens in self.lengths for form in self.model.formats()
                for state in ("warm", "cold")]

    def names(self) -> List[str]:
        return [name for link in self.links for name in self.names_over(link)]

    def wanted(self) -> List[int]:
        """Links that lack a row."""
        return [link for link in self.links if None in map(self.report.value, self.names_over(link))]

    def bound(self, state: str, tokens: int, link: float, form: str) -> Optional[str]:
        if form != self.model.formats()[0] or state != "warm" or link != 100:
            return None
        return {1024: ">= 2.65", 16384: ">= 10"}.get(tokens)

    def measure_path(self, clock: Clock) -> None:
        """What two processes of this machine reach without a cap, of two timings."""
        command = [self.bundle.program("aludel-bench"), "link", "--size", str(8 << 20), "--transports", TRANSPORTS,
                   "--devices", "", "--kinds", "ucx", "--no-bounds", "--milliseconds",
                   "150" if self.bundle.small else "750"]
        rates = []
        for _ in range(2):
            found = re.search(r"([0-9.]+) MB/s", run(command, min(20.0, clock.left())))
            if found is None:
                raise Failed(f"{text_of(command)}: names no rate")
            rates.append(float(found.group(1)) * 8 / 1e3)
        self.path_gbps = sum(rates) / 2
        self.report.add("link_path", self.path_gbps, "Gb/s", None, text_of(command),
                        spread=round(abs(rates[0] - rates[1]) / self.path_gbps, 4))

    def settings(self, arena: str) -> str:
        """Of a server on this device, beyond those that the command makes; `arena`: the name of its memory for frames."""
        transport = f'transport {{ kind: "ucx" trusted_network: true ucx_transports: "{TRANSPORTS}" }}'
        if self.bundle.small:
            return f'engine {{ device: "{self.bundle.device}" kv_blocks: 256 }} {transport}'
        return (f'engine {{ device: "{self.bundle.device}" kv_bytes: {5 * GIB} max_num_batched_tokens: 2048 }} {transport} '
                f"{arena}: {2 * GIB} handoff_window_bytes: {GIB}")

    def bench(self, links: List[int], clock: Clock) -> List[Dict[str, Any]]:
        """The rows of `aludel-bench ttft`, those that it had where it failed or took too long."""
        figures = self.bundle.work / "ttft.json"
        command = [self.bundle.program("aludel-bench"), "ttft", "--producer", str(self.model.producer),
                   "--consumer", str(self.model.consumer), "--codec", str(self.model.codec),
                   "--formats", ",".join(self.model.formats()), "--lengths", ",".join(map(str, self.lengths)),
                   "--links", ",".join(f"{link}G" for link in links), "--repeats", str(self.repeats),
                   "--threads", str(self.bundle.threads), "--minutes", f"{0.9 * clock.left() / 60:.2f}",
                   "--prefill", self.settings("send_arena_bytes"), "--decode", self.settings("receive_arena_bytes"),
                   "--json", str(figures)]
        try:
            say(run(command, clock.left()))
        except Failed as error:
            say(f"{error.output}\n{error}")
            if not figures.exists():
                raise
        return json.loads(figures.read_text())["rows"]

    def add(self, row: Dict[str, Any], oracle: Dict[str, Any]) -> None:
        link, tokens, form, state = row["link_bits_per_second"] / 1e9, row["tokens"], row["format"], row["state"]
        link = int(link) if link == int(link) else link
        name, bound = self.name(state, tokens, link, form), self.bound(state, tokens, link, form)
        if "speedup" not in row:
            self.report.missing(name, "ratio", bound, self.command, row.get("reason", oracle.get("reason", "")))
            return
        recomputed = RECOMPUTED_LAYERS if form.startswith("aludel-p") else 0
        self.report.add(
            name, row["speedup"], "ratio", bound, self.command, p=recomputed, bytes_per_token=row["bytes_per_token"],
            recomputed_tokens=row["recomputed_tokens"], link_measured_gbps=round(self.path_gbps or 0, 2),
            emulated=link > (self.path_gbps or 0), seconds=row["seconds"]["median"],
            oracle_seconds=oracle["seconds"]["median"], samples=row["samples"], stages=row["stages"],
            card_shared_by=self.card_shared_by,
            # Else its report came after the first token, and what it did is in `transfer`.
            producer_reported=row["stages"]["prefill"] > 0 or state == "warm",
            operating_point=self.model.operating_point if recomputed else form,
            note="a rehearsal" if self.bundle.small else "speed only: random weights", **spread_of(row, oracle))

    def add_all(self, rows: List[Dict[str, Any]]) -> None:
        oracles = {(row["link_bits_per_second"], row["tokens"]): row for row in rows if row["state"] == "local"}
        for (_, tokens), oracle in oracles.items():
            if "seconds" in oracle and self.report.value(f"ttft_oracle_{label(tokens)}") is None:
                self.report.add(f"ttft_oracle_{label(tokens)}", oracle["seconds"]["median"], "s", None, self.command,
                                stages=oracle["stages"], **spread_of(oracle))
        for row in rows:
            if row["state"] != "local":
                self.add(row, oracles[row["link_bits_per_second"], row["tokens"]])


def ttft(bundle: Bundle, report: Report, model: Model, clock: Clock) -> None:
    study = Study(bundle, report, model)
    model.wait(clock, codecs=True)
    study.measure_path(clock)
    with SharedCard(bundle) as shared:
        try:
            rows = study.bench(study.wanted(), clock)
        except Failed as error:
            if not shared.on:
                raise
            say(f"   again without MPS: {error}")
            shared.stop()
            rows = study.bench(study.wanted(), clock)
        study.card_shared_by = "MPS" if shared.on else "time slices" if bundle.on_card else None
        study.add_all(rows)
