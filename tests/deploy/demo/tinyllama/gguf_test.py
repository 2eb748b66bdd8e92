"""The header reader on good, truncated, mutated and hostile files."""

import struct
import tempfile
import unittest
from pathlib import Path
from typing import List

import gguf
from made_up import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Field,
    Stored,
    gguf_bytes,
    string,
)

FIELDS = [
    Field("u8", U8, 200),
    Field("i8", I8, -100),
    Field("u16", U16, 60000),
    Field("i16", I16, -30000),
    Field("u32", U32, 1 << 31),
    Field("i32", I32, -(1 << 31)),
    Field("f32", F32, 0.5),
    Field("yes", BOOL, True),
    Field("text", STRING, "\u2581f\u00fcnf"),
    Field("u64", U64, 1 << 63),
    Field("i64", I64, -(1 << 63)),
    Field("f64", F64, 0.1),
    Field("words", ARRAY, ["a", "", "bc"], STRING),
    Field("numbers", ARRAY, [1, -2, 3], I32),
]
TENSORS = [
    Stored("vector", (3,), gguf.F32, bytes(range(12))),
    Stored("matrix", (2, 256), gguf.IQ2_XXS, bytes(range(132))),
]


class HeaderTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "model.gguf"

    def header(self, data: bytes) -> gguf.Header:
        self.path.unlink(missing_ok=True)  # a file that is truncated instead is flushed to disk at its close
        self.path.write_bytes(data)
        return gguf.Header(self.path)

    def refuses(self, data: bytes, reason: str) -> None:
        with self.assertRaisesRegex(gguf.GgufError, "model.gguf: .*" + reason):
            self.header(data)

    def test_fields_and_tensors_come_back(self) -> None:
        for version in gguf.VERSIONS:
            header = self.header(gguf_bytes(FIELDS, TENSORS, version))
            self.assertEqual(header.fields, {field.name: field.value for field in FIELDS})
            data = self.path.read_bytes()
            for stored in TENSORS:
                tensor = header.tensors[stored.name]
                self.assertEqual((tensor.shape, tensor.format), (stored.shape, stored.format))
                self.assertEqual(data[tensor.begin :][: tensor.bytes], stored.data)

    def test_data_begins_at_the_alignment_that_the_file_names(self) -> None:
        fields = [Field("general.alignment", U32, 256)]
        header = self.header(gguf_bytes(fields, TENSORS, alignment=256))
        self.assertEqual([tensor.begin for tensor in header.tensors.values()], [256, 512])

    def test_a_file_cut_short_anywhere_is_refused(self) -> None:
        whole = gguf_bytes(FIELDS, TENSORS)
        for length in range(len(whole)):
            with self.assertRaises(gguf.GgufError, msg=f"of {length} bytes"):
                self.header(whole[:length])

    def test_a_mutated_header_is_refused_or_describes_tensors_inside_the_file(self) -> None:
        whole = gguf_bytes(FIELDS, TENSORS)
        head = len(whole) - sum(len(tensor.data) for tensor in TENSORS)
        refused = 0
        for at in range(head):
            for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
                mutated = bytearray(whole)
                mutated[at] ^= flip
                try:
                    header = self.header(bytes(mutated))
                except gguf.GgufError:
                    refused += 1
                    continue
                for tensor in header.tensors.values():
                    self.assertLessEqual(tensor.begin + tensor.bytes, len(whole))
        self.assertGreater(refused, head)

    def test_another_file_is_told_from_gguf(self) -> None:
        self.refuses(b"", "magic at byte 0 takes 4 bytes, but the file ends at 0")
        self.refuses(b"PK\3\4" + bytes(100), "not a GGUF file")
        self.refuses(gguf_bytes([], [], version=1), "GGUF version 1, want 2 or 3")

    def test_counts_beyond_the_file_take_no_memory(self) -> None:
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x")
        self.refuses(b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0), "4611686018427387904 tensors")
        self.refuses(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62), "4611686018427387904 fields")
        self.refuses(
            start + struct.pack("<IQ", STRING, (1 << 64) - 1), "x at byte .* takes 18446744073709551615"
        )
        self.refuses(
            start + struct.pack("<IIQ", ARRAY, STRING, 1 << 60), "x claims 1152921504606846976 strings"
        )
        self.refuses(
            start + struct.pack("<IIQ", ARRAY, U8, 1 << 60), "x at byte .* takes 1152921504606846976"
        )

    def test_a_header_beyond_its_bound_is_refused(self) -> None:
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x") + struct.pack("<IIQ", ARRAY, U8, 65 << 20)
        with self.path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + (65 << 20))  # sparse
        with self.assertRaisesRegex(gguf.GgufError, "makes the header longer than 67108864 bytes"):
            gguf.Header(self.path)

    def test_types_that_do_not_exist_are_refused(self) -> None:
        start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x")
        self.refuses(start + struct.pack("<I", 13), "x has type 13, want one of 0 to 12")
        self.refuses(start + struct.pack("<IIQ", ARRAY, ARRAY, 1), "x is an array of type 9")
        self.refuses(
            gguf_bytes([], [Stored("w", (256,), 99, bytes(256))]), "w has block format 99, want one of F32"
        )

    def test_names_that_stand_twice_are_refused(self) -> None:
        self.refuses(gguf_bytes([FIELDS[0], FIELDS[0]], []), "field u8 stands twice")
        self.refuses(gguf_bytes([], [TENSORS[0], TENSORS[0]]), "tensor vector stands twice")

    def test_text_that_is_not_utf8_is_refused(self) -> None:
        bad = gguf_bytes([Field("x", STRING, "ab")], []).replace(b"ab", b"\xffb")
        self.refuses(bad, "x is not UTF-8")

    def test_shapes_that_no_tensor_has_are_refused(self) -> None:
        cases = [
            ((0,), gguf.F32, "whole F32 blocks"),
            ((255,), gguf.Q2_K, "whole Q2_K blocks of 256"),
            ((1 << 63, 1 << 63), gguf.F32, "takes 340282366920938463463374607431768211456 bytes"),
            ((1, 1, 1, 1, 4), gguf.F32, "has 5 dimensions, want 1 to 4"),
            ((), gguf.F32, "has 0 dimensions, want 1 to 4"),
        ]
        for shape, block_format, reason in cases:
            self.refuses(gguf_bytes([], [Stored("w", shape, block_format, bytes(64))]), reason)

    def test_tensors_outside_the_file_are_refused(self) -> None:
        good = gguf_bytes([], [Stored("w", (8,), gguf.F32, bytes(32))])
        place = struct.pack("<QIQ", 8, gguf.F32, 0)
        at = good.index(place)
        for offset, reason in (
            (32, "but the file ends"),
            (1 << 63, "but the file ends"),
            (5, "want a multiple of 32"),
        ):
            self.refuses(
                good[:at] + struct.pack("<QIQ", 8, gguf.F32, offset) + good[at + len(place) :], reason
            )

    def test_an_alignment_that_is_none_is_refused(self) -> None:
        for kind, alignment in (
            (U32, 0),
            (U32, 48),
            (U32, 1 << 20),
            (STRING, "32"),
            (I32, -32),
            (BOOL, True),
        ):
            self.refuses(
                gguf_bytes([Field("general.alignment", kind, alignment)], TENSORS), "want a power of two"
            )

    def test_getters_name_the_field_that_is_missing_or_of_another_type(self) -> None:
        header = self.header(gguf_bytes(FIELDS, []))
        self.assertEqual(header.integer("u8", 0, 255), 200)
        self.assertEqual(header.array("words", str), ["a", "", "bc"])
        cases: List[tuple] = [
            (lambda: header.integer("none", 0, 1), "field none is missing"),
            (lambda: header.integer("u8", 0, 9), "u8 is 200, want an integer from 0 to 9"),
            (lambda: header.integer("yes", 0, 1), "yes is True, want an integer"),
            (lambda: header.number("text"), "want a finite number"),
            (lambda: header.text("u8"), "u8 is 200, want a string"),
            (lambda: header.array("words", int), "want an array of int"),
        ]
        for get, reason in cases:
            with self.assertRaisesRegex(gguf.GgufError, reason):
                get()


if __name__ == "__main__":
    unittest.main()
