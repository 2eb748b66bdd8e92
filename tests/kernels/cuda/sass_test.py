"""The machine code of the kernels, held against what they are written for: what spills, how wide they load and store, how
many blocks an SM runs, what a loop calls. A figure here is what ptxas makes of them today; one that gets worse fails.

    sass_test.py --archive build/release/kernels/libaludel_kernels.a [--table] [--update]

The table of tests/gpu/README.md is of one compiler: --nvcc VERSION leaves it out where it is another's.
"""

import argparse
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sass import Kernel, decode, kernels_of  # noqa: E402

SM_REGISTERS = 65536
README = Path(__file__).resolve().parents[2] / "gpu/README.md"
README_HEAD = "| kernel | registers | local loads and stores | in loops |\n|---|---|---|---|\n"
# What the table there has: products and attention of models whose heads have 128 numbers, sampling, and latents.
README_KERNELS = (r"Bf16Product<\d>|BatchProduct<\d>|Fp8Product<\d>|ScaledProduct<.*>|NormQkv<Bf16>|NormGateUp|"
                  r"Adapted(Product|Qkv<Bf16>|GateUp)|(Shrink|Expand)<Bf16, .*>|WgmmaAttention<.*\b128\b.*>|"
                  r"MmaAttention<(OverFp8<)?MmaShape<128, .*>|Combine|Sample|Pack|Unpack")
kernels: Dict[str, Kernel] = {}
nvcc = ""


