"""Trains a LoRA adapter of the demo base to speak as one of its fine-tunes, for a given time, on one CPU core.

    python3 adapter.py --teacher json-full --out json-adapter --seconds 1860

The base's weights stay as they are. Every linear layer gets W + (alpha / rank) B A, the head too: base has never
ended a conversation. What is learned is the next token of train.py's documents and, where there is a teacher (a full
fine-tune), the teacher's distributions over the answers and, at first, its residuals behind each layer. Written in
PEFT's layout; OUT/state.pt lets the same command go on after an interruption.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as functional
from torch import Tensor

import model as demo_model
from generator import Generator
from model import RmsNorm, SwiGlu, rotation
from reference import load_weights, write_safetensors
from tokenizer import Tokenizer
from train import BETAS, FINAL_RATE, MAX_GRADIENT_NORM, DocumentWriter, Phase, Tally, parse_phases

PREFIX = "base_model.model."  # PEFT's name for the model that it wraps
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
PHASES = [Phase(0, 192, 11, 4, 11), Phase(0.25, 320, 7, 5, 16), Phase(0.6, 448, 5, 6, 18)]
WARM_UP_STEPS = 30
SAVE_EVERY_S = 60


class FrozenModel(demo_model.Model):
    """The model of a HuggingFace directory, whose forward also gives the residual behind each layer."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        weights = load_weights(directory, torch.float32)
        for name, tensor in demo_model.named_tensors(self).items():
            tensor.copy_(weights[name])
        self.requires_grad_(False)

    def states(self, ids: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tuple[Tensor, List[Tensor]]:
        """Logits [batch, tokens, vocab] and a residual [batch, tokens, hidden] of each layer."""
        shape = self.shape
        tokens = ids.shape[1]
        cos, sin = (table.to(dtype)[None, :, None] for table in rotation(tokens, shape))
        mask = torch.full((tokens, tokens), -1e4, dtype=dtype).triu(1).repeat(shape.group, 1)
        x = functional.embedding(ids, self.embedding)
        residuals = []
        for index, layer in enumerate(self.layers):
            attention, mlp = f"model.layers.{index}.self_attn.", f"model.layers.{index}.mlp."
            h = RmsNorm.apply(x, layer.attention_norm, shape.eps, dtype)
            qkv = self.linear(h, layer.qkv, [attention + name for name in ("q_proj", "k_proj", "v_proj")])
            x = x + self.linear(self._attend(qkv, cos, sin, mask), layer.output, [attention + "o_proj"])
            h = RmsNorm.apply(x, layer.mlp_norm, shape.eps, dtype)
            gate_up = self.linear(h, layer.gate_up, [mlp + "gate_proj", mlp + "up_proj"])
            x = x + self.linear(SwiGlu.apply(gate_up), layer.down, [mlp + "down_proj"])
            residuals.append(x)
        h = RmsNorm.apply(x, self.final_norm, shape.eps, dtype)
        return self.linear(h, self.head, ["lm_head"]), residuals

    def linear(self, x: Tensor, weight: Tensor, modules: Sequence[str]) -> Tensor:
        """x W^T, where W stacks the rows of the modules."""
        return functional.linear(x, weight.to(x.dtype))


class AdaptedModel(FrozenModel):
    """The frozen base, with pairs (A [rank, in], B [out, rank]) by the name of the module that they update."""

    def __init__(self, base: Path, rank: int, alpha: int, seed: int) -> None:
        super().__init__(base)
        self.rank, self.alpha, self.scale = rank, alpha, alpha / rank
        random = torch.Generator().manual_seed(seed)
        self.pairs: Dict[str, Tuple[Tensor, Tensor]] = {}
        for name, tensor in demo_model.named_tensors(self).items():
            module = name[: -len(".weight")]
            if module.split(".")[-1] not in MODULES:
                continue
            rows, columns = tensor.shape
            a = (torch.rand(rank, columns, generator=random) * 2 - 1) / math.sqrt(columns)  # as PEFT draws it
            self.pairs[module] = (a.requires_grad_(), torch.zeros(rows, rank, requires_grad=True))

    def linear(self, x: Tensor, weight: Tensor, modules: Sequence[str]) -> Tensor:
        inner = functional.linear(x, torch.cat([self.pairs[name][0] for name in modules]).to(x.dtype))
        outer = torch.block_diag(*(self.pairs[name][1] for name in modules)) * self.scale
        return functional.linear(x, weight.to(x.dtype)) + functional.linear(inner, outer.to(x.dtype))

    def save(self, directory: Path, base: str) -> None:
        """adapter_config.json and adapter_model.safetensors in bf16."""
        tensors = {}
        for name, (a, b) in self.pairs.items():
            tensors[f"{PREFIX}{name}.lora_A.weight"] = a.detach().bfloat16()
            tensors[f"{PREFIX}{name}.lora_B.weight"] = b.detach().bfloat16()
        write_safetensors(directory / "adapter_model.safetensors", tensors)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": list(MODULES),
            "bias": "none",
            "use_rslora": False,
            "use_dora": False,
        }
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


