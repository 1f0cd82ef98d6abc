"""The core's interface to its driver: three registers and a shared DRAM.

The simulator takes no modelled time, so the stream has run when the write of START returns.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", section 2.4; the TVM project's VTA
hardware guide, "Fetch Module". Offsets are those of an AXI-Lite port that Vivado HLS makes: control
at 0, arguments from 0x10 on, one every eight bytes."""

import time
from collections.abc import Callable, Mapping
from enum import IntEnum, IntFlag

import numpy as np

from potash_device.vta.config import DRAM_BASE, Config
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.engines import DEFAULT_ENGINE, ENGINES
from potash_device.vta.simulator import STEP_LIMIT, Event
from potash_device.vta.stream import Order, StreamError


class RegisterError(ValueError):
    """A register access that the core does not have."""


class Register(IntEnum):
    """Byte offsets of the registers."""

    CONTROL = 0x00
    INSN_COUNT = 0x10
    INSNS = 0x18


WIDTHS: Mapping[Register, int] = {Register.CONTROL: 32, Register.INSN_COUNT: 32, Register.INSNS: 64}
"""Widths in bits. All registers can be written, and only CONTROL can be read."""


class Control(IntFlag):
    """Bits of CONTROL. START reads as zero; DONE is set by a stream that ran to its FINISH and
    stays until the next START; the other bits ignore what is written."""

    START = 1
    DONE = 2


class Core:
    """A tensor accelerator whose DRAM is `dram`, writable bytes from physical address `base` on.

    `engine` is one of `ENGINES`; it and the number of `threads`, of which some engines need only
    one, affect only the speed.
    """

    def __init__(
        self,
        config: Config,
        dram: memoryview,
        base: int = DRAM_BASE,
        *,
        step_limit: int = STEP_LIMIT,
        engine: str = DEFAULT_ENGINE,
        order: Order = Order.TOKENS,
        threads: int = 1,
    ) -> None:
        if engine not in ENGINES:
            raise ValueError(f"there is no VTA engine {engine!r}; there is {', '.join(ENGINES)}")
        self.config = config
        self.dram = dram.cast("B")
        self.base = base
        self.step_limit = step_limit
        """Micro-ops that one stream may execute."""
        self.error: StreamError | None = None
        """The error of the last stream; None if it did not fail."""
        self.observer: Callable[[bytes, float], None] | None = None
        """Called with each stream that has run to its end, and when it began (`time.monotonic`)."""
        self._engine = ENGINES[engine](
            config, self.dram, base, step_limit=step_limit, order=order, threads=threads
        )
        self._registers = dict.fromkeys(Register, 0)

    @classmethod
    def create(
        cls, config: Config, dram_bytes: int, *, engine: str = DEFAULT_ENGINE, threads: int = 1
    ) -> "Core":
        dram = np.zeros(dram_bytes, np.uint8).data  # what is never used takes no memory
        return cls(config, dram, engine=engine, threads=threads)

    @property
    def is_compiled(self) -> bool:
        """True where compiled code is loaded."""
        return self._engine.is_compiled

    @property
    def trace(self) -> Callable[[Event], None] | None:
        """Called before each instruction, when set."""
        return self._engine.trace

    @trace.setter
    def trace(self, trace: Callable[[Event], None] | None) -> None:
        self._engine.trace = trace

    def read(self, register: int) -> int:
        """A register's value. Raises RegisterError where there is none or it cannot be read."""
        known = _known(register)
        if known is not Register.CONTROL:
            raise RegisterError(f"VTA register {known.name} cannot be read")
        return self._registers[known]

    def write(self, register: int, value: int) -> None:
        """Set a register. START runs the stream and raises StreamError when it fails, which `error`
        then holds too. Raises RegisterError for a register or value that does not exist."""
        known = _known(register)
        if not 0 <= value < 1 << WIDTHS[known]:
            raise RegisterError(f"{value} does not fit VTA register {known.name}")
        if known is not Register.CONTROL:
            self._registers[known] = value
        elif value & Control.START:
            self._start()

    def execute(self, stream: bytes) -> None:
        """Run a stream that is not in DRAM, as START runs one that is. Raises StreamError,
        which `error` then holds too."""
        self._carry_out(lambda: self._engine.execute(stream), lambda: stream)

    def reset(self) -> None:
        """Registers and buffers as they are at power-on. DRAM keeps its contents."""
        self._registers = dict.fromkeys(Register, 0)
        self.error = None
        self._engine.reset()

    def _start(self) -> None:
        insns, count = (self._registers[r] for r in (Register.INSNS, Register.INSN_COUNT))
        first = insns - self.base
        self._carry_out(
            lambda: self._engine.run(insns, count),
            lambda: bytes(self.dram[first : first + count * INSTRUCTION_BYTES]),
        )

    def _carry_out(self, run: Callable[[], None], stream: Callable[[], bytes]) -> None:
        self._registers[Register.CONTROL] = 0
        self.error = None
        # Copied before it runs, as a stream may overwrite itself.
        observed = None if self.observer is None else (stream(), time.monotonic())
        try:
            run()
        except StreamError as error:
            self.error = error
            raise
        self._registers[Register.CONTROL] = Control.DONE
        if self.observer is not None and observed is not None:
            self.observer(*observed)


def _known(register: int) -> Register:
    try:
        return Register(register)
    except ValueError:
        raise RegisterError(f"the VTA has no register at {register:#x}") from None
