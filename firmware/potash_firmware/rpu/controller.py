"""What the firmware knows of its controller, as the handlers of commands use it.

Handlers get this object and the command. They change what is here; they never touch a queue's
entries, never post a completion, and never wait.
"""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nvme_spec.features import (
    FeatureId,
    HostControlledThermalManagement,
    TemperatureThreshold,
    ThresholdType,
)
from nvme_spec.identify import Oncs
from nvme_spec.logs import CommandEffectsLog, CriticalWarning
from nvme_spec.queues import FLAGS_PSDT_SHIFT
from nvme_spec.status import NvmeError, Status
from potash_device.board import Board
from potash_device.controller import sgl
from potash_device.controller.dma import PAGE_SIZE, scatter
from potash_device.media import Media, MediaError
from potash_firmware.mailbox.shared import SLOT_SIZE
from potash_firmware.rpu.alerts import Alerts
from potash_firmware.rpu.apu_link import ApuLink
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.events import AsyncEvents
from potash_firmware.rpu.feature_table import Limits
from potash_firmware.rpu.features import Features
from potash_firmware.rpu.firmware import FirmwareSlots
from potash_firmware.rpu.keep_alive import KeepAlive
from potash_firmware.rpu.keeper import Keeper
from potash_firmware.rpu.logs import ErrorLog, Health
from potash_firmware.rpu.media_work import BlocksInFlight, MediaFailures
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.settings import NamespaceSettings, RpuSettings
from potash_firmware.rpu.thermal import Thermal

log = logging.getLogger(__name__)

T = TypeVar("T")

CONTROLLER_ID = 0
"""CNTLID of the one controller."""

MAX_TRANSFER_SHIFT = 7
"""MDTS: 2**7 memory pages."""

MAX_TRANSFER = PAGE_SIZE << MAX_TRANSFER_SHIFT
"""Bytes that one command moves at most; a transfer slot of the mailbox holds as much."""

assert MAX_TRANSFER == SLOT_SIZE


@dataclass(frozen=True)
class Namespace:
    """A namespace's blocks on its media."""

    settings: NamespaceSettings
    media: Media
    in_flight: BlocksInFlight = field(default_factory=BlocksInFlight)

    @property
    def block_size(self) -> int:
        """Bytes of a logical block."""
        return self.settings.block_size

    @property
    def blocks(self) -> int:
        """Logical blocks; what is left of the media behind the last whole one is not used."""
        return self.media.size // self.settings.block_size

    @property
    def size(self) -> int:
        """Bytes of all logical blocks."""
        return self.blocks * self.block_size

    def byte_range(self, lba: int, count: int) -> tuple[int, int]:
        """First byte and length of `count` blocks from `lba`. Raises NvmeError past the end."""
        if lba + count > self.blocks:
            raise NvmeError(
                Status.LBA_OUT_OF_RANGE,
                detail=f"{count} blocks from {lba} on leave the namespace's {self.blocks}",
            )
        return lba * self.block_size, count * self.block_size

    def lba_of(self, error: MediaError) -> int:
        """The block at which the media failed; 0 where that is not known."""
        return (error.at or 0) // self.block_size


Flushed = tuple[Namespace, MediaError | None]
"""How the flush of a namespace has ended."""


def flush_all(namespaces: Iterable[Namespace]) -> list[Flushed]:
    """Flush each, whatever becomes of the others; waits, so it is the media executor's."""
    ended: list[Flushed] = []
    for namespace in namespaces:
        try:
            namespace.media.flush()
        except MediaError as error:
            ended.append((namespace, error))
        else:
            ended.append((namespace, None))
    return ended


@dataclass(frozen=True)
class CommandSupport:
    """What the dispatch tables say of the commands that there are."""

    oacs: int
    oncs: int
    effects: CommandEffectsLog


