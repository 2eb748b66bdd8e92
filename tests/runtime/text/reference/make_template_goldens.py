#!/usr/bin/env python3
"""Renders templates/*.jinja over conversations, and templates/snippets.json, with Jinja2 set up as transformers sets it
up for chat templates, and writes templates/golden.json. Needs Debian's python3-jinja2. check_templates.mjs compares
HuggingFace's JavaScript engine with the same file."""
import json
import os

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} only marks text for training masks."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(source, context):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    defaults = {"tools": None, "documents": None, "add_generation_prompt": False,
                "bos_token": "<s>", "eos_token": "</s>"}
    try:
        return {"text": environment.from_string(source).render(**{**defaults, **context})}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": "syntax", "line": error.lineno}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return {"error": "raised", "message": str(error)} if raised else {"error": "run"}
    except SyntaxError:  # of the Python that Jinja2 makes
        return {"error": "syntax", "line": 1}
    except (TypeError, ValueError, ZeroDivisionError):
        return {"error": "run"}


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a \"place\" <now> & later",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Città"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["place"]}, "return": {"type": "string"}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Time", "parameters": {"type": "object", "properties": {}}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, identifier="abcDEF123"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "  Be brief.\n"}
ASKS = assistant("", tool_calls=[call("weather", {"place": "Zürich", "unit": "°C"})])
REPLY = {"role": "tool", "content": "{\"sky\": \"clear\"}", "name": "weather", "tool_call_id": "abcDEF123"}
THINKS = assistant("<think>\nhm, \"so\"\n</think>\n\nFine.")
CONVERSATIONS = {
    "one_user": [user("Hello\n  there ")],
    "system_user": [SYSTEM, user("Hi")],
    "turns": [SYSTEM, user("One"), assistant("  Two "), user("Three"), assistant("Four"), user("Five 😀 ü")],
    "ends_with_assistant": [user("One"), assistant("Two")],
    "thinking": [user("One"), THINKS, user("Two"), THINKS],
    "reasoning_field": [user("One"), assistant("Two", reasoning_content="because")],
    "tool_call": [user("Weather?"), ASKS],
    "tool_reply": [SYSTEM, user("Weather?"), ASKS, REPLY],
    "tool_round": [user("Weather?"), ASKS, REPLY, assistant("Clear."), user("Thanks")],
    "two_replies": [user("Both?"), assistant("Looking", tool_calls=[call("weather", {"place": "A"}), call("clock", {}, "ghiJKL456")]),
                    REPLY, {"role": "tool", "content": "12:00", "tool_call_id": "ghiJKL456"}],
    "wrong_order": [assistant("No"), user("Yes")],
    "unknown_role": [user("a"), {"role": "critic", "content": "b"}],
    "bad_call_id": [user("a"), assistant("", tool_calls=[call("clock", {}, "short")])],
    "parts": [user([{"type": "text", "text": "Look"}, {"type": "image"}]), assistant("I see"), user([{"type": "audio"}])],
    "empty_contents": [user(""), assistant(""), user("x"), assistant("y")],
}
OPTIONS = [{}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "tools": [WEATHER, CLOCK]},
           {"add_generation_prompt": True, "enable_thinking": False, "tools": [CLOCK], "tools_in_user_message": False,
            "date_string": "1 January 2025"}]


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
    cases = []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            source = file.read()
        for conversation, messages in CONVERSATIONS.items():
            for number, options in enumerate(OPTIONS):
                cases.append({"template": name, "conversation": conversation, "option": number,
                              **render(source, {"messages": messages, **options})})
    with open(os.path.join(folder, "snippets.json"), encoding="utf-8") as file:
        snippets = json.load(file)
    golden = {"conversations": CONVERSATIONS, "options": OPTIONS, "cases": cases,
              "snippets": [{"source": source, **render(source, {"messages": CONVERSATIONS["turns"]})} for source in snippets]}
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        file.write("{\n")
        for key in ("conversations", "options"):
            file.write(f"{json.dumps(key)}: {json.dumps(golden[key], ensure_ascii=False)},\n")
        for key, end in (("cases", ",\n"), ("snippets", "\n}\n")):
            file.write(f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in golden[key]) + "\n]" + end)
    print(len(cases), "renderings,", len(snippets), "snippets")


if __name__ == "__main__":
    main()
