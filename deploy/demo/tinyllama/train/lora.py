"""LoRA for Llama: frozen weights, low-rank updates that are trained in float32, and PEFT's files.

A linear layer y = W x becomes y = W x + (alpha / rank) B A x, with A [rank, in] and B [out, rank]. B
begins as zero, so training begins at the base model.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Tuple

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from data import Batch

sys.path.append(str(Path(__file__).resolve().parents[2] / "train"))
from reference import Config, load_weights, read_safetensors, write_safetensors  # noqa: E402

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
TARGETS = {"attention": ATTENTION, "all": ATTENTION + FEED_FORWARD}
PREFIX = "base_model.model."  # PEFT's name for the model that it wraps


@dataclass(frozen=True)
class Shape:
    """What an adapter is, beside its numbers."""

    rank: int
    alpha: float
    targets: Tuple[str, ...]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapter:
    """A and B by the name of the weight that they update ("model.layers.0.self_attn.q_proj")."""

    def __init__(self, shape: Shape, pairs: Dict[str, Tuple[Tensor, Tensor]]) -> None:
        self.shape = shape
        self.pairs = pairs

    @staticmethod
    def fresh(shape: Shape, weights: Dict[str, Tensor], layers: int, seed: int) -> "Adapter":
        """A as PEFT draws it (uniform, variance 1 / (3 in)), B zero."""
        random = torch.Generator().manual_seed(seed)
        pairs = {}
        for layer in range(layers):
            for target in shape.targets:
                name = f"model.layers.{layer}.{target}"
                rows, columns = weights[f"{name}.weight"].shape
                a = (torch.rand(shape.rank, columns, generator=random) * 2 - 1) / math.sqrt(columns)
                pairs[name] = (a.requires_grad_(), torch.zeros(rows, shape.rank, requires_grad=True))
        return Adapter(shape, pairs)

    @torch.no_grad()
    def copy_from(self, other: "Adapter") -> None:
        """The numbers of another adapter of this shape."""
        if (other.shape, set(other.pairs)) != (self.shape, set(self.pairs)):
            raise ValueError(f"the adapter to begin with is {other.shape}, want {self.shape}")
        for name, pair in self.pairs.items():
            for mine, its in zip(pair, other.pairs[name]):
                mine.copy_(its)

    def parameters(self) -> List[Tensor]:
        return [tensor for pair in self.pairs.values() for tensor in pair]

    def save(self, directory: Path, base: str) -> None:
        """adapter_config.json and adapter_model.safetensors in bf16, each renamed into place when whole."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, (a, b) in self.pairs.items():
            tensors[f"{PREFIX}{name}.lora_A.weight"] = a.detach().to(torch.bfloat16)
            tensors[f"{PREFIX}{name}.lora_B.weight"] = b.detach().to(torch.bfloat16)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.shape.rank,
            "lora_alpha": self.shape.alpha,
            "lora_dropout": 0.0,
            "target_modules": [target.split(".")[-1] for target in self.shape.targets],
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "modules_to_save": None,
            "use_rslora": False,
            "use_dora": False,
        }
        partial = directory / "adapter_model.safetensors.partial"
        write_safetensors(partial, tensors)
        partial.replace(directory / "adapter_model.safetensors")
        partial = directory / "adapter_config.json.partial"
        partial.write_text(json.dumps(config, indent=1) + "\n")
        partial.replace(directory / "adapter_config.json")

    @staticmethod
    def load(directory: Path) -> "Adapter":
        config = json.loads((directory / "adapter_config.json").read_text())
        targets = tuple(t for t in TARGETS["all"] if t.split(".")[-1] in config["target_modules"])
        tensors = read_safetensors(directory / "adapter_model.safetensors")
        pairs = {}
        for name, a in tensors.items():
            if name.endswith(".lora_A.weight"):
                b = tensors[name.replace(".lora_A.", ".lora_B.")]
                pairs[name[len(PREFIX) : -len(".lora_A.weight")]] = (a, b)
        return Adapter(Shape(config["r"], config["lora_alpha"], targets), pairs)


@torch.no_grad()
def merge(weights: Dict[str, Tensor], adapter: Adapter) -> Dict[str, Tensor]:
    """Weights with W + (alpha / rank) B A for every W that the adapter updates; the others as they are."""
    merged = dict(weights)
    for name, (a, b) in adapter.pairs.items():
        merged[f"{name}.weight"] = weights[f"{name}.weight"] + adapter.shape.scale * (b @ a)
    return merged


