"""A model that thinks, over real servers in every API: the demo pair with two tokens of its vocabulary renamed to <think> and
</think>, and a template that knows them. Nothing was trained, so that what ends the thoughts is their budget, and what
gives the answer its shape is a constraint behind them.

    thinking_test.py --bin build/release/bin
"""

import argparse
import json
import re
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Tuple

from stack import ROOT, Stack

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>"
    "{% if message['reasoning_content'] %}<think>\n{{ message['reasoning_content'] }}\n</think>\n\n{% endif %}"
    "{{ message['content'] }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}")
ANSWER = r"[a-c]{3}-\d{2}"
HI = [{"role": "user", "content": "Igor drives a red car. What does Igor drive?"}]


def rename_tokens(tokenizer: Dict[str, Any]) -> Tuple[int, int]:
    """The last two merges' tokens become <think> and </think>."""
    ids: List[int] = []
    for content in ("</think>", "<think>"):
        left, right = tokenizer["model"]["merges"].pop().split(" ")
        ids.append(tokenizer["model"]["vocab"].pop(left + right))
        tokenizer["added_tokens"].append({"id": ids[-1], "content": content, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": False})
    return ids[1], ids[0]


def copy_demo(folder: Path) -> Tuple[int, int]:
    ids = (-1, -1)
    for source in (ROOT / "deploy/demo").iterdir():
        if not source.is_dir():
            continue
        (folder / source.name).mkdir()
        for file in source.iterdir():
            (folder / source.name / file.name).symlink_to(file)
    for name in ("base", "chat", "json"):
        tokenizer_file, config_file = folder / name / "tokenizer.json", folder / name / "tokenizer_config.json"
        tokenizer, config = json.loads(tokenizer_file.read_text()), json.loads(config_file.read_text())
        ids = rename_tokens(tokenizer)
        config["chat_template"] = TEMPLATE
        for file, content in ((tokenizer_file, tokenizer), (config_file, config)):
            file.unlink()
            file.write_text(json.dumps(content))
    return ids


class Client:
    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, path: str, body: Dict[str, Any]) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps({"model": "chat", "temperature": 0, **body}).encode(),
                                         {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=120)

    def ask(self, path: str, body: Dict[str, Any]) -> Tuple[int, Dict[str, Any]]:
        try:
            with self.open(path, body) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def events(self, path: str, body: Dict[str, Any]) -> List[Dict[str, Any]]:
        with self.open(path, {**body, "stream": True}) as reply:
            lines = reply.read().decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def check_chat(client: Client, ids: Tuple[int, int]) -> None:
    for budget in (0, 1, 12):
        body = {"messages": HI, "max_tokens": 100, "thinking_token_budget": budget, "guided_regex": ANSWER,
                "return_token_ids": True}
        status, reply = client.ask("/v1/chat/completions", body)
        assert status == 200, reply
        choice = reply["choices"][0]
        message = choice["message"]
        assert re.fullmatch(ANSWER, message["content"]), message
        assert choice["token_ids"].index(ids[1]) == budget, (budget, choice["token_ids"])
        assert choice["finish_reason"] == "stop", choice
        assert ("reasoning_content" in message) == (budget > 1) or budget == 1, message
        thought, said = "", ""
        for event in client.events("/v1/chat/completions", body):
            for chunk in event["choices"]:
                thought += chunk["delta"].get("reasoning_content") or ""
                said += chunk["delta"].get("content") or ""
        assert (thought, said) == (message.get("reasoning_content", ""), message["content"]), (thought, said, message)
        details = reply["usage"].get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        assert details == budget + 1, reply["usage"]


def check_switch(client: Client) -> None:
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        status, reply = client.ask("/v1/chat/completions", {"messages": HI, "max_tokens": 50, "guided_regex": ANSWER, **off})
        assert status == 200, reply
        message = reply["choices"][0]["message"]
        assert "reasoning_content" not in message and re.fullmatch(ANSWER, message["content"]), message
    # Without a budget or an end the thoughts go on to the limit.
    status, reply = client.ask("/v1/chat/completions", {"messages": HI, "max_tokens": 12, "ignore_eos": True})
    message = reply["choices"][0]["message"]
    assert status == 200 and message["reasoning_content"] and message["content"] == "", reply
    assert reply["choices"][0]["finish_reason"] == "length", reply


def check_schema(client: Client) -> None:
    schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"],
              "additionalProperties": False}
    body = {"messages": HI, "max_tokens": 100, "thinking_token_budget": 6,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    status, reply = client.ask("/v1/chat/completions", body)
    assert status == 200, reply
    assert set(json.loads(reply["choices"][0]["message"]["content"])) == {"sure"}, reply


def check_messages(client: Client) -> None:
    body = {"messages": HI, "max_tokens": 100, "thinking": {"type": "enabled", "budget_tokens": 9}, "guided_regex": ANSWER}
    status, reply = client.ask("/v1/messages", body)
    assert status == 200, reply
    assert [block["type"] for block in reply["content"]] == ["thinking", "text"], reply
    assert reply["content"][0]["thinking"] and re.fullmatch(ANSWER, reply["content"][1]["text"]), reply
    pieces = {"thinking": "", "text": ""}
    for event in client.events("/v1/messages", body):
        if event["type"] == "content_block_delta":
            kind = event["delta"]["type"].rsplit("_", 1)[0]
            pieces[kind] += event["delta"][kind]
    assert pieces == {"thinking": reply["content"][0]["thinking"], "text": reply["content"][1]["text"]}, pieces
    # A conversation goes on with its blocks.
    status, more = client.ask("/v1/messages", {**body, "messages": HI + [
        {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "Sure?"}]})
    assert status == 200 and more["usage"]["input_tokens"] > 0, more
    status, reply = client.ask("/v1/messages", {**body, "thinking": {"type": "disabled"}})
    assert [block["type"] for block in reply["content"]] == ["text"], reply


def check_responses(client: Client) -> None:
    body = {"input": HI[0]["content"], "max_output_tokens": 100, "thinking_token_budget": 9, "regex": ANSWER}
    status, reply = client.ask("/v1/responses", body)
    assert status == 200, reply
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"], reply
    thought, said = (item["content"][0]["text"] for item in reply["output"])
    assert thought and re.fullmatch(ANSWER, said), reply
    events = client.events("/v1/responses", body)
    assert "".join(e["delta"] for e in events if e["type"] == "response.reasoning_text.delta") == thought, events
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == said, events
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"], events[-1]
    status, more = client.ask("/v1/responses", {**body, "previous_response_id": reply["id"], "input": "Sure?"})
    assert status == 200 and more["usage"]["input_tokens"] > reply["usage"]["input_tokens"], more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-thinking-") as name:
        folder = Path(name)
        (folder / "demo").mkdir()
        ids = copy_demo(folder / "demo")
        stack = Stack(options.bin.resolve(), folder, {}, replaced={"deploy/demo/": f"{folder}/demo/"})
        try:
            stack.wait_until_ready()
            client = Client(stack.url)
            check_chat(client, ids)
            check_switch(client)
            check_schema(client)
            check_messages(client)
            check_responses(client)
            stack.check()
        except Exception:
            print(stack.log_tails(), file=sys.stderr)
            raise
        finally:
            stack.stop()
    print("thoughts are apart from the answer in every API, and end with their budget")
    return 0


if __name__ == "__main__":
    sys.exit(main())
