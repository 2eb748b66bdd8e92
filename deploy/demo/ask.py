"""Asks a running gateway questions from questions.jsonl, streaming through curl, and prints what came back.

    ask.py --url http://127.0.0.1:8080 --model chat --questions 6

Each question is asked twice: once over semantic codes of the prefill server's cache, once with the
decode server's local prefill ("fidelity": "exact", the oracle). With --warm the prefill server has seen every
passage before, as where many ask about one document; that first request is shown, too. Only Python's standard
library and curl.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional

QUESTIONS = Path(__file__).resolve().parent / "questions.jsonl"
PLANS = {"fast": "handed-over cache", "exact": "local prefill (oracle)"}
MAX_TOKENS = 32
TIMEOUT_S = 120


def words(text: str) -> List[str]:
    """Lower-cases, and splits where punctuation or space stands, as SQuAD does before comparing."""
    return re.sub(r"[^a-z0-9 ]", " ", text.lower()).split()


def f1(answer: str, truth: str) -> float:
    """Harmonic mean of precision and recall over words."""
    given, wanted = words(answer), words(truth)
    common = sum((Counter(given) & Counter(wanted)).values())
    if common == 0:
        return float(given == wanted)
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def unwrap(text: str, model: str) -> str:
    """The json model answers {"answer": "..."}."""
    if model != "json":
        return text
    try:
        return str(json.loads(text)["answer"])
    except (ValueError, KeyError, TypeError):
        return text


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.2f} MiB"


class Answer:
    """One streamed answer: its text, and the gateway's report about it."""

    def __init__(self) -> None:
        self.text = ""
        self.report: Optional[Dict] = None
        self.error = ""

    def take(self, line: str, show: bool) -> None:
        """One line of curl's output."""
        if not line.startswith("data: "):
            self.error += line  # an error body is plain JSON, no event
            return
        if line.strip() == "data: [DONE]":
            return
        event = json.loads(line[len("data: "):])
        if "error" in event:
            self.error = event["error"]["message"]
            return
        self.report = event.get("aludel", self.report)
        for choice in event["choices"]:
            text = choice["delta"].get("content") or ""
            self.text += text
            if show:
                print(text, end="", flush=True)


def ask(url: str, model: str, entry: Dict, fidelity: str, wire_format: str = "", show: bool = True) -> Answer:
    """Streams one answer through curl; "" leaves the wire format to the server."""
    body = {
        "model": model,
        "stream": True,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": entry["context"] + "\n" + entry["question"]}],
        "aludel": {"fidelity": fidelity},
    }
    if wire_format and fidelity == "fast":
        body["aludel"]["format"] = wire_format
    command = ["curl", "-sS", "-N", "--max-time", str(TIMEOUT_S), "-H", "Content-Type: application/json",
               "--data-binary", "@-", url + "/v1/chat/completions"]
    answer = Answer()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as curl:
        curl.stdin.write(json.dumps(body))
        curl.stdin.close()
        for line in curl.stdout:
            if line.strip():
                answer.take(line, show)
        errors = curl.stderr.read()
    if curl.returncode != 0:
        answer.error = errors.strip()
    elif answer.report is None and not answer.error:
        answer.error = "the stream ended without its last chunk"
    return answer


def describe(report: Dict) -> str:
    """How the cache came and what it weighed."""
    if report["plan"] == "remote":
        share = report["raw_bytes"] / max(1, report["payload_bytes"])
        return (f"{report['format']}: {size(report['payload_bytes'])} instead of {size(report['raw_bytes'])}"
                f" raw ({share:.1f}x less)")
    if report["plan"] == "fallback":
        return f"FELL BACK to local prefill: {report['fallback_reason']}"
    if report["plan"] == "cached":
        return f"{report['format']}: handed over for an earlier request"
    if report["plan"] == "stored":
        return f"{report['format']}: stored here since an earlier handoff"
    return "no handoff"


