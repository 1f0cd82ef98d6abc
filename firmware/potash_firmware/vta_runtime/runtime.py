"""The runtime's interface for operators: loads, kernels, stores, dependences, `synchronize`.

Nothing reaches the core before `synchronize`. Arguments are checked when they are given, against
the encoding and the buffers' sizes, so that an error is raised by the call that causes it.

Source: the VTA project's `vta/runtime.h`; docs/vta.md shows which C function each method mirrors.
"""

from typing import NamedTuple, Self

from potash_device.vta import assembly
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Control, Core, Register
from potash_device.vta.encoding import InstructionError
from potash_device.vta.isa import Instruction, Load, MicroOp, Stage, Store
from potash_firmware.vta_runtime.buffers import Buffer, Heap, VtaMemoryError
from potash_firmware.vta_runtime.commands import CommandStream
from potash_firmware.vta_runtime.kernels import AluKernel, GemmKernel, MicroOpCache

LOADABLE = frozenset({MemoryId.INP, MemoryId.WGT, MemoryId.ACC, MemoryId.ACC_8BIT})


class _Repeated(NamedTuple):
    """Kernels that were pushed while all their micro-ops were in the core, and stayed there."""

    kernels: tuple[AluKernel | GemmKernel, ...]
    changes: int
    """`MicroOpCache.changes` at that time."""
    words: list[int]
    micro_ops: tuple[tuple[MicroOp, ...], ...]


