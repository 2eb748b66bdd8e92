"""One prefill server, one encoder, many adapters: prompts for LoRA adapters come as the base's codes and are decoded with
each adapter's own decoder. Calibrates decoders for three adapters of one model, and starts a prefill server, a decode server
that shares the model among them and a fourth adapter without a decoder, decode servers that have two of them merged, and a
gateway. Every answer of the shared server is that of the server of its own; one encode serves all. In the end the fourth
gets the decoder of the base. Only Python's standard library."""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from stack import PATIENCE, ROOT, free_ports

PRODUCER, BASE = "deploy/demo/base", "deploy/demo/chat"
CODED = ["a1", "a2", "a3"]  # with decoders
BARE = "a4"                 # without
MERGED = ["a1", "a2"]       # on servers of their own, too
RESIDENT = 2
FORMAT = "aludel-p1"
PROMPTS = 16   # to calibrate with: the codes need not be good, only as good as they are on a server of one adapter
QUESTIONS = 3  # of aludel-eval
TOKENS = 16
WAIT_S = 60
THREADS = 6


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"


def calibrate(binaries: Path, folder: Path, *arguments: str) -> None:
    run(str(binaries / "aludel-calibrate"), "--producer", PRODUCER, "--data", "deploy/demo/calibration.jsonl", "--prompts",
        str(PROMPTS), "--held-out", "0.25", "--linear", "--tuning", "0", "--recomputed-layers", "1", "--out", f"{folder}/codec",
        "--threads", "1", *arguments)


def make_codec(binaries: Path, folder: Path) -> None:
    """Decoders of the first two adapters with the encoder, and then one more for the third."""
    calibrate(binaries, folder, *(argument for name in CODED[:2] for argument in ("--consumer", f"{BASE}+{folder}/{name}")))
    calibrate(binaries, folder, "--add", "--consumer", f"{BASE}+{folder}/{CODED[2]}")
    manifest = json.loads((folder / "codec/artifact.json").read_text())
    decoders = [decoder["consumer"] for decoder in manifest["formats"][0]["decoders"]]
    assert len(manifest["formats"]) == 1 and len(decoders) == len(CODED), manifest


def evaluate(binaries: Path, folder: Path) -> None:
    """What aludel-eval says of the three, whose codes are the same bytes."""
    sizes = set()
    for name in CODED:
        out = folder / f"report-{name}"
        run(str(binaries / "aludel-eval"), "--producer", PRODUCER, "--consumer", f"{BASE}+{folder}/{name}", "--codec",
            f"{folder}/codec", "--qa", "deploy/demo/questions.jsonl", "--questions", str(QUESTIONS), "--formats",
            f"raw,{FORMAT}", "--out", str(out), "--threads", "1")
        found = {one["name"]: one for one in json.loads((out / "report.json").read_text())["formats"]}
        kl = {format: one["kl"] for format, one in found.items()}
        print(f"{name}: KL {kl[FORMAT]:.2f} as {FORMAT}, {kl['raw']:.2f} as the base's raw cache")
        assert kl[FORMAT] < kl["raw"], (name, kl)
        sizes.add(found[FORMAT]["bytes_per_token"])
    assert len(sizes) == 1, sizes


