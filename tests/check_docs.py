#!/usr/bin/env python3
"""Fails where a document names a file of this repository that does not exist, or where deploy/OPERATING.md and the
metrics in the source, the alerts of deploy/prometheus or the settings of config.proto differ. Run from anywhere;
prints one line a fault.

Looked at are paths that begin with one of our folders, in backticks, links and code blocks of every *.md. Words in
capitals stand for what a reader fills in.
"""

import itertools
import re
import sys
from pathlib import Path
from typing import Iterator, List

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "proto|server|runtime|kernels|transport|configs|deploy|tests|cmake|\\.github"
PATH = re.compile(rf"^(?:{FOLDERS})/[\w./{{}},-]*$")
MADE_LATER = {"tests/gpu/results/"}  # by a run on a card
README_LINES = 190
# Words of deploy/OPERATING.md that look like settings: fields of answers, labels and their values.
NO_SETTINGS = {"fallback_reason", "first_decode", "hedge_lost", "hedge_refused", "hedge_started", "hedge_won"}


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
    source = next(ROOT.glob("server/**/metrics.cc"))
    exported = set(re.findall(r'"(aludel_\w+)"', source.read_text()))
    named = {name for span in re.findall(r"`([^`\n]+)`", (ROOT / "deploy/OPERATING.md").read_text())
             for text in re.findall(r"aludel_[\w{},]*", span) for name in expand(re.sub(r"\{\w+$", "", text))}
    # A label's value in braces, as in aludel_plans_total{reason="arena"}, ends a name.
    named = {re.sub(r"\{.*", "", name) for name in named}
    for name in sorted(exported - named):
        yield f"deploy/OPERATING.md: lacks the metric {name}"
    for name in sorted(named - exported):
        yield f"deploy/OPERATING.md: {name} is no metric of {source.relative_to(ROOT)}"


def check_alerts() -> Iterator[str]:
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yml").read_text()))
    named = set(re.findall(r"`(Aludel[A-Z]\w+)`", (ROOT / "deploy/OPERATING.md").read_text()))
    for name in sorted(alerts ^ named):
        yield f"deploy/OPERATING.md: {name} is {'no alert' if name in named else 'an alert that it lacks'}"


def check_settings() -> Iterator[str]:
    """Words like `max_num_seqs`, alone in backticks: a setting, a field of an answer, or a test."""
    settings = set(re.findall(r"\b([a-z][a-z0-9_]*) = \d+", (ROOT / "proto/aludel/v1/config.proto").read_text()))
    tests = {name for path in [*ROOT.glob("tests/**/CMakeLists.txt"), ROOT / "cmake/AludelPackages.cmake",
                               ROOT / "cmake/AludelImage.cmake"]
             for name in re.findall(r"NAME (\w+)", path.read_text())}
    tests |= {f"{path.stem}" for path in ROOT.glob("tests/deploy/kubernetes/*_test.py")}
    named = set(re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", (ROOT / "deploy/OPERATING.md").read_text()))
    for name in sorted(named - settings - tests - NO_SETTINGS):
        if not re.match(r"aludel_|process_", name):
            yield f"deploy/OPERATING.md: {name} is no setting of config.proto and no test"


def check_readme() -> Iterator[str]:
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > README_LINES:
        yield f"README.md: {lines} lines, want at most {README_LINES}: longer text stands beside what it describes"


def main() -> int:
    faults = [*check_paths(), *check_metrics(), *check_alerts(), *check_settings(), *check_readme()]
    for fault in faults:
        print(fault)
    print(f"{len(documents())} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
