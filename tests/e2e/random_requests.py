"""Random requests made from the gateway's own /openapi.json, over the whole stack, started by stack.py: most of them as the
schemas say, the rest with one thing wrong. Each answer must have a status that /openapi.json states for the operation (500 is
none), and be what it states for that status. As a command: stack.py --bin ... -- random_requests.py --count 10000."""

import argparse
import collections
import copy
import http.client
import json
import os
import random
import re
import sys
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Optional, Set, Tuple

URL = urllib.parse.urlparse(os.environ["GATEWAY_URL"])
WORDS = ["harp", "river", "Orla", "é", "日本", "\U0001f600", "", " ", "\n", "</s>", "<|im_start|>", "a" * 300, "\u0000", "{", "1e999"]
MAX_TOKENS = 6
FREQUENT = {"model", "max_tokens", "max_completion_tokens", "max_output_tokens", "aludel"}  # or an answer takes seconds
BUILTINS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def has_type(value: Any, name: str) -> bool:
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, BUILTINS[name])


class Api:
    """The description, and what its schemas mean."""

    def __init__(self, document: Dict) -> None:
        self.document = document

    def resolve(self, schema: Dict) -> Dict:
        while "$ref" in schema:
            at: Any = self.document
            for part in schema["$ref"].lstrip("#/").split("/"):
                at = at[part]
            schema = at
        return schema

    def fault(self, value: Any, schema: Dict, where: str = "answer") -> Optional[str]:
        """Where `value` is not what `schema` says; nothing where it is."""
        schema = self.resolve(schema)
        known = {"type", "const", "enum", "anyOf", "minimum", "maximum", "minLength", "maxLength", "pattern", "items", "minItems",
                 "maxItems", "properties", "required", "additionalProperties", "propertyNames", "maxProperties"}
        assert set(schema) <= known, f"a keyword that this test does not know: {set(schema) - known}"
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if types and not any(has_type(value, one) for one in types):
            return f"{where}: {value!r} is not of {types}"
        if "const" in schema and value != schema["const"]:
            return f"{where}: {value!r} is not {schema['const']!r}"
        if "enum" in schema and value not in schema["enum"]:
            return f"{where}: {value!r} is not one of {schema['enum']}"
        if "anyOf" in schema and all(self.fault(value, one, where) for one in schema["anyOf"]):
            return f"{where}: {value!r} is none of {schema['anyOf']}"
        if has_type(value, "number"):
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                return f"{where}: {value!r} is out of range"
        elif isinstance(value, str):
            if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
                return f"{where}: a string of {len(value)} characters"
            if "pattern" in schema and not re.search(schema["pattern"], value):
                return f"{where}: {value!r} does not match"
        elif isinstance(value, list):
            if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
                return f"{where}: {len(value)} items"
            faults = [self.fault(one, schema.get("items", {}), f"{where}[{at}]") for at, one in enumerate(value)]
            return next((one for one in faults if one), None)
        elif isinstance(value, dict):
            missing = [name for name in schema.get("required", []) if name not in value]
            if missing:
                return f"{where} lacks {missing}"
            more = schema.get("additionalProperties", True)
            for name, one in value.items():
                fault = None
                if name in schema.get("properties", {}):
                    fault = self.fault(one, schema["properties"][name], f"{where}.{name}")
                elif more is False:
                    fault = f"{where}.{name} is not named"
                elif isinstance(more, dict):
                    fault = self.fault(one, more, f"{where}.{name}")
                if fault:
                    return fault
        return None


class Maker:
    """Random values of schemas."""

    def __init__(self, api: Api, seed: int) -> None:
        self.api = api
        self.random = random.Random(seed)

    def value(self, schema: Dict, name: str = "") -> Any:
        schema = self.api.resolve(schema)
        if name == "model":
            return self.random.choices(["chat", "json", "none", self.word()], [10, 5, 1, 1])[0]
        if name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            return self.random.randint(1, MAX_TOKENS)
        if name == "tokens" and self.random.random() < 0.8:
            return [self.random.randint(0, 400) for _ in range(self.random.randint(0, 9))]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        if "anyOf" in schema:
            return self.value(self.random.choice(schema["anyOf"]), name)
        types = schema.get("type", ["string", "integer", "boolean"])
        kind = types if isinstance(types, str) else self.random.choice([one for one in types if one != "null"] * 9 + ["null"])
        return getattr(self, f"make_{kind}")(schema, name)

    def word(self) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, 4)))

    def make_null(self, *_: Any) -> None:
        return None

    def make_boolean(self, *_: Any) -> bool:
        return self.random.random() < 0.5

    def make_string(self, schema: Dict, _: str) -> str:
        if "pattern" in schema:
            return "".join(self.random.choices("0123456789", k=self.random.randint(1, 3)))
        text = (self.word() or "a")[:schema.get("maxLength", 10**6)]
        return text + "a" * (schema.get("minLength", 0) - len(text))

    def make_integer(self, schema: Dict, name: str) -> int:
        low, high = schema.get("minimum", -10), schema.get("maximum", 10)
        near = [low, high, max(low, min(high, 0)), max(low, min(high, 1))]
        some = self.random.randint(low, min(high, low + 300))
        picked = self.random.choice(near + [some] * 6)
        return min(picked, 4) if name in ("n", "top_logprobs", "logprobs", "prompt_logprobs") else picked

    def make_number(self, schema: Dict, _: str) -> float:
        low, high = schema.get("minimum", -10), schema.get("maximum", 10)
        return self.random.choice([low, high, self.random.uniform(low, high), self.random.uniform(low, high)])

    def make_array(self, schema: Dict, name: str) -> List:
        low = schema.get("minItems", 0)
        size = self.random.randint(low, min(schema.get("maxItems", 5), low + 3))
        return [self.value(schema.get("items", {}), name) for _ in range(size)]

    def make_object(self, schema: Dict, _: str) -> Dict:
        made = {}
        properties = schema.get("properties", {})
        share = self.random.choice([0.05, 0.1, 0.3]) if len(properties) > 8 else 0.6
        for name, one in properties.items():
            if name in schema.get("required", []) or self.random.random() < (0.9 if name in FREQUENT else share):
                made[name] = self.value(one, name)
        if isinstance(schema.get("additionalProperties"), dict):
            for _ in range(self.random.randint(0, 3)):
                key = self.make_string(schema.get("propertyNames", {}), "")
                made[key] = self.value(schema["additionalProperties"])
        elif not properties and self.random.random() < 0.5:
            made[self.word()] = self.random.choice([None, 1, "x", [], {}])
        return made

    def spoil(self, body: Any) -> Any:
        """Changes one thing somewhere."""
        body = copy.deepcopy(body)
        at, key = {"": body}, ""
        while isinstance(at[key], (dict, list)) and at[key] and self.random.random() < 0.7:
            at = at[key]
            key = self.random.choice(list(at) if isinstance(at, dict) else list(range(len(at))))
        at[key] = self.random.choice([None, True, -1, 2**70, 1e300, "", "x", [], [[]], {}, {"a": {"b": [None]}}])
        return body if key != "" or at is body else at[""]


