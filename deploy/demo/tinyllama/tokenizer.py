"""Llama 2's SentencePiece tokenizer, from a GGUF file's tokens and scores to HuggingFace's files.

SentencePiece's BPE joins the two neighbors whose union has the best score; HuggingFace's BPE wants
the same as a list of merges, the most urgent first. So each way to split a token into two tokens
is a merge, and its urgency is the token's score.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

from gguf import GgufError, Header

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
MAX_TOKENS = 1 << 20
SPACE = "\u2581"  # how SentencePiece writes a space


@dataclass(frozen=True)
class Vocabulary:
    """The token of each id, with its score (higher is merged earlier) and kind."""

    tokens: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    unknown: int
    begin: int
    end: int
    padding: Optional[int]
    chat_template: Optional[str]


def read_vocabulary(header: Header) -> Vocabulary:
    """Fails where the file holds another tokenizer, or one that contradicts itself."""
    name = header.path.name
    model = header.text("tokenizer.ggml.model")
    if model != "llama":
        raise GgufError(f'{name}: tokenizer.ggml.model is "{model}", want "llama" (SentencePiece BPE)')
    tokens = header.array("tokenizer.ggml.tokens", str)
    scores = header.array("tokenizer.ggml.scores", float)
    kinds = header.array("tokenizer.ggml.token_type", int)
    if not 0 < len(tokens) <= MAX_TOKENS or not len(tokens) == len(scores) == len(kinds):
        raise GgufError(
            f"{name}: {len(tokens)} tokens, {len(scores)} scores and {len(kinds)} token types, want as many "
            f"of each and 1 to {MAX_TOKENS}"
        )
    seen: Dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token == "" or seen.setdefault(token, i) != i:
            raise GgufError(f"{name}: token {i} is {token!r}, which is empty or also token {seen.get(token)}")
        if kinds[i] not in (NORMAL, UNKNOWN, CONTROL, BYTE):
            raise GgufError(f"{name}: token {i} has type {kinds[i]}, want normal, unknown, control or byte")
        if scores[i] != scores[i]:
            raise GgufError(f"{name}: the score of token {i} is not a number")
    for byte in range(256):
        spelling = f"<0x{byte:02X}>"
        if spelling not in seen or kinds[seen[spelling]] != BYTE:
            raise GgufError(f"{name}: there is no byte token {spelling}")
    last = len(tokens) - 1

    def special(what: str, default: int, kind: int) -> int:
        field = f"tokenizer.ggml.{what}_token_id"
        token = header.integer(field, 0, last) if field in header.fields else default
        if token > last or kinds[token] != kind:
            raise GgufError(f"{name}: {field} is {token}, which is no such token")
        return token

    padding = None
    if "tokenizer.ggml.padding_token_id" in header.fields:
        padding = header.integer("tokenizer.ggml.padding_token_id", 0, last)
    template = "tokenizer.chat_template"
    return Vocabulary(
        tokens,
        scores,
        kinds,
        unknown=special("unknown", 0, UNKNOWN),
        begin=special("bos", 1, CONTROL),
        end=special("eos", 2, CONTROL),
        padding=padding,
        chat_template=header.text(template) if template in header.fields else None,
    )


def merges(vocabulary: Vocabulary) -> List[str]:
    """Every pair of normal tokens that join to a normal token, as "left right", the most urgent first."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if vocabulary.kinds[i] == NORMAL}
    found = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                # Ties go to the lower id, as HuggingFace's own conversion has it.
                found.append((-vocabulary.scores[i], i, ids[left], ids[right], f"{left} {right}"))
    return [merge[-1] for merge in sorted(found)]


def _template(vocabulary: Vocabulary) -> Dict[str, Any]:
    """The post-processor: each text gets the begin token."""
    begin = vocabulary.tokens[vocabulary.begin]
    single: List[Dict[str, Any]] = [
        {"SpecialToken": {"id": begin, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    second: List[Dict[str, Any]] = [
        {"SpecialToken": {"id": begin, "type_id": 1}},
        {"Sequence": {"id": "B", "type_id": 1}},
    ]
    special = {begin: {"id": begin, "ids": [vocabulary.begin], "tokens": [begin]}}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + second,
        "special_tokens": special,
    }


def tokenizer_json(vocabulary: Vocabulary) -> Dict[str, Any]:
    """tokenizer.json: spaces become SPACE, one is put first, and unknown characters become bytes."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": i, "content": token, **flags}
        for i, token in enumerate(vocabulary.tokens)
        if vocabulary.kinds[i] in (UNKNOWN, CONTROL)
    ]
    normalizers = [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _template(vocabulary),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": vocabulary.tokens[vocabulary.unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: i for i, token in enumerate(vocabulary.tokens)},
            "merges": merges(vocabulary),
        },
    }


def tokenizer_config_json(vocabulary: Vocabulary, context: int) -> Dict[str, Any]:
    """tokenizer_config.json, with the file's chat template."""
    config: Dict[str, Any] = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": vocabulary.tokens[vocabulary.begin],
        "eos_token": vocabulary.tokens[vocabulary.end],
        "unk_token": vocabulary.tokens[vocabulary.unknown],
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    if vocabulary.padding is not None:
        config["pad_token"] = vocabulary.tokens[vocabulary.padding]
    if vocabulary.chat_template is not None:
        config["chat_template"] = vocabulary.chat_template
    return config
