"""What ptxas made of the kernels: reads the machine code of compute capability 9.0 out of an archive of objects, without any
tool of the toolkit. An instruction has 128 bits, its opcode in the low 12, the width of a memory access in bits 73 to 75, the
registers of a branch's target in none: its offset counts from the next instruction."""

import re
import struct
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

NAMES = {0x981: "LDG", 0x986: "STG", 0x386: "STG", 0x984: "LDS", 0x388: "STS", 0x988: "STS", 0x83b: "LDSM", 0x983: "LDL",
         0x387: "STL", 0x987: "STL", 0xfae: "LDGSTS", 0x23c: "HMMA", 0x237: "IMMA", 0x9f0: "HGMMA", 0xdf0: "HGMMA",
         0x9c5: "WARPGROUP", 0x308: "MUFU", 0x947: "BRA", 0x944: "CALL", 0x343: "CALL", 0x94d: "EXIT", 0x9a8: "ATOMG",
         0x82d: "PREEXIT", 0x82e: "ACQBULK"}  # griddepcontrol: launch_dependents, wait
BITS = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 64, 6: 128}


class Instruction(NamedTuple):
    name: str  # "" where nothing here asks for it
    bits: int  # of a memory access
    target: Optional[int]  # of a branch: the index of the instruction
    code: int


class Kernel(NamedTuple):
    name: str  # mangled
    registers: int
    code: List[Instruction]

    def loops(self) -> List[Tuple[int, int]]:
        """First and last instruction of each backward branch; the one that every kernel ends with, to itself, is none."""
        return [(one.target, at) for at, one in enumerate(self.code)
                if one.name == "BRA" and one.target is not None and one.target < at]

    def count(self, name: str, begin: int = 0, end: Optional[int] = None) -> int:
        return sum(one.name == name for one in self.code[begin:end])

    def in_loops(self, name: str) -> int:
        inside = {at for begin, end in self.loops() for at in range(begin, end + 1)}
        return sum(self.code[at].name == name for at in inside)

    def widths(self, name: str) -> List[int]:
        return [one.bits for one in self.code if one.name == name]


def decode(code: bytes) -> List[Instruction]:
    found = []
    for at in range(0, len(code) - 15, 16):
        word = int.from_bytes(code[at:at + 16], "little")
        name = NAMES.get(word & 0xfff, "")
        target = None
        if name == "BRA":
            high = word >> 34 & (1 << 48) - 1
            offset = ((high - (1 << 48 if high >> 47 else 0)) << 8 | word >> 16 & 0xff) * 4
            target = at // 16 + 1 + offset // 16
        found.append(Instruction(name, BITS.get(word >> 73 & 7, 0), target, word))
    return found


def sections(elf: bytes) -> Iterator[Tuple[str, bytes]]:
    """Name and content of each."""
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3a)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, at + i * size) for i in range(count)]
    strings = elf[headers[names][4]:headers[names][4] + headers[names][5]]
    for name, kind, _, _, offset, length, _, _, _, _ in headers:
        yield strings[name:strings.index(b"\0", name)].decode(), b"" if kind == 8 else elf[offset:offset + length]


def registers(image: bytes) -> Dict[str, int]:
    """By the kernel's mangled name: .nv.info's attribute 0x2f is (symbol, registers)."""
    found = dict(sections(image))
    symbols, strings, info = found[".symtab"], found[".strtab"], found[".nv.info"]
    counts, at = {}, 0
    while at + 4 <= len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        if (kind, attribute, size) == (4, 0x2f, 8):
            symbol, count = struct.unpack_from("<II", info, at + 4)
            name, = struct.unpack_from("<I", symbols, 24 * symbol)
            counts[strings[name:strings.index(b"\0", name)].decode()] = count
        at += 4 + (size if kind == 4 else 0)
    return counts


def cubins(fatbin: bytes) -> Iterator[bytes]:
    """The ELF images of a .nv_fatbin section: regions that begin with a magic number, each of some entries."""
    at = 0
    while at + 16 <= len(fatbin):
        magic, _, header, length = struct.unpack_from("<IHHQ", fatbin, at)
        if magic != 0xba55ed50:
            at += 8
            continue
        entry, end = at + header, at + header + length
        while entry < end:
            kind, _, size, padded = struct.unpack_from("<HHIQ", fatbin, entry)
            if kind == 2:
                image = fatbin[entry + size:entry + size + padded]
                if image[:4] != b"\x7fELF":
                    raise ValueError("the cubin is compressed: build it with -Xfatbin -no-compress, or teach this to unpack it")
                yield image
            entry += size + padded
        at = end


def members(archive: bytes) -> Iterator[Tuple[str, bytes]]:
    """Of an `ar` archive."""
    if archive[:8] != b"!<arch>\n":
        raise ValueError("this is no archive")
    long_names, at = b"", 8
    while at + 60 <= len(archive):
        name, size = archive[at:at + 16].decode().strip(), int(archive[at + 48:at + 58])
        body = archive[at + 60:at + 60 + size]
        if name == "//":
            long_names = body
        elif re.fullmatch(r"/\d+", name):
            begin = int(name[1:])
            name = long_names[begin:long_names.index(b"/\n", begin)].decode()
        yield name.rstrip("/"), body
        at += 60 + size + size % 2


def kernels_of(archive: Path) -> Dict[str, Kernel]:
    found = {}
    for member, body in members(archive.read_bytes()):
        if not member.endswith(".cu.o"):
            continue
        for name, content in sections(body):
            if name != ".nv_fatbin":
                continue
            for image in cubins(content):
                counts = registers(image)
                for section, code in sections(image):
                    if section.startswith(".text."):
                        mangled = section[len(".text."):]
                        found[mangled] = Kernel(mangled, counts[mangled], decode(code))
    return found
