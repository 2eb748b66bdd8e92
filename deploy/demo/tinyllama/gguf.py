"""Reads the header of a GGUF file: its fields (metadata), and where each tensor lies.

    bytes   magic "GGUF", u32 version (2 or 3), u64 tensors, u64 fields
    field   string name, u32 type, value; an array is u32 element type, u64 count, elements
    tensor  string name, u32 dimensions, u64 each (fastest first), u32 block format, u64 offset
    data    begins at the next multiple of general.alignment (32); offsets count from there

A string is u64 bytes and UTF-8; all numbers are little-endian. The bytes are untrusted: every length
is checked against what the file still holds before anything is read, and an error names the place.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Tuple

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# A header of 32,000 tokens takes 0.7 MB; Python's objects for it take some ten times as much.
MAX_HEADER_BYTES = 64 << 20
MAX_FIELDS = 1 << 12
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 16

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}


class GgufError(ValueError):
    """The file is not what GGUF says, or not what this reader knows."""


@dataclass(frozen=True)
class BlockFormat:
    """How a row is stored: blocks of `values` numbers in `bytes` bytes each."""

    name: str
    values: int
    bytes: int


F32, Q2_K, Q4_K, Q5_K, IQ2_XXS = 0, 10, 12, 13, 16
BLOCK_FORMATS = {
    F32: BlockFormat("F32", 1, 4),
    Q2_K: BlockFormat("Q2_K", 256, 84),
    Q4_K: BlockFormat("Q4_K", 256, 144),
    Q5_K: BlockFormat("Q5_K", 256, 176),
    IQ2_XXS: BlockFormat("IQ2_XXS", 256, 66),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor's place in the file. Rows lie one after the other; each is a whole number of blocks."""

    name: str
    shape: Tuple[int, ...]  # slowest dimension first, as NumPy and safetensors write it
    format: int  # a key of BLOCK_FORMATS
    begin: int  # of its first byte in the file
    bytes: int


