"""served_kl.loss beside the KL of whole vocabularies."""

import math
import random
import unittest
from typing import List

from served_kl import ROUNDING, listed, loss


def drawn(draw: random.Random, size: int, sharp: float) -> List[float]:
    """Log-probabilities of a vocabulary."""
    logits = [sharp * draw.gauss(0, 1) for _ in range(size)]
    total = math.log(math.fsum(math.exp(one) for one in logits))
    return [one - total for one in logits]


def top(logprobs: List[float], count: int) -> List[int]:
    return sorted(range(len(logprobs)), key=lambda i: -logprobs[i])[:count]


class LossTest(unittest.TestCase):
    def setUp(self) -> None:
        self.draw = random.Random()

    def test_lists_of_all_tokens_have_the_kl_of_all(self) -> None:
        for _ in range(20):
            p, q = drawn(self.draw, 50, 2), drawn(self.draw, 50, 2)
            whole = math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))
            kl, others = loss({str(i): a for i, a in enumerate(p)}, {str(i): b for i, b in enumerate(q)})
            self.assertAlmostEqual(kl, whole, delta=1e-9)
            self.assertEqual(others, ROUNDING)

    def test_shorter_lists_never_tell_of_more(self) -> None:
        for _ in range(50):
            p = drawn(self.draw, 400, 4)
            near = [one + 0.2 * self.draw.gauss(0, 1) for one in p]
            total = math.log(math.fsum(math.exp(one) for one in near))
            q = [one - total for one in near]
            whole = math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))
            kl, others = loss({str(i): p[i] for i in top(p, 20)}, {str(i): q[i] for i in top(q, 20)})
            self.assertLessEqual(kl, whole + 1e-9)
            self.assertGreaterEqual(kl, 0)
            both = set(top(p, 20)) & set(top(q, 20))
            self.assertAlmostEqual(others, 1 - math.fsum(math.exp(p[i]) for i in both), delta=1e-9)
            # The least of 3,000 draws was .42 of that.
            self.assertGreater(kl, 0.2 * whole * (1 - others))

    def test_tokens_of_one_spelling_are_one(self) -> None:
        together = listed([("a", math.log(0.25)), ("b", math.log(0.5)), ("a", math.log(0.125))])
        self.assertAlmostEqual(math.exp(together["a"]), 0.375, delta=1e-12)
        self.assertAlmostEqual(math.exp(together["b"]), 0.5, delta=1e-12)


if __name__ == "__main__":
    unittest.main()
