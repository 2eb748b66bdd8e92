"""Training sequences: generated passages as conversations in TinyLlama's chat template, packed.

A conversation is a passage with its first question, an answer, and a turn for each further question:

    <|user|>\\nPASSAGE\\nQUESTION</s>\\n<|assistant|>\\nANSWER</s>\\n<|user|>\\nQUESTION</s>\\n...

Only answers and the </s> behind them are learned. Consumer "short" answers with the bare value,
"json" with {"answer": "..."}.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List

import torch

from encoder import Encoder

sys.path.append(str(Path(__file__).resolve().parents[2] / "train"))
from generator import Generator  # noqa: E402

CONSUMERS = ("short", "json")
END = 2  # </s>
HOP_SHARE = 0.5
FACTS = 12  # of a passage, at most


@dataclass(frozen=True)
class Batch:
    """One packed sequence. Position t predicts target t; only learned ones count."""

    ids: torch.Tensor  # [tokens] int64
    targets: torch.Tensor  # [tokens] int64
    learned: torch.Tensor  # [tokens] bool
    positions: torch.Tensor  # [tokens] int64, from 0 in each conversation
    conversation: torch.Tensor  # [tokens] int64: which one; attention does not cross


@dataclass
class Conversation:
    ids: List[int]
    learned: List[bool]

    def add(self, ids: List[int], learned: bool) -> None:
        self.ids.extend(ids)
        self.learned.extend([learned] * len(ids))


def draw(
    generator: Generator, encoder: Encoder, consumer: str, most_tokens: int, most_facts: int
) -> Conversation:
    """One conversation of at most `most_tokens` tokens: turns that do not fit are left out."""
    facts = generator.world(generator.random.randint(4, most_facts))
    passage = generator.passage(facts, generator.random.randint(0, 4))
    conversation = Conversation([], [])
    for i, (question, answer, _) in enumerate(generator.questions(facts, "chat", HOP_SHARE)):
        if consumer == "json":
            answer = json.dumps({"answer": answer})
        turn = Conversation([], [])
        asked = f"<|user|>\n{passage}\n{question}" if i == 0 else f"\n<|user|>\n{question}"
        turn.add(encoder.encode(asked) + [END], False)
        prompt = encoder.encode("\n<|assistant|>\n")
        answered = encoder.encode(f"\n<|assistant|>\n{answer}")
        if answered[: len(prompt)] != prompt:
            raise ValueError(f"the answer {answer!r} changes the tokens of the prompt before it")
        turn.add(prompt, False)
        turn.add(answered[len(prompt) :] + [END], True)
        if len(conversation.ids) + len(turn.ids) > most_tokens:
            break
        conversation.add(turn.ids, False)
        conversation.learned[-len(turn.ids) :] = turn.learned
    return conversation


def batch(
    encoder: Encoder, consumer: str, tokens: int, seed: int, step: int, most_facts: int = FACTS
) -> Batch:
    """The packed sequence of one step, which follows from seed and step alone.

    So training goes on after an interruption with the sequences that it would have seen anyway.
    """
    generator = Generator(seed * 1_000_003 + step)
    ids: List[int] = []
    targets: List[int] = []
    learned: List[bool] = []
    positions: List[int] = []
    conversation: List[int] = []
    misses = number = 0
    while misses < 4 and tokens - len(ids) > 1:
        drawn = draw(generator, encoder, consumer, tokens + 1 - len(ids), most_facts)
        count = len(drawn.ids) - 1
        if count < 1:
            misses += 1  # the passage does not fit in what is left; a shorter one may
            continue
        ids += drawn.ids[:-1]
        targets += drawn.ids[1:]
        learned += drawn.learned[1:]
        positions += range(count)
        conversation += [number] * count
        number += 1
    if not ids:
        raise ValueError(f"no conversation of {tokens} tokens or fewer was drawn: allow more tokens")
    return Batch(
        torch.tensor(ids),
        torch.tensor(targets),
        torch.tensor(learned),
        torch.tensor(positions),
        torch.tensor(conversation),
    )
