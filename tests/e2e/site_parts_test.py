"""Frames in two parts (NAME@N+) from a prefill server at another site: both parts count towards what may be taken of its link.
Of the bytes of a handoff the first part, which a prompt waits for, is a small share; if it alone were booked, several times the
limit would travel.

    site_parts_test.py --bin build/release/bin [--seconds 12]

Exit code 77: network namespaces, veth or tc are not to be had here.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List

from embedded_codec import make_embedded
from link_test import check, inside
from site_fleet import BURST_S, Pair, Site, SiteFleet, complete

FORMAT = "aludel-p0@1+"
CARRIES = 4_000_000  # bytes a second of the link, more than is asked for
LIMIT = 60_000       # of these may be taken
PROMPT_TOKENS = 200
HANDOFF_BYTES = 400 * PROMPT_TOKENS  # at most
MAX_TOKENS = 48                      # in their time the second parts come
CLIENTS = 2
HEADERS = 1.15  # beside frames: probes and calls, and Ethernet's, IP's and TCP's of many small frames


def load(fleet: SiteFleet, seconds: float) -> Dict[str, int]:
    """Each client asks as fast as it is answered; how many answers each plan gave."""
    answers: List[Dict] = []
    errors: List[str] = []
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        count = 0
        while time.monotonic() < until and not errors:
            count += 1
            prompt = [100 + number, 10 + count % 2000] + [10 + (i * 37 + count) % 2000 for i in range(2, PROMPT_TOKENS)]
            try:
                answers.append(complete(fleet.port, prompt, MAX_TOKENS, "fast"))
            except OSError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not errors, f"requests failed: {errors}")
    wrong = [answer for answer in answers if answer["plan"] == "remote" and answer["format"] != FORMAT]
    check(not wrong, f"want {FORMAT}: {wrong[:1]}")
    return {plan: sum(answer["plan"] == plan for answer in answers) for plan in ("remote", "local")}


def run(binaries: Path, seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="aludel-site-parts-") as folder:
        codec = make_embedded(binaries, Path(folder))
        pair = Pair("deploy/demo/base", "deploy/demo/chat", f"artifact: '{codec}' formats: '{FORMAT}'")
        fleet = SiteFleet(binaries, Path(folder) / "fleet", {"east": Site(CARRIES, LIMIT)}, pair,
                          "handoff_timeout_ms: 20000 hedge { max_running: 0 }")
        try:
            fleet.start()
            before = fleet.received()["east"]
            plans = load(fleet, seconds)
            used = fleet.received()["east"] - before
            whole = fleet.metric("aludel_tokens_before_upgrade_count")
            share = used / (LIMIT * (seconds + BURST_S) + CLIENTS * HANDOFF_BYTES)
            print(f"answers by plan: {plans}; both parts of {whole:.0f} came; {used / 1e3:.0f} kB, {share:.3f} of what "
                  f"{seconds:.0f} s and a burst may take")
            check(plans["remote"] > 0 and plans["local"] > 0, "want some of both plans")
            check(whole > plans["remote"] / 2, "second parts seldom came in an answer's time")
            check(share <= HEADERS, "more than the limit")
            check(share >= .5, "far less than the limit, and prompts were prefilled here")
        except RuntimeError as error:
            print(f"{error}\n{fleet.tails()}", file=sys.stderr)
            return 1
        finally:
            fleet.stop()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12)
    options = parser.parse_args()
    if (status := inside("site_parts_test")) is not None:
        return status
    return run(options.bin.resolve(), options.seconds)


if __name__ == "__main__":
    sys.exit(main())
