"""Writes tiny random models with quantised weights, with the logits of the dequantised weights.

Each directory tiny/NAME is a checkpoint as published quantisers write it (FP8 with a scale per
tensor, row or block; AutoAWQ's GEMM layout; AutoGPTQ's layout, both versions) plus what
HuggingFace's modules make of the unpacked weights (make_hf.py). Weights are rounded to nearest,
which is no good quantiser and all that a reader's test needs. Packing and unpacking are written
here from the formats' definitions, element by element, and share nothing with the runtime.
"""

import argparse
import json
import struct
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
import torch
from make_hf import GOLDEN, Config, load, write_golden, write_safetensors
from make_tiny import TOKENS, Tiny, config_of, random_weights

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble n of a word holds this one of its eight outputs
NIBBLES = 8

Tensors = Dict[str, Tuple[str, np.ndarray]]  # name -> safetensors dtype, values


def e4m3_values() -> np.ndarray:
    """What the 256 bytes of FP8 E4M3 (no infinities) mean."""
    values = np.empty(256)
    for byte in range(256):
        sign, exponent, mantissa = byte >> 7, (byte >> 3) & 15, byte & 7
        value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values[byte] = (-1) ** sign * (np.nan if exponent == 15 and mantissa == 7 else value)
    return values


E4M3 = e4m3_values()


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The nearest bf16 bits."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(torch.bfloat16)
    return tensor.view(torch.int16).numpy().view(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def fp8_bytes(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The byte whose value times scale is nearest to each weight."""
    good = np.where(np.isnan(E4M3), np.inf, E4M3)
    return np.abs((weight / scale)[..., None] - good).argmin(axis=-1).astype(np.uint8)


def fp8_per_tensor(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
    """As AutoFP8 writes it: one float32 without dimensions."""
    scale = np.float32(np.abs(weight).max() / 448)
    stored = fp8_bytes(weight, scale)
    tensors = {f"{name}.weight": ("F8_E4M3", stored), f"{name}.weight_scale": ("F32", scale)}
    return tensors, E4M3[stored] * np.float64(scale)


def fp8_per_row(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
    """One bf16 scale for each output."""
    bits = to_bf16(np.abs(weight).max(axis=1, keepdims=True) / 448)
    scale = from_bf16(bits)
    stored = fp8_bytes(weight, scale)
    tensors = {f"{name}.weight": ("F8_E4M3", stored), f"{name}.weight_scale": ("BF16", bits)}
    return tensors, E4M3[stored] * scale


def fp8_per_channel(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
    """As llm-compressor writes strategy "channel": float32 [outputs, 1]."""
    scale = (np.abs(weight).max(axis=1, keepdims=True) / 448).astype(np.float32)
    stored = fp8_bytes(weight, scale)
    tensors = {f"{name}.weight": ("F8_E4M3", stored), f"{name}.weight_scale": ("F32", scale)}
    return tensors, E4M3[stored] * scale.astype(np.float64)


def fp8_with_static_inputs(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
    """As ModelOpt writes it: scalars for the weight, and for inputs, which nobody here rounds."""
    tensors, back = fp8_per_tensor(name, weight)
    tensors[f"{name}.input_scale"] = ("F32", np.float32(0.5))
    return tensors, back


BLOCK = (24, 40)  # divides no dimension: the last blocks are cut off


def fp8_per_block(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
    """As DeepSeek and Qwen publish: weight_scale_inv, which is multiplied with all the same."""
    rows, cols = weight.shape
    grid = np.empty((-(-rows // BLOCK[0]), -(-cols // BLOCK[1])), dtype=np.float32)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            block = weight[i * BLOCK[0] : (i + 1) * BLOCK[0], j * BLOCK[1] : (j + 1) * BLOCK[1]]
            grid[i, j] = np.abs(block).max() / 448
    scale = np.array(
        [[grid[r // BLOCK[0], c // BLOCK[1]] for c in range(cols)] for r in range(rows)], np.float64
    )
    stored = fp8_bytes(weight, scale)
    tensors = {
        f"{name}.weight": ("F8_E4M3", stored),
        f"{name}.weight_scale_inv": ("F32", grid),
    }
    return tensors, E4M3[stored] * scale


def fp8_compressed_block(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
    """The same blocks under llm-compressor's name for their scales."""
    tensors, back = fp8_per_block(name, weight)
    tensors[f"{name}.weight_scale"] = tensors.pop(f"{name}.weight_scale_inv")
    return tensors, back


def groups_of(weight: np.ndarray, group_of: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Asymmetric int4 of weight.T: q [in, out], zeros [groups, out], f16 scales [groups, out]."""
    inputs = weight.T
    count = int(group_of.max()) + 1
    zeros = np.empty((count, inputs.shape[1]), dtype=np.int64)
    scales = np.empty((count, inputs.shape[1]), dtype=np.float16)
    for group in range(count):
        mine = inputs[group_of == group]
        low, high = np.minimum(mine.min(axis=0), 0), np.maximum(mine.max(axis=0), 0)
        scales[group] = (high - low) / 15
        zeros[group] = np.clip(np.rint(-low / scales[group]), 0, 15)
    step = scales.astype(np.float64)[group_of]
    q = np.clip(np.rint(inputs / step) + zeros[group_of], 0, 15).astype(np.int64)
    return q, zeros, scales


def words(nibbles: np.ndarray) -> np.ndarray:
    """[..., 8] nibbles, the lowest first, to int32 words."""
    shifted = nibbles.astype(np.uint32) << (4 * np.arange(NIBBLES, dtype=np.uint32))
    return np.bitwise_or.reduce(shifted, axis=-1).view(np.int32)


def nibbles_of(packed: np.ndarray) -> np.ndarray:
    """The inverse, with the nibbles as a new last axis."""
    return (packed.view(np.uint32)[..., None] >> (4 * np.arange(NIBBLES, dtype=np.uint32))) & 15


def awq(group: int) -> Callable[[str, np.ndarray], Tuple[Tensors, np.ndarray]]:
    """AutoAWQ's GEMM layout."""

    def pack_outputs(values: np.ndarray) -> np.ndarray:
        by_word = values.reshape(values.shape[0], -1, NIBBLES)
        return words(by_word[..., list(AWQ_ORDER)])

    def unpack_outputs(packed: np.ndarray) -> np.ndarray:
        ordered = nibbles_of(packed)
        values = np.empty_like(ordered)
        values[..., list(AWQ_ORDER)] = ordered
        return values.reshape(packed.shape[0], -1).astype(np.int64)

    def store(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
        group_of = np.arange(weight.shape[1]) // group
        q, zeros, scales = groups_of(weight, group_of)
        qweight, qzeros = pack_outputs(q), pack_outputs(zeros)
        back = unpack_outputs(qweight) - unpack_outputs(qzeros)[group_of]
        tensors = {
            f"{name}.qweight": ("I32", qweight),
            f"{name}.qzeros": ("I32", qzeros),
            f"{name}.scales": ("F16", scales),
        }
        return tensors, (back * scales.astype(np.float64)[group_of]).T

    return store


def gptq(group: int, act_order: bool, version: int) -> Callable[[str, np.ndarray], Tuple[Tensors, np.ndarray]]:
    """AutoGPTQ's layout. Version 1 stores zero points less one."""

    def store(name: str, weight: np.ndarray) -> Tuple[Tensors, np.ndarray]:
        inputs = weight.shape[1]
        group_of = np.arange(inputs) // (group if group > 0 else inputs)
        if act_order:
            group_of = group_of[np.random.default_rng(len(name)).permutation(inputs)]
        q, zeros, scales = groups_of(weight, group_of)
        qweight = words(q.reshape(-1, NIBBLES, q.shape[1]).transpose(0, 2, 1))
        stored_zeros = (zeros - (version == 1)) & 15
        qzeros = words(stored_zeros.reshape(zeros.shape[0], -1, NIBBLES))
        back = nibbles_of(qweight).transpose(0, 2, 1).reshape(inputs, -1).astype(np.int64)
        back_zeros = (nibbles_of(qzeros).reshape(zeros.shape).astype(np.int64) + (version == 1)) & 15
        tensors = {
            f"{name}.qweight": ("I32", qweight),
            f"{name}.qzeros": ("I32", qzeros),
            f"{name}.scales": ("F16", scales),
        }
        if act_order:
            tensors[f"{name}.g_idx"] = ("I32", group_of.astype(np.int32))
        else:  # old quantisers add a bias of zeros where the model has none
            tensors.setdefault(f"{name}.bias", ("F16", np.zeros(weight.shape[0], np.float16)))
        return tensors, ((back - back_zeros[group_of]) * scales.astype(np.float64)[group_of]).T

    return store


class Quantised(NamedTuple):
    """A model, its quantization_config and how its matrices are stored."""

    tiny: Tiny
    config: Dict[str, Any]
    store: Callable[[str, np.ndarray], Tuple[Tensors, np.ndarray]]
    file: str = "config.json"  # the one that holds `config`


def compressed_tensors(ignore: List[str], **weights: Any) -> Dict[str, Any]:
    """A quantization_config as llm-compressor writes it for FP8."""
    floats = {"num_bits": 8, "type": "float", "symmetric": True}
    inputs = {**floats, "strategy": "token", "dynamic": True}
    group = {
        "targets": ["Linear"],
        "weights": {**floats, "dynamic": False, "observer": "minmax", **weights},
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ignore,
        "config_groups": {"group_0": group},
    }


LLAMA = Tiny("LlamaForCausalLM", "llama", {"hidden_size": 64, "head_dim": 16})
QWEN2 = Tiny("Qwen2ForCausalLM", "qwen2", {"use_sliding_window": False}, dtype=torch.float16)
QWEN3 = Tiny("Qwen3ForCausalLM", "qwen3", {"head_dim": 32, "attention_bias": False})

MODELS: Dict[str, Quantised] = {
    "fp8_tensor": Quantised(
        LLAMA,
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        fp8_per_tensor,
    ),
    "fp8_row": Quantised(LLAMA, {"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8_per_row),
    "fp8_block": Quantised(
        QWEN3,
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
            "modules_to_not_convert": ["lm_head"],
        },
        fp8_per_block,
    ),
    "awq_gemm": Quantised(
        LLAMA,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 16,
            "version": "gemm",
            "zero_point": True,
            "modules_to_not_convert": None,
        },
        awq(16),
    ),
    "gptq_act_order": Quantised(
        QWEN2,
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": False},
        gptq(16, act_order=True, version=1),
    ),
    "gptq_v2_whole_columns": Quantised(
        LLAMA,
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": -1,
            "desc_act": False,
            "sym": False,
            "checkpoint_format": "gptq_v2",
        },
        gptq(-1, act_order=False, version=2),
    ),
    "fp8_compressed_channel": Quantised(
        LLAMA, compressed_tensors(["lm_head"], strategy="channel"), fp8_per_channel
    ),
    "fp8_compressed_head": Quantised(  # nothing is ignored: the head is quantised too
        LLAMA,
        compressed_tensors([], strategy="block", block_structure=list(BLOCK)),
        fp8_compressed_block,
    ),
    "fp8_modelopt": Quantised(
        LLAMA,
        {
            "producer": {"name": "modelopt", "version": "0.23.0"},
            "quantization": {
                "quant_algo": "FP8",
                "kv_cache_quant_algo": None,
                "exclude_modules": ["lm_head"],
            },
        },
        fp8_with_static_inputs,
        file="hf_quant_config.json",
    ),
}


def write_raw(path: Path, tensors: Tensors) -> None:
    """A safetensors file of arrays under the dtypes that they stand for."""
    header, blobs, offset = {}, [], 0
    for name, (dtype, array) in sorted(tensors.items()):
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(np.shape(array)),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def plain(tensor: torch.Tensor) -> Tuple[str, np.ndarray]:
    """A tensor that is not quantised, in its own dtype."""
    if tensor.dtype == torch.bfloat16:
        return "BF16", tensor.view(torch.int16).numpy()
    return "F16", tensor.numpy()


def is_quantised(name: str, model: Quantised) -> bool:
    """Projections of the layers and a head that is not ignored; embedding, norms and biases stay as they are."""
    return name.endswith("_proj.weight") or (name == "lm_head.weight" and model.config.get("ignore") == [])


def make(name: str, model: Quantised, out: Path, seed: int) -> None:
    """Writes one model and its golden."""
    torch.manual_seed(seed)
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    raw = config_of(model.tiny)
    if model.file == "config.json":
        raw["quantization_config"] = model.config
    else:
        (directory / model.file).write_text(json.dumps(model.config, indent=1) + "\n")
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    weights = random_weights(Config.load(directory), model.tiny, raw["intermediate_size"])
    stored: Tensors = {}
    dequantised: Dict[str, torch.Tensor] = {}
    error = 0.0
    for key, weight in weights.items():
        if not is_quantised(key, model):
            stored.setdefault(key, plain(weight))
            stored[key] = plain(weight)
            dequantised[key] = weight.to(torch.float32)
            continue
        values = weight.to(torch.float64).numpy()
        tensors, back = model.store(key[: -len(".weight")], values)
        for tensor_name, tensor in tensors.items():
            stored.setdefault(tensor_name, tensor)
        error = max(error, float(np.abs(back - values).max() / np.abs(values).max()))
        dequantised[key] = torch.from_numpy(back.astype(np.float32))
    write_raw(directory / "model.safetensors", stored)

    ids: List[int] = torch.randint(5, raw["vocab_size"], (TOKENS,)).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        write_safetensors(Path(scratch) / "model.safetensors", dequantised)
        (Path(scratch) / "config.json").write_text(json.dumps(config_of(model.tiny)))
        logits = write_golden(directory, load(Path(scratch)), ids)["logits"]
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name:22} {size / 1000:4.0f} kB, logits to {logits.abs().max():.1f}, rounding {error:.2g}")


def main() -> None:
    """Writes all models."""
    parser = argparse.ArgumentParser(description="Write the tiny quantised models and their logits.")
    parser.add_argument("--out", type=Path, default=GOLDEN / "tiny", help="directory to write to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed, (name, model) in enumerate(MODELS.items()):
        make(name, model, args.out, seed)


if __name__ == "__main__":
    main()
