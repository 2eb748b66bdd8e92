#!/usr/bin/python3
"""Makes calibration prompts of several kinds, and texts of the same kinds that calibration does not see.

    texts.py --out build/texts

writes calibration.jsonl, tuning.jsonl, odd.jsonl, further.jsonl, to measure questions.jsonl (passages of 60 to 350 tokens), long.jsonl
(about 1,000), english.txt, code.txt, languages.txt and texts that are no language (odd-*.txt).

Half of the calibration prompts are questions about generated passages, one in six of them a long one, a sixth each
English prose, program code and other languages. They come from Debian's packages (debian-faq and its translations,
python3's library, licenses), so their text follows from what is installed. Of every source the last fifth is kept for
measuring. tuning.jsonl asks several questions about each of its passages, one line behind the other; a fifth of these are
long, those of calibration.jsonl among them. It has a text for every fifth passage of the others. further.jsonl is more of the
same, mostly about short passages, for who has two more hours; odd.jsonl has a part of it, and between that texts that are no language.
"""

import argparse
import gzip
import json
import random
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))
import odd_texts  # noqa: E402
from generator import Generator  # noqa: E402

FAQ = Path("/usr/share/doc/debian/FAQ")
LICENSES = ("Apache-2.0", "GPL-3", "MPL-2.0", "Artistic", "GFDL-1.3")
MODULES = """
argparse.py ast.py asyncio/base_events.py bisect.py calendar.py configparser.py csv.py dataclasses.py
difflib.py fractions.py heapq.py http/client.py inspect.py json/decoder.py logging/__init__.py
""".split()
LANGUAGES = ("de", "fr", "it", "ja", "nl", "ru", "zh-cn")
PACKAGES = ["debian-faq"] + [f"debian-faq-{language}" for language in LANGUAGES]
KEPT = 0.2
Facts = Tuple[int, int]  # of a passage, at least and at most
Group = List[Dict[str, object]]  # lines that begin alike
SHORT: Facts = (4, 24)
LONG: Facts = (25, 100)  # up to some 1,000 tokens


def faq(language: str) -> str:
    with gzip.open(FAQ / f"debian-faq.{language}.txt.gz", "rt", encoding="utf-8") as file:
        return file.read()


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def library() -> Path:
    return next(path for path in sorted(Path("/usr/lib").glob("python3.*")) if (path / "argparse.py").exists())


def sources() -> Dict[str, List[str]]:
    """Whole texts by kind."""
    return {
        "english": [faq("en")] + [read(Path("/usr/share/common-licenses") / name) for name in LICENSES],
        "code": [read(library() / name) for name in MODULES],
        "languages": [faq(language) for language in LANGUAGES],
    }


def split(text: str) -> Tuple[str, str]:
    """At a line's end: what is fitted, what is kept."""
    at = text.rfind("\n", 0, int(len(text) * (1 - KEPT))) + 1
    return text[:at], text[at:]


