"""An assembler for LLVM's notation of BPF, for programs in tests.

Encodings are written out from RFC 9669, apart from the ones under test. One instruction a line,
`name:` before what is jumped to or called, `;` before a remark.
"""

import re
import struct
from collections.abc import Callable, Mapping

from support.bpf import insn, lddw

_ASSIGN = {
    "+=": (0x00, 0), "-=": (0x10, 0), "*=": (0x20, 0), "/=": (0x30, 0), "s/=": (0x30, 1),
    "|=": (0x40, 0), "&=": (0x50, 0), "<<=": (0x60, 0), ">>=": (0x70, 0), "%=": (0x90, 0),
    "s%=": (0x90, 1), "^=": (0xA0, 0), "=": (0xB0, 0), "s>>=": (0xC0, 0),
}  # fmt: skip
_COMPARE = {
    "==": 0x10, ">": 0x20, ">=": 0x30, "&": 0x40, "!=": 0x50, "s>": 0x60, "s>=": 0x70,
    "<": 0xA0, "<=": 0xB0, "s<": 0xC0, "s<=": 0xD0,
}  # fmt: skip
_SIZES = {"8": 0x10, "16": 0x08, "32": 0x00, "64": 0x18}
_FETCH = {"add": 0x01, "or": 0x41, "and": 0x51, "xor": 0xA1}
_LOCK = {"+=": 0x00, "|=": 0x40, "&=": 0x50, "^=": 0xA0}

_NUMBER = r"-?(?:0x[0-9a-f]+|\d+)"
_TARGET = r"[-+]?\w+"
_OPERAND = rf"(?:[rw]\d+|{_NUMBER})"
_PLACE = r"r(?P<base>\d+) (?P<sign>[-+]) (?P<offset>\d+)"

Match = re.Match[str]
Where = Callable[[str], int]


def _imm(text: str) -> int:
    value = int(text, 0)
    return value - (1 << 32) if 1 << 31 <= value < 1 << 32 else value


def _source(text: str) -> tuple[int, int, int]:
    """The opcode's source bit, the src field and the imm field of an operand."""
    return (8, int(text[1:]), 0) if text[0] in "rw" else (0, 0, _imm(text))


def _offset(match: Match) -> int:
    return int(match["sign"] + match["offset"])


def _wide(match: Match, where: Where) -> bytes:
    if match["value"].lstrip("-")[0].isdigit():
        return lddw(int(match["dst"]), int(match["value"], 0) & (1 << 64) - 1)
    return lddw(int(match["dst"]), where(match["value"]) & 0xFFFF_FFFF, src=4)


def _assign(match: Match, where: Where) -> bytes:
    code, offset = _ASSIGN[match["op"]]
    bit, src, imm = _source(match["src"])
    kind = 4 if match["width"] == "w" else 7
    return insn(code | bit | kind, int(match["dst"]), src, offset, imm)


def _sign_extend(match: Match, where: Where) -> bytes:
    kind = 4 if match["width"] == "w" else 7
    return insn(0xB8 | kind, int(match["dst"]), int(match["src"]), int(match["bits"]))


def _negate(match: Match, where: Where) -> bytes:
    return insn(0x80 | (4 if match["width"] == "w" else 7), int(match["dst"]))


def _swap(match: Match, where: Where) -> bytes:
    opcode = {"le": 0xD4, "be": 0xDC, "bswap": 0xD7}[match["order"]]
    return insn(opcode, int(match["dst"]), imm=int(match["bits"]))


def _load(match: Match, where: Where) -> bytes:
    mode = 0x60 if match["type"] == "u" else 0x80
    opcode = mode | _SIZES[match["bits"]] | 1
    return insn(opcode, int(match["dst"]), int(match["base"]), _offset(match))


def _store(match: Match, where: Where) -> bytes:
    bit, src, imm = _source(match["src"])
    opcode = 0x60 | _SIZES[match["bits"]] | (3 if bit else 2)
    return insn(opcode, int(match["base"]), src, _offset(match), imm)


def _atomic(match: Match, operation: int) -> bytes:
    opcode = 0xC3 | _SIZES[match["bits"]]
    return insn(opcode, int(match["base"]), int(match["src"]), _offset(match), operation)