class Fleet:
    """The servers, from start to stop."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.folder = folder
        names = ["prefill", "shared", *MERGED]
        ports = free_ports(2 * len(names) + 1)
        self.port = ports.pop()
        self.grpc = dict(zip(names, ports))
        self.admin = dict(zip(names, ports[len(names):]))
        engine = ('threads: 1 max_num_seqs: 8 compute_dtype: "f32" kv_dtype: "f32"')
        for name in names:
            text = f'listen: "127.0.0.1:{self.grpc[name]}"\nadmin_listen: "127.0.0.1:{self.admin[name]}"\n'
            text += f'codec {{ artifact: "{folder}/codec" }}\n'
            if name == "prefill":
                text += f'engine {{ directory: "{PRODUCER}" {engine} }}\n'
            else:
                text += f'prefill_targets: "127.0.0.1:{self.grpc["prefill"]}"\nserved_model_name: "{name}"\n{PATIENCE}'
                merged = f'adapter: "{folder}/{name}"' if name in MERGED else ""
                text += f'engine {{ directory: "{BASE}" {merged} {engine} }}\n'
            if name == "shared":
                text += f"max_resident_adapters: {RESIDENT}\n"
                text += "".join(f'adapters {{ name: "{one}" directory: "{folder}/{one}" }}\n' for one in [*CODED, BARE])
            (folder / f"{name}.textproto").write_text(text)
        text = f'listen: "127.0.0.1:{self.port}"\n'
        for name in names[1:]:
            public = "chat" if name == "shared" else f"only-{name}"
            text += f'models {{ name: "{public}" directory: "{BASE}" decode_targets: "127.0.0.1:{self.grpc[name]}" }}\n'
            (folder / f"{name}.textproto").write_text((folder / f"{name}.textproto").read_text().replace(
                f'served_model_name: "{name}"', f'served_model_name: "{public}"'))
        (folder / "gateway.textproto").write_text(text)
        self.processes: List[subprocess.Popen] = []
        for name in [*names, "gateway"]:
            kind = name if name in ("prefill", "gateway") else "decode"
            with open(folder / f"{name}.log", "wb") as log:
                self.processes.append(subprocess.Popen(
                    [str(binaries / f"aludel-{kind}"), "--config", str(folder / f"{name}.textproto")], cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        for model in ["chat", *(f"only-{name}" for name in MERGED)]:
            self.await_ready(f"http://127.0.0.1:{self.port}/ready?model={model}")
        for name in names[1:]:
            self.await_metric(name, f'aludel_prefill_target_state{{state="ready",target="127.0.0.1:{self.grpc["prefill"]}"}}')

    def check_alive(self, deadline: float) -> None:
        assert time.monotonic() < deadline and all(one.poll() is None for one in self.processes), f"not ready\n{self.logs()}"
        time.sleep(0.05)

    def await_ready(self, url: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except OSError:
                self.check_alive(deadline)

    def await_metric(self, server: str, name: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.metric(server, name) != 1:
            self.check_alive(deadline)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def logs(self) -> str:
        return "\n".join(f"{name}: {self.log(name)[-1500:]}" for name in ("prefill", "shared", "gateway"))

    def metric(self, server: str, name: str) -> float:
        """0 where it is not there yet."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin[server]}/metrics", timeout=5) as reply:
            found = re.search(rf"^{re.escape(name)} (\S+)$", reply.read().decode(), re.MULTILINE)
        return 0 if found is None else float(found.group(1))

    def ask(self, model: str, prompt: str, format: Optional[str] = FORMAT, trace: bool = False) -> Dict[str, Any]:
        about: Dict[str, Any] = {"trace": True} if trace else {}
        if format is not None:
            about["format"] = format
        body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "aludel": about}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{model}: {error.code} {error.read().decode()}") from error

    def answer(self, model: str, prompt: str, format: Optional[str] = FORMAT) -> Tuple[Dict[str, Any], List[int]]:
        reply = self.ask(model, prompt, format)
        return reply["aludel"], reply["choices"][0]["token_ids"]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            assert process.wait(60) == 0, self.logs()


def check_codes(fleet: Fleet, prompts: List[str]) -> Dict[Tuple[str, str], Dict[str, List[int]]]:
    """Every adapter's answers over codes by plan, those of a server of its own where there is one. A prompt that is asked
    again is decoded up to its last full block, and computed from there on, so that its answer may be another one."""
    expected: Dict[Tuple[str, str], Dict[str, List[int]]] = {}
    for number, prompt in enumerate(prompts, start=1):
        for name in CODED:
            about, tokens = fleet.answer(name, prompt)
            assert (about["plan"], about["format"]) == ("remote", FORMAT), (name, about)
            assert 0 < about["payload_bytes"] < about["raw_bytes"] / 8, about
            expected[name, prompt] = {"remote": tokens}
        # One encode serves all of them.
        lookups = {result: fleet.metric("prefill", f'aludel_store_lookups_total{{result="{result}"}}')
                   for result in ("hit", "partial", "miss")}
        assert lookups["miss"] == number and lookups["hit"] >= number * (len(CODED) - 1), lookups
        for name in CODED:
            about, expected[name, prompt]["cached"] = fleet.answer(name, prompt)
            assert about["plan"] == "cached", about
        for name in MERGED:
            own = {about["plan"]: tokens for about, tokens in [fleet.answer(f"only-{name}", prompt) for _ in range(2)]}
            assert own == expected[name, prompt], (name, own, expected[name, prompt])
    for one in CODED:
        for other in CODED:
            assert one == other or any(expected[one, prompt] != expected[other, prompt] for prompt in prompts), (one, other)
    return expected


