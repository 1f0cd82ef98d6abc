"""An assembler for eBPF, and the object file around its code.

RFC 9669 (instruction encoding) and System V ABI, chapter 4 (relocatable object files).
"""

from __future__ import annotations

import struct

from potash.columns.errors import InvalidQuery

_INSTRUCTION = struct.Struct("<BBhi")
_SIZES = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}
_LDX, _ST_X, _MEM, _MEMSX = 0x01, 0x03, 0x60, 0x80
_ALU64, _JMP, _X = 0x07, 0x05, 0x08
_ALU = {
    "+": 0x00, "-": 0x10, "*": 0x20, "|": 0x40, "&": 0x50, "<<": 0x60, ">>": 0x70, "-x": 0x80,
    "^": 0xA0, "=": 0xB0, "s>>": 0xC0,
}  # fmt: skip
_JUMPS = {
    "==": 0x10, ">": 0x20, ">=": 0x30, "!=": 0x50, "s>": 0x60, "s>=": 0x70, "<": 0xA0, "<=": 0xB0,
    "s<": 0xC0, "s<=": 0xD0,
}  # fmt: skip
_FARTHEST = (1 << 15) - 1


class Register(int):
    """A register as an operand, so that it differs from a number."""


R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = map(Register, range(11))


class Label:
    """A place in the code, which is set once."""

    at = -1


class Code:
    """Instructions, in their order. Numbers that do not fit in 32 bits go through `spare`."""

    def __init__(self, spare: Register) -> None:
        self._spare = spare
        self._slots: list[tuple[int, int, int, int]] = []
        self._jumps: list[tuple[int, Label]] = []

    def set(self, to: Register, value: int) -> None:
        """A number of 64 bits."""
        signed = _signed(value, 64)
        if -(1 << 31) <= signed < 1 << 31:
            self._add(_ALU64 | _ALU["="], to, 0, 0, signed)
            return
        self._add(0x18, to, 0, 0, _signed(value, 32))
        self._add(0, 0, 0, 0, _signed(value >> 32, 32))

    def alu(self, operator: str, to: Register, operand: int) -> None:
        """`to = to operator operand`, a register or a number; `=` copies, `-x` negates."""
        opcode = _ALU64 | _ALU[operator]
        operand = self._operand(operand)
        if isinstance(operand, Register):
            self._add(opcode | _X, to, operand, 0, 0)
        else:
            self._add(opcode, to, 0, 0, operand)

    def load(
        self, to: Register, base: Register, offset: int, size: int, signed: bool = False
    ) -> None:
        mode = _MEMSX if signed and size < 8 else _MEM
        self._add(_LDX | mode | _SIZES[size], to, base, offset, 0)

    def store(self, base: Register, offset: int, value: Register, size: int) -> None:
        self._add(_ST_X | _MEM | _SIZES[size], base, value, offset, 0)

    def jump_if(self, left: Register, operator: str, right: int, label: Label) -> None:
        """Jump where a register compares with a register or a number."""
        right = self._operand(right)
        opcode = _JMP | _JUMPS[operator]
        self._jumps.append((len(self._slots), label))
        if isinstance(right, Register):
            self._add(opcode | _X, left, right, 0, 0)
        else:
            self._add(opcode, left, 0, 0, right)

    def jump(self, label: Label) -> None:
        self._jumps.append((len(self._slots), label))
        self._add(0x06, 0, 0, 0, 0)  # the jump whose distance has 32 bits

    def place(self, label: Label) -> None:
        label.at = len(self._slots)

    def call(self, helper: int) -> None:
        self._add(0x85, 0, 0, 0, helper)

    def exit(self) -> None:
        self._add(0x95, 0, 0, 0, 0)

    def assembled(self) -> bytes:
        """The code. Raises InvalidQuery if a jump is too far."""
        slots = list(self._slots)
        for at, label in self._jumps:
            opcode, registers, _, operand = slots[at]
            distance = label.at - at - 1
            if opcode == 0x06:
                slots[at] = (opcode, registers, 0, distance)
            elif abs(distance) > _FARTHEST:
                raise InvalidQuery("the expression is too long for one program; ask in two queries")
            else:
                slots[at] = (opcode, registers, distance, operand)
        return b"".join(_INSTRUCTION.pack(*slot) for slot in slots)

    def _operand(self, operand: int) -> int:
        if isinstance(operand, Register) or -(1 << 31) <= operand < 1 << 31:
            return operand
        self.set(self._spare, operand)
        return self._spare

    def _add(self, opcode: int, to: int, by: int, offset: int, operand: int) -> None:
        if offset > _FARTHEST:
            raise InvalidQuery("the query has too many columns for one program; ask in two queries")
        self._slots.append((opcode, to | by << 4, offset, operand))


def object_file(code: bytes) -> bytes:
    """A relocatable object for BPF with one function, `prog`."""
    names = b"\0.text\0.symtab\0.strtab\0prog\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", names.index(b"prog"), 0x12, 0, 1, 0, 0)
    code_at = 64
    symbols_at = code_at + len(code)
    names_at = symbols_at + len(symbols)
    table_at = -(-(names_at + len(names)) // 8) * 8
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 247, 1, 0, 0, table_at,
                         0, 64, 0, 0, 64, 4, 3)  # fmt: skip
    sections = [
        (0,) * 10,
        (names.index(b".text"), 1, 6, 0, code_at, len(code), 0, 0, 8, 0),
        (names.index(b".symtab"), 2, 0, 0, symbols_at, len(symbols), 3, 1, 8, 24),
        (names.index(b".strtab"), 3, 0, 0, names_at, len(names), 0, 0, 1, 0),
    ]
    body = (header + code + symbols + names).ljust(table_at, b"\0")
    return body + b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
