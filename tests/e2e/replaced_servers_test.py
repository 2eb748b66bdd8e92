"""Who answers at an address is not who did before: a decode server with other weights under the same name, and a prefill server
with another artifact whose formats have the same names. Both are noticed: no stream goes on at a server that says other
things, and no code is asked for that its asker could not read. Requests are answered all the while.

    replaced_servers_test.py --bin build/release/bin
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict

from chaos_fleet import ask, check_fleet, load_prompts, request_body
from discovery_test import LIMIT_S, PREFILLS, Fleet, metric, wait_for
from stack import ROOT

CODES = "aludel-p2"


class Prompts:
    """Each is new to every cache, where `fresh` is asked for."""

    def __init__(self) -> None:
        self.all, self.asked = load_prompts(4, 600), 0

    def fresh(self) -> str:
        self.asked += 1
        return f"{self.asked} times {self.asked + 1}: {self.all[self.asked % len(self.all)]}"


def answer(fleet: Fleet, body: Dict, gateway: int = 0) -> str:
    status, reply = ask(fleet.gateways[gateway].admin, body, LIMIT_S)
    assert status == 200, f"{status} {reply}"
    return reply["choices"][0]["text"]


def sent(fleet: Fleet, prefill: str) -> float:
    return metric(fleet.servers[f"prefill-{prefill}"], r'aludel_handoff_frames_total\{direction="sent"[^}]*\}')


def other_weights(fleet: Fleet, prompts: Prompts) -> None:
    """The base answers under the name of its fine-tune: gateways say so, and believe nothing of its cache."""
    server, prompt = fleet.decode(0), prompts.all[0]
    fleet.name_decodes(0)
    fleet.await_targets({0: True})
    before = answer(fleet, request_body(prompt, "exact"))
    assert answer(fleet, request_body(prompt, "exact")) == before
    well = server.config.read_text()
    for text, same in ((well.replace('directory: "deploy/demo/chat"', 'directory: "deploy/demo/base"')
                        .replace('codec { artifact: "deploy/demo/codec" }', 'codec { formats: "raw" }'), False), (well, True)):
        assert server.end() == 0
        server.config.write_text(text)
        server.start()
        server.wait_ready()
        fleet.await_targets({0: True})
        for number, gateway in enumerate(fleet.gateways):
            log = gateway.folder / f"{gateway.name}.log"
            wait_for(lambda: "is another one: it gives other tokens" in log.read_text(),
                     lambda: f"{gateway.name} did not notice\n{gateway.log_tail()}")
            log.write_text("")  # the next change is told anew
            found = answer(fleet, request_body(prompt, "exact"), number)
            assert (found == before) == same, f"the {'same' if same else 'other'} weights say {found!r}, before {before!r}"
        print("the " + ("right weights are back" if same else "other weights were noticed"), flush=True)


def other_artifact(fleet: Fleet, prompts: Prompts, folder: Path) -> None:
    """Codes of the same name that only another decoder could read: the server is not asked for them, the other one is."""
    other = folder / "codec"
    subprocess.run([fleet.binaries / "aludel-bench", "make-codec", "--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat",
                    "--out", other, "--recomputed-layers", "2"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert f'"{CODES}"' in (other / "artifact.json").read_text()
    server = fleet.servers[f"prefill-{PREFILLS[0]}"]
    well = server.config.read_text()

    def start_again(text: str) -> None:
        assert server.end() == 0
        server.config.write_text(text)
        server.start()
        server.wait_ready()
        fleet.await_prefills(0, list(PREFILLS))

    def handoff_frames(form: str) -> Dict[str, float]:
        before = {prefill: sent(fleet, prefill) for prefill in PREFILLS}
        for _ in range(12):
            answer(fleet, request_body(prompts.fresh(), form))
        return {prefill: sent(fleet, prefill) - before[prefill] for prefill in PREFILLS}

    def await_both() -> None:
        """A server that has just started, or was slow on a busy machine, may be asked less."""
        sums = dict.fromkeys(PREFILLS, 0.0)

        def both() -> bool:
            for prefill, frames in handoff_frames(CODES).items():
                sums[prefill] += frames
            return min(sums.values()) > 0

        wait_for(both, lambda: f"both servers are asked: {sums}")

    await_both()
    start_again(well.replace('artifact: "deploy/demo/codec"', f'artifact: "{other}"'))
    frames = handoff_frames(CODES)
    assert frames[PREFILLS[0]] == 0 and frames[PREFILLS[1]] > 0, f"codes of another artifact: {frames}"
    frames = handoff_frames("raw")
    assert frames[PREFILLS[0]] > 0, f"raw is what it was: {frames}"
    print("another artifact at a prefill server was noticed", flush=True)
    start_again(well)
    await_both()
    print("and the right one is used again", flush=True)


def run(binaries: Path, folder: Path) -> None:
    fleet, prompts = Fleet(binaries, folder), Prompts()

    def check() -> None:
        fleet.dns.records["prefill.test"] = list(PREFILLS)
        fleet.name_decodes(0)
        for name, server in fleet.servers.items():
            if not name.startswith("decode") or server is fleet.decode(0):
                server.start()
        fleet.await_targets({0: True})
        fleet.await_prefills(0, list(PREFILLS))
        other_weights(fleet, prompts)
        other_artifact(fleet, prompts, folder)

    try:
        check_fleet(list(fleet.servers.values()), check)
    finally:
        fleet.dns.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-replaced-") as folder:
        run(options.bin.resolve(), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
