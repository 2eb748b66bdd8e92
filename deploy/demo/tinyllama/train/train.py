#!/usr/bin/python3
"""Trains a LoRA adapter of TinyLlama for one consumer, and goes on where an interrupted run stopped.

    train.py --consumer short --out build/models/tinyllama-short-lora
    train.py --consumer json --out build/models/tinyllama-json-lora

Writes adapter_config.json and adapter_model.safetensors in PEFT's layout, and state.pt, from which the same
command continues: the result is the same as without the interruption. One line a step on standard output.
Needs Debian's python3-torch (with libopenblas0-openmp, else it is slow) and for TinyLlama 7 GB of memory, more with
--products f32, and 11 for sequences of 1,280 tokens. Those are several times as fast with an allocator that keeps
memory in large pages: the README beside the adapters has the line.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import torch

from data import CONSUMERS, FACTS, batch
from encoder import Encoder
from lora import TARGETS, Adapter, Llama, Shape

ROOT = Path(__file__).resolve().parents[4]
PRODUCTS = {"bf16": torch.bfloat16, "f32": torch.float32}
BETAS = (0.9, 0.99)
MAX_GRADIENT_NORM = 1.0
WARM_UP_STEPS = 10
FINAL_RATE = 0.1


def rate(step: int, steps: int, highest: float) -> float:
    """Rises over WARM_UP_STEPS, then falls along a cosine to FINAL_RATE."""
    fall = 0.5 * (1 + math.cos(math.pi * step / steps))
    return highest * min(1.0, (step + 1) / WARM_UP_STEPS) * (FINAL_RATE + (1 - FINAL_RATE) * fall)


class Trainer:
    """One run, fresh or continued. `settings` decide the result; a state of other settings is refused."""

    def __init__(self, model: Llama, encoder: Encoder, settings: Dict[str, Any], out: Path) -> None:
        self.model, self.encoder, self.settings, self.out = model, encoder, settings, out
        shape = Shape(settings["rank"], 2.0 * settings["rank"], TARGETS[settings["targets"]])
        self.adapter = Adapter.fresh(shape, model.weights, model.config.layers, settings["seed"])
        if settings["begin"]:
            self.adapter.copy_from(Adapter.load(Path(settings["begin"])))
        self.optimizer = torch.optim.AdamW(self.adapter.parameters(), betas=BETAS, weight_decay=0.0)
        self.step = 0
        self._continue()

    def _continue(self) -> None:
        path = self.out / "state.pt"
        if not path.exists():
            return
        state = torch.load(path)
        if state["settings"] != self.settings:
            raise ValueError(f"{path} is of a run with {state['settings']}, want {self.settings}")
        self.step = state["step"]
        with torch.no_grad():
            for parameter, saved in zip(self.adapter.parameters(), state["parameters"]):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self, base: str) -> None:
        """The adapter, then the state; a reader sees the old file or the new one."""
        self.adapter.save(self.out, base)
        partial = self.out / "state.pt.partial"
        parameters = [parameter.detach() for parameter in self.adapter.parameters()]
        state: Dict[str, Any] = {"settings": self.settings, "step": self.step, "parameters": parameters}
        state["optimizer"] = self.optimizer.state_dict()
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.out / "state.pt")

    def run_step(self) -> float:
        """One packed sequence; returns its loss before the update."""
        s = self.settings
        packed = batch(self.encoder, s["consumer"], s["tokens"], s["seed"], self.step, s["facts"])
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.step, s["steps"], s["lr"])
        self.optimizer.zero_grad()
        loss = self.model.loss(packed, self.adapter)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.step += 1
        return float(loss)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "build/models/tinyllama-1.1b-chat"
    parser.add_argument(
        "--model", type=Path, default=default, help="base model (default: what fetch.py wrote)"
    )
    parser.add_argument("--consumer", choices=CONSUMERS, required=True, help="how answers look")
    parser.add_argument("--out", type=Path, required=True, help="directory of the adapter")
    parser.add_argument("--steps", type=int, default=200, help="sequences in all (default 200)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a packed sequence (default 512)")
    parser.add_argument(
        "--facts", type=int, default=FACTS, help=f"most facts of a passage, at least 4 (default {FACTS})"
    )
    parser.add_argument(
        "--begin", default="", metavar="DIR", help="adapter to begin with, of the same rank and matrices"
    )
    parser.add_argument("--rank", type=int, default=8, help="rank of the updates (default 8)")
    parser.add_argument("--targets", choices=sorted(TARGETS), default="attention", help="which matrices")
    parser.add_argument(
        "--products",
        choices=sorted(PRODUCTS),
        default="bf16",
        help="precision of products with frozen weights; bf16 (default) is faster where the processor has it",
    )
    parser.add_argument("--lr", type=float, default=3e-4, help="highest learning rate (default 3e-4)")
    parser.add_argument("--seed", type=int, default=5, help="seed of adapter and passages (default 5)")
    parser.add_argument("--save-every", type=int, default=5, help="steps between two saves (default 5)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of PyTorch (default: all cores)")
    options = parser.parse_args(arguments)
    if options.facts < 4:
        parser.error(f"argument --facts: {options.facts}, want at least 4")
    torch.set_num_threads(options.threads)
    names = ("consumer", "steps", "tokens", "rank", "targets", "products", "lr", "seed", "facts", "begin")
    settings = {name: getattr(options, name) for name in names}
    try:
        model = Llama(options.model, PRODUCTS[options.products])
        trainer = Trainer(model, Encoder(options.model), settings, options.out)
        while trainer.step < options.steps:
            began = time.monotonic()
            loss = trainer.run_step()
            if trainer.step % options.save_every == 0 or trainer.step == options.steps:
                trainer.save(str(options.model))
            print(
                f"step {trainer.step} of {options.steps}: loss {loss:.4f}, {time.monotonic() - began:.1f} s",
                flush=True,
            )
    except KeyboardInterrupt:
        print(f"train: interrupted; the same command goes on from {options.out}/state.pt", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
