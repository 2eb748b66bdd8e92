"""Text to token ids with the tokenizer.json that tokenizer.py of the folder above writes (Llama 2's)."""

import functools
import json
from pathlib import Path
from typing import Dict, List, Tuple

SPACE = "\u2581"


class Encoder:
    """Encodes plain text; special tokens are the caller's, by id.

    Each text is encoded as HuggingFace does a stretch between special tokens: a space goes first.
    """

    def __init__(self, directory: Path) -> None:
        model = json.loads((directory / "tokenizer.json").read_text(encoding="utf8"))["model"]
        self.ids: Dict[str, int] = model["vocab"]
        self.ranks: Dict[Tuple[str, ...], int] = {
            tuple(merge.split(" ")): i for i, merge in enumerate(model["merges"])
        }
        # Where no token has a space after something else, no merge crosses the start of a word.
        if any(SPACE in "".join(pair).lstrip(SPACE) for pair in self.ranks):
            raise ValueError(f"{directory}: a token spans words, which this encoder does not know")
        self._word = functools.lru_cache(maxsize=1 << 16)(self._merge)

    def encode(self, text: str) -> List[int]:
        text = SPACE + text.replace(" ", SPACE)
        starts = [i for i in range(1, len(text)) if text[i] == SPACE and text[i - 1] != SPACE]
        cuts = [0, *starts, len(text)]
        return [token for begin, end in zip(cuts, cuts[1:]) for token in self._word(text[begin:end])]

    def _merge(self, word: str) -> List[int]:
        """Applies the earliest merge, the leftmost first, until none applies."""
        pieces = list(word)
        while True:
            pairs = enumerate(zip(pieces, pieces[1:]))
            ranked = [(self.ranks[pair], i) for i, pair in pairs if pair in self.ranks]
            if not ranked:
                break
            _, i = min(ranked)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return [token for piece in pieces for token in self._ids_of(piece)]

    def _ids_of(self, piece: str) -> List[int]:
        if piece in self.ids:
            return [self.ids[piece]]
        return [self.ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
