"""Writes the seeds of decoder_fuzz (frame_seeds.py); those of safetensors_fuzz, adapter_fuzz, model_config_fuzz and tokenizer_fuzz
from the models and tokenizers that the tests of runtime/model have; those of artifact_fuzz from the demo's artifact; and FORMAT.md's frame
for frame_fuzz: files that load, so that a target starts behind the first checks of its format.

    python3 tests/fuzz/make_seeds.py
"""

import json
import shutil
import struct
from pathlib import Path
from typing import Any, Dict, List

from frame_seeds import frame_seeds

FUZZ = Path(__file__).resolve().parent
MODEL_TESTS = FUZZ.parent / "runtime/model"
GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": True, "temperature": 0.6, "top_p": 0.9,
              "top_k": 20, "repetition_penalty": 1.05, "max_new_tokens": 64, "num_beams": 1}
MERGES_KEPT = 40
PACKINGS = ("fixed", "deflate", "rans", "embedded", "video")
VARIANTS = ("metaspace_always", "metaspace_with_added_tokens", "added_tokens_nfkc", "tekken", "smollm", "deepseek",
            "split_removed_inverted", "normal_nfkc_lowercase_strip", "normal_replace")


def write(target: str, name: str, content: bytes) -> None:
    """Writes one seed."""
    path = FUZZ / "seeds" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def compact(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def safetensors(tensors: Dict[str, List[Any]], metadata: bool = False) -> bytes:
    """A file of {name: [dtype, shape, bytes]}."""
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    offset = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = compact(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(i % 256 for i in range(offset))


def safetensors_seeds() -> None:
    """A file with every dtype, and an index with shards."""
    dtypes = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4,
              "I64": 8, "F64": 8}
    every = {f"t.{name}": [name, [1, 2], 2 * size] for name, size in dtypes.items()}
    write("safetensors", "every-dtype", safetensors(every, metadata=True))
    write("safetensors", "one", safetensors({"model.norm.weight": ["BF16", [4], 8]}))
    write("safetensors", "scalar-and-empty", safetensors({"s": ["F32", [], 4], "e": ["I32", [0, 3], 0]}))
    index = {"metadata": {"total_size": 9}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    shard = safetensors({"a": ["F32", [2], 8]}, metadata=True)
    write("safetensors", "two-shards", compact(index).encode() + b"\n" + shard)
    write("safetensors", "missing-shard", compact({"weight_map": {"a": "c.safetensors"}}).encode() + b"\n" + shard)


def adapter_seeds() -> None:
    """Adapters that fit the fuzzer's model: of one module, of two with their own ranks, and one scaled otherwise."""
    module = "base_model.model.model.layers.0.self_attn."

    def pair(name: str, rank: int, rows: int, dtype: str, size: int) -> Dict[str, List[Any]]:
        return {f"{module}{name}.lora_A.weight": [dtype, [rank, 64], rank * 64 * size],
                f"{module}{name}.lora_B.weight": [dtype, [rows, rank], rows * rank * size]}

    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["q_proj"], "layers_to_transform": [0]}
    write("adapter", "one", f"{compact(config)}\n".encode() + safetensors(pair("q_proj", 1, 64, "BF16", 2)))
    write("adapter", "rslora", f"{compact({**config, 'use_rslora': True})}\n".encode()
          + safetensors(pair("q_proj", 1, 64, "F32", 4), metadata=True))
    write("adapter", "activated", f"{compact({**config, 'alora_invocation_tokens': [1, 2]})}\n".encode()
          + safetensors(pair("q_proj", 1, 64, "BF16", 2)))
    two = {**config, "target_modules": ["q_proj", "k_proj"], "rank_pattern": {"k_proj": 2},
           "alpha_pattern": {"k_proj": 8}}
    write("adapter", "two-ranks", f"{compact(two)}\n".encode()
          + safetensors({**pair("q_proj", 1, 64, "BF16", 2), **pair("k_proj", 2, 32, "F16", 2)}))


def config_seeds() -> None:
    """Every tiny model's config, some with a generation_config.json."""
    for i, path in enumerate(sorted((MODEL_TESTS / "golden/tiny").glob("*/config.json"))):
        seed = compact(json.loads(path.read_text()))
        if i % 2 == 0:
            seed += "\n" + compact(GENERATION)
        write("model_config", path.parent.name, seed.encode())


def trimmed(tokenizer: Dict[str, Any]) -> Dict[str, Any]:
    """With the alphabet, the first merges and what they make, and everything else renumbered behind these."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    merges = model["merges"][:MERGES_KEPT]
    made = {"".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges}
    specials = {token["content"] for token in added}
    kept = [token for token in model["vocab"] if len(token) == 1 or token in made or token in specials or token[:3] == "<0x"]
    if len(kept) > 600:
        raise SystemExit(f"{len(kept)} tokens are no seed")
    ids = {token: i for i, token in enumerate(kept)}
    for token in added:
        ids.setdefault(token["content"], len(ids))
        token["id"] = ids[token["content"]]
    text = compact({**tokenizer, "model": {**model, "vocab": {token: ids[token] for token in kept}, "merges": merges}})
    result: Dict[str, Any] = json.loads(text)
    for processor in [result["post_processor"], *(result["post_processor"] or {}).get("processors", [])]:
        for name, special in ((processor or {}).get("special_tokens") or {}).items():
            special["ids"] = [ids[name]]
    return result


def tokenizer_seeds() -> None:
    """The families and some of their variants, each with a line of text."""
    reference = FUZZ.parent / "runtime/text/reference"
    families = {path.parent.name: json.loads(path.read_text()) for path in sorted(reference.glob("*/tokenizer.json"))}
    seeds = dict(families)
    variants = json.loads((reference / "variants.json").read_text())
    for name in VARIANTS:
        variant = variants[name]
        seeds[name] = {**families[variant["base"]], **variant["members"]}
    for name, tokenizer in seeds.items():
        special = tokenizer["added_tokens"][-1]["content"]
        text = f"  The fox's 123 caf\u00e9s\u3000{special} e\u0301\ufb01 \U0001f600 "
        write("tokenizer", name, (compact(trimmed(json.loads(json.dumps(tokenizer)))) + "\n" + text).encode())


def artifact_seeds() -> None:
    """The demo's manifest, and one of its formats in every packing."""
    demo = json.loads((FUZZ.parents[1] / "deploy/demo/codec/artifact.json").read_text())
    write("artifact", "demo", compact(demo).encode())
    codes = next(entry for entry in demo["formats"] if entry["kind"] == "aludel")
    formats = [{**codes, "name": packing, "packing": packing, "max_kl": 0.02} for packing in PACKINGS]
    write("artifact", "packings", compact({**demo, "formats": formats, "controls": []}).encode())


def frame_seed() -> None:
    """The golden example of FORMAT.md."""
    text = (FUZZ.parents[1] / "runtime/codec/FORMAT.md").read_text()
    _, _, example = text.partition("### Golden example\n")
    write("frame", "scd", bytes.fromhex(example.split("```")[1]))


def main() -> None:
    """Replaces these targets' seeds."""
    for target in ("decoder", "artifact", "frame", "safetensors", "adapter", "model_config", "tokenizer"):
        shutil.rmtree(FUZZ / "seeds" / target, ignore_errors=True)
    for name, seed in frame_seeds(layers=2):
        write("decoder", name, seed)
    artifact_seeds()
    frame_seed()
    safetensors_seeds()
    adapter_seeds()
    config_seeds()
    tokenizer_seeds()


if __name__ == "__main__":
    main()
