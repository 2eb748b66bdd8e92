"""aludel-bench serve against the running stack, under stack.py --replace "max_num_seqs: 16=max_num_seqs: 128", so that
a busy machine's servers refuse nothing: a Poisson run and a trace, the figures that they write, the page with its plot, a
run that is stopped, and flags that are wrong."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]


class LoadGenerator:
    def __init__(self, binaries: Path, folder: Path) -> None:
        self.folder = folder
        self.command = [str(binaries / "aludel-bench"), "serve", "--url", os.environ["GATEWAY_URL"], "--model", "chat"]

    def start(self, *flags: str) -> subprocess.Popen:
        return subprocess.Popen([*self.command, *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def figures(self, *flags: str) -> Dict:
        """Of a run that ends well, its page checked on the way."""
        page = self.folder / "load.html"
        process = self.start(*flags, "--json", str(self.folder / "load.json"), "--html", str(page))
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "requests" in err, err  # progress, a plain line where there is no terminal
        figures = json.loads((self.folder / "load.json").read_text())
        # No time passes between tokens where every answer arrived in one piece.
        parts = ["ttft_ms", "e2e_ms"] + ["inter_token_ms"] * (figures["inter_token_ms"]["count"] > 0)
        for part in parts:
            spread = figures[part]
            assert 0 < spread["p50"] <= spread["p90"] <= spread["p95"] <= spread["p99"] <= spread["max"], (part, spread)
            assert f"{spread['p50']:.2f}" in out, out
        text = page.read_text()
        assert text.count("<path d=\"M") == len(parts), "a curve for each"
        assert not re.search(r"(src|href)=|@import|https?://(?!127)", text), "one file, nothing from outside"
        return figures


def check_poisson(load: LoadGenerator) -> None:
    flags = ["--qa", "deploy/demo/questions.jsonl", "--rate", "10", "--requests", "40", "--max-tokens", "8", "--seed", "3",
             "--ignore-eos"]
    figures = load.figures(*flags, "--slo-ttft-ms", "60000", "--slo-e2e-ms", "60000")
    assert figures["requests"] == figures["completed"] == 40, figures
    assert figures["inter_token_ms"]["count"] > 0, figures
    assert figures["good"] == 40 and figures["goodput_per_second"] > 0, figures
    # The sum of 39 exponential gaps of mean .1 s is above 1.9 s but for chances below 1e-3, and the seed is given.
    assert 1.9 < figures["seconds"] < 30, figures
    strict = load.figures(*flags, "--slo-ttft-ms", "0.001")
    assert strict["completed"] == 40 and strict["good"] == 0, strict


def check_trace(load: LoadGenerator) -> None:
    """More entries than a Poisson run has by default, out of order, over 8.8 s at twice the speed."""
    entries: List[Dict] = [{"timestamp": 5000 + 150 * i, "input_length": 6, "output_length": 1 + i % 3} for i in range(119)]
    entries.insert(0, {"timestamp": 22800, "prompt": "The river of Kingley is the", "max_tokens": 2})
    trace = load.folder / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    figures = load.figures("--trace", str(trace), "--speed", "2", "--fidelity", "exact")
    assert figures["requests"] == figures["completed"] == 120, figures
    assert 8.8 < figures["seconds"] < 30, figures
    first = load.figures("--trace", str(trace), "--requests", "10")
    assert first["requests"] == 10 and 1.35 < first["seconds"] < 15, "the ten that come first in time"
    trace.write_text("".join(json.dumps({"timestamp": i, "input_length": 100, "output_length": 20}) + "\n" for i in range(4)))
    exact = load.figures("--trace", str(trace), "--tokenizer", "deploy/demo/chat", "--ignore-eos")["mean_tokens"]
    assert exact["answer"] == exact["answer_asked_for"] == 20, exact
    assert 100 <= exact["prompt"] <= 110, exact  # and the template's


def check_closed_loop(load: LoadGenerator) -> None:
    """As at once as can be, and one at a time."""
    for concurrency in (20, 1):
        figures = load.figures("--qa", "deploy/demo/questions.jsonl", "--concurrency", str(concurrency), "--requests", "20",
                               "--max-tokens", "8")
        assert figures["requests"] == figures["completed"] == 20, figures
        one_by_one = 20 * figures["e2e_ms"]["mean"] / 1e3
        assert figures["seconds"] >= 0.95 * one_by_one if concurrency == 1 else figures["seconds"] < 0.5 * one_by_one, figures


def answered_well() -> float:
    """Requests, as the gateway counts them."""
    with urllib.request.urlopen(os.environ["GATEWAY_URL"] + "/metrics", timeout=5) as reply:
        text = reply.read().decode()
    return sum(float(value) for value in
               re.findall(r'^aludel_requests_total\{[^}]*outcome="ok"[^}]*\} (\S+)$', text, re.MULTILINE))


def check_stop(load: LoadGenerator) -> None:
    before = answered_well()
    process = load.start("--qa", "deploy/demo/questions.jsonl", "--rate", "5", "--requests", "2000", "--max-tokens", "4",
                         "--json", str(load.folder / "cut.json"))
    deadline = time.monotonic() + 60
    while answered_well() < before + 3:
        assert process.poll() is None and time.monotonic() < deadline, "three answers within a minute"
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0 and "stopped" in err, err
    assert json.loads((load.folder / "cut.json").read_text())["completed"] > 0


def check_log(answered: int) -> None:
    """The gateway's text log: one line a request, with ids and stages, there before the end of its answer."""
    log = (Path(os.environ["STACK_FOLDER"]) / "gateway.log").read_text()
    lines = [line for line in log.splitlines() if " request request_id=" in line]
    assert len(lines) >= answered, (len(lines), answered)
    assert len({re.search(r"request_id=(\S+)", line)[1] for line in lines}) == len(lines), "an id twice"
    for line in lines:
        for field in ("trace_id", "path", "status", "outcome", "model", "prompt_tokens", "completion_tokens", "plan", "ttft_ms",
                      "queue_ms", "prefill_ms", "encode_ms", "transfer_ms", "reconstruct_ms", "recompute_ms",
                      "first_decode_ms", "gateway_ms", "total_ms"):
            assert f" {field}=" in line, (field, line)


def check_errors(load: LoadGenerator) -> None:
    (load.folder / "bad.jsonl").write_text('{"timestamp": 1, "prompt": "a"}\n{"when": 2}\n')
    for flags, said in ((["--rate", "0"], "--rate"), (["--trace", "/nowhere"], "/nowhere"),
                        (["--trace", str(load.folder / "bad.jsonl")], "bad.jsonl:2"), (["--sped", "2"], "--sped")):
        process = load.start(*flags)
        _, err = process.communicate(timeout=30)
        assert process.returncode != 0 and said in err, (flags, err)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the binaries")
    binaries = parser.parse_args().bin
    with tempfile.TemporaryDirectory(prefix="aludel-load-") as folder:
        load = LoadGenerator(binaries, Path(folder))
        check_poisson(load)
        check_trace(load)
        check_closed_loop(load)
        check_log(40 + 40 + 120 + 10 + 4 + 40)
        check_stop(load)
        check_errors(load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
