"""Stores a checkpoint's matrices as FP8 E4M3 with a scale per row, and says what that loses.

    quantize.py IN OUT      writes OUT/model.safetensors and OUT/config.json (compressed-tensors)

Rounding follows GPTQ (Frantar et al. 2022): a matrix is rounded column by column, and what a column
loses is compensated in those that are not rounded yet, in the metric of the inputs that the matrix
sees on calibration prompts. A layer's inputs come from the layers that are rounded already. Scales
are powers of two: E4M3 is a floating-point type, so finer ones would not round better, and the
stored weights are then exactly bf16 numbers, the same for servers that compute in f32 or bf16.
Embeddings and norms stay bf16.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np
import questions
import torch
from evaluate import DEMO, MAX_NEW
from questions import Entry
from reference import Reference, e4m3_values, read_safetensors, write_safetensors
from tokenizer import END, Tokenizer

MAX_E4M3 = 448.0
DAMPING = 0.01  # of the mean of the metric's diagonal

# What sees the same input is rounded together.
STAGES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)

QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": [],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "symmetric": True,
                "dynamic": False,
                "strategy": "channel",
            },
            "input_activations": None,
            "output_activations": None,
        }
    },
}


class Metric:
    """The second moment of a linear layer's inputs."""

    def __init__(self, size: int) -> None:
        self.sum = torch.zeros(size, size, dtype=torch.float64)

    def add(self, x: torch.Tensor) -> None:
        """Adds rows [tokens, inputs]."""
        x = x.double()
        self.sum += x.T @ x

    def inverse_factor(self, order: torch.Tensor) -> torch.Tensor:
        """Upper Cholesky factor of the inverse, inputs in this order."""
        h = self.sum[order][:, order]
        h = h + torch.eye(len(h), dtype=torch.float64) * (DAMPING * h.diagonal().mean() + 1e-12)
        return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)


_VALUES = e4m3_values()[:127]  # 0 to 448, ascending
_MIDDLES = (_VALUES[1:] + _VALUES[:-1]) / 2


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """The bytes of the nearest E4M3 numbers."""
    magnitude = np.searchsorted(_MIDDLES, x.abs().clamp(max=MAX_E4M3).numpy())
    return torch.from_numpy((magnitude + 128 * (x.numpy() < 0)).astype(np.uint8))


def from_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """What these bytes mean."""
    return torch.from_numpy(e4m3_values()[codes.numpy()])


def row_scales(weight: torch.Tensor) -> torch.Tensor:
    """The smallest power of two per row that leaves compensated weights some room."""
    largest = weight.abs().amax(1, keepdim=True).clamp(min=1e-12)
    return torch.pow(2.0, torch.ceil(torch.log2(largest * 1.05 / MAX_E4M3)))


def round_matrix(weight: torch.Tensor, metric: Metric) -> Tuple[torch.Tensor, torch.Tensor]:
    """Returns bytes [outputs, inputs] and scales [outputs, 1]."""
    weight = weight.double()
    scale = row_scales(weight)
    order = metric.sum.diagonal().argsort(descending=True)
    factor = metric.inverse_factor(order)
    left = weight[:, order].clone()
    codes = torch.empty(left.shape, dtype=torch.uint8)
    for i in range(left.shape[1]):
        codes[:, i] = to_e4m3(left[:, i] / scale[:, 0])
        error = (left[:, i] - from_e4m3(codes[:, i]) * scale[:, 0]) / factor[i, i]
        left[:, i:] -= error[:, None] * factor[i, i:]
    restored = torch.empty_like(codes)
    restored[:, order] = codes
    return restored, scale


