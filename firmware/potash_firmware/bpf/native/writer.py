"""LLVM assembly, a line at a time."""

import re
from collections.abc import Sequence

from potash_firmware.bpf.errors import EngineUnavailable

LIKELY, UNLIKELY = "!prof !0", "!prof !1"

FOOTER = """
!0 = !{!"branch_weights", i32 1000000, i32 1}
!1 = !{!"branch_weights", i32 1, i32 1000000}
!2 = !{!"memory"}
!3 = !{!"arena", !2, i64 0}
!4 = !{!"context", !2, i64 0}
!5 = !{!3, !3, i64 0}
!6 = !{!4, !4, i64 0}
!7 = distinct !{!7, !8}
!8 = !{!"llvm.loop.vectorize.width", i32 1}
"""
ARENA, CONTEXT = "!tbaa !5", "!tbaa !6"
"""The program cannot reach the context, so accesses to one never touch the other."""
SCALAR = "!llvm.loop !7"
"""On a back edge: the loop is not vectorised."""

_TYPE_OR_LITERAL = re.compile(r"\bi(\d+)\b|(?<![\w%@!.-])(-?\d+)\b")


def verify(text: str) -> str:
    """`text`, whose integer literals all fit the type that precedes them.

    LLVM truncates a larger one silently, which could turn a bound into 0. Raises EngineUnavailable,
    which leaves the program to the interpreter.
    """
    bits = 0
    for kind, literal in _TYPE_OR_LITERAL.findall(text):
        if kind:
            bits = int(kind)
        elif not fits(int(literal), bits):
            raise EngineUnavailable(f"an internal error: {literal} does not fit in {bits} bits")
    return text


def fits(value: int, bits: int) -> bool:
    """True where an integer type has a value; only types of up to 64 bits are used as unsigned,
    too."""
    return -(1 << bits - 1) <= value < 1 << (bits if bits <= 64 else bits - 1)


class Writer:
    """The body of one function. Cold blocks are written at its end."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._cold: list[str] = []
        self._names = 0

    def name(self, prefix: str = "") -> str:
        self._names += 1
        return f"{prefix or 'v'}.{self._names}"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def value(self, expression: str) -> str:
        name = f"%{self.name()}"
        self._lines.append(f"  {name} = {expression}")
        return name

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")

    def jump(self, target: str, note: str = "") -> None:
        comma = f", {note}" if note else ""
        self._lines.append(f"  br label %{target}{comma}")

    def branch(self, condition: str, yes: str, no: str, note: str = "") -> None:
        comma = f", {note}" if note else ""
        self._lines.append(f"  br i1 {condition}, label %{yes}, label %{no}{comma}")

    def cold(self, label: str, lines: Sequence[str]) -> None:
        self._cold.append(f"{label}:")
        self._cold.extend(f"  {line}" for line in lines)

    def context(self, word: int) -> str:
        return self.value(f"getelementptr i64, ptr %context, i64 {word}")

    def load_context(self, word: int) -> str:
        return self.value(f"load i64, ptr {self.context(word)}, {CONTEXT}")

    def store_context(self, word: int, value: str | int) -> None:
        self.line(f"store i64 {value}, ptr {self.context(word)}, {CONTEXT}")

    def begin_cold(self, label: str) -> "ColdPart":
        """Write what follows into a cold block, until the context manager ends."""
        return ColdPart(self, label)

    def text(self) -> str:
        return "\n".join(self._lines + self._cold)


class ColdPart:
    def __init__(self, writer: Writer, label: str) -> None:
        self._writer = writer
        self._label = label

    def __enter__(self) -> None:
        self._lines = self._writer._lines
        self._writer._lines = [f"{self._label}:"]

    def __exit__(self, *_: object) -> None:
        self._writer._cold.extend(self._writer._lines)
        self._writer._lines = self._lines
