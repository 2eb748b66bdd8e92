"""What an answer loses, told by the servers that give it: a chat answer of one given text, token by token, beside what the
decode server's own model says of the same tokens when it has computed all in front of them itself (`prompt_logprobs`).

The text is given by a choice of one. The log-probabilities of an answer are the model's own, before that choice rules anything out.
"""

import dataclasses
import http.client
import json
import math
import time
from typing import Any, Dict, Iterable, List, Tuple

TOP = 20  # the most that an answer lists, and a prompt's
ROUNDING = 1e-6  # what probabilities made of float32 logarithms may miss of 1

Logprobs = Dict[str, float]  # by the spelling of a token


@dataclasses.dataclass
class Served:
    """An answer as it came. Times are milliseconds since the request began."""

    prompt: List[int] = dataclasses.field(default_factory=list)
    tokens: List[int] = dataclasses.field(default_factory=list)
    times: List[float] = dataclasses.field(default_factory=list)  # [tokens]
    lists: List[Logprobs] = dataclasses.field(default_factory=list)  # [tokens]
    report: Dict[str, Any] = dataclasses.field(default_factory=dict)  # its `aludel`


def listed(entries: Iterable[Tuple[str, float]]) -> Logprobs:
    """Tokens of one spelling are one."""
    together: Logprobs = {}
    for token, logprob in entries:
        if token in together:
            high, low = max(together[token], logprob), min(together[token], logprob)
            logprob = high + math.log1p(math.exp(low - high))
        together[token] = logprob
    return together


def loss(oracle: Logprobs, served: Logprobs) -> Tuple[float, float]:
    """KL(oracle || served) in nats of the tokens that both lists hold and of all others together, and what the oracle gives to
    these others. Never above the KL over the whole vocabulary (log sum inequality), but for ROUNDING."""
    both = sorted(oracle.keys() & served.keys())
    p = [math.exp(oracle[token]) for token in both]
    q = [math.exp(served[token]) for token in both]
    others = [max(ROUNDING, 1 - math.fsum(cells)) for cells in (p, q)]
    cells = list(zip(p, q)) + [(others[0], others[1])]
    return math.fsum(a * math.log(a / b) for a, b in cells if a > 0), others[0]


def post(port: int, path: str, body: Dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status}: {response.read().decode()}")
    return response


def ask(port: int, model: str, message: str, text: str, about: Dict[str, Any], salt: str) -> Served:
    """`message` is answered by `text`. No cache is shared with a request of another salt."""
    body = {"model": model, "messages": [{"role": "user", "content": message}], "temperature": 0, "max_tokens": 600,
            "structured_outputs": {"choice": [text]}, "logprobs": True, "top_logprobs": TOP, "return_token_ids": True,
            "stream": True, "cache_salt": salt, "aludel": about}
    served, said = Served(), ""
    begin = time.monotonic()
    for line in post(port, "/v1/chat/completions", body):
        if not line.startswith(b"data: {"):
            continue
        now = 1e3 * (time.monotonic() - begin)
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"the answer ended: {event['error']}")
        served.prompt = event.get("prompt_token_ids", served.prompt)
        served.report = event.get("aludel", served.report)
        for choice in event.get("choices", []):
            said += choice["delta"].get("content") or ""
            served.tokens += choice.get("token_ids", [])
            for entry in (choice.get("logprobs") or {}).get("content", []):
                served.times.append(now)
                served.lists.append(listed((one["token"], one["logprob"]) for one in entry["top_logprobs"]))
    if said != text or len(served.tokens) != len(served.lists) or not served.prompt:
        raise RuntimeError(f"{len(served.tokens)} tokens with {len(served.lists)} lists say {said!r}, want {text!r}")
    return served


def losses(port: int, model: str, served: Served) -> List[Tuple[float, float]]:
    """`loss` of each token of the answer."""
    body = {"model": model, "prompt": served.prompt + served.tokens, "max_tokens": 0, "prompt_logprobs": TOP}
    choice = json.loads(post(port, "/v1/completions", body).read())["choices"][0]
    own = choice["prompt_logprobs"][len(served.prompt):]
    if len(own) != len(served.tokens):
        raise RuntimeError(f"{len(own)} tokens were scored, want {len(served.tokens)}")
    return [loss(listed((one["decoded_token"], one["logprob"]) for one in position.values()), of_answer)
            for position, of_answer in zip(own, served.lists)]
