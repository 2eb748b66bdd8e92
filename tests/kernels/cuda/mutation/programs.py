"""Test programs with all mutants of the kernels in them, and what becomes of their cases with one of them on."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Set, Tuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
# Cheapest first: the target, and what the race detector runs of it.
TESTS = {
    "latents_test": ("cuda_latents_test", "*"),
    "token_quantizer_test": ("cuda_token_quantizer_test", "*"),
    "rows_test": ("cuda_rows_test", "*"),
    "scalar_attention_test": ("cuda_scalar_attention_test", "*"),
    "fp8_gemm_test": ("cuda_fp8_gemm_test", "*"),
    "fused_gemm_test": ("cuda_fused_gemm_test", "*"),
    "batch_gemm_test": ("cuda_batch_gemm_test", "*"),
    "adapted_gemm_test": ("cuda_adapted_gemm_test", "*"),
    "low_rank_test": ("cuda_low_rank_test", "*OwnAdapter"),
    "sample_test": ("cuda_sample_test", "*EveryVocabulary:*ThroughTies"),
    "skinny_gemm_test": ("cuda_skinny_gemm_test", "*"),
    "mma_attention_test": ("cuda_mma_attention_test", "*"),
    "wgmma_attention_test": ("cuda_wgmma_attention_test", "*"),
}
# What the race detector itself is tested by, and has no mutant in it.
DETECTOR_TARGET = "cuda_simt_test"
SANITIZERS = {"asan": "-fsanitize=address,alignment", "tsan": "-fsanitize=thread"}
SIMULATOR = ["context.cc", "simt.cc", "simt_counts.cc", "attention/simt_warpgroup.cc"]
ENVIRONMENT = {"TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0",
               "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", "UBSAN_OPTIONS": "halt_on_error=1"}
CONSTANT = "ALUDEL_CONSTANT"
LIMIT_S = 600  # of a case without a mutant


class DoesNotCompile(Exception):
    pass


def included(source: Path, seen: Set[str]) -> Set[str]:
    """All that it includes of kernels and their tests."""
    for name in re.findall(r'#include "((?:tests/)?kernels/[\w/]+\.(?:cuh|h))"', source.read_text()):
        if name not in seen:
            seen.add(name)
            included(ROOT / name, seen)
    return seen


@dataclass
class Case:
    name: str
    seconds: float  # without a mutant
    reached: Set[int]


@dataclass
class Program:
    path: Path
    cases: List[Case] = field(default_factory=list)


def run_case(program: Path, case: str, limit_s: float, environment: Dict[str, str]) -> str:
    """What stops the case, or an empty text where it passes."""
    words = [str(program), "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={case}"]
    try:
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, errors="replace",
                             env={**os.environ, **ENVIRONMENT, **environment})
    except subprocess.TimeoutExpired:
        return "hangs"
    if ran.returncode == 0:
        return ""
    said = ran.stdout + ran.stderr
    for pattern, what in ((r"WARNING: ThreadSanitizer: data race", "race"),
                          (r"ERROR: AddressSanitizer: ([\w-]+)|runtime error: .* misaligned address", "memory"),
                          (r"\[  FAILED  \]", "wrong result")):
        if re.search(pattern, said):
            return what
    return "simulator"


class Programs:
    """Builds tests over a folder `overlay`, whose headers come before the tree's."""

    def __init__(self, build: Path, work: Path, overlay: Path, most: int, jobs: int) -> None:
        self.build = build
        self.work = work  # what lies there already under the name of its text is not built again
        self.overlay = overlay
        self.most = most  # the largest number of a mutant
        self.pool = ThreadPoolExecutor(jobs)
        self.lock = threading.Lock()
        self.commands: Dict[str, List[str]] = {}
        for one in json.loads((build / "compile_commands.json").read_text()):
            if "/tests/kernels/cuda/" in one["file"]:
                self.commands[one["file"].split("/tests/kernels/cuda/")[1]] = shlex.split(one["command"])
        self.made: Dict[Tuple[str, str], Program] = {}

    def digest(self, sources: List[str]) -> str:
        """Of their text and that of all they include of kernels and their tests."""
        files: Set[str] = set()
        for source in sources:
            included(HERE.parent / source, files)
        texts = [(HERE.parent / source).read_bytes() for source in sources]
        for file in sorted(files):
            mutated = self.overlay / file
            texts.append((mutated if mutated.exists() else ROOT / file).read_bytes())
        return hashlib.sha256(b"".join([*texts, (HERE / "switch.h").read_bytes()])).hexdigest()[:12]

    def compile(self, source: str, to: Path, flags: List[str]) -> None:
        words = [word for word in self.commands[source] if word not in ("-O3", "-g1", "-Werror", "-Wall", "-Wextra")]
        words[words.index("-o") + 1] = str(to)
        words[-1] = str(HERE.parent / source)
        words[1:1] = [f"-I{self.overlay}", f"-I{ROOT}", "-O1", "-w", *flags]
        done = subprocess.run(words, cwd=self.build, capture_output=True, text=True)
        if done.returncode != 0:
            raise DoesNotCompile(next((line for line in done.stderr.splitlines() if "error" in line), done.stderr))

    def link(self, source: str, objects: List[str], to: Path, flags: List[str]) -> None:
        target, _ = TESTS.get(Path(source).stem, (DETECTOR_TARGET, "*"))
        said = subprocess.run(["ninja", "-t", "commands", target], cwd=self.build, capture_output=True, text=True,
                              check=True).stdout.splitlines()[-1]
        words = [word for word in shlex.split(said.replace(": && ", "").replace(" && :", ""))
                 if not word.endswith((".cc.o", "libaludel_simt.a"))]
        words[words.index("-o") + 1] = str(to)
        subprocess.run([*words[:1], *flags, *objects, *words[1:]], cwd=self.build, check=True, capture_output=True)

    def simulator(self, sanitizer: str) -> List[str]:
        """Its objects; one call at a time."""
        objects = []
        digest = self.digest(SIMULATOR)
        for source in SIMULATOR:
            to = self.work / f"{Path(source).stem}-{sanitizer}-{digest}.o"
            # It says itself what orders a kernel's memory.
            if not to.exists():
                self.compile(source, to, ["-DALUDEL_RACES"] if sanitizer == "tsan" else [SANITIZERS[sanitizer]])
            objects.append(str(to))
        return objects

    def built(self, source: str, sanitizer: str, constant: int = 0) -> Path:
        """A test program; with the mutant `constant`, which the compiler has to know, or none."""
        program = self.work / f"{Path(source).stem}-{sanitizer}-{constant}-{self.digest([source, *SIMULATOR])}"
        if program.exists():
            return program
        flags = [SANITIZERS[sanitizer]]
        switch = [f"-DALUDEL_MUTANTS={self.most + 1}", f"-D{CONSTANT}={constant}", "-include", str(HERE / "switch.h")]
        compiled = program.with_suffix(".o")
        self.compile(source, compiled, flags + switch)
        with self.lock:
            simulator = self.simulator(sanitizer)
        self.link(source, [str(compiled), *simulator], program, flags)
        return program

    def prepare(self, source: str) -> List[str]:
        """Builds a test with both sanitizers and runs each of its cases without a mutant. Which fail then."""
        for sanitizer, path in zip(SANITIZERS, self.pool.map(lambda one: self.built(source, one), SANITIZERS)):
            self.made[source, sanitizer] = Program(path)
        runs = [(sanitizer, name) for sanitizer in SANITIZERS for name in self.cases_of(source, sanitizer)]
        wrong = []
        for (sanitizer, name), (said, case) in zip(runs, self.pool.map(lambda one: self.sound(source, *one), runs)):
            if said:
                wrong.append(f"{name} fails without a mutant, {sanitizer}: {said}")
            self.made[source, sanitizer].cases.append(case)
        return wrong

    def cases_of(self, source: str, sanitizer: str) -> List[str]:
        path = self.made[source, sanitizer].path
        chosen = TESTS[Path(source).stem][1] if sanitizer == "tsan" else "*"
        said = subprocess.run([str(path), "--gtest_list_tests", f"--gtest_filter={chosen}"], capture_output=True, text=True,
                              check=True, cwd=ROOT).stdout
        names, suite = [], ""
        for line in said.splitlines():
            if line.startswith("  "):
                names.append(suite + line.split()[0])
            elif line.endswith("."):
                suite = line
        if not names:
            raise SystemExit(f"{source}, {sanitizer}: no cases")
        return names

    def sound(self, source: str, sanitizer: str, name: str) -> Tuple[str, Case]:
        reached = self.work / f"{name}-{sanitizer}.reached"
        begin = time.monotonic()
        said = run_case(self.made[source, sanitizer].path, name, LIMIT_S, {"ALUDEL_REACHED": str(reached)})
        seconds = time.monotonic() - begin
        numbers = {int(line) for line in reached.read_text().split()} if reached.exists() else set()
        return said, Case(name, seconds, numbers)

    def fate(self, number: int, source: str, order: Tuple[str, ...]) -> str:
        """Which case kills a mutant, the quickest first: an empty text where none does."""
        # What a case reaches does not depend on the sanitizer, and the race detector does not say it.
        reach = {case.name for case in self.made[source, "asan"].cases if number in case.reached}
        for sanitizer in order:
            program = self.made[source, sanitizer]
            for case in sorted(program.cases, key=lambda one: one.seconds):
                if case.name not in reach:
                    continue
                killed = run_case(program.path, case.name, 60 + 20 * case.seconds, {"ALUDEL_MUTANT": str(number)})
                if killed:
                    return f"{killed} ({Path(source).stem} {case.name.split('.')[1]}, {sanitizer})"
        return ""

    def fate_of_constant(self, number: int, source: str) -> str:
        """As above, of one that the compiler has to know."""
        for sanitizer in SANITIZERS:
            path = self.built(source, sanitizer, number)
            for case in self.made[source, sanitizer].cases:
                killed = run_case(path, case.name, 60 + 20 * case.seconds, {})
                if killed:
                    return f"{killed} ({Path(source).stem} {case.name.split('.')[1]}, {sanitizer})"
        return ""

    def is_reached(self, number: int) -> bool:
        return any(number in case.reached for program in self.made.values() for case in program.cases)
