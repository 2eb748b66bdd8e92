#!/usr/bin/env python3
"""Drops each fence, barrier, wait and mask of the kernels' bodies in turn, and expects a test on the simulator to fail.

    mutate.py --build build/release [--shard 1/4] [--file sample.cuh] [--quick] [--list] [--table FILE]

A mutant is compiled into the tests that include its file, with the memory sanitizer and as a race detector (races.h); one is
dead when a test fails, crashes, hangs or reports, which the same test must not do without it. equivalent.txt names those that
change nothing, with the reason.
Exit code 1: one survived that is not named there or does not compile, or one that is named there is dead or no more.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import Mutant, mutants_of, mutated  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
# Cheapest first: the target, and what the race detector runs of it.
TESTS = {
    "latents_test": ("cuda_latents_test", "*"),
    "token_quantizer_test": ("cuda_token_quantizer_test", "*"),
    "rows_test": ("cuda_rows_test", "*"),
    "scalar_attention_test": ("cuda_scalar_attention_test", "*"),
    "fused_gemm_test": ("cuda_fused_gemm_test", "*"),
    "low_rank_test": ("cuda_low_rank_test", "*OwnAdapter"),
    "sample_test": ("cuda_sample_test", "*EveryVocabulary:*ThroughTies"),
    "skinny_gemm_test": ("cuda_skinny_gemm_test", "*"),
    "mma_attention_test": ("cuda_mma_attention_test", "*"),
    "wgmma_attention_test": ("cuda_wgmma_attention_test", "*"),
}
SANITIZERS = {"asan": "-fsanitize=address", "tsan": "-fsanitize=thread"}
SIMULATOR = ["context.cc", "simt.cc", "attention/simt_warpgroup.cc"]
# One of each kind, of files that compile quickly.
QUICK = [
    "latents.cuh PackLatentTile: __syncthreads()",
    "latents.cuh ForElements: column >= range.columns -> false",
    "token_quantizer.cuh Rotate: __syncthreads()",
    "element.cuh BlockSum: __syncthreads()",
]


class Builder:
    """Compiles tests over a folder whose headers come before the tree's."""

    def __init__(self, build: Path, work: Path) -> None:
        self.build = build
        self.work = work
        commands = json.loads((build / "compile_commands.json").read_text())
        self.commands: Dict[str, List[str]] = {}
        for one in commands:
            words = shlex.split(one["command"])
            if "/tests/kernels/cuda/" in one["file"]:
                self.commands[one["file"].split("/tests/kernels/cuda/")[1]] = words
        self.links: Dict[str, List[str]] = {}
        self.sound: Set[Tuple[str, str]] = set()

    def compile(self, source: str, to: Path, flags: List[str], overlay: Path) -> subprocess.CompletedProcess:
        words = [word for word in self.commands[source] if word not in ("-O3", "-g1", "-Werror", "-Wall", "-Wextra")]
        at = words.index("-o")
        words[at + 1] = str(to)
        words[-1] = str(HERE.parent / source)
        words[1:1] = [f"-I{overlay}", f"-I{ROOT}", "-O1", "-w", *flags]
        return subprocess.run(words, cwd=self.build, capture_output=True, text=True)

    def link(self, source: str, objects: List[str], to: Path, flags: List[str]) -> None:
        target = TESTS[Path(source).stem][0]
        if target not in self.links:
            said = subprocess.run(["ninja", "-t", "commands", target], cwd=self.build, capture_output=True, text=True,
                                  check=True).stdout.splitlines()[-1]
            words = shlex.split(said.replace(": && ", "").replace(" && :", ""))
            self.links[target] = [word for word in words if not word.endswith((".cc.o", "libaludel_simt.a"))]
        words = list(self.links[target])
        at = words.index("-o")
        words[at + 1] = str(to)
        subprocess.run([*words[:1], *flags, *objects, *words[1:]], cwd=self.build, check=True, capture_output=True)

    def simulator(self, sanitizer: str) -> List[str]:
        objects = []
        for source in SIMULATOR:
            to = self.work / f"{sanitizer}-{Path(source).stem}.o"
            # The simulator says itself what orders a kernel's memory.
            flags = ["-DALUDEL_RACES"] if sanitizer == "tsan" else [SANITIZERS[sanitizer]]
            if not to.exists():
                done = self.compile(source, to, flags, self.work)
                if done.returncode != 0:
                    raise SystemExit(done.stderr)
            objects.append(str(to))
        return objects

    def kills(self, source: str, sanitizer: str, overlay: Path) -> str:
        """What kills the tests over `overlay`, or an empty text."""
        if (source, sanitizer) not in self.sound:
            nothing = self.work / "unmutated"
            nothing.mkdir(exist_ok=True)
            if said := self.test(source, sanitizer, nothing):
                raise SystemExit(f"{source} fails without a mutant, {sanitizer}: {said}")
            self.sound.add((source, sanitizer))
        return self.test(source, sanitizer, overlay)

    def test(self, source: str, sanitizer: str, overlay: Path) -> str:
        """What becomes of the tests over `overlay`: an empty text where they pass."""
        made = self.work / "mutated.o"
        flags = [SANITIZERS[sanitizer]]
        done = self.compile(source, made, flags, overlay)
        if done.returncode != 0:
            return DOES_NOT_COMPILE + next((line for line in done.stderr.splitlines() if "error" in line), "")
        program = self.work / "mutated_test"
        self.link(source, [str(made), *self.simulator(sanitizer)], program, flags)
        words = [str(program), "--gtest_brief=1", "--gtest_fail_fast"]
        if sanitizer == "tsan":
            words.append(f"--gtest_filter={TESTS[Path(source).stem][1]}")
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0",
                       "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
        try:
            ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, env=environment,
                                 errors="replace")
        except subprocess.TimeoutExpired:
            return "hangs"
        if ran.returncode == 0:
            return ""
        said = ran.stdout + ran.stderr
        for pattern, what in ((r"WARNING: ThreadSanitizer: data race", "race"),
                              (r"ERROR: AddressSanitizer: ([\w-]+)", "memory"),
                              (r"\[  FAILED  \]", "wrong result")):
            if re.search(pattern, said):
                return what
        return "simulator"


