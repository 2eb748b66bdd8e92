"""What do adapters over one decode server cost beside a server for each? Makes --adapters LoRA adapters over --base, asks for
them from --clients at once, and prints tokens a second, latency and memory of

    one          one decode server that knows all of them, at most --resident of them in memory
    one, all in  the same with room for all
    one each     a decode server for each, the adapter merged into its weights at load; --servers of them at most

behind a gateway. Answers of the first two have to be equal; how many of the third are is said, as a merged adapter is rounded
elsewhere. Adapters are asked for equally often, or (--zipf) the k-th in
proportion to 1/k. Memory is what only these processes have plus their share of what several have (Pss of smaps_rollup).
Tokens a second want a machine that is otherwise idle; tokens per second of processor time, of the decode servers alone, hardly do.

    many_adapters.py --bin build/release/bin [--adapters 64] [--resident 8] [--seconds 20] [--zipf]
"""

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from stack import ROOT, free_ports  # noqa: E402

PROMPTS = ["Which color is the bike?", "Count to five.", "Who keeps the lighthouse?"]
READY_S = 300

Answers = Dict[Tuple[str, str], List[int]]


class Result(NamedTuple):
    """Of one arm."""

    tokens_per_second: float
    tokens_per_cpu_second: float
    p50: float
    p99: float
    memory_mb: float  # of the decode servers
    idle_mb: float    # of them, before the first request
    answers: Answers


class Arm:
    """Decode servers and a gateway, from start to stop."""

    def __init__(self, options: argparse.Namespace, folder: Path, settings: Dict[str, str]) -> None:
        """`settings`: of each decode server, by its model's name. One alone has all threads, of several each has one."""
        self.folder = folder
        folder.mkdir()
        self.port, *ports = free_ports(1 + len(settings))
        engine = f'directory: "{options.base}" threads: {options.threads if len(settings) == 1 else 1} max_num_seqs: 16 compute_dtype: "{options.compute}"'
        models = ""
        self.processes: List[subprocess.Popen] = []
        for (name, text), port in zip(settings.items(), ports):
            text = text.replace("ENGINE", f"{engine} {options.engine}")
            self._start(options.bin, "decode", name,
                        f'listen: "127.0.0.1:{port}"\nadmin_listen: ""\nserved_model_name: "{name}"\n{text}')
            models += f'models {{ name: "{name}" directory: "{options.base}" decode_targets: "127.0.0.1:{port}" }}\n'
        self._start(options.bin, "gateway", "gateway", f'listen: "127.0.0.1:{self.port}"\nadmin_listen: ""\n{models}')
        deadline = time.monotonic() + READY_S
        for name in settings:
            while not self._ready(name):
                if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                    raise SystemExit(f"{name} is not ready: {(folder / f'{name}.log').read_text()[-2000:]}")
                time.sleep(0.1)

    def _start(self, binaries: Path, kind: str, name: str, text: str) -> None:
        (self.folder / f"{name}.textproto").write_text(text)
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes.append(subprocess.Popen(
                [str(binaries / f"aludel-{kind}"), "--config", str(self.folder / f"{name}.textproto")], cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _ready(self, name: str) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready?model={name}", timeout=5).close()
        except OSError:
            return False
        return True

    def ask(self, model: str, prompt: str, tokens: int) -> List[int]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
             "return_token_ids": True}))
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{model}: {response.status} {body!r}")
        return json.loads(body)["choices"][0]["token_ids"]

    def cpu_seconds(self) -> float:
        ticks = 0
        for process in self.processes[:-1]:
            ticks += sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        total = 0
        for process in self.processes[:-1]:
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        return total / 1024

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(120)


