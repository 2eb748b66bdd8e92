"""GGUF of a Llama -> a HuggingFace directory in bf16.

Holds one tensor's stored bytes and a slab of its values at a time, so memory stays near 100 MB however
large the model is. The result depends on the input alone: the same file gives the same bytes everywhere.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

import dequantize
from files import HashedFile, whole_file
from gguf import BLOCK_FORMATS, GgufError, Header, Tensor
from tokenizer import Vocabulary, read_vocabulary, tokenizer_config_json, tokenizer_json

# Numbers decoded at once: their intermediate arrays still fit a core's cache.
SLAB_VALUES = 1 << 18

# blk.N.LEFT.weight -> model.layers.N.RIGHT.weight
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBEDDING, FINAL_NORM, OUTPUT = "token_embd.weight", "output_norm.weight", "output.weight"

FileSizes = Dict[str, Tuple[int, str]]  # bytes and SHA-256 by file name


@dataclass(frozen=True)
class Architecture:
    """What config.json tells."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    norm_epsilon: float
    rope_theta: float
    tied: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class Step:
    """One tensor to write: its HuggingFace name, and the heads whose rows are to be reordered (0: none)."""

    name: str
    tensor: Tensor
    rotated_heads: int = 0


def read_architecture(header: Header, vocab: int) -> Architecture:
    """Fails where the model is no Llama, or one with features that this converter does not know."""
    name = header.path.name
    kind = header.text("general.architecture")
    if kind != "llama":
        raise GgufError(f'{name}: general.architecture is "{kind}", want "llama"')
    known = {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
    }
    unknown = sorted(f for f in header.fields if f.startswith("llama.") and f[len("llama.") :] not in known)
    if unknown:
        raise GgufError(
            f"{name}: field {unknown[0]} changes the model in a way that this converter does not know"
        )
    heads = header.integer("llama.attention.head_count", 1, 1024)
    architecture = Architecture(
        layers=header.integer("llama.block_count", 1, 1024),
        hidden=header.integer("llama.embedding_length", 2, 1 << 16),
        heads=heads,
        kv_heads=header.integer("llama.attention.head_count_kv", 1, heads),
        ffn=header.integer("llama.feed_forward_length", 1, 1 << 20),
        vocab=vocab,
        context=header.integer("llama.context_length", 1, 1 << 24),
        # The file has a float32; config.json gets the shortest decimal number that rounds to it.
        norm_epsilon=float(str(np.float32(header.number("llama.attention.layer_norm_rms_epsilon")))),
        rope_theta=header.number("llama.rope.freq_base")
        if "llama.rope.freq_base" in header.fields
        else 10000.0,
        tied=OUTPUT not in header.tensors,
    )
    a = architecture
    if a.hidden % (2 * a.heads) != 0 or a.heads % a.kv_heads != 0:
        raise GgufError(
            f"{name}: {a.heads} heads and {a.kv_heads} KV heads do not divide {a.hidden} into even head sizes"
        )
    rotary = header.integer("llama.rope.dimension_count", 1, 1 << 16)
    if rotary != a.head_dim:
        raise GgufError(f"{name}: llama.rope.dimension_count is {rotary}, want the head size {a.head_dim}")
    return architecture


def plan(header: Header, a: Architecture) -> List[Step]:
    """The tensors to write, in the file's order. Fails where one is missing, unknown or of another shape."""
    kv = a.kv_heads * a.head_dim
    shapes: Dict[str, Tuple[int, ...]] = {
        "attn_norm": (a.hidden,),
        "attn_q": (a.hidden, a.hidden),
        "attn_k": (kv, a.hidden),
        "attn_v": (kv, a.hidden),
        "attn_output": (a.hidden, a.hidden),
        "ffn_norm": (a.hidden,),
        "ffn_gate": (a.ffn, a.hidden),
        "ffn_up": (a.ffn, a.hidden),
        "ffn_down": (a.hidden, a.ffn),
    }
    rotated = {"attn_q": a.heads, "attn_k": a.kv_heads}
    wanted: Dict[str, Tuple[str, Tuple[int, ...], int]] = {
        EMBEDDING: ("model.embed_tokens.weight", (a.vocab, a.hidden), 0),
        FINAL_NORM: ("model.norm.weight", (a.hidden,), 0),
    }
    if not a.tied:
        wanted[OUTPUT] = ("lm_head.weight", (a.vocab, a.hidden), 0)
    for layer in range(a.layers):
        for part, shape in shapes.items():
            target = f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
            wanted[f"blk.{layer}.{part}.weight"] = (target, shape, rotated.get(part, 0))
    for name in wanted:
        if name not in header.tensors:
            raise GgufError(f"{header.path.name}: tensor {name} is missing")
    steps = []
    for name, tensor in header.tensors.items():
        if name not in wanted:
            raise GgufError(f"{header.path.name}: tensor {name} is none of a Llama's")
        target, shape, heads = wanted[name]
        if tensor.shape != shape:
            raise GgufError(f"{header.path.name}: {name} has shape {list(tensor.shape)}, want {list(shape)}")
        steps.append(Step(target, tensor, heads))
    return steps


