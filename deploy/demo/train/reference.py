"""An independent PyTorch forward pass of the HuggingFace architectures that Aludel serves.

This file is the yardstick for the C++ runtime, so it shares nothing with it: it parses safetensors
and config.json by itself, and computes in plain, whole-prompt tensor operations (no paging, no
chunking, no packed weights). The equations are those published with the models: Llama (RMSNorm,
rotary embedding in the half-split convention, grouped-query attention, SwiGLU), Mistral (sliding
window), Qwen2 (bias on q/k/v), Qwen3 (RMSNorm on each head of q and k), and the rope scalings
linear, dynamic, llama3 and yarn.

Two modes of the cache, because a test of "the same tokens" must round where the server rounds:

    exact    nothing is rounded; float32 or float64 throughout.
    bf16-kv  K (after bias and head norm, before rotation) and V are rounded to bfloat16, and the
             rotated K is rounded again: what the serving cache holds and what codecs read. Queries,
             scores and everything else stay exact.

Needs numpy and PyTorch 1.13 or later; one thread and a few hundred milliseconds a prompt for the
demo pair.
"""

import argparse
import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as functional

KV_MODES = ("exact", "bf16-kv")

_TYPE_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "F8_E4M3",  # PyTorch 1.13 has no such type: its bytes
}
_NUMPY_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "I64": "<i8",
    "I32": "<i4",
}

# Rotated K and V of one layer: [tokens, kv_heads, head_dim] each.
LayerCache = Tuple[torch.Tensor, torch.Tensor]


def e4m3_values() -> np.ndarray:
    """What the 256 bytes of FP8 E4M3 mean: 4 exponent bits of bias 7, 3 of mantissa, no infinity."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7) / 8
    value = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    value[(byte & 127) == 127] = np.nan
    return np.where(byte >= 128, -value, value)


def read_safetensors(path: Path, dtype: torch.dtype = torch.float32) -> Dict[str, torch.Tensor]:
    """Reads one file: a little-endian header length, a JSON header, then the tensors' bytes.

    Floating-point tensors become `dtype` (exact from bf16, f16 and FP8); integers become int64.
    """
    raw = Path(path).read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        array = np.frombuffer(raw[begin:end], dtype=_NUMPY_TYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":  # bf16 is the upper half of a float32
            array = (array.astype("<u4") << 16).view("<f4")
        elif entry["dtype"] == "F8_E4M3":
            array = e4m3_values()[array]
        target = torch.int64 if entry["dtype"].startswith("I") else dtype
        tensors[name] = torch.from_numpy(array.copy()).to(target).reshape(entry["shape"])
    return tensors


def write_safetensors(
    path: Path, tensors: Dict[str, torch.Tensor], metadata: Optional[Dict[str, str]] = None
) -> None:
    """Writes tensors by name, each in its own dtype, with the header padded to 8 bytes."""
    header: Dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    blobs, offset = [], 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        blob = bits.numpy().tobytes()
        header[name] = {
            "dtype": _TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for blob in blobs:
            out.write(blob)


def load_weights(directory: Path, dtype: torch.dtype) -> Dict[str, torch.Tensor]:
    """Reads model.safetensors, or every shard that model.safetensors.index.json names.

    FP8 matrices with a scale per tensor or per row are multiplied out.
    """
    index = directory / "model.safetensors.index.json"
    shards = ["model.safetensors"]
    if index.exists():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    weights: Dict[str, torch.Tensor] = {}
    for shard in shards:
        weights.update(read_safetensors(directory / shard, dtype))
    for name in [name for name in weights if name.endswith(".weight_scale")]:
        scale = weights.pop(name)
        if scale.dim() == 2 and scale.shape[1] != 1:
            raise ValueError(f"{name} has a scale per block, want one per tensor or per row")
        weights[name[: -len("_scale")]] *= scale.reshape(-1, 1)
    return weights


@dataclass
class Config:
    """What the forward pass needs of config.json, with HuggingFace's defaults filled in."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    max_positions: int
    tied_embeddings: bool
    qk_norm: bool
    rope_theta: float
    rope_type: str
    rope: Dict[str, Any]
    windows: List[int] = field(default_factory=list)  # per layer; 0: full attention

    @staticmethod
    def load(directory: Path) -> "Config":
        """Reads both spellings of rope: `rope_theta` with `rope_scaling`, or `rope_parameters`."""
        raw = json.loads((directory / "config.json").read_text())
        rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        return Config(
            layers=raw["num_hidden_layers"],
            hidden=raw["hidden_size"],
            heads=raw["num_attention_heads"],
            kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            vocab=raw["vocab_size"],
            eps=raw.get("rms_norm_eps", 1e-6),
            max_positions=raw["max_position_embeddings"],
            tied_embeddings=raw.get("tie_word_embeddings", False),
            qk_norm=raw["model_type"] == "qwen3",
            rope_theta=rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
            rope_type=rope.get("rope_type", rope.get("type", "default")),
            rope=rope,
            windows=_windows(raw),
        )


