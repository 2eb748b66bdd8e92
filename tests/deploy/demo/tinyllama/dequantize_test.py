"""Block formats against a slow reference, one number at a time, and against ggml's values of real blocks."""

import base64
import hashlib
import json
import struct
import unittest
from fractions import Fraction
from pathlib import Path
from typing import Callable, Dict, Tuple

import numpy as np

import dequantize
import gguf
import made_up

BLOCKS = Path(__file__).resolve().parent / "blocks.json"


def half(block: bytes, at: int) -> Fraction:
    return Fraction(struct.unpack_from("<e", block, at)[0])


def q2_k(block: bytes, i: int) -> Fraction:
    """Number i of a Q2_K block, exactly."""
    group = block[i // 16]
    code = block[16 + 32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3
    return half(block, 80) * (group & 15) * code - half(block, 82) * (group >> 4)


def scale_and_minimum(block: bytes, group: int) -> Tuple[int, int]:
    """The 6-bit pair of a group of Q4_K and Q5_K; `packed` are the 12 bytes from byte 4 on."""
    packed = block[4:16]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low, high_scale, high_minimum = packed[group + 4], packed[group - 4] >> 6, packed[group] >> 6
    return low & 15 | high_scale << 4, low >> 4 | high_minimum << 4


def nibble(codes: bytes, i: int) -> int:
    byte = codes[32 * (i // 64) + i % 32]
    return byte >> 4 if i // 32 % 2 else byte & 15


def q4_k(block: bytes, i: int) -> Fraction:
    scale, minimum = scale_and_minimum(block, i // 32)
    return half(block, 0) * scale * nibble(block[16:], i) - half(block, 2) * minimum


def q5_k(block: bytes, i: int) -> Fraction:
    scale, minimum = scale_and_minimum(block, i // 32)
    code = nibble(block[48:], i) | (block[16 + i % 32] >> (i // 32) & 1) << 4
    return half(block, 0) * scale * code - half(block, 2) * minimum


GRID = dequantize.iq2_xxs_grid()


def iq2_xxs(block: bytes, i: int) -> Fraction:
    group = block[2 + 8 * (i // 32) :][:8]
    eight, j = i % 32 // 8, i % 8
    word = struct.unpack_from("<I", group, 4)[0]
    signs = word >> (7 * eight) & 127
    negative = signs >> j & 1 if j < 7 else bin(signs).count("1") % 2
    magnitude = Fraction(int(GRID[group[eight], j]))
    return half(block, 0) * (Fraction(1, 2) + (word >> 28)) / 4 * (-magnitude if negative else magnitude)


REFERENCES: Dict[int, Callable[[bytes, int], Fraction]] = {
    gguf.Q2_K: q2_k,
    gguf.Q4_K: q4_k,
    gguf.Q5_K: q5_k,
    gguf.IQ2_XXS: iq2_xxs,
}


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


class DequantizeTest(unittest.TestCase):
    def test_every_format_decodes_random_blocks_as_its_definition_says(self) -> None:
        rng = np.random.default_rng(7)
        for block_format, reference in REFERENCES.items():
            blocks = made_up.random_blocks(rng, block_format, 12)
            expected = [[float(reference(block.tobytes(), i)) for i in range(256)] for block in blocks]
            decoded = dequantize.DECODERS[block_format](blocks)
            with self.subTest(gguf.BLOCK_FORMATS[block_format].name):
                self.assertEqual(decoded.dtype, np.float32)
                np.testing.assert_array_equal(decoded, np.array(expected, np.float32))

    def test_blocks_of_the_real_file_have_the_values_that_ggml_gives_them(self) -> None:
        formats = {known.name: i for i, known in gguf.BLOCK_FORMATS.items()}
        entries = json.loads(BLOCKS.read_text())["blocks"]
        self.assertEqual({entry["format"] for entry in entries}, set(formats) - {"F32"})
        for entry in entries:
            block = np.frombuffer(base64.b64decode(entry["bytes"]), np.uint8)
            expected = np.frombuffer(base64.b64decode(entry["values"]), "<f4")
            decoded = dequantize.DECODERS[formats[entry["format"]]](block.reshape(1, -1))
            with self.subTest(entry["tensor"]):
                np.testing.assert_array_equal(bits(decoded.reshape(-1)), bits(expected))

    def test_the_codebook_is_that_of_the_format(self) -> None:
        # The digest is of ggml's table iq2xxs_grid: 256 numbers of 8 bytes, little-endian.
        table = GRID.astype(np.uint8).tobytes()
        digest = "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"
        self.assertEqual(hashlib.sha256(table).hexdigest(), digest)

    def test_f32_is_taken_as_it_is(self) -> None:
        values = np.array([[1.5], [-0.0], [3e38], [np.nan]], np.float32)
        np.testing.assert_array_equal(bits(dequantize.f32(values.view(np.uint8))), bits(values))

    def test_bf16_rounds_to_nearest_and_ties_to_even(self) -> None:
        cases = {
            0x3F800000: 0x3F80,  # 1
            0x3F807FFF: 0x3F80,  # below the middle
            0x3F808000: 0x3F80,  # in the middle: down to even
            0x3F818000: 0x3F82,  # in the middle: up to even
            0x3F808001: 0x3F81,  # above the middle
            0x80000000: 0x8000,  # -0
            0xBFFF8000: 0xC000,  # the carry reaches the exponent
            0x00000001: 0x0000,  # the smallest subnormal
            0x7F7F0000: 0x7F7F,  # the largest
        }
        values = np.array(list(cases), np.uint32).view(np.float32)
        self.assertEqual(dequantize.to_bf16(values).tolist(), list(cases.values()))
        self.assertEqual(bits(np.array([dequantize.BF16_MAX])).tolist(), [0x7F7F0000])


if __name__ == "__main__":
    unittest.main()
