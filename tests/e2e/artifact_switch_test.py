"""The servers follow an artifact that is switched under load: aludel-inspect publishes versions and rolls back, and while
requests flow no one is lost or refused. Behind each switch answers are those of servers that began with that artifact; one of
which a file is torn is refused, and changes nothing. A LoRA adapter beside the model, which has decoders of its own in each
version, follows with it. Only Python's standard library.

    artifact_switch_test.py --bin build/release/bin
"""

import argparse
import hashlib
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from stack import ROOT, Stack

DEMO = ROOT / "deploy/demo/codec"
FORMAT = "aludel-p2"
DECODER = f"{FORMAT}.chat.decoder.safetensors"
SERVERS = ("prefill", "decode-chat", "decode-json")
ADAPTER = "tuned"  # over the model "chat"
QUESTIONS = 5
TOKENS = 6
CLIENTS = 3
WAIT_S = 60
SAME = 0.02   # of a log-probability: what is computed in other batches is rounded elsewhere
OTHER = 0.1
ENTRIES = [json.loads(line) for line in (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[:QUESTIONS]]

Answers = List[List[float]]
Wanted = Tuple[Answers, Answers, Answers]  # handed over, from the decode server's cache of that, and the adapter's handed over


def write_manifest(folder: Path, manifest: Dict[str, Any]) -> None:
    (folder / "artifact.json").write_text(json.dumps(manifest, indent=1))


def make_adapter(binaries: Path, folder: Path) -> str:
    """Its hash, by which its decoders are found."""
    subprocess.run([str(binaries / "aludel-bench"), "make-adapter", "--base", "deploy/demo/chat", "--out", str(folder),
                    "--rank", "4", "--strength", "0.3"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    report = subprocess.run([str(binaries / "aludel-inspect"), "deploy/demo/base", f"deploy/demo/chat+{folder}", "--codec",
                             str(DEMO)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    found = re.search(r"no decoder for this model, whose hash is (\w+)", report)
    assert found, report
    return found.group(1)


def make_plain(folder: Path, adapter: str) -> Path:
    """The demo's artifact, with the decoders of the adapter's base for it, too: as aludel-calibrate --share."""
    shutil.copytree(DEMO, folder)
    manifest = json.loads((folder / "artifact.json").read_text())
    for one in manifest["formats"]:
        of_base = next(decoder for decoder in one["decoders"] if decoder["consumer"] == "chat")
        one["decoders"].append({**of_base, "consumer": f"chat+{ADAPTER}", "hash": adapter})
    write_manifest(folder, manifest)
    return folder


def make_other(folder: Path, plain: Path) -> Path:
    """An artifact whose format of the same name has another encoder: that of aludel-p0."""
    shutil.copytree(plain, folder)
    manifest = json.loads((folder / "artifact.json").read_text())
    formats = {one["name"]: one for one in manifest["formats"]}
    formats[FORMAT]["name"] = "aludel-before"  # for decode-json, which has a decoder of that alone
    formats["aludel-p0"]["name"] = FORMAT
    manifest["formats"] = [formats["aludel-p0"], formats[FORMAT], formats["scd"]]
    write_manifest(folder, manifest)
    return folder


def make_retuned(folder: Path, plain: Path) -> Path:
    """An artifact with the demo's encoders and another decoder: what it brings forth, times 0.7."""
    shutil.copytree(plain, folder)
    file = folder / DECODER
    data = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    changed = 0
    for name, tensor in json.loads(data[8:start]).items():
        if not name.endswith(".out.scale"):  # others are the grid that the encoder has, too
            continue
        begin, end = (start + at for at in tensor["data_offsets"])
        values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        data[begin:end] = struct.pack(f"<{len(values)}f", *(0.7 * value for value in values))
        changed += len(values)
    assert changed > 0, "the decoder has no scales of its last layer"
    file.write_bytes(data)
    manifest = json.loads((folder / "artifact.json").read_text())
    for one in manifest["formats"]:
        for decoder in one["decoders"]:
            if decoder["file"] == DECODER:
                decoder["sha256"] = hashlib.sha256(data).hexdigest()
    write_manifest(folder, manifest)
    return folder


def tear(folder: Path, plain: Path) -> Path:
    """What a copy that was cut off leaves."""
    shutil.copytree(plain, folder)
    file = folder / f"{FORMAT}.encoder.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    return folder


def ask(stack: Stack, entry: Dict[str, str], model: str, **wish: Any) -> Dict[str, Any]:
    body = {"model": model, "max_tokens": TOKENS, "temperature": 0, "logprobs": True, "ignore_eos": True,
            "aludel": {"fidelity": "fast", "format": FORMAT, **wish},
            "messages": [{"role": "user", "content": entry["context"] + "\n" + entry["question"]}]}
    request = urllib.request.Request(f"{stack.url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer = json.load(reply)
    assert len(answer["choices"][0]["logprobs"]["content"]) == TOKENS, answer
    return answer


def answers(stack: Stack, plan: str, model: str = "chat", **wish: Any) -> Answers:
    found = []
    for entry in ENTRIES:
        answer = ask(stack, entry, model, **wish)
        assert answer["aludel"]["plan"] == plan, answer["aludel"]
        found.append([one["logprob"] for one in answer["choices"][0]["logprobs"]["content"]])
    return found


def handed_over(stack: Stack, model: str = "chat") -> Answers:
    """Whose codes come from the prefill server, from its store or computed, and not from what the decode server has cached."""
    return answers(stack, "remote", model, max_staleness_ms=10 ** 9)


def cached(stack: Stack) -> Answers:
    """Over what handoffs have left at the decode server; the end of each prompt is computed there."""
    return answers(stack, "cached")


def all_of(stack: Stack) -> Wanted:
    return handed_over(stack), cached(stack), handed_over(stack, ADAPTER)


def distance(one: Answers, other: Answers) -> float:
    return max(abs(a - b) for x, y in zip(one, other) for a, b in zip(x, y))


def wait_for(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.05)


def metric(stack: Stack, server: str, name: str, labels: str = "") -> float:
    """Sum over the series with these labels."""
    url = f"http://127.0.0.1:{stack.ports[server]['admin_listen']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as reply:
        text = reply.read().decode()
    found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for series, value in found if labels in series)


class Load:
    """Clients that ask all the time, but while `paused`."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.asked = 0
        self.remote = 0
        self.failures: List[str] = []
        self.stopping = False
        self.lock = threading.Lock()
        self.running = 0
        self.go = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, number: int) -> None:
        while not self.stopping:
            if not self.go.wait(0.1):
                continue
            with self.lock:
                self.running += 1
            try:
                model = ADAPTER if number % 4 == 0 else "chat"
                plan = ask(self.stack, ENTRIES[number % QUESTIONS], model, max_staleness_ms=10 ** 9)["aludel"]["plan"]
                failure = ""
            except Exception as error:  # pylint: disable=broad-except  # each is a lost request
                plan, failure = "", f"{type(error).__name__}: {error}"
            number += 1
            with self.lock:
                self.running -= 1
                self.asked += 1
                self.remote += plan == "remote"
                if failure:
                    self.failures.append(failure)

    def flow(self, requests: int) -> None:
        """For so many more of them."""
        until = self.asked + requests
        self.go.set()
        wait_for(f"{requests} more answers under load", lambda: self.asked >= until)

    def pause(self) -> None:
        self.go.clear()
        wait_for("the clients pause", lambda: self.running == 0)

    def stop(self) -> None:
        self.stopping = True
        self.go.set()
        for thread in self.threads:
            thread.join()


def start(binaries: Path, folder: Path, artifact: str) -> Stack:
    folder.mkdir()
    adapter = f'adapters {{ name: "{ADAPTER}" directory: "{folder.parent / ADAPTER}" }}\n'
    stack = Stack(binaries, folder, {"decode-chat": adapter}, replaced={
        'artifact: "deploy/demo/codec"': f'artifact: "{artifact}" reload_interval_ms: 50 keep_previous_ms: 3000'})
    try:
        stack.wait_until_ready()
    except Exception:
        stack.stop()
        raise
    return stack


def fresh(binaries: Path, folder: Path, artifact: Path) -> Wanted:
    """Of servers that began with this artifact."""
    stack = start(binaries, folder, str(artifact))
    try:
        return all_of(stack)
    finally:
        stack.stop()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    binaries = parser.parse_args().bin.resolve()
    with tempfile.TemporaryDirectory(prefix="aludel-switch-") as name:
        folder = Path(name)
        versions = folder / "codec"
        plain = make_plain(folder / "plain", make_adapter(binaries, folder / ADAPTER))
        other, retuned, torn = (make(folder / make.__name__, plain) for make in (make_other, make_retuned, tear))

        def inspect(*arguments: str) -> subprocess.CompletedProcess:
            return subprocess.run([str(binaries / "aludel-inspect"), "artifact", *arguments], cwd=ROOT,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

        def publish(artifact: Path) -> None:
            done = inspect("publish", str(versions), str(artifact))
            assert done.returncode == 0, done.stdout

        wanted_other = fresh(binaries, folder / "stack-other", other)
        wanted_retuned = fresh(binaries, folder / "stack-retuned", retuned)
        publish(plain)
        stack = start(binaries, folder / "stack", str(versions / "current"))
        load = None
        try:
            before = all_of(stack)
            assert distance(before[0], before[2]) > OTHER, "an adapter that changes nothing"
            for wanted in (wanted_other, wanted_retuned):
                for one, another in zip(before, wanted):
                    assert distance(one, another) > OTHER, "artifacts that cannot be told apart"
            load = Load(stack)

            def follow(version: str, wanted: Wanted, what: str) -> None:
                load.flow(2 * CLIENTS)
                for server in SERVERS:
                    wait_for(f"{server} uses {version}",
                             lambda: metric(stack, server, "aludel_artifact_info", f'version="{version}"') == 1)
                load.flow(2 * CLIENTS)
                load.pause()
                assert not load.failures, load.failures
                # What the decode server has learned of the prefill server may be a probe old.
                wait_for(f"answers of {version}", lambda: distance(handed_over(stack), wanted[0]) < SAME)
                # What was cached under another decoder is not taken.
                assert distance(cached(stack), wanted[1]) < SAME, what
                assert distance(handed_over(stack, ADAPTER), wanted[2]) < SAME, f"the adapter: {what}"
                print(f"{what}: {load.asked} answers under load so far, {load.remote} of them handed over", flush=True)

            follow("0001", before, "the first version")
            publish(other)
            follow("0002", wanted_other, "another encoder")
            assert inspect("rollback", str(versions)).returncode == 0
            follow("0001", before, "rolled back")
            load.pause()
            computed = metric(stack, "prefill", "aludel_engine_events_total", 'event="prompt_token"')
            publish(retuned)
            follow("0003", wanted_retuned, "another decoder")
            assert metric(stack, "prefill", "aludel_engine_events_total", 'event="prompt_token"') == computed, (
                "the store has what the same encoder made")

            done = inspect("publish", str(versions), str(torn))
            assert done.returncode == 2 and "the manifest says" in done.stdout, done.stdout
            shutil.copytree(torn, versions / "versions/0004")  # past the command
            (versions / ".by-hand").symlink_to("versions/0004")
            (versions / ".by-hand").rename(versions / "current")
            load.flow(CLIENTS)
            for server in SERVERS:
                wait_for(f"{server} refuses the torn one",
                         lambda: metric(stack, server, "aludel_artifact_switches_total", 'result="refused"') >= 1)
            follow("0003", wanted_retuned, "a torn one refused")
            assert inspect("rollback", str(versions), "0003").returncode == 0
            follow("0003", wanted_retuned, "and mended")
            for server in SERVERS:
                wait_for(f"{server} has freed the old ones", lambda: metric(stack, server, "aludel_artifacts_held") == 1)
            load.stop()
            assert not load.failures, load.failures
            assert load.remote > load.asked / 2, f"{load.remote} of {load.asked} were handed over"
            stack.check()
            return 0
        except (AssertionError, RuntimeError):
            print(stack.log_tails(), file=sys.stderr)
            raise
        finally:
            if load is not None:
                load.stop()
            stack.stop()


if __name__ == "__main__":
    sys.exit(main())
