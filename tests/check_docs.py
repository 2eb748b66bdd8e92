#!/usr/bin/env python3
"""Fails where a document names a file of this repository that does not exist, where deploy/OPERATING.md and the metrics in the
source or the alerts of deploy/prometheus differ, or where a document or a comment in configs/ shows settings that
proto/aludel/v1/config.proto does not have, gives them values that it does not allow, or calls values defaults that are not. Run from
anywhere; prints one line a fault.

Looked at are paths that begin with one of our folders, in backticks, links and code blocks of every *.md. Words in
capitals stand for what a reader fills in.
"""

import itertools
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "proto|server|runtime|kernels|transport|configs|deploy|tests|cmake|\\.github"
PATH = re.compile(rf"^(?:{FOLDERS})/[\w./{{}},-]*$")
MADE_LATER = {"tests/gpu/results/"}  # by a run on a card
README_LINES = 190
# Words of deploy/OPERATING.md that look like settings: fields of answers, labels and their values.
NO_SETTINGS = {"fallback_reason", "first_decode", "hedge_lost", "hedge_refused", "hedge_started", "hedge_won",
               "prompt_logprobs"}


def documents() -> List[Path]:
    return sorted(path for path in ROOT.rglob("*.md")
                  if not {"build", "node_modules", ".git"} & set(path.relative_to(ROOT).parts))


def expand(path: str) -> Iterator[str]:
    """server/metrics.{h,cc} names two files."""
    parts = re.split(r"\{([^}]*)\}", path)
    for choice in itertools.product(*(part.split(",") if i % 2 else [part] for i, part in enumerate(parts))):
        yield "".join(choice)


def named_paths(text: str) -> Iterator[str]:
    words = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    words += [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    words += [word for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
              for word in re.split(r"[\s=\"]", block)]
    for word in words:
        word = word.strip("().,;:")
        if not PATH.match(word):
            continue
        for path in expand(word):
            placeholders = [part for part in path.split("/") if re.fullmatch(r"[A-Z][A-Z_-]+(\.\w+)?", part)]
            if all(part.endswith(".md") or part == "LICENSE" for part in placeholders):
                yield path


def check_paths() -> Iterator[str]:
    for document in documents():
        text = document.read_text()
        for path in sorted(set(named_paths(text))):
            if path not in MADE_LATER and not (ROOT / path).exists():
                yield f"{document.relative_to(ROOT)}: {path} does not exist"


def check_metrics() -> Iterator[str]:
    exported = {name for source in (ROOT / "server").rglob("*.cc")
                for name in re.findall(r'(?:Counter|Gauge|Histogram)\(\s*"(aludel_\w+)"', source.read_text())}
    named = {name for span in re.findall(r"`([^`\n]+)`", (ROOT / "deploy/OPERATING.md").read_text())
             for text in re.findall(r"aludel_[\w{},]*", span) for name in expand(re.sub(r"\{\w+$", "", text))}
    # A label's value in braces, as in aludel_plans_total{reason="arena"}, ends a name.
    named = {re.sub(r"\{.*", "", name) for name in named}
    for name in sorted(exported - named):
        yield f"deploy/OPERATING.md: lacks the metric {name}"
    for name in sorted(named - exported):
        yield f"deploy/OPERATING.md: {name} is registered nowhere in server/"


FIELD = re.compile(r"(?:optional|repeated) ([\w.]+) (\w+) = \d+\s*(?:\[(.*?)\])?;", re.DOTALL)


def settings() -> Dict[str, Dict[str, Tuple[str, str]]]:
    """The type and the options of each field of each message of config.proto."""
    text = re.sub(r"//.*", "", (ROOT / "proto/aludel/v1/config.proto").read_text())
    return {name: {field: (kind, options) for kind, field, options in FIELD.findall(body)}
            for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)}


