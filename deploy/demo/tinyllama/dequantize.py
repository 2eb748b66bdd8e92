"""Quantized blocks of GGUF -> float32, and float32 -> bf16.

A block holds 256 numbers in order; all of its numbers are little-endian. `f16` is a half, and group
and sub-group scales are small integers that multiply it. Every function takes blocks [n, bytes] of
uint8 and gives [n, 256] of float32; the products are exact in float32, and only the subtraction of
a minimum rounds, so the result is the same on every machine.
"""

from typing import Any, Tuple

import numpy as np
from numpy.typing import NDArray

import gguf

Bytes = NDArray[np.uint8]
Codes = NDArray[np.integer[Any]]
Floats = NDArray[np.float32]

# Beyond this a number rounds to infinity in bf16.
BF16_MAX = float.fromhex("0x1.fep127")


def _half(two_bytes: Bytes) -> Floats:
    """[n, 2] bytes -> [n, 1]."""
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)


def q2_k(blocks: Bytes) -> Floats:
    """Two bits a number: scale * code - minimum, in 16 groups of 16.

    [0, 16)   per group a byte: low nibble scale, high nibble minimum
    [16, 80)  codes: two runs of 32 bytes; bits 2k and 2k+1 of a run are its numbers 32k to 32k+31
    [80, 84)  f16 of the scales, f16 of the minima
    """
    scales = blocks[:, :16]
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    codes = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> shifts) & 3
    scale = _half(blocks[:, 80:82]) * (scales & 15)
    minimum = _half(blocks[:, 82:84]) * (scales >> 4)
    values: Floats = scale[:, :, None] * codes.reshape(-1, 16, 16) - minimum[:, :, None]
    return values.reshape(-1, 256)


def _packed_scales(packed: Bytes) -> Tuple[Codes, Codes]:
    """[n, 12] -> scales [n, 8] and minima [n, 8] of 6 bits, as q4_k and q5_k store them.

    [0, 4)   scales 0-3 in the low 6 bits; the top 2 bits are those of scales 4-7
    [4, 8)   minima 0-3 likewise, with the top 2 bits of minima 4-7
    [8, 12)  low nibbles of scales 4-7, high nibbles: low nibbles of minima 4-7
    """
    first, second, nibbles = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (nibbles & 15) | ((first >> 6) << 4)], -1)
    minima = np.concatenate([second & 63, (nibbles >> 4) | ((second >> 6) << 4)], -1)
    return scales, minima


def _nibbles(codes: Bytes) -> Codes:
    """[n, 128] -> [n, 8, 32]: of each run of 32 bytes the low nibbles, then the high ones."""
    shifts = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return ((codes.reshape(-1, 4, 1, 32) >> shifts) & 15).reshape(-1, 8, 32)


def _scaled(blocks: Bytes, codes: Codes) -> Floats:
    """scale * code - minimum for codes [n, 8, 32] of blocks that begin as q4_k's and q5_k's do."""
    scales, minima = _packed_scales(blocks[:, 4:16])
    scale = _half(blocks[:, 0:2]) * scales
    minimum = _half(blocks[:, 2:4]) * minima
    values: Floats = scale[:, :, None] * codes - minimum[:, :, None]
    return values.reshape(-1, 256)


def q4_k(blocks: Bytes) -> Floats:
    """Four bits a number: scale * code - minimum, in 8 groups of 32.

    [0, 4)     f16 of the scales, f16 of the minima
    [4, 16)    scales and minima (see _packed_scales)
    [16, 144)  codes (see _nibbles)
    """
    return _scaled(blocks, _nibbles(blocks[:, 16:144]))


def q5_k(blocks: Bytes) -> Floats:
    """Five bits a number; as q4_k, with the fifth bits before the nibbles.

    [0, 16)    as q4_k
    [16, 48)   bit g of byte i is the fifth bit of number i of group g
    [48, 176)  low four bits (see _nibbles)
    """
    groups = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = (blocks[:, 16:48].reshape(-1, 1, 32) >> groups) & 1
    return _scaled(blocks, _nibbles(blocks[:, 48:176]) | (fifth << 4))


# The codebook of IQ2_XXS, a constant of the format: 256 rows of 8 magnitudes out of 8, 25 and 43. Here
# 16 bits a row, two per magnitude, the first in the lowest bits.
IQ2_XXS_ROWS = (
    "00000200050008000a00110014002000220028002a0041004400500058006100"
    "6400800082008a00a20001010401100115014001840198010002020222028202"
    "010404041004210424044004420448046004810484049004a404000502050805"
    "200546056905800591050906100640068406a406000805080808140828084108"
    "440850085208880804094009020a140a01100410101021104010601084109010"
    "951000110811201150115a118011241245120014081420142514491480141815"
    "6215001616160118041810184018811800190519a019511a002002200a204420"
    "6120802082202921482100220222012404241024402456240025412564259026"
    "082820289428442a014004401040184021402440404048405640604081408440"
    "9040004120416141804185410142104248425642684200440844204480449944"
    "124524450046014804481048404845480049584961498249454a904a00500850"
    "1150195020508050885004514251a4519152905492540a550156545600581158"
    "195864584059085a046010604060686000615561186260620064056410651265"
    "84654268008002800a8041808280048118814081118201840484108415844084"
    "608400854685948509864086608602880489118a0490109024904090a1901691"
    "8091459200942294449451958198209902a050a085a009a100a218a450a804a9"
)


def iq2_xxs_grid() -> Floats:
    """[256, 8] magnitudes."""
    rows = np.frombuffer(bytes.fromhex(IQ2_XXS_ROWS), "<u2")
    levels = (rows[:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    grid: Floats = np.array([8, 25, 43], np.float32)[levels]
    return grid


def _signs() -> Floats:
    """[128, 8] of 1 and -1: bit i of the index negates number i; number 7 makes their count even."""
    index = np.arange(128)
    negative = (index[:, None] >> np.arange(7)) & 1
    last = negative.sum(-1, keepdims=True) & 1
    signs: Floats = (1 - 2 * np.concatenate([negative, last], -1)).astype(np.float32)
    return signs


_GRID = iq2_xxs_grid()
_SIGNS = _signs()


def iq2_xxs(blocks: Bytes) -> Floats:
    """2.06 bits a number: scale * sign * codebook magnitude, in 8 groups of 32.

    [0, 2)   f16 scale
    [2, 66)  per group 8 bytes: four rows of the codebook, one byte each; then a u32 of four times 7
             sign bits and, on top, the group's scale s of 4 bits: the scale is f16 * (s + 1/2) / 4
    """
    groups = np.ascontiguousarray(blocks[:, 2:66]).reshape(-1, 8, 8)
    words = groups[:, :, 4:8].copy().view("<u4")  # [n, 8, 1]
    scale = _half(blocks[:, 0:2])[:, :, None] * (0.5 + (words >> 28).astype(np.float32)) * np.float32(0.25)
    signs = _SIGNS[(words >> np.array([0, 7, 14, 21], np.uint32)) & 127]  # [n, 8, 4, 8]
    values: Floats = (_GRID[groups[:, :, 0:4]] * signs).reshape(-1, 8, 32) * scale
    return values.reshape(-1, 256)


def f32(blocks: Bytes) -> Floats:
    """[n, 4] -> [n, 1]."""
    return np.ascontiguousarray(blocks).view("<f4")


DECODERS = {gguf.F32: f32, gguf.Q2_K: q2_k, gguf.Q4_K: q4_k, gguf.Q5_K: q5_k, gguf.IQ2_XXS: iq2_xxs}


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Rounds to nearest, ties to even. The values must be finite and at most BF16_MAX."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2")