class Watched(Reference):
    """A reference that measures the inputs of some of its linear layers."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.metrics: Dict[str, Metric] = {}

    def watch(self, names: Sequence[str]) -> None:
        """Forgets the layers measured before and measures these."""
        self.metrics = {name: Metric(self.weights[name + ".weight"].shape[1]) for name in names}

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if name in self.metrics:
            self.metrics[name].add(x)
        return super()._linear(name, x)

    def run_layer(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """The residual after one layer over a whole sequence."""
        positions = torch.arange(x.shape[0])
        attended, _ = self._attention(layer, x, positions, self._rotation(positions), None, None)
        x = x + attended
        return x + self._mlp(layer, x)


@torch.no_grad()
def quantize(model: Watched, sequences: Sequence[Sequence[int]]) -> Dict[str, torch.Tensor]:
    """Rounds the model's matrices in place; returns what to store of them."""
    stored: Dict[str, torch.Tensor] = {}

    def finish(name: str) -> None:
        codes, scale = round_matrix(model.weights[name + ".weight"], model.metrics[name])
        model.weights[name + ".weight"] = (from_e4m3(codes) * scale).float()
        stored[name + ".weight"] = codes
        stored[name + ".weight_scale"] = scale.to(torch.bfloat16)

    states = [model.weights["model.embed_tokens.weight"][torch.tensor(ids)] for ids in sequences]
    for layer in range(model.config.layers):
        for stage in STAGES:
            names = [f"model.layers.{layer}.{part}" for part in stage]
            model.watch(names)
            for x in states:
                model.run_layer(layer, x)
            for name in names:
                finish(name)
        model.watch([])
        states = [model.run_layer(layer, x) for x in states]
        print(f"layer {layer}", flush=True)
    model.watch(["lm_head"])
    for x in states:
        model.metrics["lm_head"].add(model._norm(x, model.weights["model.norm.weight"]))
    finish("lm_head")
    return stored


def with_answers(
    model: Reference, tokenizer: Tokenizer, render: Callable[[Entry], str], entries: List[Entry]
) -> List[Tuple[List[int], int]]:
    """Prompt and the model's own answer, and how many tokens of it are the prompt's."""
    sequences = []
    for entry in entries:
        ids = tokenizer.encode(render(entry))
        sequences.append((ids + model.greedy(ids, MAX_NEW, END)[0], len(ids)))
    return sequences


@torch.no_grad()
def divergence(
    model: Reference, other: Reference, sequences: Sequence[Tuple[List[int], int]]
) -> List[float]:
    """KL of the other's next-token distribution from the model's, at every token of the answers."""
    values: List[float] = []
    for ids, prompt in sequences:
        wanted, found = (
            torch.log_softmax(m.forward(ids[:-1])[0][prompt - 1 :].double(), -1) for m in (model, other)
        )
        values += (wanted.exp() * (wanted - found)).sum(-1).tolist()
    return values


def main() -> None:
    """Quantizes one checkpoint."""
    parser = argparse.ArgumentParser(description="Store a checkpoint as FP8.")
    parser.add_argument("source", type=Path, help="HuggingFace directory of a bf16 checkpoint")
    parser.add_argument("out", type=Path, help="directory to write to; may be the same")
    parser.add_argument("--style", choices=("chat", "base"), default="chat", help="of the prompts")
    parser.add_argument("--prompts", type=int, default=160, help="calibration prompts to use")
    args = parser.parse_args()
    torch.set_num_threads(1)
    render = questions.base_prompt if args.style == "base" else questions.chat_prompt
    tokenizer = Tokenizer(str(args.source / "tokenizer.json"))
    original, model = Reference(str(args.source)), Watched(str(args.source))

    calibration = questions.read(str(DEMO / "calibration.jsonl"))[: args.prompts]
    sequences = with_answers(original, tokenizer, render, calibration)
    stored = quantize(model, [ids for ids, _ in sequences])
    kept = read_safetensors(args.source / "model.safetensors", torch.bfloat16)
    tensors = {name: value for name, value in kept.items() if name not in stored}
    config = json.loads((args.source / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION

    args.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(args.out / "model.safetensors", {**tensors, **stored})
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if args.out.resolve() != args.source.resolve() and (args.source / name).exists():
            shutil.copyfile(args.source / name, args.out / name)

    unseen = questions.read(str(DEMO / "questions.jsonl"))
    values = divergence(original, Reference(str(args.out)), with_answers(original, tokenizer, render, unseen))
    mean, error = np.mean(values), np.std(values) / len(values) ** 0.5
    print(f"KL from the original {mean:.6f} +- {error:.6f} nats at {len(values)} answer tokens")


if __name__ == "__main__":
    main()
