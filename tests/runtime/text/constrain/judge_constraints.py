#!/usr/bin/env python3
"""Constraints against independent judges: Python's re for patterns, and python3-jsonschema for schemas. In both directions:
what random walks through an automaton give must be valid, and of all candidates of a small domain exactly the valid ones
must be allowed.

    judge_constraints.py build/release/bin/walk_constraints --count 60 --seed 1

Exit code 77 says that jsonschema is not installed."""

import argparse
import datetime
import decimal
import ipaddress
import itertools
import json
import random
import re
import subprocess
import sys
import urllib.parse
from typing import Any, Callable, Dict, List, Optional, Tuple

try:
    import jsonschema
except ImportError:
    print("skipped: judge_constraints: python3-jsonschema is not installed")
    sys.exit(77)

Valid = Callable[[str], bool]
# A constraint, the candidates, and the judge of a text.
Case = Tuple[Dict[str, Any], List[str], Valid]

FORMATS = jsonschema.FormatChecker(formats=())
DATE = r"\d{4}-\d\d-\d\d"
TIME = r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"


def moment(text: str) -> bool:
    # Year 0, which RFC 3339 has, is a leap year, as 2000 is.
    text = re.sub("^0000", "2000", text)
    datetime.datetime.fromisoformat(re.sub(r"\.\d+", "", text).replace("Z", "+00:00"))
    return True


def is_date(text: object) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(DATE, text, re.ASCII)) and moment(text)


def is_time(text: object) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(TIME, text, re.ASCII)) and moment("2000-01-01T" + text)


def is_date_time(text: object) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(DATE + "T" + TIME, text, re.ASCII)) and moment(text)


def is_uri(text: object) -> bool:
    return not isinstance(text, str) or bool(urllib.parse.urlsplit(text).scheme) and text.isascii() and " " not in text


def is_email(text: object) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(r"[^@\s]+@([A-Za-z0-9-]+\.)+[A-Za-z0-9-]+", text)) \
        and ".." not in text and not text.startswith(".")


def is_uuid(text: object) -> bool:
    return not isinstance(text, str) or bool(re.fullmatch(r"[\da-fA-F]{8}(-[\da-fA-F]{4}){3}-[\da-fA-F]{12}", text, re.ASCII))


def is_ip(version: Any) -> Callable[[object], bool]:
    return lambda text: not isinstance(text, str) or bool(version(text))


for name, check in {"date": is_date, "time": is_time, "date-time": is_date_time, "uri": is_uri, "email": is_email,
                    "uuid": is_uuid, "ipv4": is_ip(ipaddress.IPv4Address), "ipv6": is_ip(ipaddress.IPv6Address)}.items():
    FORMATS.checks(name, raises=ValueError)(check)


def schema_case(schema: Dict[str, Any], values: List[Any]) -> Case:
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)

    def valid(text: str) -> bool:
        # Exact, as the standard means numbers: the nearest double of 8e14 + 0.97 is an integer.
        return validator.is_valid(json.loads(text, parse_float=decimal.Decimal))
    texts = [json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in values]
    return {"schema": schema}, texts, valid


