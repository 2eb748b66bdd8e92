"""Writes GGUF files for the tests: any header, and a tiny Llama."""

import struct
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

import gguf

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}


class Field(NamedTuple):
    name: str
    kind: int
    value: Any
    of: int = 0  # element type of an array


class Stored(NamedTuple):
    name: str
    shape: Tuple[int, ...]  # slowest dimension first
    format: int
    data: bytes


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, what: Any, of: int = 0) -> bytes:
    if kind == STRING:
        return string(what)
    if kind == ARRAY:
        return struct.pack("<IQ", of, len(what)) + b"".join(value(of, element) for element in what)
    return struct.pack("<" + CODES[kind], what)


def gguf_bytes(fields: List[Field], tensors: List[Stored], version: int = 3, alignment: int = 32) -> bytes:
    """A whole file; tensors lie one after the other, aligned."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    for field in fields:
        head += string(field.name) + struct.pack("<I", field.kind) + value(field.kind, field.value, field.of)
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        head += string(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.format, len(data))
        data += tensor.data
    return head + bytes(-len(head) % alignment) + data


def random_blocks(rng: np.random.Generator, block_format: int, count: int) -> np.ndarray:
    """[count, bytes] of random bytes; only the halves that scale a block are kept below 2 (and finite)."""
    if block_format == gguf.F32:
        return rng.standard_normal((count, 1), np.float32).view(np.uint8)
    blocks = rng.integers(0, 256, (count, gguf.BLOCK_FORMATS[block_format].bytes), np.uint8)
    high_bytes = {gguf.Q2_K: (81, 83), gguf.Q4_K: (1, 3), gguf.Q5_K: (1, 3), gguf.IQ2_XXS: (1,)}
    for at in high_bytes[block_format]:
        blocks[:, at] &= 0xBF  # the exponent's top bit
    return blocks


# A vocabulary in Llama's manner: special tokens, bytes, then pieces; the better its score, the earlier
# SentencePiece makes a piece.
PIECES = [
    "\u2581",
    "a",
    "b",
    "c",
    "ab",
    "\u2581a",
    "bc",
    "abc",
    "ca",
    "cab",
    "\u2581ab",
    "bca",
    "aa",
    "\u2581c",
]
TOKENS = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + PIECES
KINDS = [2, 3, 3] + [6] * 256 + [1] * len(PIECES)
SCORES = [0.0] * 259 + [-100.0 - i if len(p) == 1 else -float(i) for i, p in enumerate(PIECES)]
TEMPLATE = "{{ bos_token }}{{ messages[0]['content'] }}"

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS = 256, 4, 2, 512, 2


def llama_fields() -> List[Field]:
    return [
        Field("general.architecture", STRING, "llama"),
        Field("llama.context_length", U32, 128),
        Field("llama.embedding_length", U32, HIDDEN),
        Field("llama.block_count", U32, LAYERS),
        Field("llama.feed_forward_length", U32, FFN),
        Field("llama.rope.dimension_count", U32, HIDDEN // HEADS),
        Field("llama.attention.head_count", U32, HEADS),
        Field("llama.attention.head_count_kv", U32, KV_HEADS),
        Field("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        Field("tokenizer.ggml.model", STRING, "llama"),
        Field("tokenizer.ggml.tokens", ARRAY, TOKENS, STRING),
        Field("tokenizer.ggml.scores", ARRAY, SCORES, F32),
        Field("tokenizer.ggml.token_type", ARRAY, KINDS, I32),
        Field("tokenizer.ggml.padding_token_id", U32, 2),
        Field("tokenizer.chat_template", STRING, TEMPLATE),
    ]


def llama_tensors(seed: int = 1) -> List[Stored]:
    """Random weights in every block format."""
    rng = np.random.default_rng(seed)
    vocab, kv = len(TOKENS), KV_HEADS * HIDDEN // HEADS
    layer: Dict[str, Tuple[Tuple[int, ...], int]] = {
        "attn_norm": ((HIDDEN,), gguf.F32),
        "attn_q": ((HIDDEN, HIDDEN), gguf.IQ2_XXS),
        "attn_k": ((kv, HIDDEN), gguf.Q5_K),
        "attn_v": ((kv, HIDDEN), gguf.Q4_K),
        "attn_output": ((HIDDEN, HIDDEN), gguf.Q2_K),
        "ffn_norm": ((HIDDEN,), gguf.F32),
        "ffn_gate": ((FFN, HIDDEN), gguf.IQ2_XXS),
        "ffn_up": ((FFN, HIDDEN), gguf.Q4_K),
        "ffn_down": ((HIDDEN, FFN), gguf.Q2_K),
    }
    wanted = {"output.weight": ((vocab, HIDDEN), gguf.Q5_K), "token_embd.weight": ((vocab, HIDDEN), gguf.F32)}
    for i in range(LAYERS):
        wanted.update({f"blk.{i}.{name}.weight": entry for name, entry in layer.items()})
    wanted["output_norm.weight"] = ((HIDDEN,), gguf.F32)
    tensors = []
    for name, (shape, block_format) in wanted.items():
        count = int(np.prod(shape)) // gguf.BLOCK_FORMATS[block_format].values
        tensors.append(Stored(name, shape, block_format, random_blocks(rng, block_format, count).tobytes()))
    return tensors


def write_llama(path: Path) -> None:
    path.write_bytes(gguf_bytes(llama_fields(), llama_tensors()))
