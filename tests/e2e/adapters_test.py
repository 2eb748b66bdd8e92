"""Sixty-four LoRA adapters over one decode server with room for eight: every answer is that of its adapter alone, while
others come and go. Starts a decode server and a gateway with keys of its own; prints memory and throughput. Only Python's
standard library."""

import argparse
import hashlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from stack import ROOT, free_ports
from traces_test import Collector, attributes

ADAPTERS = 64
RESIDENT = 8
THREADS = 12
WAIT_S = 60
TOKENS = 12
PROMPTS = ["Which color is the bike?", "Count to five.", "Who keeps the lighthouse?"]
KEYS = {"operator": " admin=1", "client": ""}


class Servers:
    """One decode server and two gateways in front of it, from start to stop; the second knows what it sees alone."""

    def __init__(self, binaries: Path, folder: Path, configured: List[str], collector: int) -> None:
        """`collector`: the port of where traces go."""
        self.folder = folder
        grpc, self.admin, self.port, self.gateway_admin, self.second, second_admin = free_ports(6)
        tracing = f'tracing {{ otlp_endpoint: "http://127.0.0.1:{collector}/v1/traces" }}\n'
        adapters = "".join(f'adapters {{ name: "{name}" directory: "{folder}/adapters/{name}" }}\n'
                           for name in configured)
        (folder / "decode.textproto").write_text(
            f'listen: "127.0.0.1:{grpc}"\nadmin_listen: "127.0.0.1:{self.admin}"\nserved_model_name: "chat"\n'
            'log { level: "debug" }\n'
            'engine { directory: "deploy/demo/chat" threads: 1 max_num_seqs: 16 compute_dtype: "f32" kv_dtype: "f32" }\n'
            f'{adapters}max_resident_adapters: {RESIDENT}\nadapter_root: "{folder}/adapters"\n{tracing}')
        keys = folder / "keys"
        keys.write_text("".join(f"{name} {hashlib.sha256(f'sk-{name}'.encode()).hexdigest()}{more}\n"
                                for name, more in KEYS.items()))
        for name, port, admin in (("gateway", self.port, self.gateway_admin), ("second", self.second, second_admin)):
            (folder / f"{name}.textproto").write_text(
                f'listen: "127.0.0.1:{port}"\nadmin_listen: "127.0.0.1:{admin}"\n{tracing}'
                f'models {{ name: "chat" directory: "deploy/demo/chat" decode_targets: "127.0.0.1:{grpc}" }}\n'
                f'access {{ keys_file: "{keys}" }}\n')
        self.processes: List[subprocess.Popen] = []
        for program, name in (("decode", "decode"), ("gateway", "gateway"), ("gateway", "second")):
            with open(folder / f"{name}.log", "wb") as log:
                self.processes.append(subprocess.Popen(
                    [str(binaries / f"aludel-{program}"), "--config", str(folder / f"{name}.textproto")], cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        for port in (self.port, self.second):
            self.await_ready(port)

    def await_ready(self, port: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready?model=chat", timeout=2):
                    return
            except OSError:
                assert time.monotonic() < deadline, f"not ready\n{self.logs()}"
                assert all(process.poll() is None for process in self.processes), self.logs()
                time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text()[-2000:] for name in ("decode", "gateway", "second"))

    def logged(self, process: str, pattern: str) -> str:
        """The first match in its log, awaited: a request's line may come after its answer."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern, (self.folder / f"{process}.log").read_text(), re.MULTILINE)) is None:
            assert time.monotonic() < deadline, f"{process} does not log {pattern}\n{self.logs()}"
            time.sleep(0.05)
        return found.group(0)

    def call(self, path: str, body: Optional[Dict[str, Any]] = None, key: str = "client",
             port: Optional[int] = None) -> Tuple[int, Any]:
        """Status and answer: JSON, or a text."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body),
                           {"Authorization": f"Bearer sk-{key}"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if "json" in response.headers["content-type"] else text

    def ask(self, model: str, prompt: str) -> Dict[str, Any]:
        status, reply = self.call("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": TOKENS,
                                                      "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        assert status == 200, (model, status, reply)
        assert reply["model"] == model, reply
        return reply

    def answer(self, model: str, prompt: str) -> List[int]:
        return self.ask(model, prompt)["choices"][0]["token_ids"]

    def stream(self, model: str, prompt: str) -> Iterator[List[int]]:
        """The answer's ids as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
             "return_token_ids": True, "stream": True}), {"Authorization": "Bearer sk-client"})
        response = connection.getresponse()
        assert response.status == 200, (model, response.status, response.read())
        for line in response:
            if line.strip() in (b"", b"data: [DONE]"):
                continue
            assert line.startswith(b"data: "), line
            event = json.loads(line[len(b"data: "):])
            assert "error" not in event, event
            yield event["choices"][0].get("token_ids", [])
        connection.close()

    def load(self, name: str, path: str, key: str = "operator", **more: str) -> Tuple[int, Any]:
        return self.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more}, key)

    def unload(self, name: str, key: str = "operator") -> Tuple[int, Any]:
        return self.call("/v1/unload_lora_adapter", {"lora_name": name}, key)

    def models(self, port: Optional[int] = None) -> Dict[str, Optional[str]]:
        return {model["id"]: model["parent"] for model in self.call("/v1/models", port=port)[1]["data"]}

    def answered(self, port: int) -> Dict[str, float]:
        """First tokens by the model's name, as the server with this admin port counts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            found = re.findall(r'^aludel_time_to_first_token_seconds_count{[^}]*model="([^"]*)"[^}]*} (\S+)$',
                               reply.read().decode(), re.MULTILINE)
        counts: Dict[str, float] = {}
        for model, count in found:
            counts[model] = counts.get(model, 0) + float(count)
        return counts

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=5) as reply:
            found = re.search(rf"^{re.escape(name)} (\S+)$", reply.read().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found.group(1))

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.processes[0].pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            assert process.wait(30) == 0, self.logs()


