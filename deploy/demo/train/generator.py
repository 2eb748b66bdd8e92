"""A synthetic corpus of English-like passages with questions that only the passage can answer.

A *world* is a handful of facts about people, companies, towns, trips and museum pieces; a
*passage* states them in random wording and order, with filler sentences between; *questions* ask
for them, in the wording of the base model ("What is the job of Ada?") or of the chat models ("tell
me Ada's profession"). Names and values are drawn anew each time, so a model cannot learn the
answers, only how to read them.

Everything follows from the seed. The order of random draws is therefore part of the format:
question files, the tokenizer and the training runs name seeds, and a draw added, dropped or moved
changes all of them.
"""

import argparse
import random
from dataclasses import dataclass
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from wording import ATTRIBUTES, BRIDGES, FILLERS, HOPS, Wording
from words import (
    ANIMALS,
    COLORS,
    COMPANY_ENDS,
    COMPANY_STARTS,
    DAYS,
    DRINKS,
    FIRST_NAMES,
    INN_NAMES,
    JOBS,
    PET_NAMES,
    PIECES,
    PRODUCTS,
    SIMPLE_VALUES,
    SURNAME_ENDS,
    SURNAME_STARTS,
    TOWN_ENDS,
    TOWN_STARTS,
    TRANSPORTS,
)

# Which kinds of entity a world may mix.
DOMAINS = [
    ["person", "company", "town"],
    ["person", "company"],
    ["person", "trip"],
    ["trip", "town"],
    ["company", "town", "person"],
    ["piece", "person"],
    ["person"],
    ["company", "piece"],
]

# Attributes that make two-hop chains possible; worlds favour them.
CHAIN_ATTRIBUTES = ("employer", "home", "office", "product", "river")

# The surface forms of an entity: the full name first, then a short one where there is one.
Names = List[str]


@dataclass(frozen=True)
class Fact:
    """One attribute of one entity."""

    kind: str
    names: Names
    attribute: str
    value: str

    @property
    def wording(self) -> Wording:
        return ATTRIBUTES[self.kind][self.attribute]


class Question(NamedTuple):
    """`kind` is one (a single fact), two (over two facts) or bridge (both values of a chain)."""

    text: str
    answer: str
    kind: str


def capitalise(sentence: str) -> str:
    """Upper-cases the first letter only: names inside keep theirs."""
    return sentence[0].upper() + sentence[1:]