def _windows(raw: Dict[str, Any]) -> List[int]:
    """Sliding window per layer: 4096 where it is left out, none where it is null.

    Qwen slides only if asked, and only from max_window_layers on.
    """
    layers, window = raw["num_hidden_layers"], raw.get("sliding_window", 4096) or 0
    if raw["model_type"] == "mistral":
        return [window] * layers
    if raw["model_type"].startswith("qwen") and raw.get("use_sliding_window", False):
        first = raw.get("max_window_layers", 28)
        return [window if layer >= first else 0 for layer in range(layers)]
    return [0] * layers


def inverse_frequencies(config: Config, length: int) -> Tuple[torch.Tensor, float]:
    """Returns rotary inverse frequencies [head_dim / 2], float64, and the factor on cos and sin.

    `length` is the number of positions seen so far; only `dynamic` scaling depends on it.
    """
    dim, rope, theta = config.head_dim, config.rope, config.rope_theta
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    if config.rope_type == "dynamic":
        trained = config.max_positions
        stretch = rope["factor"] * max(length, trained) / trained - (rope["factor"] - 1)
        theta = theta * stretch ** (dim / (dim - 2))
    frequencies = theta**-exponents
    if config.rope_type in ("default", "dynamic"):
        return frequencies, 1.0
    if config.rope_type == "linear":
        return frequencies / rope["factor"], 1.0
    if config.rope_type == "llama3":
        return _llama3(frequencies, rope), 1.0
    if config.rope_type == "yarn":
        return _yarn(frequencies, config)
    raise ValueError(f"rope type {config.rope_type!r} is not supported")


def _llama3(frequencies: torch.Tensor, rope: Dict[str, Any]) -> torch.Tensor:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a blend between."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


def _yarn(frequencies: torch.Tensor, config: Config) -> Tuple[torch.Tensor, float]:
    """YaRN: a ramp over dimensions from original to interpolated frequencies; a temperature."""
    rope, dim = config.rope, config.head_dim
    factor = rope["factor"]
    original = rope.get("original_max_position_embeddings") or config.max_positions

    def dimension(turns: float) -> float:
        """The dimension that makes this many turns over the original context."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = rope.get("attention_factor")
    if attention is None:
        attention = temperature(1)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            attention = temperature(rope["mscale"]) / temperature(rope["mscale_all_dim"])
    return frequencies / factor * ramp + frequencies * (1 - ramp), attention


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounds to the nearest bfloat16 (ties to even), keeping the dtype."""
    return x.float().to(torch.bfloat16).to(x.dtype)


@dataclass
class Probe:
    """Intermediate values of one forward pass, one entry per layer, to localize an error."""

    # Normalized attention input [tokens, hidden].
    h: List[torch.Tensor] = field(default_factory=list)
    # K before rotation, and V: [tokens, kv_heads * head_dim].
    k: List[torch.Tensor] = field(default_factory=list)
    v: List[torch.Tensor] = field(default_factory=list)
    # Residual after the layer [tokens, hidden].
    hidden: List[torch.Tensor] = field(default_factory=list)