def make_adapter(binaries: Path, out: Path, seed: int) -> None:
    subprocess.run([str(binaries / "aludel-bench"), "make-adapter", "--base", "deploy/demo/chat", "--out", str(out),
                    "--rank", "4", "--seed", str(seed), "--strength", "1"], cwd=ROOT, check=True)


def check_errors(servers: Servers, folder: Path) -> None:
    """What is refused, and how that is said."""
    status, reply = servers.load("x", "a0", key="client")
    assert status == 403 and reply["error"]["code"] == "admin_key_required", reply
    for path in ("/etc", "../keys", "..", ".", "missing"):
        status, reply = servers.load("x", path)
        assert status == 400 and "below adapter_root" in reply["error"]["message"], (path, reply)
    for name in ("chat", "a0"):
        status, reply = servers.load(name, "a0")
        assert status == 400 and reply["error"]["param"] == "lora_name", reply
    for kind, why in (("other", "cache_of is none of"), ("base_always", "updates model.layers.0.self_attn.k_proj")):
        status, reply = servers.load("x", "a0", cache_of=kind)
        assert status == 400 and why in reply["error"]["message"], reply
    bad = folder / "adapters" / "bad"
    bad.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (bad / name).write_bytes((folder / "adapters/a0" / name).read_bytes()[:300])
    status, reply = servers.load("x", "bad")
    assert status == 400 and "adapter_" in reply["error"]["message"], reply
    status, reply = servers.unload("nothing")
    assert status == 404, reply
    status, reply = servers.call("/v1/completions", {"model": "nothing", "prompt": "a"})
    assert status == 404 and reply["error"]["code"] == "model_not_found", reply


