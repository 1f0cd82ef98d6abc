"""Fault injection, for tests of drivers.

A fault is armed from the start or by a command (`admin/others.py`), belongs to the device, and
survives resets. The loop consults command and interrupt faults, and media consult theirs, only
while there are some, so that a drive without faults has no cost.
"""

import errno
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from csd_spec.faults import (
    ALL_FAULTS,
    ANY,
    COMMAND_KINDS,
    LASTING,
    MEDIA_KINDS,
    MOST_FAULTS,
    Fault,
    FaultFlags,
    FaultKind,
)
from csd_spec.fields import Control
from csd_spec.opcodes import FaultOpcode, Operation
from csd_spec.opcodes import IoOpcode as AcceleratorOpcode
from nvme_spec.commands import ReadWrite
from nvme_spec.opcodes import IoOpcode
from nvme_spec.status import NvmeError, Status, StatusCodeType, describe, split
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Result, Steps, steps_of
from potash_firmware.rpu.deadlines import Deadlines
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.scheduler import Signal

if TYPE_CHECKING:  # of drives that have it
    from potash_firmware.rpu.namespaces.asymmetric_access import AsymmetricAccess

log = logging.getLogger(__name__)

MICROSECOND = 1e-6

_OURS = frozenset(FaultOpcode)
"""No fault keeps a host from clearing it."""

_WITH_BLOCKS = frozenset(
    {
        IoOpcode.READ,
        IoOpcode.WRITE,
        IoOpcode.COMPARE,
        IoOpcode.VERIFY,
        IoOpcode.WRITE_ZEROES,
        IoOpcode.WRITE_UNCORRECTABLE,
    }
)
"""Commands that name their blocks as Read does."""


@dataclass(eq=False)
class _Armed:
    """A fault, how often it has triggered, and what it has let pass."""

    fault: Fault
    passed: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    """The fault triggers no more: commands that wait because of it may continue."""

    def overlaps(self, lba: int, blocks: int) -> bool:
        """True where the fault's range, if it has one, has some of these blocks."""
        first, length = self.fault.lba, self.fault.blocks
        return not length or (first < lba + blocks and lba < first + length)

    def concerns(self, controller: int) -> bool:
        """The fault is of that controller, or of any."""
        return self.fault.controller in (0, controller + 1)


