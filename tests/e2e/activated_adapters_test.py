"""Activated adapters (aLoRA) over the cache of their base: an adapter that acts from its invocation on gives the same tokens
whether the prompt before that was computed for it alone, found in the base's prefix cache, or handed over by a prefill server
of the base. So does one that was trained to go on from its base's cache (cache_of "base"), from the prompt's last token on, and one that
never makes a cache (cache_of "base_always"), whose answers' cache is the base's, too. Only Python's standard library."""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional

from stack import PATIENCE, ROOT, free_ports

MODEL = "deploy/demo/chat"
INVOCATION = [700, 701, 702]
ADAPTERS = ["x1", "x2"]
OF_BASE = ["p1", "p2"]  # cache_of "base": they act from the last token of a prompt on
READING = ["i1", "i2"]  # cache_of "base_always": they choose tokens over their base's cache
FORMATS = ["raw", "lossless", "int8"]  # of the base
BLOCK = 16
TOKENS = 16
WAIT_S = 60


class Fleet:
    """A prefill server, a decode server that it hands over to, one that shares nothing with any request, and a gateway."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self.folder = folder
        self.port, prefill, shared, alone = free_ports(4)
        # The cache in bf16, so that raw frames bring all of it.
        engine = f'directory: "{MODEL}" threads: 1 max_num_seqs: 8 compute_dtype: "f32" kv_dtype: "bf16"'
        codec = "codec { " + " ".join(f'formats: "{name}"' for name in FORMATS) + " }\n"
        adapters = "".join(f'adapters {{ name: "%s{name}" directory: "{folder}/{name}" }}\n' for name in ADAPTERS)
        for kind, names in (("base", OF_BASE), ("base_always", READING)):
            adapters += "".join(f'adapters {{ name: "%s{name}" directory: "{folder}/{name}" cache_of: "{kind}" }}\n'
                                for name in names)
        texts = {
            "prefill": f'listen: "127.0.0.1:{prefill}"\nadmin_listen: ""\nengine {{ {engine} }}\n{codec}',
            "shared": f'listen: "127.0.0.1:{shared}"\nadmin_listen: ""\nserved_model_name: "chat"\nengine {{ {engine} }}\n'
                      f'prefill_targets: "127.0.0.1:{prefill}"\n{codec}{PATIENCE}{adapters.replace("%s", "")}',
            "alone": f'listen: "127.0.0.1:{alone}"\nadmin_listen: ""\nserved_model_name: "alone-chat"\n'
                     f'engine {{ {engine} prefix_cache: false }}\n{adapters.replace("%s", "alone-")}',
            "gateway": f'listen: "127.0.0.1:{self.port}"\n'
                       f'models {{ name: "chat" directory: "{MODEL}" decode_targets: "127.0.0.1:{shared}" }}\n'
                       f'models {{ name: "alone-chat" directory: "{MODEL}" decode_targets: "127.0.0.1:{alone}" }}\n'}
        self.processes: List[subprocess.Popen] = []
        for name, text in texts.items():
            (folder / f"{name}.textproto").write_text(text)
            kind = name if name in ("prefill", "gateway") else "decode"
            with open(folder / f"{name}.log", "wb") as log:
                self.processes.append(subprocess.Popen(
                    [str(binaries / f"aludel-{kind}"), "--config", str(folder / f"{name}.textproto")], cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        deadline = time.monotonic() + WAIT_S
        while not self.ready():
            assert time.monotonic() < deadline and all(one.poll() is None for one in self.processes), self.logs()
            time.sleep(0.05)

    def ready(self) -> bool:
        try:
            for model in ("chat", "alone-chat"):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready?model={model}", timeout=2).close()
        except OSError:
            return False
        return re.search(r" is ready: .*\braw\b", (self.folder / "shared.log").read_text()) is not None

    def logs(self) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text()[-1500:] for name in ("prefill", "shared", "alone"))

    def ask(self, model: str, prompt: List[int], about: Dict[str, Any]) -> Dict[str, Any]:
        body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "aludel": about}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{model}: {error.code} {error.read().decode()}") from error
        return {**answer["aludel"], "tokens": answer["choices"][0]["token_ids"],
                "cached": answer["usage"]["prompt_tokens_details"]["cached_tokens"]}

    def exact(self, model: str, prompt: List[int]) -> Dict[str, Any]:
        return self.ask(model, prompt, {"fidelity": "exact"})

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            assert process.wait(60) == 0, self.logs()


def check_prompt(fleet: Fleet, prompt: List[int], begin: Optional[int], adapters: List[str]) -> None:
    """`begin`: where the last invocation is, or the last token of a prompt; None: the base alone answers."""
    alone = {name: fleet.exact(f"alone-{name}", prompt)["tokens"] for name in ["chat", *adapters]}
    before = len(prompt) if begin is None else begin
    # What comes for one is the base's, and so the other's, too.
    for name, plan in zip(adapters, ("remote", "cached")):
        raw = fleet.ask(name, prompt, {"format": "raw"})
        assert raw["plan"] == plan and raw["tokens"] == alone[name], (name, raw, alone)
        if plan == "remote":
            assert before - 1 <= raw["handed_over_tokens"] <= before, (name, raw)
        else:
            assert before - BLOCK < raw["cached"] <= before, (name, raw)
    # The base leaves its prompt's cache, and the adapters take what is before them.
    assert fleet.exact("chat", prompt)["tokens"] == alone["chat"]
    whole = (len(prompt) - 1) // BLOCK * BLOCK
    for name in adapters:
        first, second = (fleet.exact(name, prompt) for _ in range(2))
        assert first["cached"] == (whole if begin is None else begin // BLOCK * BLOCK), (name, begin, first)
        assert second["cached"] == whole, (name, second)
        assert first["tokens"] == second["tokens"] == alone[name], (name, first, second, alone)
    # None of what they left answers for the base.
    assert fleet.exact("chat", prompt)["tokens"] == alone["chat"]
    different = {tuple(tokens) for tokens in alone.values()}
    assert len(different) == (1 if begin is None else 3), alone


def check_formats(fleet: Fleet, name: str, prompt: List[int], before: int) -> None:
    """`before`: tokens of the prompt whose cache is the base's. They come in its formats; what one of them loses is its own."""
    alone = fleet.exact(f"alone-{name}", prompt)["tokens"]
    for kind in FORMATS[1:]:
        answer = fleet.ask(name, prompt, {"format": kind})
        assert answer["plan"] == "remote" and answer["format"] == kind, (name, answer)
        assert min(before, len(prompt) - 1) - 1 <= answer["handed_over_tokens"] <= before, (name, answer)
        assert kind != "lossless" or answer["tokens"] == alone, (name, answer, alone)


