"""Writes the golden files that the C++ runtime is tested against, from the PyTorch reference.

For each checkpoint NAME of the demo pair:

NAME.safetensors holds six prompts: `prompt.I.ids`; `prompt.I.positions`, five with the last one
included; `prompt.I.logits` [5, vocab] in mode exact; `prompt.I.logits_bf16_kv` [vocab] of the last
position in mode bf16-kv. For prompt 0 in mode exact there is also `hidden` [layers, 2, hidden],
the residual after each layer at the last two positions, and for two layers L `layer.L.k` and `.v`
(before rotation) and `.h` (normalized attention input) at `layer.positions`. All is computed in
float64 and stored as float32, so that a test's tolerance need only cover the implementation under
test.

NAME.greedy.jsonl holds 200 prompts, computed in float32: {"question": line of questions.jsonl,
from 0, "prompt": ids, "exact": {...}, "bf16_kv": {...}}. Each mode has the greedy "tokens" (the
eos included, at most 24) and each step's "gaps" between the two best logits. Where a gap is small,
an implementation that adds in another order may rightly choose the other token, and differ from
there on.
"""

import argparse
import json
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import torch

import questions
from questions import Entry
from reference import Probe, Reference, write_safetensors
from tokenizer import END, Tokenizer

DEMO = Path(__file__).resolve().parent.parent
GOLDEN = DEMO.parent.parent / "tests/runtime/model/golden"

LOGIT_PROMPTS = 6
MAX_NEW = 24
PROBED_LAYERS = (0, 5)  # the first, and one that reads the work of many others

PROMPTS: Dict[str, Callable[[Entry], str]] = {
    "base": questions.base_prompt,
    "chat": questions.chat_prompt,
}


def encode_prompts(name: str, entries: Sequence[Entry]) -> List[List[int]]:
    """Renders and encodes the prompts of one checkpoint."""
    tokenizer = Tokenizer(str(DEMO / name / "tokenizer.json"))
    return [tokenizer.encode(PROMPTS[name](entry)) for entry in entries]


def logit_golden(name: str, prompts: Sequence[List[int]]) -> Dict[str, torch.Tensor]:
    """Computes the tensors of NAME.safetensors."""
    exact = Reference(str(DEMO / name), torch.float64)
    rounded = Reference(str(DEMO / name), torch.float64, kv="bf16-kv")
    tensors: Dict[str, torch.Tensor] = {}
    for index, ids in enumerate(prompts):
        probe = Probe()
        logits, _ = exact.forward(ids, probe=probe)
        positions = [0, 1, len(ids) // 3, 2 * len(ids) // 3, len(ids) - 1]
        prefix = f"prompt.{index}."
        tensors[prefix + "ids"] = torch.tensor(ids, dtype=torch.int32)
        tensors[prefix + "positions"] = torch.tensor(positions, dtype=torch.int32)
        tensors[prefix + "logits"] = logits[positions].float()
        tensors[prefix + "logits_bf16_kv"] = rounded.forward(ids)[0][-1].float()
        if index == 0:
            tensors.update(layer_golden(probe, len(ids)))
    return tensors


def layer_golden(probe: Probe, length: int) -> Dict[str, torch.Tensor]:
    """Picks the intermediate values of one prompt that a test can localize an error with."""
    positions = [*range(4), *range(length // 2, length // 2 + 4), *range(length - 4, length)]
    tensors = {
        "hidden": torch.stack([hidden[-2:] for hidden in probe.hidden]).float(),
        "layer.positions": torch.tensor(positions, dtype=torch.int32),
    }
    for layer in PROBED_LAYERS:
        tensors[f"layer.{layer}.k"] = probe.k[layer][positions].float()
        tensors[f"layer.{layer}.v"] = probe.v[layer][positions].float()
        tensors[f"layer.{layer}.h"] = probe.h[layer][positions].float()
    return tensors


def write_greedy(name: str, prompts: Sequence[List[int]], path: Path) -> None:
    """Writes NAME.greedy.jsonl and prints how many steps are near ties."""
    models = {
        "exact": Reference(str(DEMO / name)),
        "bf16_kv": Reference(str(DEMO / name), kv="bf16-kv"),
    }
    ties = steps = differ = 0
    with open(path, "w", encoding="utf8") as out:
        for index, ids in enumerate(prompts):
            record: Dict[str, object] = {"question": index, "prompt": ids}
            outputs = []
            for mode, model in models.items():
                tokens, gaps = model.greedy(ids, MAX_NEW, END)
                record[mode] = {"tokens": tokens, "gaps": [float(f"{gap:.3g}") for gap in gaps]}
                outputs.append(tokens)
                steps += len(gaps)
                ties += sum(gap < 1e-3 for gap in gaps)
            differ += outputs[0] != outputs[1]
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
            if (index + 1) % 50 == 0:
                print(f"{name}: {index + 1} of {len(prompts)} prompts", flush=True)
    print(
        f"{name}: {ties} of {steps} steps have a gap below 1e-3; modes differ on {differ} prompts"
    )


def main() -> None:
    """Writes all golden files of the demo pair."""
    parser = argparse.ArgumentParser(description="Write the demo pair's golden files.")
    parser.add_argument("--out", type=Path, default=GOLDEN, help="directory to write to")
    parser.add_argument("--skip-greedy", action="store_true", help="write logits only (seconds)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    entries = questions.read(str(DEMO / "questions.jsonl"))
    for name in PROMPTS:
        prompts = encode_prompts(name, entries)
        tensors = logit_golden(name, prompts[:LOGIT_PROMPTS])
        write_safetensors(args.out / f"{name}.safetensors", tensors)
        print(f"{name}: logits of {LOGIT_PROMPTS} prompts", flush=True)
        if not args.skip_greedy:
            write_greedy(name, prompts, args.out / f"{name}.greedy.jsonl")


if __name__ == "__main__":
    main()
