#!/usr/bin/env python3
"""What is taken for a mutant, and that README.md counts those that there are. Compiles and runs none."""

import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import List

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import Mutant, mutants_of  # noqa: E402
from mutate import HERE, all_mutants, equivalent  # noqa: E402


def found_in(text: str) -> List[Mutant]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.cuh").write_text(text)
        return mutants_of(Path(folder), "a.cuh")


class Mutants(unittest.TestCase):
    def test_what_a_parameter_is_by_default_is_no_body(self) -> None:
        found = found_in("""
template <typename Added = Nothing>
__device__ void Store(const Args& args, float* to, const Added& added = {}, int rows = F(1, 2)) {
  if (args.first >= rows) return;
  __syncthreads();
  to[0] = args.bias == nullptr ? 0.0f : args.bias[0];
}
""")
        self.assertEqual([one.name for one in found],
                         ["a.cuh Store: args.first >= rows -> false", "a.cuh Store: __syncthreads()",
                          "a.cuh Store: args.bias == nullptr -> true"])

    def test_what_a_function_hands_back_is_found_behind_its_parameters(self) -> None:
        found = found_in("__device__ inline bool Has(const Args& args = {}) { return args.count > 0; }\n"
                         "__device__ inline bool Declared(const Args& args);\n")
        self.assertEqual([one.name for one in found], ["a.cuh Has: args.count > 0 -> true"])

    def test_a_wait_for_the_kernel_before_it_is_an_order(self) -> None:
        found = found_in("__device__ void F() {\n  AllowNext();\n  AwaitEarlier();\n}\n")
        self.assertEqual([(one.text, one.kind, one.line) for one in found], [("AwaitEarlier()", "order", 3)])

    def test_an_order_outside_of_functions_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "a.cuh:2: __syncthreads is in no function"):
            found_in("inline void HostsOwn() {\n  __syncthreads();\n}\n")

    def test_an_empty_body_whose_parameters_have_names_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "Store has parameters and nothing"):
            found_in("__device__ void Store(const Args& args) {}\n")
        self.assertEqual(found_in("struct Place {\n  __device__ Place(int at) : tile(at / 2) {}\n"
                                  "  __device__ void Begin(const Rows&, float*, const long (&)[2]) const {}\n};\n"), [])


class Document(unittest.TestCase):
    maxDiff = None

    def test_the_table_counts_the_mutants_of_every_file(self) -> None:
        mutants, reasons = all_mutants(), equivalent()
        count = Counter(one.file for one in mutants)
        named = Counter(one.file for one in mutants if one.name in reasons)
        rows = {}
        for line in (HERE / "README.md").read_text().splitlines():
            row = re.fullmatch(r"\| `([\w/]+\.cuh)` \| (\d+) of (\d+) \|((?: \d+ \|)+)", line)
            if row is not None:
                fates = [int(number) for number in re.findall(r"\d+", row.group(4))]
                rows["kernels/cuda/" + row.group(1)] = (int(row.group(2)), int(row.group(3)), sum(fates), *fates[-2:])
        # All were run, each has one fate, and none lives that is not named.
        self.assertEqual(rows, {file: (of, of, of, named[file], 0) for file, of in count.items()})


if __name__ == "__main__":
    unittest.main(verbosity=2)