@dataclass(eq=False, repr=False)
class _Impaired:
    """The media of a namespace as its faults leave them; called by the media executor, too."""

    faults: "Faults"
    namespace: Namespace
    armed: Collection[_Armed]

    def before(self, offset: int, length: int, *, writes: bool) -> None:
        for armed in self._touching(FaultKind.MEDIA_DELAY, offset, length, writes=writes):
            if self.faults.triggers(armed):
                armed.over.wait(armed.fault.delay * MICROSECOND)
        at = self.fails_at(offset, length, writes=writes)
        if at is not None:
            error = MediaError(errno.EIO, "an injected fault of the media")
            error.at = at
            raise error

    def fails_at(self, offset: int, length: int, *, writes: bool) -> int | None:
        """The first byte that cannot be touched; None where all can. Does not wait."""
        for armed in self._touching(FaultKind.MEDIA_ERROR, offset, length, writes=writes):
            if self.faults.triggers(armed):
                return max(offset, armed.fault.lba * self.namespace.block_size)
        return None

    def _touching(self, kind: FaultKind, offset: int, length: int, *, writes: bool) -> list[_Armed]:
        size = self.namespace.block_size
        lba = offset // size
        blocks = -(-(offset + length) // size) - lba
        access = FaultFlags.WRITES if writes else FaultFlags.READS
        return [
            each
            for each in self.armed
            if each.fault.kind is kind and access in each.fault.flags and each.overlaps(lba, blocks)
        ]


class Faults:
    """The faults of one drive.

    Args:
        namespaces: those with media that it may impair.
        deadlines: the timers for delays.
        end_apu: ends the application processor immediately.
        lasting: called with the faults that last until they are cleared.
        fail_programs: has so many of the next programs of the flash fail. Raises NvmeError.
        accesses: the asymmetric access of each controller, of a drive that has it.
    """

    def __init__(
        self,
        namespaces: Inventory,
        deadlines: Deadlines,
        end_apu: Callable[[], None],
        lasting: Callable[[list[Fault]], None],
        fail_programs: Callable[[int], None],
        accesses: "Sequence[AsymmetricAccess]",
    ) -> None:
        self.io: tuple[_Armed, ...] = ()
        """Faults that an I/O command may trigger; the fast path is off while there are any."""
        self.admin: tuple[_Armed, ...] = ()
        self.interrupts: tuple[_Armed, ...] = ()
        self._impaired: dict[int, _Impaired] = {}
        self._namespaces = namespaces
        self._deadlines = deadlines
        self._end_apu = end_apu
        self._lasting = lasting
        self._fail_programs = fail_programs
        self._accesses = accesses
        self._kept: dict[int, _Armed] = {}
        self._last = 0
        # The media executor's threads ask, too, and a trigger may be the last of a fault.
        self._lock = threading.RLock()

    # Listing, arming and clearing.

    def add(self, fault: Fault) -> int:
        """Arm a fault; the identifier that it gets. Raises NvmeError when there are too many, and
        for one of flash that has none."""
        with self._lock:
            if len(self._kept) >= MOST_FAULTS and not self._forget_one_spent():
                raise NvmeError(Status.CAPACITY_EXCEEDED, f"there are {MOST_FAULTS} faults already")
            of_access = fault.kind is FaultKind.ACCESS_STATE
            if of_access:
                self._check_access(fault)
            of_flash = fault.kind is FaultKind.PROGRAM_FAILURE
            if of_flash:
                self._fail_programs(fault.times)
            self._last = self._last % 0xFFFF + 1
            while self._last in self._kept:
                self._last = self._last % 0xFFFF + 1
            triggered = fault.times if of_flash else 0
            armed = _Armed(fault._replace(identifier=self._last, triggered=triggered))
            self._kept[self._last] = armed
            self.arrange()
        at_once = fault.kind is FaultKind.APU_DEATH and FaultFlags.AT_ONCE in fault.flags
        if at_once and self.triggers(armed):
            self._end_apu()
        if of_access and fault.delay:
            due = self._deadlines.clock.now() + fault.delay * 1000
            chosen = fault.controller
            accesses = self._accesses[chosen - 1 : chosen] if chosen else self._accesses
            self._deadlines.call(due, partial(self._change_access, armed, accesses))
        return armed.fault.identifier

    def clear(self, identifier: int = ALL_FAULTS) -> None:
        """Disarm and forget one fault, or every one. Raises NvmeError where there is none."""
        with self._lock:
            if identifier == ALL_FAULTS:
                gone = list(self._kept.values())
                self._kept.clear()
            elif identifier in self._kept:
                gone = [self._kept.pop(identifier)]
            else:
                raise NvmeError(Status.INVALID_FIELD, f"there is no fault {identifier}")
            self.arrange()
        for armed in gone:
            armed.over.set()

    def listed(self) -> list[Fault]:
        """All faults in the order in which they came, those that are spent included."""
        with self._lock:
            return [armed.fault for armed in self._kept.values()]

    def arrange(self) -> None:
        """Put every fault where it is asked for; also to be called when namespaces have come."""
        with self._lock:
            every = [armed for armed in self._kept.values() if not armed.fault.spent]
            commands = [armed for armed in every if armed.fault.kind in COMMAND_KINDS]
            self.admin = tuple(armed for armed in commands if armed.fault.admin)
            self.io = tuple(
                armed
                for armed in every
                if armed.fault.kind is FaultKind.APU_DEATH
                or (armed.fault.kind is FaultKind.ACCESS_STATE and not armed.fault.delay)
                or (armed in commands and not armed.fault.admin)
            )
            self.interrupts = tuple(
                armed for armed in every if armed.fault.kind is FaultKind.INTERRUPT
            )
            self._impair([armed for armed in every if armed.fault.kind in MEDIA_KINDS])
            self._lasting([armed.fault for armed in every if armed.fault.kind in LASTING])

    def release(self) -> None:
        """The device ends: nobody is to wait any longer."""
        self.clear()

    def _impair(self, armed: Collection[_Armed]) -> None:
        before, self._impaired = self._impaired, {}
        # A copy, as this may be another thread than the one that makes namespaces.
        for namespace in list(self._namespaces.blocks.values()):
            mine = [fault for fault in armed if fault.fault.nsid in (0, namespace.nsid)]
            if mine:
                self._impaired[namespace.nsid] = _Impaired(self, namespace, mine)
                namespace.media.impair(self._impaired[namespace.nsid])
            elif namespace.nsid in before:
                namespace.media.impair(None)

    def _forget_one_spent(self) -> bool:
        for identifier, armed in self._kept.items():
            if armed.fault.spent:
                del self._kept[identifier]
                armed.over.set()
                return True
        return False

    # Triggers.

    def triggers(self, armed: _Armed) -> bool:
        """Count an occasion of a fault. True where it triggers."""
        with self._lock:
            fault = armed.fault
            if fault.spent or armed.over.is_set():
                return False
            if armed.passed < fault.after:
                armed.passed += 1
                return False
            armed.fault = fault._replace(triggered=min(fault.triggered + 1, 0xFFFF_FFFF))
            log.debug("fault %d triggers", fault.identifier)
            if armed.fault.spent:
                self.arrange()
            return True

    def inject(self, command: Command, begin: Callable[[], Result], controller: int) -> Steps:
        """The steps of a command of a controller, which `begin` begins, as far as its faults let it
        come to that.

        Raises NvmeError.
        """
        triggered = self.triggered(command, controller)
        delay = self.delay(triggered)
        if delay is not None:
            yield delay
        if is_lost(triggered, command):
            yield from lost()
        starts_a_job = _starts_a_job(command)
        if starts_a_job:
            self._end_apu_if_armed(at_start=True)
        result = yield from steps_of(begin)
        if starts_a_job:
            self._end_apu_if_armed(at_start=False)
        return result

    def triggered(self, command: Command, controller: int) -> list[Fault]:
        """The faults that a command of a controller triggers; each counts."""
        candidates = self.io if command.queue.qid else self.admin
        candidates = tuple(armed for armed in candidates if armed.concerns(controller))
        for armed in candidates:
            if armed.fault.kind is FaultKind.ACCESS_STATE:
                access = self._accesses[controller]
                if self._changes(armed.fault, command, access):
                    self._change_access(armed, [access])
        return [
            armed.fault
            for armed in candidates
            if _concerns(armed, command) and self.triggers(armed)
        ]

    def delay(self, triggered: Iterable[Fault]) -> int | None:
        """The time at which the delays of faults that a command has triggered are over; None
        without delays."""
        delay = sum(fault.delay for fault in triggered)
        return self._deadlines.clock.now() + delay * 1000 if delay else None

    def delivered(self, vectors: Iterable[int], controller: int) -> set[int]:
        """The interrupts of a controller that come out, of those that are to be sent."""
        lost = set()
        for vector in vectors:
            for armed in self.interrupts:
                concerned = armed.concerns(controller) and armed.fault.queue in (ANY, vector)
                if concerned and self.triggers(armed):
                    lost.add(vector)
                    break
        return set(vectors) - lost

    def unreadable_at(self, nsid: int, offset: int, length: int) -> int | None:
        """The first byte of a namespace that somebody who reads the media himself cannot have."""
        impaired = self._impaired.get(nsid)
        return None if impaired is None else impaired.fails_at(offset, length, writes=False)

    def _check_access(self, fault: Fault) -> None:
        """Raise NvmeError for a change of access that cannot be."""
        if not self._accesses:
            raise NvmeError(
                Status.INVALID_FIELD, "the drive has no ANA groups; start it with --ana"
            )
        if fault.controller > len(self._accesses):
            raise NvmeError(Status.INVALID_FIELD, f"there is no controller {fault.controller - 1}")
        try:
            self._accesses[0].require(fault.group, fault.state, fault.transition * MICROSECOND)
        except ValueError as error:
            raise NvmeError(Status.INVALID_FIELD, str(error)) from None

    def _changes(self, fault: Fault, command: Command, access: "AsymmetricAccess") -> bool:
        """True for a command that the change of an ANA group's state can come before."""
        namespace = self._namespaces.every.get(command.entry.nsid)
        return (
            namespace is not None
            and namespace.shape.ana_group == fault.group
            and access.state(fault.group) != fault.state
        )

    def _change_access(self, armed: _Armed, accesses: "Iterable[AsymmetricAccess]") -> None:
        if not self.triggers(armed):
            return
        fault = armed.fault
        transition, lasting = fault.transition * MICROSECOND, fault.lasting * MICROSECOND
        for access in accesses:
            try:
                access.change(fault.group, fault.state, transition, lasting)
            except ValueError as error:  # of persistent loss nothing comes back
                log.warning("fault %d: %s", fault.identifier, error)

    def _end_apu_if_armed(self, *, at_start: bool) -> None:
        for armed in self.io:
            if (
                armed.fault.kind is FaultKind.APU_DEATH
                and (FaultFlags.AT_START in armed.fault.flags) is at_start
                and self.triggers(armed)
            ):
                self._end_apu()


def is_lost(triggered: Iterable[Fault], command: Command) -> bool:
    """True where the faults that a command has triggered leave it unanswered. Raises NvmeError
    where one of them is its answer."""
    for fault in triggered:
        if fault.kind is FaultKind.STATUS:
            raise _failure(fault, command)
        if fault.kind is FaultKind.LOST:
            return True
    return False


def lost() -> Steps:
    """The steps of a command that is never answered."""
    yield Signal()
    return None


def _concerns(armed: _Armed, command: Command) -> bool:
    """True for a fault that applies to commands like this."""
    fault, entry = armed.fault, command.entry
    if fault.kind not in COMMAND_KINDS or (fault.admin and entry.opcode in _OURS):
        return False
    if fault.opcode not in (ANY, entry.opcode) or fault.queue not in (ANY, command.queue.qid):
        return False
    if fault.nsid not in (0, entry.nsid):
        return False
    if not fault.blocks:
        return True
    if entry.opcode not in _WITH_BLOCKS:
        return False
    fields = ReadWrite.decode(entry.cdws)
    return armed.overlaps(fields.slba, fields.blocks)


def _failure(fault: Fault, command: Command) -> NvmeError:
    """The error of the command; for faults of the media, the error log also gets the block."""
    entry, dnr = command.entry, FaultFlags.DNR in fault.flags
    detail = f"fault {fault.identifier}: {describe(fault.status)}"
    of_media = split(fault.status).sct == StatusCodeType.MEDIA_AND_DATA_INTEGRITY
    if of_media and command.queue.qid and entry.opcode in _WITH_BLOCKS:
        lba = max(ReadWrite.decode(entry.cdws).slba, fault.lba)
        return NvmeError(fault.status, detail, dnr=dnr, lba=lba)
    return NvmeError(fault.status, detail, dnr=dnr)


def _starts_a_job(command: Command) -> bool:
    entry = command.entry
    return (
        bool(command.queue.qid)
        and entry.opcode == AcceleratorOpcode.CONTROL
        and Control.decode(entry.cdws).operation == Operation.START
    )
