"""What lm-eval's "local-completions" asks and reads, over the whole stack, started by stack.py: loglikelihoods in batches,
with texts and with token ids, a tiny multiple-choice task, and a rolling one. Their numbers are held against an
independent way to the same ones: every token by itself, as the only one that the model may generate."""

import json
import os
import random
import re
import sys
import urllib.error
import urllib.request
from operator import itemgetter
from typing import Dict, List, Tuple

URL = os.environ["GATEWAY_URL"]
MODEL = "chat"
# Where a CPU has AMX a library multiplies many rows of bf16: a token depends a little on how many there are.
LIBRARY = "amx_tile" in open("/proc/cpuinfo", encoding="utf-8").read()
TOLERANCE = 2e-2 if LIBRARY else 2e-3  # of one token, between a prefill of many rows and steps of one
AGAIN = 2e-2 if LIBRARY else 1e-6      # of a few, between one batch and another
QUESTIONS = 6


def post(path: str, body: Dict) -> Tuple[int, Dict]:
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def tokens_of(text: str) -> List[int]:
    status, reply = post("/tokenize", {"model": MODEL, "prompt": text})
    assert status == 200, reply
    return reply["tokens"]


def ask(prompts: List, max_tokens: int = 1) -> Dict:
    """The body of a loglikelihood request, field by field."""
    status, reply = post("/v1/completions", {"model": MODEL, "prompt": prompts, "temperature": 0, "max_tokens": max_tokens,
                                             "logprobs": 1, "seed": 1234, "echo": True})
    assert status == 200, reply
    return reply


def read(reply: Dict, contexts: List[int], end: int = -1) -> List[Tuple[float, bool]]:
    """Sum over the continuation, and whether all of it is what greedy decoding would say. The last token was generated."""
    results = []
    for choice, context in zip(sorted(reply["choices"], key=itemgetter("index")), contexts):
        stop = len(choice["logprobs"]["tokens"]) + end
        own = choice["logprobs"]["token_logprobs"][context:stop]
        tops = choice["logprobs"]["top_logprobs"][context:stop]
        results.append((sum(own), all(one == max(top.values()) for one, top in zip(own, tops))))
    return results


def one_by_one(ids: List[int], begin: int) -> List[float]:
    """Of each token from `begin` on: the model's own number for it, as the answer's first token, whatever else is likelier."""
    found = []
    for at in range(begin, len(ids)):
        status, reply = post("/v1/completions", {"model": MODEL, "prompt": ids[:at], "max_tokens": 1, "logprobs": 0,
                                                 "allowed_token_ids": [ids[at]], "ignore_eos": True,
                                                 "aludel": {"fidelity": "exact"}})
        assert status == 200, reply
        found.append(reply["choices"][0]["logprobs"]["token_logprobs"][0])
    return found


def loglikelihoods_are_the_models_own() -> None:
    pairs = [("The river of Kingley is the", " Orla"), ("Orla Pellson plays the harp. She", " plays the harp"),
             ("Igor drives a", " red car"), ("a", " b")]
    texts = [context + continuation for context, continuation in pairs]
    ids = [tokens_of(text) for text in texts]
    contexts = [len(tokens_of(context)) for context, _ in pairs]
    by_ids = ask(ids)
    assert by_ids["aludel"]["plan"] == "local" and by_ids["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, by_ids
    for choice, prompt, text in zip(by_ids["choices"], ids, texts):
        logprobs = choice["logprobs"]
        sizes = {len(logprobs[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
        assert sizes == {len(prompt) + 1}, (sizes, len(prompt))
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert all(isinstance(one, float) and one <= 0 for one in logprobs["token_logprobs"][1:]), logprobs
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"]), logprobs
        assert text in choice["text"], (text, choice["text"])
        begin = 1
        for found, wanted in zip(logprobs["token_logprobs"][begin:-1], one_by_one(prompt, begin)):
            assert abs(found - wanted) < TOLERANCE, (found, wanted, prompt)
    by_text = ask(texts)
    for one, other in zip(read(by_ids, contexts), read(by_text, contexts)):
        assert abs(one[0] - other[0]) < AGAIN and one[1] == other[1], (one, other)
    # Alone, again (the prefix cache has all of them by now), and with no token generated.
    for prompt, context, wanted in zip(ids, contexts, read(by_ids, contexts)):
        alone = ask([prompt], max_tokens=0)
        assert alone["usage"]["completion_tokens"] == 0 and alone["choices"][0]["finish_reason"] == "length", alone
        assert len(alone["choices"][0]["logprobs"]["tokens"]) == len(prompt)
        found = read(alone, [context], end=0)
        found = [(sum(alone["choices"][0]["logprobs"]["token_logprobs"][context:]), found[0][1])]
        assert abs(found[0][0] - wanted[0]) < AGAIN, (found, wanted)


def greedy_answers_are_told_from_others() -> None:
    prompt = tokens_of("The river of Kingley is the")
    status, reply = post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True,
                                             "return_token_ids": True, "aludel": {"fidelity": "exact"}})
    assert status == 200, reply
    said = reply["choices"][0]["token_ids"]
    other = said[:-1] + [said[-1] - 1 if said[-1] > 300 else said[-1] + 1]
    results = read(ask([prompt + said, prompt + other]), [len(prompt)] * 2)
    assert results[0][1] and not results[1][1], results
    assert results[0][0] > results[1][0], results


def a_task_is_scored() -> None:
    """Multiple choice: of three answers the likeliest; the questions are the demo's, and the model was trained on such."""
    lines = open("deploy/demo/questions.jsonl", encoding="utf-8").read().splitlines()
    questions = [json.loads(line) for line in lines[:QUESTIONS]]
    answers = [re.split(r"[\s.]", str(one["answer"]))[0] if isinstance(one.get("answer"), str) else str(one["answers"][0])
               for one in questions]
    right = 0
    for at, question in enumerate(questions):
        choices = [answers[at]] + random.Random(at).sample([one for one in answers if one != answers[at]], 2)
        context = f"{question['context']}\n{question['question']} "
        prompts = [context + choice for choice in choices]
        contexts = [min(len(tokens_of(context)), len(tokens_of(prompt)) - 1) for prompt in prompts]
        sums = [one[0] for one in read(ask(prompts), contexts)]
        right += sums.index(max(sums)) == 0
    print(f"{right} of {len(questions)} right")


def rolling_windows_are_whole() -> None:
    ids = random.Random(5).choices(tokens_of(" ".join(f"The {n}th keeper wrote {n * 37}." for n in range(60))), k=400)
    whole = ask([ids])["choices"][0]["logprobs"]["token_logprobs"][1:-1]
    assert len(whole) == 399 and all(-100 < one <= 0 for one in whole)
    windows = ask([ids[:200], ids[:300], ids[:400]])["choices"]
    for size, choice in zip((200, 300, 400), windows):
        found = choice["logprobs"]["token_logprobs"][1:-1]
        assert max(abs(a - b) for a, b in zip(found, whole[:size - 1])) < TOLERANCE


def main() -> int:
    for case in (loglikelihoods_are_the_models_own, greedy_answers_are_told_from_others, a_task_is_scored,
                 rolling_windows_are_whole):
        case()
        print(f"ok {case.__name__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
