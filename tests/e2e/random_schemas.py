#!/usr/bin/env python3
"""JSON-schema mode against an independent validator: random schemas of the supported subset are sent to a running
gateway (GATEWAY_URL), and every answer that was not cut for length must validate with Debian's python3-jsonschema.

    stack.py --bin build/release/bin -- random_schemas.py --count 500 --seed 1

Exit code 77 says that jsonschema is not installed. The demo models know nothing of schemas and are asked at
temperature 1, so what holds the answers in shape is the constraint alone."""

import argparse
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Optional, Tuple

try:
    import jsonschema
except ImportError:
    print("skipped: random_schemas: python3-jsonschema is not installed")
    sys.exit(77)

NAMES = ["name", "town", "river", "id", "idea", "i", "caf\u00e9", "a b", 'quo"te', "back\\slash"]


class Generator:
    """Schemas of the subset that runtime/text/constrain/json_schema.h states; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def root(self) -> Dict[str, Any]:
        schema = self.schema(3)
        schema["$defs"] = {"leaf": self.schema(0), "tree": {
            "type": "object", "additionalProperties": False, "required": ["leaf"],
            "properties": {"leaf": {"$ref": "#/$defs/leaf"},
                           "more": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}}}}
        return schema

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def schema(self, depth: int) -> Dict[str, Any]:
        leaves = [self.string, self.number, lambda: {"type": "boolean"}, lambda: {"type": "null"}, self.listed,
                  lambda: {"type": ["string", "null"], "maxLength": 5}]
        nested = [self.array, self.object, self.object, self.branches, self.reference]
        choice = self.random.choice(leaves + nested if depth > 0 else leaves)
        return choice(depth) if choice in nested else choice()

    def string(self) -> Dict[str, Any]:
        schema: Dict[str, Any] = {"type": "string"}
        least = self.random.randrange(4)
        if self.flip():
            schema["minLength"] = least
        if self.random.random() < 0.8:
            schema["maxLength"] = least + self.random.randrange(12)
        return schema

    def number(self) -> Dict[str, Any]:
        schema: Dict[str, Any] = {"type": self.random.choice(["integer", "number"])}
        least = self.random.choice([self.random.randrange(-300, 300), self.random.randrange(-3, 3) + 0.5])
        if self.flip():
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = least
        if self.flip():
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = least + 2 + self.random.randrange(400)
        return schema

    def listed(self) -> Dict[str, Any]:
        values = ["red", "two\nlines", 3, -2.5, None, True, {"x": [1]}, "gr\u00fcn"]
        if self.flip():
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, self.random.randrange(1, 5))}

    def array(self, depth: int) -> Dict[str, Any]:
        schema: Dict[str, Any] = {"type": "array"}
        if self.random.random() < 0.9:
            schema["items"] = self.schema(depth - 1)
        least = self.random.randrange(3)
        if self.flip():
            schema["minItems"] = least
        schema["maxItems"] = least + self.random.randrange(3)
        return schema

    def object(self, depth: int) -> Dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randrange(5))
        schema: Dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names},
                                  "required": [name for name in names if self.flip()]}
        if self.flip():
            schema["additionalProperties"] = self.random.choice([False, self.schema(0)])
        return schema

    def branches(self, depth: int) -> Dict[str, Any]:
        if self.flip():
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randrange(1, 4))]}
        if self.flip():
            return {"oneOf": [self.string(), {"type": "number"}, {"type": "null"}, self.object(depth)]}
        return {"oneOf": [{"type": "object", "required": ["kind"],
                           "properties": {"kind": {"const": kind}, "value": self.schema(depth - 1)}}
                          for kind in ("a", "b")]}

    def reference(self, _: int) -> Dict[str, Any]:
        return {"$ref": self.random.choice(["#/$defs/leaf", "#/$defs/tree"])}


def ask(url: str, seed: int, schema: Dict[str, Any], max_tokens: int) -> Dict[str, Any]:
    """One answer; waits where the server has no room."""
    body = {"model": "json", "seed": seed, "temperature": 1, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "Tell me about it."}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "random", "schema": schema}}}
    while True:
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)["choices"][0]
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise RuntimeError(f"{error.code}: {error.read().decode()} for {json.dumps(schema)}") from error
            time.sleep(0.2)


def check(url: str, seed: int, max_tokens: int) -> Tuple[str, Optional[str]]:
    """The finish reason, and what is wrong."""
    schema = Generator(seed).root()
    jsonschema.Draft202012Validator.check_schema(schema)
    choice = ask(url, seed, schema, max_tokens)
    text = choice["message"]["content"]
    if choice["finish_reason"] == "length":
        return "length", None
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return "stop", f"seed {seed}: {json.dumps(schema)}\n  {text!r}\n  {error}"
    return "stop", None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="schemas")
    parser.add_argument("--seed", type=int, default=1, help="of the first schema; each has its own")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--parallel", type=int, default=8, help="requests at once")
    options = parser.parse_args()
    url = os.environ["GATEWAY_URL"]
    with ThreadPoolExecutor(options.parallel) as pool:
        results = list(pool.map(lambda i: check(url, options.seed + i, options.max_tokens), range(options.count)))
    wrong = [fault for _, fault in results if fault is not None]
    complete = sum(reason == "stop" for reason, _ in results)
    print(f"{options.count} schemas: {complete} complete, {options.count - complete} cut for length, {len(wrong)} invalid")
    print("\n".join(wrong), end="")
    return 0 if not wrong and complete * 2 > options.count else 1


if __name__ == "__main__":
    sys.exit(main())
