"""The fused operation Compare and Write, atomic with respect to all other commands.

A host asks "if block 7 still holds what I read, write this to it" by two consecutive entries of one
submission queue: Compare, whose FUSE field says first command (01b), and Write, the second (10b).
The first command waits until the next entry of its queue is fetched. Then one job of the media
executor, with exclusive access to the blocks, compares and perhaps writes; both commands wait for
it, and complete in their order. Either without the other is aborted.

Source: NVM Express Base Specification 2.0, section 3.4.2 (fused operations); NVM Command Set
Specification 1.0, section 3.1.1.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import IoOpcode
from nvme_spec.queues import Fuse
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    Target,
    in_turn,
    read_error,
    require_correctable,
    require_pointer,
    require_writable,
    target,
    write_error,
)
from potash_firmware.rpu.command_sets.nvm.content import Content, content_of, expected_of
from potash_firmware.rpu.command_sets.nvm.limits import COMPARE_AND_WRITE_BLOCKS
from potash_firmware.rpu.command_sets.nvm.optional import differs
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.faults import is_lost, lost
from potash_firmware.rpu.outstanding import FirstHalf
from potash_firmware.rpu.reservations import Access
from potash_firmware.rpu.scheduler import Later, Signal, Wait, never

if TYPE_CHECKING:
    from potash_firmware.rpu.timing.modelled import ModelledTime

StartCommand = Callable[[Command, Callable[[Command], Result]], None]
"""Starts a command by the given function; completes it or lets it wait, as the result says."""


class Outcome(NamedTuple):
    """The executor's result: of the comparison, then of the write."""

    difference: int | NvmeError | None
    """The offset on the media of the first byte that differs, None if all are equal; or the error
    of protection information."""
    write_error: MediaError | None = None


def begin(controller: Controller, command: Command, run: StartCommand) -> bool:
    """Begin a command that is part of a fused operation, or follows a first command that waits.

    Returns False if the caller has to deal with the command: it is not fused, its identifier is
    outstanding, or its FUSE field is reserved.
    """
    queue, fuse = command.queue, command.entry.fuse
    first = controller.outstanding.fused.pop(queue.qid, None)
    if first is not None:
        pair = None
        if fuse is Fuse.SECOND and _supported(controller, first.command, command):
            pair = _CompareAndWrite(controller, first.command, command)
        first.next.send_now(pair)
        if pair is not None:
            run(command, lambda _: pair.write())
            return True
    if fuse is Fuse.FIRST and not controller.outstanding.conflicts(command):
        run(command, lambda _: _first_half(controller, command))
        return True
    if fuse is Fuse.SECOND:
        run(command, _missing)
        return True
    return False


def _first_half(controller: Controller, command: Command) -> Steps:
    half = controller.outstanding.fused[command.queue.qid] = FirstHalf(command, Signal())
    pair = yield half.next
    return (yield from _missing(command) if pair is None else pair.compare())


def _supported(controller: Controller, first: Command, second: Command) -> bool:
    # Zoned namespaces have no fused operations (Zoned Namespace Command Set 1.1, section 2.1.3).
    namespace = controller.namespaces.attached.get(second.entry.nsid)
    if namespace is not None and namespace.csi is CommandSet.ZONED:
        return False
    return (first.entry.opcode, second.entry.opcode) == (IoOpcode.COMPARE, IoOpcode.WRITE)


def _missing(_: Command) -> Steps:
    raise NvmeError(
        Status.MISSING_FUSED_COMMAND, "the other half of the fused operation is not there"
    )
    yield  # makes this a generator