class Runtime:
    """The driver of one core. A context manager; `close` gives its DRAM back."""

    def __init__(self, core: Core, heap: Heap | None = None) -> None:
        self.core = core
        self._heap = Heap(core) if heap is None else heap
        self._commands = CommandStream(core.config)
        self._kernels = MicroOpCache(core.config, self._heap.allocate, self._load_micro_ops)
        # Most instructions of a stream differ from another one in their address in DRAM alone.
        self._moves: dict[tuple[object, ...], tuple[Stage, int]] = {}
        self._of_kernels: dict[tuple[int, int], tuple[AluKernel | GemmKernel, int]] = {}
        """Kernels and their instructions, by the kernel's id and the place of its micro-ops."""
        self._repeated: dict[int, _Repeated] = {}
        """Kernels that were pushed together, by their id."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> Config:
        return self.core.config

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return tuple(self._commands.since(0))

    def stored_since(self, begin: int) -> set[int]:
        """The elements of DRAM, counted from physical address 0, that the stream stores from its
        instruction `begin` on."""
        return {
            one.dram_base + row * one.x_stride + column
            for one in self._commands.since(begin)
            if isinstance(one, Store)
            for row in range(one.y_size)
            for column in range(one.x_size)
        }

    @property
    def length(self) -> int:
        return len(self._commands)

    def dump(self) -> str:
        """The stream so far as text, with the micro-ops that it loads: what
        `potash_device.vta.assembly` assembles again."""
        stream, core = bytes(self._commands), self.core
        return "\n".join(assembly.listing(stream, core.config, dram=core.dram, base=core.base))

    def alloc(self, size: int) -> Buffer:
        """`size` zeroed bytes that the core can reach. Raises ValueError, VtaMemoryError."""
        try:
            return self._heap.allocate(size)
        except VtaMemoryError:
            if self._heap.held:
                raise
            self._kernels.clear()
            return self._heap.allocate(size)

    def load_2d(
        self,
        buffer: Buffer,
        memory: MemoryId,
        *,
        sram: int,
        offset: int,
        x_size: int,
        y_size: int = 1,
        x_stride: int | None = None,
        x_pad: tuple[int, int] = (0, 0),
        y_pad: tuple[int, int] = (0, 0),
    ) -> None:
        """Load `y_size` rows of `x_size` elements of `memory`, `x_stride` apart, from element
        `offset` of `buffer` into the chip from element `sram` on; the pads are zeroes (before,
        after). Raises ValueError where the buffer is exceeded or the encoding has no such value.
        """
        if memory not in LOADABLE:
            raise ValueError(f"{memory!r} is not loaded from a buffer")
        stride = x_size if x_stride is None else x_stride
        base = self._base(buffer, memory, offset, x_size, y_size, stride)
        key = int(memory), sram, x_size, y_size, stride, x_pad, y_pad
        if key not in self._moves:
            self._moves[key] = self._encoded(
                Load(
                    memory_type=memory,
                    sram_base=sram,
                    y_size=y_size,
                    x_size=x_size,
                    x_stride=stride,
                    y_pad_0=y_pad[0],
                    y_pad_1=y_pad[1],
                    x_pad_0=x_pad[0],
                    x_pad_1=x_pad[1],
                )
            )
        self._move(*self._moves[key], base)

    def store_2d(
        self,
        buffer: Buffer,
        *,
        sram: int,
        offset: int,
        x_size: int,
        y_size: int = 1,
        x_stride: int | None = None,
    ) -> None:
        """Store `y_size` rows of `x_size` OUT elements, `x_stride` apart, to element `offset` of
        `buffer`, from element `sram` of the chip on. Raises ValueError as `load_2d` does.
        """
        stride = x_size if x_stride is None else x_stride
        base = self._base(buffer, MemoryId.OUT, offset, x_size, y_size, stride)
        key = sram, x_size, y_size, stride
        if key not in self._moves:
            self._moves[key] = self._encoded(
                Store(
                    memory_type=MemoryId.OUT,
                    sram_base=sram,
                    y_size=y_size,
                    x_size=x_size,
                    x_stride=stride,
                )
            )
        self._move(*self._moves[key], base)

    def push_alu(self, kernel: AluKernel) -> None:
        """Append an ALU instruction. Raises ValueError, VtaMemoryError."""
        self._push(kernel)

    def push_gemm(self, kernel: GemmKernel) -> None:
        """Append a GEMM instruction. Raises ValueError, VtaMemoryError."""
        self._push(kernel)

    def push_all(self, kernels: tuple[AluKernel | GemmKernel, ...]) -> None:
        """Append the instructions of some kernels, quickly where they are the same object as
        before. Raises ValueError, VtaMemoryError."""
        cache = self._kernels
        repeated = self._repeated.get(id(kernels))
        if repeated is not None and repeated.changes == cache.changes:
            cache.use(repeated.micro_ops)
            self._commands.emit_words(Stage.COMPUTE, repeated.words)
            return
        changes, words = cache.changes, [self._push(kernel) for kernel in kernels]
        if words and cache.changes == changes:
            # Once each, in the order of their last use.
            used = {id(kernel.micro_ops): kernel.micro_ops for kernel in reversed(kernels)}
            micro_ops = tuple(reversed(used.values()))
            self._repeated[id(kernels)] = _Repeated(kernels, changes, words, micro_ops)

    def dep_push(self, frm: Stage, to: Stage) -> None:
        """`frm` signals `to` when everything pushed so far is done. Raises ValueError."""
        self._commands.push(frm, to)
        self._heap.held = True

    def dep_pop(self, frm: Stage, to: Stage) -> None:
        """The next instruction of `to` waits for a `dep_push`. Raises ValueError."""
        self._commands.pop(frm, to)
        self._heap.held = True

    def synchronize(self) -> None:
        """Run the stream to its end and begin a new one, also when it fails.

        Raises StreamError, and VtaMemoryError where DRAM has no room for the instructions.
        """
        commands = self._commands
        try:
            commands.finish()
            self._run(bytes(commands), len(commands))
        except BaseException:
            self._kernels.forget_core()
            raise
        finally:
            self._clear()

    def take(self) -> bytes:
        """End the stream as `synchronize` does, and return it instead of running it.

        `Core.execute` runs it, any number of times, while its buffers exist and this runtime
        is not closed; nor may an `alloc` since then have needed the DRAM of its micro-ops.
        """
        try:
            self._commands.finish()
            return bytes(self._commands)
        finally:
            self._kernels.forget_core()
            self._clear()

    def keep(self) -> tuple[bytes, tuple[Buffer, ...]]:
        """End the stream as `take` does, and hand over the memory of its micro-ops too: the stream
        can run any number of times until that or its other buffers are freed."""
        return self.take(), self._kernels.hand_over()

    def close(self) -> None:
        """Drop the stream and give back the DRAM that kernels take; calling it again does nothing.

        Buffers belong to their allocators.
        """
        self._kernels.clear()
        self._clear()

    def _run(self, stream: bytes, count: int) -> None:
        buffer = self._heap.allocate(len(stream))
        try:
            buffer.view[:] = stream
            self.core.write(Register.INSNS, buffer.physical)
            self.core.write(Register.INSN_COUNT, count)
            self.core.write(Register.CONTROL, Control.START)
        finally:
            buffer.free()

    def _clear(self) -> None:
        self._commands.clear()
        self._moves.clear()
        self._of_kernels.clear()
        self._repeated.clear()
        self._heap.let_go()

    def _load_micro_ops(self, buffer: Buffer, sram: int, count: int) -> None:
        base = buffer.physical // self.config.element_bytes(MemoryId.UOP)
        key = int(MemoryId.UOP), sram, count
        if key not in self._moves:
            self._moves[key] = self._encoded(
                Load(
                    memory_type=MemoryId.UOP,
                    sram_base=sram,
                    y_size=1,
                    x_size=count,
                    x_stride=count,
                )
            )
        self._move(*self._moves[key], base)

    def _push(self, kernel: AluKernel | GemmKernel) -> int:
        """Append a kernel's instruction, and return it."""
        begin = self._kernels.locate(kernel.micro_ops)
        kept = self._of_kernels.get((id(kernel), begin))
        if kept is None:
            kept = kernel, kernel.encode(begin, self.config)
            self._of_kernels[id(kernel), begin] = kept
        self._commands.emit_word(Stage.COMPUTE, kept[1])
        self._heap.held = True
        return kept[1]

    def _encoded(self, instruction: Instruction) -> tuple[Stage, int]:
        """An instruction's module and bits. Raises InstructionError."""
        return instruction.stage, instruction.encode(self.config)

    def _move(self, stage: Stage, word: int, base: int) -> None:
        """Append a load or store, `word`, of DRAM from element `base` on. Raises
        InstructionError."""
        field = self.config.layouts.memory.by_name["dram_base"]
        if base > field.mask:
            raise InstructionError(f"memory: dram_base is {base}, outside 0 to {field.mask}")
        self._commands.emit_word(stage, word | base << field.low)
        self._heap.held = True

    def _base(
        self, buffer: Buffer, memory: MemoryId, offset: int, x_size: int, y_size: int, stride: int
    ) -> int:
        """Start of rows of a buffer, in elements. Raises ValueError if they exceed it."""
        element = self.config.element_bytes(memory)
        if buffer.freed:
            raise ValueError(f"the VTA buffer at {buffer.physical:#x} was freed")
        end = offset
        if x_size > 0 and y_size > 0:
            end += (y_size - 1) * stride + x_size
        if offset < 0 or end * element > buffer.size:
            raise ValueError(
                f"{memory.name} elements {offset} to {end - 1} exceed a VTA buffer "
                f"of {buffer.size} bytes"
            )
        return buffer.physical // element + offset
