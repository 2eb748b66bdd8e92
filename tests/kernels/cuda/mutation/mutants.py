"""Mutants of the kernels' bodies: one fence, barrier, wait or mask of a .cuh dropped; all of a file's in one text, behind switches."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

# Statements that order memory or wait for it.
ORDERS = re.compile(
    r"(?<![\w:])(__syncthreads|__syncwarp|__threadfence|CpAsyncCommit|CpAsyncWait<[^;()]*>|FenceProxyAsync|BarrierWait|"
    r"BarrierArrive|AwaitCount|AwaitEarlier|NumberedSync<[^;()]*>|NumberedArrive<[^;()]*>|WgmmaFence|WgmmaCommit|WgmmaWait<[^;()]*>)\(")
FUNCTION = re.compile(r"__device__[^;{]*?\b(\w+)\(")
BODY = re.compile(r"[^;{]*\{")  # behind the parameters
NAMED = re.compile(r"[\w>&*] [&*]*\w+(?: = .*)?$", re.DOTALL)  # a parameter with a name
NOT_CODE = re.compile(r"//[^\n]*|^#[^\n]*(?:\\\n[^\n]*)*|\"[^\"\n]*\"", re.MULTILINE)


@dataclass
class Mutant:
    file: str  # relative to the root
    function: str
    line: int
    text: str  # what is dropped
    kind: str  # "order", "mask", or "constant": a mask that the compiler has to know
    begin: int
    end: int
    instead: str
    count: int = 1  # of equal ones in the function
    number: int = 0  # among those of all files, from 1 on

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


def body_of(code: str, parameters: int) -> Optional[Tuple[int, int]]:
    """The body of the function whose parameters begin with the bracket at `parameters`; none where it is only declared. What a
    parameter is by default (`= {}`) is no body."""
    found = BODY.match(code, closing(code, parameters))
    return None if found is None else (found.end() - 1, closing(code, found.end() - 1))


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


def functions_of(code: str) -> Iterator[Tuple[int, int, str]]:
    """Begin, with what stands before its name, and end of each function of a kernel, and the name."""
    for found in FUNCTION.finditer(code):
        body = body_of(code, found.end() - 1)
        if body is None:
            continue
        end = closing(code, found.end() - 1)
        named = any(NAMED.search(code[b:e].strip()) for b, e in parts_of(code, found.end(), end - 1, ","))
        # An initializer list may use them, and a compiler would say of any other such function that it does not.
        if named and ":" not in code[end:body[0]] and not code[body[0] + 1:body[1] - 1].strip():
            raise ValueError(f"{found.group(1)} has parameters and nothing in what was taken for its body")
        yield found.start(), body[1], found.group(1)


def stripped(code: str, begin: int, end: int) -> Tuple[int, int]:
    """Without the blanks around it."""
    begin += len(code[begin:end]) - len(code[begin:end].lstrip())
    return begin, begin + len(code[begin:end].rstrip())


def joined(code: str, begin: int, end: int) -> Tuple[List[Tuple[int, int]], str]:
    """What a condition joins, where it joins any, and what each does not change."""
    for by, neutral in (("||", "false"), ("&&", "true")):
        parts = parts_of(code, begin, end, by)
        if len(parts) > 1:
            return parts, neutral
    return [], ""


def drops(code: str, begin: int, end: int, instead: str) -> Iterator[Tuple[int, int, str]]:
    """Each of what the condition joins, to any depth, or else all of it."""
    parts, neutral = joined(code, begin, end)
    if not parts:
        yield begin, end, instead
    for b, e in parts:
        yield b, e, neutral
        b, e = stripped(code, b, e)
        if code[b] == "(" and closing(code, b) == e:
            b, e = b + 1, e - 1
        if joined(code, b, e)[0]:
            yield from drops(code, b, e, "")


def conditions(code: str) -> Iterator[Tuple[int, int, str]]:
    """Begin and end of each condition, and what it becomes as a whole."""
    for found in re.finditer(r"\bif \(", code):
        end = closing(code, found.end() - 1)
        # A way out is closed, what is done on a condition is always done.
        leaves = re.match(r"\s*(\{\s*)?(return|continue|break)\b", code[end:])
        yield found.end(), end - 1, "false" if leaves else "true"
    for found in re.finditer(r" \? ", code):
        yield condition_before(code, found.start() + 1), found.start(), "true"
    # Kept, or handed back.
    for found in re.finditer(r"(?<!constexpr )\bbool \w+ = ", code):
        yield found.end(), parts_of(code, found.end(), code.index("}", found.end()), ";")[0][1], "true"
    for found in re.finditer(r"\bbool \w+\(", code):
        body = body_of(code, found.end() - 1)
        for back in re.finditer(r"\breturn ", code[slice(*body)]) if body is not None else ():
            begin = body[0] + back.end()
            yield begin, code.index(";", begin), "true"
    # The last argument says whether memory is read.
    for found in re.finditer(r"\b(?:CpAsync16|WgmmaShared)\(", code):
        end = closing(code, found.end() - 1) - 1
        yield parts_of(code, found.end(), end, ",")[-1] + ("true",)
    # The end of a loop is no mask, what else its condition joins is.
    for found in re.finditer(r"\bfor \(", code):
        head = parts_of(code, found.end(), closing(code, found.end() - 1) - 1, ";")
        if len(head) == 3 and joined(code, *head[1])[0]:
            yield head[1] + ("true",)


def is_constant(code: str, at: int) -> bool:
    start = max(code.rfind(one, 0, at) for one in ";{}") + 1
    return re.match(r"\s*(static )?(constexpr|static_assert)\b", code[start:at]) is not None


def mutants_of(root: Path, file: str) -> List[Mutant]:
    text = (root / file).read_text()
    code = code_of(text)
    functions = list(functions_of(code))
    made: Dict[Tuple[int, int], Mutant] = {}

    def add(begin: int, end: int, instead: str, kind: str) -> None:
        inside = [name for b, e, name in functions if b <= begin < e]
        begin, end = stripped(code, begin, end)
        what = " ".join(text[begin:end].split())
        if not inside or (begin, end) in made or what in ("true", "false", "kVectors"):
            return
        if kind == "mask":
            what = f"{what} -> {instead}"
            kind = "constant" if is_constant(code, begin) else "mask"
        made[begin, end] = Mutant(file, inside[-1], text.count("\n", 0, begin) + 1, what, kind, begin, end, instead)

    for found in ORDERS.finditer(code):
        end = closing(code, found.end() - 1)
        if code[end] != ";":
            continue
        if not any(b <= found.start() < e for b, e, _ in functions):
            raise ValueError(f"{file}:{text.count(chr(10), 0, found.start()) + 1}: {found.group(1)} is in no function that is found here")
        add(found.start(), end, "", "order")
    for begin, end, instead in conditions(code):
        for drop in drops(code, begin, end, instead):
            add(*drop, "mask")
    mutants = [made[place] for place in sorted(made)]
    for i, one in enumerate(mutants):
        one.count = 1 + sum(1 for before in mutants[:i] if (before.function, before.text) == (one.function, one.text))
    return mutants


def with_switches(text: str, mutants: List[Mutant]) -> str:
    """The file's text with all of its mutants; switch.h says which is on."""
    inserts: List[Tuple[int, int, int, str]] = []
    for one in mutants:
        on = f"ALUDEL_CONSTANT == {one.number}" if one.kind == "constant" else f"ALUDEL_MUTANT({one.number})"
        what, kind = ("void()", "void") if one.kind == "order" else (one.instead, "bool")
        # At one place what ends comes before what begins, and one that is inside of another closes first and opens last.
        inserts.append((one.begin, 1, -one.end, f"({on} ? {what} : static_cast<{kind}>("))
        inserts.append((one.end, 0, -one.begin, "))"))
    made, at = "", 0
    for place, _, _, insert in sorted(inserts):
        made += text[at:place] + insert
        at = place
    return made + text[at:]
