"""LoRA training on a tiny random Llama: the adapter, its files, merging, packing, interruptions."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[4]
sys.path[:0] = [str(ROOT / "deploy/demo/tinyllama/train"), str(HERE.parent)]
sys.path.append(str(ROOT / "deploy/demo/tinyllama"))

import data  # noqa: E402
import lora  # noqa: E402
import made_up  # noqa: E402
import merge  # noqa: E402
import tokenizer  # noqa: E402
import train  # noqa: E402
from encoder import Encoder  # noqa: E402
from reference import Reference, read_safetensors, write_safetensors  # noqa: E402

TOKENS = 700  # the vocabulary spells most characters as bytes
SHAPE = lora.Shape(rank=2, alpha=6.0, targets=lora.TARGETS["all"])


def write_model(directory: Path) -> None:
    """A Llama of 2 layers, width 32, 4 heads and 2 KV heads, with random bf16 weights."""
    random = torch.Generator().manual_seed(11)
    hidden, ffn, kv, vocab = 32, 48, 16, len(made_up.TOKENS)
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        for target, shape in zip(
            lora.TARGETS["all"],
            (
                (hidden, hidden),
                (kv, hidden),
                (kv, hidden),
                (hidden, hidden),
                (ffn, hidden),
                (ffn, hidden),
                (hidden, ffn),
            ),
        ):
            shapes[f"{name}.{target}.weight"] = shape
    weights = {name: torch.randn(shape, generator=random) * 0.3 for name, shape in shapes.items()}
    for name in [
        "model.norm",
        *(f"model.layers.{i}.{n}_layernorm" for i in range(2) for n in ("input", "post_attention")),
    ]:
        weights[f"{name}.weight"] = 1 + torch.randn(hidden, generator=random) * 0.1
    write_safetensors(directory / "model.safetensors", {n: w.to(torch.bfloat16) for n, w in weights.items()})
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    (directory / "config.json").write_text(json.dumps(config))
    vocabulary = tokenizer.Vocabulary(made_up.TOKENS, made_up.SCORES, made_up.KINDS, 0, 1, 2, None, None)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer.tokenizer_json(vocabulary)))
    (directory / "tokenizer_config.json").write_text("{}")


def one_conversation(ids: list) -> data.Batch:
    count = len(ids)
    tensor = torch.tensor(ids)
    learned = torch.ones(count, dtype=torch.bool)
    return data.Batch(tensor, tensor, learned, torch.arange(count), torch.zeros(count, dtype=torch.int64))


class TrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.set_num_threads(1)
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.base = Path(cls.directory.name) / "base"
        cls.base.mkdir()
        write_model(cls.base)
        cls.model = lora.Llama(cls.base)
        cls.encoder = Encoder(cls.base)

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = Path(directory.name) / "adapter"

    def random_adapter(self) -> lora.Adapter:
        """One whose B is not zero."""
        adapter = lora.Adapter.fresh(SHAPE, self.model.weights, 2, seed=3)
        random = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for _, b in adapter.pairs.values():
                b.copy_(torch.randn(b.shape, generator=random) * 0.2)
        return adapter

    def logits(self, ids: list, adapter: lora.Adapter) -> torch.Tensor:
        with torch.no_grad():
            return self.model.hidden(one_conversation(ids), adapter) @ self.model.weights["lm_head.weight"].T

    def reference_logits(self, ids: list, weights: dict) -> torch.Tensor:
        reference = Reference(str(self.base))
        reference.weights = weights
        result = reference.forward(ids)
        return result[0] if isinstance(result, tuple) else result

    def train(self, *flags: str) -> int:
        said = io.StringIO()
        arguments = [
            "--model",
            str(self.base),
            "--consumer",
            "short",
            "--tokens",
            str(TOKENS),
            "--threads",
            "1",
        ]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = train.main([*arguments, "--steps", "5", "--save-every", "2", "--lr", "0.01", *flags])
        self.said = said.getvalue()
        return code

    def test_a_fresh_adapter_is_the_base_model(self) -> None:
        ids = [1, 270, 262, 265, 99, 2, 260, 261]
        adapter = lora.Adapter.fresh(SHAPE, self.model.weights, 2, seed=3)
        expected = self.reference_logits(ids, self.model.weights)
        torch.testing.assert_close(self.logits(ids, adapter), expected, rtol=1e-4, atol=1e-4)

    def test_merged_weights_are_base_and_scaled_product_and_compute_what_the_adapter_does(self) -> None:
        adapter = self.random_adapter()
        merged = lora.merge(self.model.weights, adapter)
        self.assertEqual(len(adapter.pairs), 14)
        for name, weight in self.model.weights.items():
            expected = weight.numpy().astype(np.float64)
            pair = adapter.pairs.get(name[: -len(".weight")])
            if pair is not None:
                a, b = (tensor.detach().numpy().astype(np.float64) for tensor in pair)
                expected = expected + 6.0 / 2 * (b @ a)
            np.testing.assert_allclose(merged[name].numpy(), expected, rtol=1e-6, atol=1e-6, err_msg=name)
        ids = [1, 270, 262, 265, 99, 2, 260, 261]
        expected_logits = self.reference_logits(ids, merged)
        self.assertGreater(
            (expected_logits - self.reference_logits(ids, self.model.weights)).abs().max(), 0.1
        )
        torch.testing.assert_close(self.logits(ids, adapter), expected_logits, rtol=1e-3, atol=1e-3)

    def test_files_have_pefts_layout_and_come_back(self) -> None:
        adapter = self.random_adapter()
        adapter.save(self.out, "base")
        config = json.loads((self.out / "adapter_config.json").read_text())
        self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"]), ("LORA", 2, 6.0))
        self.assertEqual(len(config["target_modules"]), 7)
        tensors = read_safetensors(self.out / "adapter_model.safetensors")
        name = "base_model.model.model.layers.1.mlp.down_proj.lora_{}.weight"
        self.assertEqual(tuple(tensors[name.format("A")].shape), (2, 48))
        self.assertEqual(tuple(tensors[name.format("B")].shape), (32, 2))
        loaded = lora.Adapter.load(self.out)
        self.assertEqual((loaded.shape, set(loaded.pairs)), (adapter.shape, set(adapter.pairs)))
        for key, pair in adapter.pairs.items():
            saved = [tensor.detach().to(torch.bfloat16).float() for tensor in pair]
            self.assertTrue(all(torch.equal(x, y) for x, y in zip(saved, loaded.pairs[key])))

    def test_a_merged_directory_holds_the_merged_weights_in_bf16(self) -> None:
        adapter = self.random_adapter()
        adapter.save(self.out, "base")
        target = self.out.with_name("merged")
        arguments = ["--model", str(self.base), "--adapter", str(self.out), "--out", str(target)]
        self.assertEqual(merge.main(arguments), 0)
        found = read_safetensors(target / "model.safetensors")
        for name, weight in lora.merge(self.model.weights, lora.Adapter.load(self.out)).items():
            self.assertTrue(torch.equal(found[name], weight.to(torch.bfloat16).float()), name)
        self.assertEqual((target / "tokenizer.json").read_text(), (self.base / "tokenizer.json").read_text())
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(merge.main(arguments), 1)  # it exists

    def test_training_lowers_the_loss_and_leaves_the_base_as_it_is(self) -> None:
        before = {name: weight.clone() for name, weight in self.model.weights.items()}
        settings = {
            "consumer": "json",
            "steps": 12,
            "tokens": TOKENS,
            "rank": 4,
            "targets": "all",
            "lr": 0.02,
            "facts": 12,
            "begin": "",
            "seed": 1,
        }
        trainer = train.Trainer(self.model, self.encoder, settings, self.out)
        losses = [trainer.run_step() for _ in range(12)]
        self.assertLess(sum(losses[-3:]), 0.8 * sum(losses[:3]))
        for name, weight in self.model.weights.items():
            self.assertTrue(torch.equal(weight, before[name]), name)

    def test_products_in_bf16_agree_with_those_in_f32(self) -> None:
        packed = data.batch(self.encoder, "short", TOKENS, seed=2, step=0)
        losses, gradients = [], []
        for products in (torch.float32, torch.bfloat16):
            adapter = self.random_adapter()
            loss = lora.Llama(self.base, products).loss(packed, adapter)
            loss.backward()
            losses.append(float(loss))
            gradients.append(torch.cat([p.grad.flatten() for p in adapter.parameters()]))
        self.assertAlmostEqual(losses[0], losses[1], delta=0.02 * losses[0])
        self.assertNotEqual(losses[0], losses[1])
        cosine = torch.nn.functional.cosine_similarity(gradients[0], gradients[1], dim=0)
        self.assertGreater(float(cosine), 0.99)

    def test_an_interrupted_run_ends_as_an_uninterrupted_one(self) -> None:
        whole = self.out.with_name("whole")
        self.assertEqual(self.train("--out", str(whole)), 0, self.said if hasattr(self, "said") else "")
        run_step, steps = train.Trainer.run_step, []

        def interrupted(trainer: train.Trainer) -> float:
            steps.append(trainer.step)
            if len(steps) == 4:  # one step after a save: that step is done again
                raise KeyboardInterrupt
            return run_step(trainer)

        with mock.patch.object(train.Trainer, "run_step", interrupted):
            self.assertEqual(self.train("--out", str(self.out)), 130)
        self.assertIn("goes on from", self.said)
        self.assertEqual(self.train("--out", str(self.out)), 0)
        self.assertNotIn("step 2 of 5", self.said)
        self.assertIn("step 3 of 5", self.said)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            self.assertEqual((self.out / name).read_bytes(), (whole / name).read_bytes(), name)
        self.assertEqual(self.train("--out", str(self.out)), 0)
        self.assertEqual(self.said, "")  # nothing is left to do

    def test_a_state_of_other_settings_is_refused(self) -> None:
        self.assertEqual(self.train("--out", str(self.out)), 0)
        self.assertEqual(self.train("--out", str(self.out), "--rank", "4"), 1)
        self.assertIn("state.pt is of a run with", self.said)

    def test_training_begins_with_an_adapter_of_the_same_shape(self) -> None:
        begun = self.out.with_name("begun")
        self.assertEqual(self.train("--out", str(begun)), 0)
        self.assertEqual(self.train("--out", str(self.out), "--begin", str(begun), "--lr", "0"), 0)
        first, after = (read_safetensors(d / "adapter_model.safetensors") for d in (begun, self.out))
        self.assertTrue(all(torch.equal(tensor, after[name]) for name, tensor in first.items()))
        other = ("--out", str(self.out.with_name("other")), "--begin", str(begun), "--rank", "4")
        self.assertEqual(self.train(*other), 1)
        self.assertIn("the adapter to begin with", self.said)
        self.assertEqual(self.train(*other[:2], "--begin", str(self.out / "none")), 1)
        self.assertIn("none/adapter_config.json", self.said)

    def test_passages_have_as_many_facts_as_are_asked_for(self) -> None:
        usual, asked, many = (
            data.batch(self.encoder, "short", 20 * TOKENS, 1, 3, *facts) for facts in ((), (12,), (60,))
        )
        self.assertTrue(torch.equal(usual.ids, asked.ids))
        self.assertGreater(int(many.positions.max()), 2 * int(usual.positions.max()))

    def test_packed_conversations_do_not_see_one_another(self) -> None:
        packed = data.batch(self.encoder, "short", 3 * TOKENS, seed=2, step=0)
        self.assertGreater(int(packed.conversation.max()), 0)
        adapter = self.random_adapter()
        with torch.no_grad():
            together = self.model.hidden(packed, adapter)
            for number in range(int(packed.conversation.max()) + 1):
                chosen = packed.conversation == number
                alone = self.model.hidden(one_conversation(packed.ids[chosen].tolist()), adapter)
                torch.testing.assert_close(together[chosen], alone, rtol=1e-4, atol=1e-4)

    def test_answers_and_their_ends_are_what_is_learned(self) -> None:
        for consumer in data.CONSUMERS:
            packed = data.batch(self.encoder, consumer, TOKENS, seed=7, step=1)
            spelled = []
            for token in packed.targets[packed.learned].tolist():
                piece = made_up.TOKENS[token]
                spelled.append(chr(int(piece[3:5], 16)) if made_up.KINDS[token] == 6 else piece)
            answers = "".join(spelled).replace(tokenizer.SPACE, " ").split("</s>")
            self.assertEqual(answers.pop(), "")
            self.assertTrue(answers)
            if consumer == "json":
                self.assertTrue(all(list(json.loads(answer)) == ["answer"] for answer in answers))
            else:
                self.assertTrue(
                    all(answer and "{" not in answer and "\n" not in answer for answer in answers)
                )

    def test_a_step_has_the_same_sequence_whenever_it_is_drawn(self) -> None:
        first, again, other = (data.batch(self.encoder, "short", TOKENS, 1, step) for step in (3, 3, 4))
        self.assertTrue(torch.equal(first.ids, again.ids))
        self.assertFalse(len(first.ids) == len(other.ids) and torch.equal(first.ids, other.ids))

    def test_the_encoder_merges_words_and_spells_the_rest_as_bytes(self) -> None:
        pieces = [made_up.TOKENS[i] for i in self.encoder.encode("ab cab\n\u00e9")]
        self.assertEqual(pieces, ["\u2581ab", "\u2581", "cab", "<0x0A>", "<0xC3>", "<0xA9>"])


if __name__ == "__main__":
    unittest.main()
