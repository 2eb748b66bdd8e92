"""Byte-level BPE: trains a vocabulary, writes HuggingFace's tokenizer.json, encodes and decodes.

The byte alphabet and the pre-tokeniser's regular expression are GPT-2's, so that any HuggingFace
tokenizer reads the file. Training ties are broken by the pair itself: the same corpus gives the
same file.
"""

import argparse
import json
import re
from collections import Counter
from typing import Dict, Iterable, List, Set, Tuple

from generator import Generator

Pair = Tuple[str, str]

SPECIAL_TOKENS = ["<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
PAD, BEGIN, END, USER, ASSISTANT = range(5)

# GPT-2's pattern for ASCII text, which is all that the generator writes.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_alphabet() -> Dict[int, str]:
    """GPT-2's mapping of bytes to characters: itself where printable, else from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet]
    alphabet.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return alphabet


TO_CHAR = byte_alphabet()
TO_BYTE = {char: byte for byte, char in TO_CHAR.items()}


def merge_pair(symbols: List[str], pair: Pair) -> List[str]:
    """Joins every occurrence of `pair`, left to right."""
    merged: List[str] = []
    i = 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


class _PairCounts:
    """Counts of adjacent pairs over weighted words, and where each pair may occur.

    Updating only the words that hold a merged pair is what makes training take seconds.
    """

    def __init__(self, words: List[List[str]], weights: List[int]) -> None:
        self.words = words
        self.weights = weights
        self.counts: Counter = Counter()
        self.places: Dict[Pair, Set[int]] = {}
        for index in range(len(words)):
            self._add(index)

    def best(self) -> Pair:
        return max(self.counts, key=lambda pair: (self.counts[pair], pair))

    def merge(self, pair: Pair) -> None:
        for index in list(self.places.get(pair, ())):
            word = self.words[index]
            for old in zip(word, word[1:]):
                self.counts[old] -= self.weights[index]
            self.words[index] = merge_pair(word, pair)
            self._add(index)
        self.counts.pop(pair, None)

    def _add(self, index: int) -> None:
        word = self.words[index]
        for pair in zip(word, word[1:]):
            self.counts[pair] += self.weights[index]
            self.places.setdefault(pair, set()).add(index)


def train(texts: Iterable[str], vocab_size: int) -> Tuple[List[str], List[Pair]]:
    """Returns the vocabulary (specials, bytes, merges in order) and the merges."""
    frequency: Counter = Counter()
    for text in texts:
        frequency.update(WORDS.findall(text))
    words = [[TO_CHAR[byte] for byte in word.encode()] for word in frequency]
    pairs = _PairCounts(words, list(frequency.values()))
    vocab = SPECIAL_TOKENS + [TO_CHAR[byte] for byte in sorted(TO_CHAR)]
    merges: List[Pair] = []
    while len(vocab) < vocab_size and pairs.counts:
        pair = pairs.best()
        if pairs.counts[pair] <= 0:
            break
        merges.append(pair)
        vocab.append(pair[0] + pair[1])
        pairs.merge(pair)
    return vocab, merges


def save(path: str, vocab: List[str], merges: List[Pair]) -> None:
    """Writes tokenizer.json as HuggingFace's tokenizers library lays it out."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    plain = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, **plain} for i, text in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(vocab)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }
    with open(path, "w", encoding="utf8") as out:
        json.dump(document, out, ensure_ascii=False)


class Tokenizer:
    """Encodes and decodes with a tokenizer.json of this module's making."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf8") as source:
            model = json.load(source)["model"]
        self.vocab: Dict[str, int] = model["vocab"]
        self.tokens = {i: token for token, i in self.vocab.items()}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
        self._cache: Dict[str, List[int]] = {}
        self._special = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")

    def encode(self, text: str) -> List[int]:
        """Special tokens written out in the text become their ids."""
        ids: List[int] = []
        for part in self._special.split(text):
            if part in SPECIAL_TOKENS:
                ids.append(self.vocab[part])
            else:
                for word in WORDS.findall(part):
                    ids.extend(self._encode_word(word))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Special tokens are left out; bytes that are not UTF-8 become replacement characters."""
        text = "".join(self.tokens[i] for i in ids if i >= len(SPECIAL_TOKENS))
        return bytes(TO_BYTE[char] for char in text).decode("utf8", "replace")

    def _encode_word(self, word: str) -> List[int]:
        known = self._cache.get(word)
        if known is not None:
            return known
        symbols = [TO_CHAR[byte] for byte in word.encode()]
        while len(symbols) > 1:
            known_pairs = [pair for pair in zip(symbols, symbols[1:]) if pair in self._ranks]
            if not known_pairs:
                break
            symbols = merge_pair(symbols, min(known_pairs, key=self._ranks.__getitem__))
        ids = [self.vocab[symbol] for symbol in symbols]
        self._cache[word] = ids
        return ids


def corpus(seed: int, worlds: int) -> List[str]:
    """Passages with questions in both wordings, as the demo pair's tokenizer saw them."""
    generator = Generator(seed)
    texts = []
    for _ in range(worlds):
        facts = generator.world(generator.random.randint(4, 24))
        passage = generator.passage(facts)
        asked = [
            f"Question: {q.text}\nAnswer: {q.answer}" for q in generator.questions(facts, "base")
        ]
        texts.append(passage + "\n" + "\n".join(asked) + "\n")
        texts.append(
            "\n" + "\n".join(f"{q.text}?\n{q.answer}" for q in generator.questions(facts, "chat"))
        )
    return texts


def main() -> None:
    """Trains the demo pair's tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="tokenizer.json", help="file to write")
    parser.add_argument("--seed", type=int, default=777, help="seed of the corpus")
    parser.add_argument("--worlds", type=int, default=6000, help="passages in the corpus")
    parser.add_argument("--vocab", type=int, default=2048, help="size of the vocabulary")
    args = parser.parse_args()
    texts = corpus(args.seed, args.worlds)
    vocab, merges = train(texts, args.vocab)
    save(args.out, vocab, merges)
    sample = "\n".join(texts[:50])
    ids = Tokenizer(args.out).encode(sample)
    print(f"{args.out}: {len(vocab)} tokens, {len(sample) / len(ids):.2f} characters per token")


if __name__ == "__main__":
    main()
