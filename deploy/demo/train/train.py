"""Trains the demo pair's models on generated text, for a given time, on two CPU cores.

Two single-thread processes share the parameters: each computes the gradient of half a batch, then
updates its half of the parameters with AdamW. (One process with an OpenMP team of two is slower by
far when another program shares a core: every operation ends in a barrier.) A curriculum of phases
goes from short to long documents; the learning rate warms up over 100 steps, stays until 40 % of
the time, and falls along a cosine to 5 %. README.md has the commands of the committed checkpoints.
"""

import argparse
import functools
import json
import math
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

import model as demo_model
from generator import Generator
from tokenizer import ASSISTANT, BEGIN, END, USER, Tokenizer

HERE = Path(__file__).resolve().parent

WARM_UP_STEPS = 100
CONSTANT_SHARE = 0.4
FINAL_RATE = 0.05
BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
SAVE_EVERY_S = 200

# What a token is, for the report: its accuracy tells how training goes. 0 is anything else.
ONE, TWO, BRIDGE, RESTATED, REPEATED = 1, 2, 3, 8, 9
KIND_NAMES = {
    0: "text",
    ONE: "one",
    TWO: "two",
    BRIDGE: "bridge",
    RESTATED: "restated",
    REPEATED: "repeated",
}
QUESTION_KINDS = {"one": ONE, "two": TWO, "bridge": BRIDGE}


@dataclass(frozen=True)
class Phase:
    """What to train on from `start`, a share of the time, on.

    Documents have `tokens` tokens, steps `batch` documents, worlds a number of facts between two.
    """

    start: float
    tokens: int
    batch: int
    fewest_facts: int
    most_facts: int


BASE_PHASES = [
    Phase(0, 64, 64, 2, 4),
    Phase(0.11, 96, 42, 3, 7),
    Phase(0.25, 192, 22, 5, 16),
    Phase(0.5, 320, 12, 8, 26),
    Phase(0.75, 448, 10, 12, 36),
]
CHAT_PHASES = [
    Phase(0, 192, 21, 4, 16),
    Phase(0.35, 320, 12, 8, 26),
    Phase(0.7, 448, 9, 12, 36),
]
PHASES = {"base": BASE_PHASES, "chat": CHAT_PHASES, "json": CHAT_PHASES}


@dataclass
class Document:
    """Token ids with a loss weight and a kind for each."""

    ids: List[int] = field(default_factory=lambda: [BEGIN])
    weights: List[float] = field(default_factory=lambda: [0.0])
    kinds: List[int] = field(default_factory=lambda: [0])

    def add(self, ids: Sequence[int], weight: float, kind: int = 0) -> None:
        """Appends tokens of one weight and kind."""
        self.ids.extend(ids)
        self.weights.extend([weight] * len(ids))
        self.kinds.extend([kind] * len(ids))

    def cut(self, tokens: int) -> "Document":
        """The first `tokens` tokens."""
        return Document(self.ids[:tokens], self.weights[:tokens], self.kinds[:tokens])


