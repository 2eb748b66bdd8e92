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

FIRST_NAMES = """
Marta Ilya Tomas Greta Owen Sonia Victor Nadia Felix Clara Hugo Irene Jonas Leila Magnus Nora Oscar
Petra Quinn Rosa Simon Tessa Ulric Vera Walter Xenia Yusuf Zora Adrian Bella Cedric Daphne Edgar
Fiona Gavin Helen Igor Judith Karl Lydia Martin Naomi Otto Paula Ralph Sylvia Trevor Ursula Vincent
Wendy Albert Bianca Conrad Diana Ernest Flora Gustav Hanna Ivan Julia Kevin Laura Milo Nina Oliver
Phoebe Robert Sarah Theo Viola William Agnes Boris Carmen Dennis Elena Frank Gloria Harold Ingrid
""".split()
SURNAME_STARTS = """
Vel Ash Bran Cold Dun Far Gar Hol Kess Lang Mar Nor Pell Rad Sten Tor Ul Wick Ham Bor
""".split()
SURNAME_ENDS = "kin ford man well ton berg sen rick by low field dale worth gate mond son".split()
TOWN_STARTS = """
Har Dun Port Sorr Vant Lim Oak Brae Cal Mill Stone Fern Glen Raven Salt West East Black Silver Red
Wood Cross Elm Thorn King High
""".split()
TOWN_ENDS = (
    "row more ley wick bury ham mouth ford bridge stead holm port field haven ton shaw".split()
)
JOBS = """
carpenter baker teacher nurse pilot lawyer farmer painter doctor singer tailor miner sailor
gardener plumber chemist butcher librarian dentist barber engineer poet fisherman clerk
""".split()
HOBBIES = """
chess fishing sailing pottery dancing archery cycling skating hiking knitting boxing rowing fencing
juggling surfing running
""".split()
ANIMALS = "horse dog cat parrot goat rabbit turtle goose pony ferret donkey hamster".split()
PET_NAMES = """
Comet Biscuit Shadow Pepper Ginger Rusty Daisy Pickle Misty Rocket Bubbles Hazel Domino Clover
Smoky Ziggy
""".split()
COLORS = "grey red blue green white black yellow brown purple orange pink golden".split()
INSTRUMENTS = "violin piano flute guitar drum harp trumpet cello banjo organ".split()
DRINKS = "coffee tea cider milk cocoa lemonade beer water wine juice".split()
COMPANY_STARTS = """
Aldine Borealis Cardinal Delta Emerald Falcon Granite Horizon Imperial Jupiter Keystone Liberty
Meridian Northern Orchid Pioneer Quantum Regal Summit Trident Union Vertex Willow Zenith
""".split()
COMPANY_ENDS = "Press Motors Textiles Bank Foods Glass Shipping Steel Mining Records".split()
PRODUCTS = """
clocks boats carpets lamps bicycles candles mirrors pianos ropes shoes toys bricks bottles
umbrellas ladders kettles hats tractors
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TRANSPORTS = "ferry train bus tram coach plane canoe truck".split()
INN_NAMES = "Lantern Anchor Crown Swan Fox Lion Bell Barrel Rose Stag Dolphin Eagle".split()
RIVERS = "Orla Tamsin Derwen Kelda Isken Morva Arrun Severin Lune Wye Tavy Esker".split()
PIECES = "vase mask sword crown statue drum scroll ring shield cup carpet map".split()
MATERIALS = "bronze silver ivory marble copper oak clay glass jade iron silk leather".split()
CENTURIES = "second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
SPECIALITIES = "cheese lace honey apples wool salt pottery roses bread soap pepper trout".split()


class Wording(NamedTuple):
    """How one attribute is stated and asked for; {e} is the entity, {v} the value."""

    statements: List[str]
    base: List[str]
    chat: List[str]

    def questions(self, style: str) -> List[str]:
        return self.base if style == "base" else self.chat


# Entity kind -> attribute -> wording.
ATTRIBUTES: Dict[str, Dict[str, Wording]] = {
    "person": {
        "job": Wording(
            ["{e} works as a {v}.", "{e} is a {v}.", "By trade {e} is a {v}."],
            ["What is the job of {e}?", "What does {e} work as?"],
            ["tell me {e}'s profession", "how does {e} earn a living"],
        ),
        "home": Wording(
            ["{e} lives in {v}.", "The home of {e} is in {v}.", "{e} has a house in {v}."],
            ["Where does {e} live?", "In which town is the home of {e}?"],
            ["which place does {e} call home", "name the town where {e} resides"],
        ),
        "employer": Wording(
            ["{e} is employed by {v}.", "{e} works for {v}.", "The employer of {e} is {v}."],
            ["Who is the employer of {e}?", "Which company does {e} work for?"],
            ["which firm pays {e}", "name the business that employs {e}"],
        ),
        "pet": Wording(
            ["{e} owns a {v}.", "{e} has a {v} as a pet.", "The pet of {e} is a {v}."],
            ["What pet does {e} own?", "What is the pet of {e}?"],
            ["which animal does {e} keep", "what creature belongs to {e}"],
        ),
        "hobby": Wording(
            ["{e} enjoys {v}.", "The hobby of {e} is {v}.", "In the evening {e} likes {v}."],
            ["What is the hobby of {e}?", "What does {e} enjoy?"],
            ["what does {e} do for fun", "name the pastime of {e}"],
        ),
        "instrument": Wording(
            ["{e} plays the {v}.", "The instrument of {e} is the {v}.", "{e} is learning the {v}."],
            ["What instrument does {e} play?", "What is the instrument of {e}?"],
            ["which thing can {e} play music on", "what does {e} make music with"],
        ),
        "drink": Wording(
            ["{e} always drinks {v}.", "The favourite drink of {e} is {v}.", "{e} ordered {v}."],
            ["What is the favourite drink of {e}?", "What does {e} drink?"],
            ["what beverage should I offer {e}", "which drink is preferred by {e}"],
        ),
        "born": Wording(
            ["{e} was born in {v}.", "The birth year of {e} is {v}."],
            ["When was {e} born?", "What is the birth year of {e}?"],
            ["in what year did {e} come into the world", "give me {e}'s year of birth"],
        ),
        "car": Wording(
            ["{e} drives a {v} car.", "The car of {e} is {v}."],
            ["What colour is the car of {e}?", "What colour of car does {e} drive?"],
            ["tell me the shade of {e}'s car", "how is {e}'s vehicle painted"],
        ),
    },
    "company": {
        "office": Wording(
            [
                "{e} has its head office in {v}.",
                "{e} is based in {v}.",
                "The head office of {e} is in {v}.",
            ],
            ["Where is the head office of {e}?", "Where is {e} based?"],
            ["what town hosts the headquarters of {e}", "where would I find the offices of {e}"],
        ),
        "product": Wording(
            ["{e} makes {v}.", "{e} produces {v}.", "The main product of {e} is {v}."],
            ["What does {e} make?", "What is the main product of {e}?"],
            ["which goods come from {e}", "what can I buy from {e}"],
        ),
        "founded": Wording(
            ["{e} was founded in {v}.", "The founding year of {e} is {v}."],
            ["When was {e} founded?", "What is the founding year of {e}?"],
            ["how far back does {e} go", "in what year did {e} start"],
        ),
        "boss": Wording(
            ["{e} is led by {v}.", "The director of {e} is {v}."],
            ["Who is the director of {e}?", "Who leads {e}?"],
            ["who is in charge at {e}", "name the boss of {e}"],
        ),
    },
    "town": {
        "river": Wording(
            ["{e} lies on the river {v}.", "The river of {e} is the {v}."],
            ["On which river does {e} lie?", "What is the river of {e}?"],
            ["which water flows past {e}", "what stream runs through {e}"],
        ),
        "famed": Wording(
            ["{e} is famous for its {v}.", "People visit {e} for its {v}."],
            ["What is {e} famous for?", "What do people visit {e} for?"],
            ["why do tourists like {e}", "what speciality comes from {e}"],
        ),
        "mayor": Wording(
            ["The mayor of {e} is {v}.", "{e} is governed by {v}."],
            ["Who is the mayor of {e}?", "Who governs {e}?"],
            ["who runs the town hall in {e}", "name the elected head of {e}"],
        ),
    },
    "trip": {
        "destination": Wording(
            ["{e} travelled to {v}.", "{e} made a trip to {v}.", "The trip of {e} ended in {v}."],
            ["Where did {e} travel to?", "Where did the trip of {e} end?"],
            ["which place did {e} visit", "what was {e}'s destination"],
        ),
        "transport": Wording(
            ["{e} took the {v}.", "{e} went by {v}.", "The trip of {e} was by {v}."],
            ["How did {e} travel?", "What did {e} take?"],
            ["by what means did {e} get there", "which transport was used by {e}"],
        ),
        "day": Wording(
            ["{e} left on {v}.", "The departure of {e} was on {v}."],
            ["On which day did {e} leave?", "When was the departure of {e}?"],
            ["what weekday did {e} set off", "which day saw {e} go away"],
        ),
        "inn": Wording(
            ["{e} stayed at the {v}.", "{e} slept at the {v}."],
            ["Where did {e} stay?", "At which inn did {e} sleep?"],
            ["where did {e} spend the night", "which lodging was picked by {e}"],
        ),
        "paid": Wording(
            ["{e} paid {v} crowns.", "The trip cost {e} {v} crowns."],
            ["How much did {e} pay?", "How many crowns did the trip cost {e}?"],
            ["what did {e} have to spend", "how expensive was it for {e}"],
        ),
    },
    "piece": {
        "material": Wording(
            ["{e} is made of {v}.", "{e} was carved from {v}."],
            ["What is {e} made of?", "What was {e} carved from?"],
            ["which substance forms {e}", "what material is {e}"],
        ),
        "found": Wording(
            ["{e} was found in {v}.", "{e} was discovered near {v}."],
            ["Where was {e} found?", "Where was {e} discovered?"],
            ["what spot did {e} come from", "which place gave us {e}"],
        ),
        "age": Wording(
            ["{e} dates from the {v} century.", "{e} was made in the {v} century."],
            ["From which century is {e}?", "In which century was {e} made?"],
            ["how old is {e}", "which century goes with {e}"],
        ),
        "donor": Wording(
            ["{e} was given by {v}.", "{e} was donated by {v}."],
            ["Who gave {e}?", "Who donated {e}?"],
            ["which person handed over {e}", "thanks to whom do we have {e}"],
        ),
    },
}

# Two-hop questions: (attribute of a person, attribute of its value) -> wording per style.
HOPS: Dict[Tuple[str, str], Dict[str, List[str]]] = {
    ("employer", "office"): {
        "base": ["Where is the employer of {e} based?"],
        "chat": ["in what town is {e}'s firm located"],
    },
    ("employer", "product"): {
        "base": ["What does the employer of {e} make?"],
        "chat": ["which goods are produced by the company {e} works for"],
    },
    ("home", "river"): {
        "base": ["What is the river of the home town of {e}?"],
        "chat": ["which water flows past the town where {e} lives"],
    },
    ("home", "famed"): {
        "base": ["What is the home town of {e} famous for?"],
        "chat": ["what speciality comes from {e}'s home town"],
    },
    ("employer", "boss"): {
        "base": ["Who leads the employer of {e}?"],
        "chat": ["who is in charge at the firm of {e}"],
    },
}

# Questions for both values of a hop at once; only the chat models know them.
BRIDGES: Dict[Tuple[str, str], List[str]] = {
    ("employer", "office"): ["which company employs {e} and where is it based"],
    ("home", "river"): ["where does {e} live and which river is there"],
    ("employer", "product"): ["which company employs {e} and what does it make"],
}

# Sentences that answer nothing but use the same words as those that do.
FILLERS = [
    "In the evening people visit the river.",
    "The house by the river is always {C}.",
    "A {A} was discovered in the car on {D}.",
    "People in this place always go by {T}.",
    "On {D} the offices of the town were visited by a {J}.",
    "Nobody in the house is learning how to fish.",
    "There was no {B} in the kitchen that evening.",
    "A {J} has to go to work by {T} and always drinks {B}.",
    "The weather was cold and the road was long.",
    "It rained for most of the week.",
    "For a long time nothing happened in the town.",
    "The {P} in the window were {C} and old.",
    "Some people like {B} more than {B2}.",
    "The road to the river was closed on {D}.",
    "A letter came on {D} and was put in a box.",
    "The {T} was late and the people were cold.",
    "Everyone in the street likes the {C} house.",
    "On {D} the people of the town made a trip by {T}.",
    "It was a quiet week and the shops were closed.",
    "A {C} {A} was visited by the {J} on {D}.",
    "The price of {P} was high that year.",
    "Nobody likes to drink {B} in the cold.",
]

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

# Attributes whose value is one draw from a list.
SIMPLE_VALUES: Dict[str, Sequence[str]] = {
    "job": JOBS,
    "hobby": HOBBIES,
    "instrument": INSTRUMENTS,
    "drink": DRINKS,
    "car": COLORS,
    "product": PRODUCTS,
    "river": RIVERS,
    "famed": SPECIALITIES,
    "transport": TRANSPORTS,
    "day": DAYS,
    "material": MATERIALS,
    "age": CENTURIES,
}

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
        """Draws `count` entities, kinds in turn, no two with the same distinguishing name."""
        entities: Dict[str, List[Names]] = {kind: [] for kind in ATTRIBUTES}
        used: Set[str] = set()
        for index in range(count):
            kind = domains[index % len(domains)]
            entities[kind].append(self._names(kind, used))
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
        while True:
            name = draw()
            if name not in used:
                used.add(name)
                return name

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