class Tally:
    """What one way of answering achieved over all questions."""

    def __init__(self) -> None:
        self.right = 0
        self.f1: List[float] = []
        self.ttft_ms: List[float] = []
        self.payload = 0
        self.raw = 0
        self.remote = 0

    def add(self, given: str, answers: List[str], report: Dict) -> bool:
        right = any(words(given) == words(truth) for truth in answers)
        self.right += right
        self.f1.append(max(f1(given, truth) for truth in answers))
        self.ttft_ms.append(report["ttft"] * 1e3)
        self.payload += report["payload_bytes"]
        self.raw += report["raw_bytes"]
        self.remote += report["plan"] == "remote"
        return right

    def line(self, label: str) -> str:
        text = (f"  {label:<21} {self.right:>3} of {len(self.f1)} right   F1 {statistics.mean(self.f1):.3f}"
                f"   TTFT median {statistics.median(self.ttft_ms):6.1f} ms")
        if self.remote:
            text += (f"   {self.remote} handoffs, {size(self.payload / self.remote)} each instead of"
                     f" {size(self.raw / self.remote)} ({self.raw / max(1, self.payload):.1f}x less)")
        return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="chat")
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--file", default=QUESTIONS, help="questions, JSON lines (default: the demo pair's)")
    parser.add_argument("--warm", action="store_true", help="ask over codes once before, so that the prefill"
                        " server has the prompt's codes")
    parser.add_argument("--format", default="", help="wire format to force, e.g. raw (default: the server's choice)")
    options = parser.parse_args()

    with open(options.file, encoding="utf-8") as file:
        known = [json.loads(line) for line in file]
    entries = known[: options.questions]
    # Opens connections and touches every weight, so that no question pays for it.
    for fidelity in PLANS:
        ask(options.url, options.model, known[-1], fidelity, options.format, show=False)

    tallies = {fidelity: Tally() for fidelity in PLANS}
    failed = 0
    cold_ms: List[float] = []
    for number, entry in enumerate(entries, 1):
        print(f"\n{options.model}, question {number} of {len(entries)}: {entry['question']}"
              f"   [expected: {' / '.join(entry['answers'])}]")
        if options.warm:
            first = ask(options.url, options.model, entry, "fast", options.format, show=False)
            if first.report is not None:
                cold_ms.append(first.report["ttft"] * 1e3)
                print(f"  first time             TTFT {cold_ms[-1]:6.1f} ms  the prefill server computes the prompt")
        for fidelity, label in PLANS.items():
            print(f"  {label:<21} ", end="", flush=True)
            answer = ask(options.url, options.model, entry, fidelity, options.format)
            if answer.error or answer.report is None:
                print(f"\n  FAILED: {answer.error}")
                failed += 1
                continue
            right = tallies[fidelity].add(unwrap(answer.text, options.model), entry["answers"], answer.report)
            print(" " * max(1, 30 - len(answer.text)), "right" if right else "WRONG",
                  f" TTFT {answer.report['ttft'] * 1e3:6.1f} ms  {describe(answer.report)}")

    print(f"\nSummary for {options.model}, {len(entries)} questions:")
    for fidelity, label in PLANS.items():
        if tallies[fidelity].f1:
            print(tallies[fidelity].line(label))
    if cold_ms and tallies["fast"].ttft_ms and tallies["exact"].ttft_ms:
        sooner = statistics.median(tallies["exact"].ttft_ms) / statistics.median(tallies["fast"].ttft_ms)
        print(f"  first tokens {sooner:.1f}x sooner than by local prefill; where the prefill server had to compute the"
              f" prompt first, median {statistics.median(cold_ms):.1f} ms")
    if failed:
        print(f"  {failed} of {2 * len(entries)} requests failed")
    local = len(tallies["fast"].f1) - tallies["fast"].remote
    if local:
        print(f"  {local} of {len(tallies['fast'].f1)} handoffs did not take place; the decode server's log says why")
    return 1 if failed or local else 0


if __name__ == "__main__":
    sys.exit(main())