class Reference:
    """A model of a HuggingFace directory. Stateless: caches are values that forward() returns."""

    def __init__(
        self, directory: str, dtype: torch.dtype = torch.float32, kv: str = "exact"
    ) -> None:
        if kv not in KV_MODES:
            raise ValueError(f"kv mode is {kv!r}, want one of {KV_MODES}")
        self.config = Config.load(Path(directory))
        self.dtype = dtype
        self.round_kv = kv == "bf16-kv"
        self.weights = load_weights(Path(directory), dtype)
        if self.config.tied_embeddings:
            self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]

    @torch.no_grad()
    def forward(
        self,
        ids: Sequence[int],
        cache: Optional[List[LayerCache]] = None,
        probe: Optional[Probe] = None,
    ) -> Tuple[torch.Tensor, List[LayerCache]]:
        """Runs `ids` after `cache`; returns logits [tokens, vocab] and the grown cache."""
        past = cache[0][0].shape[0] if cache else 0
        positions = torch.arange(past, past + len(ids))
        rotation = self._rotation(positions)
        x = self.weights["model.embed_tokens.weight"][torch.tensor(list(ids))]
        grown = []
        for layer in range(self.config.layers):
            attended, entry = self._attention(layer, x, positions, rotation, cache, probe)
            grown.append(entry)
            x = x + attended
            x = x + self._mlp(layer, x)
            if probe is not None:
                probe.hidden.append(x)
        x = self._norm(x, self.weights["model.norm.weight"])
        return x @ self.weights["lm_head.weight"].T, grown

    def greedy(
        self, ids: Sequence[int], max_new: int, eos: int, cache: Optional[List[LayerCache]] = None
    ) -> Tuple[List[int], List[float]]:
        """Decodes greedily; returns tokens (with a reached eos) and each step's top-2 logit gap.

        A gap near zero means that another rounding may rightly choose the other token.
        """
        tokens: List[int] = []
        gaps: List[float] = []
        pending = list(ids)
        while len(tokens) < max_new:
            logits, cache = self.forward(pending, cache)
            best = torch.topk(logits[-1], 2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            if tokens[-1] == eos:
                break
            pending = tokens[-1:]
        return tokens, gaps

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.eps) * weight

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _rotation(self, positions: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [tokens, 1, head_dim]; angles in float64, so long positions stay exact."""
        frequencies, factor = inverse_frequencies(self.config, int(positions[-1]) + 1)
        angles = positions.double()[:, None] * frequencies[None, :]
        angles = torch.cat([angles, angles], -1)[:, None, :]
        return (angles.cos() * factor).to(self.dtype), (angles.sin() * factor).to(self.dtype)

    def _rotate(self, x: torch.Tensor, rotation: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * rotation[0] + turned * rotation[1]

    def _attention(
        self,
        layer: int,
        x: torch.Tensor,
        positions: torch.Tensor,
        rotation: Tuple[torch.Tensor, torch.Tensor],
        cache: Optional[List[LayerCache]],
        probe: Optional[Probe],
    ) -> Tuple[torch.Tensor, LayerCache]:
        c, prefix = self.config, f"model.layers.{layer}."
        h = self._norm(x, self.weights[prefix + "input_layernorm.weight"])
        tokens = h.shape[0]
        q = self._linear(prefix + "self_attn.q_proj", h).view(tokens, c.heads, c.head_dim)
        k = self._linear(prefix + "self_attn.k_proj", h).view(tokens, c.kv_heads, c.head_dim)
        v = self._linear(prefix + "self_attn.v_proj", h).view(tokens, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q = self._norm(q, self.weights[prefix + "self_attn.q_norm.weight"])
            k = self._norm(k, self.weights[prefix + "self_attn.k_norm.weight"])
        if self.round_kv:
            k, v = round_bf16(k), round_bf16(v)
        if probe is not None:
            probe.h.append(h)
            probe.k.append(k.reshape(tokens, -1))
            probe.v.append(v.reshape(tokens, -1))
        q, k = self._rotate(q, rotation), self._rotate(k, rotation)
        if self.round_kv:
            k = round_bf16(k)
        if cache:
            k, v = torch.cat([cache[layer][0], k]), torch.cat([cache[layer][1], v])
        mixed = self._attend(q, k, v, positions, c.windows[layer])
        return self._linear(prefix + "self_attn.o_proj", mixed), (k, v)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        window: int,
    ) -> torch.Tensor:
        """Softmax attention; query head i reads kv head i // (heads / kv_heads)."""
        group = self.config.heads // self.config.kv_heads
        keys = k.repeat_interleave(group, dim=1).permute(1, 2, 0)  # [heads, head_dim, all tokens]
        values = v.repeat_interleave(group, dim=1).permute(1, 0, 2)
        scores = q.permute(1, 0, 2) @ keys * self.config.head_dim**-0.5
        back = positions[:, None] - torch.arange(k.shape[0])[None, :]  # how far back each key lies
        masked = back < 0
        if window:  # that many keys are visible, the query's own included
            masked = masked | (back >= window)
        scores = scores.masked_fill(masked[None], float("-inf"))
        mixed = torch.softmax(scores, -1) @ values
        return mixed.permute(1, 0, 2).reshape(len(positions), -1)

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        prefix = f"model.layers.{layer}."
        h = self._norm(x, self.weights[prefix + "post_attention_layernorm.weight"])
        gate = functional.silu(self._linear(prefix + "mlp.gate_proj", h))
        up = self._linear(prefix + "mlp.up_proj", h)
        return self._linear(prefix + "mlp.down_proj", gate * up)


def main() -> None:
    """Prints the greedy continuation of token ids: a quick way to compare with another runtime."""
    parser = argparse.ArgumentParser(description="Continue token ids greedily.")
    parser.add_argument("model", help="HuggingFace directory")
    parser.add_argument("ids", type=int, nargs="+", help="prompt token ids")
    parser.add_argument("--kv", choices=KV_MODES, default="exact", help="rounding of the KV cache")
    parser.add_argument("--float64", action="store_true", help="compute in float64")
    parser.add_argument("--max-new", type=int, default=24, help="most tokens to generate")
    parser.add_argument("--eos", type=int, default=2, help="token that ends generation")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Reference(args.model, torch.float64 if args.float64 else torch.float32, args.kv)
    for token, gap in zip(*model.greedy(args.ids, args.max_new, args.eos)):
        print(f"{token:6d}  gap {gap:.4g}")


if __name__ == "__main__":
    main()
