"""Tests of the demo pair's corpus: the text of a seed must never change. Needs no PyTorch."""

import hashlib
import itertools
import sys
import unittest
from pathlib import Path

DEMO = Path(__file__).resolve().parents[4] / "deploy/demo"
sys.path.insert(0, str(DEMO / "train"))

import questions  # noqa: E402
from generator import Generator  # noqa: E402
from tokenizer import Tokenizer, corpus, train  # noqa: E402


def text_of(seed: int) -> str:
    """Everything that a generator can draw, for twenty worlds of one seed."""
    generator = Generator(seed)
    parts = []
    for count in range(4, 24):
        facts = generator.world(count)
        parts.append(generator.passage(facts, count % 7))
        parts.append(generator.restatement(facts))
        for style in ("base", "chat"):
            parts.extend(repr(tuple(question)) for question in generator.questions(facts, style))
    return "\n".join(parts)


class GeneratorTest(unittest.TestCase):
    def test_a_seed_keeps_its_text(self) -> None:
        digests = {seed: hashlib.sha256(text_of(seed).encode()).hexdigest() for seed in (1, 777)}
        self.assertEqual(
            digests,
            {
                1: "4daef5362d9839b4b0c0d91371ed9ca752750014370506698a1b59f25986d848",
                777: "116c69e026d96f2ebc452e9d199ce8b7ed79a0d26ea73a18517ae1e40fe5e6b2",
            },
        )

    def test_a_world_that_runs_out_of_names_is_smaller(self) -> None:
        sizes = [len(Generator(seed).world(200)) for seed in range(60)]
        self.assertLess(min(sizes), 200)
        self.assertEqual(max(sizes), 200)
        self.assertGreater(min(sizes), 20)

    def test_answers_stand_in_the_passage(self) -> None:
        generator = Generator(42)
        for _ in range(50):
            facts = generator.world(12)
            passage = generator.passage(facts, 3)
            for question in generator.questions(facts, "chat"):
                for value in question.answer.split(", "):
                    self.assertIn(value, passage)


class QuestionsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.tokenizer = Tokenizer(str(DEMO / "chat/tokenizer.json"))

    def test_committed_files_regenerate_from_their_seeds(self) -> None:
        for name, seed, shortest in (("questions", 2002, 200), ("calibration", 1001, 150)):
            committed = questions.read(str(DEMO / f"{name}.jsonl"))[:40]
            made = questions.make(self.tokenizer, seed, 40, shortest, 420)
            self.assertEqual(list(made), committed)

    def test_fresh_seeds_share_no_passage_with_the_committed_questions(self) -> None:
        known = {entry.context for entry in questions.read(str(DEMO / "questions.jsonl"))}
        for entry in itertools.islice(questions.make(self.tokenizer, 31, 30, 150, 420), 30):
            self.assertNotIn(entry.context, known)

    def test_base_wording_covers_every_kind_but_bridges(self) -> None:
        for entry in questions.read(str(DEMO / "questions.jsonl")):
            reworded = questions.base_wording(entry.question)
            self.assertEqual(reworded is None, entry.kind == "bridge", entry.question)

    def test_hop_questions_are_not_taken_for_single_facts(self) -> None:
        self.assertEqual(
            questions.base_wording("which water flows past the town where Ada Marton lives"),
            "What is the river of the home town of Ada Marton?",
        )


class TokenizerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.tokenizer = Tokenizer(str(DEMO / "chat/tokenizer.json"))

    def test_text_survives_a_round_trip(self) -> None:
        text = "Ada's 12 grey boats,\n\n  a caf\u00e9 \u2603 and\ttabs "
        self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)

    def test_special_tokens_are_encoded_whole_and_decoded_to_nothing(self) -> None:
        ids = self.tokenizer.encode("<|begin|><|user|>tea<|assistant|>")
        self.assertEqual((ids[:2], ids[-1]), ([1, 3], 4))
        self.assertEqual(self.tokenizer.decode(ids), "tea")

    def test_training_repeats_the_first_merges_of_its_corpus(self) -> None:
        texts = corpus(seed=7, worlds=20)
        vocab, merges = train(texts, 300)
        self.assertEqual((vocab, merges), train(texts, 300))
        self.assertEqual(len(vocab), 300)
        self.assertEqual(vocab[-1], "".join(merges[-1]))


if __name__ == "__main__":
    unittest.main()
