"""What compute namespaces run programs on: the APU's engines, as the RPU uses them.

The RPU keeps programs and memory; the APU gets a descriptor of each when an execution first needs
it, and every APU that is started gets them anew. What is in flight is here, so what is in use is
asked here: nothing else counts it, and the loss of an APU leaves no count wrong.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from potash_firmware.mailbox.execution import (
    FIRST_SERIAL,
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
)
from potash_firmware.mailbox.messages import ToApu

MOST_IN_FLIGHT = 256
"""Executions and checks that the APU has at a time; others wait here, in their order."""

Result = Executed | ProgramChecked
"""What a token brings."""


class Shared:
    """Memory or a program that executions may name. `descriptor` stays open until `Engines.forget`.

    `serial` is never used again. Whoever made it forgets it.
    """

    def __init__(self, serial: int, descriptor: int, length: int, *, is_program: bool) -> None:
        self.serial = serial
        self.descriptor = descriptor
        self.length = length
        self.is_program = is_program


Part = tuple[Shared, int, int]
"""Memory, first byte, length in bytes: a memory range, in whole pages."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One that has not ended. `user` is what who asked for it gave, to tell what it uses."""

    tag: int
    nsid: int
    program: Shared | int
    parts: tuple[Part, ...]
    parameters: tuple[int, int]
    data: bytes
    user: object


@dataclass(frozen=True, slots=True)
class _Check:
    tag: int
    nsid: int
    program: Shared


