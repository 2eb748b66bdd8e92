"""A decode server that is killed (SIGKILL) in the midst of its answers, under load: another one begins those anew of
which nothing has left, and goes on with the streams. No request fails, and every answer is the one that the same
servers gave before, undisturbed: greedy ones, and drawn ones with a seed, of the model and of a LoRA adapter over it.

    decode_loss_test.py --bin build/release/bin [--kills 4]
"""

import argparse
import http.client
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Tuple

from chaos_fleet import Server, load_prompts
from stack import ROOT, free_ports

ADAPTER = "tuned"
WORKERS = 6  # one server has room for all of them
MAX_TOKENS = 160
LIMIT_S = 60
CUT = re.compile(r'^aludel_cut_answers_total\{[^}]*outcome="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


class Fleet:
    """Two decode servers of one model with an adapter over it, and a gateway. They compute in f32: with bf16 an answer that
    is drawn over a cached prompt may be another one on its own, where the processor has AMX."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        subprocess.run([str(binaries / "aludel-bench"), "make-adapter", "--base", "deploy/demo/chat", "--out",
                        f"{folder}/{ADAPTER}", "--rank", "4", "--strength", "0.3"], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)
        self.gateway_port, *ports = free_ports(5)
        self.decodes: List[Server] = []
        for number in (0, 1):
            listen, admin = ports[2 * number:2 * number + 2]
            self.decodes.append(Server(f"decode-{number}", binaries / "aludel-decode", f"""
listen: "127.0.0.1:{listen}" admin_listen: "127.0.0.1:{admin}" served_model_name: "chat"
engine {{ directory: "deploy/demo/chat" threads: 1 max_num_seqs: 8 kv_blocks: 1024 compute_dtype: "f32" kv_dtype: "f32" }}
adapters {{ name: "{ADAPTER}" directory: "{folder}/{ADAPTER}" }}
""", folder, admin))
        self.gateway = Server("gateway", binaries / "aludel-gateway", f"""
listen: "127.0.0.1:{self.gateway_port}"
models {{ name: "chat" directory: "deploy/demo/chat"
          decode_targets: "127.0.0.1:{ports[0]}" decode_targets: "127.0.0.1:{ports[2]}" }}
probe_interval_ms: 100
""", folder, self.gateway_port)

    def servers(self) -> List[Server]:
        return self.decodes + [self.gateway]

    def start(self) -> None:
        for server in self.servers():
            server.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        for server in self.servers():
            server.wait_ready()
        until = time.monotonic() + 30
        while len(re.findall(r"^aludel_decode_target_ready\{[^}]*\} 1$", self.gateway.get("/metrics") or "",
                             re.MULTILINE)) != 2:
            assert time.monotonic() < until, "the gateway does not find both decode servers ready"
            time.sleep(0.05)

    def cut(self) -> Dict[str, float]:
        """Answers whose decode server was lost, by what became of them."""
        counts: Dict[str, float] = {}
        for outcome, count in CUT.findall(self.gateway.get("/metrics")):
            counts[outcome] = counts.get(outcome, 0) + float(count)
        return counts

    def running(self, server: Server) -> float:
        found = re.search(r"^aludel_num_requests_running\{[^}]*\} (\S+)$", server.get("/metrics") or "", re.MULTILINE)
        return 0 if found is None else float(found.group(1))

    def ask(self, body: Dict) -> Tuple[str, str]:
        """The answer's text, and what ended it: "" where it is whole."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway_port, timeout=LIMIT_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            return "", f"{response.status}: {text}"
        if not body.get("stream"):
            return json.loads(text)["choices"][0]["text"], ""
        told, error = "", "no [DONE]"
        for line in text.splitlines():
            if line == "data: [DONE]":
                error = ""
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return told, event["error"]["message"]
                told += "".join(choice["text"] for choice in event["choices"])
        return told, error


def bodies() -> List[Dict]:
    """What is asked for, again and again."""
    result = []
    for number, prompt in enumerate(load_prompts(6)):
        drawn = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0}
        more = {"logprobs": 2} if number % 3 == 0 else {}
        model = ADAPTER if number % 4 >= 2 else "chat"
        result.append({"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, **drawn, **more})
    return result


def lose_adapted(fleet: Fleet) -> None:
    """Nothing else runs: what is cut is the adapter's answer, and it goes on at the other server."""
    body = {"model": ADAPTER, "prompt": load_prompts(1)[0], "max_tokens": 4 * MAX_TOKENS, "ignore_eos": True,
            "temperature": 0, "stream": True}
    known = fleet.ask(body)
    assert known[0] and not known[1], known
    assert fleet.ask({**body, "model": "chat"})[0] != known[0], "the adapter changes nothing"
    before = fleet.cut()
    for _ in range(10):  # an answer may end between the look at a server and its kill
        answers: List[Tuple[str, str]] = []
        client = threading.Thread(target=lambda: answers.append(fleet.ask(body)))
        client.start()
        until = time.monotonic() + LIMIT_S
        while not (busy := [server for server in fleet.decodes if fleet.running(server) > 0]) and not answers:
            assert time.monotonic() < until, "no server was seen at work"
        for server in busy[:1]:
            server.process.kill()
            server.process.wait()
        client.join(LIMIT_S)
        assert answers == [known], (answers, known)
        after = fleet.cut()
        if sum(after.values()) > sum(before.values()):
            break
        for server in busy[:1]:
            server.start()
        fleet.wait_ready()
    print(f"the adapter's answer alone: cut before {before}, and after {after}", flush=True)
    assert sum(after.values()) == sum(before.values()) + 1 and after.get("lost", 0) == before.get("lost", 0), after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-loss-") as folder:
        fleet = Fleet(options.bin.resolve(), Path(folder))
        try:
            fleet.start()
            asked = bodies()
            known = [fleet.ask(body) for body in asked]
            assert all(text and not error for text, error in known), known
            assert [fleet.ask({**body, "stream": True}) for body in asked] == known
            stop = threading.Event()
            counter = itertools.count()
            outcomes: List[Tuple[bool, int, str, str]] = []
            ended = [0] * WORKERS

            def work(worker: int) -> None:
                while not stop.is_set():
                    number = next(counter)
                    which, stream = number % len(asked), number % 2 == number // len(asked) % 2
                    outcomes.append((stream, which, *fleet.ask({**asked[which], "stream": stream})))
                    ended[worker] += 1

            workers = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
            for worker in workers:
                worker.start()
            for kill in range(options.kills):
                fleet.wait_ready()
                time.sleep(0.3 + 0.13 * kill)
                before = list(ended)
                victim = fleet.decodes[kill % 2]
                victim.process.kill()
                victim.process.wait()
                time.sleep(0.3)
                victim.start()
                # An answer that has lost both servers ends: none of now may meet the next kill, however slow it is.
                until = time.monotonic() + LIMIT_S
                while any(now == then for now, then in zip(ended, before)):
                    assert time.monotonic() < until, "a request hangs"
                    time.sleep(0.02)
            fleet.wait_ready()
            stop.set()
            for worker in workers:
                worker.join(LIMIT_S)
                assert not worker.is_alive(), "a request hangs"
            cut = fleet.cut()
            untold = [error for stream, _, text, error in outcomes if error and not (stream and text)]
            told = [error for stream, _, text, error in outcomes if error and stream and text]
            wrong = [(which, text) for _, which, text, error in outcomes if not error and text != known[which][0]]
            wrong += [(which, text) for _, which, text, error in outcomes
                      if error and not known[which][0].startswith(text)]
            print(f"{options.kills} kills, {len(outcomes)} answers, cut: {cut}; failed though nothing had left: "
                  f"{len(untold)}, streams broken off: {len(told)}, wrong: {len(wrong)}", flush=True)
            assert not untold, untold[:3]
            assert not wrong, wrong[:3]
            assert not told, told[:3]
            assert cut.get("restarted", 0) > 0 and cut.get("continued", 0) > 0, "no answer was cut: nothing was tried"
            lose_adapted(fleet)
        finally:
            for server in fleet.servers():
                server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
