"""Lets HuggingFace PEFT make LoRA adapters over tiny models, save them, load them and compute with them.

Each directory peft/CASE holds golden.safetensors and, in a directory each, adapters of one base as PEFT's
save_pretrained wrote them. The golden has a batch of sequences, each of one adapter or of the base alone:

    ids       [rows, tokens] int32
    unmerged  [rows, vocab]: logits of the last token, each row by itself, its adapter active
    merged    [rows, vocab]: the same by merge_and_unload; not where an adapter cannot be merged (aLoRA)
    mixed     [rows, vocab]: all rows in one pass, by adapter_names

and, as metadata, the base (a directory of tiny/), the adapter of each row ("__base__": none) and the versions
that made it. Model classes are those of transformers, loaded by make_hf.py, in float32.

An adapter that the test would not notice is worthless: each of its modules alone changes some row's logits by
SMALLEST_EFFECT at least. So would be an aLoRA adapter that acts from the first of two invocations on, or on all.

The committed files are by PEFT 0.20.0 (commit a5526d27a9d47d1e8264d5e1b1f96c0fdc79464e), transformers 5.10.0.dev0
(cc041637bc2b3639bba0b8f85672c1653cdb6248), accelerate 1.14.0 and huggingface_hub 1.28.0, on Debian 13's python3-torch
2.6.0 and python3-safetensors; in place of the package tokenizers, which transformers imports and these models
never call, stood empty classes. To make them again:

    pip install torch "transformers>=5" peft
    PYTHONHASHSEED=0 python3 make_peft.py

Then it prints how far the logits of adapters/*, which the team's own reference computed (make_adapters.py), are from
PEFT's.
"""

import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import accelerate
import peft
import torch
import transformers
from make_hf import GOLDEN, load, write_safetensors
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file

TOKENS = 24
INVOCATION = [3, 4]
INVOKED = [6, 13]  # where they begin in the rows of an activated adapter
SMALLEST_EFFECT = 0.01
BASE = "__base__"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = ATTENTION + ["gate_proj", "up_proj", "down_proj"]


class Adapter(NamedTuple):
    """What its LoraConfig says beside PEFT's defaults, and what its file holds."""

    config: Dict[str, Any]
    dtype: torch.dtype = torch.bfloat16


class Case(NamedTuple):
    """Adapters of one base."""

    base: str
    adapters: Dict[str, Adapter]