def check_identity(servers: Servers) -> None:
    """Metrics, logs and traces of a request are its adapter's."""
    before = {port: servers.answered(port) for port in (servers.admin, servers.gateway_admin)}
    for counts in before.values():
        assert sorted(counts) == sorted(["chat", *(f"a{i}" for i in range(ADAPTERS))]), sorted(counts)
    reply = servers.ask("a1", PROMPTS[0])
    deadline = time.monotonic() + WAIT_S
    for port, counts in before.items():
        while (now := servers.answered(port)) != {**counts, "a1": counts["a1"] + 1}:
            assert time.monotonic() < deadline, (port, counts, now)
            time.sleep(0.05)
    line = servers.logged("gateway", rf"^.*\bcompletion_id={reply['id']} .*$")
    assert " model=a1 " in line, line
    request = re.search(r" request_id=(\S+) ", line)
    assert request is not None, line
    line = servers.logged("decode", rf"^.*\brequest={re.escape(request.group(1))}\S* ended: .*$")
    assert "(model a1, " in line, line
    while True:
        models = {service: [attributes(span).get("gen_ai.request.model") for span in list(Collector.spans)
                            if span["service"] == service] for service in ("aludel-gateway", "aludel-decode")}
        if all(found and found[-1] == "a1" for found in models.values()):
            return
        assert time.monotonic() < deadline, {service: found[-5:] for service, found in models.items()}
        time.sleep(0.05)


def check_cache_of(servers: Servers) -> None:
    """One that is added as an adapter over its base's cache is one."""
    long = "The lamp was lit at dusk, and put out at dawn, by the younger brother. " * 8
    servers.answer("chat", long)
    assert servers.load("of-base", "a1", cache_of="base")[0] == 200
    reply = servers.ask("of-base", long)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 50, reply
    for more in ({}, {"cache_of": "base_always"}):
        status, reply = servers.load("of-base", "a1", **more)
        assert status == 422 and 'with cache_of "base": unload it first' in reply["error"]["message"], reply
    status, reply = servers.load("of-base", "a1", cache_of="base")
    assert status == 400 and reply["error"]["param"] == "lora_name", reply
    body = {"prompt": "a b c", "max_tokens": 1, "prompt_logprobs": 1}
    status, reply = servers.call("/v1/completions", {"model": "of-base", **body})
    assert status == 400 and "are not those of adapter of-base" in reply["error"]["message"], reply
    assert servers.call("/v1/completions", {"model": "a1", **body})[0] == 200
    assert servers.unload("of-base")[0] == 200


def come_and_go(servers: Servers, expected: Dict[Tuple[str, str], List[int]], stop: threading.Event,
                faults: List[str]) -> None:
    """Adds an adapter, uses it, removes it, over and over."""
    rounds = 0
    while not stop.is_set():
        name = f"guest{rounds}"
        status, reply = servers.load(name, "a5")
        if status != 200:
            faults.append(f"load {name}: {reply}")
        # The same weights under another name; it goes while the answer comes.
        answer = servers.stream(name, PROMPTS[0])
        ids = next(answer)
        status, reply = servers.unload(name)
        if status != 200:
            faults.append(f"unload {name}: {reply}")
        for more in answer:
            ids += more
        if ids != expected["a5", PROMPTS[0]]:
            faults.append(f"{name} does not answer as a5: {ids}")
        rounds += 1
    if rounds < 3:
        faults.append(f"{rounds} adapters came and went")


def check_other_gateway(servers: Servers, expected: Dict[Tuple[str, str], List[int]]) -> None:
    """What one gateway was told to load, another one lists soon, and then serves."""
    assert servers.load("seen", "a5")[0] == 200
    deadline = time.monotonic() + WAIT_S
    while servers.models(servers.second).get("seen") != "chat":
        assert time.monotonic() < deadline, servers.models(servers.second)
        time.sleep(0.05)
    status, reply = servers.call("/v1/completions", {"model": "seen", "prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0,
                                                     "ignore_eos": True, "return_token_ids": True}, port=servers.second)
    assert status == 200 and reply["choices"][0]["token_ids"] == expected["a5", PROMPTS[0]], reply
    assert servers.unload("seen")[0] == 200
    while "seen" in servers.models(servers.second):
        assert time.monotonic() < deadline, servers.models(servers.second)
        time.sleep(0.05)


