"""A made-up Llama through the whole converter, and files that it must refuse."""

import hashlib
import json
import math
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

import convert
import dequantize
import gguf
import made_up
from made_up import F32, STRING, U32, Field, Stored, gguf_bytes


def read_safetensors(path: Path) -> Dict[str, np.ndarray]:
    """Tensors as uint16 (bf16's bits); checks that they fill the file in order."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    table = json.loads(data[8 : 8 + size])
    assert size % 8 == 0 and table.pop("__metadata__") == {"format": "pt"}
    tensors, at = {}, 0
    for name, entry in table.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "BF16" and begin == at and end - begin == 2 * math.prod(entry["shape"])
        tensors[name] = np.frombuffer(data[8 + size :][begin:end], "<u2").reshape(entry["shape"])
        at = end
    assert len(data) == 8 + size + at
    return tensors


def turn_neighbors(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotary embedding of one head as GGUF's rows want it: dimensions 2j and 2j + 1 turn by angle j."""
    out = x.copy()
    out[0::2] = x[0::2] * np.cos(angles) - x[1::2] * np.sin(angles)
    out[1::2] = x[1::2] * np.cos(angles) + x[0::2] * np.sin(angles)
    return out


def turn_halves(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """As HuggingFace has it: dimensions j and j + head_dim / 2 turn by angle j."""
    first, second = np.split(x, 2)
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    )


class ConvertTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.source = Path(directory.name) / "model.gguf"
        self.out = Path(directory.name) / "out"

    def refuses(self, reason: str, fields: List[Field], tensors: List[Stored]) -> None:
        self.source.write_bytes(gguf_bytes(fields, tensors))
        with self.assertRaisesRegex(gguf.GgufError, reason):
            convert.convert(self.source, self.out)
        self.assertFalse((self.out / "model.safetensors").exists())
        self.assertFalse(list(self.out.glob("*.partial")))

    def test_rows_of_q_and_k_are_reordered_so_that_attention_stays_the_same(self) -> None:
        rng = np.random.default_rng(5)
        heads, head_dim, hidden = 3, 8, 16
        weight, x = rng.standard_normal((heads * head_dim, hidden)), rng.standard_normal(hidden)
        order = convert.split_halves_rows(heads, head_dim)
        angles = 7 / 10000 ** (np.arange(head_dim // 2) / (head_dim // 2))
        for head in range(heads):
            rows = slice(head * head_dim, (head + 1) * head_dim)
            expected = turn_neighbors((weight @ x)[rows], angles)
            turned = turn_halves((weight[order] @ x)[rows], angles)
            # Both hold the same numbers; a dot product of q and k sees no difference.
            np.testing.assert_allclose(turned, np.concatenate([expected[0::2], expected[1::2]]), rtol=1e-12)

    def test_every_tensor_arrives_under_its_name_with_its_values(self) -> None:
        made_up.write_llama(self.source)
        convert.convert(self.source, self.out)
        tensors = read_safetensors(self.out / "model.safetensors")
        self.assertEqual(len(tensors), 3 + 9 * made_up.LAYERS)
        names = {"output.weight": "lm_head.weight", "token_embd.weight": "model.embed_tokens.weight"}
        names["output_norm.weight"] = "model.norm.weight"
        for stored in made_up.llama_tensors():
            block = gguf.BLOCK_FORMATS[stored.format]
            blocks = np.frombuffer(stored.data, np.uint8).reshape(-1, block.bytes)
            values = dequantize.DECODERS[stored.format](blocks).reshape(stored.shape)
            name = names.get(stored.name)
            if name is None:
                _, layer, part, _ = stored.name.split(".")
                name = f"model.layers.{layer}.{convert.LAYER_NAMES[part]}.weight"
                heads = {"attn_q": made_up.HEADS, "attn_k": made_up.KV_HEADS}.get(part)
                if heads:
                    values = values.reshape(heads, -1, 2, made_up.HIDDEN).swapaxes(1, 2).reshape(stored.shape)
            np.testing.assert_array_equal(tensors[name], dequantize.to_bf16(values), name)

    def test_slabs_do_not_show(self) -> None:
        made_up.write_llama(self.source)
        whole = convert.convert(self.source, self.out)["model.safetensors"]
        slab, convert.SLAB_VALUES = convert.SLAB_VALUES, 3 * made_up.HIDDEN
        self.addCleanup(setattr, convert, "SLAB_VALUES", slab)
        self.assertEqual(convert.convert(self.source, self.out)["model.safetensors"], whole)

    def test_sizes_and_hashes_are_those_of_the_files(self) -> None:
        made_up.write_llama(self.source)
        done: List[int] = []
        found = convert.convert(self.source, self.out, done.append)
        for name, expected in found.items():
            data = (self.out / name).read_bytes()
            self.assertEqual((len(data), hashlib.sha256(data).hexdigest()), expected)
        self.assertEqual(sorted(file.name for file in self.out.iterdir()), sorted(found))
        self.assertEqual((done, done[-1]), (sorted(done), found["model.safetensors"][0]))

    def test_config_tells_the_shape_and_the_special_tokens(self) -> None:
        made_up.write_llama(self.source)
        convert.convert(self.source, self.out)
        config: Dict[str, Any] = json.loads((self.out / "config.json").read_text())
        expected = {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(made_up.TOKENS),
            "rms_norm_eps": 1e-5,  # and not the nearest float32 in 17 digits
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        self.assertEqual({name: config[name] for name in expected}, expected)

    def test_a_model_without_an_output_matrix_is_tied(self) -> None:
        tensors = [tensor for tensor in made_up.llama_tensors() if tensor.name != "output.weight"]
        self.source.write_bytes(gguf_bytes(made_up.llama_fields(), tensors))
        convert.convert(self.source, self.out)
        self.assertTrue(json.loads((self.out / "config.json").read_text())["tie_word_embeddings"])
        self.assertNotIn("lm_head.weight", read_safetensors(self.out / "model.safetensors"))

    def test_tensors_that_are_missing_unknown_or_of_another_shape_are_refused(self) -> None:
        fields, tensors = made_up.llama_fields(), made_up.llama_tensors()
        self.refuses(
            "blk.1.ffn_down.weight is missing", fields, [t for t in tensors if "1.ffn_down" not in t.name]
        )
        bias = Stored("blk.0.attn_q.bias", (256,), gguf.F32, bytes(1024))
        self.refuses("blk.0.attn_q.bias is none of a Llama's", fields, tensors + [bias])
        swapped = [t._replace(shape=t.shape[::-1]) if t.name == "blk.0.ffn_up.weight" else t for t in tensors]
        self.refuses(r"blk.0.ffn_up.weight has shape \[256, 512\], want \[512, 256\]", fields, swapped)

    def test_numbers_that_bf16_cannot_hold_are_refused(self) -> None:
        for bad in (np.nan, np.inf, -np.inf, np.float32(3.4e38)):
            norm = np.ones(256, np.float32)
            norm[77] = bad
            tensors = [
                t._replace(data=norm.tobytes()) if t.name == "output_norm.weight" else t
                for t in made_up.llama_tensors()
            ]
            self.refuses(
                "output_norm.weight holds numbers that are not finite", made_up.llama_fields(), tensors
            )

    def test_models_that_are_no_plain_llama_are_refused(self) -> None:
        cases: List[Tuple[str, Field]] = [
            ('general.architecture is "qwen2"', Field("general.architecture", STRING, "qwen2")),
            ("field llama.rope.scaling.factor", Field("llama.rope.scaling.factor", F32, 2.0)),
            ("field llama.expert_count", Field("llama.expert_count", U32, 8)),
            (
                "llama.rope.dimension_count is 32, want the head size 64",
                Field("llama.rope.dimension_count", U32, 32),
            ),
            ("do not divide", Field("llama.attention.head_count", U32, 3)),
            (
                "head_count_kv is 5, want an integer from 1 to 4",
                Field("llama.attention.head_count_kv", U32, 5),
            ),
            ("block_count is 0", Field("llama.block_count", U32, 0)),
        ]
        for reason, changed in cases:
            fields = {field.name: field for field in made_up.llama_fields()}
            fields[changed.name] = changed
            self.refuses(reason, list(fields.values()), made_up.llama_tensors())


if __name__ == "__main__":
    unittest.main()
