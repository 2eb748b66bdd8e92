"""Rounding of checkpoints to FP8. Needs PyTorch, which the corpus tests beside it do not."""

import sys
import unittest
from pathlib import Path

DEMO = Path(__file__).resolve().parents[4] / "deploy/demo"
sys.path.insert(0, str(DEMO / "train"))

try:
    import quantize
    import torch
    from reference import e4m3_values
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch is not installed: {error}") from error


class Rounding(unittest.TestCase):
    """From weights to bytes."""

    def test_every_e4m3_number_is_its_own_nearest(self) -> None:
        codes = torch.tensor([c for c in range(256) if c & 127 != 127 and c != 128], dtype=torch.uint8)
        self.assertTrue(torch.equal(quantize.to_e4m3(quantize.from_e4m3(codes)), codes))

    def test_bytes_are_nearest(self) -> None:
        x = torch.linspace(-500, 500, 4001, dtype=torch.float64)
        values = torch.from_numpy(e4m3_values())
        values = values[~values.isnan()]
        nearest = (x[:, None] - values).abs().amin(1)
        found = (x - quantize.from_e4m3(quantize.to_e4m3(x))).abs()
        self.assertTrue(torch.equal(found, nearest))

    def test_scales_are_powers_of_two_with_room_for_the_largest(self) -> None:
        weight = torch.tensor([[447.0], [448.0], [1.0], [0.0]], dtype=torch.float64)
        scale = quantize.row_scales(weight)
        self.assertEqual(scale[:3, 0].tolist(), [2.0, 2.0, 2.0**-8])
        self.assertTrue(torch.isfinite(scale).all())

    def test_compensation_loses_less_than_rounding_to_nearest(self) -> None:
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(24, 64, generator=generator, dtype=torch.float64)
        # Inputs that depend on each other, as a residual stream's do.
        inputs = torch.randn(500, 8, generator=generator, dtype=torch.float64)
        inputs = inputs @ torch.randn(8, 64, generator=generator, dtype=torch.float64)
        inputs += 0.1 * torch.randn(500, 64, generator=generator, dtype=torch.float64)
        metric = quantize.Metric(64)
        metric.add(inputs)

        def loss(codes: "torch.Tensor", scale: "torch.Tensor") -> float:
            return float((inputs @ (quantize.from_e4m3(codes) * scale - weight).T).pow(2).sum())

        scale = quantize.row_scales(weight)
        self.assertLess(loss(*quantize.round_matrix(weight, metric)), 0.2 * loss(quantize.to_e4m3(weight / scale), scale))


if __name__ == "__main__":
    unittest.main()
