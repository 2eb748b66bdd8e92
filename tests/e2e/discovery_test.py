"""Servers that come and go under load: decode and prefill servers behind DNS names and in watched files, added, drained,
killed, stopped, started again, and replaced by another model. No request may fail, as none has sent a token when its server
goes, or another one goes on; and what has gone is forgotten, by metrics too. A prefill server that answers probes and fails
handoffs is left out, and used again when it has started anew.

    discovery_test.py --bin build/release/bin
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Callable, Dict, List, Optional

from chaos_fleet import Server, ask, load_prompts, request_body
from fake_dns import FakeDns
from stack import free_ports

DECODES, PREFILLS = ("127.0.0.2", "127.0.0.3", "127.0.0.4"), ("127.0.0.5", "127.0.0.6")
WORKERS = 4
LIMIT_S = 40


class Fleet:
    """Decode servers of one port on addresses of their own, and prefill servers likewise, in a DNS zone; a gateway that asks
    DNS and one that watches a file."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.binaries, self.folder, self.dns = binaries, folder, FakeDns()
        self.decode_port, self.prefill_port, *ports = free_ports(9)
        self.ports = iter(ports)
        self.servers: Dict[str, Server] = {}
        self.list = folder / "decodes.list"
        for address in PREFILLS:
            self.add(f"prefill-{address}", "aludel-prefill", f"""
listen: "{address}:{self.prefill_port}" engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 8 kv_blocks: 512 }}
codec {{ artifact: "deploy/demo/codec" }} transport {{ }} drain_timeout_ms: 3000
""")
        for address in DECODES:
            self.add(f"decode-{address}", "aludel-decode", self.decode_config(address, "chat"))
        for name, targets in (("gateway-dns", self.dns.target("decode.test", self.decode_port)),
                              ("gateway-file", f"file:{self.list}")):
            self.add(name, "aludel-gateway", f"""
models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "{targets}" }}
prefill_targets: "{self.dns.target("prefill.test", self.prefill_port)}" probe_interval_ms: 100
""", gateway=True)
        self.gateways = [self.servers["gateway-dns"], self.servers["gateway-file"]]

    def decode_config(self, address: str, served: str) -> str:
        return f"""
listen: "{address}:{self.decode_port}" served_model_name: "{served}"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 16 kv_blocks: 512 }}
codec {{ artifact: "deploy/demo/codec" }} transport {{ }} receive_arena_bytes: 33554432 drain_timeout_ms: 10000
prefill_targets: "{self.dns.target("prefill.test", self.prefill_port)}" probe_interval_ms: 100 probe_max_interval_ms: 400
planner {{ min_remote_tokens: 16 }}
"""

    def add(self, name: str, binary: str, config: str, gateway: bool = False) -> None:
        admin = next(self.ports)
        listen = f'{"listen" if gateway else "admin_listen"}: "127.0.0.1:{admin}"'
        self.servers[name] = Server(name, self.binaries / binary, f"{listen}\n{config}", self.folder, admin)

    def decode(self, index: int) -> Server:
        return self.servers[f"decode-{DECODES[index]}"]

    def name_decodes(self, *indexes: int) -> None:
        """These are the decode servers, as both gateways hear."""
        addresses = [DECODES[index] for index in indexes]
        self.dns.records["decode.test"] = addresses
        fresh = self.list.with_suffix(".new")
        fresh.write_text("".join(f"{address}:{self.decode_port}\n" for address in addresses))
        fresh.rename(self.list)

    def targets(self, gateway: Server) -> Dict[str, bool]:
        """Decode servers that the gateway exports, and whether they are ready."""
        found = re.findall(r'^aludel_decode_target_ready\{[^}]*target="([^":]+):\d+"[^}]*\} (\d)$',
                           gateway.get("/metrics") or "", re.MULTILINE)
        return {address: value == "1" for address, value in found}

    def await_targets(self, want: Dict[int, bool]) -> None:
        expected = {DECODES[index]: ready for index, ready in want.items()}
        for gateway in self.gateways:
            wait_for(lambda: self.targets(gateway) == expected,
                     lambda: f"{gateway.name} has {self.targets(gateway)}, want {expected}\n{gateway.log_tail()}")

    def await_prefills(self, index: int, want: List[str]) -> None:
        def found() -> List[str]:
            return sorted(re.findall(r'^aludel_prefill_target_state\{state="ready",target="([^":]+):\d+"\} 1$',
                                     self.decode(index).get("/metrics") or "", re.MULTILINE))
        wait_for(lambda: found() == want, lambda: f"decode {index} has {found()}, want {want}")

    def running(self, index: int) -> float:
        text = self.decode(index).get("/metrics") or ""
        return sum(float(value) for value in re.findall(r"^aludel_num_requests_\w+\{[^}]*\} (\S+)$", text, re.MULTILINE))


