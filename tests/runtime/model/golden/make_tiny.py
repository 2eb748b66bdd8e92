"""Writes tiny random models of every supported architecture, with the reference's logits.

Each directory tiny/NAME is a complete HuggingFace checkpoint (config.json, model.safetensors or
shards) plus golden.json: {"ids", "logits" [tokens][vocab]}. Logits are computed in float64 in mode
exact, from the weights as stored, by deploy/demo/train/reference.py; dynamic scaling takes the
whole prompt's length.

A golden that would not notice a missing feature is worthless. So where a model's feature can be
switched off, that must change some logit by 0.05 at least; the random weights are scaled for
peaked attention.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import torch

GOLDEN = Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parents[3] / "deploy/demo/train"))

from reference import Config, Reference, write_safetensors  # noqa: E402

TOKENS = 24
SMALLEST_EFFECT = 0.05

COMMON: Dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Tiny(NamedTuple):
    """One model: its architecture, what differs from COMMON, and how to do without its feature."""

    architecture: str
    model_type: str
    config: Dict[str, Any]
    without: Dict[str, Any] = {}  # config entries that switch the feature off
    dtype: torch.dtype = torch.bfloat16
    shards: int = 1


def llama(config: Dict[str, Any], without: Dict[str, Any], **options: Any) -> Tiny:
    """A Llama model."""
    return Tiny("LlamaForCausalLM", "llama", config, without, **options)


NO_SCALING = {"rope_scaling": None}

# The scalings are spelled in the three ways found in published configs: `type`, `rope_type`, and
# `rope_parameters`. Context lengths are tiny: every branch of a scaling acts within 24 tokens.
MODELS: Dict[str, Tiny] = {
    "llama_linear": llama({"rope_scaling": {"type": "linear", "factor": 4.0}}, NO_SCALING),
    "llama_dynamic": llama(
        {
            "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
            "max_position_embeddings": 12,
        },
        NO_SCALING,
    ),
    "llama_llama3": llama(
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            "max_position_embeddings": 1024,
        },
        NO_SCALING,
        dtype=torch.float16,
    ),
    "llama_yarn": llama(
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "max_position_embeddings": 256,
        },
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "llama_tied": llama({"tie_word_embeddings": True, "vocab_size": 48}, {}, dtype=torch.float32),
    "llama_head_dim": llama({"hidden_size": 48, "head_dim": 32}, {}),
    "llama_sharded": llama({}, {}, shards=3),
    "mistral_sliding": Tiny(
        "MistralForCausalLM", "mistral", {"sliding_window": 7}, {"sliding_window": None}
    ),
    "qwen2_bias": Tiny(
        "Qwen2ForCausalLM", "qwen2", {"use_sliding_window": False, "sliding_window": 8}
    ),
    "qwen3_qk_norm": Tiny(
        "Qwen3ForCausalLM", "qwen3", {"head_dim": 32, "rms_norm_eps": 1e-6, "attention_bias": False}
    ),
}


def config_of(tiny: Tiny) -> Dict[str, Any]:
    """The config.json of a model."""
    names = {
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
        torch.float32: "float32",
    }
    config = {"architectures": [tiny.architecture], "model_type": tiny.model_type, **COMMON}
    config.update(tiny.config)
    if "rope_parameters" in config:
        del config["rope_theta"]  # newer configs keep it inside
    config["torch_dtype"] = names[tiny.dtype]
    return config


def random_weights(config: Config, tiny: Tiny, intermediate: int) -> Dict[str, torch.Tensor]:
    """Random weights under HuggingFace's names, in the model's dtype."""
    q_rows, kv_rows = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns) * gain / columns**0.5

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size)

    weights = {
        "model.embed_tokens.weight": torch.randn(config.vocab, config.hidden),
        "model.norm.weight": norm(config.hidden),
    }
    if not config.tied_embeddings:
        weights["lm_head.weight"] = matrix(config.vocab, config.hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        weights[prefix + "input_layernorm.weight"] = norm(config.hidden)
        weights[prefix + "post_attention_layernorm.weight"] = norm(config.hidden)
        weights[attention + "q_proj.weight"] = matrix(q_rows, config.hidden, 1.5)
        weights[attention + "k_proj.weight"] = matrix(kv_rows, config.hidden, 1.5)
        weights[attention + "v_proj.weight"] = matrix(kv_rows, config.hidden)
        weights[attention + "o_proj.weight"] = matrix(config.hidden, q_rows)
        weights[prefix + "mlp.gate_proj.weight"] = matrix(intermediate, config.hidden)
        weights[prefix + "mlp.up_proj.weight"] = matrix(intermediate, config.hidden)
        weights[prefix + "mlp.down_proj.weight"] = matrix(config.hidden, intermediate)
        if tiny.model_type == "qwen2":
            for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                weights[attention + f"{name}_proj.bias"] = 0.5 * torch.randn(rows)
        if tiny.model_type == "qwen3":
            weights[attention + "q_norm.weight"] = 1 + 0.5 * torch.rand(config.head_dim)
            weights[attention + "k_norm.weight"] = 1 + 0.5 * torch.rand(config.head_dim)
    return {name: weight.to(tiny.dtype) for name, weight in weights.items()}


def write_weights(directory: Path, weights: Dict[str, torch.Tensor], shards: int) -> None:
    """Writes one file, or `shards` files with the index that HuggingFace puts beside them."""
    if shards == 1:
        write_safetensors(directory / "model.safetensors", weights)
        return
    names = sorted(weights)
    weight_map: Dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[shard::shards]
        write_safetensors(directory / file, {name: weights[name] for name in mine})
        weight_map.update({name: file for name in mine})
    total = sum(weight.numel() * weight.element_size() for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def effect_of_feature(directory: Path, tiny: Tiny, ids: List[int], logits: torch.Tensor) -> float:
    """Largest change of a logit when the model's feature is left out."""
    model = Reference(str(directory), torch.float64)
    if tiny.without:
        plain = directory / "config.json"
        kept = plain.read_text()
        plain.write_text(json.dumps({**json.loads(kept), **tiny.without}))
        model.config = Config.load(directory)
        plain.write_text(kept)
    elif tiny.model_type == "qwen2":
        model.weights = {name: w for name, w in model.weights.items() if not name.endswith(".bias")}
    elif tiny.model_type == "qwen3":
        model.config.qk_norm = False
    else:
        return float("nan")  # a different shape, not a switch: nothing to leave out
    return float((model.forward(ids)[0] - logits).abs().max())


def make(name: str, tiny: Tiny, out: Path, seed: int) -> None:
    """Writes one model and its golden."""
    torch.manual_seed(seed)
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    raw = config_of(tiny)
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    config = Config.load(directory)
    weights = random_weights(config, tiny, raw["intermediate_size"])
    write_weights(directory, weights, tiny.shards)
    ids = torch.randint(5, config.vocab, (TOKENS,)).tolist()
    logits, _ = Reference(str(directory), torch.float64).forward(ids)
    effect = effect_of_feature(directory, tiny, ids, logits)
    if effect < SMALLEST_EFFECT:
        raise SystemExit(f"{name}: leaving out the feature changes logits by {effect:.3g} only")
    golden = {"ids": ids, "logits": [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]}
    (directory / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(
        f"{name:16} {size / 1000:4.0f} kB, logits to {logits.abs().max():.1f}, feature {effect:.2g}"
    )


def main() -> None:
    """Writes all models."""
    parser = argparse.ArgumentParser(description="Write the tiny models and their golden logits.")
    parser.add_argument("--out", type=Path, default=GOLDEN / "tiny", help="directory to write to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed, (name, tiny) in enumerate(MODELS.items()):
        make(name, tiny, args.out, seed)


if __name__ == "__main__":
    main()
