"""Two API keys over the whole stack, started by stack.py: what one of them asked for is not to be found out with the
other, not by `cached_tokens`, not by the plan, not at the prefill server; with the same key it is a hit. The gateway's
keys are made here, in a gateway beside the stack's."""

import argparse
import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Dict, Optional, Tuple

from stack import ROOT, free_ports

WAIT_S = 20
PASSAGE = " ".join(f"The {n}th keeper of the lighthouse wrote the number {n * 37} into the log." for n in range(1, 20))


class Gateway:
    """A gateway with keys, in front of the stack's decode servers."""

    def __init__(self, binaries: Path, stack: Path) -> None:
        (self.port,) = free_ports(1)
        keys = stack / "tenants.keys"
        keys.write_text("".join(f"{name} {hashlib.sha256(f'sk-{name}'.encode()).hexdigest()}\n"
                                for name in ("alice", "bob")))
        text = (stack / "gateway.textproto").read_text()
        text = re.sub(r"^listen:.*$", f'listen: "127.0.0.1:{self.port}"', text, flags=re.MULTILINE)
        config = stack / "tenants.textproto"
        config.write_text(text + f'\naccess {{ keys_file: "{keys}" }}\n')
        self.process = subprocess.Popen([str(binaries / "aludel-gateway"), "--config", str(config)], cwd=ROOT)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready?model=chat", timeout=2):
                    return
            except OSError:
                assert time.monotonic() < deadline, "the gateway is not ready"
                time.sleep(0.05)

    def ask(self, key: str, fidelity: Dict[str, str], text: str, salt: Optional[str] = None,
            store: bool = True) -> Tuple[int, str, str]:
        """Cached tokens, plan and answer."""
        body = {"model": "chat", "max_tokens": 8, "temperature": 0, "aludel": fidelity,
                "messages": [{"role": "user", "content": text}]}
        if salt is not None:
            body["cache_salt"] = salt
        if not store:
            body["store"] = False
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer sk-{key}"})
        response = connection.getresponse()
        reply = json.loads(response.read())
        assert response.status == 200, reply
        return (reply["usage"]["prompt_tokens_details"]["cached_tokens"], response.headers["x-aludel-plan"],
                reply["choices"][0]["message"]["content"])


def check(gateway: Gateway, name: str, fidelity: Dict[str, str], fresh: str, known: str) -> None:
    """`fresh` and `known` are the plans of a prompt that is new to its tenant, and of one that is not."""
    text = f"{PASSAGE} ({name}) Which number did the 7th keeper write?"

    def expect(known_to_key: bool, key: str, asked: str, salt: Optional[str] = None) -> str:
        cached, plan, answer = gateway.ask(key, fidelity, asked, salt)
        what = f"{name}: {key}, salt {salt}: {cached} cached tokens, plan {plan}"
        assert plan == (known if known_to_key else fresh), what
        assert cached > 100 if known_to_key else cached == 0, what
        return answer

    answer = expect(False, "alice", text)
    assert expect(False, "bob", text) == answer
    known_answer = expect(True, "alice", text)
    assert expect(True, "bob", text) == known_answer
    # A finer salt is a tenant of its own, of each key.
    for key in ("alice", "bob"):
        expect(False, key, text, salt="user 1")
        expect(True, key, text, salt="user 1")


def check_not_stored(gateway: Gateway, name: str, fidelity: Dict[str, str], fresh: str) -> None:
    # Of another beginning than what was stored before.
    text = f"Not stored, {name}. {PASSAGE} Which number did the 9th keeper write?"
    for _ in range(3):
        cached, plan, _ = gateway.ask("alice", fidelity, text, store=False)
        assert (cached, plan) == (0, fresh), f"{name}: {cached} cached tokens, plan {plan}"
    cached, plan, _ = gateway.ask("alice", fidelity, text)
    assert (cached, plan) == (0, fresh), f"{name}: {cached} cached tokens, plan {plan} after requests that leave nothing"
    cached, _, _ = gateway.ask("alice", fidelity, text, store=False)
    assert cached > 100, f"{name}: {cached} cached tokens of what another request has left"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    gateway = Gateway(parser.parse_args().bin.resolve(), Path(os.environ["STACK_FOLDER"]))
    try:
        check(gateway, "exact", {"fidelity": "exact"}, "local", "local")
        check(gateway, "scd", {"format": "scd"}, "remote", "cached")
        check_not_stored(gateway, "exact", {"fidelity": "exact"}, "local")
        check_not_stored(gateway, "scd", {"format": "scd"}, "remote")
    finally:
        gateway.process.terminate()
        gateway.process.wait(15)
    return 0


if __name__ == "__main__":
    sys.exit(main())
