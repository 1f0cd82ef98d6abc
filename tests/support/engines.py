"""Executions of a compute namespace in a real APU, with the test in the RPU's place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from potash_firmware.apu.config import Config, Limits
from potash_firmware.mailbox.messages import (
    FIRST_HANDLE,
    Cancel,
    CheckProgram,
    Execute,
    Executed,
    Forget,
    MemoryRange,
    OpenEngine,
    Outcome,
    ProgramChecked,
    ShareMemory,
    ShareProgram,
    ToRpu,
)
from potash_firmware.mailbox.shared import SharedMemory, seal
from potash_firmware.mailbox.values import ReadValue
from support.apu import Board
from support.bpf import DW, LDX, MEM, STX, insn
from support.bpf_elf import ALLOC, OBJECT, WRITE, Name, Part, elf, text

NSID = 7
PAGE = 4096
BASE = 0x1000_0000
STACK = 8
"""Pages, of which the entry function has the last one."""
CONFIG = Config(
    accelerators=(), limits=Limits(instructions=10**12, seconds=25.0, log_entries=64, patience=2.0)
)


class EngineBoard(Board):
    """A board whose APU has one compute namespace, 7."""

    def boot(self) -> None:
        self.ended_executions: dict[int, Executed] = {}
        self.checked: dict[int, Outcome] = {}
        self._handles = count(FIRST_HANDLE)
        self._execution_tags = count(1 << 16)
        super().boot()
        self.port.send(OpenEngine(NSID))

    def memory(self, contents: bytes = b"", pages: int = 1) -> tuple[SharedMemory, int]:
        """Shared memory and its handle."""
        size = max(pages * PAGE, -(-len(contents) // PAGE) * PAGE)
        memory = SharedMemory(size, "memory")
        memory.view[: len(contents)] = contents
        handle = next(self._handles)
        self.port.send(ShareMemory(handle, size, memory.fd))
        return memory, handle

    def program(self, image: bytes) -> int:
        """The handle of a program."""
        handle, descriptor = next(self._handles), seal("program", image)
        self.port.send(ShareProgram(handle, len(image), descriptor))
        os.close(descriptor)
        return handle

    def begin_check(self, program: int) -> int:
        tag = next(self._execution_tags)
        self.port.send(CheckProgram(tag, NSID, program))
        return tag

    def check(self, program: int) -> Outcome:
        return self.verdict(self.begin_check(program))

    def verdict(self, tag: int) -> Outcome:
        self.until(lambda: tag in self.checked)
        return self.checked[tag]

    def begin(
        self,
        program: int,
        *ranges: tuple[int, int, int],
        parameters: tuple[int, int] = (0, 0),
        data: bytes = b"",
        nsid: int = NSID,
        row: int = 0,
    ) -> int:
        """Send an execution; returns its tag."""
        tag = next(self._execution_tags)
        places = tuple(MemoryRange(*one) for one in ranges)
        if not data:
            self.port.send(Execute(tag, nsid, program, parameters, places, row=row))
            return tag
        descriptor = seal("data", data)
        self.port.send(Execute(tag, nsid, program, parameters, places, len(data), descriptor))
        os.close(descriptor)
        return tag

    def end_of(self, tag: int) -> tuple[Outcome, int]:
        self.until(lambda: tag in self.ended_executions)
        ended = self.ended_executions.pop(tag)
        return ended.outcome, ended.value

    def execute(
        self,
        program: int,
        *ranges: tuple[int, int, int],
        parameters: tuple[int, int] = (0, 0),
        data: bytes = b"",
    ) -> tuple[Outcome, int]:
        return self.end_of(self.begin(program, *ranges, parameters=parameters, data=data))

    def value(self) -> ReadValue:
        """The request for a value of an execution, of which there has been no other."""
        self.until(lambda: bool(self.values))
        (found,) = self.values
        assert isinstance(found, ReadValue)
        self.values.clear()
        return found

    def cancel(self, tag: int) -> None:
        self.port.send(Cancel(tag))

    def forget(self, handle: int) -> None:
        self.port.send(Forget(handle))

    def texts(self) -> list[str]:
        """What the engine's log says."""
        from csd_spec.descriptors import LogPage
        from csd_spec.opcodes import LOG_PAGE
        from nvme_spec import opcodes as nvme
        from nvme_spec.commands import GetLogPage

        length = 64 * 1024
        cdws = GetLogPage(LOG_PAGE, length // 4 - 1).encode()
        status, data = self.command(
            True, nvme.AdminOpcode.GET_LOG_PAGE, cdws, length=length, nsid=NSID
        )
        assert status == 0
        return [entry.text for entry in LogPage.decode(data).entries]

    def _take(self, message: ToRpu) -> None:
        match message:
            case Executed():
                assert message.tag not in self.ended_executions
                self.ended_executions[message.tag] = message
            case ProgramChecked():
                self.checked[message.tag] = message.outcome
            case _:
                super()._take(message)


@contextmanager
def engine_board(config: Config = CONFIG) -> Iterator[EngineBoard]:
    with EngineBoard(config) as made:
        assert isinstance(made, EngineBoard)
        yield made


def load(register: int, base: int, offset: int = 0) -> bytes:
    """8 bytes at an address in a register."""
    return insn(LDX | MEM | DW, register, base, offset)


def store(base: int, offset: int, register: int) -> bytes:
    return insn(STX | MEM | DW, base, register, offset)


def with_constants(*code: bytes) -> bytes:
    parts = [text(*code), Part(".rodata", b"constant"), Part(".data", b"variable", ALLOC | WRITE)]
    names = [Name("prog"), Name("r", ".rodata", type=OBJECT), Name("d", ".data", type=OBJECT)]
    return elf(parts, names)