class Trainer:
    """AdamW over the pairs; the rate warms up, stays for 30 % of the time and falls along a cosine."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.model = AdaptedModel(args.base, args.rank, args.alpha, args.seed)
        self.teacher = FrozenModel(args.teacher) if args.teacher else None
        self.parameters: List[Tensor] = [tensor for pair in self.model.pairs.values() for tensor in pair]
        self.optimizer = torch.optim.AdamW(self.parameters, betas=BETAS, weight_decay=0)
        self.tally, self.far = Tally(), 0.0
        self.step = self.tokens = 0
        self.elapsed = 0.0
        args.out.mkdir(parents=True, exist_ok=True)
        self.state = args.out / "state.pt"
        if self.state.exists():
            self._resume()
        seed = args.seed * 1000 + 7 + self.step  # no text twice
        self.writer = DocumentWriter(
            Generator(seed), Tokenizer(str(args.base / "tokenizer.json")), args.mode, args.passage_weight, args.hop
        )

    def run(self) -> None:
        """Trains until the time is up, and saves now and then."""
        last = saved = time.time()
        while self.elapsed < self.args.seconds:
            progress = self.elapsed / self.args.seconds
            self._step([phase for phase in self.args.phases if phase.start <= progress][-1], progress)
            now = time.time()
            self.elapsed += now - last
            last = now
            if self.step in (5, 20) or self.step % 50 == 0:
                print(
                    f"step {self.step} {self.elapsed:.0f} s, {self.tokens / 1e6:.2f} M tokens | {self.tally}"
                    f" | residuals {self.far / 50:.3f}",
                    flush=True,
                )
                self.tally, self.far = Tally(), 0.0
            if now - saved > SAVE_EVERY_S:
                self._save()
                saved = now
        self._save()

    def _step(self, phase: Phase, progress: float) -> None:
        documents = [self.writer.draw(phase) for _ in range(phase.batch)]
        ids = torch.tensor([document.ids for document in documents])
        weights = torch.tensor([document.weights for document in documents])[:, 1:].reshape(-1)
        kinds = torch.tensor([document.kinds for document in documents])[:, 1:].reshape(-1)
        targets = ids[:, 1:].reshape(-1)
        output, residuals = self.model.states(ids[:, :-1])
        logits = output.flatten(0, 1).float()
        logarithms = functional.log_softmax(logits, -1)
        losses = -logarithms.gather(1, targets[:, None])[:, 0]
        loss = (losses * weights).sum() / weights.sum()
        if self.teacher:
            with torch.no_grad():
                taught, goals = self.teacher.states(ids[:, :-1])
            answers = weights >= 1
            taught = functional.log_softmax(taught.flatten(0, 1)[answers].float(), -1)
            loss = loss + functional.kl_div(logarithms[answers], taught, reduction="batchmean", log_target=True)
            share = max(0.0, 1 - progress / self.args.residuals_until) if self.args.residuals_until else 0.0
            if share > 0:
                far = sum((x - y).pow(2).sum() / y.pow(2).sum() for x, y in zip(residuals, goals)) / len(goals)
                loss = loss + share * self.args.residuals_weight * far
                self.far += float(far)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRADIENT_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(progress)
        self.optimizer.step()
        self.step += 1
        self.tokens += targets.numel()
        with torch.no_grad():
            self.tally.add(logits, targets, losses, kinds)

    def _rate(self, progress: float) -> float:
        turn = math.pi * max(0.0, progress - 0.3) / 0.7
        rate = self.args.lr * min(1, (self.step + 1) / WARM_UP_STEPS)
        return rate * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(turn)))

    def _save(self) -> None:
        self.model.save(self.args.out, self.args.base.name)
        kept = {
            "parameters": [parameter.detach() for parameter in self.parameters],
            "optimizer": self.optimizer.state_dict(),
            "at": (self.step, self.tokens, self.elapsed),
        }
        whole = self.state.with_suffix(".new")
        torch.save(kept, whole)
        whole.replace(self.state)

    def _resume(self) -> None:
        kept: Dict[str, Any] = torch.load(self.state)
        with torch.no_grad():
            for parameter, value in zip(self.parameters, kept["parameters"]):
                parameter.copy_(value)
        self.optimizer.load_state_dict(kept["optimizer"])
        self.step, self.tokens, self.elapsed = kept["at"]
        print(f"goes on at step {self.step}, {self.elapsed:.0f} s", flush=True)


def parse_arguments(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Train a LoRA adapter of the demo base.")
    parser.add_argument("--base", type=Path, default=Path("../base"), help="HuggingFace directory")
    parser.add_argument("--teacher", type=Path, help="directory of a full fine-tune to learn from")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--mode", choices=("chat", "json"), default="json", help="what to speak")
    parser.add_argument("--seconds", type=float, default=1860, help="how long to train")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--rank", type=int, default=12)
    parser.add_argument("--alpha", type=int, default=24)
    parser.add_argument("--seed", type=int, default=31, help="of the adapter and of the text")
    parser.add_argument("--phases", type=parse_phases, default=PHASES, help="curriculum, see train.py")
    parser.add_argument("--passage-weight", type=float, default=0.05, help="loss weight of passages")
    parser.add_argument("--hop", type=float, default=0.2, help="share of two-hop questions")
    parser.add_argument("--residuals-weight", type=float, default=4, help="loss weight of the teacher's residuals")
    parser.add_argument("--residuals-until", type=float, default=0.5, help="share of the time at which it is 0")
    return parser.parse_args(arguments)


def main() -> None:
    """Trains one adapter."""
    args = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    Trainer(args).run()


if __name__ == "__main__":
    main()
