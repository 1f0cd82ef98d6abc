"""Compare and Write as one: the fused operation, atomic to every other command.

The first half is held until the next entry of its queue is fetched. Then the two are executed by
one piece of work that has their blocks for itself, or a half without the other is aborted.

Source: NVM Express Base Specification 2.0, section 3.4.2; NVM Command Set Specification 1.0, 3.1.1.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import IoOpcode
from nvme_spec.queues import Fuse
from nvme_spec.status import NvmeError, Status
from potash_device.controller.queues import SubmissionQueue
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.command_sets.nvm.blocks import (
    Target,
    after,
    read_error,
    require_correctable,
    require_pointer,
    require_writable,
    target,
    write_error,
)
from potash_firmware.rpu.command_sets.nvm.limits import COMPARE_AND_WRITE_BLOCKS
from potash_firmware.rpu.command_sets.nvm.optional import differs, first_difference
from potash_firmware.rpu.command_sets.nvm.paired import Buffers, expected_of
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.faults import lost, outcome

if TYPE_CHECKING:
    from potash_firmware.rpu.timing.modelled import ModelledTime

Begin = Callable[[Command, Callable[[], Result]], None]
"""Takes one step of a command and does what comes of it: the loop's."""

Outcome = tuple[int | NvmeError | None, MediaError | None]
"""The byte of the media that differs, or what is wrong with protection information, and how the
write has failed; None and None for success."""


def begin(controller: Controller, command: Command, run: Begin) -> Command | None:
    """Deal with a command that is half of a fused operation, or follows one.

    Gives it back when it is to be executed by itself.
    """
    queue, fuse = command.queue, command.entry.fuse
    first = _take(controller, queue)
    if fuse is Fuse.SECOND and first is not None and _supported(controller, first, command):
        pair = _CompareAndWrite(controller, first, command)
        run(first, pair.compare)
        run(command, pair.write)
        return None
    if first is not None:
        run(first, _missing)
    if fuse is Fuse.FIRST and not controller.outstanding.conflicts(command):
        token = controller.outstanding.fused[queue.qid] = object()
        run(command, lambda: Pending(token, lambda _: None))
        return None
    if fuse is Fuse.SECOND:
        run(command, _missing)
        return None
    return command


def _take(controller: Controller, queue: SubmissionQueue) -> Command | None:
    """The first half that waits in a queue, which it does no longer."""
    waiting = controller.outstanding.take(controller.outstanding.fused.pop(queue.qid, None))
    return None if waiting is None else waiting.command


def _supported(controller: Controller, first: Command, second: Command) -> bool:
    # Zoned namespaces have no fused operations (Zoned Namespace Command Set 1.1, section 2.1.3).
    namespace = controller.namespaces.attached.get(second.entry.nsid)
    if namespace is not None and namespace.csi is CommandSet.ZONED:
        return False
    return (first.entry.opcode, second.entry.opcode) == (IoOpcode.COMPARE, IoOpcode.WRITE)


def _missing() -> Result:
    raise NvmeError(
        Status.MISSING_FUSED_COMMAND, "the other half of the fused operation is not there"
    )


