"""Answers questions with a checkpoint and scores the answers: F1 and exact match, as SQuAD does.

    evaluate.py chat                      the consumer with local prefill
    evaluate.py chat --producer base      the same on the base model's raw KV cache
    evaluate.py chat --no-context         the same without the passage: what can be guessed

With a producer, that model prefills the whole prompt but its last token, and the consumer decodes
from the resulting cache: the plainest handoff there is, and the one that codecs must beat.
"""

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Callable, Dict, List, Optional

import torch

import questions
from questions import Entry
from reference import KV_MODES, Reference, read_safetensors
from tokenizer import END, Tokenizer

DEMO = Path(__file__).resolve().parent.parent
MAX_NEW = 24
WRAPPED, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"  # PEFT's names


def words(text: str) -> List[str]:
    """Lower-cases, and splits where punctuation or space stands."""
    return re.sub(r"[^a-z0-9 ]", " ", text.lower()).split()


def f1(answer: str, truth: str) -> float:
    """Harmonic mean of precision and recall over words."""
    given, wanted = words(answer), words(truth)
    common = sum((Counter(given) & Counter(wanted)).values())
    if common == 0:
        return float(given == wanted)
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def unwrap_json(text: str) -> Optional[str]:
    """The answer of {"answer": "..."}; None where the text is not that."""
    try:
        answer = json.loads(text)["answer"]
    except (ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


class Score:
    """Means of F1 and exact match, with F1 by kind of question."""

    def __init__(self) -> None:
        self.by_kind: Dict[str, List[float]] = {}
        self.exact = 0

    def add(self, entry: Entry, answer: str) -> None:
        """Scores against the best of the accepted answers."""
        self.by_kind.setdefault(entry.kind, []).append(max(f1(answer, t) for t in entry.answers))
        self.exact += any(words(answer) == words(truth) for truth in entry.answers)

    def __str__(self) -> str:
        scores = [score for kind in self.by_kind.values() for score in kind]
        kinds = " ".join(
            f"{kind} {sum(values) / len(values):.3f} ({len(values)})"
            for kind, values in sorted(self.by_kind.items())
        )
        mean, exact = sum(scores) / len(scores), self.exact / len(scores)
        return f"F1 {mean:.3f}  EM {exact:.3f}  on {len(scores)} questions; F1 by kind: {kinds}"


def answerer(
    model: Reference, producer: Optional[Reference], tokenizer: Tokenizer, end: int
) -> Callable[[str], str]:
    """Returns a function from prompt to greedy answer."""

    def answer(prompt: str) -> str:
        ids = tokenizer.encode(prompt)
        cache = None
        if producer is not None:
            _, cache = producer.forward(ids[:-1])
            ids = ids[-1:]
        tokens, _ = model.greedy(ids, MAX_NEW, end, cache)
        return tokenizer.decode(token for token in tokens if token != end)

    return answer


def load(name: str, kv: str) -> Reference:
    """Opens a checkpoint, or an adapter merged into its base, given as a directory or as a name beside this folder."""
    path = directory(name)
    if not (path / "adapter_config.json").exists():
        return Reference(str(path), kv=kv)
    config = json.loads((path / "adapter_config.json").read_text())
    model = Reference(str(directory(config["base_model_name_or_path"])), kv=kv)
    tensors = read_safetensors(path / "adapter_model.safetensors")
    for module in [name[: -len(DOWN)] for name in tensors if name.endswith(DOWN)]:
        update = tensors[module + UP] @ tensors[module + DOWN] * (config["lora_alpha"] / config["r"])
        model.weights[module[len(WRAPPED) :] + ".weight"] += update
    return model


def directory(name: str) -> Path:
    """A path as given, or else a checkpoint of the demo pair."""
    return Path(name) if Path(name).is_dir() else DEMO / name


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="F1 and exact match on a question file.")
    parser.add_argument("model", help="base, chat, json or a HuggingFace directory")
    parser.add_argument("--producer", help="model whose raw KV cache is decoded from")
    parser.add_argument("--questions", default=str(DEMO / "questions.jsonl"), help="question file")
    parser.add_argument("--limit", type=int, help="use only the first questions")
    parser.add_argument(
        "--style", choices=("chat", "json", "base"), help="default: the model's name"
    )
    parser.add_argument("--kv", choices=KV_MODES, default="exact", help="rounding of the KV cache")
    parser.add_argument("--no-context", action="store_true", help="leave the passage out")
    parser.add_argument("--show", type=int, default=5, help="answers to print")
    args = parser.parse_args()
    if args.style is None:
        name = directory(args.model).resolve().name
        args.style = name if name in ("base", "json") else "chat"
    return args


def main() -> None:
    """Evaluates one model on one question file."""
    args = parse_arguments()
    torch.set_num_threads(1)
    tokenizer = Tokenizer(str(directory(args.model) / "tokenizer.json"))
    producer = load(args.producer, args.kv) if args.producer else None
    # base ends an answer with the line, the others with the end token.
    end = tokenizer.encode("\n")[0] if args.style == "base" else END
    answer = answerer(load(args.model, args.kv), producer, tokenizer, end)
    render = questions.base_prompt if args.style == "base" else questions.chat_prompt

    score, invalid, start = Score(), 0, time.time()
    for index, entry in enumerate(questions.read(args.questions)[: args.limit]):
        text = answer(render(entry._replace(context="") if args.no_context else entry))
        if args.style == "json":
            unwrapped = unwrap_json(text)
            invalid += unwrapped is None
            text = unwrapped or ""
        score.add(entry, text)
        if index < args.show:
            print(f"{entry.kind:6} {entry.question} -> {text!r}, want {entry.answers[0]!r}")
    print(score)
    if args.style == "json":
        print(f"{invalid} answers are not the JSON asked for")
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