class Client:
    """One kept connection."""

    def __init__(self) -> None:
        self.connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=120)

    def ask(self, method: str, path: str, body: Optional[bytes]) -> Tuple[int, str, bytes]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        for attempt in range(2):
            try:
                self.connection.request(method, path, body, headers)
                reply = self.connection.getresponse()
                return reply.status, reply.headers.get("Content-Type", ""), reply.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self.connection.close()
                if attempt == 1:
                    raise
        raise AssertionError("not reached")


LAST_EVENTS = {"/v1/messages": {"message_stop", "error"},
               "/v1/responses": {"response.completed", "response.incomplete", "response.failed"}}


def check_named_events(events: List[str], last: Set[str]) -> Optional[str]:
    """Events with a name that their data repeats; the last one, and no other, is one of `last`."""
    names = []
    for event in events:
        parts = re.fullmatch(r"event: (\S+)\ndata: (.*)", event)
        if not parts or json.loads(parts[2])["type"] != parts[1]:
            return f"no event with a name: {event[:200]!r}"
        names.append(parts[1])
    ends = [name in last for name in names]
    return None if ends and ends[-1] and not any(ends[:-1]) else f"a stream of {names}"


def check_stream(text: str, path: str) -> Optional[str]:
    """Of OpenAI's completions: events of JSON, then [DONE], or an error without one."""
    events = [one for one in text.split("\n\n") if one]
    if path in LAST_EVENTS:
        return check_named_events(events, LAST_EVENTS[path])
    if not events or not all(one.startswith("data: ") for one in events):
        return f"no stream of events: {text[:200]!r}"
    last = events.pop()
    parsed = [json.loads(one[6:]) for one in events]
    if last != "data: [DONE]":
        parsed.append(json.loads(last[6:]))
        return None if "error" in parsed[-1] else "a stream without an end"
    return None if all("choices" in one for one in parsed) else "an event without choices"


def check(api: Api, path: str, operation: Dict, status: int, kind: str, reply: bytes) -> Optional[str]:
    answer = operation["responses"].get(str(status))
    if answer is None:
        return f"a status that /openapi.json does not state: {sorted(operation['responses'])}"
    if kind.startswith("text/event-stream"):
        return check_stream(reply.decode(), path)
    if "content" not in answer:
        return None
    if not kind.startswith("application/json"):
        return f"of type {kind}"
    return api.fault(json.loads(reply), answer["content"]["application/json"]["schema"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with urllib.request.urlopen(os.environ["GATEWAY_URL"] + "/openapi.json") as reply:
        api = Api(json.loads(reply.read()))
    operations = [(path, method.upper(), operation) for path, methods in api.document["paths"].items()
                  for method, operation in methods.items()]
    weights = [20 if "requestBody" in operation else 1 for _, _, operation in operations]
    maker, client = Maker(api, options.seed), Client()
    statuses: Dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for number in range(options.count):
        path, method, operation = maker.random.choices(operations, weights)[0]
        target = path.replace("{id}", urllib.parse.quote(maker.value({"type": "string"}, "model") or "none", safe=""))
        body = None
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            made = maker.value(schema)
            if maker.random.random() < 0.35:
                made = maker.spoil(made)
            body = json.dumps(made).encode()
            if maker.random.random() < 0.02:
                body = body[:maker.random.randrange(len(body))]
        status, kind, reply = client.ask(method, target, body)
        statuses[path][status] += 1
        fault = check(api, path, operation, status, kind, reply)
        if fault:
            print(f"request {number} of seed {options.seed}: {method} {target} {(body or b'')[:2000]!r}\n"
                  f"{status} {reply[:600]!r}\n{fault}")
            return 1
    print(f"{options.count} requests of seed {options.seed}: every answer as /openapi.json states it")
    for path, counts in sorted(statuses.items()):
        print(path, dict(sorted(counts.items())))
    # Those that a model answered, or had no time to on a machine that is busy.
    taken = sum(counts[200] + counts[504] for path, counts in statuses.items() if "completions" in path)
    assert taken > options.count / 60, "too few requests came to a model to say anything"
    return 0


if __name__ == "__main__":
    sys.exit(main())