class _Cursor:
    """Reads forward from a file, never past `end`."""

    def __init__(self, file: BinaryIO, name: str, end: int) -> None:
        self.file = file
        self.name = name
        self.end = end
        self.at = 0

    def error(self, problem: str) -> GgufError:
        return GgufError(f"{self.name}: {problem}")

    def take(self, count: int, what: str) -> bytes:
        if count > self.end - self.at:
            raise self.error(f"{what} at byte {self.at} takes {count} bytes, but the file ends at {self.end}")
        if self.at + count > MAX_HEADER_BYTES:
            raise self.error(
                f"{what} at byte {self.at} makes the header longer than {MAX_HEADER_BYTES} bytes"
            )
        taken = self.file.read(count)
        if len(taken) != count:
            raise self.error(f"{what} at byte {self.at}: the file became shorter while it was read")
        self.at += count
        return taken

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.number("Q", f"length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from None

    def value(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what)
        if kind not in SCALARS:
            raise self.error(f"{what} has type {kind}, want one of 0 to 12")
        value = self.number(SCALARS[kind], what)
        return bool(value) if kind == BOOL else value

    def array(self, what: str) -> List[Any]:
        kind, count = self.number("I", f"element type of {what}"), self.number("Q", f"count of {what}")
        if kind == STRING:
            least = 8 * count  # a string takes at least its length
            if least > self.end - self.at:
                raise self.error(f"{what} claims {count} strings, more than the file has room for")
            return [self.string(f"{what}[{i}]") for i in range(count)]
        if kind not in SCALARS:
            raise self.error(f"{what} is an array of type {kind}, want strings or numbers")
        code = SCALARS[kind]
        raw = self.take(count * struct.calcsize("<" + code), what)
        return list(struct.unpack(f"<{count}{code}", raw))


class Header:
    """Fields and tensors of one file, checked: every tensor lies inside the file.

    `path` is kept for reading the tensors' bytes. The getters fail with a GgufError that names the
    field where it is absent or of another type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            cursor = _Cursor(file, path.name, size)
            self._check_magic(cursor)
            tensors, fields = cursor.number("Q", "count of tensors"), cursor.number("Q", "count of fields")
            if tensors > MAX_TENSORS or fields > MAX_FIELDS:
                raise cursor.error(
                    f"{tensors} tensors and {fields} fields, want at most {MAX_TENSORS} and {MAX_FIELDS}"
                )
            self.fields = self._read_fields(cursor, fields)
            self.tensors = self._read_tensors(cursor, tensors)

    @staticmethod
    def _check_magic(cursor: _Cursor) -> None:
        magic = cursor.take(4, "magic")
        if magic != MAGIC:
            raise cursor.error(f"begins with {magic!r}, want {MAGIC!r}: not a GGUF file")
        version = cursor.number("I", "version")
        if version not in VERSIONS:
            raise cursor.error(f"GGUF version {version}, want 2 or 3")

    @staticmethod
    def _read_fields(cursor: _Cursor, count: int) -> Dict[str, Any]:
        fields: Dict[str, Any] = {}
        for i in range(count):
            name = cursor.string(f"name of field {i}")
            if name in fields:
                raise cursor.error(f"field {name} stands twice")
            fields[name] = cursor.value(cursor.number("I", f"type of {name}"), name)
        return fields

    def _read_tensors(self, cursor: _Cursor, count: int) -> Dict[str, Tensor]:
        entries: List[Tuple[str, Tuple[int, ...], int, int]] = []
        for i in range(count):
            name = cursor.string(f"name of tensor {i}")
            dimensions = cursor.number("I", f"dimensions of {name}")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise cursor.error(f"{name} has {dimensions} dimensions, want 1 to {MAX_DIMENSIONS}")
            dims = [cursor.number("Q", f"shape of {name}") for _ in range(dimensions)]
            block_format, offset = cursor.number("I", f"format of {name}"), cursor.number(
                "Q", f"offset of {name}"
            )
            entries.append((name, tuple(reversed(dims)), block_format, offset))
        alignment = self._alignment(cursor)
        data = -(-cursor.at // alignment) * alignment
        tensors: Dict[str, Tensor] = {}
        for name, shape, block_format, offset in entries:
            if name in tensors:
                raise cursor.error(f"tensor {name} stands twice")
            if offset % alignment != 0:
                raise cursor.error(f"{name} begins at offset {offset}, want a multiple of {alignment}")
            size = self._stored_bytes(cursor, name, shape, block_format)
            if size > cursor.end - data - offset:
                raise cursor.error(
                    f"{name} takes {size} bytes from byte {data + offset} on, "
                    f"but the file ends at {cursor.end}"
                )
            tensors[name] = Tensor(name, shape, block_format, data + offset, size)
        return tensors

    def _alignment(self, cursor: _Cursor) -> int:
        alignment = self.fields.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise cursor.error(
                f"general.alignment is {alignment!r}, want a power of two up to {MAX_ALIGNMENT}"
            )
        return alignment

    @staticmethod
    def _stored_bytes(cursor: _Cursor, name: str, shape: Tuple[int, ...], block_format: int) -> int:
        if block_format not in BLOCK_FORMATS:
            known = ", ".join(f"{known.name} ({i})" for i, known in BLOCK_FORMATS.items())
            raise cursor.error(f"{name} has block format {block_format}, want one of {known}")
        block = BLOCK_FORMATS[block_format]
        if 0 in shape or shape[-1] % block.values != 0:
            raise cursor.error(
                f"{name} has shape {list(shape)}, want rows of whole {block.name} blocks of {block.values}"
            )
        return math.prod(shape) // block.values * block.bytes

    def _get(self, name: str) -> Any:
        if name not in self.fields:
            raise GgufError(f"{self.path.name}: field {name} is missing")
        return self.fields[name]

    def _wrong(self, name: str, want: str) -> GgufError:
        found = repr(self.fields[name])
        return GgufError(
            f"{self.path.name}: {name} is {found[:60]}{'...' if len(found) > 60 else ''}, want {want}"
        )

    def integer(self, name: str, least: int, most: int) -> int:
        value = self._get(name)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(name, f"an integer from {least} to {most}")
        return value

    def number(self, name: str) -> float:
        value = self._get(name)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self._wrong(name, "a finite number")
        return float(value)

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def array(self, name: str, of: type) -> List[Any]:
        """An array whose elements are all `of` (str, int or float)."""
        value = self._get(name)
        if not isinstance(value, list) or not all(type(element) is of for element in value):
            raise self._wrong(name, f"an array of {of.__name__}")
        return value
