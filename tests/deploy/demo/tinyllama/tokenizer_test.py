"""Merges against SentencePiece's own rule on a made-up vocabulary, and HuggingFace's files."""

import random
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import List

import gguf
import made_up
import tokenizer
from made_up import ARRAY, F32, I32, STRING, U32, Field, gguf_bytes

VOCABULARY = tokenizer.Vocabulary(
    made_up.TOKENS, made_up.SCORES, made_up.KINDS, unknown=0, begin=1, end=2, padding=None, chat_template=None
)


def by_scores(text: str) -> List[str]:
    """SentencePiece: joins the neighbors whose union has the best score, leftmost first, until none has one."""
    score = dict(zip(made_up.TOKENS, made_up.SCORES))
    pieces = list(text)
    while True:
        unions = [(-score[a + b], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in score]
        if not unions:
            return pieces
        _, i = min(unions)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def by_merges(text: str, merges: List[str]) -> List[str]:
    """HuggingFace: applies the earliest merge of the list, the leftmost first, until none is left."""
    rank = {merge: i for i, merge in enumerate(merges)}
    pieces = list(text)
    while True:
        pairs = [
            (rank[f"{a} {b}"], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if f"{a} {b}" in rank
        ]
        if not pairs:
            return pieces
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


class TokenizerTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "model.gguf"

    def refuses(self, reason: str, *changed: Field) -> None:
        """`changed` replace fields of the made-up Llama, or join them."""
        fields = {field.name: field for field in made_up.llama_fields()}
        fields.update({field.name: field for field in changed})
        self.path.write_bytes(gguf_bytes(list(fields.values()), []))
        with self.assertRaisesRegex(gguf.GgufError, reason):
            tokenizer.read_vocabulary(gguf.Header(self.path))

    def test_merges_are_every_split_of_every_piece_the_best_score_first(self) -> None:
        s = tokenizer.SPACE
        self.assertEqual(
            tokenizer.merges(VOCABULARY),
            [
                *("a b", f"{s} a", "b c", "a bc", "ab c", "c a", "c ab", "ca b"),
                *(f"{s} ab", f"{s}a b", "b ca", "bc a", "a a", f"{s} c"),
            ],
        )

    def test_merges_cut_texts_as_scores_do(self) -> None:
        merges = tokenizer.merges(VOCABULARY)
        rng = random.Random(3)
        longest = 0
        for _ in range(2000):
            text = tokenizer.SPACE + "".join(rng.choices("abc" + tokenizer.SPACE, k=rng.randrange(1, 16)))
            pieces = by_scores(text)
            longest = max(longest, *map(len, pieces))
            self.assertEqual(by_merges(text, merges), pieces, text)
        self.assertEqual(longest, 3)

    def test_special_and_byte_tokens_take_no_part_in_merges(self) -> None:
        kinds = list(made_up.KINDS)
        kinds[made_up.TOKENS.index("ab")] = tokenizer.CONTROL
        merges = tokenizer.merges(replace(VOCABULARY, kinds=kinds))
        self.assertFalse([merge for merge in merges if "ab" in merge.split() or merge == "a b"])

    def test_the_file_tells_huggingface_all_that_llama_s_tokenizer_does(self) -> None:
        files = tokenizer.tokenizer_json(VOCABULARY)
        self.assertEqual([token["content"] for token in files["added_tokens"]], ["<unk>", "<s>", "</s>"])
        model = files["model"]
        self.assertEqual(model["vocab"], {token: i for i, token in enumerate(made_up.TOKENS)})
        self.assertEqual(
            (model["unk_token"], model["byte_fallback"], model["fuse_unk"]), ("<unk>", True, True)
        )
        self.assertEqual(files["post_processor"]["special_tokens"]["<s>"]["ids"], [1])
        self.assertEqual(
            [normalizer["type"] for normalizer in files["normalizer"]["normalizers"]], ["Prepend", "Replace"]
        )

    def test_fields_become_the_vocabulary_and_its_config(self) -> None:
        self.path.write_bytes(gguf_bytes(made_up.llama_fields(), []))
        vocabulary = tokenizer.read_vocabulary(gguf.Header(self.path))
        self.assertEqual(vocabulary, replace(VOCABULARY, padding=2, chat_template=made_up.TEMPLATE))
        config = tokenizer.tokenizer_config_json(vocabulary, 128)
        self.assertEqual(
            (config["bos_token"], config["eos_token"], config["pad_token"]), ("<s>", "</s>", "</s>")
        )
        self.assertEqual((config["chat_template"], config["model_max_length"]), (made_up.TEMPLATE, 128))

    def test_a_vocabulary_that_contradicts_itself_is_refused(self) -> None:
        tokens, kinds, scores = list(made_up.TOKENS), list(made_up.KINDS), list(made_up.SCORES)
        self.refuses("272 scores", Field("tokenizer.ggml.scores", ARRAY, scores[:-1], F32))
        self.refuses("token 272 is 'ab'", Field("tokenizer.ggml.tokens", ARRAY, tokens[:-1] + ["ab"], STRING))
        self.refuses("token 272 is ''", Field("tokenizer.ggml.tokens", ARRAY, tokens[:-1] + [""], STRING))
        self.refuses("token 272 has type 4", Field("tokenizer.ggml.token_type", ARRAY, kinds[:-1] + [4], I32))
        self.refuses(
            "score of token 272", Field("tokenizer.ggml.scores", ARRAY, scores[:-1] + [float("nan")], F32)
        )
        missing = [token if token != "<0x41>" else "<0x4l>" for token in tokens]
        self.refuses("no byte token <0x41>", Field("tokenizer.ggml.tokens", ARRAY, missing, STRING))
        self.refuses("bos_token_id is 9", Field("tokenizer.ggml.bos_token_id", U32, 9))
        self.refuses("padding_token_id is 273", Field("tokenizer.ggml.padding_token_id", U32, 273))
        self.refuses('"gpt2", want "llama"', Field("tokenizer.ggml.model", STRING, "gpt2"))


if __name__ == "__main__":
    unittest.main()
