"""A prefill server tells decode servers what its prefix store holds. A decode server that has asked for nothing yet
predicts what will be sent to it without being computed, to the token, also after the prefill server was killed and
found it on its disk.

    store_events_test.py --bin build/release/bin
"""

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

from cache_events_test import wait_for
from chaos_fleet import Server, ask, check_fleet, load_prompts
from stack import free_ports

# By name, what an engine loads.
MODELS = {"chat": 'directory: "deploy/demo/chat"', "json": 'directory: "deploy/demo/base" adapter: "deploy/demo/json"'}
PROMPTS = 4


class Fleet:
    """One prefill server with a disk, a decode server for each of two fine-tunes, and their gateway."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        ports = iter(free_ports(7))
        prefill, prefill_admin = next(ports), next(ports)
        self.prefill = Server("prefill", binaries / "aludel-prefill", f"""
listen: "127.0.0.1:{prefill}" admin_listen: "127.0.0.1:{prefill_admin}"
engine {{ directory: "deploy/demo/base" threads: 1 max_num_seqs: 8 kv_blocks: 512 }}
codec {{ artifact: "deploy/demo/codec" }} transport {{ }} drain_timeout_ms: 3000
store {{ disk {{ path: "{folder}/store" bytes: 67108864 }} }}
""", folder, prefill_admin)
        self.decodes: Dict[str, Server] = {}
        served = ""
        for model in MODELS:
            listen, admin = next(ports), next(ports)
            self.decodes[model] = Server(f"decode-{model}", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{listen}" admin_listen: "127.0.0.1:{admin}" served_model_name: "{model}"
engine {{ {MODELS[model]} threads: 1 max_num_seqs: 8 kv_blocks: 512 prefix_cache: false }}
codec {{ artifact: "deploy/demo/codec" }} transport {{ }} drain_timeout_ms: 3000
prefill_targets: "127.0.0.1:{prefill}" probe_interval_ms: 200 probe_max_interval_ms: 400
hedge {{ late_min_ms: 5000 }}
""", folder, admin)
            served += (f'models {{ name: "{model}" directory: "deploy/demo/{model}" '
                       f'decode_targets: "127.0.0.1:{listen}" }}\n')
        listen = next(ports)
        self.gateway = Server("gateway", binaries / "aludel-gateway", f'listen: "127.0.0.1:{listen}"\n{served}', folder,
                              listen)
        self.servers = [self.prefill, *self.decodes.values(), self.gateway]

    def ask(self, model: str, prompt: str) -> None:
        status, answer = ask(self.gateway.admin, {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0,
                                                  "aludel": {"format": "aludel-p2"}}, 60)
        assert status == 200, (status, answer)
        assert answer["aludel"]["plan"] == "remote", answer

    def known(self, model: str) -> float:
        text = self.decodes[model].get("/metrics") or ""
        found = re.search(r"^aludel_prefill_known_stores (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else -1

    def entries(self, tier: str) -> float:
        text = self.prefill.get("/metrics") or ""
        found = re.search(rf'^aludel_store_entries\{{tier="{tier}"\}} (\S+)$', text, re.MULTILINE)
        return float(found.group(1)) if found else -1

    def hit_tokens(self, model: str) -> Dict[str, float]:
        text = self.decodes[model].get("/metrics") or ""
        return {kind: float(value) for kind, value in
                re.findall(r'^aludel_handoff_hit_tokens_total\{kind="(\w+)"\} (\S+)$', text, re.MULTILINE)}


def check(fleet: Fleet, prompts: List[str]) -> None:
    for server in fleet.servers:
        server.start()
    for server in fleet.servers:
        server.wait_ready()
    wait_for("both models are served", lambda: all(fleet.gateway.get(f"/ready?model={model}") for model in MODELS))
    wait_for("both know the store", lambda: all(fleet.known(model) == 1 for model in MODELS))
    for prompt in prompts:
        fleet.ask("chat", prompt)
    assert fleet.hit_tokens("chat") == {"predicted": 0, "actual": 0}, fleet.hit_tokens("chat")

    def hits(least: float) -> float:
        """Of all prompts once more, by the model that had not asked for them; accounts come beside the frames."""
        for prompt in prompts:
            fleet.ask("json", prompt)
        wait_for("the runs' accounts", lambda: fleet.hit_tokens("json")["actual"] > least)
        last: Dict[str, float] = {}
        while (now := fleet.hit_tokens("json")) != last:  # some may still come
            last = now
            time.sleep(1)
        assert last["predicted"] == last["actual"], last
        return last["actual"]

    time.sleep(0.5)  # what is stored is told of within some 20 ms, on an idle machine
    first = hits(50 * (PROMPTS - 1))
    wait_for("all of it is on disk", lambda: fleet.entries("disk") == fleet.entries("memory") > 0)
    fleet.prefill.process.kill()
    fleet.prefill.process.wait()
    wait_for("a server that is gone is not known", lambda: fleet.known("json") == 0)
    fleet.prefill.start()
    fleet.prefill.wait_ready()
    wait_for("the store is known again", lambda: fleet.known("json") == 1)
    wait_for("it is used again", lambda: 'state="ready",target' in (fleet.decodes["json"].get("/metrics") or ""))
    second = hits(first + 50 * (PROMPTS - 1)) - first
    assert second == first, (first, second)
    print(f"{first:.0f} tokens of {len(prompts)} prompts were predicted to be stored and were, and again after a kill")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-store-events-") as folder:
        fleet = Fleet(options.bin.resolve(), Path(folder))
        check_fleet(fleet.servers, lambda: check(fleet, load_prompts(PROMPTS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