@dataclass(eq=False, repr=False)
class _CompareAndWrite:
    """One pair; `compare` and `write` are the first steps of its halves, in this order."""

    controller: Controller
    first: Command
    second: Command
    _before: set[Future[object]] = field(default_factory=set)
    _work: Future[Outcome] | None = None
    _aborted: NvmeError | None = None
    _write_refused: NvmeError | None = None
    _write_lost: bool = False
    _compare_due: int | None = None
    _write_due: int | None = None
    """When the halves complete, where the drive's time is modelled."""

    def __post_init__(self) -> None:
        self._conflict = self.first.key == self.second.key or self.controller.outstanding.conflicts(
            self.second
        )
        trigger = self.controller.faults.triggered
        self._first_faults = [] if self._conflict else trigger(self.first)
        self._second_faults = [] if self._conflict else trigger(self.second)

    def compare(self) -> Result:
        """The first half's first step: after its delays, check both halves and begin the work."""
        return self._delayed(self._compare, self._recalled)

    def write(self) -> Result:
        """The second half's: wait for the same work, and say what it means for this half."""
        return self._delayed(self._write)

    def _delayed(
        self, step: Callable[[], Result], recall: Callable[[], bool] | None = None
    ) -> Result:
        """An injected delay of either half delays both."""
        triggered = (*self._first_faults, *self._second_faults)
        return self.controller.faults.delayed(triggered, step, recall)

    def _recalled(self) -> bool:
        """A host aborts the first half, of which nothing has begun yet."""
        self._first_failed(NvmeError(Status.ABORT_REQUESTED, "it was aborted"))
        return True

    def _compare(self) -> Result:
        """Check both halves, and have the work done when nothing is in its way."""
        try:
            return outcome(self._first_faults, self.first, self._begin)
        except NvmeError as error:
            # Where the pair makes no sense both halves say why; else the second says that it
            # failed with the first.
            if self._aborted is None:
                self._first_failed(error)
            raise

    def _write(self) -> Result:
        if self._aborted is not None:
            raise self._aborted
        if self._work is not None:
            return Pending(
                self.controller.media_work.end_of({self._work}),
                lambda _: self.controller.deadlines.keep(self._write_due, self._written),
            )
        if not self._before:
            return lost()  # an injected fault has lost the first half
        return Pending(
            self.controller.media_work.end_of(set(self._before)), lambda _: self._write()
        )

    def _begin(self) -> Result:
        controller, first, second = self.controller, self.first, self.second
        if self._conflict:
            self._aborted = NvmeError(
                Status.COMMAND_ID_CONFLICT, "the other half's identifier is outstanding"
            )
            raise NvmeError(Status.FAILED_FUSED_COMMAND, "its second half failed")
        mine, other = first.entry, second.entry
        if (mine.nsid, mine.cdw10, mine.cdw11, mine.cdw12 & 0xFFFF) != (
            other.nsid, other.cdw10, other.cdw11, other.cdw12 & 0xFFFF
        ):  # fmt: skip
            self._aborted = NvmeError(
                Status.INVALID_FIELD, "the halves of a fused operation name other blocks"
            )
            raise self._aborted
        require_pointer(first)
        blocks = target(controller, first)
        if blocks.blocks > COMPARE_AND_WRITE_BLOCKS:
            raise NvmeError(
                Status.ATOMIC_WRITE_UNIT_EXCEEDED,
                f"{blocks.blocks} blocks cannot be compared and written as one",
            )
        expected: memoryview | Buffers
        if blocks.wanted is None:
            expected = controller.transfer.receive(first, blocks.length)
        else:
            expected = expected_of(controller, first, blocks)
        namespace, ranges = blocks.namespace, ((blocks.offset, blocks.length),)
        wait = after(controller, namespace, ranges, self._compare, writes=True, alone=True)
        if wait is not None:
            self._before = namespace.in_flight.in_the_way(*ranges[0], writes=True, alone=True)
            return replace(wait, recall=self._recalled)
        require_correctable(namespace, blocks.slba, blocks.blocks)
        content, durable = self._content(blocks)
        if controller.timing is not None:
            self._charge(controller.timing, blocks, writes=content is not None, durable=durable)
            content = None if self._write_refused else content
        media, dulbe = namespace.media, namespace.dulbe

        def work() -> Outcome:
            if isinstance(expected, Buffers):
                stored = Buffers(blocks)
                stored.fetch(dulbe=dulbe)
                try:
                    stored.check()
                except NvmeError as error:
                    return error, None
                at = expected.unlike(stored)
            else:
                at = first_difference(media, blocks.offset, expected, fua=blocks.fua, dulbe=dulbe)
            if at is not None or content is None:
                return at, None
            return None, _stored(media, blocks.offset, content, durable=durable)

        self._blocks = blocks
        self._work = work_of_both = controller.media_work.on_blocks(
            namespace.in_flight, ranges, work, writes=True, alone=True
        )
        return controller.deadlines.keep(
            self._compare_due, lambda: Pending(work_of_both, self._compared)
        )

    def _charge(
        self, timing: "ModelledTime", blocks: Target, *, writes: bool, durable: bool
    ) -> None:
        nsid, offset, length = blocks.namespace.nsid, blocks.offset, blocks.length
        self._compare_due = self._write_due = timing.read(nsid, offset, length)
        try:
            if writes:
                self._write_due = timing.write(
                    nsid, offset, length, after=self._compare_due, fua=durable
                )
        except NvmeError as error:
            self._write_refused = error

    def _content(self, blocks: Target) -> tuple["memoryview | Buffers | None", bool]:
        """What is to be written and whether durably; a write that is refused leaves it at that."""
        controller = self.controller
        try:
            if outcome(self._second_faults, self.second, lambda: None) is not None:
                self._write_lost = True
                return None, False
            require_pointer(self.second)
            second = target(controller, self.second)
            fua = second.fua
            require_writable(controller, blocks.namespace)
            content: memoryview | Buffers
            if second.wanted is None:
                content = controller.transfer.receive(self.second, blocks.length)
            else:
                content = Buffers(second)
                content.receive(controller.transfer, self.second)
                content.protect()
        except NvmeError as error:
            self._write_refused = error
            return None, False
        return content, fua or blocks.namespace.write_through

    def _compared(self, future: Future[Outcome]) -> None:
        namespace = self._blocks.namespace
        try:
            at, _ = future.result()
        except MediaError as error:
            raise self._first_failed(read_error(self.controller, namespace, error)) from None
        if isinstance(at, NvmeError):
            raise self._first_failed(self.controller.failures.unprotected(namespace.nsid, at))
        self.controller.health.count_read(self._blocks.length)
        if at is not None:
            raise self._first_failed(differs(namespace, at))

    def _first_failed(self, error: NvmeError) -> NvmeError:
        self._aborted = NvmeError(
            Status.FAILED_FUSED_COMMAND, f"its first half failed: {error.detail}"
        )
        return error

    def _written(self) -> Result:
        assert self._work is not None
        if self._aborted is not None:
            raise self._aborted
        if self._write_refused is not None:
            raise self._write_refused
        if self._write_lost:
            return lost()
        _, error = self._work.result()
        if error is not None:
            raise write_error(self.controller, self._blocks.namespace, error)
        self.controller.health.count_write(self._blocks.length)
        return None


def _stored(
    media: Media, offset: int, content: "memoryview | Buffers", *, durable: bool
) -> MediaError | None:
    """Write, and give the error; waits."""
    try:
        if isinstance(content, Buffers):
            content.store(durable=False)
        else:
            media.write_from([content], offset)
        if durable:
            media.flush()
    except MediaError as error:
        return error
    return None
