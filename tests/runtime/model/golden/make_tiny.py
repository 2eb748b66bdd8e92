"""Writes tiny random models of every supported architecture, and what HuggingFace makes of them.

Each directory tiny/NAME is a complete HuggingFace checkpoint (config.json, model.safetensors or
shards) plus golden.safetensors, which make_hf.py describes: the logits and every layer's states by
transformers. Models that differ from another in their config alone have a link to its weights.

A golden that would not notice a missing feature is worthless. So where a model's feature can be
switched off, that must change some logit by 0.05 at least; the random weights are scaled for
peaked attention.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import torch
from make_hf import GOLDEN, Config, load, run, write_golden, write_safetensors

TOKENS = 24
SMALLEST_EFFECT = 0.05
ABSENT = object()  # in place of a config entry's value: the entry is left out

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
    weights: str = ""  # the model whose weights it has; none: its own


def llama(config: Dict[str, Any], without: Dict[str, Any], **options: Any) -> Tiny:
    """A Llama model."""
    return Tiny("LlamaForCausalLM", "llama", config, without, **options)


def mistral(config: Dict[str, Any], without: Dict[str, Any], **options: Any) -> Tiny:
    """A Mistral model."""
    return Tiny("MistralForCausalLM", "mistral", config, without, **options)


def qwen2(config: Dict[str, Any], without: Dict[str, Any], **options: Any) -> Tiny:
    """A Qwen2 model."""
    return Tiny("Qwen2ForCausalLM", "qwen2", config, without, **options)


def qwen3(config: Dict[str, Any], without: Dict[str, Any], **options: Any) -> Tiny:
    """A Qwen3 model with heads wider than hidden_size / heads."""
    config = {"head_dim": 32, "rms_norm_eps": 1e-6, "attention_bias": False, **config}
    return Tiny("Qwen3ForCausalLM", "qwen3", config, without, **options)


def yarn(**more: Any) -> Dict[str, Any]:
    """YaRN as rope_parameters."""
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    return {"rope_parameters": {**rope, **more}, "max_position_embeddings": 256}


NO_SCALING = {
    "rope_scaling": ABSENT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LLAMA3_TYPE = {"rope_scaling": {"type": "llama3", **LLAMA3}, "max_position_embeddings": 1024}
LLAMA3_ROPE_TYPE = {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "max_position_embeddings": 1024}
LLAMA3_PARAMETERS = {
    "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3},
    "max_position_embeddings": 1024,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 4.0}}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 12}
DYNAMIC_PARAMETERS = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "max_position_embeddings": 12,
}
PUBLISHED_YARN = {  # as the Qwen2.5 and Qwen3 cards spell it: the context is the original one
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
}

# The scalings are spelled in the three ways found in published configs: `type`, `rope_type`, and
# `rope_parameters`. Context lengths are tiny: every branch of a scaling acts within 24 tokens.
MODELS: Dict[str, Tiny] = {
    "llama_linear": llama(LINEAR, NO_SCALING),
    "llama_dynamic": llama(DYNAMIC, NO_SCALING),
    "llama_llama3": llama(LLAMA3_ROPE_TYPE, NO_SCALING, dtype=torch.float16),
    "llama_yarn": llama(yarn(), NO_SCALING),
    "llama_tied": llama({"tie_word_embeddings": True, "vocab_size": 48}, {}, dtype=torch.float32),
    "llama_head_dim": llama({"hidden_size": 48, "head_dim": 32}, {}),
    "llama_sharded": llama({}, {}, shards=3),
    "mistral_sliding": mistral({"sliding_window": 7}, {"sliding_window": None}),
    "qwen2_bias": qwen2({"use_sliding_window": False, "sliding_window": 8}, {}),
    "qwen3_qk_norm": qwen3({}, {}),
    "llama_linear_parameters": llama(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        NO_SCALING,
        weights="llama_linear",
    ),
    "llama_llama3_parameters": llama(LLAMA3_PARAMETERS, NO_SCALING, weights="llama_linear"),
    "llama_llama3_type": llama(LLAMA3_TYPE, NO_SCALING, weights="llama_dynamic"),
    "llama_yarn_attention_factor": llama(yarn(attention_factor=0.8), yarn(), weights="llama_yarn"),
    "llama_yarn_mscale": llama(yarn(mscale=2.0, mscale_all_dim=0.4), yarn(), weights="llama_yarn"),
    "llama_yarn_betas": llama(yarn(beta_fast=8, beta_slow=2.5), yarn(), weights="llama_yarn"),
    "llama_yarn_untruncated": llama(yarn(truncate=False), yarn(), weights="llama_yarn"),
    "llama_mqa": llama({"num_key_value_heads": 1, "hidden_size": 32}, {}),
    "llama_mha": llama({"num_key_value_heads": ABSENT, "hidden_size": 32}, {}),
    "mistral_head_dim": mistral(
        {"hidden_size": 48, "head_dim": 32, "sliding_window": None}, {}, weights="llama_head_dim"
    ),
    "mistral_yarn": mistral(
        {**yarn(), "sliding_window": None}, NO_SCALING, weights="mistral_sliding"
    ),
    "mistral_default_window": mistral({}, {}, weights="mistral_sliding"),
    "qwen2_linear": qwen2(LINEAR, NO_SCALING, weights="qwen2_bias"),
    "qwen2_dynamic": qwen2(DYNAMIC, NO_SCALING, weights="qwen2_bias"),
    "qwen2_yarn": qwen2(PUBLISHED_YARN, NO_SCALING, weights="qwen2_bias"),
    "qwen2_sliding": qwen2(SLIDING, {"use_sliding_window": False}, weights="qwen2_bias"),
    "qwen3_linear": qwen3(LINEAR, NO_SCALING, weights="qwen3_qk_norm"),
    "qwen3_dynamic": qwen3(DYNAMIC_PARAMETERS, NO_SCALING, weights="qwen3_qk_norm"),
    "qwen3_yarn": qwen3(PUBLISHED_YARN, NO_SCALING, weights="qwen3_qk_norm"),
    "qwen3_sliding": qwen3(SLIDING, {"use_sliding_window": False}, weights="qwen3_qk_norm"),
    "qwen3_tied": qwen3({"tie_word_embeddings": True, "vocab_size": 48, "hidden_size": 32}, {}),
    "mistral_linear": mistral(
        {**LINEAR, "sliding_window": None}, NO_SCALING, weights="mistral_sliding"
    ),
    "mistral_dynamic": mistral(
        {**DYNAMIC_PARAMETERS, "sliding_window": None}, NO_SCALING, weights="mistral_sliding"
    ),
    "mistral_llama3": mistral(
        {**LLAMA3_ROPE_TYPE, "sliding_window": None}, NO_SCALING, weights="mistral_sliding"
    ),
    "qwen2_llama3": qwen2(LLAMA3_PARAMETERS, NO_SCALING, weights="qwen2_bias"),
    "qwen3_llama3": qwen3(LLAMA3_TYPE, NO_SCALING, weights="qwen3_qk_norm"),
    "llama_biases": llama({"attention_bias": True, "mlp_bias": True}, {}),
    "llama_attention_bias": llama({"attention_bias": True, "hidden_size": 32}, {}),
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
    config = {name: value for name, value in config.items() if value is not ABSENT}
    if "rope_parameters" in config:
        del config["rope_theta"]  # newer configs keep it inside
    config["torch_dtype"] = names[tiny.dtype]
    return config


def biased_projections(tiny: Tiny) -> List[str]:
    """The projections of a layer that have a bias."""
    names = []
    if tiny.model_type == "qwen2" or tiny.config.get("attention_bias"):
        names += ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    if tiny.config.get("attention_bias"):
        names.append("self_attn.o_proj")
    if tiny.config.get("mlp_bias"):
        names += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    return names


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
        for name in biased_projections(tiny):
            rows = weights[prefix + name + ".weight"].shape[0]
            weights[prefix + name + ".bias"] = 0.5 * torch.randn(rows)
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


def load_without(directory: Path, tiny: Tiny) -> torch.nn.Module:
    """The model of a directory with its feature switched off."""
    with tempfile.TemporaryDirectory() as scratch:
        changed = tiny._replace(config={**tiny.config, **tiny.without})
        (Path(scratch) / "config.json").write_text(json.dumps(config_of(changed)))
        (Path(scratch) / "model.safetensors").symlink_to((directory / "model.safetensors").resolve())
        return load(Path(scratch))


def load_without_bias(directory: Path, projection: str) -> torch.nn.Module:
    """The model of a directory whose layers have no bias in one projection."""
    model = load(directory)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.get_parameter(projection + ".bias"))
    return model


def effect_of_feature(directory: Path, tiny: Tiny, ids: List[int], logits: torch.Tensor) -> float:
    """Largest change of a logit when the model's feature is left out; of several biases, each by itself."""

    def effect(plain: torch.nn.Module) -> float:
        return float((run(plain, ids)["logits"] - logits).abs().max())

    if tiny.without:
        return effect(load_without(directory, tiny))
    projections = biased_projections(tiny)
    if projections:
        return min(effect(load_without_bias(directory, projection)) for projection in projections)
    if tiny.model_type == "qwen3":
        plain = load(directory)
        for layer in plain.model.layers:
            layer.self_attn.q_norm, layer.self_attn.k_norm = torch.nn.Identity(), torch.nn.Identity()
        return effect(plain)
    return float("nan")  # a different shape, not a switch: nothing to leave out


def make(name: str, tiny: Tiny, out: Path, seed: int) -> None:
    """Writes one model and its golden."""
    torch.manual_seed(seed)
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    raw = config_of(tiny)
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    config = Config.load(directory)
    if tiny.weights:
        (directory / "model.safetensors").unlink(missing_ok=True)
        (directory / "model.safetensors").symlink_to(f"../{tiny.weights}/model.safetensors")
    else:
        weights = random_weights(config, tiny, raw["intermediate_size"])
        write_weights(directory, weights, tiny.shards)
    ids = torch.randint(5, config.vocab, (TOKENS,)).tolist()
    logits = write_golden(directory, load(directory), ids)["logits"]
    effect = effect_of_feature(directory, tiny, ids, logits)
    if effect < SMALLEST_EFFECT:
        raise SystemExit(f"{name}: leaving out the feature changes logits by {effect:.3g} only")
    size = sum(file.stat().st_size for file in directory.iterdir() if not file.is_symlink())
    print(
        f"{name:28} {size / 1000:4.0f} kB, logits to {logits.abs().max():.1f}, feature {effect:.2g}"
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
