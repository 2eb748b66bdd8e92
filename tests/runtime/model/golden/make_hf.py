"""Runs checkpoints through HuggingFace transformers: what make_tiny.py and make_quantised.py record as golden.

`record` loads a directory with AutoModelForCausalLM (its own reading of config.json and safetensors,
its own modelling code, nothing patched) in float32 with eager attention, runs one prompt in one go,
and returns

    ids        [tokens] int32
    logits     [tokens, vocab] float32, at every position
    positions  [P] int32: where states are recorded
    x          [layers, P, hidden]: the residual stream that enters each layer
    k, v       [layers, P, kv_heads * head_dim]: before rotation, after bias and head norm

and, as metadata, the versions that made it and the sliding window that transformers runs with. What
the last layer makes shows in the logits.

The committed files are by transformers 5.10.0.dev0 (commit cc041637bc2b3639bba0b8f85672c1653cdb6248,
9 June 2026) and huggingface_hub 1.29.0.dev0 on Debian 13's python3-torch 2.6.0; in place of the
package tokenizers, which transformers imports and these models never call, stood empty classes. To make
them again:

    pip install torch "transformers>=5"
    python3 make_tiny.py && python3 make_quantised.py

Run by itself it prints how far the team's own reference (deploy/demo/train/reference.py), which is
behind the golden files of the demo pair, is from transformers:

    python3 make_hf.py ../../../../deploy/demo/base tiny/*
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import torch
import transformers
from transformers import AutoModelForCausalLM

transformers.utils.logging.disable_progress_bar()

GOLDEN = Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parents[3] / "deploy/demo/train"))

from reference import Config, Reference, write_safetensors  # noqa: E402, F401

STATE_POSITIONS = (0, 1, 5, 6, 7, 12, 18, 23)


def load(directory: Path) -> torch.nn.Module:
    """The model of a directory as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def window_of(model: torch.nn.Module) -> int:
    """The sliding window of every layer; 0: none."""
    config = model.config
    types = set(getattr(config, "layer_types", None) or [])
    if types == {"full_attention"}:
        return 0
    assert types in (set(), {"sliding_attention"}), f"layers differ: {types}"
    return getattr(config, "sliding_window", None) or 0


@torch.no_grad()
def run(model: torch.nn.Module, ids: Sequence[int]) -> Dict[str, torch.Tensor]:
    """Everything that `record` returns but the positions, at every position."""
    seen: Dict[str, List[torch.Tensor]] = {"k": [], "v": []}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: seen[name].append(output[0].flatten(1))

    hooks = []
    for layer in model.model.layers:
        attention = layer.self_attn
        hooks.append(getattr(attention, "k_norm", attention.k_proj).register_forward_hook(keep("k")))
        hooks.append(attention.v_proj.register_forward_hook(keep("v")))
    output = model(torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    return {
        "logits": output.logits[0],
        "x": torch.stack([state[0] for state in output.hidden_states[:-1]]),  # the last is normalised
        "k": torch.stack(seen["k"]),
        "v": torch.stack(seen["v"]),
    }


def record(model: torch.nn.Module, ids: Sequence[int]) -> Tuple[Dict[str, torch.Tensor], Dict[str, str]]:
    """Tensors and metadata of a golden file."""
    tensors = run(model, ids)
    for name in ("x", "k", "v"):
        tensors[name] = tensors[name][:, list(STATE_POSITIONS)]
    tensors["ids"] = torch.tensor(list(ids), dtype=torch.int32)
    tensors["positions"] = torch.tensor(STATE_POSITIONS, dtype=torch.int32)
    metadata = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "sliding_window": str(window_of(model)),
    }
    return tensors, metadata


def write_golden(directory: Path, model: torch.nn.Module, ids: Sequence[int]) -> Dict[str, torch.Tensor]:
    """Writes DIRECTORY/golden.safetensors and returns its tensors."""
    tensors, metadata = record(model, ids)
    write_safetensors(directory / "golden.safetensors", tensors, metadata)
    return tensors


def main() -> None:
    """Compares our own reference with transformers."""
    parser = argparse.ArgumentParser(description="Largest difference of a logit, reference.py to transformers.")
    parser.add_argument("directory", type=Path, nargs="+", help="HuggingFace directory")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for directory in args.directory:
        if "quantization_config" in json.loads((directory / "config.json").read_text()):
            continue
        model = load(directory)
        torch.manual_seed(1)
        ids = torch.randint(5, model.config.vocab_size, (24,)).tolist()
        ours, _ = Reference(str(directory), torch.float64).forward(ids)
        theirs = run(model, ids)["logits"]
        print(f"{directory.name:28} {(ours - theirs).abs().max():.2g} of {theirs.abs().max():.2g}")


if __name__ == "__main__":
    main()