@dataclass(eq=False, repr=False)
class _CompareAndWrite:
    """A pair; `compare` is the first command's task and `write` the second's.

    Both wait for one future, and tasks continue in the order in which they began to wait, so that
    the first command completes first.
    """

    controller: Controller
    first: Command
    second: Command
    _settled: Signal = field(default_factory=Signal)
    """Sent when the job is submitted, or will not be."""
    _work: tuple[Target, Future[Outcome]] | None = None
    """The blocks, and the job on them once it is submitted."""
    _second_error: NvmeError | None = None
    """The error with which the second command ends because of the first."""
    _write_refused: NvmeError | None = None
    _write_lost: bool = False
    _compare_due: int | Later | None = None
    _write_due: int | Later | None = None
    """The times at which the commands complete, if the drive's time is modelled."""

    def __post_init__(self) -> None:
        self._conflict = self.first.key == self.second.key or self.controller.outstanding.conflicts(
            self.second
        )
        trigger = partial(self.controller.faults.triggered, controller=self.controller.identifier)
        self._first_faults = [] if self._conflict else trigger(self.first)
        self._second_faults = [] if self._conflict else trigger(self.second)
        # An injected delay of either command delays both.
        self._delay = self.controller.faults.delay((*self._first_faults, *self._second_faults))

    def compare(self) -> Steps:
        """Check both commands, submit the job once nothing is in its way, and report the result."""
        try:
            if self._delay is not None:
                yield self._delay
            if is_lost(self._first_faults, self.first):
                self._settled.send()
                yield from lost()
            self._require_unreserved()
            blocks = yield from self._free_blocks()
            work = self._begin(blocks)
        except (NvmeError, GeneratorExit) as error:
            # The second command has its error already if the pair is invalid; otherwise it fails
            # because the first did, which may have been aborted.
            if self._second_error is None:
                why = error.detail if isinstance(error, NvmeError) else "it was aborted"
                self._first_failed(why)
            self._settled.send()
            raise
        self._settled.send()
        # The second command may have written already, so the first must not be aborted now.
        return (
            yield from self.controller.scheduler.not_before(
                self._compare_due, self._report_comparison(blocks, work), abortable=False
            )
        )

    def write(self) -> Steps:
        """Wait for the same job, and report the write.

        These waits cannot be abandoned: the job of the first command may be writing already.
        """
        if self._delay is not None:
            yield Wait(self._delay, never)
        yield Wait(self._settled, never)
        if self._work is None:
            if self._second_error is not None:
                raise self._second_error
            yield from lost()  # as the first command, by an injected fault
        assert self._work is not None
        blocks, work = self._work
        yield Wait({work}, never)
        steps = self._report_write(blocks, work)
        return (yield from self.controller.scheduler.not_before(self._write_due, steps))

    def _require_unreserved(self) -> None:
        """Raise NvmeError if a reservation denies either command."""
        reservations = self.controller.reservations
        reservations.require(self.first.entry.nsid, Access.READ)
        try:
            reservations.require(self.second.entry.nsid, Access.WRITE)
        except NvmeError as error:
            self._second_error = error
            raise NvmeError(Status.FAILED_FUSED_COMMAND, "its second half failed") from None

    def _free_blocks(self) -> Generator[Any, Any, Target]:
        """The blocks of both commands, once nothing is in the way. Raises NvmeError."""
        controller, first = self.controller, self.first
        if self._conflict:
            self._second_error = NvmeError(
                Status.COMMAND_ID_CONFLICT, "the other half's identifier is outstanding"
            )
            raise NvmeError(Status.FAILED_FUSED_COMMAND, "its second half failed")
        mine, other = first.entry, self.second.entry
        if (mine.nsid, mine.cdw10, mine.cdw11, mine.cdw12 & 0xFFFF) != (
            other.nsid, other.cdw10, other.cdw11, other.cdw12 & 0xFFFF
        ):  # fmt: skip
            self._second_error = NvmeError(
                Status.INVALID_FIELD, "the commands of a fused operation name different blocks"
            )
            raise self._second_error
        require_pointer(first)
        blocks = target(controller, first)
        if blocks.blocks > COMPARE_AND_WRITE_BLOCKS:
            raise NvmeError(
                Status.ATOMIC_WRITE_UNIT_EXCEEDED,
                f"{blocks.blocks} blocks cannot be compared and written as one",
            )
        yield from in_turn(blocks.in_flight, blocks.ranges, writes=True, alone=True)
        return blocks

    def _begin(self, blocks: Target) -> Future[Outcome]:
        """Submit the job of both commands. Raises NvmeError."""
        controller, namespace = self.controller, blocks.namespace
        expected = expected_of(controller, self.first, blocks)
        require_correctable(namespace, blocks.slba, blocks.blocks)
        content, durable = self._content(blocks)
        if controller.timing is not None:
            self._charge(controller.timing, blocks, writes=content is not None, durable=durable)
            content = None if self._write_refused else content
        dulbe = namespace.dulbe

        def work() -> Outcome:
            stored = content_of(blocks)
            stored.fetch(dulbe=dulbe)
            try:
                stored.check()
            except NvmeError as error:
                return Outcome(error)
            at = expected.unlike(stored)
            if at is not None or content is None:
                return Outcome(at)
            return Outcome(None, _store(content, durable=durable))

        future = controller.media_work.on_blocks(
            blocks.in_flight, blocks.ranges, work, writes=True, alone=True
        )
        self._work = blocks, future
        return future

    def _charge(
        self, timing: "ModelledTime", blocks: Target, *, writes: bool, durable: bool
    ) -> None:
        nsid, offset, length = blocks.namespace.nsid, blocks.offset, blocks.length
        read = timing.read(nsid, offset, length)
        self._compare_due = self._write_due = timing.transfers.cross(read, length, inwards=True)
        try:
            if writes:
                written = timing.write(nsid, offset, length, after=read, fua=durable)
                self._write_due = timing.transfers.cross(written, length, inwards=True)
        except NvmeError as error:
            self._write_refused = error

    def _content(self, blocks: Target) -> tuple[Content | None, bool]:
        """The data to write, None if the command is lost by a fault or refused, and whether they
        have to be on stable storage when the command completes.
        """
        controller = self.controller
        try:
            if is_lost(self._second_faults, self.second):
                self._write_lost = True
                return None, False
            require_pointer(self.second)
            second = target(controller, self.second)
            fua = second.fua
            require_writable(controller, blocks.namespace)
            content = content_of(second)
            content.receive(controller.transfer, self.second)
            content.protect()
        except NvmeError as error:
            self._write_refused = error
            return None, False
        return content, fua or blocks.namespace.write_through

    def _report_comparison(self, blocks: Target, work: Future[Outcome]) -> Steps:
        """Report the comparison to the first command."""
        controller, namespace = self.controller, blocks.namespace
        failed = None
        try:
            at, _ = yield work
        except MediaError as error:
            failed = read_error(controller, namespace, error)
        else:
            if isinstance(at, NvmeError):
                failed = controller.failures.unprotected(namespace.nsid, at)
            else:
                controller.health.count_read(blocks.length)
                failed = None if at is None else differs(namespace, at)
        if failed is not None:
            self._first_failed(failed.detail)
            raise failed
        return None

    def _first_failed(self, why: str) -> None:
        """Make the second command fail because the first did."""
        self._second_error = NvmeError(Status.FAILED_FUSED_COMMAND, f"its first half failed: {why}")

    def _report_write(self, blocks: Target, work: Future[Outcome]) -> Steps:
        """Report the write to the second command, after the first has completed."""
        if self._second_error is not None:
            raise self._second_error
        if self._write_refused is not None:
            raise self._write_refused
        if self._write_lost:
            yield from lost()
        outcome = work.result()
        if outcome.write_error is not None:
            raise write_error(self.controller, blocks.namespace, outcome.write_error)
        self.controller.health.count_write(blocks.length)
        return None


def _store(content: Content, *, durable: bool) -> MediaError | None:
    """Write, and return the error, if any. Blocks: for the executor's threads only."""
    try:
        content.store(durable=durable)
    except MediaError as error:
        return error
    return None
