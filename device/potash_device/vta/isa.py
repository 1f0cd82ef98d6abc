"""The five instructions and the micro-op, as values, and their encoding (positions are in
`encoding`).

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", section 2.2 (figure 3); the VTA
project's `hw_spec.h`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, ClassVar, NamedTuple

from potash_device.vta import encoding
from potash_device.vta.config import Config, MemoryId


class Opcode(IntEnum):
    """Bits 0-2 of an instruction."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class AluOpcode(IntEnum):
    """Operation of an ALU instruction."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


class Dependencies(IntFlag):
    """Bits 3-6 of an instruction: tokens taken before it and given after it.

    Previous and next are the neighbours of the module that executes it, in the order LOAD, COMPUTE,
    STORE.
    """

    NONE = 0
    POP_PREV = 1
    POP_NEXT = 2
    PUSH_PREV = 4
    PUSH_NEXT = 8


class Stage(IntEnum):
    """The three modules that execute instructions, each in the order of its own queue."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """Base class of all instructions."""

    opcode: ClassVar[Opcode]
    kind: ClassVar[str]
    """The name of its layout in `Layouts`."""
    dependencies: Dependencies = Dependencies.NONE

    @property
    def stage(self) -> Stage:
        return Stage.COMPUTE

    def encode(self, config: Config) -> int:
        """The instruction's 128 bits. Raises InstructionError."""
        layout: encoding.Layout = getattr(config.layouts, self.kind)
        return layout.pack({"opcode": self.opcode, **self.__dict__})


@dataclass(frozen=True, kw_only=True)
class MemoryInstruction(_Encoded):
    """A rectangle between DRAM and a buffer. Addresses, sizes, pads and stride in elements of
    `memory_type`; `dram_base` counts them from physical address 0."""

    kind: ClassVar[str] = "memory"
    memory_type: MemoryId
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0


@dataclass(frozen=True, kw_only=True)
class Load(MemoryInstruction):
    """DRAM to a buffer, with zeroes around: the rows are x_pad_0 + x_size + x_pad_1 elements."""

    opcode: ClassVar[Opcode] = Opcode.LOAD

    @property
    def stage(self) -> Stage:
        """LOAD feeds INP and WGT; what COMPUTE alone uses it fetches itself."""
        tensors = (MemoryId.INP, MemoryId.WGT)
        return Stage.LOAD if self.memory_type in tensors else Stage.COMPUTE


@dataclass(frozen=True, kw_only=True)
class Store(MemoryInstruction):
    """OUT, the truncated accumulators, to DRAM."""

    opcode: ClassVar[Opcode] = Opcode.STORE

    @property
    def stage(self) -> Stage:
        return Stage.STORE


@dataclass(frozen=True, kw_only=True)
class LoopInstruction(_Encoded):
    """Micro-ops uop_bgn up to uop_end (exclusive), inside two loops whose counters, multiplied by
    the factors, are added to the micro-ops' indices."""

    uop_bgn: int = 0
    uop_end: int = 0
    iter_out: int = 1
    iter_in: int = 1
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0

    @property
    def steps(self) -> int:
        return self.iter_out * self.iter_in * max(0, self.uop_end - self.uop_bgn)


@dataclass(frozen=True, kw_only=True)
class Gemm(LoopInstruction):
    """Multiply INP elements with WGT elements and accumulate in ACC, or zero ACC (`reset`)."""

    opcode: ClassVar[Opcode] = Opcode.GEMM
    kind: ClassVar[str] = "gemm"
    reset: bool = False
    wgt_factor_out: int = 0
    wgt_factor_in: int = 0


@dataclass(frozen=True, kw_only=True)
class Alu(LoopInstruction):
    """An element-wise operation of ACC with ACC, or with the immediate (`use_imm`)."""

    opcode: ClassVar[Opcode] = Opcode.ALU
    kind: ClassVar[str] = "alu"
    alu_opcode: AluOpcode
    use_imm: bool = False
    imm: int = 0


@dataclass(frozen=True, kw_only=True)
class Finish(_Encoded):
    """Signal the end of the stream to the host."""

    opcode: ClassVar[Opcode] = Opcode.FINISH
    kind: ClassVar[str] = "finish"


Instruction = Load | Store | Gemm | Alu | Finish


class MicroOp(NamedTuple):
    """Indices of the elements that one step of GEMM or ALU works on: ACC, INP (ALU: ACC), WGT."""

    dst: int
    src: int = 0
    wgt: int = 0

    def encode(self, config: Config) -> int:
        """The micro-op's 32 bits. Raises InstructionError."""
        return config.layouts.micro_op.pack(self._asdict())

    @classmethod
    def decode(cls, word: int, config: Config) -> "MicroOp":
        """Read 32 bits. Raises InstructionError where a reserved bit is set."""
        return cls(**config.layouts.micro_op.unpack(word))


def decode(word: int, config: Config) -> Instruction:
    """Read an instruction's 128 bits. Raises InstructionError for an opcode, memory type, ALU
    operation or reserved bit that the encoding does not have."""
    opcode = word & (1 << encoding.OPCODE_BITS) - 1
    kind = _KINDS.get(opcode)
    if kind is None:
        raise encoding.InstructionError(f"opcode {opcode} does not exist")
    layout: encoding.Layout = getattr(config.layouts, kind.kind)
    values: dict[str, Any] = layout.unpack(word)
    del values["opcode"]
    for name, (what, make) in _VALUES.items():
        if name in values:
            try:
                values[name] = make(values[name])
            except ValueError:
                raise encoding.InstructionError(f"{what} {values[name]} does not exist") from None
    return kind(**values)


_KINDS: Mapping[int, type[Instruction]] = {
    one.opcode: one for one in (Load, Store, Gemm, Alu, Finish)
}
_VALUES: Mapping[str, tuple[str, Callable[[int], Any]]] = {
    "dependencies": ("dependencies", Dependencies),
    "memory_type": ("memory type", MemoryId),
    "alu_opcode": ("ALU opcode", AluOpcode),
    "reset": ("reset", bool),
    "use_imm": ("use_imm", bool),
}
"""Fields whose values are not plain numbers: what errors call them, and their types."""


def encode_stream(instructions: Iterable[Instruction], config: Config) -> bytes:
    """The instructions, contiguous, as a core fetches them. Raises InstructionError."""
    return b"".join(
        instruction.encode(config).to_bytes(encoding.INSTRUCTION_BYTES, "little")
        for instruction in instructions
    )