class Llama:
    """The frozen model with an adapter. Plain Llama: no rope scaling, no biases, no sliding window.

    `products` is the dtype in which frozen matrices are kept and multiplied, forward and backward: bfloat16
    is four times as fast as float32 where the processor multiplies it (AVX-512 BF16, AMX). Everything else,
    the residual stream, norms, attention and the adapter, is float32.
    """

    def __init__(self, directory: Path, products: torch.dtype = torch.float32) -> None:
        self.config = Config.load(directory)
        if self.config.rope_type != "default" or self.config.qk_norm or any(self.config.windows):
            raise ValueError(f"{directory}: rope scaling, head norms and sliding windows are not handled")
        self.weights = load_weights(directory, torch.float32)
        if any(name.endswith(".bias") for name in self.weights):
            raise ValueError(f"{directory}: biases are not handled")
        if self.config.tied_embeddings:
            self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]
        for name, weight in self.weights.items():
            if weight.dim() == 2 and name != "model.embed_tokens.weight":
                self.weights[name] = weight.to(products)

    def hidden(self, batch: Batch, adapter: Adapter) -> Tensor:
        """What the output matrix reads, [tokens, hidden]."""
        tokens, config, weights = len(batch.ids), self.config, self.weights
        causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        allowed = causal & (batch.conversation[:, None] == batch.conversation)
        mask = torch.zeros(tokens, tokens).masked_fill(~allowed, -math.inf).expand(config.heads, -1, -1)
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        angles = batch.positions[:, None] * config.rope_theta**-exponents
        turn = (angles.cos()[:, None], angles.sin()[:, None])  # [tokens, 1, head_dim / 2] each
        x = weights["model.embed_tokens.weight"][batch.ids]
        for layer in range(config.layers):
            name = f"model.layers.{layer}"
            h = self._norm(x, f"{name}.input_layernorm")
            # Computed again on the way back: probabilities of every layer would take gigabytes.
            x = x + checkpoint(self._attention, h, name, turn, mask, adapter, use_reentrant=False)
            h = self._norm(x, f"{name}.post_attention_layernorm")
            gate = functional.silu(self._linear(h, f"{name}.mlp.gate_proj", adapter))
            up = self._linear(h, f"{name}.mlp.up_proj", adapter)
            x = x + self._linear(gate * up, f"{name}.mlp.down_proj", adapter)
        return self._norm(x, "model.norm")

    def loss(self, batch: Batch, adapter: Adapter) -> Tensor:
        """Mean cross-entropy of the learned tokens; logits are computed for these alone."""
        h = self.hidden(batch, adapter)[batch.learned]
        return functional.cross_entropy(self._product(h, "lm_head"), batch.targets[batch.learned])

    def _attention(
        self, h: Tensor, name: str, turn: Tuple[Tensor, Tensor], mask: Tensor, adapter: Adapter
    ) -> Tensor:
        tokens, config = len(h), self.config
        q = self._linear(h, f"{name}.self_attn.q_proj", adapter).view(tokens, config.heads, -1)
        k = self._linear(h, f"{name}.self_attn.k_proj", adapter).view(tokens, config.kv_heads, -1)
        v = self._linear(h, f"{name}.self_attn.v_proj", adapter).view(tokens, config.kv_heads, -1)
        group = config.heads // config.kv_heads
        # [heads, tokens, head_dim], scaled here: of scores there are many more.
        q = _rotate(q, turn).transpose(0, 1) / math.sqrt(config.head_dim)
        k = _rotate(k, turn).repeat_interleave(group, 1).transpose(0, 1)
        v = v.repeat_interleave(group, 1).transpose(0, 1)
        probabilities = torch.baddbmm(mask, q, k.transpose(1, 2)).softmax(-1)
        out = (probabilities @ v).transpose(0, 1).reshape(tokens, -1)
        return self._linear(out, f"{name}.self_attn.o_proj", adapter)

    def _linear(self, x: Tensor, name: str, adapter: Adapter) -> Tensor:
        y = self._product(x, name)
        if name not in adapter.pairs:
            return y
        a, b = adapter.pairs[name]
        return y + adapter.shape.scale * ((x @ a.T) @ b.T)

    def _product(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return (x.to(weight.dtype) @ weight.T).float()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.config.eps) * self.weights[f"{name}.weight"]


def _rotate(x: Tensor, turn: Tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding: dimensions j and j + head_dim / 2 turn together."""
    cos, sin = turn
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
