"""A file system that is really full, and one that is really read-only, below a prefill server's prefix store: every
prompt is answered, with the tokens that it had before; what the disk does not take is counted; and once there is
room, or it may be written again, the store has what it had and takes more.

    store_disk_test.py --bin build/release/bin

Exit code 77: a file system cannot be mounted here (it takes the right to, or user namespaces).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List

from chaos_fleet import Server, ask, check_fleet, load_prompts, request_body
from stack import free_ports

SKIPPED = 77
INSIDE = "ALUDEL_IN_MOUNT_NAMESPACE"
DISK_BYTES = 4 << 20


class Fleet:
    """A prefill server with little memory and a disk below `mounted`, and a decode server that keeps nothing itself."""

    def __init__(self, binaries: Path, folder: Path, mounted: Path) -> None:
        prefill, prefill_admin, decode, decode_admin, self.gateway_port, gateway_admin = free_ports(6)
        self.prefill = Server("prefill", binaries / "aludel-prefill", f"""
listen: "127.0.0.1:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 4 prefix_cache: false }}
codec {{ artifact: "deploy/demo/codec" }}
store {{ memory_bytes: 65536 disk {{ path: "{mounted}/store" bytes: 268435456 }} }} drain_timeout_ms: 3000
""", folder, prefill_admin)
        self.decode = Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}"
served_model_name: "chat" prefill_targets: "127.0.0.1:{prefill}"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 4 kv_blocks: 512 prefix_cache: false }}
codec {{ artifact: "deploy/demo/codec" }} planner {{ min_remote_tokens: 16 }} store {{ memory_bytes: 0 }}
probe_interval_ms: 200 probe_max_interval_ms: 400 handoff_timeout_ms: 20000 drain_timeout_ms: 3000
""", folder, decode_admin)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.gateway_port}" admin_listen: "127.0.0.1:{gateway_admin}"
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{decode}" }}
""", folder, gateway_admin)
        self.servers = [self.prefill, self.decode, self.gateway]

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_ready()
        self.wait_prefill("ready")

    def wait_prefill(self, state: str) -> None:
        pattern = r'^aludel_prefill_target_state\{[^}]*state="' + state + r'"[^}]*\} 1$'
        wait_for(f"the decode server finds its prefill server {state}",
                 lambda: re.search(pattern, self.decode.get("/metrics") or "", re.MULTILINE) is not None)

    def restart_prefill(self, between: Callable[[], None]) -> None:
        assert self.prefill.end() == 0
        self.wait_prefill("down")
        between()
        self.prefill.start()
        self.prefill.wait_ready()
        self.wait_prefill("ready")

    def metric(self, series: str) -> float:
        """Of the prefill server."""
        found = re.search("^" + re.escape(series) + r" (\S+)$", self.prefill.get("/metrics") or "", re.MULTILINE)
        assert found, series
        return float(found.group(1))

    def answers(self, prompts: List[str]) -> Dict[str, str]:
        """Each is 200, and from a handoff: whatever the disk does is a miss at worst."""
        texts = {}
        for prompt in prompts:
            status, answer = ask(self.gateway_port, request_body(prompt, "aludel-p2"), 60)
            assert status == 200 and answer["aludel"]["plan"] == "remote", (status, answer)
            texts[prompt] = answer["choices"][0]["text"]
        return texts

    def wait_written(self) -> None:
        wait_for("nothing waits to be written", lambda: self.metric("aludel_store_queued_bytes") == 0)


def wait_for(what: str, condition: Callable[[], bool], limit: float = 60) -> None:
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {limit} s")
        time.sleep(0.05)


def mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], stderr=subprocess.DEVNULL, check=False).returncode == 0


def fill(mounted: Path) -> None:
    """All that is free, to the last byte."""
    file = os.open(mounted / "others", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(file, b"x" * 4096)
    except OSError:
        pass
    finally:
        os.close(file)


ENTRIES = 'aludel_store_entries{tier="disk"}'
OPEN = 'aludel_store_open{tier="disk"}'
WRITE_ERRORS = 'aludel_store_failures_total{reason="write_error"}'
DAMAGED = 'aludel_store_failures_total{reason="damaged"}'
DISK_TOKENS = 'aludel_store_hit_tokens_total{tier="disk"}'


def check_full(fleet: Fleet, mounted: Path, prompts: List[str]) -> Dict[str, str]:
    """While the server runs."""
    third = len(prompts) // 3
    told = fleet.answers(prompts[:third])
    fleet.wait_written()
    entries = fleet.metric(ENTRIES)
    assert entries >= third and fleet.metric(WRITE_ERRORS) == 0
    fill(mounted)
    told.update(fleet.answers(prompts[third: 2 * third]))
    wait_for("a full disk is counted", lambda: fleet.metric(WRITE_ERRORS) > 0)
    again = fleet.answers(prompts[: 2 * third])
    assert again == told, "a full disk changed an answer"
    print(f"full: {entries:.0f} chunks on disk, {fleet.metric(WRITE_ERRORS):.0f} not written, "
          f"{fleet.metric(DISK_TOKENS):.0f} tokens read", flush=True)
    (mounted / "others").unlink()
    time.sleep(1.2)  # a disk that failed is not asked again for a second
    entries = fleet.metric(ENTRIES)
    told.update(fleet.answers(prompts[2 * third:]))
    wait_for("a disk with room is written again", lambda: fleet.metric(ENTRIES) > entries)
    fleet.wait_written()
    assert fleet.metric(DAMAGED) == 0
    return told


def check_read_only(fleet: Fleet, mounted: Path, told: Dict[str, str]) -> None:
    """From a start of the server on."""
    entries = fleet.metric(ENTRIES)

    def make_read_only() -> None:
        assert mount("-o", "remount,ro", str(mounted)), "no remount"

    def make_writable() -> None:
        assert mount("-o", "remount,rw", str(mounted)), "no remount"

    fleet.restart_prefill(make_read_only)
    assert fleet.metric(OPEN) == 0
    assert fleet.answers(list(told)) == told, "a read-only disk changed an answer"
    assert "keeps nothing on disk" in fleet.prefill.log_tail()
    fleet.restart_prefill(make_writable)
    assert fleet.metric(OPEN) == 1 and fleet.metric(ENTRIES) == entries, (fleet.metric(ENTRIES), entries)
    assert fleet.answers(list(told)) == told, "what was read back changed an answer"
    assert fleet.metric(DISK_TOKENS) > 0 and fleet.metric(DAMAGED) == 0
    print(f"read-only: done without; then {entries:.0f} chunks are there again, {fleet.metric(DISK_TOKENS):.0f} tokens "
          "read", flush=True)


def check(fleet: Fleet, mounted: Path) -> None:
    fleet.start()
    told = check_full(fleet, mounted, load_prompts(24))
    check_read_only(fleet, mounted, told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    options = parser.parse_args()
    if INSIDE not in os.environ:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        if shutil.which("unshare") is None or subprocess.run(["unshare", *user, "--mount", "true"], check=False,
                                                             stderr=subprocess.DEVNULL).returncode != 0:
            print("skipped: no mount namespace can be made here")
            return SKIPPED
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", *user, "--mount", sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory(prefix="aludel-store-disk-") as folder:
        mounted = Path(folder) / "small"
        mounted.mkdir()
        if not mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)):
            print("skipped: no file system can be mounted here")
            return SKIPPED
        try:
            fleet = Fleet(options.bin.resolve(), Path(folder), mounted)
            check_fleet(fleet.servers, lambda: check(fleet, mounted))
        finally:
            subprocess.run(["umount", "--lazy", str(mounted)], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
