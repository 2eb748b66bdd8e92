"""Greedy tokens of the demo pair through the whole server stack, on the device and on the CPU."""

import http.client
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Tuple

from machine import ROOT, Bundle, Clock, Failed, say
from report import Report

sys.path.insert(0, str(ROOT / "tests/e2e"))
from stack import Stack  # noqa: E402

CLIENTS = 8
# Two tokens whose log-probabilities on the CPU are closer than this are a tie of bf16 arithmetic: logits of about 10 are
# rounded by up to 2^-8 of themselves in each of a few places.
TIE_NATS = 0.1

Answer = List[Tuple[str, float, List[Tuple[str, float]]]]  # (token, log-probability, the two likeliest) each


def stack_on(bundle: Bundle, device: str, folder: Path) -> Stack:
    # Each server names how many sequences it admits; the device stands beside it.
    return Stack(Path(bundle.program("")), folder, {},
                 replaced={"  max_num_seqs: 16\n": f'  max_num_seqs: 16\n  device: "{device}"\n'})


def ask(port: int, question: Dict[str, Any]) -> Tuple[Answer, Dict[str, Any]]:
    body = {"model": "chat", "temperature": 0, "max_tokens": 24, "logprobs": True, "top_logprobs": 2,
            "messages": [{"role": "user", "content": f"{question['context']}\n{question['question']}"}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {text[:200]}")
    answer = json.loads(text)
    tokens = [(one["token"], one["logprob"], [(top["token"], top["logprob"]) for top in one["top_logprobs"]])
              for one in answer["choices"][0]["logprobs"]["content"]]
    return tokens, answer["aludel"]


def answers(bundle: Bundle, device: str, questions: List[Dict[str, Any]],
            clock: Clock) -> List[Tuple[Answer, Dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="aludel-parity-") as folder:
        stack = stack_on(bundle, device, Path(folder))
        try:
            stack.wait_until_ready()
            port = stack.ports["gateway"]["listen"]

            def answer(question: Dict[str, Any]) -> Tuple[Answer, Dict[str, Any]]:
                if clock.left() < 0:
                    raise Failed(f"{device}: its time went by before the {len(questions)} prompts were answered")
                return ask(port, question)

            with ThreadPoolExecutor(1 if bundle.small else CLIENTS) as pool:
                found = list(pool.map(answer, questions))
            stack.check()
            return found
        finally:
            stack.stop()


def gap_at_first_difference(ours: Answer, reference: Answer) -> float:
    """0 where they are the same; else by how much the CPU preferred its own token to the device's, infinite where the
    device's is not among its two likeliest."""
    for (token, _, _), (expected, logprob, top) in zip(ours, reference):
        if token != expected:
            return next((logprob - other for name, other in top if name == token), float("inf"))
    return 0.0 if len(ours) == len(reference) else float("inf")


def parity(bundle: Bundle, report: Report, clock: Clock) -> None:
    count = 4 if bundle.small else 200
    lines = (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[:count]
    questions = [json.loads(line) for line in lines]
    command = f"tests/gpu/run.sh --device {bundle.device} --only parity"
    with ThreadPoolExecutor(1 if bundle.small else 2) as pool:
        reference, ours = pool.map(lambda device: answers(bundle, device, questions, clock), ["cpu", bundle.device])
    remote = sum(about["plan"] == "remote" for _, about in ours)
    gaps = [gap_at_first_difference(mine[0], theirs[0]) for mine, theirs in zip(ours, reference)]
    same = sum(gap == 0 for gap in gaps)
    ties = [gap for gap in gaps if 0 < gap <= TIE_NATS]
    wrong = [i for i, gap in enumerate(gaps) if gap > TIE_NATS]
    report.add("greedy_parity", (same + len(ties)) / count, "share", "== 1", command, prompts=count, equal=same,
               ties=len(ties), largest_tie_nats=max(ties, default=0.0), handed_over=remote,
               differing_questions=wrong[:20])
    say(f"  {count} prompts, {remote} handed over: {same} the same, {len(ties)} apart at a tie, {len(wrong)} apart")
