"""Payloads of kinds aludel (rans, embedded, fixed, deflate, video) and lossless for decoder_fuzz, by FORMAT.md and nothing else: its
golden examples are checked when seeds are made. But slices of video are libx265's, as its entropy coder is in no document of ours."""

import math
import random
import struct
import zlib
from typing import Dict, List, Sequence, Tuple

# decoder_fuzz.cc: its latents, and the order of its codecs.
BITS = [1, 2, 4, 8, 12, 16]
DECAYS = [0.1, 0.3, 0.7, 0.9, 0.99, 0.999]
PLANES = 4
LOSSLESS, FIXED, DEFLATE, RANS, EMBEDDED, EMBEDDED_CUT, EMBEDDED_PARTS, VIDEO = 1, 8, 9, 11, 12, 13, 14, 15
# libx265's slices of a flat picture, and of the symbols of video_codes.
FLAT_SLICE = bytes.fromhex("ac16c0c922b646969295cd7ea0eeecf6db83000003000003000003000003000003000003001990")
SLICE = bytes.fromhex(
    "ac16c0c91ef413f17e00bd70146dd488521530e711be2c6e74ce4c181b06c49448a92c78f815821106a4e2804e9125b47947"
    "da762fb6cc804a3839ae1f560b1a231a9492325a628cb5a21169c4a1b1967c00000300000300000300000300000300002020"
)
KV_DIM = 32
TOKENS = 5
VIDEO_TOKENS = 22  # a picture of fewer takes more than its codes, and is refused
MAX_BECOMES_ONE = [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724, 1024, 1365]
BIT_IS_ONE = [512, 609, 724, 861, 1024, 1218, 1448, 1722, 2048]

Symbols = List[Tuple[int, List[int]]]  # symbols with the frequencies that hold for them


def f32(value: float) -> float:
    """As the artifact holds it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def rans(symbols: Symbols, lanes: int = 1) -> bytes:
    """A stream."""
    states = [0 if lanes == 1 else 1 << 15] * lanes
    words: List[int] = []
    for i in reversed(range(len(symbols))):
        symbol, frequencies = symbols[i]
        frequency, start, state = frequencies[symbol], sum(frequencies[:symbol]), states[i % lanes]
        if state >= frequency << 19:
            words.insert(0, state & 0xFFFF)
            state >>= 16
        states[i % lanes] = 4096 * (state // frequency) + start + state % frequency
    head = b"".join(struct.pack("<I", state) for state in states)
    if lanes == 1:
        size = (states[0].bit_length() + 7) // 8
        head = head[: size if not words else max(size, 3)]
    return head + b"".join(struct.pack("<H", word) for word in words)


def frequencies_of(parts: List[int]) -> List[int]:
    """Of 4096 together, about as the parts are."""
    total = sum(parts)
    out = [max(1, (2 * part * 4096 + total) // (2 * total)) if part else 0 for part in parts]
    while sum(out) != 4096:
        missing = 4096 - sum(out)
        at = out.index(max(out))
        out[at] += missing if missing > 0 else max(missing, -((out[at] + 15) // 16))
    return out


def tail(u: int) -> int:
    """What lies above a symbol."""
    return (u << 31) // ((1 << 32) + u)


def power(first: int, ratio: int, squares: int) -> Tuple[int, int]:
    """first ratio^(2^squares - 1) and ratio^(2^squares), rounded down at every product."""
    for _ in range(squares):
        first, ratio = first * ratio >> 32, ratio * ratio >> 32
    return first, ratio


def latent_frequencies(bits: int, decay: float, dropped: int = 0) -> List[int]:
    """Of a latent's symbols as bytes."""
    first = int(f32(decay) * 2.0**32)
    ratio = first * first >> 32
    kept = bits - dropped
    wide = kept > 8
    u, ratio = (1 << 32, power(0, ratio, bits - 8)[1]) if wide else power(first, ratio, dropped)
    half = 1 << (min(kept, 8) - 1)
    tails = []
    for _ in range(half + 1):
        tails.append(tail(u))
        u = u * ratio >> 32

    def above(m: int) -> int:
        if m == -half:
            return 1 << 31
        if m == half:
            return 0
        if m <= 0:
            return (1 << 31) - tails[-m]
        return tails[m] if wide else tails[m - 1]

    parts = [0] * 256
    for m in range(-half, half):
        parts[m & 0xFF] = max(1, above(m) - above(m + 1))
    return frequencies_of(parts)


