"""How facts are stated and asked for, and the sentences between them.

As with words.py, the order of the lists is part of every seed's text.
"""

from typing import Dict, List, NamedTuple, Tuple


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
