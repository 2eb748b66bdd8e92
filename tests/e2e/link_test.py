"""A prefill server across a real link that is cut or capped: it runs in a network namespace of its own, at the other
end of a veth pair, and the decode server and the gateway in another one. The link is cut in the midst of a handoff,
so that nothing more comes and nothing says so: the first token comes at most local prefill and a fifth of the
handoff's prediction after the cut; requests that come while it is cut, and after it is mended, are answered alike,
and nothing of the cut handoff stays with either server. Over a slow link what is handed over is right, trying it
costs a bounded time, and a client that leaves costs the others nothing.

    link_test.py --bin build/release/bin

Exit code 77: network namespaces, veth or tc are not to be had here.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional

from chaos_fleet import Server
from stack import free_ports

NEAR, FAR = "10.211.77.1", "10.211.77.2"
INSIDE = "ALUDEL_LINK_TEST_INSIDE"
SKIPPED = 77
PROMPT_TOKENS = 400
MAX_TOKENS = 6
# The raw cache of a prompt, 1.6 MB, takes about four seconds.
SLOW_BYTES_PER_S = 400_000
# A busy machine may take so long for what has to be computed.
SLACK_S = 5.0
HANDOFF_TIMEOUT_MS = 50000  # longer than all waits here: what ends a cut handoff is local prefill beside it
LATE_SHARE = 0.2  # HedgeConfig's default
EXACT = {"fidelity": "exact"}


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Link:
    """A veth pair from this network namespace to one of its own, which lives as long as this does."""

    def __init__(self, near: str = NEAR, far: str = FAR, device: str = "near") -> None:
        self.near, self.far, self.device = near, far, device
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 86400"],
                                       stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        self.inside = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--"]
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", device, "type", "veth", "peer", "name", "far", "netns", str(self.holder.pid))
        command("ip", "address", "add", f"{near}/30", "dev", device)
        command("ip", "link", "set", device, "up")
        for words in (["address", "add", f"{far}/30", "dev", "far"], ["link", "set", "far", "up"],
                      ["link", "set", "lo", "up"]):
            command(*self.inside, "ip", *words)

    def cap(self, bytes_per_second: int) -> None:
        """Of what leaves the prefill server."""
        command(*self.inside, "tc", "qdisc", "replace", "dev", "far", "root", "tbf",
                "rate", f"{8 * bytes_per_second}bit", "burst", "16kb", "latency", "1s")

    def cut(self) -> None:
        """At the far end: the near one keeps its route, and sends into nothing."""
        command(*self.inside, "ip", "link", "set", "far", "down")

    def received(self) -> int:
        """Bytes that have come over it, with all headers."""
        found = re.search(rf"^ *{self.device}: *(\d+)", Path("/proc/net/dev").read_text(), re.MULTILINE)
        return int(found[1])

    def mend(self) -> None:
        command(*self.inside, "ip", "link", "set", "far", "up")

    def end(self) -> None:
        self.holder.kill()
        self.holder.wait()


class FarServer(Server):
    """A server in the link's other namespace, whose admin port is asked from there."""

    def __init__(self, link: Link, *rest) -> None:
        super().__init__(*rest)
        self.link = link

    def launcher(self) -> List[str]:
        return self.link.inside

    def get(self, path: str) -> Optional[str]:
        script = ("import sys, urllib.request; sys.stdout.write("
                  f"urllib.request.urlopen('http://127.0.0.1:{self.admin}{path}', timeout=5).read().decode())")
        done = subprocess.run([*self.link.inside, sys.executable, "-c", script], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None


class Fleet:
    """A prefill server at the link's far end, a decode server and a gateway at the near one."""

    def __init__(self, link: Link, binaries: Path, folder: Path, planner: str) -> None:
        folder.mkdir()
        self.link = link
        prefill, prefill_admin, decode, decode_admin, data, self.port = free_ports(6)
        self.prefill = FarServer(link, "prefill", binaries / "aludel-prefill", f"""
listen: "{FAR}:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 kv_blocks: 256 }} codec {{ formats: "raw" }} run_timeout_ms: 15000
""", folder, prefill_admin)
        self.decode = Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "demo"
engine {{ directory: "deploy/demo/base" threads: 1 kv_blocks: 512 prefix_cache: false }} codec {{ formats: "raw" }}
transport {{ listen: "{NEAR}:{data}" }} prefill_targets: "{FAR}:{prefill}"
handoff_timeout_ms: {HANDOFF_TIMEOUT_MS} probe_interval_ms: 200 probe_max_interval_ms: 400 probe_timeout_ms: 3000
{planner}
""", folder, decode_admin)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}" probe_interval_ms: 200 probe_timeout_ms: 5000
models {{ name: "demo" directory: "deploy/demo/base" decode_targets: "127.0.0.1:{decode}" }}
""", folder, self.port)

    def servers(self) -> List[Server]:
        return [self.prefill, self.decode, self.gateway]

    def start(self) -> None:
        for server in self.servers():
            server.start()
        for server in self.servers():
            server.wait_ready()
        self.wait_prefill("ready")

    def stop(self) -> None:
        for server in self.servers():
            server.end()

    def metric(self, pattern: str) -> float:
        """Of the decode server; the sum over all samples."""
        found = re.findall(rf"^{pattern} (\S+)$", self.decode.get("/metrics") or "", re.MULTILINE)
        return sum(float(value) for value in found)

    def wait_prefill(self, state: str, limit: float = 30) -> None:
        wait(lambda: self.metric(rf'aludel_prefill_target_state\{{state="{state}"[^}}]*\}}') == 1, limit,
             f"the prefill server to be {state}")

    def wait_idle(self) -> None:
        for server in (self.decode, self.prefill):
            wait(lambda server=server: not server.leftovers(), 30, lambda server=server: f"idle: {server.leftovers()}")

    def begin(self, number: int, wishes: Dict) -> http.client.HTTPConnection:
        """Asks, and waits for nothing."""
        # No two begin alike.
        prompt = [100 + number] + [10 + (i * 37) % 2000 for i in range(1, PROMPT_TOKENS)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
                "stream": True, "aludel": wishes}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def ask(self, number: int, wishes: Optional[Dict] = None) -> Dict:
        """A streamed answer: its text, "first", when its first token came, and what the servers say of it."""
        connection = self.begin(number, wishes or {})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read().decode()}")
        text, first, report = "", 0.0, {}
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event))
            if event.get("choices") and not first:
                first = time.monotonic()
            text += "".join(choice["text"] for choice in event.get("choices", []))
            report = event.get("aludel", report)
        connection.close()
        return {"text": text, "first": first, **report}


