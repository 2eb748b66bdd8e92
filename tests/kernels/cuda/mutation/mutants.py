"""Mutants of the kernels' bodies: one fence, barrier, wait or mask of a .cuh dropped."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Tuple

# Statements that order memory or wait for it.
ORDERS = re.compile(
    r"(?<![\w:])(__syncthreads|__syncwarp|__threadfence|CpAsyncCommit|CpAsyncWait<[^;()]*>|FenceProxyAsync|BarrierWait|"
    r"BarrierArrive|NumberedSync<[^;()]*>|NumberedArrive<[^;()]*>|WgmmaFence|WgmmaCommit|WgmmaWait<[^;()]*>)\(")
FUNCTION = re.compile(r"__device__[^;{]*?\b(\w+)\([^;{]*\{")
NOT_CODE = re.compile(r"//[^\n]*|^#[^\n]*(?:\\\n[^\n]*)*|\"[^\"\n]*\"", re.MULTILINE)


@dataclass
class Mutant:
    file: str  # relative to the root
    function: str
    line: int
    text: str  # what is dropped
    kind: str  # "order" or "mask"
    begin: int
    end: int
    instead: str
    count: int = 1  # of equal ones in the function

    @property
    def name(self) -> str:
        where = f"{self.file.removeprefix('kernels/cuda/')} {self.function}"
        return f"{where}: {self.text}" + (f" #{self.count}" if self.count > 1 else "")


def code_of(text: str) -> str:
    """Of the same length, with blanks for comments, strings, directives, and what only nvcc sees."""
    blank = lambda found: re.sub(r"[^\n]", " ", found.group())  # noqa: E731
    text = re.sub(r"^#ifdef __CUDACC__.*?^#endif", blank, text, flags=re.MULTILINE | re.DOTALL)
    return NOT_CODE.sub(blank, text)


def closing(code: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(code)):
        depth += code[i] in "([{"
        depth -= code[i] in ")]}"
        if depth == 0:
            return i + 1
    raise ValueError(f"nothing closes the bracket at {at}")


def parts_of(code: str, begin: int, end: int, by: str) -> List[Tuple[int, int]]:
    """The stretches of [begin, end) between operators `by` outside of brackets."""
    parts, depth, start, i = [], 0, begin, begin
    while i < end:
        depth += code[i] in "([{"
        depth -= code[i] in ")]}"
        if depth == 0 and code.startswith(by, i):
            parts.append((start, i))
            i += len(by)
            start = i
            continue
        i += 1
    return parts + [(start, end)]


def condition_before(code: str, at: int) -> int:
    """Where the condition begins whose `?` is at `at`."""
    depth, i = 0, at - 1
    while i >= 0:
        depth += code[i] in ")]}"
        if code[i] in "([{":
            if depth == 0:
                break
            depth -= 1
        if depth == 0:
            if code[i] in ",;?" or (code[i] == ":" and code[i - 1] != ":" and code[i + 1] != ":"):
                break
            if code[i] == "=" and code[i + 1] != "=" and code[i - 1] not in "=!<>":
                break
            if code.startswith("return", i) and not code[i + 6].isalnum():
                i += 5
                break
        i -= 1
    return i + 1


def drops(code: str, begin: int, end: int, instead: str) -> Iterator[Tuple[int, int, str]]:
    """Each of what the condition joins, or else all of it."""
    for by, neutral in (("||", "false"), ("&&", "true")):
        parts = parts_of(code, begin, end, by)
        if len(parts) > 1:
            yield from ((b, e, neutral) for b, e in parts)
            return
    yield begin, end, instead


def mutants_of(root: Path, file: str) -> List[Mutant]:
    text = (root / file).read_text()
    code = code_of(text)
    functions = [(found.start(), closing(code, found.end() - 1), found.group(1)) for found in FUNCTION.finditer(code)]
    made: List[Mutant] = []

    def add(begin: int, end: int, instead: str, kind: str) -> None:
        inside = [name for b, e, name in functions if b <= begin < e]
        if not inside:
            return
        begin += len(code[begin:end]) - len(code[begin:end].lstrip())
        what = " ".join(text[begin:end].split())
        if what in ("true", "false", "kVectors") or not what:
            return
        if kind == "mask":
            what = f"{what} -> {instead}"
        made.append(Mutant(file, inside[-1], text.count("\n", 0, begin) + 1, what, kind, begin, end, f" {instead} "))

    for found in ORDERS.finditer(code):
        end = closing(code, found.end() - 1)
        if code[end] == ";":
            add(found.start(), end, "", "order")
    for found in re.finditer(r"\bif \(", code):
        end = closing(code, found.end() - 1)
        # A way out is closed, what is done on a condition is always done.
        leaves = re.match(r"\s*(\{\s*)?(return|continue|break)\b", code[end:])
        for begin, until, instead in drops(code, found.end(), end - 1, "false" if leaves else "true"):
            add(begin, until, instead, "mask")
    for found in re.finditer(r" \? ", code):
        for begin, until, instead in drops(code, condition_before(code, found.start() + 1), found.start(), "true"):
            add(begin, until, instead, "mask")
    made.sort(key=lambda one: (one.begin, one.end))
    for i, one in enumerate(made):
        one.count = 1 + sum(1 for before in made[:i] if (before.function, before.text) == (one.function, one.text))
    return made


def mutated(root: Path, mutant: Mutant) -> str:
    text = (root / mutant.file).read_text()
    return text[:mutant.begin] + mutant.instead + text[mutant.end:]