class Generator:
    """Draws worlds, passages and questions from one stream of random numbers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def world(self, fact_count: int) -> List[Fact]:
        """Draws entities, then `fact_count` of their attributes (fewer where they have fewer)."""
        domains = self.random.choice(DOMAINS)
        facts_per_entity = self.random.choice([2, 3, 4])
        entities = self._entities(domains, max(len(domains), round(fact_count / facts_per_entity)))
        slots = [
            (kind, names, attribute)
            for kind, members in entities.items()
            for names in members
            for attribute in ATTRIBUTES[kind]
        ]
        self.random.shuffle(slots)
        slots.sort(key=self._slot_order)
        return [
            Fact(kind, names, attribute, self._value(attribute, entities))
            for kind, names, attribute in slots[:fact_count]
        ]

    def passage(self, facts: Sequence[Fact], fillers: int = 0) -> str:
        """States the facts, shuffled or grouped by entity, with fillers anywhere between."""
        introduced: Set[str] = set()
        sentences = []
        for fact in self._stating_order(facts):
            name = fact.names[0]
            # A short name stands in only after the full one has been seen.
            if len(fact.names) > 1 and name in introduced and self.random.random() < 0.5:
                name = fact.names[1]
            introduced.add(fact.names[0])
            sentences.append(self._statement(fact, name))
        for _ in range(fillers):
            # insert() takes its arguments in order: first the place is drawn, then the sentence.
            sentences.insert(self.random.randint(0, len(sentences)), self._filler())
        return " ".join(sentences)

    def questions(
        self, facts: Sequence[Fact], style: str, hop_share: float = 0.2
    ) -> List[Question]:
        """Asks for every fact and every chain, in random order; `style` is base or chat.

        Chains come early with probability `hop_share` at each place, because documents are cut at a
        length and chains would else be seen too rarely.
        """
        singles = self._single_questions(facts, style)
        hops = self._hop_questions(facts, style)
        self.random.shuffle(singles)
        self.random.shuffle(hops)
        ordered = []
        while singles or hops:
            if hops and (not singles or self.random.random() < hop_share):
                ordered.append(hops.pop())
            elif singles:
                ordered.append(singles.pop())
        return ordered

    def restatement(self, facts: Sequence[Fact]) -> str:
        """States every fact once more in other words and order, with full names."""
        reordered = self.random.sample(facts, len(facts))
        return " ".join(self._statement(fact, fact.names[0]) for fact in reordered)

    def _entities(self, domains: Sequence[str], count: int) -> Dict[str, List[Names]]:
        """Draws `count` entities, kinds in turn, no two with the same distinguishing name: fewer of kinds that have
        fewer names."""
        entities: Dict[str, List[Names]] = {kind: [] for kind in ATTRIBUTES}
        used: Set[str] = set()
        for index in range(count):
            kind = domains[index % len(domains)]
            try:
                entities[kind].append(self._names(kind, used))
            except LookupError:
                continue
        return entities

    def _names(self, kind: str, used: Set[str]) -> Names:
        choice = self.random.choice
        if kind in ("person", "trip"):
            first = self._unused(lambda: choice(FIRST_NAMES), used)
            return [f"{first} {self._surname()}", first]
        if kind == "company":
            start = self._unused(lambda: choice(COMPANY_STARTS), used)
            return [f"{start} {choice(COMPANY_ENDS)}"]
        if kind == "town":
            return [self._unused(self._town, used)]
        return ["the " + self._unused(self._piece, used)]

    def _unused(self, draw: Callable[[], str], used: Set[str]) -> str:
        for _ in range(1000):
            name = draw()
            if name not in used:
                used.add(name)
                return name
        raise LookupError("all names are used")

    def _surname(self) -> str:
        return self.random.choice(SURNAME_STARTS) + self.random.choice(SURNAME_ENDS)

    def _town(self) -> str:
        return self.random.choice(TOWN_STARTS) + self.random.choice(TOWN_ENDS)

    def _piece(self) -> str:
        self.random.random()  # Unused, but dropping this draw would change the text of every seed.
        return f"{self.random.choice(COLORS)} {self.random.choice(PIECES)}"

    def _slot_order(self, slot: Tuple[str, Names, str]) -> int:
        """Moves about a third of the chain attributes to the front."""
        return 0 if slot[2] in CHAIN_ATTRIBUTES and self.random.random() < 0.35 else 1

    def _value(self, attribute: str, entities: Dict[str, List[Names]]) -> str:
        """Draws a value; homes and employers are mostly of this world, for chains."""
        choice, chance = self.random.choice, self.random.random
        if attribute in SIMPLE_VALUES:
            return choice(SIMPLE_VALUES[attribute])
        if attribute in ("destination", "found"):
            return self._town()
        if attribute in ("home", "office"):
            known = entities["town"]
            return self._town() if not known or chance() < 0.3 else choice(known)[0]
        if attribute == "employer":
            known = entities["company"]
            if known and chance() < 0.85:
                return choice(known)[0]
            return f"{choice(COMPANY_STARTS)} {choice(COMPANY_ENDS)}"
        if attribute == "pet":
            if chance() < 0.5:
                return f"{choice(COLORS)} {choice(ANIMALS)}"
            return f"{choice(ANIMALS)} named {choice(PET_NAMES)}"
        if attribute in ("born", "founded"):
            return str(self.random.randint(1900, 1999))
        if attribute in ("boss", "mayor", "donor"):
            return f"{choice(FIRST_NAMES)} {self._surname()}"
        if attribute == "inn":
            return f"{choice(COLORS).capitalize()} {choice(INN_NAMES)}"
        if attribute == "paid":
            return str(self.random.randint(10, 99))
        raise KeyError(attribute)

    def _stating_order(self, facts: Sequence[Fact]) -> List[Fact]:
        order = list(facts)
        if self.random.random() < 0.5:
            self.random.shuffle(order)
            return order
        entities = list(dict.fromkeys(fact.names[0] for fact in order))
        self.random.shuffle(entities)
        return sorted(order, key=lambda fact: entities.index(fact.names[0]))

    def _statement(self, fact: Fact, name: str) -> str:
        return capitalise(self.random.choice(fact.wording.statements).format(e=name, v=fact.value))

    def _filler(self) -> str:
        """Draws a word for every placeholder, used or not: see the module's comment on draws."""
        choice = self.random.choice
        template = choice(FILLERS)
        words = {
            "C": choice(COLORS),
            "A": choice(ANIMALS),
            "D": choice(DAYS),
            "T": choice(TRANSPORTS),
            "J": choice(JOBS),
            "B": choice(DRINKS),
            "B2": choice(DRINKS),
            "P": choice(PRODUCTS),
        }
        return template.format(**words)

    def _single_questions(self, facts: Sequence[Fact], style: str) -> List[Question]:
        asked = []
        for fact in facts:
            full = len(fact.names) == 1 or self.random.random() < 0.6
            name = fact.names[0] if full else fact.names[1]
            text = self.random.choice(fact.wording.questions(style)).format(e=name)
            asked.append(Question(text, fact.value, "one"))
        return asked

    def _hop_questions(self, facts: Sequence[Fact], style: str) -> List[Question]:
        """Asks over two facts where a person's employer or home is itself described."""
        values = {(fact.names[0], fact.attribute): fact.value for fact in facts}
        asked = []
        for fact in facts:
            if fact.kind != "person":
                continue
            for (first, second), wording in HOPS.items():
                answer: Optional[str] = values.get((fact.value, second))
                if first != fact.attribute or answer is None:
                    continue
                name = fact.names[0] if self.random.random() < 0.6 else fact.names[1]
                text = self.random.choice(wording[style]).format(e=name)
                asked.append(Question(text, answer, "two"))
                if (first, second) in BRIDGES and style == "chat":
                    text = self.random.choice(BRIDGES[first, second]).format(e=name)
                    asked.append(Question(text, f"{fact.value}, {answer}", "bridge"))
        return asked


def main() -> None:
    """Prints a passage with its questions, to see what the corpus looks like."""
    parser = argparse.ArgumentParser(description="Print a passage and its questions.")
    parser.add_argument("--seed", type=int, default=1, help="seed of the text")
    parser.add_argument("--facts", type=int, default=16, help="facts in the passage")
    parser.add_argument("--fillers", type=int, default=4, help="sentences that answer nothing")
    args = parser.parse_args()
    generator = Generator(args.seed)
    facts = generator.world(args.facts)
    print(generator.passage(facts, args.fillers))
    for style in ("base", "chat"):
        for question in generator.questions(facts, style):
            print(f"{style:5} {question.kind:7} {question.text} -> {question.answer}")


if __name__ == "__main__":
    main()
