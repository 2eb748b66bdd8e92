#!/usr/bin/env python3
"""Writes the manual page of a program from what it says of itself with --help.

    make_man_page.py build/release/bin/aludel-decode --version 0.1.0 --out aludel-decode.1

The first sentence of the help is the page's NAME line, indented lines stay as they are, and "--flag VALUE  text" lines become
OPTIONS. A program with sub-commands (lines "  name  text" before any flag) gets a section for each one's help.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Tuple

FLAG = re.compile(r"^  (--\S+(?: [A-Z]+)?|[A-Z]+(?: \[[A-Z]+\])?) +(.*)$")


def help_of(program: Path, *command: str) -> str:
    done = subprocess.run([str(program), *command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, check=False)
    if done.returncode != 0 or len(done.stdout) < 20:
        sys.exit(f"make_man_page: {program} {' '.join(command)} --help: exit code {done.returncode}: {done.stdout}")
    return done.stdout


def escape(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.split("\n"))


def split(text: str, name: str) -> Tuple[str, List[Tuple[str, str]]]:
    """The prose of a help text, and its flags with what each means."""
    text = text.removeprefix(f"{name}: ")
    flags = []
    prose, *rest = re.split(r"^(?:Flags:|Arguments:)$", text, flags=re.MULTILINE)
    for line in "\n".join(rest).splitlines():
        if match := FLAG.match(line):
            flags.append((match.group(1), match.group(2)))
    return prose.strip("\n"), flags


def blocks(prose: str) -> List[str]:
    """Paragraphs; what is indented stands as it is."""
    result = []
    for block in re.split(r"\n{2,}", prose):
        for shown, lines in itertools.groupby(block.split("\n"), key=lambda line: line.startswith("  ")):
            text = escape("\n".join(lines))
            result += [".PP", ".nf", text, ".fi"] if shown else [".PP", text]
    return result


def options(flags: List[Tuple[str, str]]) -> List[str]:
    lines = []
    for flag, meaning in flags:
        word, _, value = flag.partition(" ")
        lines += [".TP", f".B {escape(word)}" if not value else f".BI \"{escape(word)} \" {escape(value)}",
                  escape(meaning) or "\\&"]
    return lines


def page(program: Path, version: str, date: str) -> str:
    name = program.name
    prose, flags = split(help_of(program), name)
    first = re.split(r"[.:](?:\s|$)", re.sub(r"^\S+(?: [A-Z\[\]-]+)*:? ", "", prose.replace("\n", " ")), maxsplit=1)[0]
    subcommands = [] if flags else re.findall(r"^  ([a-z][a-z-]+)  +\S", prose, re.MULTILINE)
    lines = [f".TH {name.upper()} 1 {date} \"aludel {version}\" \"Aludel\"", ".SH NAME",
             f"{escape(name)} \\- {escape(' '.join(first.split()))}", ".SH SYNOPSIS", f".B {escape(name)}",
             "SUB\\-COMMAND [FLAGS]" if subcommands else "[FLAGS]", ".SH DESCRIPTION", *blocks(prose)]
    if flags:
        lines += [".SH OPTIONS", *options(flags)]
    for subcommand in subcommands:
        prose, flags = split(help_of(program, subcommand), name)
        lines += [f".SH {escape(subcommand.upper())}", *blocks(prose), *options(flags)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args()
    when = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    wanted.out.write_text(page(wanted.program.resolve(), wanted.version, time.strftime("%Y-%m-%d", when)))


if __name__ == "__main__":
    main()
