"""Texts that are no language, drawn at random: base64, numbers, nearly blank lines, symbols, one word again and again. A codec that
was fitted to questions, prose and program code alone changes what a model says about them."""

import base64
import random
from typing import Callable, Dict, List, Tuple

LINE = 76  # letters of base64
ALMOST_BLANK = ["", "", "", "  ", "\t", "-", ".", "    "]
SYMBOLS = [(0x1F300, 0x1F64F), (0x2200, 0x22FF), (0x13A0, 0x13F5), (0x10A0, 0x10FF), (0x1F400, 0x1F4FF)]
WORDS = "the house of and again water 7 x data yes blue foo table == --- * null".split()


def base64_lines(draw: random.Random, size: int) -> str:
    text = base64.b64encode(draw.randbytes(size * 3 // 4)).decode()
    return "\n".join(text[i : i + LINE] for i in range(0, len(text), LINE))


def numbers(draw: random.Random, size: int) -> str:
    digits, columns = draw.randint(1, 6), draw.randint(1, 14)
    between = draw.choice([" ", ", ", "\t", ";"])
    lines: List[str] = []
    while sum(map(len, lines)) < size:
        lines.append(between.join(str(draw.randrange(10**digits)) for _ in range(columns)))
    return "\n".join(lines)


def blank_lines(draw: random.Random, size: int) -> str:
    return "\n".join(draw.choice(ALMOST_BLANK) for _ in range(size // 2))


def symbols(draw: random.Random, size: int) -> str:
    lines = ["\n", "", "", "", "", "", "", ""]
    return "".join(draw.choice(lines) + chr(draw.randint(*draw.choice(SYMBOLS))) for _ in range(size // 8))


def one_word(draw: random.Random, size: int) -> str:
    word, between = draw.choice(WORDS), draw.choice([" ", "\n", ", "])
    return between.join([word] * (size // (len(word) + len(between))))


# Of each kind what makes it, and how large it is at most, so that all have some hundreds of tokens.
KINDS: Dict[str, Tuple[Callable[[random.Random, int], str], int]] = {
    "base64": (base64_lines, 600),
    "numbers": (numbers, 600),
    "blank": (blank_lines, 900),
    "symbols": (symbols, 700),
    "word": (one_word, 1600),
}


def groups(count: int, draw: random.Random) -> List[List[Dict[str, object]]]:
    """`count` texts of each kind, each as its first half and as the whole. Where both share half of the whole's tokens, as about half of
    them do, a tuning learns what follows; of the others, how each goes on."""
    found: List[List[Dict[str, object]]] = []
    for make, most in KINDS.values():
        for _ in range(count):
            text = make(draw, draw.randint(most // 2, most))
            found.append([{"text": text[: len(text) // 2]}, {"text": text}])
    return found


def fresh(draw: random.Random) -> Dict[str, str]:
    """A longer text of each kind, to measure with."""
    return {
        kind: make(draw, 20_000) if kind == "word" else "\n\n".join(make(draw, 2 * most) for _ in range(12))
        for kind, (make, most) in KINDS.items()
    }
