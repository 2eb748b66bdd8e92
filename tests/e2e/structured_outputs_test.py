#!/usr/bin/env python3
"""Constraints against independent judges: random regular expressions, lists of choices and grammars are sent to a running
gateway (GATEWAY_URL) under the names that vLLM's, SGLang's and llama.cpp's clients use, in every API, and every answer
that was not cut for length must be matched by Python's re, be in the list, or be what a parser written here reads.

    stack.py --bin build/release/bin -- structured_outputs_test.py --count 200 --seed 1

The demo models know nothing of them and are asked at temperature 1, so what holds the answers in shape is the constraint."""

import argparse
import json
import os
import random
import re
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Tuple

URL = os.environ["GATEWAY_URL"]
Judge = Callable[[str], bool]


def post(path: str, body: Dict[str, Any]) -> Tuple[int, Dict[str, Any]]:
    """Waits where the server has no room."""
    while True:
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                return error.code, json.load(error)
            time.sleep(0.2)


class Generator:
    """The same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def regex(self, depth: int = 3) -> str:
        kind = self.random.randrange(7 if depth > 0 else 3)
        if kind == 0:
            return self.random.choice(["a", "Z", "\\.", "\\-", "caf\u00e9", "x y", "\\{", "0"])
        if kind == 1:
            return self.random.choice(["[a-f]", "[^a-z\\n]", "[0-9A-F]", "[\u00e0-\u00ff]", "[-+*/]", "[\\]\\\\]"])
        if kind == 2:
            return self.random.choice(["\\d", "\\w", "[\\w.]", "\\x41", "\\u00e9"])
        if kind in (3, 4):
            return "".join(self.regex(depth - 1) for _ in range(self.random.randrange(1, 4)))
        if kind == 5:
            return "(?:" + "|".join(self.regex(depth - 1) for _ in range(self.random.randrange(1, 4))) + ")"
        least = self.random.randrange(3)
        return "(" + self.regex(depth - 1) + ")" + self.random.choice(
            ["?", f"{{{least}}}", f"{{{least},{least + 2}}}", "{0,3}"])

    def choices(self) -> List[str]:
        words = ["by boat", "by train", 'a "b"', "back\\slash", "two\nlines", "caf\u00e9", "b", "by", "\ttab"]
        return self.random.sample(words, self.random.randrange(1, len(words)))


def is_sum(text: str) -> bool:
    """sum ::= term ("+" term){0,3}; term ::= number | "(" sum ")": what the grammar says, read by hand."""
    at = 0

    def term() -> bool:
        nonlocal at
        if text[at:at + 1] == "(":
            at += 1
            if not total() or text[at:at + 1] != ")":
                return False
            at += 1
            return True
        number = re.compile("[1-9][0-9]{0,2}").match(text, at)
        if number is None:
            return False
        at = number.end()
        return True

    def total() -> bool:
        nonlocal at
        if not term():
            return False
        more = 0
        while more < 3 and text[at:at + 1] == "+":
            at += 1
            more += 1
            if not term():
                return False
        return True

    return total() and at == len(text)


SUM = 'root ::= sum # recursive\nsum ::= term ("+" term){0,3}\nterm ::= number | "(" sum ")"\nnumber ::= [1-9] [0-9]{0,2}'


def constraint(seed: int) -> Tuple[Dict[str, Any], Judge]:
    """The fields of a request, and what judges its answer."""
    generator = Generator(seed)
    kind = seed % 4
    if kind < 2:
        pattern = generator.regex()
        # \d and \w mean ASCII to ECMA-262.
        compiled = re.compile(pattern, re.ASCII)
        name = generator.random.choice(["guided_regex", "regex", "structured_outputs", "response_format"])
        fields: Dict[str, Any] = {name: pattern}
        if name == "structured_outputs":
            fields = {name: {"regex": pattern}}
        if name == "response_format":
            fields = {name: {"type": "regex", "pattern": pattern}}
        return fields, lambda text: compiled.fullmatch(text) is not None
    if kind == 2:
        choices = generator.choices()
        fields = {"guided_choice": choices} if generator.random.random() < 0.5 else {"structured_outputs": {"choice": choices}}
        return fields, lambda text: text in choices
    name = generator.random.choice(["guided_grammar", "ebnf", "grammar"])
    return {name: SUM}, is_sum


def ask(path: str, seed: int, fields: Dict[str, Any]) -> Tuple[int, Dict[str, Any], str, str]:
    """Status, reply, text and why it ended."""
    body: Dict[str, Any] = {"model": "chat", "seed": seed, "temperature": 1, **fields}
    if path == "/v1/completions":
        status, reply = post(path, {**body, "prompt": "Tell me about it.", "max_tokens": 120})
        return (status, reply, "", "") if status != 200 else (
            status, reply, reply["choices"][0]["text"], reply["choices"][0]["finish_reason"])
    if path == "/v1/responses":
        body.pop("response_format", None)
        status, reply = post(path, {**body, "input": "Tell me about it.", "max_output_tokens": 120})
        texts = [item["content"][0]["text"] for item in reply.get("output", [])]
        return status, reply, "".join(texts), "length" if reply.get("incomplete_details") else "stop"
    body["messages"] = [{"role": "user", "content": "Tell me about it."}]
    status, reply = post(path, {**body, "max_tokens": 120})
    if status != 200:
        return status, reply, "", ""
    if path == "/v1/messages":
        text = "".join(block["text"] for block in reply["content"])
        return status, reply, text, "length" if reply["stop_reason"] == "max_tokens" else "stop"
    return status, reply, reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]


def check(seed: int) -> Tuple[str, Optional[str]]:
    """How it ended, and what is wrong."""
    fields, judge = constraint(seed)
    paths = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
    path = paths[seed // 4 % 4]
    if "response_format" in fields:
        path = paths[seed // 4 % 2]
    status, reply, text, reason = ask(path, seed, fields)
    if status != 200:
        return "refused", f"seed {seed}: {path} {fields}: {reply}"
    if reason == "length":
        return reason, None
    return "stop", None if judge(text) else f"seed {seed}: {path} {fields}: {text!r}"


REFUSED: List[Tuple[Dict[str, Any], str]] = [
    ({"guided_regex": "a(?=b)"}, "guided_regex"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_regex": "(((a{1,999}){1,999}){1,999})"}, "guided_regex"),
    ({"regex": "(?:a|b)*(?:a|b){500}(?:a|b)*c" * 50}, "regex"),
    ({"regex": "[^\\s\\S]"}, "regex"),
    ({"guided_grammar": 'root ::= root "a"'}, "guided_grammar"),
    ({"grammar": 'root ::= "a" rule'}, "grammar"),
    ({"ebnf": "root ::= " + "(" * 200 + '"a"' + ")" * 200}, "ebnf"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
    ({"guided_json": '{"type": "strin'}, "guided_json"),
]


def check_refusals() -> List[str]:
    """A 400 that names the field, soon, and the servers go on."""
    faults = []
    for fields, param in REFUSED:
        began = time.monotonic()
        status, reply, _, _ = ask("/v1/chat/completions", 1, fields)
        took = time.monotonic() - began
        if status != 400 or reply["error"]["param"] != param:
            faults.append(f"{fields}: want a 400 for {param}, found {status} {reply}")
        elif took > 10:
            faults.append(f"{fields}: refused after {took:.1f} s")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=64, help="constraints")
    parser.add_argument("--seed", type=int, default=1, help="of the first; each has its own")
    options = parser.parse_args()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(check, range(options.seed, options.seed + options.count)))
    wrong = [fault for _, fault in results if fault is not None] + check_refusals()
    complete = sum(reason == "stop" for reason, _ in results)
    print(f"{options.count} constraints: {complete} complete, {len(wrong)} wrong; {len(REFUSED)} to be refused")
    print("\n".join(wrong), end="")
    return 0 if not wrong and complete * 2 > options.count else 1


if __name__ == "__main__":
    sys.exit(main())
