"""A server that is stopped (SIGSTOP) is no longer ready for its peers within seven seconds, they go round it and stay ready, and
when it goes on it is used again by itself.

    outage_test.py --bin build/release/bin
"""

import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, List

from chaos_fleet import Fleet, ask, load_prompts, request_body

DOWN_WITHIN_S = 7.0  # three probes of a second without an answer, and some slack
BACK_WITHIN_S = 10.0


def wait(what: str, condition: Callable[[], bool], limit: float) -> float:
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit:
            raise AssertionError(f"{what}: not within {limit} s")
        time.sleep(0.05)
    return time.monotonic() - start


def ready_targets(text: str, metric: str) -> int:
    return len(re.findall(rf"^{metric} 1$", text, re.MULTILINE))


def outage(fleet: Fleet, stopped: str, watcher: str, metric: str, prompts: List[str]) -> None:
    """`watcher` exports with `metric` which of two servers like `stopped` it finds ready. Nobody knows `prompts` yet."""

    def found() -> int:
        return ready_targets(fleet.servers[watcher].get("/metrics") or "", metric)

    assert found() == 2
    fleet.servers[stopped].process.send_signal(signal.SIGSTOP)
    took = wait(f"{watcher} takes {stopped} down", lambda: found() == 1, DOWN_WITHIN_S)
    for prompt in prompts:
        start = time.monotonic()
        status, answer = ask(fleet.gateway_port, request_body(prompt, "aludel-p2"), 20)
        assert status == 200 and answer["aludel"]["plan"] == "remote", (status, answer)
        assert time.monotonic() - start < 5
    assert fleet.servers["gateway"].get("/ready") is not None, "the gateway is not ready though it can serve"
    fleet.servers[stopped].process.send_signal(signal.SIGCONT)
    back = wait(f"{watcher} uses {stopped} again", lambda: found() == 2, BACK_WITHIN_S)
    print(f"{stopped}: down after {took:.1f} s, back after {back:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-outage-") as folder:
        fleet = Fleet(options.bin.resolve(), Path(folder), "", seed=1)
        try:
            fleet.start()
            outage(fleet, "prefill-1", "decode-1", r'aludel_prefill_target_state\{[^}]*state="ready"[^}]*\}',
                   load_prompts(8)[:4])
            outage(fleet, "decode-1", "gateway", r"aludel_decode_target_ready\{[^}]*\}", load_prompts(8)[4:])
            left = fleet.wait_idle()
            assert not left, left
        finally:
            codes = fleet.stop()
    assert not any(codes.values()), codes
    return 0


if __name__ == "__main__":
    sys.exit(main())
