"""A decode server and a gateway, and prefill servers at other sites, each across a real link (a network namespace and a veth
pair) of which the decode server may take a part; on demand with TLS between all servers. For tests that are in a network
namespace of their own (link_test.inside)."""

import json
import os
import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

from chaos_fleet import Server
from link_test import FarServer, Link, command, wait
from stack import free_ports

BURST_S = 10  # SiteLinks::kBurst
PROBE_MS = 10000  # before a server is taken for down: what asks waits behind what a link carries, and a busy machine's work


@dataclass
class Site:
    """Bytes a second that its link carries (None: as many as it can), and those that handoffs may take of it (None: all)."""
    carries: Optional[int]
    limit: Optional[int]


@dataclass
class Pair:
    """What servers run: models of prefill and decode servers, and what `codec` says. `engine` is more for their engines."""
    producer: str = "deploy/demo/base"
    consumer: str = "deploy/demo/base"
    codec: str = 'formats: "raw"'
    engine: str = ""


def make_certificate(folder: Path, addresses: List[str]) -> str:
    """One that is its own authority and that all servers show; the setting that names its files."""
    names = ",".join(f"IP:{address}" for address in addresses)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=sites", "-addext", f"subjectAltName={names}", "-keyout", folder / "tls.key", "-out",
                    folder / "tls.crt"], check=True, capture_output=True)
    return (f'grpc_tls {{ certificate_file: "{folder}/tls.crt" key_file: "{folder}/tls.key" '
            f'ca_file: "{folder}/tls.crt" }}')


def complete(port: int, prompt: List[int], max_tokens: int, fidelity: str = "") -> Dict:
    """The answer's text, and what the servers say of it."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "aludel": {"fidelity": fidelity} if fidelity else {}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    return {"text": answer["choices"][0]["text"], **answer["aludel"]}


class SiteFleet:
    """`number` tells fleets of one network namespace apart; `decode` is more for the decode server's configuration. Sites compute
    on a core of their own where this machine has two, so that what one computes delays nothing here."""

    def __init__(self, binaries: Path, folder: Path, sites: Dict[str, Site], pair: Pair = Pair(), decode: str = "",
                 encrypted: bool = False, number: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.sites = sites
        self.links = {name: Link(f"10.211.{80 + 10 * number + i}.1", f"10.211.{80 + 10 * number + i}.2", f"near{10 * number + i}")
                      for i, name in enumerate(sites)}
        addresses = [address for link in self.links.values() for address in (link.near, link.far)]
        tls = make_certificate(folder, ["127.0.0.1", *addresses]) if encrypted else ""
        ports = free_ports(4 + 2 * len(sites))
        self.decode_port, decode_admin, self.data_port, self.port = ports[:4]
        self.prefills: List[Server] = []
        targets, limits = "", ""
        here, *others = sorted(os.sched_getaffinity(0))
        there = others[0] if others else here
        for i, (name, link) in enumerate(self.links.items()):
            if sites[name].carries is not None:
                link.cap(sites[name].carries)
            if sites[name].limit is not None:
                limits += f'site_limits {{ site: "{name}" max_bytes_per_second: {sites[name].limit} }}\n'
            command(*link.inside, "ip", "route", "add", "default", "via", link.near)  # to the data plane's one address
            port, admin = ports[4 + 2 * i:6 + 2 * i]
            targets += f' prefill_targets: "{link.far}:{port}"'
            self.prefills.append(FarServer(link, f"prefill-{name}", binaries / "aludel-prefill", f"""
listen: "{link.far}:{port}" admin_listen: "127.0.0.1:{admin}" site: "{name}" {tls}
engine {{ directory: "{pair.producer}" cores: "{there}" {pair.engine} }} codec {{ {pair.codec} }}
receiver_addresses: "0.0.0.0/0" store {{ memory_bytes: 0 }}
""", folder, admin))
        near = next(iter(self.links.values())).near
        self.decode = Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{self.decode_port}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "demo" {tls}
engine {{ directory: "{pair.consumer}" cores: "{here}" prefix_cache: false {pair.engine} }} codec {{ {pair.codec} }}
transport {{ listen: "{near}:{self.data_port}" }} {targets}
{limits}
probe_interval_ms: 200 probe_timeout_ms: {PROBE_MS}
{decode}
""", folder, decode_admin)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}" probe_interval_ms: 200 probe_timeout_ms: {PROBE_MS} {tls}
models {{ name: "demo" directory: "{pair.consumer}" decode_targets: "127.0.0.1:{self.decode_port}" }}
""", folder, self.port)

    def servers(self) -> List[Server]:
        return [*self.prefills, self.decode, self.gateway]

    def start(self) -> None:
        for server in self.servers():
            server.start()
        for server in self.servers():
            server.wait_ready()
        wait(lambda: len(re.findall(r'^aludel_prefill_target_state\{state="ready"[^}]*\} 1$', self.metrics(), re.MULTILINE))
             == len(self.prefills), 30, "all prefill servers to be ready")

    def stop(self) -> None:
        for server in self.servers():
            server.end()
        for link in self.links.values():
            link.end()

    def metrics(self) -> str:
        """The decode server's."""
        return self.decode.get("/metrics") or ""

    def metric(self, pattern: str) -> float:
        """Of the decode server; the sum over all samples."""
        return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", self.metrics(), re.MULTILINE))

    def received(self) -> Dict[str, int]:
        """By site, bytes that have come over its link, with all headers."""
        return {name: link.received() for name, link in self.links.items()}

    def tails(self) -> str:
        return "\n".join(f"--- {server.name}\n{server.log_tail()}" for server in self.servers())