CASES: Dict[str, Case] = {
    "llama": Case("llama_sharded", {
        "plain": Adapter({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
        "all_linear": Adapter({"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}, torch.float32),
    }),
    "mistral": Case("mistral_sliding", {
        "layers": Adapter({"r": 4, "lora_alpha": 8, "target_modules": LINEAR, "layers_to_transform": [1]}),
        "excluded": Adapter({"r": 4, "lora_alpha": 4, "target_modules": "all-linear", "exclude_modules": ["o_proj"]}),
    }),
    "qwen2": Case("qwen2_bias", {
        "rslora": Adapter({"r": 9, "lora_alpha": 6, "use_rslora": True, "target_modules": LINEAR}, torch.float16),
        "head": Adapter({"r": 4, "lora_alpha": 8, "target_modules": ["lm_head", "k_proj", "down_proj"]}),
    }),
    "qwen3": Case("qwen3_qk_norm", {
        "patterns": Adapter({
            "r": 4, "lora_alpha": 8, "target_modules": LINEAR,
            "rank_pattern": {"down_proj": 2, r"layers\.1\.self_attn\.q_proj": 6},
            "alpha_pattern": {"layers.0.self_attn.v_proj": 12, r"mlp\.(gate|up)_proj": 5},
        }),
        "regex": Adapter({"r": 4, "lora_alpha": 8,
                          "target_modules": r"model\.layers\.\d+\.(self_attn\.(q|k|o)_proj|mlp\.down_proj)"}),
    }),
    "activated": Case("qwen2_bias", {
        "activated": Adapter({"r": 4, "lora_alpha": 8, "target_modules": LINEAR, "alora_invocation_tokens": INVOCATION}),
        "plain": Adapter({"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    }),
}


def base_of(case: Case) -> torch.nn.Module:
    """A fresh base: PEFT changes the one that it is given."""
    base = load(GOLDEN / "tiny" / case.base)
    base.name_or_path = f"tests/{case.base}"  # what save_pretrained notes
    return base


def lora_layers(model: PeftModel) -> Iterator[Tuple[str, LoraLayer]]:
    """The modules that some adapter updates."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def make_adapter(case: Case, adapter: Adapter, directory: Path) -> None:
    """An adapter with random numbers, saved by PEFT."""
    model = get_peft_model(base_of(case), LoraConfig(task_type="CAUSAL_LM", **adapter.config))
    for _, layer in lora_layers(model):
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        rank, columns = a.shape
        size = 0.7 / (layer.scaling["default"] * rank**0.5)
        a.data = (torch.randn(a.shape) / columns**0.5).to(adapter.dtype)
        b.data = (torch.randn(b.shape) * size).to(adapter.dtype)
    shutil.rmtree(directory, ignore_errors=True)
    # Else the whole head stands beside its update, which we refuse.
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink()  # the card


def with_adapters(case: Case, directory: Path, names: List[str]) -> PeftModel:
    """The base with adapters that PEFT reads from their files."""
    model = PeftModel.from_pretrained(base_of(case), directory / names[0], adapter_name=names[0])
    for name in names[1:]:
        model.load_adapter(directory / name, adapter_name=name)
    return model.eval()


@torch.no_grad()
def last_logits(model: torch.nn.Module, ids: torch.Tensor, rows: Optional[List[str]] = None) -> torch.Tensor:
    """[rows, vocab]; `rows`: the adapter of each, where they are not all of the active one."""
    chosen = {} if rows is None else {"adapter_names": rows}
    return model(input_ids=ids, use_cache=False, **chosen).logits[:, -1]


def draw_ids(case: Case, rows: List[str], vocab: int) -> torch.Tensor:
    """Sequences, with two invocations where their adapter wants one."""
    ids = torch.randint(5, vocab, (len(rows), TOKENS))
    for row, name in enumerate(rows):
        if name != BASE and "alora_invocation_tokens" in case.adapters[name].config:
            for at in INVOKED:
                ids[row, at:at + len(INVOCATION)] = torch.tensor(INVOCATION)
    return ids


def run_each(case: Case, directory: Path, rows: List[str], ids: torch.Tensor, merge: bool) -> torch.Tensor:
    """Logits of each row by itself, of a model with its adapter alone."""
    logits = []
    for row, name in enumerate(rows):
        if name == BASE:
            model = base_of(case)
        else:
            model = with_adapters(case, directory, [name])
            if merge:
                model = model.merge_and_unload()
        logits.append(last_logits(model, ids[row:row + 1])[0])
    return torch.stack(logits)


def check_effects(case: Case, directory: Path, rows: List[str], ids: torch.Tensor) -> float:
    """The smallest change of a row's logits that leaving out one module of its adapter makes."""
    effects = []
    for name in case.adapters:
        model = with_adapters(case, directory, [name])
        own = ids[[row for row, of in enumerate(rows) if of == name]]
        usual = last_logits(model, own)
        for _, layer in lora_layers(model):
            scale, layer.scaling[name] = layer.scaling[name], 0.0
            effects.append(float((last_logits(model, own) - usual).abs().max()))
            layer.scaling[name] = scale
    assert min(effects) > SMALLEST_EFFECT, f"a module changes logits by {min(effects)} at most"
    return min(effects)


def make(name: str, case: Case, seed: int) -> None:
    """Writes the adapters of a case and its golden."""
    torch.manual_seed(seed)
    directory = GOLDEN / "peft" / name
    directory.mkdir(parents=True, exist_ok=True)
    for adapter_name, adapter in case.adapters.items():
        make_adapter(case, adapter, directory / adapter_name)
    one, two = case.adapters
    rows = [BASE, one, two, one, two, BASE]
    ids = draw_ids(case, rows, base_of(case).config.vocab_size)
    smallest = check_effects(case, directory, rows, ids)
    golden = {
        "ids": ids.int(),
        "unmerged": run_each(case, directory, rows, ids, merge=False),
        "mixed": last_logits(with_adapters(case, directory, [one, two]), ids, rows),
    }
    if not any("alora_invocation_tokens" in adapter.config for adapter in case.adapters.values()):
        golden["merged"] = run_each(case, directory, rows, ids, merge=True)
    versions = {"accelerate": accelerate.__version__, "peft": peft.__version__, "torch": torch.__version__,
                "transformers": transformers.__version__}
    write_safetensors(directory / "golden.safetensors", golden, {"base": case.base, "rows": ",".join(rows), **versions})
    largest = golden["unmerged"].abs().max()
    apart = max(float((golden[kind] - golden["unmerged"]).abs().max() / largest) for kind in golden if kind != "ids")
    print(f"{name:10} over {case.base:16} smallest effect of a module {smallest:.2f}; PEFT's own kinds are {apart:.1g} apart")


@torch.no_grad()
def check_reference() -> None:
    """How far the goldens of make_adapters.py are from PEFT's numbers, where transformers runs the base in float32."""
    for directory in sorted((GOLDEN / "adapters").iterdir()):
        base = directory.joinpath("golden.safetensors").read_bytes().partition(b'"base": "')[2].partition(b'"')[0].decode()
        if base.startswith("fp8") or "reads_only" in directory.name:
            continue  # weights that PEFT would have to dequantize; a kind that PEFT does not have
        golden = load_file(directory / "golden.safetensors")
        model = PeftModel.from_pretrained(load(GOLDEN / "tiny" / base), directory).eval()
        logits = model(input_ids=golden["ids"][None].long(), use_cache=False).logits[0]
        apart = (logits - golden["logits"]).abs().max() / golden["logits"].abs().max()
        print(f"adapters/{directory.name:20} {apart:.2g} of the largest")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for index, (case_name, one_case) in enumerate(CASES.items()):
        make(case_name, one_case, seed=200 + index)
    check_reference()
