"""Shadow checks on a decode server that checks every answer, under stack.py --add "decode-chat=shadow { share: 1 }":
each answer over a handed-over cache is computed again, also where that cache came with an earlier request, and the
producer's raw cache is found further from the consumer's local prefill than codes are. A check that is running gives way
to a request that comes, and none begins beside one."""

import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 8
WAIT_S = 60
LONG = 300  # tokens


def ask(url: str, entry: Dict, wish: Dict, tokens: int = 8) -> None:
    body = {"model": "chat", "max_tokens": tokens, "ignore_eos": tokens > 8, "temperature": 0, "aludel": wish,
            "messages": [{"role": "user", "content": entry["context"] + "\n" + entry["question"]}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        choice = json.load(reply)["choices"][0]
    assert choice["logprobs"] is None, "log-probabilities that nobody asked for"


def metric(text: str, name: str, **labels: str) -> float:
    """Sum over the series that carry these labels."""
    total = 0.0
    for found, value in re.findall(rf"^{name}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE):
        if all(f'{key}="{wanted}"' in found for key, wanted in labels.items()):
            total += float(value)
    return total


def read(admin: str) -> str:
    with urllib.request.urlopen(admin + "/metrics", timeout=5) as reply:
        return reply.read().decode()


def await_checks(admin: str, wanted: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        checked = metric(read(admin), "aludel_shadow_checks_total")
        if checked == wanted:
            return
        assert time.monotonic() < deadline, f"{checked} checks, want {wanted}"
        time.sleep(0.01)


def check_gives_way(url: str, admin: str, entries: List[Dict]) -> None:
    """A long answer is checked for as long as it took; a question that comes meanwhile ends that."""
    before = metric(read(admin), "aludel_shadow_checks_total", outcome="interrupted")
    deadline = time.monotonic() + WAIT_S
    for entry in entries:  # until a look at the metrics has caught a check while it ran
        ask(url, entry, {"fidelity": "fast", "format": "scd"}, LONG)
        while time.monotonic() < deadline:
            text = read(admin)
            if metric(text, "aludel_num_requests_running") > 0:
                break
        ask(url, entry, {"fidelity": "exact"}, LONG)  # longer than the time between two looks of the checker
        if metric(read(admin), "aludel_shadow_checks_total", outcome="interrupted") > before:
            print("a check gave way to a request")
            return
    raise AssertionError("no check was interrupted by a request")


def main() -> int:
    url = os.environ["GATEWAY_URL"]
    config = (Path(os.environ["STACK_FOLDER"]) / "decode-chat.textproto").read_text()
    admin = "http://" + re.search(r'admin_listen: *"([^"]+)"', config)[1]
    entries = [json.loads(line) for line in (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[:QUESTIONS]]
    asked = {"scd": 0, "raw": 0}
    for entry in entries:
        for wire_format in ("scd", "raw", "scd"):  # the last from the prefix cache
            ask(url, entry, {"fidelity": "fast", "format": wire_format})
            asked[wire_format] += 1
            await_checks(admin, sum(asked.values()))  # so that no request interrupts it
        ask(url, entry, {"fidelity": "exact"})  # no handoff: nothing to check
    text = read(admin)
    kl = {}
    for wire_format in ("scd", "raw"):
        whole = metric(text, "aludel_shadow_checks_total", format=wire_format, outcome="ok")
        assert whole == asked[wire_format], text
        tokens = metric(text, "aludel_shadow_tokens_total", format=wire_format)
        agreeing = metric(text, "aludel_shadow_tokens_total", format=wire_format, verdict="agree")
        assert tokens == metric(text, "aludel_shadow_kl_nats_count", format=wire_format) >= whole
        kl[wire_format] = metric(text, "aludel_shadow_kl_nats_sum", format=wire_format) / tokens
        print(f"{wire_format}: {whole:.0f} answers checked, {agreeing:.0f} of {tokens:.0f} tokens agree, "
              f"KL {kl[wire_format]:.3f} nats a token")
    assert 0 < kl["scd"] < kl["raw"], kl
    check_gives_way(url, admin, entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
