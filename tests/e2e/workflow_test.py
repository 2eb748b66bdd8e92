"""A workflow of agents over gateway, decode and prefill server, started by stack.py: an agent's prompt that has left the
prefill server's memory for its disk is in memory before the agent's turn where a request says that its turn comes, and is
read from disk in its turn where none does. Then hints that are refused."""

import http.client
import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import Dict, Optional, Tuple
from urllib.parse import urlsplit

WAIT_S = 20
MOST_OTHERS = 200
PASSAGE = " ".join(f"The {n}th keeper of the lighthouse wrote the number {n * 37} into the log." for n in range(1, 12))
FOLDER = Path(os.environ["STACK_FOLDER"])


class Prefill:
    """What the prefill server tells of itself."""

    def __init__(self) -> None:
        found = re.search(r'^admin_listen: *"([^"]+)"', (FOLDER / "prefill.textproto").read_text(), re.MULTILINE)
        assert found is not None
        self.url = f"http://{found.group(1)}/metrics"

    def value(self, name: str, **labels: str) -> float:
        """Zero for what is not told."""
        text = "{" + "".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
        with urllib.request.urlopen(self.url, timeout=10) as reply:
            found = re.search(rf"^{name}{text} (\S+)$", reply.read().decode(), re.MULTILINE)
        return float(found.group(1)) if found else 0

    def hit_tokens(self) -> Dict[str, float]:
        return {tier: self.value("aludel_store_hit_tokens_total", tier=tier) for tier in ("memory", "disk")}

    def wait(self, name: str, least: float, **labels: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while (value := self.value(name, **labels)) < least:
            assert time.monotonic() < deadline, f"{name} {labels}: {value}, want {least}"
            time.sleep(0.02)


def ask(text: str, workflow: Optional[Dict[str, object]] = None, expected: int = 200) -> Tuple[str, str]:
    """Plan and answer, or the refusal. Nothing that the decode server has kept is used."""
    aludel: Dict[str, object] = {"format": "scd", "max_staleness_ms": 3600000}
    if workflow is not None:
        aludel["workflow"] = workflow
    body = {"model": "chat", "max_tokens": 2, "temperature": 0, "aludel": aludel,
            "messages": [{"role": "user", "content": text}]}
    connection = http.client.HTTPConnection(urlsplit(os.environ["GATEWAY_URL"]).netloc, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    reply = json.loads(response.read())
    assert response.status == expected, reply
    if expected != 200:
        return "", reply["error"]["message"]
    plan = response.headers["x-aludel-plan"]
    assert plan == "remote", plan
    return plan, reply["choices"][0]["message"]["content"]


def push_out(prefill: Prefill, name: str) -> None:
    """Other prompts, until whatever was in memory before them is gone, to disk."""
    entries = prefill.value("aludel_store_entries", tier="memory")
    before = prefill.value("aludel_store_evictions_total", tier="memory")
    for n in range(MOST_OTHERS):
        if prefill.value("aludel_store_evictions_total", tier="memory") >= before + entries:
            break
        ask(f"{name} {n}: {PASSAGE}")
    else:
        raise AssertionError(f"{MOST_OTHERS} prompts fill no memory")
    written = prefill.value("aludel_store_written_bytes_total")
    assert written > 0, "nothing is on disk"


def check(prefill: Prefill, name: str, hinted: bool) -> str:
    """The writer's answer in its turn."""
    own = f"{name}. {PASSAGE} Which number did the 7th keeper write?"
    _, first = ask(own, {"id": name, "agent": "writer"})
    push_out(prefill, name)
    loaded = prefill.value("aludel_store_workflow_chunks_total", result="loaded")
    ask(f"{name}: the plan. {PASSAGE}", {"id": name, "agent": "planner", "next": ["critic", "writer"] if hinted else ["critic"]})
    if hinted:
        prefill.wait("aludel_store_workflow_chunks_total", loaded + 1, result="loaded")
    before = prefill.hit_tokens()
    _, answer = ask(own, {"id": name, "agent": "writer"})
    after = prefill.hit_tokens()
    from_memory, from_disk = after["memory"] - before["memory"], after["disk"] - before["disk"]
    what = f"{name}: {from_memory} tokens from memory, {from_disk} from disk"
    print(what, flush=True)
    assert (from_memory > 100 and from_disk == 0) if hinted else (from_memory == 0 and from_disk > 100), what
    if not hinted:
        assert prefill.value("aludel_store_workflow_chunks_total", result="loaded") == loaded, what
    assert answer == first, f"{name}: a hint has changed an answer"
    return answer


def check_refusals() -> None:
    for workflow, field in (({"agent": "a"}, "id"), ({"id": "w" * 65, "agent": "a"}, "id"), ({"id": "w", "agent": ""}, "agent"),
                            ({"id": "w", "agent": "a", "next": ["b"] * 17}, "next"),
                            ({"id": "w", "agent": "a", "next": {"b": 1}}, "next"),
                            ({"id": "w", "agent": "a", "pin": True}, "pin")):
        _, message = ask("Hello", workflow, expected=400)
        assert f"aludel.workflow.{field}" in message, (workflow, message)


def main() -> int:
    prefill = Prefill()
    run = time.time_ns()  # the store may be on disk since an earlier one
    check(prefill, f"{run} without a hint", hinted=False)
    check(prefill, f"{run} with a hint", hinted=True)
    check_refusals()
    return 0


if __name__ == "__main__":
    sys.exit(main())