def metric(server: Server, pattern: str) -> float:
    """The sum over all samples."""
    return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", server.get("/metrics") or "", re.MULTILINE))


def wait_for(condition: Callable[[], bool], trouble: Callable[[], str], limit: float = 30) -> None:
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(trouble())
        time.sleep(0.05)


class Load:
    """Requests to both gateways, without a pause, until stop."""

    def __init__(self, gateways: List[Server], prompts: List[str]) -> None:
        self.gateways, self.prompts = gateways, prompts
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.served, self.findings = 0, []
        self.expected: Dict[int, str] = {}  # greedy, local answers are always the same
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(WORKERS)]
        for thread in self.threads:
            thread.start()

    def work(self, number: int) -> None:
        turn = number
        while not self.stopping.is_set():
            turn += WORKERS
            prompt = turn % len(self.prompts)
            exact = turn % 3 != 0
            body = request_body(self.prompts[prompt], "exact" if exact else "any")
            # Over codes another server may go on with other words: a stream that has sent some then ends with an error.
            body["stream"] = exact and turn % 2 == 0
            try:
                status, answer = ask(self.gateways[turn % 2].admin, body, LIMIT_S)
            except Exception as error:  # pylint: disable=broad-except
                status, answer = 0, {"error": repr(error)}
            with self.lock:
                if status != 200:
                    self.findings.append(f"request {turn}: {status} {answer}")
                elif exact and self.expected.setdefault(prompt, answer["choices"][0]["text"]) != answer["choices"][0]["text"]:
                    self.findings.append(f"request {turn}: another answer, {answer}")
                self.served += 1

    def check(self, step: str) -> None:
        """After some more requests, none has failed."""
        before = self.served
        wait_for(lambda: self.served >= before + 12 or self.findings, lambda: f"{step}: requests hang")
        print(f"{step}: {self.served} requests, {len(self.findings)} findings", flush=True)
        assert not self.findings, f"{step}: " + "\n".join(self.findings[:5])

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def steps(fleet: Fleet, load: Load) -> None:
    load.check("two decode servers")

    fleet.decode(2).start()
    fleet.decode(2).wait_ready()
    fleet.name_decodes(0, 1, 2)
    fleet.await_targets({0: True, 1: True, 2: True})
    load.check("a third one was added")

    fleet.name_decodes(1, 2)
    fleet.await_targets({1: True, 2: True})
    wait_for(lambda: fleet.running(0) == 0, lambda: f"the drained server still has {fleet.running(0)} requests")
    assert fleet.decode(0).end() == 0
    load.check("the first one was drained and has ended")

    fleet.decode(1).process.kill()
    fleet.decode(1).process.wait()
    load.check("the second one was killed")
    fleet.decode(1).start()
    fleet.await_targets({1: True, 2: True})
    load.check("and started again")

    fleet.decode(2).process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    fleet.decode(2).process.send_signal(signal.SIGCONT)
    fleet.await_targets({1: True, 2: True})
    load.check("the third one was stopped for a second")

    # Another model answers at the first one's address.
    first = fleet.decode(0)
    text = first.config.read_text()
    first.config.write_text(text.replace('served_model_name: "chat"', 'served_model_name: "other"'))
    first.start()
    first.wait_ready()
    fleet.name_decodes(0, 1, 2)
    fleet.await_targets({0: False, 1: True, 2: True})
    load.check("another model came to an address")
    assert first.end() == 0
    first.config.write_text(text)
    first.start()
    fleet.await_targets({0: True, 1: True, 2: True})
    load.check("and was replaced by the right one")

    fleet.dns.records["decode.test"] = []
    time.sleep(2.5)
    fleet.await_targets({0: True, 1: True, 2: True})
    load.check("DNS lost the name")
    fleet.name_decodes(0, 1, 2)

    killed = fleet.servers[f"prefill-{PREFILLS[0]}"]
    killed.process.kill()
    killed.process.wait()
    for index in range(3):
        fleet.await_prefills(index, [PREFILLS[1]])
    load.check("a prefill server was killed")
    killed.start()
    for index in range(3):
        fleet.await_prefills(index, list(PREFILLS))
    load.check("and started again")

    fleet.dns.records["prefill.test"] = [PREFILLS[1]]
    for index in range(3):
        fleet.await_prefills(index, [PREFILLS[1]])
    assert fleet.servers[f"prefill-{PREFILLS[0]}"].end() == 0
    load.check("a prefill server was drained and has ended")
    fleet.servers[f"prefill-{PREFILLS[0]}"].start()
    fleet.dns.records["prefill.test"] = list(PREFILLS)
    for index in range(3):
        fleet.await_prefills(index, list(PREFILLS))
    load.check("and is back")