class Controller:
    """One NVMe controller: its board and everything that the firmware remembers."""

    def __init__(
        self,
        board: Board,
        settings: RpuSettings,
        apu: ApuLink,
        support: CommandSupport,
        clock: Callable[[], float],
    ) -> None:
        self.board = board
        self.settings = settings
        self.apu = apu
        self.support = support
        self.namespaces = {
            namespace.nsid: Namespace(namespace, board.media[namespace.nsid])
            for namespace in settings.namespaces
        }
        self.outstanding = Outstanding()
        self.events = AsyncEvents()
        self.errors = ErrorLog()
        self.health = Health(clock)
        self.failures = MediaFailures(clock, self._media_failed, lambda: self.alerts.health())
        self.firmware = FirmwareSlots(board.flash, settings.identity.firmware_revision)
        self.features = Features(
            Limits(
                io_queue_pairs=board.settings.queue_pairs,
                vectors=board.interrupts.vectors,
                io_queues_exist=lambda: len(board.queues.completions) > 1,
                blocks=self._blocks,
                tells_deallocated=self._tells_deallocated,
            ),
            clock,
        )
        self.keep_alive = KeepAlive(clock)
        self.thermal = Thermal(self.health, clock, self._throttling_thresholds)
        self.alerts = Alerts(self.events, self.errors, self.features, lambda: self.critical_warning)
        self.keeper = Keeper(
            board.sidecar, board.executor, self.health, self.errors, self.features, clock
        )
        self.aborted: list[tuple[Command, NvmeError]] = []
        """Commands that another command has ended; the loop answers them before that one."""
        self.unfinished: set[Future[Any]] = set()
        """Media work in flight, of whatever time: no reset recalls it."""
        self._awaited: dict[object, set[Future[Any]]] = {}

    def reset(self) -> None:
        """Forget the host's session; what the media still does is waited for by the loop."""
        self.outstanding.clear()
        self.aborted.clear()
        self._awaited.clear()
        self.events.clear()
        self.features.reset()
        self.alerts.reset()
        self.keep_alive.stop()
        self.thermal.look()
        self.firmware.reset()
        self.apu.reset()

    def namespace(self, command: Command) -> Namespace:
        """The command's namespace. Raises NvmeError when there is none."""
        return self.active(command.entry.nsid)

    @property
    def highest_nsid(self) -> int:
        """NN of Identify Controller: the largest identifier that a namespace could have."""
        return max(self.namespaces)

    def active(self, nsid: int) -> Namespace:
        """The active namespace `nsid`. Raises NvmeError for an inactive and for an invalid one.

        An inactive identifier could be a namespace's, and none has it (section 3.2.1.4).
        """
        namespace = self.namespaces.get(nsid)
        if namespace is None:
            inactive = 1 <= nsid <= self.highest_nsid
            raise NvmeError(
                Status.INVALID_FIELD if inactive else Status.INVALID_NAMESPACE,
                detail=f"there is no namespace {nsid:#x}",
            )
        return namespace

    def views(self, command: Command, length: int, *, write: bool) -> list[memoryview]:
        """The command's `length` bytes of guest memory, as its PRPs or its SGL name them, in order.

        They are for this pass: a command that waits asks again. Raises NvmeError.
        """
        entry, dma = command.entry, self.board.dma
        if entry.flags >> FLAGS_PSDT_SHIFT:
            return sgl.views(dma, entry.prp1, entry.prp2, length, write=write)
        return dma.views(entry.prp1, entry.prp2, length, write=write)

    def send(self, command: Command, data: bytes | memoryview) -> None:
        """Put `data` where the command wants it. Raises NvmeError, having written nothing."""
        scatter(self.views(command, len(data), write=True), data)

    def on_media(self, call: Callable[[], T]) -> "Future[T]":
        """Have `call` made where it may block; its future is a token to wait for."""
        future: Future[T] = self.board.executor.submit(call)
        self.unfinished.add(future)
        return future

    def on_blocks(
        self,
        namespace: Namespace,
        ranges: Iterable[tuple[int, int]],
        call: Callable[[], T],
        *,
        writes: bool,
    ) -> "Future[T]":
        """As `on_media`, for a call that touches `ranges` of first byte and length."""
        future = self.on_media(call)
        namespace.in_flight.add(future, ranges, writes=writes)
        return future

    @property
    def critical_warning(self) -> CriticalWarning:
        """What of the media and of the temperature deserves a warning."""
        warning = CriticalWarning(0)
        if (
            not self._threshold(ThresholdType.UNDER)
            < self.health.temperature
            < self._threshold(ThresholdType.OVER)
        ):
            warning |= CriticalWarning.TEMPERATURE
        media = [namespace.media for namespace in self.namespaces.values()]
        if any(one.lost is not None for one in media):
            warning |= CriticalWarning.RELIABILITY_DEGRADED
        if not any(one.writable for one in media):
            warning |= CriticalWarning.READ_ONLY
        return warning

    def _media_failed(self) -> None:
        self.health.media_errors += 1

    def _threshold(self, kind: ThresholdType) -> int:
        choice = TemperatureThreshold(thsel=kind).encode()
        return TemperatureThreshold(
            self.features.get(FeatureId.TEMPERATURE_THRESHOLD, choice)
        ).tmpth

    def _tells_deallocated(self, nsid: int) -> bool:
        return bool(self.support.oncs & Oncs.DATASET_MANAGEMENT)

    def _throttling_thresholds(self) -> HostControlledThermalManagement:
        return HostControlledThermalManagement(
            self.features.get(FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT)
        )

    def _blocks(self, nsid: int) -> int:
        namespace = self.namespaces.get(nsid)
        return namespace.blocks if namespace is not None else 0

    def end_of(self, work: "set[Future[Any]]") -> object:
        """A token that comes when all of `work`, of which there is some, has ended."""
        token = object()
        self._awaited[token] = work
        return token

    def media_finished(self, future: "Future[Any]") -> list[object]:
        """Media work has ended; the tokens that come with it."""
        self.unfinished.discard(future)
        for namespace in self.namespaces.values():
            namespace.in_flight.discard(future)
        come = []
        for token, work in list(self._awaited.items()):
            work.discard(future)
            if not work:
                del self._awaited[token]
                come.append(token)
        return come

    def abort(self, key: tuple[int, int]) -> bool:
        """End a command that waits; False when no such one does, or it cannot be recalled."""
        waiting = self.outstanding.find(key)
        if waiting is None or waiting.pending.recall is None or not waiting.pending.recall():
            return False
        self.outstanding.take(waiting.pending.token)
        self.aborted.append((waiting.command, NvmeError(Status.ABORT_REQUESTED, dnr=False)))
        return True

    def abort_queue(self, qid: int) -> "set[Future[Any]]":
        """End the commands of a submission queue that is being deleted.

        Those that the media work on cannot be recalled: their futures are given. A write that was
        called ended would undo what the host writes to the same blocks after it.
        """
        begun: set[Future[Any]] = set()
        for waiting in self.outstanding.of_queue(qid):
            token = waiting.pending.token
            if isinstance(token, Future):
                begun.add(token)
                continue
            self.outstanding.take(token)
            self.aborted.append((waiting.command, NvmeError(Status.SQ_DELETION_ABORTED, dnr=False)))
        return begun
