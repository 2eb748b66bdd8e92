"""Writes the golden files that the C++ runtime is tested against, from the PyTorch reference.

For each checkpoint NAME of the demo pair:

NAME.safetensors holds six prompts: `prompt.I.ids`; `prompt.I.positions`, five with the last one
included, less those that an earlier prompt has with the same ids up to there; `prompt.I.logits`
[positions, vocab] in mode exact; `prompt.I.logits_bf16_kv` [vocab] of the last position in mode
bf16-kv. For prompt 0 in mode exact there is also `hidden` [layers, 2, hidden],
the residual after each layer at the last two positions, and for two layers L `layer.L.k` and `.v`
(before rotation) and `.h` (normalized attention input) at `layer.positions`. All is computed in
float64 and stored as float32, so that a test's tolerance need only cover the implementation under
test.

NAME.greedy.jsonl holds a line for each question of questions.jsonl, computed in float32: what
stands "before" and "behind" its context in the prompt, a hash of the prompt's ids ("prompt_hash"),
and "answers" by mode, of chat in both, of base in bf16-kv. Each has the greedy "tokens" (the eos
included, at most 24) and the "near_ties": [step, gap] where the gap between the two best logits is
small, so that an implementation that adds in another order may rightly choose the other token, and
differ from there on.
"""

import argparse
import json
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Set, Tuple

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

NEAR_TIE = 0.05  # more than a test's tolerance
MODES = {"base": ("bf16_kv",), "chat": ("exact", "bf16_kv")}  # that a test compares with

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
    seen: Set[Tuple[int, ...]] = set()
    for index, ids in enumerate(prompts):
        probe = Probe()
        logits, _ = exact.forward(ids, probe=probe)
        positions = [0, 1, len(ids) // 3, 2 * len(ids) // 3, len(ids) - 1]
        positions = [at for at in positions if tuple(ids[: at + 1]) not in seen]
        seen.update(tuple(ids[: at + 1]) for at in positions)
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


def prompt_hash(ids: Sequence[int]) -> str:
    """FNV-1a of 64 bits, an id a step; tests/testing/greedy_golden.h has the same."""
    value = 0xCBF29CE484222325
    for token in ids:
        value = ((value ^ token) * 0x100000001B3) & (2**64 - 1)
    return f"{value:x}"


def write_greedy(
    name: str, entries: Sequence[Entry], prompts: Sequence[List[int]], path: Path
) -> None:
    """Writes NAME.greedy.jsonl and prints how many steps are near ties."""
    models = {
        mode: Reference(str(DEMO / name), kv="bf16-kv" if mode == "bf16_kv" else "exact")
        for mode in MODES[name]
    }
    ties = steps = 0
    with open(path, "w", encoding="utf8") as out:
        for index, (entry, ids) in enumerate(zip(entries, prompts)):
            before, behind = PROMPTS[name](entry).split(entry.context)
            answers: Dict[str, object] = {}
            for mode, model in models.items():
                tokens, gaps = model.greedy(ids, MAX_NEW, END)
                near = [
                    [step, float(f"{gap:.3g}")] for step, gap in enumerate(gaps) if gap < NEAR_TIE
                ]
                answers[mode] = {"tokens": tokens, "near_ties": near}
                steps += len(gaps)
                ties += len(near)
            record = {
                "before": before,
                "behind": behind,
                "prompt_hash": prompt_hash(ids),
                "answers": answers,
            }
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
            if (index + 1) % 50 == 0:
                print(f"{name}: {index + 1} of {len(prompts)} prompts", flush=True)
    print(f"{name}: {ties} of {steps} steps have a gap below {NEAR_TIE}")


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
            write_greedy(name, entries, prompts, args.out / f"{name}.greedy.jsonl")


if __name__ == "__main__":
    main()