def wait(condition, limit: float, what) -> None:
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"waited {limit} s for {what() if callable(what) else what}")
        time.sleep(0.01)


def check(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(what)


def cut_in_mid_transfer(fleet: Fleet) -> None:
    fleet.link.cap(SLOW_BYTES_PER_S)
    local = [fleet.ask(number, EXACT) for number in range(3)]
    taught = fleet.ask(10)
    check(taught["plan"] == "remote", f"over a link that works: {taught}")
    frames = r'aludel_handoff_frames_total\{direction="received",format="raw"\}'
    before = fleet.metric(frames)
    answer: Dict = {}

    def ask() -> None:
        answer.update(fleet.ask(0))

    thread = threading.Thread(target=ask)
    thread.start()
    wait(lambda: fleet.metric(frames) > before, 30, "the first frame")
    fleet.link.cut()
    cut = time.monotonic()
    thread.join()
    check(bool(answer), "no answer")
    computed = max(one["ttft"] for one in local)
    after, allowed = answer["first"] - cut, computed + LATE_SHARE * answer["predicted_ttft"]
    print(f"cut: the handoff was predicted to take {answer['predicted_ttft']:.2f} s, local prefill took "
          f"{computed:.2f} s; the first token came {after:.2f} s after the cut, and {allowed:.2f} s are allowed")
    check(answer["plan"] == "fallback" and answer["text"] == local[0]["text"],
          f"after the cut: {answer}, want {local[0]}")
    check(answer["predicted_ttft"] > 2, f"the link was not slow: {answer}")
    check(after <= allowed + SLACK_S, "late")
    # The next ones are hedged, until the link is known to be dead; then they are local.
    begin = time.monotonic()
    second = fleet.ask(1)
    print(f"cut: the next request had its first token after {second['first'] - begin:.2f} s ({second['plan']})")
    check(second["text"] == local[1]["text"], f"while it is cut: {second}, want {local[1]}")
    fleet.wait_prefill("down")
    begin = time.monotonic()
    third = fleet.ask(2)
    check(third["plan"] == "local" and third["text"] == local[2]["text"], f"while it is down: {third}, want {local[2]}")
    check(third["first"] - begin < computed + SLACK_S, f"the dead link costs {third['first'] - begin:.2f} s")
    fleet.link.mend()
    fleet.wait_prefill("ready", 60)
    fleet.wait_idle()
    mended = fleet.ask(0)
    check(mended["plan"] in ("remote", "fallback") and mended["text"] == local[0]["text"],
          f"after it is mended: {mended}")
    wait(lambda: fleet.ask(11)["plan"] == "remote", 30, "a handoff over the mended link")
    print(f"mended: handoffs again; fallbacks by reason {fallbacks(fleet)}")
    fleet.wait_idle()


def fallbacks(fleet: Fleet) -> Dict[str, float]:
    counts = re.findall(r'^aludel_fallbacks_total\{reason="(\w+)"\} (\S+)$', fleet.decode.get("/metrics"), re.MULTILINE)
    return {reason: float(count) for reason, count in counts if count != "0"}


def capped(fleet: Fleet) -> None:
    """At 200 kbit/s frames take a minute, and gRPC waits behind them."""
    fleet.link.cap(25_000)
    local = [fleet.ask(number, EXACT) for number in range(3)]
    tried = fleet.ask(0)
    computed = max(one["ttft"] for one in local)
    print(f"200 kbit/s: local prefill took {computed:.2f} s, the request that tried the handoff {tried['ttft']:.2f} s "
          f"({tried['plan']})")
    check(tried["text"] == local[0]["text"], f"{tried}, want {local[0]}")
    check(tried["ttft"] < 2 * computed + SLACK_S, "trying a slow link took too long")
    for number in (1, 2):
        after = fleet.ask(number)
        check(after["plan"] == "local" and after["text"] == local[number]["text"], f"{after}, want {local[number]}")
    fleet.wait_idle()


def left(fleet: Fleet) -> None:
    """Two handoffs share a connection, whose frames take seconds. The client of one leaves, and the other does not notice."""
    fleet.link.cap(SLOW_BYTES_PER_S)
    raw = {"format": "raw"}  # a named format is not hedged
    local = fleet.ask(1, EXACT)
    check(fleet.ask(10, raw)["plan"] == "remote", "over a link that works")
    frames = r'aludel_handoff_frames_total\{direction="received",format="raw"\}'
    before, answer = fleet.metric(frames), {}
    leaving = fleet.begin(0, raw)
    staying = threading.Thread(target=lambda: answer.update(fleet.ask(1, raw)))
    staying.start()
    wait(lambda: fleet.metric(frames) > before, 30, "the first frame")
    leaving.close()
    staying.join()
    check(answer.get("plan") == "remote" and answer["text"] == local["text"], f"{answer}, want {local}")
    check(fleet.metric(r"aludel_replans_total\{[^}]*\}") == 0, "the handoff that stayed was begun anew")
    check("takes no frames" not in fleet.prefill.log_tail(), "the connection was closed")
    print(f"left: the handoff that stayed took {answer['ttft']:.2f} s")
    fleet.wait_idle()


def run(binaries: Path) -> int:
    link = Link()
    with tempfile.TemporaryDirectory(prefix="aludel-link-") as folder:
        scenarios = [(cut_in_mid_transfer, ""), (capped, 'planner { by_prediction: true }'), (left, "")]
        try:
            for number, (scenario, planner) in enumerate(scenarios):
                fleet = Fleet(link, binaries, Path(folder) / str(number), planner)
                try:
                    fleet.start()
                    scenario(fleet)
                except RuntimeError as error:
                    tails = "\n".join(f"--- {server.name}\n{server.log_tail()}" for server in fleet.servers())
                    print(f"{scenario.__name__}: {error}\n{tails}", file=sys.stderr)
                    return 1
                finally:
                    fleet.stop()
        finally:
            link.end()
    return 0


def can_make_links() -> Optional[str]:
    """Why not; None where it works."""
    for tool in ("ip", "tc", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        link = Link()
        try:
            link.cap(SLOW_BYTES_PER_S)
        finally:
            command("ip", "link", "delete", "near")
            link.end()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{error} {getattr(error, 'stderr', '')}".strip()
    return None


def inside(name: str) -> Optional[int]:
    """Goes on in a network namespace of its own, so that what is made here goes with it; the exit status where links are not
    to be had."""
    if INSIDE not in os.environ:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        if shutil.which("unshare") is None or subprocess.run(["unshare", *user, "--net", "true"],
                                                             capture_output=True).returncode != 0:
            print(f"skipped: {name}: no network namespaces here")
            return SKIPPED
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", *user, "--net", sys.executable, *sys.argv])
    if (reason := can_make_links()) is not None:
        print(f"skipped: {name}: {reason}")
        return SKIPPED
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    options = parser.parse_args()
    if (status := inside("link_test")) is not None:
        return status
    return run(options.bin.resolve())


if __name__ == "__main__":
    sys.exit(main())