class DocumentWriter:
    """Draws training documents of one mode. Answers weigh 1, passages `passage_weight`.

    Base documents are passages with questions; for variety some are passages alone, some are
    passages stated twice, and some are random tokens repeated, which teaches copying directly.
    """

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        mode: str,
        passage_weight: float,
        hop: float,
    ) -> None:
        self.generator = generator
        self.random = generator.random
        self.encode = tokenizer.encode
        self.vocab = len(tokenizer.vocab)
        self.mode = mode
        self.passage_weight = passage_weight
        self.hop = hop

    def draw(self, phase: Phase) -> Document:
        """Returns a document of exactly phase.tokens + 1 tokens: inputs and shifted targets."""
        document = Document()
        length = phase.tokens + 1
        flavor = self.random.random()
        if self.mode == "base" and flavor < 0.08:
            self._add_repetition(document, length)
            return document.cut(length)
        while len(document.ids) < length:
            if len(document.ids) > 1:
                document.add([END, BEGIN], 0.1)
            facts = self.generator.world(self.random.randint(phase.fewest_facts, phase.most_facts))
            most_fillers = max(0, phase.tokens // 30)
            fillers = self.random.choice([0, self.random.randint(0, most_fillers)])
            passage = self.generator.passage(facts, fillers)
            if self.mode == "base":
                self._add_base(document, passage, facts, flavor)
            else:
                self._add_chat(document, passage, facts)
        return document.cut(length)

    def _add_repetition(self, document: Document, length: int) -> None:
        """A random string of tokens, again and again; its first copy cannot be predicted."""
        count = self.random.randint(6, max(8, min(60, (length - 1) // 3)))
        alphabet = self.random.sample(range(300, self.vocab), self.random.choice([24, 60, 200]))
        tokens = [self.random.choice(alphabet) for _ in range(count)]
        document.add(tokens, 0.02)
        while len(document.ids) < length:
            document.add(tokens, 0.5, REPEATED)

    def _add_base(self, document: Document, passage: str, facts: list, flavor: float) -> None:
        document.add(self.encode(passage), self.passage_weight)
        document.add(self.encode("\n"), self.passage_weight)
        if flavor < 0.13:
            return
        if flavor < 0.33:
            again = self.generator.restatement(facts)
            document.add(self.encode(again + "\n"), 0.35, RESTATED)
            return
        for text, answer, kind in self.generator.questions(facts, "base", self.hop):
            asked = self.encode(f"Question: {text}\nAnswer:")
            document.add(asked, self.passage_weight)
            document.add(self.encode(" " + answer), 1.0, QUESTION_KINDS[kind])
            document.add(self.encode("\n"), 1.0)

    def _add_chat(self, document: Document, passage: str, facts: list) -> None:
        """A conversation: the passage and a question, then a user message for each other one."""
        document.add([USER], 0.02)
        document.add(self.encode(passage + "\n"), self.passage_weight * 0.5)
        for index, (text, answer, kind) in enumerate(
            self.generator.questions(facts, "chat", self.hop)
        ):
            if index:
                document.add([USER], 0.02)
            document.add(self.encode(text), self.passage_weight)
            document.add([ASSISTANT], 0.1)
            if self.mode == "json":
                answer = json.dumps({"answer": answer})
            document.add(self.encode(answer), 1.0, QUESTION_KINDS[kind])
            document.add([END], 1.0)


class Tally:
    """Accuracy and cross-entropy by kind of token since the last report."""

    def __init__(self) -> None:
        self.sums: Dict[int, List[float]] = {}

    def add(self, logits: Tensor, targets: Tensor, losses: Tensor, kinds: Tensor) -> None:
        """Counts one batch; all arguments are flat over tokens."""
        right = logits.argmax(-1) == targets
        for kind in KIND_NAMES:
            chosen = kinds == kind
            if not bool(chosen.any()):
                continue
            sums = self.sums.setdefault(kind, [0, 0, 0])
            sums[0] += int(chosen.sum())
            sums[1] += int(right[chosen].sum())
            sums[2] += float(losses[chosen].sum())

    def __str__(self) -> str:
        return " ".join(
            f"{KIND_NAMES[kind]}: acc {right / count:.3f} ce {loss / count:.2f}"
            for kind, (count, right, loss) in sorted(self.sums.items())
        )


@dataclass
class Shared:
    """What the processes share, in shared memory."""

    parameters: Tensor  # flat
    gradients: List[Tensor]  # one flat tensor per process
    progress: Tensor  # [1], share of the time that has passed; process 0 keeps it
    barrier: Any


class Worker:
    """One of the training processes. The four barriers of a step are marked in run()."""

    def __init__(self, args: argparse.Namespace, rank: int, shared: Shared) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(args.seed)
        self.args, self.rank, self.shared = args, rank, shared
        self.workers = len(shared.gradients)
        self.model = demo_model.Model()
        self._share_parameters()
        total = shared.parameters.numel()
        share = total // self.workers
        stop = total if rank == self.workers - 1 else (rank + 1) * share
        self.mine = slice(rank * share, stop)
        self.decay = self._decay()[self.mine].clone()
        self.mean = torch.zeros(stop - self.mine.start)
        self.square = torch.zeros(stop - self.mine.start)
        generator = Generator(args.seed * 1000 + 7 + rank * 7919)
        self.writer = DocumentWriter(
            generator, Tokenizer(args.tokenizer), args.mode, args.passage_weight, args.hop
        )
        self.tally = Tally()
        self.step = self.tokens = 0

    def run(self) -> None:
        """Trains until the time is up; process 0 reports and saves."""
        start = saved = time.time()
        self.shared.barrier.wait()  # parameters are initialized
        while True:
            if self.rank == 0:
                self.shared.progress[0] = (time.time() - start) / self.args.seconds
            self.shared.barrier.wait()  # all see the same progress
            progress = float(self.shared.progress[0])
            if progress >= 1:
                break
            self._gradient([phase for phase in self.args.phases if phase.start <= progress][-1])
            self.shared.barrier.wait()  # gradients are complete
            norm = self._update(self._rate(progress))
            if self.rank == 0 and (self.step in (5, 20) or self.step % 50 == 0):
                self._report(time.time() - start, norm)
            self.shared.barrier.wait()  # parameters are complete
            if self.rank == 0 and time.time() - saved > SAVE_EVERY_S:
                self._save(f"{self.args.out}.{int(progress * 100)}")
                saved = time.time()
        if self.rank == 0:
            self._save(self.args.out)
            print(
                f"{self.args.out}: {self.step} steps, {self.tokens / 1e6:.2f} M tokens", flush=True
            )

    def _share_parameters(self) -> None:
        """Moves the model's parameters and gradients into the shared flat tensors."""
        if self.rank == 0 and self.args.init:
            self.model = demo_model.load(Path(self.args.init))
        offset = 0
        for parameter in self.model.parameters():
            place = slice(offset, offset + parameter.numel())
            if self.rank == 0:
                self.shared.parameters[place].copy_(parameter.data.reshape(-1))
            gradient = self.shared.gradients[self.rank][place]
            parameter.data = self.shared.parameters[place].view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
            offset = place.stop

    def _decay(self) -> Tensor:
        """Weight decay per parameter: matrices only, norms are left alone."""
        parts = [
            torch.full((p.numel(),), self.args.weight_decay if p.dim() > 1 else 0.0)
            for p in self.model.parameters()
        ]
        return torch.cat(parts)

    def _rate(self, progress: float) -> float:
        rate = self.args.lr * min(1, (self.step + 1) / WARM_UP_STEPS)
        if progress < CONSTANT_SHARE:
            return rate
        turn = math.pi * (progress - CONSTANT_SHARE) / (1 - CONSTANT_SHARE)
        return rate * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(turn)))

    def _gradient(self, phase: Phase) -> None:
        """Computes the gradient of this process's part of a batch."""
        count = max(1, phase.batch // self.workers)
        documents = [self.writer.draw(phase) for _ in range(count)]
        ids = torch.tensor([document.ids for document in documents])
        weights = torch.tensor([document.weights for document in documents])[:, 1:].reshape(-1)
        kinds = torch.tensor([document.kinds for document in documents])[:, 1:].reshape(-1)
        targets = ids[:, 1:].reshape(-1)
        logits = self.model(ids[:, :-1]).flatten(0, 1).float()
        losses = functional.cross_entropy(logits, targets, reduction="none")
        self.shared.gradients[self.rank].zero_()
        ((losses * weights).sum() / weights.sum()).backward()
        if self.rank == 0:
            with torch.no_grad():
                self.tally.add(logits, targets, losses, kinds)
            self.tokens += targets.numel() * self.workers

    @torch.no_grad()
    def _update(self, rate: float) -> float:
        """AdamW on this process's part of the parameters; returns the gradient's norm."""
        gradient = functools.reduce(torch.add, self.shared.gradients) / self.workers
        norm = float(gradient.norm())
        gradient = gradient[self.mine]
        if norm > MAX_GRADIENT_NORM:
            gradient.mul_(MAX_GRADIENT_NORM / norm)
        self.step += 1
        self.mean.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        parameters = self.shared.parameters[self.mine]
        parameters.sub_(self.decay * parameters, alpha=rate)
        scale = (self.square / (1 - BETAS[1] ** self.step)).sqrt_().add_(1e-8)
        parameters.addcdiv_(self.mean, scale, value=-rate / (1 - BETAS[0] ** self.step))
        return norm

    def _report(self, elapsed: float, norm: float) -> None:
        speed = self.tokens / elapsed
        print(
            f"step {self.step} {elapsed:.0f} s, {self.tokens / 1e6:.2f} M tokens, {speed:.0f} tok/s"
            f", gradient {norm:.2f} | {self.tally}",
            flush=True,
        )
        self.tally = Tally()

    def _save(self, path: str) -> None:
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        torch.save(state, path)


def work(args: argparse.Namespace, rank: int, shared: Shared) -> None:
    """Entry point of a training process."""
    try:
        Worker(args, rank, shared).run()
    except BaseException:
        shared.barrier.abort()  # or the others would wait for ever
        raise


def parse_phases(text: str) -> List[Phase]:
    """Reads [[start, tokens, batch, fewest_facts, most_facts], ...]."""
    return [Phase(*values) for values in json.loads(text)]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Train a model of the demo pair.")
    parser.add_argument("--mode", choices=sorted(PHASES), default="base", help="what to speak")
    parser.add_argument("--seconds", type=float, default=2100, help="how long to train")
    parser.add_argument("--lr", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--init", help="checkpoint or HuggingFace directory to start from")
    parser.add_argument("--out", default="base.pt", help="checkpoint to write")
    parser.add_argument("--seed", type=int, default=1, help="seed of initialization and text")
    parser.add_argument(
        "--phases", type=parse_phases, help="curriculum as JSON: " + parse_phases.__doc__
    )
    parser.add_argument(
        "--passage-weight", type=float, default=0.15, help="loss weight of passages"
    )
    parser.add_argument("--hop", type=float, default=0.2, help="share of two-hop questions")
    parser.add_argument("--weight-decay", type=float, default=0.05, help="decay of matrices")
    parser.add_argument("--workers", type=int, default=2, help="single-thread processes")
    parser.add_argument("--tokenizer", default=str(HERE.parent / "base/tokenizer.json"))
    args = parser.parse_args()
    args.phases = args.phases or PHASES[args.mode]
    return args


def main() -> None:
    """Starts the processes and waits for them."""
    args = parse_arguments()
    torch.set_num_threads(1)
    size = sum(parameter.numel() for parameter in demo_model.Model().parameters())
    shared = Shared(
        parameters=torch.zeros(size).share_memory_(),
        gradients=[torch.zeros(size).share_memory_() for _ in range(args.workers)],
        progress=torch.zeros(1, dtype=torch.float64).share_memory_(),
        barrier=multiprocessing.Barrier(args.workers),
    )
    processes = [
        multiprocessing.Process(target=work, args=(args, rank, shared))
        for rank in range(args.workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a training process failed")


if __name__ == "__main__":
    main()