LIMIT_S = 240
DOES_NOT_COMPILE = "does not compile: "


def included(source: Path, seen: Set[str]) -> Set[str]:
    for name in re.findall(r'#include "(kernels/cuda/[\w/]+\.(?:cuh|h)|tests/kernels/cuda/[\w/]+\.h)"', source.read_text()):
        if name not in seen:
            seen.add(name)
            included(ROOT / name, seen)
    return seen


def sources() -> Dict[str, Set[str]]:
    """Tests, by path from tests/kernels/cuda, with all that they include."""
    found = {}
    for path in (HERE.parent).rglob("*_test.cc"):
        if path.stem in TESTS:
            found[str(path.relative_to(HERE.parent))] = included(path, set())
    return dict(sorted(found.items(), key=lambda item: list(TESTS).index(Path(item[0]).stem)))


def equivalent() -> Dict[str, str]:
    """Names with reasons: a name, and the reason in the line below it, set in."""
    reasons: Dict[str, str] = {}
    name = ""
    for line in (HERE / "equivalent.txt").read_text().splitlines():
        if line.startswith("    "):
            reasons[name] = (reasons[name] + " " + line.strip()).strip()
        elif line and not line.startswith("#"):
            name = line
            reasons[name] = ""
    return reasons


def all_mutants() -> List[Mutant]:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "kernels/cuda").rglob("*.cuh"))
    return [mutant for file in files for mutant in mutants_of(ROOT, file)]


def fate(builder: Builder, mutant: Mutant, tests: Dict[str, Set[str]], overlay: Path) -> str:
    to = overlay / mutant.file
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(mutated(ROOT, mutant))
    try:
        order = ("tsan", "asan") if mutant.kind == "order" else ("asan", "tsan")
        for sanitizer in order:
            for source, headers in tests.items():
                if mutant.file not in headers:
                    continue
                killed = builder.kills(source, sanitizer, overlay)
                if killed:
                    return f"{killed} ({Path(source).stem}, {sanitizer})"
        return ""
    finally:
        to.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--shard", default="1/1", help="of the mutants, every Nth: 2/4")
    parser.add_argument("--file", default="", help="those of files that end so")
    parser.add_argument("--quick", action="store_true", help="one of each kind")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", type=Path, help="results are added to it, and what it has is not run again")
    options = parser.parse_args()
    mutants = all_mutants()
    reasons = equivalent()
    names = {mutant.name for mutant in mutants}
    stale = [name for name in reasons if name not in names]
    stale += [name for name in QUICK if name not in names]
    for name in stale:
        print(f"named, and there is no such mutant: {name}")
    if stale:
        return 1
    index, count = map(int, options.shard.split("/"))
    chosen = [one for one in mutants if one.file.endswith(options.file)][index - 1::count]
    if options.quick:
        chosen = [one for one in mutants if one.name in QUICK]
    if not chosen:
        print("no mutant is chosen")
        return 1
    done: Dict[str, str] = {}
    if options.table and options.table.exists():
        done = dict(line.split("\t", 1) for line in options.table.read_text().splitlines())
    tests = sources()
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        overlay = work / "overlay"
        overlay.mkdir()
        builder = Builder(options.build.resolve(), work)
        for i, mutant in enumerate(chosen):
            digest = hashlib.sha256((ROOT / mutant.file).read_bytes()).hexdigest()[:8]
            key = f"{mutant.name} [{digest}]"
            if options.list:
                print(f"{mutant.file}:{mutant.line}: {mutant.name}")
                continue
            begin = time.monotonic()
            if mutant.name in reasons and not options.table:
                said = "equivalent"
            elif key in done:
                said = done[key]
            else:
                said = fate(builder, mutant, tests, overlay) or "SURVIVED"
                if options.table:
                    with options.table.open("a") as table:
                        table.write(f"{key}\t{said}\n")
            if said == "SURVIVED" and mutant.name in reasons:
                said = "equivalent"
            elif mutant.name in reasons and said != "equivalent":
                said = f"named as equivalent, but dead: {said}"
                survivors.append(mutant.name)
            elif said == "SURVIVED" or said.startswith(DOES_NOT_COMPILE):
                survivors.append(mutant.name)
            print(f"{i + 1}/{len(chosen)} {time.monotonic() - begin:.0f} s {mutant.name}: {said}", flush=True)
    for name in survivors:
        print(f"not killed: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
