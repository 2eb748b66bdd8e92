"""Prints what kvtc_test.cc expects: the coder of arXiv 2511.01815 on a small data set, in numpy and zlib.

    python3 tests/runtime/calibrate/aludel/kvtc_reference.py

Written from the paper's description, not from our code: covariance and eigh in double, every combination of
block widths tried instead of a dynamic program, zlib over planes of codes.
"""

import itertools
import zlib

import numpy

ROWS, COLUMNS, BLOCK, BUDGET = 600, 24, 8, 6
WIDTHS = (0, 1, 2, 4, 8)
RANGES = (0.8, 1.2, 1.6, 2, 2.5, 3, 4, 5, 6.5)


def data() -> numpy.ndarray:
    """Correlated columns with means; the same 64-bit congruential generator as in the test."""
    state = 1

    def uniform() -> float:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 40) / 2**24 - 0.5

    mixing = numpy.array([[uniform() for _ in range(COLUMNS)] for _ in range(COLUMNS)])
    rows = numpy.array([[uniform() * 4 * 0.8**k for k in range(COLUMNS)] for _ in range(ROWS)])
    return (rows @ mixing + numpy.arange(COLUMNS) / 8).astype(numpy.float32).astype(float)


def quantize(values: numpy.ndarray, step: float, width: int) -> numpy.ndarray:
    """Codes of a uniform mid-rise quantizer."""
    return numpy.clip(numpy.floor(values / step), -(2 ** (width - 1)), 2 ** (width - 1) - 1)


def best_step(values: numpy.ndarray, width: int):
    """(squared error, step) of the best range for one coordinate."""
    if width == 0:
        return (values**2).sum(), 0.0
    deviation = numpy.sqrt((values**2).mean())
    steps = [2 * r * deviation / 2**width for r in RANGES]
    return min((((values - (quantize(values, s, width) + 0.5) * s) ** 2).sum(), s) for s in steps)


def main() -> None:
    """Fits, quantizes, decodes, and prints."""
    x = data()
    mean = x.mean(axis=0)
    _, vectors = numpy.linalg.eigh((x - mean).T @ (x - mean) / ROWS)
    axes = vectors[:, ::-1].T
    z = (x - mean) @ axes.T
    blocks = COLUMNS // BLOCK
    choices = {(i, w): best_step(z[:, i], w) for i in range(COLUMNS) for w in WIDTHS}
    cost = {(b, w): sum(choices[i, w][0] for i in range(b * BLOCK, (b + 1) * BLOCK))
            for b in range(blocks) for w in WIDTHS}
    error, widths = min((sum(cost[b, w] for b, w in enumerate(ws)), ws)
                        for ws in itertools.product(WIDTHS, repeat=blocks) if sum(ws) <= BUDGET)
    decoded = numpy.tile(mean, (ROWS, 1))
    planes = b""
    for i in range(COLUMNS):
        width = widths[i // BLOCK]
        if width == 0:
            continue
        step = choices[i, width][1]
        codes = quantize(z[:, i], step, width)
        decoded += numpy.outer((codes + 0.5) * step, axes[i])
        planes += codes.astype(numpy.int8).tobytes()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    print("widths", widths)
    print("planned error", error)
    print("decoded error", ((x - decoded) ** 2).sum(), "of", ((x - mean) ** 2).sum())
    print("bytes: fixed", sum(widths) * ROWS, "deflated", len(packer.compress(planes) + packer.flush()))


if __name__ == "__main__":
    main()
