"""How long the demo stack takes to start, and what it costs while nobody asks: for each server, run one after the other
--repeat times, the seconds from its exec until it answers /ready (the gateway for both models, the decode servers with
their prefill server in use), and its share of one core over --idle seconds.

    startup.py --bin build/release/bin [--repeat 5] [--idle 10]
"""

import argparse
import http.client
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

from stack import SERVERS, Stack

LOOK_S = 0.01
LIMIT_S = 60
PREFILL_READY = re.compile(r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$', re.MULTILINE)


def get(port: int, path: str) -> str:
    """The body of a 200; else nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read().decode()
        return (body or "ok") if reply.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def is_ready(stack: Stack, name: str) -> bool:
    if name == "gateway":
        return all(get(stack.ports[name]["listen"], f"/ready?model={model}") for model in ("chat", "json"))
    admin = stack.ports[name]["admin_listen"]
    if not get(admin, "/ready"):
        return False
    return name == "prefill" or PREFILL_READY.search(get(admin, "/metrics")) is not None


def start(stack: Stack, begun: float) -> Dict[str, float]:
    """Seconds from `begun`, right before the first exec."""
    took: Dict[str, float] = {}
    while len(took) < len(SERVERS):
        for name in SERVERS:
            if name not in took and is_ready(stack, name):
                took[name] = time.monotonic() - begun
        stack.check()
        if time.monotonic() - begun > LIMIT_S:
            raise RuntimeError(f"ready after {LIMIT_S} s: {sorted(took)}\n{stack.log_tails()}")
        time.sleep(LOOK_S)
    return took


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(stack: Stack, seconds: float) -> Dict[str, float]:
    """Share of one core, by server."""
    time.sleep(1)  # what starting up left to do
    before = {name: cpu_seconds(process.pid) for name, process in stack.processes.items()}
    begun = time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - begun
    return {name: (cpu_seconds(process.pid) - before[name]) / spent for name, process in stack.processes.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--idle", type=float, default=10, help="seconds to watch idle servers, after the last start")
    options = parser.parse_args()
    starts: List[Dict[str, float]] = []
    shares: Dict[str, float] = {}
    for number in range(options.repeat):
        with tempfile.TemporaryDirectory(prefix="aludel-startup-") as folder:
            begun = time.monotonic()
            stack = Stack(options.bin.resolve(), Path(folder), {})
            try:
                starts.append(start(stack, begun))
                if number == options.repeat - 1:
                    shares = idle(stack, options.idle)
            finally:
                stack.stop()
    for name in SERVERS:
        took = [one[name] for one in starts]
        print(f"{name:12} ready after {statistics.median(took):.2f} s (median of {len(took)}, "
              f"{min(took):.2f} to {max(took):.2f}), idle {100 * shares[name]:.2f} % of a core")
    whole = [max(one.values()) for one in starts]
    print(f"{'all':12} ready after {statistics.median(whole):.2f} s ({min(whole):.2f} to {max(whole):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
