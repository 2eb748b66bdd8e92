"""Calibration texts: several kinds, the same for a seed, and apart from what is measured with."""

import json
import random
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[4]
sys.path.append(str(ROOT / "deploy/demo/tinyllama"))
import texts  # noqa: E402


def made_up(kind: str) -> str:
    return "".join(f"{kind} line {i} says something of its own.\n" for i in range(400))


SOURCES = {kind: [made_up(kind), made_up(kind + " two")] for kind in ("english", "code", "languages")}


class TextsTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = Path(directory.name)

    def make(self, out: Path, seed: int = 7) -> None:
        with mock.patch.object(texts, "sources", lambda: SOURCES):
            texts.make(out, 24, 5, 15, seed)

    def test_half_are_questions_and_a_sixth_each_kind_of_text(self) -> None:
        self.make(self.out)
        lines = [json.loads(line) for line in (self.out / "calibration.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), 24)
        self.assertEqual(sum("question" in line for line in lines), 12)
        for kind in SOURCES:
            self.assertEqual(sum(f"{kind} " in line.get("text", "") for line in lines), 4)
        self.assertNotEqual(["text" in line for line in lines], sorted("text" in line for line in lines))

    def test_what_is_measured_with_is_not_calibrated_with(self) -> None:
        self.make(self.out)
        fitted = (self.out / "calibration.jsonl").read_text()
        for kind in SOURCES:
            kept = (self.out / f"{kind}.txt").read_text().splitlines()
            self.assertEqual(len(kept), 2 * 80, kind)
            for line in kept:
                self.assertNotIn(line, fitted)
        asked = (self.out / "questions.jsonl").read_text().splitlines()
        self.assertEqual(len(asked), 5)
        asked += (self.out / "long.jsonl").read_text().splitlines()
        for line in asked:
            self.assertNotIn(json.loads(line)["context"], fitted)

    def test_passages_to_tune_on_have_several_questions_one_behind_the_other(self) -> None:
        self.make(self.out)
        lines = [json.loads(line) for line in (self.out / "tuning.jsonl").read_text().splitlines()]
        asked = [line["context"] for line in lines if "question" in line]
        runs = [context for i, context in enumerate(asked) if i == 0 or asked[i - 1] != context]
        self.assertEqual(len(set(asked)), 15 + 3, "a long one for every four short ones, rounded down")
        self.assertEqual(len(runs), 15 + 3, "a passage's questions stand together")
        short = max(len(json.loads(line)["context"])
                    for line in (self.out / "questions.jsonl").read_text().splitlines())
        self.assertTrue(any(len(context) > 1.5 * short for context in asked))
        self.assertGreater(len(asked), 60)
        self.assertEqual(sum("text" in line for line in lines), 3, "one of each kind for every fifteen passages")
        measured = "".join((self.out / name).read_text() for name in ("questions.jsonl", "long.jsonl"))
        kept = {line for kind in SOURCES for line in (self.out / f"{kind}.txt").read_text().splitlines()}
        for line in lines:
            self.assertNotIn(json.dumps(line.get("context", "-"))[1:-1], measured)
            self.assertFalse(kept & set(line.get("text", "").splitlines()))

    def test_odd_texts_come_as_a_half_and_whole_between_passages_and_others_to_measure_with(self) -> None:
        self.make(self.out)
        lines = [json.loads(line) for line in (self.out / "odd.jsonl").read_text().splitlines()]
        halves = [line["text"] for line in lines if "text" in line]
        self.assertEqual(len(halves), 2 * len(texts.odd_texts.KINDS), "one text of each kind")
        for half, whole in zip(halves[::2], halves[1::2]):
            self.assertEqual(half, whole[: len(whole) // 2])
        self.assertTrue(any("question" in line for line in lines))
        for kind in ("base64", "symbols"):
            for line in (self.out / f"odd-{kind}.txt").read_text().split("\n\n"):
                self.assertNotIn(line, halves)

    def test_a_seed_decides_everything(self) -> None:
        self.make(self.out / "a")
        self.make(self.out / "b")
        self.make(self.out / "c", seed=8)
        for name in ("calibration.jsonl", "tuning.jsonl", "odd.jsonl", "odd-numbers.txt", "questions.jsonl", "long.jsonl", "english.txt"):
            first = (self.out / "a" / name).read_bytes()
            self.assertEqual(first, (self.out / "b" / name).read_bytes(), name)
        self.assertNotEqual((self.out / "a/calibration.jsonl").read_bytes(),
                            (self.out / "c/calibration.jsonl").read_bytes())

    def test_pieces_are_bounded_in_bytes_and_begin_at_a_line(self) -> None:
        text = "\u6f22\u5b57 \u304b\u306a\n" * 300
        for piece in texts.pieces(text, 20, random.Random(1), 400):
            self.assertLessEqual(len(piece.encode()), 400)
            self.assertTrue(piece.startswith("\u6f22"))

    def test_a_missing_package_is_named(self) -> None:
        with mock.patch.object(texts, "FAQ", self.out), mock.patch("sys.stderr") as said:
            self.assertEqual(texts.main(["--out", str(self.out / "x")]), 1)
        self.assertIn("debian-faq", "".join(call.args[0] for call in said.write.call_args_list))


if __name__ == "__main__":
    unittest.main()