class Engines:
    """The engines of all compute namespaces, and what they have been asked.

    Args:
        send: sends a message to an APU that is there.
        new_tag: gives a tag that nothing in flight has.
        asking: called before something is asked of the APU.
    """

    def __init__(
        self,
        send: Callable[[ToApu], None],
        new_tag: Callable[[], int],
        asking: Callable[[], None],
    ) -> None:
        self._send = send
        self._new_tag = new_tag
        self._asking = asking
        self._serials = count(FIRST_SERIAL)
        self._connected = False
        self._open: set[int] = set()
        self._shared: set[int] = set()
        """Serials that the APU which is there knows."""
        self._waiting: deque[Execution | _Check] = deque()
        self._in_flight: dict[int, Execution | _Check] = {}
        self._ended: deque[Result] = deque()
        """Of what will never be answered by an APU."""

    # Namespaces, memory, programs.

    def open(self, nsid: int) -> None:
        """Compute namespace `nsid` is there: have a process ready for it."""
        self._open.add(nsid)
        if self._connected:
            self._send(OpenEngine(nsid))

    def close(self, nsid: int) -> None:
        """Compute namespace `nsid` is deleted: its executions end as cancelled."""
        self._open.discard(nsid)
        for one in [one for one in self._waiting if isinstance(one, Execution)]:
            if one.nsid == nsid:
                self._waiting.remove(one)
                self._ended.append(Executed(one.tag, Outcome.CANCELLED))
        if self._connected:
            self._send(CloseEngine(nsid))

    def memory(self, descriptor: int, length: int) -> Shared:
        """Share memory, a memfd of `length` bytes that is sealed against shrinking."""
        return Shared(next(self._serials), os.dup(descriptor), length, is_program=False)

    def program(self, image: bytes) -> Shared:
        """Share a program's object file, which nobody can change from now on. Raises OSError."""
        descriptor = sealed("potash-program", image)
        return Shared(next(self._serials), descriptor, len(image), is_program=True)

    def forget(self, shared: Shared) -> None:
        """Nothing will name it any more. What runs with it goes on; memory is freed after that."""
        if shared.descriptor < 0:
            return
        os.close(shared.descriptor)
        shared.descriptor = -1
        if shared.serial in self._shared:
            self._shared.discard(shared.serial)
            self._send(Forget(shared.serial))

    # Executions.

    @property
    def executions(self) -> Iterator[Execution]:
        """Those that have not ended, whoever waits for them."""
        for found in (self._in_flight.values(), self._waiting):
            yield from (one for one in found if isinstance(one, Execution))

    def check(self, nsid: int, program: Shared) -> int:
        """Find out whether a program can run: the token brings a `ProgramChecked`.

        It is not sound where no APU can tell. Why, the log of compute namespace `nsid` says.
        """
        return self._begin(_Check(self._new_tag(), nsid, program))

    def execute(
        self,
        nsid: int,
        program: Shared | int,
        parts: Sequence[Part] = (),
        parameters: tuple[int, int] = (0, 0),
        data: bytes = b"",
        user: object = None,
    ) -> int:
        """Run a program, one that was shared or a device-defined one by its index.

        The token brings an `Executed`, once: also where the APU is lost, or there is none.

        Args:
            parts: the memory ranges, in their order, at most `execution.MAX_RANGES`.
            parameters: CPARAM1 and CPARAM2.
            data: what the command has brought besides.
            user: anything, for `executions`.
        """
        tag = self._new_tag()
        return self._begin(Execution(tag, nsid, program, tuple(parts), parameters, data, user))

    def cancel(self, tag: int) -> None:
        """End an execution: its token brings an `Executed`, cancelled unless it has ended before."""
        for one in self._waiting:
            if one.tag == tag:
                self._waiting.remove(one)
                self._ended.append(_lost(one, Outcome.CANCELLED))
                return
        if tag in self._in_flight and self._connected:
            self._send(Cancel(tag))

    def reset(self) -> None:
        """The session is over: nothing that waits is begun. (What runs is ended by the APU's reset.)"""
        self._waiting.clear()

    # The APU comes, answers and goes.

    @property
    def asked(self) -> bool:
        """The APU owes an answer."""
        return bool(self._in_flight)

    @property
    def due(self) -> bool:
        """There is something to take though the APU has said nothing."""
        return bool(self._ended)

    def connected(self) -> None:
        """An APU is there, which knows of nothing."""
        self._connected = True
        for nsid in sorted(self._open):
            self._send(OpenEngine(nsid))

    def disconnected(self) -> None:
        """It is gone: what it had has failed, and what waits fails, too."""
        self._connected = False
        self._shared.clear()
        for one in (*self._in_flight.values(), *self._waiting):
            self._ended.append(_lost(one, Outcome.LOST))
        self._in_flight.clear()
        self._waiting.clear()

    def answered(self, result: Result) -> bool:
        """The APU has answered; False where nobody has asked that."""
        if self._in_flight.pop(result.tag, None) is None:
            return False
        while self._waiting and len(self._in_flight) < MOST_IN_FLIGHT and self._connected:
            self._hand_over(self._waiting.popleft())
        return True

    def ended(self) -> Iterator[Result]:
        """What no APU answers."""
        while self._ended:
            yield self._ended.popleft()

    def _begin(self, one: Execution | _Check) -> int:
        if not self._connected:
            self._ended.append(_lost(one, Outcome.LOST))
        elif len(self._in_flight) < MOST_IN_FLIGHT:
            self._hand_over(one)
        else:
            self._waiting.append(one)
        return one.tag

    def _hand_over(self, one: Execution | _Check) -> None:
        if any(shared.descriptor < 0 for shared in _named(one)):
            self._ended.append(_lost(one, Outcome.CANCELLED))
            return
        self._asking()
        self._in_flight[one.tag] = one
        for shared in _named(one):
            self._share(shared)
        if isinstance(one, _Check):
            self._send(CheckProgram(one.tag, one.nsid, one.program.serial))
            return
        program = one.program.serial if isinstance(one.program, Shared) else one.program
        ranges = tuple(MemoryRange(part.serial, at, length) for part, at, length in one.parts)
        fields = (one.tag, one.nsid, program, one.parameters, ranges)
        if not one.data:
            self._send(Execute(*fields))
            return
        descriptor = sealed("potash-data", one.data)
        try:
            self._send(Execute(*fields, len(one.data), descriptor))
        finally:
            os.close(descriptor)

    def _share(self, shared: Shared) -> None:
        if shared.serial not in self._shared:
            self._shared.add(shared.serial)
            kind = ShareProgram if shared.is_program else ShareMemory
            self._send(kind(shared.serial, shared.length, shared.descriptor))


def sealed(name: str, contents: bytes) -> int:
    """A memfd of `contents` that nobody can change; the caller closes it. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, contents)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _named(one: Execution | _Check) -> list[Shared]:
    """What it needs the APU to have."""
    named = [one.program] if isinstance(one.program, Shared) else []
    if isinstance(one, Execution):
        named += [memory for memory, _, _ in one.parts]
    return named


def _lost(one: Execution | _Check, outcome: Outcome) -> Result:
    if isinstance(one, _Check):
        return ProgramChecked(one.tag, False)
    return Executed(one.tag, outcome)