def _jump(match: Match, where: Where) -> bytes:
    bit, src, imm = _source(match["src"])
    opcode = _COMPARE[match["op"]] | bit | (6 if match["width"] == "w" else 5)
    return insn(opcode, int(match["dst"]), src, where(match["target"]), imm)


def _call(match: Match, where: Where) -> bytes:
    target = match["target"]
    if target.lstrip("-").isdecimal():
        return insn(0x85, imm=int(target))
    return insn(0x85, src=1, imm=where(target))


_FORMS: Mapping[str, Callable[[Match, Where], bytes]] = {
    rf"r(?P<dst>\d+) = (?P<value>{_TARGET}|{_NUMBER}) ll": _wide,
    rf"(?P<width>[rw])(?P<dst>\d+) (?P<op>[^ ]*=) (?P<src>{_OPERAND})": _assign,
    r"(?P<width>[rw])(?P<dst>\d+) = \(s(?P<bits>\d+)\)[rw](?P<src>\d+)": _sign_extend,
    r"(?P<width>[rw])(?P<dst>\d+) = -[rw](?P=dst)": _negate,
    r"r(?P<dst>\d+) = (?P<order>le|be|bswap)(?P<bits>\d+) r(?P=dst)": _swap,
    rf"r(?P<dst>\d+) = \*\((?P<type>[us])(?P<bits>\d+) \*\)\({_PLACE}\)": _load,
    rf"\*\(u(?P<bits>\d+) \*\)\({_PLACE}\) = (?P<src>{_OPERAND})": _store,
    rf"lock \*\(u(?P<bits>\d+) \*\)\({_PLACE}\) (?P<op>\S=) [rw](?P<src>\d+)": (
        lambda match, where: _atomic(match, _LOCK[match["op"]])
    ),
    rf"[rw](?P<src>\d+) = atomic_fetch_(?P<op>\w+)\(\(u(?P<bits>\d+) \*\)\({_PLACE}\), [rw]\d+\)": (
        lambda match, where: _atomic(match, _FETCH[match["op"]])
    ),
    rf"[rw](?P<src>\d+) = xchg(?:32)?_(?P<bits>\d+)\({_PLACE}, [rw]\d+\)": (
        lambda match, where: _atomic(match, 0xE1)
    ),
    rf"[rw]0 = cmpxchg(?:32)?_(?P<bits>\d+)\({_PLACE}, [rw]0, [rw](?P<src>\d+)\)": (
        lambda match, where: _atomic(match, 0xF1)
    ),
    rf"if (?P<width>[rw])(?P<dst>\d+) (?P<op>\S+) (?P<src>{_OPERAND}) goto (?P<target>{_TARGET})": (
        _jump
    ),
    rf"goto (?P<target>{_TARGET})": lambda match, where: insn(
        0x05, offset=where(match["target"])
    ),
    rf"gotol (?P<target>{_TARGET})": lambda match, where: insn(0x06, imm=where(match["target"])),
    rf"call (?P<target>{_TARGET})": _call,
    r"callx r(?P<dst>\d+)": lambda match, where: insn(0x8D, int(match["dst"])),
    "exit": lambda match, where: insn(0x95),
}  # fmt: skip
_COMPILED = [(re.compile(pattern), make) for pattern, make in _FORMS.items()]


def assemble(text: str) -> bytes:
    """The instructions of a program."""
    lines = [line.partition(";")[0].strip() for line in text.splitlines()]
    labels: dict[str, int] = {}
    instructions: list[tuple[int, str]] = []
    slot = 0
    for line in filter(None, lines):
        if line.endswith(":"):
            labels[line[:-1]] = slot
        else:
            instructions.append((slot, line))
            slot += 2 if line.endswith(" ll") else 1

    def distance(slot: int, target: str) -> int:
        return int(target) if target[0] in "+-" else labels[target] - slot - 1

    code = b""
    for slot, line in instructions:
        code += _one(line, lambda target, slot=slot: distance(slot, target))  # type: ignore[misc]
    return code


def _one(line: str, where: Where) -> bytes:
    for pattern, make in _COMPILED:
        match = pattern.fullmatch(line)
        if match is not None:
            return make(match, where)
    raise ValueError(f"this is no instruction: {line!r}")


def slots(*words: int) -> bytes:
    """Instructions that no notation has, as the numbers of their 64 bits."""
    return struct.pack(f"<{len(words)}Q", *words)