def measure(options: argparse.Namespace, folder: Path, settings: Dict[str, str], names: List[str]) -> Result:
    """Asks for `names` until the time is up, each client for one answer at a time."""
    weights = [1 / (k + 1) if options.zipf else 1.0 for k in range(len(names))]
    arm = Arm(options, folder, settings)
    faults: List[str] = []
    seconds: List[float] = []
    end = [0.0]

    def client(number: int) -> None:
        chosen = random.Random(number)
        while (begun := time.monotonic()) < end[0] and not faults:
            try:
                arm.ask(chosen.choices(names, weights)[0], chosen.choice(PROMPTS), options.tokens)
            except (OSError, RuntimeError) as error:
                faults.append(str(error))
            seconds.append(time.monotonic() - begun)

    try:
        idle = arm.memory_mb()
        answers = {(name, prompt): arm.ask(name, prompt, options.tokens) for name in names for prompt in PROMPTS}
        begun, used = time.monotonic(), arm.cpu_seconds()
        end[0] = begun + options.seconds
        threads = [threading.Thread(target=client, args=(number,)) for number in range(options.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent, used = time.monotonic() - begun, arm.cpu_seconds() - used
        if faults:
            raise SystemExit(f"{folder.name}: {faults[0]}")
        seconds.sort()
        tokens = len(seconds) * options.tokens
        return Result(tokens / spent, tokens / used, seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)],
                      arm.memory_mb(), idle, answers)
    finally:
        arm.stop()


def run(options: argparse.Namespace, folder: Path) -> None:
    names = [f"a{i}" for i in range(options.adapters)]
    for seed, name in enumerate(names, start=1):
        subprocess.run([str(options.bin / "aludel-bench"), "make-adapter", "--base", options.base, "--out",
                        str(folder / name), "--rank", str(options.rank), "--seed", str(seed), "--strength", "1"], cwd=ROOT,
                       check=True)
    known = "".join(f'adapters {{ name: "{name}" directory: "{folder}/{name}" }}\n' for name in names)

    def together(resident: int) -> Dict[str, str]:
        return {"base": f"engine {{ ENGINE }}\n{known}max_resident_adapters: {resident}\n"}

    apart = names[:options.servers]
    arms = {
        f"one, {options.resident} resident": (together(options.resident), names),
        "one, all resident": (together(len(names)), names),
        "one each": ({name: f'engine {{ ENGINE adapter: "{folder}/{name}" }}\n' for name in apart}, apart),
    }
    print("decode servers | adapters | tokens/s | tokens per CPU s | p50 s | p99 s | MB idle | MB after load")
    results: List[Result] = []
    for number, (name, (settings, asked)) in enumerate(arms.items()):
        result = measure(options, folder / f"arm{number}", settings, asked)
        print(f"{name} | {len(asked)} | {result.tokens_per_second:.0f} | {result.tokens_per_cpu_second:.0f} | {result.p50:.3f} | {result.p99:.3f} | "
              f"{result.idle_mb:.0f} | {result.memory_mb:.0f}", flush=True)
        results.append(result)
    one, roomy, each = results
    if one.answers != roomy.answers:
        raise SystemExit("answers depend on how many adapters are resident")
    speed = one.tokens_per_second / each.tokens_per_second
    cheaper = one.tokens_per_cpu_second / each.tokens_per_cpu_second
    scale = len(names) / len(apart)
    equal = sum(one.answers[key] == answer for key, answer in each.answers.items())
    print(f"one server for {len(names)} adapters beside one each: {speed:.2f} of the tokens/s, "
          f"{cheaper:.2f} of the tokens per CPU s, 1/{each.memory_mb * scale / one.memory_mb:.1f} of the memory"
          + (f" (that of {len(apart)} servers times {scale:g})" if scale > 1 else "")
          + f"; {equal} of {len(each.answers)} answers are equal")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--base", default="deploy/demo/chat", help="model directory")
    parser.add_argument("--adapters", type=int, default=64)
    parser.add_argument("--resident", type=int, default=8)
    parser.add_argument("--servers", type=int, default=64, help="of one each; fewer: their memory is multiplied")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--seconds", type=float, default=20, help="of load for each arm")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the one decode server; of one each, one")
    parser.add_argument("--compute", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--engine", default='kv_blocks: 256 kv_dtype: "f32"', help="more settings of each engine")
    parser.add_argument("--zipf", action="store_true")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    options.servers = min(options.servers, options.adapters)
    with tempfile.TemporaryDirectory(prefix="aludel-many-adapters-") as folder:
        run(options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
