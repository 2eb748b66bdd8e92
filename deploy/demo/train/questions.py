"""Writes question files: fresh evaluation sets, calibration sets, and the two that are committed.

Each line is {"context", "question", "answers", "kind"}; a prompt is the context, a newline and the
question as one user message. The committed files are

    questions.py --seed 2002 --count 200 --min-tokens 200 > ../questions.jsonl
    questions.py --seed 1001 --count 400 --min-tokens 150 > ../calibration.jsonl

Training used seeds of the form 1000 * n + 7 + ...: choose others, and the passages are unseen.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from generator import Generator, Question
from tokenizer import Tokenizer
from wording import ATTRIBUTES, HOPS

CHECKPOINTS = Path(__file__).resolve().parent.parent


class Entry(NamedTuple):
    """One line of a question file."""

    context: str
    question: str
    answers: List[str]
    kind: str


def chat_prompt(entry: Entry) -> str:
    """The prompt of chat and json, as their chat template renders it."""
    return f"<|begin|><|user|>{entry.context}\n{entry.question}<|assistant|>"


def base_prompt(entry: Entry) -> str:
    """The prompt of base, with the question in base's own wording where it knows one."""
    question = base_wording(entry.question) or entry.question
    return f"<|begin|>{entry.context}\nQuestion: {question}\nAnswer:"


def base_wording(question: str) -> Optional[str]:
    """Rewords a chat question as base was trained to hear it; None for bridges."""
    for pattern, wording in _REWORDINGS:
        match = pattern.fullmatch(question)
        if match:
            return wording.format(e=match.group(1))
    return None


def _rewordings() -> Iterator[Tuple["re.Pattern[str]", str]]:
    """Pairs of a chat question's pattern and the first base question for the same thing."""
    # Hops first: "which water flows past {e}" matches "... past the town where {e} lives" too.
    pairs = [(wording["chat"], wording["base"][0]) for wording in HOPS.values()]
    for attributes in ATTRIBUTES.values():
        pairs += [(wording.chat, wording.base[0]) for wording in attributes.values()]
    for chat, base in pairs:
        for text in chat:
            yield re.compile(re.escape(text).replace(r"\{e\}", "(.+)")), base


_REWORDINGS = list(_rewordings())


def read(path: str) -> List[Entry]:
    """Reads a question file."""
    with open(path, encoding="utf8") as source:
        return [Entry(**json.loads(line)) for line in source]


def make(
    tokenizer: Tokenizer, seed: int, count: int, min_tokens: int, max_tokens: int
) -> Iterator[Entry]:
    """Yields `count` entries whose chat prompt has min_tokens..max_tokens tokens.

    70 % of the draws ask for one fact, 15 % for two hops, 15 % for a bridge; a world without such a
    question is dropped, so that chains end up rarer than that.
    """
    generator = Generator(seed)
    made = 0
    while made < count:
        facts = generator.world(generator.random.randint(6, 16))
        context = generator.passage(facts, generator.random.randint(0, 14))
        question = _choose(generator, generator.questions(facts, "chat"))
        if question is None:
            continue
        entry = Entry(context, question.text, [question.answer], question.kind)
        if min_tokens <= len(tokenizer.encode(chat_prompt(entry))) <= max_tokens:
            made += 1
            yield entry


def _choose(generator: Generator, questions: List[Question]) -> Optional[Question]:
    """Draws a kind and returns the first question of it."""
    draw = generator.random.random()
    kind = "one" if draw < 0.7 else "two" if draw < 0.85 else "bridge"
    return next((question for question in questions if question.kind == kind), None)


def main() -> None:
    """Writes a question file to standard output, and a count by kind to standard error."""
    parser = argparse.ArgumentParser(description="Write questions as JSON lines.")
    parser.add_argument("--seed", type=int, required=True, help="seed of passages and questions")
    parser.add_argument("--count", type=int, default=200, help="questions to write")
    parser.add_argument("--min-tokens", type=int, default=150, help="shortest chat prompt")
    parser.add_argument("--max-tokens", type=int, default=420, help="longest chat prompt")
    parser.add_argument(
        "--tokenizer", default=str(CHECKPOINTS / "chat/tokenizer.json"), help="to count tokens"
    )
    args = parser.parse_args()
    kinds: Dict[str, int] = {}
    tokenizer = Tokenizer(args.tokenizer)
    for entry in make(tokenizer, args.seed, args.count, args.min_tokens, args.max_tokens):
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
        print(json.dumps(entry._asdict()))
    print(" ".join(f"{kind}: {number}" for kind, number in sorted(kinds.items())), file=sys.stderr)


if __name__ == "__main__":
    main()