class Cases:
    """The same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def flip(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def upto(self, count: int) -> int:
        return self.random.randrange(count)

    def regex(self, depth: int) -> str:
        leaves = ["a", "b", "1", "é", '"', r"\\", r"\d", r"\w", r"\W", "[ab]", "[^a]", r"[\d-]", ".", "-", r"\s", r"[^\w]"]
        if depth == 0 or self.flip(0.3):
            return self.random.choice(leaves)
        kind = self.upto(6)
        if kind < 2:
            return "".join(self.regex(depth - 1) for _ in range(1 + self.upto(3)))
        if kind == 2:
            return "(?:" + "|".join(self.regex(depth - 1) for _ in range(2 + self.upto(2))) + ")"
        if kind == 3:
            return self.random.choice(["^", "", ""]) + self.regex(depth - 1) + self.random.choice(["$", "", ""])
        inside = "(?:" + self.regex(depth - 1) + ")"
        least = self.upto(3)
        return inside + self.random.choice(["*", "+", "?", f"{{{least}}}", f"{{{least},}}", f"{{{least},{least + 2}}}", "*?"])

    def words(self) -> List[str]:
        alphabet = 'ab1é"\\- Z'
        every = [""] + list(alphabet) + ["".join(pair) for pair in itertools.product(alphabet, repeat=2)]
        return every + ["".join(self.random.choice(alphabet) for _ in range(3 + self.upto(4))) for _ in range(60)]

    @staticmethod
    def compiled(pattern: str) -> "re.Pattern[str]":
        # As ECMA-262 has digits, words, ends, the dot and white space.
        spaces = "[\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"
        for ours, python in (("$", r"\Z"), (".", "[^\n\r\u2028\u2029]"), (r"\s", spaces)):
            pattern = pattern.replace(ours, python)
        return re.compile(pattern, re.ASCII)

    def pattern(self) -> Case:
        pattern = self.regex(3)
        judge = self.compiled(pattern)
        if self.flip(0.3):
            return {"regex": pattern}, self.words(), lambda text: judge.fullmatch(text) is not None
        schema: Dict[str, Any] = {"type": "string", "pattern": pattern}
        if self.flip():
            schema["minLength"] = self.upto(3)
        if self.flip():
            schema["maxLength"] = 2 + self.upto(4)
        if self.flip(0.3):
            schema["not"] = self.random.choice([{"pattern": self.regex(2)}, {"enum": ["a", "ab", 3]}])
        refused = self.compiled(schema.get("not", {}).get("pattern", "(?!)"))
        listed = schema.get("not", {}).get("enum", [])

        def valid(text: str) -> bool:
            value = json.loads(text)
            return (judge.search(value) is not None and refused.search(value) is None and value not in listed
                    and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
        return {"schema": schema}, [json.dumps(word, ensure_ascii=False) for word in self.words()], valid

    def multiple(self) -> Case:
        schema: Dict[str, Any] = {"type": self.random.choice(["integer", "number"]),
                                  "multipleOf": self.random.choice([1, 2, 3, 5, 7, 10, 25, 99, 1000])}
        if self.flip():
            schema["minimum"] = self.upto(200) - 150
        if self.flip():
            schema["exclusiveMaximum"] = 60 + self.upto(2000)
        if self.flip(0.3):
            schema["not"] = {"enum": [0, 50, 75]}
        return schema_case(schema, list(range(-400, 1200)) + [2000, 123000, 999, 99000])

    def array(self) -> Case:
        values = [0, 1, "x", True]
        schema: Dict[str, Any] = {"type": "array", "items": {"enum": self.random.sample(values, 1 + self.upto(4))}}
        if self.flip():
            schema["minItems"] = self.upto(3)
        if self.flip():
            schema["maxItems"] = 2 + self.upto(3)
        if self.flip(0.4):
            schema["uniqueItems"] = True
            schema.pop("minItems", None)
        else:
            schema["contains"] = self.random.choice([{"const": 0}, {"enum": [1, "x"]}, {"enum": ["x", "y"]}])
            if self.flip():
                schema["minContains"] = self.upto(3)
            if self.flip():
                schema["maxContains"] = 2 + self.upto(2)
        return schema_case(schema, [list(items) for size in range(5) for items in itertools.product(values, repeat=size)])

    def tuple(self) -> Case:
        kinds = [{"type": "integer", "minimum": 0, "maximum": 1}, {"type": "string", "maxLength": 1}, {"const": True}]
        schema: Dict[str, Any] = {"type": "array", "prefixItems": [self.random.choice(kinds) for _ in range(1 + self.upto(3))],
                                  "items": self.random.choice([False] + kinds)}
        if self.flip():
            schema["minItems"] = self.upto(4 if schema["items"] is not False else 2)
        if self.flip():
            schema["maxItems"] = 3 + self.upto(2)
        values = [0, 1, "x", True]
        return schema_case(schema, [list(items) for size in range(5) for items in itertools.product(values, repeat=size)])

    def object(self) -> Case:
        names = ["a", "b", "c", "d"]
        schema: Dict[str, Any] = {"type": "object", "properties": {name: {"type": "boolean"} for name in names},
                                  "required": [name for name in names if self.flip(0.2)], "additionalProperties": False}
        if self.flip():
            schema["minProperties"] = self.upto(3)
        if self.flip():
            schema["maxProperties"] = 2 + self.upto(3)
        if self.flip():
            schema["dependentRequired"] = {name: self.random.sample(names, 1 + self.upto(2))
                                           for name in names if self.flip()}
        if self.flip(0.3):
            schema["not"] = {"required": self.random.sample(names, 1 + self.upto(2))}
        if self.flip(0.3):
            schema["propertyNames"] = self.random.choice([{"enum": ["a", "b", "d"]}, {"pattern": "[a-c]"}])
        values = [{name: True for name in names if name in chosen}
                  for size in range(5) for chosen in itertools.combinations(names, size)]
        return schema_case(schema, values + [{"a": 1}, {"e": True}, []])

    def names(self) -> Case:
        schema: Dict[str, Any] = {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"type": "null"}},
                                  "additionalProperties": self.random.choice([False, {"type": "boolean"}])}
        if self.flip():
            schema["properties"] = {"ab": {"type": "string", "maxLength": 1}, "xa": True}
        if self.flip():
            schema["propertyNames"] = self.random.choice([{"pattern": "a"}, {"maxLength": 2}, {"not": {"const": "x"}}])
        if self.flip():
            schema["minProperties"] = 1
        # Names of both patterns are never written: no candidates.
        values = [{name: value} for name in ["x", "xa", "ay", "y", "a", "ab", "é", "ba", 'q"'] for value in [1, None, True, "z"]]
        return schema_case(schema, values + [{}, {"x": 1, "ay": None}, {"xa": 1, "x": 2, "y": None}, {"a": 1, "x": 1}])

    def refusal(self) -> Case:
        schema: Dict[str, Any] = self.random.choice([
            {"type": ["integer", "string", "null", "boolean"]}, {"enum": [0, 1, 2, "a", "ab", None, True, 1.5]},
            {"type": "number"}, {"type": ["string", "boolean"]}])
        schema = dict(schema)
        schema["not"] = self.random.choice([
            {"type": "string"}, {"type": "integer"}, {"const": 1}, {"enum": ["a", 2, True]}, {"type": "string", "pattern": "b"},
            {"anyOf": [{"const": 0}, {"type": "null"}]}])
        return schema_case(schema, [0, 1, 2, -1, 10, 1.5, "a", "ab", "", None, True, False, [], {}])

    def format(self) -> Case:
        samples = {
            "date": ["2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2023-04-31", "2023-12-31", "2023-13-01", "x"],
            "time": ["00:00:00Z", "23:59:59.123+05:30", "24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z"],
            "date-time": ["2024-02-29T12:00:00Z", "2023-02-29T12:00:00Z", "2024-01-01 12:00:00Z"],
            "email": ["a@b.co", "a.b+c@d-e.org", "a@", "@b.co", "a..b@c.de", ".a@b.co", "a b@c.de"],
            "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"],
            "uri": ["http://a.b/c?d=e#f", "mailto:a@b.co", "urn:x:y", "//a.b", "a b", "/x", "http://[::1]:80/"],
            "ipv4": ["1.2.3.4", "255.255.255.255", "256.1.1.1", "1.2.3", "01.2.3.4"],
            "ipv6": ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9", "::ffff:1.2.3.4", "1::2::3", "12345::",
                     "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:7::8"]}
        name = self.random.choice(sorted(samples))
        return schema_case({"type": "string", "format": name}, samples[name])

    def all(self) -> List[Case]:
        return [self.pattern(), self.pattern(), self.multiple(), self.array(), self.tuple(), self.object(), self.names(),
                self.refusal(), self.format()]


def judge(case: Case, answer: Dict[str, Any]) -> Optional[str]:
    """What is wrong, if anything."""
    constraint, texts, valid = case
    if "error" in answer:
        # Refused: nothing may be valid, unless it is too large or not supported.
        known = any(words in answer["error"] for words in ("leave no", "leaves no", "matches no text", "asks for more", "than there may",
                                                           "refuses every", "is required", "allows no string", "refuses"))
        found = next((text for text in texts if valid(text)), None)
        return None if known and found is None else f"{json.dumps(constraint)}: {answer['error']}; valid: {found}"
    for text in answer["walks"]:
        try:
            good = valid(text)
        except ValueError:
            good = False
        if not good:
            return f"{json.dumps(constraint)} writes {text!r}"
    for text, has in zip(texts, answer["has"]):
        if has != valid(text):
            return f"{json.dumps(constraint)} {'allows' if has else 'refuses'} {text!r}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("walker", help="the binary walk_constraints")
    parser.add_argument("--count", type=int, default=60, help="rounds of every kind of case")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cases = [case for i in range(options.count) for case in Cases(options.seed + i).all()]
    lines = [json.dumps({**constraint, "walks": 8, "seed": i, "texts": texts})
             for i, (constraint, texts, _) in enumerate(cases)]
    run = subprocess.run([options.walker], input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", check=True)
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    faults = [fault for fault in map(judge, cases, answers) if fault is not None]
    refused = sum("error" in answer for answer in answers)
    walks = sum(len(answer.get("walks", [])) for answer in answers)
    texts = sum(len(answer.get("has", [])) for answer in answers)
    print(f"{len(cases)} constraints, {refused} refused; {walks} walks and {texts} candidates judged, {len(faults)} faults")
    print("\n".join(faults[:10]))
    return 0 if not faults and len(answers) == len(cases) and refused * 4 < len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
