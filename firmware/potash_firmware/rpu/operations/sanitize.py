"""Sanitize: making all user data of the drive unrecoverable, as far as the host's disk allows.

An operation runs in the background, on all namespaces, and continues over resets and power cycles.
While it runs, and after one that has failed, only few commands are permitted (`check`).

Source: NVM Express Base Specification 2.0, section 5.24, 8.21 and 5.16.1.25 (Sanitize Status)."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

import csd_spec.opcodes
from nvme_spec import logs
from nvme_spec.commands import GetLogPage, Sanitize, SanitizeAction, SetFeatures
from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import Sanicap
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from nvme_spec.persistent_events import SanitizeCompleted, SanitizeStarted
from nvme_spec.status import NvmeError, Status
from potash_device.board import Board
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_device.saved import Section, fits
from potash_device.storage import Storage
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.compute.memories import Memories
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.namespaces.memory import ComputeNamespace
from potash_firmware.rpu.namespaces.uncorrectable import UncorrectableBlocks
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.operations.firmware_slots import FirmwareSlots
from potash_firmware.rpu.operations.operations import Operations
from potash_firmware.rpu.operations.self_tests import SelfTests
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.reports import DriveReports
from potash_firmware.rpu.scheduler import Signal
from potash_wire.records import U32, Range

if TYPE_CHECKING:  # it takes NumPy
    from potash_firmware.rpu.timing.modelled import ModelledTime

log = logging.getLogger(__name__)

MOST_PASSES = 16
"""The pattern and passes of an overwrite."""


class SavedController(TypedDict, total=False):
    """The controller of the last operation, of which earlier versions did not keep a record."""

    controller: U32


class SavedSanitize(SavedController):
    """The last operation: its command's dwords 10 and 11, completed passes, and the writes of the
    drive when all was erased."""

    state: Annotated[int, fits(logs.SanitizeStatusLog.state)]
    failed: bool
    command: tuple[U32, U32]
    passes: Annotated[int, Range(0, MOST_PASSES)]
    erased: int | None


SECTION: Section[SavedSanitize] = Section("sanitize", SavedSanitize)
"""The sidecar's section."""

ACTIONS = {
    SanitizeAction.BLOCK_ERASE: Sanicap.BLOCK_ERASE,
    SanitizeAction.OVERWRITE: Sanicap.OVERWRITE,
}
"""The operations that there are, and how Identify announces them."""

WRITTEN_PIECE = 4 << 20
PUNCHED_PIECE = 1 << 30
"""Bytes that are written, or given back to the file system, in one go."""

WRITE_RATE = 128 << 20
PUNCH_RATE = 16 << 30
"""Bytes a second that the estimated times reckon with."""

ALLOWED_ADMIN = frozenset(
    {
        AdminOpcode.DELETE_IO_SUBMISSION_QUEUE,
        AdminOpcode.CREATE_IO_SUBMISSION_QUEUE,
        AdminOpcode.GET_LOG_PAGE,
        AdminOpcode.DELETE_IO_COMPLETION_QUEUE,
        AdminOpcode.CREATE_IO_COMPLETION_QUEUE,
        AdminOpcode.IDENTIFY,
        AdminOpcode.ABORT,
        AdminOpcode.SET_FEATURES,
        AdminOpcode.GET_FEATURES,
        AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST,
        AdminOpcode.KEEP_ALIVE,
        # Where doorbells are rung, which is about no data; a driver asks for it at each start.
        AdminOpcode.DOORBELL_BUFFER_CONFIG,
    }
)
"""Commands that a host may send while an operation is in progress, and after one that has
failed."""