def lanes_of(symbols: int, each: int) -> int:
    """The largest power of two that leaves each so many."""
    return 1 << min(5, max(0, (symbols // each).bit_length() - 1)) if symbols >= each else 1


def rans_payload(codes: Sequence[Sequence[int]], bits: Sequence[int], tables: Sequence[List[int]]) -> bytes:
    """Of codes latent by latent."""
    low, filled, symbols = 0, 0, []
    for latent, b, table in zip(codes, bits, tables):
        for code in latent:
            count = max(0, b - 8)
            low |= (code & ((1 << count) - 1)) << filled
            filled += count
            symbols.append(((code >> count) & 0xFF, table))
    return low.to_bytes((filled + 7) // 8, "little") + rans(symbols, lanes_of(len(symbols), 2048))


def cut(code: int, level: int) -> int:
    """Without the low bits of its magnitude."""
    return int(math.copysign(abs(code) >> level, code))


def nearest(odds: Sequence[int], part: int, whole: int) -> int:
    """The first of those that are nearest to part / whole of 4096."""
    return min(odds, key=lambda one: abs(one * whole - 4096 * part))


def refinement(codes: Sequence[Sequence[int]], bits: Sequence[int], decays: Sequence[float], level: int) -> bytes:
    """One plane behind the base."""
    by_table: Dict[Tuple[int, int], Symbols] = {}
    for latent, b, decay in zip(codes, bits, decays):
        if b <= level:
            continue
        first = int(f32(decay) * 2.0**32)
        u, ratio = power(first, first * first >> 32, level)
        tails = [0]
        for _ in range(6):
            tails.append(tail(u))
            u = u * ratio >> 32
        one = nearest(MAX_BECOMES_ONE, tails[1] - tails[2], (1 << 31) - 2 * tails[2])
        bit = [nearest(BIT_IS_ONE, tails[3] - tails[4], tails[2] - tails[4]),
               nearest(BIT_IS_ONE, tails[5] - tails[6], tails[4] - tails[6])]
        for known in range(3):
            for code in latent:
                if min(2, abs(code) >> (level + 1)) != known:
                    continue
                now = abs(code) >> level & 1
                odds = bit[known - 1] if known else one
                table = [4096 - odds, odds] if known else [4096 - 2 * odds, odds, odds]
                symbol = 2 * now if known == 0 and code < 0 else now
                by_table.setdefault((min(1, known), odds), []).append((symbol, table))
    symbols = [symbol for table in sorted(by_table) for symbol in by_table[table]]
    return rans(symbols, lanes_of(len(symbols), 2048))


def embedded_payload(codes: Sequence[Sequence[int]], bits: Sequence[int], decays: Sequence[float], planes: int) -> bytes:
    """All planes, each with its length in front."""
    level = planes - 1
    base = [i for i, b in enumerate(bits) if b > level]
    payload = b""
    for k in range(level, -1, -1):
        plane = refinement(codes, bits, decays, k) if k < level else rans_payload(
            [[cut(code, level) for code in codes[i]] for i in base], [bits[i] - level for i in base],
            [latent_frequencies(bits[i], decays[i], level) for i in base])
        length = len(plane)
        while length >= 0x80:
            payload += bytes([length & 0x7F | 0x80])
            length >>= 7
        payload += bytes([length]) + plane
    return payload


def video_codes() -> List[List[int]]:
    """For each latent a pattern within its bits."""
    return [[max(-(1 << (b - 1)), min((1 << (b - 1)) - 1, ((7 * t + 3 * i) % 5 - 2) * max(1, (1 << b) >> 7)))
             for t in range(VIDEO_TOKENS)] for i, b in enumerate(BITS)]


def byte_planes(codes: Sequence[Sequence[int]], bits: Sequence[int]) -> bytes:
    """Codes as deflate has them before it deflates them."""
    return b"".join(bytes(code >> 8 * high & 0xFF for code in latent)
                    for latent, b in zip(codes, bits) for high in range(2 if b > 8 else 1))


def video_plain(codes: Sequence[Sequence[int]], bits: Sequence[int]) -> bytes:
    """Without a picture."""
    return b"\x00" + byte_planes(codes, bits)


def low_bits(codes: Sequence[Sequence[int]], bits: Sequence[int]) -> bytes:
    """What is below the high 8 bits of wide codes."""
    value = size = 0
    for latent, b in zip(codes, bits):
        for code in latent if b > 8 else []:
            value |= (code & ((1 << (b - 8)) - 1)) << size
            size += b - 8
    return value.to_bytes((size + 7) // 8, "little")


def lossless_payload(numbers: List[int]) -> bytes:
    """One plane of bf16 numbers."""
    exponents = [bits >> 7 & 0xFF for bits in numbers]
    counts = [exponents.count(e) for e in range(min(exponents), max(exponents) + 1)]
    table = frequencies_of(counts)
    stream = rans([(e - min(exponents), table) for e in exponents], lanes_of(len(exponents), 512))
    return (bytes([1, min(exponents), len(table) - 1]) + struct.pack(f"<{len(table)}H", *table)
            + struct.pack("<I", len(stream)) + stream + bytes(bits >> 8 & 0x80 | bits & 0x7F for bits in numbers))


def check_examples() -> None:
    """The document's own bytes."""
    frequencies = [3072, 1024]
    examples = [
        (rans([(s, frequencies) for s in (0, 1, 0, 0, 1, 1, 0, 0, 0, 1)]), "007810"),
        (rans_payload([[2, -3], [-200, 200]], [3, 10], [latent_frequencies(3, 0.5), latent_frequencies(10, 0.99)]),
         "00faf83f2b"),
        (video_plain([[3], [-300]], [8, 12]), "0003d4fe"),
        (embedded_payload([[2, -3], [-200, 200]], [3, 10], [0.5, 0.99], 3), "0397db14029ead020010"),
        (lossless_payload([0x3F80, 0x3F80, 0x3F80, 0xC000] * 10)[:17], "017f01000c000406000000b5b3c803001c"),
    ]
    for got, want in examples:
        if got != bytes.fromhex(want):
            raise SystemExit(f"FORMAT.md says {want}, and this makes {got.hex()}")


def frame(layer: int, layers: int, token: int, payload: bytes, tokens: int = TOKENS, plane: int = 0) -> bytes:
    """As decoder_fuzz reads frames."""
    return bytes([layer, layers, plane << 4, token, tokens]) + struct.pack("<H", len(payload)) + payload


def frame_seeds(layers: int) -> List[Tuple[str, bytes]]:
    """Names and bytes of seeds for a model of so many layers."""
    check_examples()
    random.seed(1)
    codes = []
    for b, decay in zip(BITS, DECAYS):
        scale = -0.5 / math.log(decay)
        half = 1 << (b - 1)
        codes.append([max(-half, min(half - 1, round(random.gauss(0, 1.8 * scale)))) for _ in range(TOKENS)])
    tables = [latent_frequencies(b, decay) for b, decay in zip(BITS, DECAYS)]
    coded = rans_payload(codes, BITS, tables)
    fixed = b"".join(
        sum((code & ((1 << b) - 1)) << i * b for i, code in enumerate(latent)).to_bytes((b * TOKENS + 7) // 8, "little")
        for latent, b in zip(codes, BITS))
    planes = byte_planes(codes, BITS)
    packer = zlib.compressobj(wbits=-15)
    deflated = packer.compress(planes) + packer.flush()
    embedded = embedded_payload(codes, BITS, DECAYS, PLANES)
    base = embedded[: 1 + embedded[0]]
    numbers = [struct.unpack("<H", struct.pack("<f", random.gauss(0, 1))[2:])[0] for _ in range(TOKENS * KV_DIM)]
    split = lossless_payload(numbers)
    seeds = [("fixed", FIXED, [fixed]), ("deflate", DEFLATE, [deflated]), ("rans", RANS, [coded]),
             ("embedded", EMBEDDED, [embedded]), ("embedded-cut", EMBEDDED_CUT, [base])]
    out = [(name, bytes([codec]) + b"".join(frame(0, layers, 2, payload) for payload in payloads))
           for name, codec, payloads in seeds]
    flat = [[0] * VIDEO_TOKENS] * len(BITS)
    video = [("video", b"\x01" + low_bits(video_codes(), BITS) + SLICE),
             ("video-plain", video_plain(flat, BITS)), ("video-flat", b"\x01" + low_bits(flat, BITS) + FLAT_SLICE)]
    out += [(name, bytes([VIDEO]) + frame(0, layers, 2, payload, VIDEO_TOKENS)) for name, payload in video]
    upgraded = frame(0, layers, 2, base) + frame(0, layers, 2, embedded[len(base):], plane=1)
    out.append(("embedded-upgraded", bytes([EMBEDDED_PARTS]) + upgraded))
    stored = b"\x00" + bytes(bits >> 7 & 0xFF for bits in numbers) + bytes(b >> 8 & 0x80 | b & 0x7F for b in numbers)
    out.append(("lossless", bytes([LOSSLESS]) + frame(0, 1, 0, split + split) + frame(1, 1, 0, split + stored)))
    return out