def named(names: List[str]) -> List[str]:
    """Demangled, without namespaces of ours, parameters and the anonymous one."""
    lines = subprocess.run(["c++filt", "-p"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    return [re.sub(r"\(anonymous namespace\)::|aludel::cuda::|aludel::|^void ", "", line)
            for line in re.sub(r"> (?=>)", ">", lines).splitlines()]


def like(pattern: str) -> Dict[str, Kernel]:
    """Those that match, at least one: a pattern of several names would not miss one of them."""
    found = {name: kernel for name, kernel in kernels.items() if re.fullmatch(pattern, name)}
    if not found:
        raise AssertionError(f"no kernel is called {pattern}: of {', '.join(sorted(kernels))}")
    return found


def blocks_per_sm(kernel: Kernel, threads: int) -> int:
    """As registers bound it: they are handed out to warps, 256 at a time."""
    of_warp = (kernel.registers * 32 + 255) // 256 * 256
    return SM_REGISTERS // (of_warp * (threads // 32))


def readme_rows() -> str:
    return "".join(f"| `{name}` | {kernel.registers} | {kernel.count('LDL') + kernel.count('STL')} | "
                   f"{kernel.in_loops('LDL') + kernel.in_loops('STL')} |\n" for name, kernel in sorted(like(README_KERNELS).items()))


def readme_parts() -> Tuple[str, str, str]:
    """What stands before the rows of the table, they, and what follows."""
    before, head, behind = README.read_text().partition(README_HEAD)
    if not head:
        raise AssertionError(f"{README} has no table that begins {README_HEAD.splitlines()[0]}")
    rows, _, behind = behind.partition("\n\n")
    return before + head, rows + "\n", "\n" + behind


class Decoder(unittest.TestCase):
    def test_words_of_known_instructions(self) -> None:
        # LDG.E.128, a branch 16 bytes back from the next instruction, EXIT.
        load = 0x981 | 6 << 73
        back = 0x947 | ((-16 // 4) & 0xff) << 16 | ((1 << 48) - 1) << 34
        code = b"".join(word.to_bytes(16, "little") for word in (load, back, 0x94d))
        found = decode(code)
        self.assertEqual([one.name for one in found], ["LDG", "BRA", "EXIT"])
        self.assertEqual((found[0].bits, found[1].target), (128, 1))


class Sass(unittest.TestCase):
    def test_no_loop_touches_local_memory(self) -> None:
        # Accesses in loops: prefill on mma has more to hold than 255 registers; its successor on 9.0 is wgmma.
        # What sincos does for arguments beyond its quick way is a store, once for a pair.
        # NormQkv and AdaptedQkv: once for each of at most eight rows, around the norm's root.
        known = {"MmaAttention<MmaShape<96, 2, 4, 1, 64>>": 19, "MmaAttention<MmaShape<128, 2, 4, 1, 64>>": 11,
                 "MmaAttention<OverFp8<MmaShape<96, 2, 4, 1, 64>>>": 15, "MmaAttention<OverFp8<MmaShape<128, 2, 4, 1, 64>>>": 33,
                 "NormQkv<Bf16>": 2, "NormQkv<Fp8>": 2, "NormQkv<float>": 2,
                 "AdaptedQkv<Bf16>": 2, "AdaptedQkv<Fp8>": 2, "AdaptedQkv<float>": 2}
        for name, kernel in like(".*").items():
            most = 3 if re.fullmatch(r"Attention<.*, 1, 4>", name) else 1 if "Rope" in name else known.get(name, 0)
            self.assertLessEqual(kernel.in_loops("LDL") + kernel.in_loops("STL"), most, name)

    def test_the_table_of_the_readme_is_of_these_kernels(self) -> None:
        before, rows, _ = readme_parts()
        compiler = re.findall(r"nvcc (\d[\d.]*\d)", before)[-1]
        if nvcc and nvcc != compiler:
            self.skipTest(f"the table is of nvcc {compiler}, these kernels are of {nvcc}")
        self.assertEqual(rows, readme_rows(), "--update writes what these kernels have")

    def test_vector_kernels_move_16_bytes_at_once(self) -> None:
        for pattern in (r"Silu<.*true>", r"Norm<.*true>", r"AddBias<.*true>"):
            for name, kernel in like(pattern).items():
                self.assertEqual(set(kernel.widths("LDG")) | set(kernel.widths("STG")), {128}, name)
        for _, kernel in like(r"CopyRows<.*true>").items():
            # One row number, then vectors.
            self.assertEqual(sorted(kernel.widths("LDG"))[1:], [128] * (kernel.count("LDG") - 1))
            self.assertEqual(set(kernel.widths("STG")), {128})

    def test_turned_rows_move_16_bytes_at_once(self) -> None:
        """Beside what says where they stand: halves of a head, and of pages values too; eight codes of FP8 are a store."""
        for pattern, rows in ((r"Rope<.*true>", 2), (r"RopeWriteKv<.*true>", 3)):
            for name, kernel in like(pattern).items():
                self.assertEqual(set(kernel.widths("STG")), {64 if "Fp8" in name else 128}, name)
                self.assertGreaterEqual(kernel.widths("LDG").count(128), rows, name)

    def test_decode_products_read_weights_16_bytes_at_once_and_call_nothing(self) -> None:
        for name, kernel in {**like(r"Bf16Product<\d>"), **like(r"ScaledProduct<.*>"), **like(r"NormQkv<.*>"),
                             **like(r"NormGateUp"), **like(r"Adapted.*"), **like(r"Fp8Product<\d>")}.items():
            # A norm's root and quotients are called where they are not ordinary numbers.
            normed = re.match("Norm|AdaptedQkv|AdaptedGate", name)
            self.assertLessEqual(kernel.count("CALL"), 3 if normed else 0, name)
            wide = sum(bits == 128 for bits in kernel.widths("LDG"))
            self.assertGreaterEqual(wide, 16 if name.startswith(("Scaled", "Fp8")) else 22 if normed else 24, name)

    def test_rows_become_codes_16_bytes_at_once(self) -> None:
        """Read twice, eight numbers a thread; eight codes are a store."""
        for name, kernel in like(r"QuantizeFp8<.*true>").items():
            self.assertEqual(set(kernel.widths("LDG")), {128}, name)
            self.assertEqual(set(kernel.widths("STG")), {32, 64}, name)  # a row's scale, and codes
            self.assertEqual(kernel.in_loops("CALL"), 0, name)
        for name, kernel in like(r"ScaleFp8<.*true>").items():
            self.assertEqual(kernel.count("CALL"), 0, name)
            self.assertEqual(set(kernel.widths("STG")), {128}, name)

    def test_products_with_adapters_ask_for_weights_before_they_claim_sums(self) -> None:
        for name, kernel in like(r"Adapted.*").items():
            claims = [at for at, one in enumerate(kernel.code) if one.name == "ATOMG"]
            # The first and those behind it; the third counts the blocks that are done.
            self.assertEqual(len(claims), 3, name)
            asked = sum(one.name == "LDG" and one.bits == 128 for one in kernel.code[:claims[0]])
            self.assertGreaterEqual(asked, 8, name)  # of W: four steps of two halves

    def test_batch_products_copy_ahead_and_read_shared_memory_16_bytes_at_once(self) -> None:
        for name, kernel in like(r"BatchProduct<\d>").items():
            tiles = int(name[-2])
            self.assertEqual((kernel.count("CALL"), kernel.count("LDL"), kernel.count("STL")), (0, 0, 0), name)
            # Of W and of the rows: three steps in front of the loop, one in it.
            self.assertEqual(kernel.count("LDGSTS"), 4 * (8 + tiles // 2), name)
            # Two times 32 inputs of a step: two tiles of outputs of two halves each, and the rows.
            wide = kernel.widths("LDS").count(128)
            self.assertEqual(wide, 2 * (4 + tiles), name)
            self.assertEqual(kernel.count("HMMA"), 2 * 2 * 2 * tiles, name)
            # Pieces come and go whole: two tiles of outputs.
            self.assertEqual(kernel.widths("STG").count(128), 2 * tiles, name)
            self.assertEqual(kernel.widths("LDG").count(128), 2 * tiles, name)

    def test_products_of_low_rank_read_inputs_16_bytes_at_once_and_call_nothing(self) -> None:
        for name, kernel in {**like(r"Shrink<.*>"), **like(r"Expand<.*>")}.items():
            self.assertEqual(kernel.count("CALL"), 0, name)
        # Rows of A and of x, for tiles of one row and of eight.
        for name, kernel in like(r"Shrink<.*true>").items():
            self.assertEqual(kernel.widths("LDG").count(128), (4 + 1 + 4 + 8) * (1 if "Bf16" in name else 2), name)

    def test_loops_of_rows_call_no_division(self) -> None:
        for name, kernel in {**like(r"Silu<.*>"), **like(r"CopyRows<.*>"), **like(r"AddBias<.*>")}.items():
            self.assertEqual(kernel.count("CALL"), 0, name)
        for name, kernel in {**like(r"MmaAttention<.*>"), **like(r"WgmmaAttention<.*>")}.items():
            # One reciprocal for each query that a thread holds, and what the setting up divides.
            self.assertLessEqual(kernel.count("CALL"), 12, name)

    def test_blocks_that_run_at_once_on_an_sm(self) -> None:
        # Threads of a block, and blocks that registers leave room for.
        wanted = {r"Bf16Product<1>": (256, 2), r"Bf16Product<2>": (256, 1), r"ScaledProduct<.*>": (256, 2),
                  r"Fp8Product<.*>": (256, 2), r"QuantizeFp8<.*>": (256, 6), r"ScaleFp8<.*true>": (256, 4),
                  # Two of them have room for their stages.
                  r"BatchProduct<[24]>": (128, 4), r"BatchProduct<8>": (128, 3),
                  r"NormQkv<.*>": (256, 2), r"NormGateUp": (256, 2), r"Adapted.*": (256, 2),
                  r"MmaAttention<MmaShape<128, 2, 4, 1, 64>>": (128, 2), r"MmaAttention<MmaShape<128, 1, 1, 4, 16>>": (128, 4),
                  r"MmaAttention<OverFp8<MmaShape<128, 2, 4, 1, 64>>>": (128, 2),
                  r"MmaAttention<OverFp8<MmaShape<128, 1, 1, 4, 16>>>": (128, 4),
                  r"WgmmaAttention<.*>": (384, 1), r"Silu<.*true>": (256, 6), r"Norm<.*true>": (256, 6),
                  r"CopyRows<.*true>": (256, 6), r"Combine": (128, 12), r"Shrink<.*>": (256, 2), r"Expand<.*>": (128, 8)}
        for pattern, (threads, blocks) in wanted.items():
            for name, kernel in like(pattern).items():
                self.assertGreaterEqual(blocks_per_sm(kernel, threads), blocks, name)

    def test_attention_over_fp8_reads_half_as_much(self) -> None:
        for name, kernel in like(r"MmaAttention<OverFp8<.*>").items():
            wide = kernels[re.sub(r"OverFp8<(.*)>>$", r"\1>", name)]
            # Copies of 16 bytes each, and of what they bring no number is read twice.
            self.assertGreater(kernel.count("LDGSTS"), 0, name)
            self.assertEqual(2 * kernel.count("LDGSTS"), wide.count("LDGSTS"), name)

    def test_what_begins_early_asks_for_weights_and_then_awaits_the_kernel_before_it(self) -> None:
        for name, kernel in {**like(r"Bf16Product<\d>"), **like(r"ScaledProduct<.*>"), **like(r"NormQkv<.*>"), **like(r"NormGateUp"),
                             **like(r"Fp8Product<\d>"), **like(r"MmaAttention<.*>")}.items():
            names = [one.name for one in kernel.code]
            self.assertEqual((names.count("PREEXIT"), names.count("ACQBULK")), (1, 1), name)
            before = names.index("ACQBULK")
            self.assertLess(names.index("PREEXIT"), before, name)
            # Nothing is written, and nothing but tables and weights read.
            self.assertEqual(kernel.count("STG", 0, before) + kernel.count("LDGSTS", 0, before), 0, name)
            if not name.startswith("MmaAttention"):
                wide = sum(one.name == "LDG" and one.bits == 128 for one in kernel.code[:before])
                self.assertEqual(wide, kernel.count("LDG", 0, before), name)
                self.assertGreaterEqual(wide, 6, name)

    def test_wgmma_moves_queries_and_results_16_bytes_at_once(self) -> None:
        for name, kernel in like("WgmmaAttention<.*>").items():
            # Four chunks of queries at a time, of f32 and of bf16. Of each half of a warp's rows a thread stores a chunk of every
            # four; one of them ptxas cuts into words.
            self.assertGreaterEqual(kernel.widths("LDG").count(128), 4 * (2 + 1), name)
            groups = int(re.findall(r"\d+", name)[0]) // 32
            self.assertGreaterEqual(kernel.widths("STG").count(128), 2 * (groups - 1), name)

    def test_wgmma_multiplies_in_its_loop(self) -> None:
        for name, kernel in like("WgmmaAttention<.*>").items():
            # Scores over the head, values over 128 keys; before, in and behind the loop.
            scores = int(re.findall(r"\d+", name)[0]) // 16
            self.assertEqual(kernel.count("HGMMA"), 2 * scores + 2 * 8)

    def test_softmax_runs_beside_the_product_before_it(self) -> None:
        """Between the wait for all products but the last and the wait for that one."""
        for name, kernel in like("WgmmaAttention<.*>").items():
            # Bit 80 tells a wait from an arrival, bits 72 to 79 say how many groups may be left.
            waits = [(at, one.code >> 72 & 0xff) for at, one in enumerate(kernel.code)
                     if one.name == "WARPGROUP" and one.code >> 80 & 1]
            begins = [i for i, (_, left) in enumerate(waits) if left == 1]
            self.assertEqual(len(begins), 1, f"{name}: {waits}")
            (begin, _), (end, left) = waits[begins[0]:begins[0] + 2]
            self.assertEqual(left, 0)
            self.assertGreaterEqual(kernel.count("MUFU", begin, end), 64, name)


def table() -> None:
    print(f"{'kernel':<58}{'registers':>10}{'code':>7}{'LDL':>5}{'CALL':>5}  loads                    stores")
    for name, kernel in sorted(kernels.items()):
        def widths(of: str) -> str:
            found = kernel.widths(of)
            return " ".join(f"{found.count(bits)}x{bits}" for bits in sorted(set(found)))
        print(f"{name:<58}{kernel.registers:>10}{len(kernel.code):>7}{kernel.in_loops('LDL'):>5}{kernel.count('CALL'):>5}  "
              f"{widths('LDG'):<25}{widths('STG')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="prints the figures and tests nothing")
    parser.add_argument("--update", action="store_true", help="writes the table of tests/gpu/README.md and tests nothing")
    parser.add_argument("--nvcc", default="", help="the version of the compiler that made the kernels")
    options, rest = parser.parse_known_args()
    code = kernels_of(options.archive)
    kernels.update(zip((name.split("(")[0] if not name.startswith("(") else name for name in
                        (re.sub(r"\(WeightFormat\)", "", one) for one in named(list(code)))), code.values()))
    nvcc = options.nvcc
    if options.table:
        table()
    elif options.update:
        start, _, rest_of_readme = readme_parts()
        README.write_text(start + readme_rows() + rest_of_readme)
    else:
        unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
