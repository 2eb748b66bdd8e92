"""What a machine with a GPU is given, unpacked in an empty folder, runs on the CPU at small sizes: every part leaves the rows
that a run on a card leaves.

    rehearsal_test.py --pack build/release/aludel-gpu.tar.xz
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict

pack = Path()


class Rehearsal(unittest.TestCase):
    rows: Dict[str, Dict[str, Any]]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            zstd = pack.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
            unpack = ["--use-compress-program=zstd --long=28"] if zstd else []
            subprocess.run(["tar", *unpack, "-C", folder, "-xf", str(pack)], check=True)
            first, second = Path(folder) / "out", Path(folder) / "again"
            command = [f"{folder}/aludel-gpu/tests/gpu/run.sh", "--device", "cpu", "--small", "--minutes", "20"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder,
                                  env={**os.environ, "OUT": str(first)})
            print(done.stdout, done.stderr)
            cls.printed, cls.log = done.stdout, (first / "gpu.log").read_text()
            cls.result = json.loads(next(first.glob("*.json")).read_text())
            cls.kept = subprocess.run([*command, "--only", "engine,ttft,ops"], capture_output=True, text=True,
                                      check=False, cwd=folder, env={**os.environ, "OUT": str(second)}).stdout
            cls.result_after = json.loads(next(second.glob("*.json")).read_text())
        cls.rows = {row["name"]: row for row in cls.result["benchmarks"]}

    def test_says_what_was_measured(self) -> None:
        self.assertEqual(list(self.result), ["device", "driver", "commit", "date", "benchmarks"])
        for row in self.result["benchmarks"]:
            self.assertEqual(list(row)[:5], ["name", "value", "unit", "bound", "command"], row)
            if row["value"] is None:
                self.assertTrue(row["reason"], row)

    def test_what_is_there_is_not_measured_again(self) -> None:
        self.assertIn("kept from an earlier run, --again measures anew: engine, ttft, ops\n", self.kept)
        self.assertNotIn("==", self.kept.split("\n\n")[0])
        self.assertEqual(self.result_after, self.result)

    def test_the_log_is_carried_back_beside_the_results(self) -> None:
        self.assertEqual(self.log, self.printed)

    def test_figures_are_of_two_timings(self) -> None:
        for name in ("gemm_peak", "copy_bandwidth", "link_path", "prefill_gemm_share", "decode_bandwidth_share",
                     "decode_rate_batch_1_without_graphs", "codec_prefill_share", "adapters_step_ratio"):
            self.assertGreaterEqual(self.rows[name]["spread"], 0, self.rows[name])

    def test_every_part_has_figures(self) -> None:
        for name in ("gemm_peak", "copy_bandwidth", "prefill_gemm_share", "decode_bandwidth_share", "link_path",
                     "ttft_oracle_256", "codec_prefill_share", "codec_prefill_share_scd",
                     "decode_rate_batch_1_without_graphs", "adapters_step_ratio", "adapters_step_ratio_of_one",
                     "adapters_prefill_ratio", "calibrate_minutes"):
            self.assertGreater(self.rows[name]["value"] or 0, 0, self.rows[name])
        for form in ("", "_raw", "_int4", "_scd"):
            for state in ("warm", "cold"):
                for link in (1, 4):
                    row = self.rows[f"ttft_speedup_{state}_256_{link}g{form}"]
                    self.assertGreater(row["value"] or 0, 0, row)
                    self.assertLessEqual({"p", "bytes_per_token", "recomputed_tokens", "link_measured_gbps", "emulated"}, set(row))
                    self.assertTrue(state == "cold" or row["stages"]["prefill"] == 0, row)

    def test_the_device_agrees_with_the_cpu(self) -> None:
        self.assertEqual(self.rows["greedy_parity"]["value"], 1, self.rows["greedy_parity"])
        for name in ("quality_kl_aludel-p2", "calibrate_kl"):
            self.assertEqual(self.rows[name]["value"], 1, self.rows[name])
        for name in ("ops_test", "device_test", "handoff_test"):
            self.assertEqual(self.rows[f"failed_tests_{name}"]["value"], 0, self.rows[f"failed_tests_{name}"])

    def test_what_only_a_card_says_is_null(self) -> None:
        for tool in ("memcheck", "racecheck", "memcheck_mma"):
            self.assertIsNone(self.rows[f"sanitizer_{tool}"]["value"])
        self.assertEqual(self.rows["profile_decode_Bf16Product"]["reason"], "the device is not a card")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", type=Path, required=True)
    options, rest = parser.parse_known_args()
    pack = options.pack.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
