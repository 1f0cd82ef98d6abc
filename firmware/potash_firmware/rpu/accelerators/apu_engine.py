"""The engines of compute namespaces: programs run on the APU, through the mailbox.

Each APU that is started gets a descriptor of memory and of a program when it first needs it. When
an APU is lost, its executions end as LOST, and so do new ones until the next APU runs.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from potash_firmware.mailbox import tagged
from potash_firmware.mailbox.datagrams import encode
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    NO_DESCRIPTOR,
    Cancel,
    CheckProgram,
    CloseEngine,
    Execute,
    Executed,
    Forget,
    MemoryRange,
    OpenEngine,
    Outcome,
    ProgramChecked,
    ShareMemory,
    ShareProgram,
    ToApu,
)
from potash_firmware.mailbox.shared import seal
from potash_firmware.rpu.compute.engine import Execution, Shared, SharedRange

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ApuEngine:
    """The engines of all compute namespaces, and what they were asked: an `engine.ProgramEngine`.

    Args:
        send: sends a message, which may be encoded, to an APU that is there.
        new_tag: gives a tag that nothing in flight has.
        asking: called before something is asked of the APU.
    """

    device_defined = (0,) * len(DeviceProgram)

    send: Callable[[ToApu | bytes], None]
    new_tag: Callable[[], int]
    asking: Callable[[], None]
    _connected: bool = field(default=False, init=False)
    _open: set[int] = field(default_factory=set, init=False)
    _shared: set[int] = field(default_factory=set, init=False)
    """Handles that the APU which is there knows."""
    _checks: dict[int, Future[Execution]] = field(default_factory=dict, init=False)
    _executions: dict[int, Future[Execution]] = field(default_factory=dict, init=False)
    ended: deque[Future[Any]] = field(default_factory=deque, init=False)
    _last_asked: tuple[object, ...] | None = field(default=None, init=False)
    """The arguments of the last execution without data, of which the APU has all that it names."""
    _last: bytes = field(default=b"", init=False)
    """The message that asked for it."""

    # The interface `engine.ProgramEngine`.

    def open(self, nsid: int) -> None:
        self._open.add(nsid)
        self._notify(OpenEngine(nsid))

    def close(self, nsid: int) -> None:
        self._open.discard(nsid)
        self._notify(CloseEngine(nsid))

    def check(self, nsid: int, program: Shared) -> Future[Execution]:
        future: Future[Execution] = Future()
        if not self._connected:
            return self._finish(future, Execution(Outcome.LOST))
        self.asking()
        tag = self.new_tag()
        self._checks[tag] = future
        self._share(program, ShareProgram)
        self.send(CheckProgram(tag, nsid, program.handle))
        return future

    def execute(
        self,
        nsid: int,
        program: Shared | int,
        ranges: Sequence[SharedRange] = (),
        parameters: tuple[int, int] = (0, 0),
        data: bytes | memoryview = b"",
        row: int = 0,
    ) -> Future[Execution]:
        future: Future[Execution] = Future()
        if not self._connected:
            return self._finish(future, Execution(Outcome.LOST))
        try:
            descriptor = seal("potash-data", data) if data else NO_DESCRIPTOR
        except OSError as error:
            log.error("there is no memory for the data of an execution: %s", error.strerror)
            return self._finish(future, Execution(Outcome.LOST))
        self.asking()
        tag = self.new_tag()
        self._executions[tag] = future
        asked = nsid, program, ranges, parameters, row
        if asked == self._last_asked and not data:
            self.send(tagged(self._last, tag))
            return future
        if isinstance(program, Shared):
            self._share(program, ShareProgram)
            program = program.handle
        for area in ranges:
            self._share(area.memory, ShareMemory)
        named = tuple(MemoryRange(area.memory.handle, area.offset, area.length) for area in ranges)
        message = Execute(tag, nsid, program, parameters, named, len(data), descriptor, row)
        encoded = None if data else encode(message)
        try:
            self.send(encoded or message)
        finally:
            if data:
                os.close(descriptor)
        if encoded:
            self._last_asked, self._last = asked, encoded
        return future

    def cancel(self, execution: Future[Execution]) -> None:
        for tag, future in self._executions.items():
            if future is execution:
                self._notify(Cancel(tag))

    def forget(self, handle: int) -> None:
        if handle in self._shared:
            self._last_asked = None
            self._shared.discard(handle)
            self._notify(Forget(handle))

    # The APU comes, answers and goes.

    def execution(self, tag: int) -> Future[Execution] | None:
        """The execution with a tag; None if it has ended."""
        return self._executions.get(tag)

    @property
    def executing(self) -> bool:
        """Executions have not been answered."""
        return bool(self._executions)

    @property
    def asked(self) -> bool:
        return bool(self._checks or self._executions)

    def connected(self) -> None:
        """An APU is there, which knows of nothing."""
        self._connected = True
        for nsid in sorted(self._open):
            self._notify(OpenEngine(nsid))

    def disconnected(self) -> None:
        """It is gone, and what it was asked has failed."""
        self._connected = False
        self._last_asked = None
        self._shared.clear()
        for check in self._checks.values():
            self._finish(check, Execution(Outcome.LOST))
        for execution in self._executions.values():
            self._finish(execution, Execution(Outcome.LOST))
        self._checks.clear()
        self._executions.clear()

    def answered(self, message: Executed | ProgramChecked) -> None:
        if isinstance(message, Executed):
            self._end(message.tag, Execution(message.outcome, message.value, message.work))
        elif message.tag in self._checks:
            checked = Execution(message.outcome, message.priority)
            self._finish(self._checks.pop(message.tag), checked)
        else:
            log.error("the APU has ended the check %#x, which nobody asked", message.tag)

    def returned(self, tag: int, value: int) -> None:
        """A program has returned a value."""
        self._end(tag, Execution(Outcome.RETURNED, value))

    def _end(self, tag: int, execution: Execution) -> None:
        future = self._executions.pop(tag, None)
        if future is None:
            log.error("the APU has ended %#x, which nobody asked", tag)
        else:
            self._finish(future, execution)

    def _share(self, what: Shared, message: type[ShareMemory | ShareProgram]) -> None:
        if what.handle not in self._shared:
            self._shared.add(what.handle)
            self.send(message(what.handle, what.length, what.fd))

    def _notify(self, message: ToApu) -> None:
        if self._connected:
            self.send(message)

    def _finish(self, future: Future[Any], result: object) -> Future[Any]:
        future.set_result(result)
        self.ended.append(future)
        return future