@dataclass(eq=False, repr=False)
class Sanitizing(Part):
    """The sanitize operations of a drive.

    `erase_accelerators` gives a signal that is sent when the accelerators hold no user data.
    """

    storage: Storage
    namespaces: Inventory
    uncorrectable: UncorrectableRecord
    operations: Operations
    self_tests: SelfTests
    reports: DriveReports
    firmware: FirmwareSlots
    memories: Sequence[Memories]
    """The memories of each controller."""
    boards: Sequence[Board]
    """The board of each controller."""
    timing: "ModelledTime | None"
    erase_accelerators: Callable[[], Signal]
    state: logs.SanitizeState = logs.SanitizeState.NEVER_SANITIZED
    failure_mode: bool = False
    """The last operation has failed, and nobody has done anything about it."""
    _fields: Sanitize = field(default_factory=lambda: Sanitize(0))
    _passes: int = 0
    _done: int = 0
    _total: int = 1
    _erased: int | None = None
    """The number of writes in the health log when everything was erased."""
    _dword10: int = 0
    _controller: int = 0
    """The controller of the command, which alone reports the end (Base 2.1, section 8.1.24.2)."""

    # Restrictions for the host.

    def check(self, command: Command) -> None:
        """Raise NvmeError for a command that is not for now."""
        status = self._restriction
        if status is None:
            return
        opcode = command.entry.opcode
        if command.queue.qid:
            allowed = opcode == IoOpcode.FLUSH
        else:
            allowed = opcode in ALLOWED_ADMIN or (
                opcode == AdminOpcode.SANITIZE and self.failure_mode
            )
            if opcode == AdminOpcode.GET_LOG_PAGE:  # of which the accelerators' may hold user data
                fields = GetLogPage.decode(command.entry.cdws)
                allowed = fields.lid != csd_spec.opcodes.LOG_PAGE
            if opcode == AdminOpcode.SET_FEATURES and not self.failure_mode:
                # An operation that could not write would fail. Where one has failed, the host may
                # have to end the protection before another.
                feature = SetFeatures.decode(command.entry.cdws).fid
                allowed = feature != FeatureId.NAMESPACE_WRITE_PROTECTION
        if not allowed:
            raise NvmeError(status, "a sanitize operation restricts", dnr=self.failure_mode)

    def require_none(self) -> None:
        """Raise NvmeError for a command that was queued before the operation began."""
        if self._restriction is not None:
            raise NvmeError(self._restriction, "a sanitize operation restricts", dnr=False)

    @property
    def _restriction(self) -> Status | None:
        if self.state is logs.SanitizeState.IN_PROGRESS:
            return Status.SANITIZE_IN_PROGRESS
        return Status.SANITIZE_FAILED if self.failure_mode else None

    def data_written(self) -> None:
        """Blocks are written by somebody whose writes the health log does not count."""
        self._erased = None

    # The Sanitize command.

    def command(self, fields: Sanitize, dword10: int, controller: int) -> Steps:
        """Start an operation, or leave the failure mode, for a command of a controller. Raises
        NvmeError."""
        if self.state is logs.SanitizeState.IN_PROGRESS:
            self.require_none()
        exits = fields.sanact == SanitizeAction.EXIT_FAILURE_MODE
        # Only another operation that is restricted leads out of a restricted one.
        if self.failure_mode and not self._fields.ause and (exits or fields.ause):
            raise NvmeError(Status.SANITIZE_FAILED, "another operation has to succeed")
        if exits:
            if self.failure_mode:
                yield self._save(self.state, failed=False)
                self.failure_mode = False
                self._close(None)
            return None
        if fields.sanact not in ACTIONS:
            raise NvmeError(Status.INVALID_FIELD, f"sanitize action {fields.sanact} is not there")
        if self.firmware.next is not None:
            raise NvmeError(
                Status.FIRMWARE_NEEDS_CONTROLLER_RESET, "a reset is to activate firmware"
            )
        if self.firmware.busy:  # which may activate it
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "an image is being written", dnr=False)
        if not all(ns.media.writable for ns in self.namespaces.stored.values()):
            raise NvmeError(Status.NAMESPACE_WRITE_PROTECTED, "a namespace takes no writes")
        before = (self._fields, self._dword10, self._passes, self._erased, self._controller)
        self._fields, self._dword10, self._erased = fields, dword10, None
        self._controller = controller
        self._passes = self._done = 0
        self._close(Status.SANITIZE_IN_PROGRESS)
        try:
            yield self._save(logs.SanitizeState.IN_PROGRESS, failed=False)
        except MediaError:
            self._fields, self._dword10, self._passes, self._erased, self._controller = before
            self._close(self._restriction)
            raise
        self.state, self.failure_mode = logs.SanitizeState.IN_PROGRESS, False
        self.reports.persistent_events.add(
            SanitizeStarted(
                sanicap=sum(ACTIONS.values()) | Sanicap.MEDIA_NOT_MODIFIED,
                cdw10=dword10,
                cdw11=fields.ovrpat,
            )
        )
        self.self_tests.abort(logs.SelfTestResult.ABORTED_BY_SANITIZE)
        for reports in self.reports.controllers:  # no host is to take an older end for this one's
            reports.events.log_was_read(logs.LogPage.SANITIZE_STATUS, 0)
        self.operations.start(self._work(), exclusive=True)
        return None

    def restore(self, *, clean: bool | None = None) -> None:
        """Go on with what was in progress."""
        saved = self.storage.sidecar.get(SECTION)
        if saved is not None and saved["state"] in _STATES:
            self.state = logs.SanitizeState(saved["state"])
            self.failure_mode = saved["failed"]
            self._fields = Sanitize.decode((*saved["command"], 0, 0, 0, 0))
            self._dword10 = saved["command"][0]
            self._passes = saved["passes"]
            self._controller = saved.get("controller", 0)
            # After a power cycle without a shutdown, it is not known what was written.
            self._erased = None if clean is False else saved["erased"]
        if self.state is logs.SanitizeState.IN_PROGRESS:
            log.warning("a sanitize operation goes on")
            self.operations.start(self._work(), exclusive=True)
        self._close(self._restriction)

    # The log.

    def encode(self) -> bytes:
        size = sum(namespace.media.size for namespace in self.namespaces.blocks.values())
        overwrite = 16 * size // WRITE_RATE + 1
        return bytes(
            logs.SanitizeStatusLog(
                sprog=self._progress,
                state=self.state,
                passes=self._passes if self._fields.sanact == SanitizeAction.OVERWRITE else 0,
                global_data_erased=int(self._erased == self.reports.health.writes),
                scdw10=self._dword10,
                overwrite_time=overwrite,
                block_erase_time=size // PUNCH_RATE + 1,
                crypto_erase_time=logs.NO_TIME_REPORTED,
                overwrite_time_nd=overwrite,
                block_erase_time_nd=size // WRITE_RATE + 1,
                crypto_erase_time_nd=logs.NO_TIME_REPORTED,
            )
        )

    @property
    def _progress(self) -> int:
        if self.state is not logs.SanitizeState.IN_PROGRESS:
            return logs.SANITIZE_NO_PROGRESS
        return min(
            logs.SANITIZE_PROGRESS_UNIT * self._done // self._total, logs.SANITIZE_NO_PROGRESS - 1
        )

    # The operation itself.

    def _work(self) -> Steps:
        namespaces = list(self.namespaces.blocks.values())
        values = self.namespaces.values
        error = NvmeError(Status.SANITIZE_IN_PROGRESS, "a sanitize operation began", dnr=False)
        yield set().union(*(memories.stop_programs(error) for memories in self.memories))
        yield from self.operations.quiet([*namespaces, *values])
        if self.timing is not None:
            self.timing.erase(self.namespaces.stored)
        for memories in self.memories:
            memories.renew()
        yield self.erase_accelerators()
        for board in self.boards:
            if board.cmb is not None:
                yield partial(board.cmb.clear_all_but, board.queues.areas)
        media = [namespace.media for namespace in namespaces]
        fields, size = self._fields, sum(each.size for each in media)
        passes = fields.passes if fields.sanact == SanitizeAction.OVERWRITE else 1
        self._done, self._total = self._passes * size, max(passes * size, 1)
        try:
            for key_value in values:
                yield key_value.media.erase
                key_value.erased()
            for each in media:
                if each.beside is not None:
                    yield partial(each.beside.punch, 0, each.size)
            for number in range(self._passes, passes):
                for call, length in _in_pieces(media, *self._pass(number)):
                    yield call
                    self._done += length
                yield partial(_flush, media)
                self._passes += 1
                if number + 1 < passes:
                    yield self._save(self.state, failed=False)
            if fields.sanact == SanitizeAction.OVERWRITE and not fields.ndas:
                for call, _ in _in_pieces(media, PUNCHED_PIECE, Media.punch):
                    yield call
                yield partial(_flush, media)
            for namespace in namespaces:
                namespace.uncorrectable = UncorrectableBlocks()
                namespace.erased()
                yield namespace.store_claims
            yield partial(_flush, media)
            yield from self.uncorrectable.saving()
            # What says that it is over is durable before the host writes anything again.
            self._erased = self.reports.health.writes
            yield self._save(logs.SanitizeState.SUCCEEDED, failed=False)
        except MediaError as error:
            log.error("a sanitize operation has failed: %s", error.strerror)
            self._erased = None
            self.state, self.failure_mode = logs.SanitizeState.FAILED, True
            with suppress(MediaError):
                yield self._save(logs.SanitizeState.FAILED, failed=True)
        else:
            log.info("a sanitize operation has succeeded")
            self.state = logs.SanitizeState.SUCCEEDED
        self._close(self._restriction)
        # Its data begins as the log page does: SPROG, SSTAT.
        event = SanitizeCompleted(self.encode()[:4].ljust(SanitizeCompleted.SIZE, b"\0"))
        self.reports.persistent_events.add(event)
        if self._controller < len(self.reports.controllers):  # it may have had more
            self.reports.controllers[self._controller].events.add(
                logs.AsyncEvent(
                    type=logs.AsyncEventType.IO_COMMAND_SET,
                    info=logs.IoCommandSetEvent.SANITIZE_COMPLETED,
                    log_page=logs.LogPage.SANITIZE_STATUS,
                )
            )
        return None

    def _pass(self, number: int) -> tuple[int, Callable[[Media, int, int], None]]:
        """The work of a pass over all media, and the number of bytes of a step."""
        fields = self._fields
        if fields.sanact == SanitizeAction.OVERWRITE:
            inverted = fields.oipbp and number % 2
            return WRITTEN_PIECE, partial(_write, fields.ovrpat ^ (_ALL if inverted else 0))
        if fields.ndas:
            return WRITTEN_PIECE, Media.write_zeroes
        return PUNCHED_PIECE, Media.punch

    def _save(self, state: logs.SanitizeState, *, failed: bool) -> Callable[[], None]:
        """A function to be called, where it may wait, to record the state. It raises MediaError."""
        self.storage.sidecar.put(
            SECTION,
            {
                "state": int(state),
                "failed": failed,
                "command": [self._dword10, self._fields.ovrpat],
                "passes": self._passes,
                "erased": self._erased,
                "controller": self._controller,
            },
        )
        return self.storage.sidecar.save

    def _close(self, status: Status | None) -> None:
        """Keep commands from what all namespaces hold, or no longer."""
        for namespace in self.namespaces.every.values():
            if not isinstance(namespace, ComputeNamespace):
                namespace.in_flight.closed = status


_ALL = 0xFFFF_FFFF
_STATES = frozenset(logs.SanitizeState)


def _in_pieces(
    media: list[Media], most: int, do: Callable[[Media, int, int], None]
) -> Iterator[tuple[Callable[[], None], int]]:
    """Calls that go over all media, each with the bytes that it is about."""
    for each in media:
        for at in range(0, each.size, most):
            length = min(most, each.size - at)
            yield partial(do, each, at, length), length


def _write(pattern: int, media: Media, at: int, length: int) -> None:
    # Pieces begin at a multiple of the pattern, but the last one need not end at one.
    content = pattern.to_bytes(4, "little") * -(-length // 4)
    media.write_from([memoryview(content)[:length]], at)


def _flush(media: list[Media]) -> None:
    for each in media:
        each.flush()