def check_series(servers: Servers, names: List[str]) -> None:
    """Adapters that have gone leave no series behind."""
    deadline = time.monotonic() + WAIT_S
    for port in (servers.admin, servers.gateway_admin):
        while (counts := servers.answered(port)).keys() != set(names):
            assert time.monotonic() < deadline, counts
            time.sleep(0.05)


def under_load(servers: Servers, names: List[str], expected: Dict[Tuple[str, str], List[int]], seconds: float) -> None:
    """Every answer is the one that its adapter gave alone."""
    faults: List[str] = []
    stop = threading.Event()
    counts = [0] * THREADS

    def client(number: int) -> None:
        chosen = random.Random(number)
        while not stop.is_set():
            name, prompt = chosen.choice(names), chosen.choice(PROMPTS)
            try:
                found = servers.answer(name, prompt)
            except AssertionError as error:
                faults.append(str(error))
                continue
            if found != expected[name, prompt]:
                faults.append(f"{name}: {found}, want {expected[name, prompt]}")
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
    threads.append(threading.Thread(target=come_and_go, args=(servers, expected, stop, faults)))
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    most = 0.0
    while time.monotonic() - begun < seconds:
        time.sleep(0.1)
        most = max(most, servers.metric('aludel_adapters{model="chat",state="resident"}'))
    stop.set()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - begun
    assert not faults, f"{len(faults)} faults, the first: {faults[0]}"
    assert 0 < most <= RESIDENT, f"{most} adapters were resident"
    evictions = servers.metric('aludel_adapter_events_total{event="evict",model="chat"}')
    assert evictions > ADAPTERS - RESIDENT, evictions
    print(f"{sum(counts)} answers of {TOKENS} tokens over {len(names) - 1} adapters in {spent:.1f} s: "
          f"{sum(counts) * TOKENS / spent:.0f} tokens/s, {evictions:.0f} evictions, "
          f"{servers.resident_mb():.0f} MB, of which adapters "
          f"{servers.metric('aludel_adapter_bytes{model=%s}' % json.dumps('chat')) / 1e6:.1f} MB")


def check(binaries: Path, folder: Path, seconds: float, collector: int) -> None:
    names = [f"a{i}" for i in range(ADAPTERS)]
    for i, name in enumerate(names):
        make_adapter(binaries, folder / "adapters" / name, i + 1)
    servers = Servers(binaries, folder, names[:-1], collector)
    try:
        status, reply = servers.load(names[-1], names[-1])
        assert status == 200 and "added successfully" in reply, reply
        models = servers.models()
        assert models == {"chat": None, **{name: "chat" for name in names}}, models
        assert servers.call(f"/v1/models/{names[0]}")[1]["parent"] == "chat"
        check_errors(servers, folder)
        asked = ["chat", *names]
        expected = {(name, prompt): servers.answer(name, prompt) for prompt in PROMPTS for name in asked}
        for prompt in PROMPTS:
            different = {tuple(expected[name, prompt]) for name in asked}
            assert len(different) > ADAPTERS // 2, f"{len(different)} different answers show little"
        long = "The keeper of the lighthouse wrote a number into the log every night. " * 8
        cached = [servers.ask(name, long)["usage"]["prompt_tokens_details"]["cached_tokens"]
                  for name in ("a0", "a1", "chat", "a0", "a1", "chat")]
        assert cached[:3] == [0, 0, 0] and min(cached[3:]) > 50, cached
        check_identity(servers)
        check_cache_of(servers)
        check_other_gateway(servers, expected)
        under_load(servers, asked, expected, seconds)
        check_series(servers, asked)
        status, reply = servers.unload("a0")
        assert status == 200, reply
        status, reply = servers.call("/v1/completions", {"model": "a0", "prompt": "a"})
        assert status == 404 and "a0" not in servers.models(), reply
    except AssertionError:
        print(servers.logs(), file=sys.stderr)
        raise
    finally:
        servers.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the binaries")
    parser.add_argument("--seconds", type=float, default=10, help="of load")
    options = parser.parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="aludel-adapters-") as folder:
        os.makedirs(Path(folder) / "adapters")
        check(options.bin.resolve(), Path(folder), options.seconds, collector.server_port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