def pieces(text: str, count: int, draw: random.Random, limit: int) -> List[str]:
    """Pieces from random lines on, of at most `limit` bytes: other scripts have more tokens to a letter."""
    starts = [0] + [i + 1 for i, letter in enumerate(text) if letter == "\n"]
    found = []
    while len(found) < count:
        at = draw.choice(starts)
        piece = text[at : at + limit].encode()[: draw.randint(limit // 4, limit)].decode(errors="ignore")
        if len(piece.strip()) > limit // 16:
            found.append(piece)
    return found


def questions(count: int, seed: int, size: Facts) -> List[Dict[str, object]]:
    """One question each, about passages of such a size, as the tunes are asked them."""
    lines: List[Dict[str, object]] = []
    for i in range(count):
        generator = Generator(seed * 1_000_003 + i)
        facts = generator.world(generator.random.randint(*size))
        passage = generator.passage(facts, generator.random.randint(0, 6))
        asked = generator.random.choice(generator.questions(facts, "chat", 0.5))
        lines.append({"context": passage, "question": asked.text, "answers": [asked.answer]})
    return lines


def several(count: int, seed: int, size: Facts, most: int) -> List[Group]:
    """At most `most` questions about each of `count` passages."""
    passages = []
    for i in range(count):
        generator = Generator(seed * 1_000_003 + i)
        facts = generator.world(generator.random.randint(*size))
        passage = generator.passage(facts, generator.random.randint(0, 6))
        asked = generator.questions(facts, "chat", 0.5)
        random.Random(i).shuffle(asked)
        passages.append(
            [{"context": passage, "question": q.text, "answers": [q.answer]} for q in asked[:most]]
        )
    return passages


def write(path: Path, text: str) -> None:
    """A reader sees the whole file or none."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_lines(path: Path, lines: Group) -> None:
    write(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def tuning(short: int, long: int, texts: int, seed: int) -> List[Group]:
    """So many passages of either size with their questions, and texts of each kind between them, in random order."""
    draw = random.Random(seed)
    groups = several(short, seed, SHORT, 9) + several(long, seed + 1, LONG, 12)
    for sources_of_kind in sources().values():
        fitted = [split(text)[0] for text in sources_of_kind]
        for _ in range(texts):
            groups.append([{"text": pieces(draw.choice(fitted), 1, draw, 1200)[0]}])
    draw.shuffle(groups)
    return groups


def odd(texts: int, passages: List[Group], seed: int) -> List[Group]:
    """So many texts of each kind that is no language, and passages, lest these be forgotten."""
    draw = random.Random(seed)
    groups = odd_texts.groups(texts, draw) + passages
    draw.shuffle(groups)
    return groups


def write_groups(path: Path, groups: Sequence[Group]) -> None:
    write_lines(path, [line for group in groups for line in group])


def make(out: Path, prompts: int, asked: int, passages: int, seed: int) -> None:
    """Writes all files; `prompts` to calibrate, `passages` to tune, `asked` questions to evaluate."""
    out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    long = prompts // 12
    lines = questions(prompts // 2 - long, seed, SHORT) + questions(long, seed + 5, LONG)
    for kind, texts in sources().items():
        halves = [split(text) for text in texts]
        write(out / f"{kind}.txt", "".join(kept for _, kept in halves))
        share = prompts // 6
        for i, (fitted, _) in enumerate(halves):
            count = (share * (i + 1)) // len(halves) - (share * i) // len(halves)
            lines += [{"text": piece} for piece in pieces(fitted, count, draw, 1600)]
    draw.shuffle(lines)
    write_lines(out / "questions.jsonl", questions(asked, seed + 1, SHORT))
    for kind, text in odd_texts.fresh(random.Random(seed + 70)).items():
        write(out / f"odd-{kind}.txt", text)
    write_groups(out / "tuning.jsonl", tuning(passages, passages // 4, passages // 15, seed + 4))
    further = tuning(passages * 5 // 3, passages // 6, passages // 24, seed + 6)
    write_groups(out / "further.jsonl", further)
    write_groups(out / "odd.jsonl", odd(max(1, passages // 30), further[: passages // 6], seed + 4033))
    write_lines(out / "long.jsonl", questions(60, seed + 2, (80, 100)))
    write_lines(out / "calibration.jsonl", lines)  # last: where it is, the others are


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--prompts", type=int, default=240, help="prompts to calibrate with (default 240)")
    parser.add_argument("--questions", type=int, default=500, help="questions to evaluate with (default 500)")
    parser.add_argument("--passages", type=int, default=360, help="short passages to tune on (default 360)")
    parser.add_argument("--seed", type=int, default=7, help="seed of what is drawn (default 7)")
    options = parser.parse_args(arguments)
    try:
        make(options.out, options.prompts, options.questions, options.passages, options.seed)
    except FileNotFoundError as error:
        print(f"texts: {error.filename} is missing; install {' '.join(PACKAGES)}. Images that leave out"
              " /usr/share/doc (path-exclude in /etc/dpkg/dpkg.cfg.d) install them without their texts",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
