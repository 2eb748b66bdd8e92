"""POST /reset_prefix_cache over the whole stack, started by stack.py: a prompt that was cached, on the decode server or the
prefill server, is computed again after it, and cached again after that."""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any, Dict, Set, Tuple

URL = os.environ["GATEWAY_URL"]
PASSAGE = " ".join(f"The {n}th keeper of the lighthouse wrote the number {n * 37} into the log." for n in range(1, 20))


def post(path: str, body: Any) -> Dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def ask(**aludel: Any) -> Tuple[int, str, str]:
    """Cached tokens, plan and text."""
    reply = post("/v1/chat/completions", {"model": "chat", "max_tokens": 8, "temperature": 0, "aludel": aludel,
                                          "messages": [{"role": "user", "content": PASSAGE}]})
    return (reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["aludel"]["plan"],
            reply["choices"][0]["message"]["content"])


def reset() -> None:
    reply = post("/reset_prefix_cache", None)
    assert reply == {"status": "reset"}, reply


def check_local() -> None:
    _, _, text = ask(fidelity="exact")
    cached, _, same = ask(fidelity="exact")
    assert cached > 100 and same == text, cached
    reset()
    cached, _, same = ask(fidelity="exact")
    assert cached == 0 and same == text, cached
    cached, _, _ = ask(fidelity="exact")
    assert cached > 100, cached


def found_by_prefill() -> float:
    """Prompt tokens whose frames the prefill server had, over all prompts."""
    settings = (Path(os.environ["STACK_FOLDER"]) / "prefill.textproto").read_text()
    listen = re.search(r'^admin_listen: *"([^"]+)"', settings, re.MULTILINE)
    assert listen is not None, settings
    with urllib.request.urlopen(f"http://{listen.group(1)}/metrics", timeout=10) as reply:
        figure = re.search(r'^aludel_store_hit_tokens_total\{tier="memory"\} (\S+)', reply.read().decode(), re.MULTILINE)
    return float(figure.group(1)) if figure else 0.0


def check_handed_over() -> None:
    """max_staleness_ms keeps the decode server's own codes out, so that the prefill server's frames are what is warm."""
    def warm() -> float:
        before = found_by_prefill()
        _, plan, text = ask(format="raw", max_staleness_ms=10 ** 9)
        assert plan == "remote", plan
        texts.add(text)
        return found_by_prefill() - before

    texts: Set[str] = set()
    warm()
    assert warm() > 100
    reset()
    assert warm() == 0
    assert warm() > 100
    assert len(texts) == 1, texts
    # And on the decode server.
    ask(format="raw")
    _, plan, _ = ask(format="raw")
    assert plan == "cached", plan
    reset()
    _, plan, _ = ask(format="raw")
    assert plan == "remote", plan


def main() -> int:
    check_local()
    check_handed_over()
    print("what was cached is computed again after a reset, on the decode server and on the prefill server")
    return 0


if __name__ == "__main__":
    sys.exit(main())