def check_bare(fleet: Fleet, prompt: str) -> List[int]:
    """What is said where no decoder is for the adapter."""
    reply = fleet.ask(BARE, prompt, trace=True)
    about = reply["aludel"]
    assert about["plan"] == "local" and about["fallback_reason"] == f"no decoder here is for adapter {BARE}", about
    assert about["trace"]["reason"] == "adapter", about["trace"]
    assert [option["plan"] for option in about["trace"]["options"]] == ["local"], about["trace"]
    assert fleet.metric("shared", 'aludel_plans_total{plan="local",reason="adapter"}') >= 1
    # A client hears of it that asks for no trace, and for no format.
    about, _ = fleet.answer(BARE, prompt, format=None)
    assert about["plan"] == "local" and about["fallback_reason"] == f"no decoder here is for adapter {BARE}", about
    assert "trace" not in about, about
    # The base has no decoder either, and takes what needs none.
    about, _ = fleet.answer("chat", prompt, format=None)
    assert about["format"] == "raw" and about["fallback_reason"] is None, about
    return reply["choices"][0]["token_ids"]


def check_cache(fleet: Fleet, prompt: str) -> None:
    """What was decoded for one adapter is found by it, and by no other."""
    long = prompt * 2
    plans = [(name, fleet.answer(name, long)[0]["plan"]) for name in ("a1", "a2", "a1", "a2")]
    assert plans == [("a1", "remote"), ("a2", "remote"), ("a1", "cached"), ("a2", "cached")], plans


def check_shared(fleet: Fleet, binaries: Path, prompt: str) -> None:
    """The base's own decoder is that of an adapter, too, where calibration has found that it loses little enough by it: from
    the next time on that the adapter is loaded."""
    calibrate(binaries, fleet.folder, "--add", "--consumer", BASE)
    calibrate(binaries, fleet.folder, "--share", "--max-kl", "100", "--consumer", f"{BASE}+{fleet.folder}/{BARE}")
    for name in CODED:  # more than are resident
        fleet.answer(name, prompt)
    about, _ = fleet.answer(BARE, prompt)
    assert (about["plan"], about["format"], about["fallback_reason"]) == ("remote", FORMAT, None), about


def under_load(fleet: Fleet, expected: Dict[Tuple[str, str], Dict[str, List[int]]], seconds: float) -> None:
    """Mixed, with fewer places than adapters: every answer is the one it was alone."""
    faults: List[str] = []
    counts = [0] * THREADS
    stop = threading.Event()

    def client(number: int) -> None:
        chosen = random.Random(number)
        while not stop.is_set():
            name, prompt = chosen.choice(list(expected))
            try:
                about, tokens = fleet.answer(name, prompt)
            except AssertionError as error:
                faults.append(str(error))
                continue
            if tokens != expected[name, prompt].get(about["plan"]):
                faults.append(f"{name}: {tokens}, want {expected[name, prompt]}; {about}")
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults, f"{len(faults)} faults of {sum(counts)}, the first: {faults[0]}"
    evictions = fleet.metric("shared", 'aludel_adapter_events_total{event="evict",model="chat"}')
    assert evictions > 2 * RESIDENT, evictions
    print(f"{sum(counts)} answers, {evictions:.0f} evictions")


def check(binaries: Path, folder: Path, seconds: float) -> None:
    for seed, name in enumerate([*CODED, BARE], start=1):
        run(str(binaries / "aludel-bench"), "make-adapter", "--base", BASE, "--out", f"{folder}/{name}", "--rank", "4",
            "--seed", str(seed), "--strength", "0.3")
    make_codec(binaries, folder)
    evaluate(binaries, folder)
    questions = [json.loads(line) for line in (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[:4]]
    prompts = [f'{question["context"]} {question["question"]}' for question in questions]
    fleet = Fleet(binaries, folder)
    try:
        expected = check_codes(fleet, prompts[:3])
        expected[BARE, prompts[0]] = {"local": check_bare(fleet, prompts[0])}
        check_cache(fleet, prompts[3])
        under_load(fleet, expected, seconds)
        check_shared(fleet, binaries, prompts[1])
        log = fleet.log("shared")
        assert log.count("has no decoder for it") == 1, "an adapter without a decoder is logged once"
        assert log.count("its prompts may come as") == len(CODED), log[-1500:]
    except AssertionError:
        print(fleet.logs(), file=sys.stderr)
        raise
    finally:
        fleet.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the binaries")
    parser.add_argument("--seconds", type=float, default=5, help="of load")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-adapter-codes-") as folder:
        check(options.bin.resolve(), Path(folder), options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
