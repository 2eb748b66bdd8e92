"""Prefill servers at two other sites, each across a real link (a network namespace and a veth pair) of which the decode server
may take a part: under a load that wants more than both parts together, each link carries about what it may and no more, each
site's prefill server is used, every prompt is answered as local prefill answers it, and what does not fit is prefilled here.
With --encrypted the servers have certificates: frames travel under TLS 1.3 with AES-GCM, as packets show, and what the
encryption adds is within the limits too.

    site_test.py --bin build/release/bin [--seconds 20] [--encrypted]

Exit code 77: network namespaces, veth or tc are not to be had here, or openssl.
"""

import argparse
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Set

from link_test import SKIPPED, check, inside
from site_fleet import BURST_S, Pair, Site, SiteFleet, complete

# What a link carries, and of that the decode server's part.
CARRIES = 4_000_000
LIMITS = {"east": 400_000, "west": 200_000}
HEADERS = 1.05  # of Ethernet, IP, TCP and TLS, and of what is not frames
PROMPT_TOKENS = 60
HANDOFF_BYTES = 4200 * PROMPT_TOKENS  # a raw cache, about
MAX_TOKENS = 4
CLIENTS = 2
FRAME_BEGINS = b"ADLT\x01\x00\x03\x00"  # of a message with a frame (transport/PROTOCOL.md)
SERVER_HELLO = re.compile(rb"\x16\x03\x03..\x02...\x03\x03.{32}(?:\x00|\x20.{32})(..)", re.DOTALL)
AES_GCM = {b"\x13\x01": "TLS_AES_128_GCM_SHA256", b"\x13\x02": "TLS_AES_256_GCM_SHA384"}  # of TLS 1.3


class Eavesdropper:
    """Reads what goes through a TCP port of this network namespace, as long as it is a context."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.segments: List[bytes] = []
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        self.socket.settimeout(.1)
        self.stopping = False
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stopping:
            try:
                packet = self.socket.recv(1 << 17)
            except socket.timeout:
                continue
            if packet[12:14] != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
                continue
            tcp = packet[14 + 4 * (packet[14] & 15):]
            if self.port in (int.from_bytes(tcp[:2], "big"), int.from_bytes(tcp[2:4], "big")):
                self.segments.append(tcp[4 * (tcp[12] >> 4):])

    def __enter__(self) -> "Eavesdropper":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        self.thread.join()
        self.socket.close()

    def frames(self) -> int:
        """Beginnings of messages that can be read."""
        return sum(segment.count(FRAME_BEGINS) for segment in self.segments)

    def suites(self) -> Set[bytes]:
        """Cipher suites that servers have chosen."""
        return {match.group(1) for match in map(SERVER_HELLO.match, self.segments) if match}


def start_and_listen(fleet: SiteFleet, encrypted: bool) -> None:
    """Can what begins connections, and the first handoff, be read on the way?"""
    with Eavesdropper(fleet.data_port) as wire:
        fleet.start()
        answer = complete(fleet.port, [99] + [10 + (i * 37) % 2000 for i in range(1, PROMPT_TOKENS)], MAX_TOKENS)
        time.sleep(.3)
    check(answer["plan"] == "remote", f"want a handoff: {answer}")
    heard = sum(map(len, wire.segments))
    check(heard > .9 * HANDOFF_BYTES, f"heard {heard} bytes of a handoff")
    suites = wire.suites()
    if encrypted:
        check(wire.frames() == 0, f"{wire.frames()} frames could be read")
        check(bool(suites) and suites <= AES_GCM.keys(), f"cipher suites {suites}")
        print(f"of {heard} bytes no frame could be read: {', '.join(sorted(AES_GCM[suite] for suite in suites))}")
    else:
        check(wire.frames() > 0 and not suites, f"{wire.frames()} frames and {suites} in plain traffic")


def load(fleet: SiteFleet, seconds: float) -> Dict[str, int]:
    """Each client asks as fast as it is answered; how many answers each plan gave."""
    plans: Dict[str, int] = {}
    errors: List[str] = []
    lock = threading.Lock()
    until = time.monotonic() + seconds

    def client(number: int) -> None:
        count = 0
        while time.monotonic() < until:
            count += 1
            prompt = [100 + number, 10 + count % 2000] + [10 + (i * 37 + count) % 2000 for i in range(2, PROMPT_TOKENS)]
            try:
                answer = complete(fleet.port, prompt, MAX_TOKENS)
                if count % 8 == 0:
                    local = complete(fleet.port, prompt, MAX_TOKENS, "exact")
                    check(local["text"] == answer["text"], f"{answer}, want {local}")
            except (RuntimeError, OSError) as error:
                with lock:
                    errors.append(str(error))
                return
            with lock:
                plans[answer["plan"]] = plans.get(answer["plan"], 0) + 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not errors, f"requests failed: {errors[:3]}")
    return plans


def run(binaries: Path, seconds: float, encrypted: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="aludel-site-") as folder:
        sites = {name: Site(CARRIES, limit) for name, limit in LIMITS.items()}
        fleet = SiteFleet(binaries, Path(folder), sites, Pair(engine="kv_blocks: 512"),
                          "handoff_timeout_ms: 20000 hedge { max_running: 0 }", encrypted)
        try:
            start_and_listen(fleet, encrypted)
            before = fleet.received()
            plans = load(fleet, seconds)
            print(f"answers by plan: {plans}")
            check(plans.get("remote", 0) > 0 and plans.get("local", 0) > 0, "want some of both")
            refused = fleet.metric(r'aludel_plans_total\{[^}]*reason="site_limit"[^}]*\}')
            check(refused == plans["local"], f"local for another reason than the limits: {refused}")
            for site, came in fleet.received().items():
                used = came - before[site]
                # Each client's last handoff may have begun when little was left.
                share = used / (LIMITS[site] * (seconds + BURST_S) + CLIENTS * HANDOFF_BYTES)
                print(f"{site}: {used / 1e6:.1f} MB, {share:.3f} of what {seconds:.0f} s and a burst may take")
                check(share <= HEADERS, "more than the limit")
                check(share >= .8, "far less than the limit, and prompts were prefilled here")
                check(f'aludel_site_link_used_ratio{{site="{site}"}}' in fleet.metrics(), "no metric of it")
        except RuntimeError as error:
            print(f"{error}\n{fleet.tails()}", file=sys.stderr)
            return 1
        finally:
            fleet.stop()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--encrypted", action="store_true")
    options = parser.parse_args()
    if options.encrypted and shutil.which("openssl") is None:
        print("skipped: site_test: openssl is not installed")
        return SKIPPED
    if (status := inside("site_test")) is not None:
        return status
    return run(options.bin.resolve(), options.seconds, options.encrypted)


if __name__ == "__main__":
    sys.exit(main())