class Handoffs:
    """Prompts that are new to every cache, handed over in several frames each. All are answered."""

    def __init__(self, fleet: Fleet, prompt: str) -> None:
        self.fleet, self.prompt, self.asked = fleet, prompt, 0

    def ask(self) -> None:
        self.asked += 1
        text = f"{self.asked} times {self.asked + 1}: {self.prompt}"
        status, answer = ask(self.fleet.gateways[self.asked % 2].admin, request_body(text, "raw"), LIMIT_S)
        assert status == 200, f"handoff {self.asked}: {status} {answer}"

    def until(self, condition: Callable[[], bool], trouble: Callable[[], str], limit: float = 90) -> None:
        def look() -> bool:
            self.ask()
            return condition()
        wait_for(look, trouble, limit)

    def ask_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.ask()


def failing_prefill(fleet: Fleet, prompt: str) -> None:
    """A prefill server answers probes while its frames often arrive damaged: it is left out. Started again without that, it
    gets handoffs again."""
    fleet.name_decodes(1)
    fleet.await_targets({1: True})
    handoffs = Handoffs(fleet, prompt)
    server = fleet.servers[f"prefill-{PREFILLS[0]}"]
    well = server.config.read_text()

    def start_again(text: str) -> None:
        assert server.end() == 0
        server.config.write_text(text)
        server.start()
        server.wait_ready()
        fleet.await_prefills(1, list(PREFILLS))

    def ejections() -> float:
        return metric(fleet.decode(1), r"aludel_prefill_ejections_total")

    def sent() -> float:
        return metric(server, r'aludel_handoff_frames_total\{direction="sent"[^}]*\}')

    start_again(well.replace("transport { }", "transport { testing { corrupt_rate: 0.333 } }"))
    handoffs.until(lambda: ejections() >= 1, lambda: f"after {handoffs.asked} handoffs no server is left out; {sent()} frames")
    time.sleep(0.5)  # what was under way
    before = sent()
    handoffs.ask_for(2)
    assert sent() == before, f"a server that was left out has sent {sent() - before} frames"
    fleet.await_prefills(1, list(PREFILLS))  # as probes have it
    print(f"a prefill server that fails was left out, {handoffs.asked} handoffs", flush=True)
    start_again(well)
    handoffs.until(lambda: sent() > 0, lambda: f"after {handoffs.asked} handoffs the server that is back has sent nothing")
    print(f"and has come back, {handoffs.asked} handoffs", flush=True)
    fleet.name_decodes(0, 1, 2)
    fleet.await_targets({0: True, 1: True, 2: True})


def restart(fleet: Fleet, prompt: str) -> None:
    """A gateway that has just started knows where another one has sent a prompt."""
    status, answer = ask(fleet.gateways[1].admin, request_body(prompt, "exact"), LIMIT_S)
    assert status == 200, answer
    gateway = fleet.gateways[0]
    assert gateway.end() == 0
    gateway.start()
    fleet.await_targets({0: True, 1: True, 2: True})
    path = "/admin/routing?prompt=" + urllib.parse.quote(prompt)

    def cached() -> List[int]:
        return sorted(target["cached_tokens"] for target in json.loads(gateway.get(path) or '{"targets": []}')["targets"])
    wait_for(lambda: len(cached()) == 3 and cached()[-1] >= 64, lambda: f"cached tokens are {cached()}")
    assert cached()[0] == 0, f"a prompt that one server had is believed to be on all: {cached()}"
    print(f"a gateway was started again and knows of {cached()[-1]} cached tokens", flush=True)


def run(binaries: Path, folder: Path) -> None:
    fleet = Fleet(binaries, folder)
    load: Optional[Load] = None
    try:
        fleet.dns.records["prefill.test"] = list(PREFILLS)
        fleet.name_decodes(0, 1)
        for name, server in fleet.servers.items():
            if server is not fleet.decode(2):
                server.start()
        fleet.await_targets({0: True, 1: True})
        load = Load(fleet.gateways, load_prompts(16, 600))
        steps(fleet, load)
        load.stop()
        failing_prefill(fleet, load_prompts(18, 600)[17])
        restart(fleet, load_prompts(17, 600)[16])
    except AssertionError:
        for server in fleet.servers.values():
            print(f"--- {server.name}\n{server.log_tail()}", file=sys.stderr)
        raise
    finally:
        if load is not None:
            load.stop()
        codes = {name: server.end() for name, server in fleet.servers.items()}
        fleet.dns.stop()
    assert load is not None and not load.findings, load.findings[:5]
    assert not any(codes.values()), f"servers did not exit with 0 on SIGTERM: {codes}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-discovery-") as folder:
        run(options.bin.resolve(), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
