"""Writes tiny random LoRA adapters in PEFT's layout, and the logits of a base model with each.

Each directory adapters/NAME holds adapter_config.json (with the fields that PEFT writes),
adapter_model.safetensors and golden.safetensors: ids [tokens] and logits [tokens, vocab] of the
adapter over tiny/BASE, whose name stands in the golden's metadata. They are computed in float64 by
the team's reference (deploy/demo/train/reference.py), unmerged, as PEFT's layers do it:

    y = W x + b + scale * B (A x),   scale = alpha / r, or alpha / sqrt(r) with use_rslora

Which modules an adapter updates is spelled out here for each, module by module, and not derived from
its target_modules: reading those is what the test is about.

An activated adapter (alora_invocation_tokens) does so from the last occurrence of its invocation on. One that only reads
(ICaRus) takes the keys and values of every token from the base, which computes them as if there was no adapter.

An adapter that the test would not notice is worthless: each changes some logit by 0.05 at least, and
so does each of its modules alone.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

GOLDEN = Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parents[3] / "deploy/demo/train"))

from reference import Reference, write_safetensors  # noqa: E402

TOKENS = 24
ACTIVATED = 13  # where the last invocation of an activated adapter begins
SMALLEST_EFFECT = 0.05
ATTENTION = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
LINEAR = ATTENTION + ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
CACHED = ["self_attn.k_proj", "self_attn.v_proj"]
SHORT = [name.split(".")[-1] for name in LINEAR]


class Update(NamedTuple):
    """Of one module: y += scale * B (A x)."""

    a: torch.Tensor  # [rank, inputs]
    b: torch.Tensor  # [outputs, rank]
    scale: float


class Case(NamedTuple):
    """One adapter: what its config says beside the defaults, and what that means."""

    base: str
    config: Dict[str, Any]
    modules: Dict[str, Tuple[int, float]]  # by name: rank and scale
    dtype: torch.dtype = torch.bfloat16
    reads_only: bool = False


def in_layers(layers: List[int], names: List[str], rank: int, scale: float) -> Dict[str, Tuple[int, float]]:
    """The same rank and scale for these modules of these layers."""
    return {f"model.layers.{layer}.{name}": (rank, scale) for layer in layers for name in names}


CASES: Dict[str, Case] = {
    "llama_list": Case(
        "llama_sharded",
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        in_layers([0, 1], ["self_attn.q_proj", "self_attn.v_proj"], 4, 2.0),
    ),
    "llama_all_linear": Case(
        "llama_biases",
        {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
        in_layers([0, 1], LINEAR, 8, 2.0),
        torch.float32,
    ),
    "llama_head": Case(
        "llama_mqa",
        {"r": 4, "lora_alpha": 4, "target_modules": ["lm_head", "k_proj"]},
        {"lm_head": (4, 1.0), **in_layers([0, 1], ["self_attn.k_proj"], 4, 1.0)},
    ),
    "mistral_layers": Case(
        "mistral_sliding",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": SHORT,
            "layers_to_transform": [1],
            "layers_pattern": "layers",
            "exclude_modules": ["o_proj"],
        },
        in_layers([1], [name for name in LINEAR if name != "self_attn.o_proj"], 4, 2.0),
    ),
    "qwen2_rslora": Case(
        "qwen2_bias",
        {"r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": SHORT},
        in_layers([0, 1], LINEAR, 16, 2.0),
        torch.float16,
    ),
    "qwen3_regex": Case(
        "qwen3_tied",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": r"model\.layers\.\d+\.(?:self_attn\.(q|k|o)_proj|mlp\.down_proj)",
            "rank_pattern": {"down_proj": 2},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 12, r"mlp\.down_proj": 6},
        },
        {
            **in_layers([0], ["self_attn.q_proj"], 4, 2.0),
            **in_layers([1], ["self_attn.q_proj"], 4, 3.0),
            **in_layers([0, 1], ["self_attn.k_proj", "self_attn.o_proj"], 4, 2.0),
            **in_layers([0, 1], ["mlp.down_proj"], 2, 3.0),
        },
    ),
    "fp8_list": Case(
        "fp8_row",
        {"r": 4, "lora_alpha": 8, "target_modules": SHORT},
        in_layers([0, 1], LINEAR, 4, 2.0),
    ),
    "qwen2_activated": Case(
        "qwen2_bias",
        {"r": 4, "lora_alpha": 8, "target_modules": SHORT, "alora_invocation_tokens": [3, 4]},
        in_layers([0, 1], LINEAR, 4, 2.0),
    ),
    "qwen3_reads_only": Case(
        "qwen3_tied",
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
        in_layers([0, 1], [name for name in LINEAR if name not in CACHED], 4, 2.0),
        reads_only=True,
    ),
}


class Recorder(Reference):
    """A base model that keeps what it projected to keys and values."""

    def __init__(self, directory: Path, ids: List[int]) -> None:
        super().__init__(str(directory), torch.float64)
        self.cached: Dict[str, torch.Tensor] = {}
        self.forward(ids)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = super()._linear(name, x)
        if name.endswith(tuple(CACHED)):
            self.cached[name] = y
        return y


class Adapted(Reference):
    """A base model with unmerged updates of the tokens from `begin` on, over keys and values of its own or over those of
    `reads`, of the same tokens."""

    def __init__(self, directory: Path, updates: Dict[str, Update], begin: int = 0,
                 reads: Optional["Recorder"] = None) -> None:
        super().__init__(str(directory), torch.float64)
        self.updates = updates
        self.begin = begin
        self.reads = reads
        if "lm_head" in updates:
            update = updates["lm_head"]
            head = self.weights["lm_head.weight"]
            self.weights["lm_head.weight"] = head + update.scale * (update.b @ update.a)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if self.reads is not None and name in self.reads.cached:
            return self.reads.cached[name]
        y = super()._linear(name, x)
        if name not in self.updates:
            return y
        update = self.updates[name]
        added = update.scale * ((x @ update.a.T) @ update.b.T)
        added[:self.begin] = 0
        return y + added


def config_of(case: Case) -> Dict[str, Any]:
    """adapter_config.json."""
    return {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": f"tests/{case.base}",
        "bias": "none",
        "corda_config": None,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_bias": False,
        "lora_dropout": 0.05,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "peft_type": "LORA",
        "rank_pattern": {},
        "revision": None,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None,
        "use_dora": False,
        "use_rslora": False,
        **case.config,
    }


def draw(case: Case, base: Reference) -> Dict[str, torch.Tensor]:
    """The adapter's tensors under PEFT's names, in its dtype."""
    tensors = {}
    for module, (rank, scale) in case.modules.items():
        rows, columns = base.weights[f"{module}.weight"].shape
        a = torch.randn(rank, columns) / columns**0.5
        b = torch.randn(rows, rank) * 0.5 / (scale * rank**0.5)
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.to(case.dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.to(case.dtype)
    return tensors


def make(name: str, case: Case, seed: int) -> None:
    """Writes one adapter and its golden."""
    torch.manual_seed(seed)
    directory = GOLDEN / "adapters" / name
    directory.mkdir(parents=True, exist_ok=True)
    base_directory = GOLDEN / "tiny" / case.base
    base = Reference(str(base_directory), torch.float64)
    tensors = draw(case, base)
    updates = {
        module: Update(
            tensors[f"base_model.model.{module}.lora_A.weight"].double(),
            tensors[f"base_model.model.{module}.lora_B.weight"].double(),
            scale,
        )
        for module, (_, scale) in case.modules.items()
    }
    ids = torch.randint(5, base.config.vocab, (TOKENS,)).tolist()
    # Of two occurrences of the invocation an activated adapter acts from the last on.
    invocation = case.config.get("alora_invocation_tokens", [])
    begin = ACTIVATED if invocation else 0
    for at in (ACTIVATED // 2, ACTIVATED):
        ids[at:at + len(invocation)] = invocation
    reads = Recorder(base_directory, ids) if case.reads_only else None
    logits, _ = Adapted(base_directory, updates, begin, reads).forward(ids)
    effects = []
    for module in updates:
        without = {other: update for other, update in updates.items() if other != module}
        effects.append(float((Adapted(base_directory, without, begin, reads).forward(ids)[0] - logits).abs().max()))
    assert min(effects) > SMALLEST_EFFECT, f"{name}: a module changes logits by {min(effects)} at most"
    (directory / "adapter_config.json").write_text(json.dumps(config_of(case), indent=2) + "\n")
    write_safetensors(directory / "adapter_model.safetensors", tensors)
    golden = {"ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.float()}
    write_safetensors(directory / "golden.safetensors", golden, {"base": case.base})
    assert math.isfinite(float(logits.abs().max()))
    print(f"{name:20} over {case.base:16} smallest effect of a module {min(effects):.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for index, (case_name, one_case) in enumerate(CASES.items()):
        make(case_name, one_case, seed=100 + index)