def split_halves_rows(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Row order for HuggingFace: result[i] is the row of the GGUF tensor that becomes row i.

    Rotary embedding turns pairs of dimensions. GGUF has a pair in neighboring rows (2j, 2j + 1) of a
    head, HuggingFace has it half a head apart (j, j + head_dim / 2).
    """
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _write_values(step: Step, source: Any, out: HashedFile, name: str) -> None:
    """Decodes one tensor from the open file `source`, slab by slab."""
    tensor, block = step.tensor, BLOCK_FORMATS[step.tensor.format]
    decode = dequantize.DECODERS[tensor.format]
    source.seek(tensor.begin)
    stored = np.fromfile(source, np.uint8, tensor.bytes)
    if stored.size != tensor.bytes:
        raise GgufError(f"{name}: the file became shorter while {tensor.name} was read")
    rows = stored.reshape(
        math.prod(tensor.shape[:-1]), -1
    )  # a row is whole blocks, so rows can move undecoded
    if step.rotated_heads:
        rows = rows[split_halves_rows(step.rotated_heads, tensor.shape[0] // step.rotated_heads)]
    slab = max(1, SLAB_VALUES // tensor.shape[-1])
    for first in range(0, len(rows), slab):
        with np.errstate(all="ignore"):
            values = decode(rows[first : first + slab].reshape(-1, block.bytes))
            if not np.abs(values).max() <= dequantize.BF16_MAX:
                raise GgufError(f"{name}: {tensor.name} holds numbers that are not finite in bf16")
        out.write(dequantize.to_bf16(values))


def _write_safetensors(
    header: Header, steps: List[Step], path: Path, progress: Optional[Callable[[int], None]]
) -> Tuple[int, str]:
    # transformers wants to read which framework wrote the file.
    table: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for step in steps:
        size = 2 * math.prod(step.tensor.shape)
        table[step.name] = {
            "dtype": "BF16",
            "shape": list(step.tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)  # data begins aligned
    with whole_file(path) as out, header.path.open("rb") as source:
        out.write(struct.pack("<Q", len(text)) + text)
        for step in steps:
            _write_values(step, source, out, header.path.name)
            if progress is not None:
                progress(out.bytes)
        return out.bytes, out.sha256()


def config_json(a: Architecture, vocabulary: Vocabulary) -> Dict[str, Any]:
    config: Dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": a.hidden,
        "intermediate_size": a.ffn,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "vocab_size": a.vocab,
        "max_position_embeddings": a.context,
        "rms_norm_eps": a.norm_epsilon,
        "rope_theta": a.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": a.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": vocabulary.begin,
        "eos_token_id": vocabulary.end,
    }
    if vocabulary.padding is not None:
        config["pad_token_id"] = vocabulary.padding
    return config


def _write_json(path: Path, value: Dict[str, Any], indent: Optional[int]) -> Tuple[int, str]:
    with whole_file(path) as out:
        out.write((json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode())
        return out.bytes, out.sha256()


def convert(source: Path, directory: Path, progress: Optional[Callable[[int], None]] = None) -> FileSizes:
    """Writes config.json, tokenizer.json, tokenizer_config.json and model.safetensors; returns what each is.

    Everything is checked before the first byte is written. There is no generation_config.json: the file
    tells of no sampling settings, and the end token stands in config.json. `progress` is called
    with the number of bytes of model.safetensors that are written, after each tensor.
    """
    header = Header(source)
    vocabulary = read_vocabulary(header)
    architecture = read_architecture(header, len(vocabulary.tokens))
    steps = plan(header, architecture)
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "config.json": _write_json(directory / "config.json", config_json(architecture, vocabulary), 1),
        "tokenizer.json": _write_json(directory / "tokenizer.json", tokenizer_json(vocabulary), None),
        "tokenizer_config.json": _write_json(
            directory / "tokenizer_config.json", tokenizer_config_json(vocabulary, architecture.context), 1
        ),
        "model.safetensors": _write_safetensors(header, steps, directory / "model.safetensors", progress),
    }
