"""Prefill servers at two other sites, each across a real link (a network namespace and a veth pair) of which the decode server
may take a part: under a load that wants more than both parts together, each link carries about what it may and no more, each
site's prefill server is used, every prompt is answered as local prefill answers it, and what does not fit is prefilled here.

    site_test.py --bin build/release/bin [--seconds 20]

Exit code 77: network namespaces, veth or tc are not to be had here.
"""

import argparse
import json
import re
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Dict, List

from chaos_fleet import Server
from link_test import FarServer, Link, check, command, inside, wait
from stack import free_ports

# What a link carries, and of that the decode server's part.
CARRIES = 4_000_000
LIMITS = {"east": 400_000, "west": 200_000}
BURST_S = 10  # SiteLinks::kBurst
HEADERS = 1.05  # of Ethernet, IP and TCP, and of what is not frames
PROMPT_TOKENS = 60
HANDOFF_BYTES = 4200 * PROMPT_TOKENS  # a raw cache, about
MAX_TOKENS = 4
CLIENTS = 2


class Fleet:
    """A decode server and a gateway here, and a prefill server at each site."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        names = list(LIMITS)
        self.links = {site: Link(f"10.211.{80 + i}.1", f"10.211.{80 + i}.2", f"near{i}") for i, site in enumerate(names)}
        ports = free_ports(4 + 2 * len(names))
        decode, decode_admin, data, self.port = ports[:4]
        self.prefills: List[Server] = []
        targets = []
        for i, (site, link) in enumerate(self.links.items()):
            link.cap(CARRIES)
            command(*link.inside, "ip", "route", "add", "default", "via", link.near)  # to the data plane's one address
            port, admin = ports[4 + 2 * i:6 + 2 * i]
            targets.append(f"{link.far}:{port}")
            self.prefills.append(FarServer(link, f"prefill-{site}", binaries / "aludel-prefill", f"""
listen: "{link.far}:{port}" admin_listen: "127.0.0.1:{admin}" site: "{site}"
engine {{ directory: "deploy/demo/base" threads: 1 kv_blocks: 256 }} codec {{ formats: "raw" }}
receiver_addresses: "0.0.0.0/0" store {{ memory_bytes: 0 }}
""", folder, admin))
        limits = "\n".join(f'site_limits {{ site: "{site}" max_bytes_per_second: {limit} }}'
                           for site, limit in LIMITS.items())
        self.decode = Server("decode", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{decode}" admin_listen: "127.0.0.1:{decode_admin}" served_model_name: "demo"
engine {{ directory: "deploy/demo/base" threads: 1 kv_blocks: 512 prefix_cache: false }} codec {{ formats: "raw" }}
transport {{ listen: "{self.links[names[0]].near}:{data}" }} {" ".join(f'prefill_targets: "{target}"' for target in targets)}
{limits}
handoff_timeout_ms: 20000 probe_interval_ms: 200 hedge {{ max_running: 0 }}
""", folder, decode_admin)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.port}" probe_interval_ms: 200
models {{ name: "demo" directory: "deploy/demo/base" decode_targets: "127.0.0.1:{decode}" }}
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
        return self.decode.get("/metrics") or ""


def complete(port: int, prompt: List[int], exact: bool = False) -> Dict:
    body = {"model": "demo", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
            "aludel": {"fidelity": "exact"} if exact else {}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    return {"text": answer["choices"][0]["text"], **answer["aludel"]}


def load(fleet: Fleet, seconds: float) -> Dict[str, int]:
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
                answer = complete(fleet.port, prompt)
                if count % 8 == 0:
                    local = complete(fleet.port, prompt, exact=True)
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


def run(binaries: Path, seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="aludel-site-") as folder:
        fleet = Fleet(binaries, Path(folder))
        try:
            fleet.start()
            before = {site: link.received() for site, link in fleet.links.items()}
            plans = load(fleet, seconds)
            print(f"answers by plan: {plans}")
            check(plans.get("remote", 0) > 0 and plans.get("local", 0) > 0, "want some of both")
            metrics = fleet.metrics()
            refused = re.findall(r'^aludel_plans_total\{[^}]*reason="site_limit"[^}]*\} (\S+)$', metrics, re.MULTILINE)
            check(sum(map(float, refused)) == plans["local"], f"local for another reason than the limits: {refused}")
            for site, link in fleet.links.items():
                used = link.received() - before[site]
                # Each client's last handoff may have begun when little was left.
                share = used / (LIMITS[site] * (seconds + BURST_S) + CLIENTS * HANDOFF_BYTES)
                print(f"{site}: {used / 1e6:.1f} MB, {share:.2f} of what {seconds:.0f} s and a burst may take")
                check(share <= HEADERS, "more than the limit")
                check(share >= .8, "far less than the limit, and prompts were prefilled here")
                check(f'aludel_site_link_used_ratio{{site="{site}"}}' in metrics, "no metric of it")
        except RuntimeError as error:
            tails = "\n".join(f"--- {server.name}\n{server.log_tail()}" for server in fleet.servers())
            print(f"{error}\n{tails}", file=sys.stderr)
            return 1
        finally:
            fleet.stop()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    if (status := inside("site_test")) is not None:
        return status
    return run(options.bin.resolve(), options.seconds)


if __name__ == "__main__":
    sys.exit(main())
