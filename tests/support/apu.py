"""A real APU process, and the test in the RPU's place at the other end of its mailbox."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Self

from csd_spec import fields
from csd_spec.descriptors import AcceleratorStatus, LogEntry, LogPage
from csd_spec.opcodes import LOG_PAGE, AdminOpcode, GlobalOperation, IoOpcode, Operation
from csd_spec.status import StatusId
from nvme_spec import opcodes as nvme
from nvme_spec.commands import GetLogPage
from potash_firmware.apu.config import AcceleratorConfig, Config, Limits, NamespaceConfig
from potash_firmware.apu_process import environment
from potash_firmware.mailbox import SharedBuffers, pair
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    NO_SLOT,
    JobBegan,
    JobCounted,
    JobDue,
    JobEnded,
    JobLeft,
    ReadCheck,
    ReadChecked,
    Reply,
    Request,
    Reset,
    ResetDone,
    ResetScope,
    ToRpu,
    WriteBack,
    WriteBackDone,
)
from potash_firmware.mailbox.shared import Counters, SharedMemory
from potash_firmware.mailbox.values import ReadJobValue, ReadValue
from support.bpf_elf import Name, Part, elf, text
from support.processes import children, descendants, name

DEADLINE = 120.0
"""Seconds after which something that should have happened is a failure."""

BUFFER = 64 * 1024
MEDIA = 64 * 4096
"""Bytes of each buffer and of the namespace, unless a test says otherwise."""

CONFIG = Config(
    accelerators=(AcceleratorConfig(0, BUFFER, BUFFER), AcceleratorConfig(3, BUFFER, BUFFER)),
    namespaces=(NamespaceConfig(1, MEDIA),),
    limits=Limits(instructions=10**12, seconds=100.0, log_entries=32, patience=2.0),
)


class Board:
    """What outlives the APU, and the RPU's part of the conversation. A context manager."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.config = config
        self.buffers = SharedBuffers.create({item.id: item.plan for item in config.accelerators})
        self.media = {
            item.nsid: SharedMemory(item.size, f"media{item.nsid}") for item in config.namespaces
        }
        self.counters = Counters.create(config.rows)
        """Shared with the APU where time is modelled."""
        self.write_backs: list[WriteBack] = []
        self.read_checks: list[ReadCheck] = []
        self.read_error: tuple[int, int] = (0, 0)
        self.ended: list[JobEnded] = []
        self.write_error = 0
        self.hold_write_backs = False
        self.begun: list[JobBegan] = []
        self.counted: list[JobCounted] = []
        self.left: list[JobLeft] = []
        self.hold_due = False
        self.values: list[ReadValue | ReadJobValue] = []
        """Requests for values, which the test answers."""
        self._tags = count(1)
        self._answers: dict[int, Reply | ResetDone] = {}
        self._seen: set[int] = set()
        self._forgotten: dict[int, int] = {}
        self.boot()

    def boot(self) -> None:
        """Start an APU on what there is."""
        self.port, other = pair()
        self._forgotten.clear()
        descriptors = {"mailbox": other.fileno(), **self.buffers.descriptors()}
        readers = {
            f"media{nsid}": os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY)
            for nsid, memory in self.media.items()
        }
        descriptors |= readers
        descriptors["config"] = self.config.share()
        if self.config.processor is not None:
            descriptors["counters"] = self.counters.fd
        names = ",".join(f"{name}={fd}" for name, fd in descriptors.items())
        command = [sys.executable, "-m", "potash_firmware.apu", "--fds", names]
        self.process = subprocess.Popen(
            command, env=environment(), pass_fds=tuple(descriptors.values())
        )
        other.close()
        for descriptor in (descriptors["config"], *readers.values()):
            os.close(descriptor)

    def kill(self) -> None:
        """End the APU as a power failure would; its descendants must follow it."""
        descendants = self.descendants()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.port.close()
        for pidfd in descendants:
            await_end(pidfd)

    def close(self) -> None:
        """End the APU the orderly way, see that all its processes go, and release everything."""
        descendants = self.descendants()
        self.port.close()
        try:
            assert self.process.wait(DEADLINE) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self.buffers.close()
            with self.counters:
                pass
            for memory in self.media.values():
                memory.close()
            for pidfd in descendants:
                await_end(pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Processes

    def descendants(self) -> list[int]:
        """A pidfd for every process below the APU."""
        found = []
        for pid in descendants(self.process.pid):
            with suppress(ProcessLookupError):  # one that was for a moment
                found.append(os.pidfd_open(pid))
        return found

    def fork_server(self) -> int:
        """The process that makes workers."""
        (pid,) = children(self.process.pid)
        return pid

    def workers(self, accelerator: int) -> list[int]:
        """The workers of an accelerator, by their name: none or two while one is replaced."""
        return [p for p in children(self.fork_server()) if self._works_for(p, accelerator)]

    def has_worker(self, accelerator: int) -> bool:
        return bool(self.workers(accelerator))

    def worker(self, accelerator: int) -> int:
        (pid,) = self.workers(accelerator)
        return pid

    @staticmethod
    def _works_for(pid: int, accelerator: int) -> bool:
        return name(pid) == f"potash-worker{accelerator}"

    # Messages

    def send(self, admin: bool, opcode: int, cdws: Sequence[int], **data: object) -> int:
        """Send a request; returns its tag."""
        tag = next(self._tags)
        request = Request(tag, admin, opcode, 1, tuple(cdws))  # type: ignore[arg-type]  # six of them
        self.port.send(replace(request, **data))  # type: ignore[arg-type]  # nsid, slot, length
        return tag

    def answer(self, tag: int) -> Reply | ResetDone:
        """What was answered to a request."""
        self.until(lambda: tag in self._answers)
        return self._answers.pop(tag)

    def until(self, done: Callable[[], bool]) -> None:
        """Take in messages until something is so."""
        end = time.monotonic() + DEADLINE
        while not done():
            message = self.port.receive()
            if message is not None:
                self._take(message)
                continue
            assert not self.port.closed, "the APU is gone"
            self.port.flush()
            left = end - time.monotonic()
            assert left > 0, "the APU does not answer"
            select.select([self.port], [self.port] if self.port.wants_write() else [], [], left)

    def complete(self, write_back: WriteBack, error: int = 0) -> None:
        """Do what the RPU does with a write-back."""
        arena = self.buffers.arena(write_back.accelerator)
        source = write_back.source
        for nsid, first, length in write_back.ranges:
            if not error:
                self.media[nsid].view[first : first + length] = arena[source : source + length]
            source += length
        if not write_back.more:
            self.port.send(WriteBackDone(write_back.tag, error))

    def _take(self, message: ToRpu) -> None:
        match message:
            case Reply(tag=tag) | ResetDone(tag=tag):
                assert tag not in self._seen, f"{tag} was answered twice"
                self._seen.add(tag)
                self._answers[tag] = message
            case WriteBack():
                self.write_backs.append(message)
                if not self.hold_write_backs:
                    self.complete(message, self.write_error)
            case ReadCheck():
                self.read_checks.append(message)
                self.port.send(ReadChecked(message.tag, *self.read_error))
            case JobEnded():
                self.ended.append(message)
            case JobBegan():
                self.begun.append(message)
            case JobCounted():
                self.counted.append(message)
                if not message.more and not self.hold_due:
                    self.port.send(JobDue(message.accelerator, message.job))
            case JobLeft():
                self.left.append(message)
            case ReadValue() | ReadJobValue():
                self.values.append(message)

    # Commands

    def command(
        self,
        admin: bool,
        opcode: int,
        cdws: Sequence[int],
        *,
        data: bytes | None = None,
        length: int = 0,
        nsid: int = 1,
    ) -> tuple[int, bytes]:
        """Status and returned bytes of a command that sends `data` or reads `length` bytes."""
        slot = 5
        if data:
            self.buffers.slot(slot)[: len(data)] = data
            length = len(data)
        tag = self.send(
            admin, opcode, cdws, nsid=nsid, slot=slot if length else NO_SLOT, length=length
        )
        reply = self.answer(tag)
        assert isinstance(reply, Reply)
        self.result = reply.result
        if reply.length:
            assert data is None and reply.length <= length
        return reply.status, bytes(self.buffers.slot(slot)[: reply.length])

    def enable(self) -> int:
        cdws = fields.GlobalControl(GlobalOperation.ENABLE).encode()
        return self.command(True, AdminOpcode.GLOBAL_CONTROL, cdws)[0]

    def disable(self) -> int:
        cdws = fields.GlobalControl(GlobalOperation.DISABLE).encode()
        return self.command(True, AdminOpcode.GLOBAL_CONTROL, cdws)[0]

    def send_data(self, data: bytes, accelerator: int = 0, offset: int = 0) -> int:
        cdws = fields.DataTransfer(len(data) // 4, accelerator, offset // 4).encode()
        return self.command(False, IoOpcode.SEND_DATA, cdws, data=data)[0]

    def read_data(self, length: int, accelerator: int = 0, offset: int = 0) -> bytes:
        cdws = fields.DataTransfer(length // 4, accelerator, offset // 4).encode()
        status, data = self.command(False, IoOpcode.READ_DATA, cdws, length=length)
        assert status == 0
        return data

    def send_firmware(
        self, image: bytes, identifier: int = 0, accelerator: int = 0, offset: int = 0
    ) -> int:
        image += bytes(-len(image) % 4)
        cdws = fields.FirmwareTransfer(
            len(image) // 4, accelerator, identifier, offset // 4
        ).encode()
        return self.command(False, IoOpcode.SEND_FIRMWARE, cdws, data=image)[0]

    def read_firmware(
        self, length: int, identifier: int = 0, accelerator: int = 0, offset: int = 0
    ) -> tuple[int, bytes]:
        cdws = fields.FirmwareTransfer(length // 4, accelerator, identifier, offset // 4).encode()
        return self.command(False, IoOpcode.READ_FIRMWARE, cdws, length=length)

    def local(
        self, opcode: IoOpcode, start: int, pages: int, accelerator: int = 0, nsid: int = 1
    ) -> int:
        cdws = fields.LocalStorage(start, pages, accelerator).encode()
        return self.command(False, opcode, cdws, nsid=nsid)[0]

    def grant(
        self, start: int, pages: int, *, writable: bool = False, replace: bool = False
    ) -> int:
        cdws = fields.LocalStorage(start, pages, 0, writable, replace).encode()
        return self.command(False, IoOpcode.GRANT_LOCAL_STORAGE, cdws)[0]

    def control(
        self, operation: int, accelerator: int = 0, firmware: int = 0, arguments: bytes = b""
    ) -> int:
        cdws = fields.Control(operation, accelerator, firmware, len(arguments) // 4).encode()
        return self.command(False, IoOpcode.CONTROL, cdws, data=arguments)[0]

    def status(self, accelerator: int = 0, *, retain: bool = False) -> AcceleratorStatus:
        cdws = fields.GetStatus(32, accelerator, retain).encode()
        status, data = self.command(True, AdminOpcode.GET_STATUS, cdws, length=128)
        assert status == 0
        return AcceleratorStatus.decode(data)

    def log(self, accelerator: int = 0, *, retain: bool = False) -> LogPage:
        length = 64 * 1024
        cdws = GetLogPage(LOG_PAGE, length // 4 - 1, rae=retain, lsi=accelerator).encode()
        status, data = self.command(True, nvme.AdminOpcode.GET_LOG_PAGE, cdws, length=length)
        assert status == 0
        return LogPage.decode(data)

    def forget_log(self, accelerator: int = 0) -> None:
        """Let `log_types` and `log_texts` begin behind what has been logged until now."""
        page = self.log(accelerator)
        self._forgotten[accelerator] = page.lost + len(page.entries)

    def _new_entries(self, accelerator: int) -> tuple[LogEntry, ...]:
        page = self.log(accelerator)
        return page.entries[max(0, self._forgotten.get(accelerator, 0) - page.lost) :]

    def log_types(self, accelerator: int = 0) -> list[int]:
        return [entry.type for entry in self._new_entries(accelerator)]

    def log_texts(self, kind: int, accelerator: int = 0) -> list[str]:
        return [item.text for item in self._new_entries(accelerator) if item.type == kind]

    def until_so(self, done: Callable[[], bool]) -> None:
        """Ask until something is so."""
        end = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < end, "it never becomes so"
            time.sleep(0.005)  # workers and compilers yield to whoever asks without pause

    def send_control(self, operation: int, accelerator: int = 0) -> int:
        """Send an operation that may be answered late; returns its tag."""
        cdws = fields.Control(operation, accelerator).encode()
        return self.send(False, IoOpcode.CONTROL, cdws)

    def is_answered(self, tag: int) -> bool:
        """Whether an answer has been taken in."""
        return tag in self._answers

    def send_reset(self, scope: ResetScope = CONTROLLER_RESET) -> int:
        """Send a reset, which may be answered late; returns its tag."""
        tag = next(self._tags)
        self.port.send(Reset(tag, scope))
        return tag

    def reset_controller(self, scope: ResetScope = CONTROLLER_RESET) -> None:
        assert isinstance(self.answer(self.send_reset(scope)), ResetDone)

    def run(self, image: bytes, data: bytes = b"", accelerator: int = 0) -> AcceleratorStatus:
        """Enable, send the program and its input, start it, wait for its end."""
        assert self.enable() == 0
        assert self.send_firmware(image, accelerator=accelerator) == 0
        assert self.send_data(data, accelerator) == 0
        assert self.control(Operation.START, accelerator) == 0
        return self.wait(accelerator)

    def wait(self, accelerator: int = 0) -> AcceleratorStatus:
        """The status after the job's end, which the APU announces."""
        self.until(lambda: any(item.accelerator == accelerator for item in self.ended))
        self.ended = [item for item in self.ended if item.accelerator != accelerator]
        status = self.status(accelerator)
        assert status.status != StatusId.RUNNING
        return status


@contextmanager
def board(config: Config = CONFIG) -> Iterator[Board]:
    with Board(config) as made:
        yield made


def await_end(pidfd: int) -> None:
    """Return when the process is gone."""
    try:
        readable, _, _ = select.select([pidfd], [], [], DEADLINE)
        assert readable, "a process outlives the APU"
    finally:
        os.close(pidfd)


def program(*code: bytes, padding: int = 0) -> bytes:
    """An object file of these instructions, and of `padding` bytes that are not loaded."""
    filler = [Part(".comment", bytes(padding), flags=0, alignment=1)] if padding else []
    return elf([text(*code), *filler], [Name("prog")])
