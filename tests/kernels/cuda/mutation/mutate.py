#!/usr/bin/env python3
"""Drops each fence, barrier, wait and mask of the kernels' bodies in turn, and expects a test on the simulator to fail.

    mutate.py --build build/release [--file sample.cuh] [--quick] [--list] [--table FILE [--summary]] [--work FOLDER] [--jobs 2]

Each test that includes a kernel is built twice, with the memory sanitizer and as a race detector (races.h), with all mutants in
it (switch.h); one is dead when a case of a test fails, crashes, hangs or reports, which the same case must not do without it.
Only cases that reach a mutant are run with it. equivalent.txt names those that change nothing, with the reason.
Exit code 1: one survived that is not named there or does not compile, or one that is named there is dead or no more.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import as_completed
from pathlib import Path
from typing import Callable, Dict, List, Set

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import Mutant, mutants_of, with_switches  # noqa: E402
from programs import HERE, ROOT, TESTS, DoesNotCompile, Programs, included  # noqa: E402

# Their tests compile quickly.
QUICK = ["kernels/cuda/latents.cuh", "kernels/cuda/token_quantizer.cuh"]
SURVIVED = "SURVIVED"


class Unsound(Exception):
    """A test that fails without a mutant."""


def sources() -> Dict[str, Set[str]]:
    """Tests, by path from tests/kernels/cuda, with all that they include, cheapest first."""
    paths = {path.stem: path for path in HERE.parent.rglob("*_test.cc")}
    return {str(paths[stem].relative_to(HERE.parent)): included(paths[stem], set()) for stem in TESTS}


def equivalent() -> Dict[str, str]:
    """Names with reasons: a name, and the reason in the lines below it, set in."""
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
    mutants = [mutant for file in files for mutant in mutants_of(ROOT, file)]
    for i, mutant in enumerate(mutants):
        mutant.number = i + 1
    return mutants


def write_overlay(folder: Path, mutants: List[Mutant]) -> None:
    for file in {mutant.file for mutant in mutants}:
        to = folder / file
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(with_switches((ROOT / file).read_text(), [one for one in mutants if one.file == file]))


def fate(programs: Programs, mutant: Mutant, test: str) -> str:
    """What kills it, or an empty text."""
    if mutant.kind == "constant":
        return programs.fate_of_constant(mutant.number, test)
    return programs.fate(mutant.number, test, ("tsan", "asan") if mutant.kind == "order" else ("asan", "tsan"))


def run(programs: Programs, left: List[Mutant], tests: Dict[str, Set[str]], report: Callable[[Mutant, str], None]) -> None:
    """Test by test, those that are still alive. Reports the fate of each."""
    for i, (test, headers) in enumerate(tests.items()):
        chosen = [one for one in left if one.file in headers]
        if not chosen:
            continue
        wrong = programs.prepare(test)
        if wrong:
            raise Unsound("\n".join(wrong))
        runs = {programs.pool.submit(fate, programs, one, test): one for one in chosen}
        later = set().union(*list(tests.values())[i + 1:])
        for done in as_completed(runs):
            mutant, said = runs[done], done.result()
            if not said and mutant.file in later:
                continue
            left.remove(mutant)
            reached = mutant.kind == "constant" or programs.is_reached(mutant.number)
            report(mutant, said or (SURVIVED if reached else f"{SURVIVED}: no test reaches it"))
    for mutant in list(left):
        left.remove(mutant)
        report(mutant, f"{SURVIVED}: no test includes it")


def key_of(mutant: Mutant) -> str:
    """A result holds for one text of the file."""
    return f"{mutant.name} [{hashlib.sha256((ROOT / mutant.file).read_bytes()).hexdigest()[:8]}]"


def verdict(said: str, named: bool) -> str:
    """What is wrong with a fate, or an empty text."""
    if said.startswith(SURVIVED):
        return "" if named else said
    if named:
        return f"named as equivalent, but dead: {said}"
    return ""


def summary(mutants: List[Mutant], fates: Dict[str, str], reasons: Dict[str, str]) -> None:
    """Results by file, as README.md has them."""
    kinds = ["race", "memory", "wrong result", "simulator", "hangs"]
    print("| file | run | " + " | ".join(kinds) + " | equivalent | survived |")
    for file in sorted({mutant.file for mutant in mutants}):
        own = [one for one in mutants if one.file == file]
        said = [fates[key_of(one)] for one in own if key_of(one) in fates]
        count = Counter(one.split(" (")[0] for one in said)
        named = sum(1 for one in own if one.name in reasons and key_of(one) in fates)
        alive = sum(1 for one in said if one.startswith(SURVIVED)) - named
        numbers = [f"{len(said)} of {len(own)}", *(str(count[kind]) for kind in kinds), str(named), str(alive)]
        print(f"| `{file.removeprefix('kernels/cuda/')}` | " + " | ".join(numbers) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--file", default="", help="those of files that end so")
    parser.add_argument("--quick", action="store_true", help="those of two small files")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", type=Path, help="results are added to it, and what it has is not run again")
    parser.add_argument("--summary", action="store_true", help="only counts what the table has")
    parser.add_argument("--work", type=Path, help="a folder that keeps the programs")
    parser.add_argument("--jobs", type=int, default=1, help="of compilers and tests at once")
    options = parser.parse_args()
    mutants = all_mutants()
    reasons = equivalent()
    stale = [name for name in reasons if name not in {mutant.name for mutant in mutants}]
    stale += [file for file in QUICK if file not in {mutant.file for mutant in mutants}]
    for name in stale:
        print(f"named, and there is no such mutant: {name}")
    if stale:
        return 1
    chosen = [one for one in mutants if (one.file in QUICK if options.quick else one.file.endswith(options.file))]
    if not chosen:
        print("no mutant is chosen")
        return 1
    fates: Dict[str, str] = {}
    if options.table and options.table.exists():
        fates = dict(line.split("\t", 1) for line in options.table.read_text().splitlines())
    if options.summary:
        summary(chosen, fates, reasons)
        return 0
    if options.list:
        for mutant in chosen:
            print(f"{mutant.file}:{mutant.line}: {mutant.name}")
        return 0
    tests = sources()
    if options.quick:  # what else includes them takes minutes
        tests = {test: headers for test, headers in tests.items() if f"kernels/cuda/{test.removesuffix('_test.cc')}.cuh" in QUICK}
    left = [one for one in chosen if key_of(one) not in fates]
    count, begin = len(left), time.monotonic()

    def report(mutant: Mutant, said: str) -> None:
        fates[key_of(mutant)] = said
        if options.table:
            with options.table.open("a") as table:
                table.write(f"{key_of(mutant)}\t{said}\n")
        print(f"{count - len(left)}/{count} {time.monotonic() - begin:.0f} s {mutant.name}: {said}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        overlay = Path(folder)
        write_overlay(overlay, mutants)
        work = options.work or overlay / "work"
        work.mkdir(parents=True, exist_ok=True)
        try:
            run(Programs(options.build.resolve(), work, overlay, len(mutants), options.jobs), left, tests, report)
        except (DoesNotCompile, Unsound) as why:
            print(why)
            return 1
    wrong = {one.name: verdict(fates[key_of(one)], one.name in reasons) for one in chosen}
    for name, why in wrong.items():
        if why:
            print(f"{name}: {why}")
    print(f"{len(chosen)} mutants, {sum(1 for one in chosen if one.name in reasons)} of them equivalent")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