def check_reading(fleet: Fleet, prompt: List[int]) -> None:
    """All of the cache is the base's: of the prompt, and of what each answered."""
    names = ["chat", *READING]
    alone = {name: fleet.exact(f"alone-{name}", prompt)["tokens"] for name in names}
    assert len({tuple(tokens) for tokens in alone.values()}) == 3, alone
    whole = (len(prompt) - 1) // BLOCK * BLOCK
    for name, plan in zip(READING, ("remote", "cached")):
        raw = fleet.ask(name, prompt, {"format": "raw"})
        assert raw["plan"] == plan and raw["tokens"] == alone[name], (name, raw, alone)
        # Not less than the base would ask for, and not more than there is before the token whose answer is asked for.
        assert plan == "cached" or raw["handed_over_tokens"] == len(prompt) - 1, (name, raw)
    assert fleet.exact(READING[0], prompt)["tokens"] == alone[READING[0]]
    for name in (READING[1], "chat"):
        after = fleet.exact(name, prompt)
        assert after["cached"] == whole and after["tokens"] == alone[name], (name, after, alone)
    # The next turn goes on from the answers of any of them, for all of them.
    for spoke in names:
        turn = [*prompt, *alone[spoke], *prompt[:3]]
        left = (len(prompt) + TOKENS - 1) // BLOCK * BLOCK
        assert left > whole
        for name in names:
            # Of the turn itself the first one leaves the rest.
            answer = fleet.exact(name, turn)
            assert answer["cached"] >= left, (spoke, name, answer)
            assert answer["tokens"] == fleet.exact(f"alone-{name}", turn)["tokens"], (spoke, name, answer)


def check(binaries: Path, folder: Path) -> None:
    for seed, name in enumerate([*ADAPTERS, *OF_BASE, *READING], start=1):
        more = ["--reads-only"] if name in READING else []
        subprocess.run([str(binaries / "aludel-bench"), "make-adapter", "--base", MODEL, "--out", f"{folder}/{name}", "--rank",
                        "4", "--seed", str(seed), "--strength", "1", *more], cwd=ROOT, check=True)
    for name in ADAPTERS:
        config = folder / name / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "alora_invocation_tokens": INVOCATION}))
    chosen = random.Random(1)

    def ids(count: int) -> List[int]:
        return [chosen.randrange(10, 600) for _ in range(count)]

    fleet = Fleet(binaries, folder)
    try:
        text = ids(100)
        check_prompt(fleet, [*text, *INVOCATION, *ids(9)], 100, ADAPTERS)
        # At a block's edge, behind an earlier one, and as the prompt's last tokens.
        check_prompt(fleet, [*ids(96), *INVOCATION, *ids(40)], 96, ADAPTERS)
        check_prompt(fleet, [*ids(40), *INVOCATION, *ids(57), *INVOCATION, *ids(5)], 100, ADAPTERS)
        check_prompt(fleet, [*ids(90), *INVOCATION], 90, ADAPTERS)
        check_prompt(fleet, [*ids(80), *INVOCATION[:2], *ids(20)], None, ADAPTERS)
        # Within a block, and at its edge.
        for count in (75, 97):
            check_prompt(fleet, ids(count), count - 1, OF_BASE)
            check_reading(fleet, ids(count))
        check_formats(fleet, ADAPTERS[0], [*text[:50], *INVOCATION, *ids(9)], 50)
        check_formats(fleet, OF_BASE[0], ids(70), 69)
        check_formats(fleet, READING[0], ids(70), 70)
    except AssertionError:
        print(fleet.logs(), file=sys.stderr)
        raise
    finally:
        fleet.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the binaries")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-activated-") as folder:
        check(options.bin.resolve(), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