def check_value(field: str, value: str, options: str, is_default: bool) -> Iterator[str]:
    value = value.strip('"')
    one_of = re.search(r"one_of: \[(.*?)\]", options)
    if one_of and value not in re.findall(r'"([^"]*)"', one_of.group(1)):
        yield f"{field}: \"{value}\" is none of {one_of.group(1)}"
    if re.fullmatch(r"-?[\d.]+", value):
        low, high = (re.search(rf"\b{bound}: ([\d.]+)", options) for bound in ("min", "max"))
        if (low and float(value) < float(low.group(1))) or (high and float(value) > float(high.group(1))):
            yield f"{field}: {value} is out of its range"
    default = re.search(r"\bdefault = \"?([^\",]*)", options)
    if is_default and (not default or default.group(1) != value):
        yield f"{field}: {value} is called the default, which is {default.group(1) if default else 'none'}"


def check_section(message: str, body: str, is_default: bool, known: Dict[str, Dict[str, Tuple[str, str]]]) -> Iterator[str]:
    """`body`: what stands in the braces, e.g. 'kind: "ucx" testing { delay_ms: 3 }'."""
    for field, nested, value in re.findall(r'(\w+)(?: \{([^{}]*)\}|: ("[^"]*"|[\w.-]+))', body):
        kind, options = known[message].get(field, ("", ""))
        if not kind:
            yield f"{message} has no {field}"
        elif nested:
            yield from check_section(kind, nested, is_default, known)
        elif value not in ("...", ""):
            yield from check_value(field, value, options, is_default)


def check_settings() -> Iterator[str]:
    known = settings()
    sections = {field: kind for fields in known.values() for field, (kind, _) in fields.items() if kind in known}
    shown = re.compile(rf"\b({'|'.join(sections)}) \{{((?:[^{{}}\n]|\{{[^{{}}\n]*\}})*)\}}")
    for document in [*documents(), *sorted((ROOT / "configs").rglob("*.textproto"))]:
        for line in document.read_text().splitlines():
            for match in shown.finditer(line):
                is_default = re.match(r"[`\s]*(?:\(the default\)|# the defaults)", line[match.end():]) is not None
                for fault in check_section(sections[match.group(1)], match.group(2), is_default, known):
                    yield f"{document.relative_to(ROOT)}: {match.group(0)}: {fault}"


def check_alerts() -> Iterator[str]:
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text()))
    named = set(re.findall(r"`(Aludel[A-Z]\w+)`", (ROOT / "deploy/OPERATING.md").read_text()))
    for name in sorted(alerts ^ named):
        yield f"deploy/OPERATING.md: {name} is {'no alert' if name in named else 'an alert that it lacks'}"


def check_named_settings() -> Iterator[str]:
    """Words like `max_num_seqs`, alone in backticks: a setting, a field of an answer, or a test."""
    fields = {field for message in settings().values() for field in message}
    tests = {name for path in [*ROOT.glob("tests/**/CMakeLists.txt"), ROOT / "cmake/AludelPackages.cmake",
                               ROOT / "cmake/AludelImage.cmake"]
             for name in re.findall(r"(?:NAME |aludel_(?:stack_)?script\()(\w+)", path.read_text())}
    tests |= {f"{path.stem}" for path in ROOT.glob("tests/deploy/kubernetes/*_test.py")}
    named = set(re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", (ROOT / "deploy/OPERATING.md").read_text()))
    for name in sorted(named - fields - tests - NO_SETTINGS):
        if not re.match(r"aludel_|process_", name):
            yield f"deploy/OPERATING.md: {name} is no setting of config.proto and no test"


def check_merges() -> Iterator[str]:
    for document in documents():
        for number, line in enumerate(document.read_text().splitlines(), 1):
            if re.match(r"(<{7}|>{7}) ", line):
                yield f"{document.relative_to(ROOT)}:{number}: a merge left its marker"


def check_readme() -> Iterator[str]:
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > README_LINES:
        yield f"README.md: {lines} lines, want at most {README_LINES}: longer text stands beside what it describes"


def main() -> int:
    faults = [*check_paths(), *check_metrics(), *check_alerts(), *check_settings(), *check_named_settings(),
              *check_merges(), *check_readme()]
    for fault in faults:
        print(fault)
    print(f"{len(documents())} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
