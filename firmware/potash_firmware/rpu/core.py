"""What the firmware knows of its controller, as handlers and long operations use it.

Handlers get this object and the command. They change what is here; they never touch a queue's
entries, never post a completion, and never wait.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from nvme_spec.features import (
    FeatureId,
    HostControlledThermalManagement,
    TemperatureThreshold,
    ThresholdType,
)
from nvme_spec.logs import CommandEffectsLog, CriticalWarning, NoticeEvent
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode
from nvme_spec.queues import FLAGS_PSDT_SHIFT
from nvme_spec.status import NvmeError, Status
from potash_device.board import Board
from potash_device.controller import sgl
from potash_device.controller.dma import PAGE_SIZE, scatter
from potash_device.media import MediaError
from potash_firmware.mailbox.shared import SLOT_SIZE
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.features.table import Limits
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.alerts import Alerts
from potash_firmware.rpu.logs.async_events import AsyncEvents
from potash_firmware.rpu.logs.health import ChangedNamespaces, ErrorLog, Health, LbaStatus
from potash_firmware.rpu.logs.persistent_events import PersistentEvents
from potash_firmware.rpu.media_work import MediaFailures
from potash_firmware.rpu.namespaces.namespace import Flushed, Namespace, flush_all
from potash_firmware.rpu.namespaces.uncorrectable import MOST_RANGES
from potash_firmware.rpu.operations.firmware_slots import FirmwareSlots
from potash_firmware.rpu.operations.keep_alive import KeepAlive
from potash_firmware.rpu.operations.tasks import Steps, Tasks
from potash_firmware.rpu.operations.thermal import Thermal
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.statistics import Statistics

log = logging.getLogger(__name__)

T = TypeVar("T")

CONTROLLER_ID = 0
"""CNTLID of the one controller."""

UNCORRECTABLE = "uncorrectable"
"""Section of the sidecar: the uncorrectable ranges of each namespace that has any.

Names are its identifier and how often it has been formatted: a device that is killed between the
two records of a format does not take old ranges for new ones.
"""

MAX_TRANSFER_SHIFT = 7
"""MDTS: 2**7 memory pages."""

MAX_TRANSFER = PAGE_SIZE << MAX_TRANSFER_SHIFT
"""Bytes that one command moves at most; a transfer slot of the mailbox holds as much."""

assert MAX_TRANSFER == SLOT_SIZE


@dataclass(frozen=True)
class CommandSupport:
    """What the dispatch tables say of the commands that there are."""

    oacs: int
    oncs: int
    effects: CommandEffectsLog


class Core:
    """One NVMe controller: its board and everything that the firmware remembers of a host.

    What goes on by itself is `Controller`'s.
    """

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
        self.allocated = {
            namespace.nsid: Namespace(
                namespace,
                board.media[namespace.nsid],
                formats=board.drive.shapes[namespace.nsid].formats,
            )
            for namespace in settings.namespaces
        }
        """Every namespace that there is, by identifier."""
        self.namespaces = {
            nsid: namespace
            for nsid, namespace in self.allocated.items()
            if namespace.settings.attached
        }
        """Those that are attached, which a host calls active."""
        self.inventory = 0
        """Changes with the namespaces that there are, and with their block sizes."""
        self.tasks = Tasks(board.executor.submit, clock)
        self.faults = Faults(settings.faults, self.allocated.values, self.tasks, apu.end)
        self.outstanding = Outstanding()
        self.events = AsyncEvents()
        self.errors = ErrorLog()
        self.health = Health(clock, self._io_waits)
        self.statistics = Statistics()
        self.failures = MediaFailures(clock, self._media_failed, self._media_lost)
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
        self.persistent_events = PersistentEvents(board.sidecar, clock, self.timestamp)
        self.changed_namespaces = ChangedNamespaces()
        self.lba_status = LbaStatus()
        self.aborted: list[tuple[Command, NvmeError]] = []
        """Commands that another command has ended; the loop answers them before that one."""
        self.unfinished: set[Future[Any]] = set()
        """Media work in flight, of whatever time: no reset recalls it."""
        self._flushes: dict[tuple[Namespace, ...], Future[list[Flushed]]] = {}
        """The latest of each choice of namespaces."""
        self._awaited: dict[object, set[Future[Any]]] = {}
        self.fused: dict[int, object] = {}
        """First halves of fused operations that wait for the second: token by queue."""
        self._uncorrectable_changes = 0
        self._uncorrectable_kept = 0

    def reset(self, *, next_host: bool) -> None:
        """Forget the host's session; what the media still does is waited for by the loop.

        The `next_host`, where it may be another one, is to find nothing of this one's.
        """
        self.statistics.resets += 1
        self.outstanding.clear()
        self.tasks.reset()
        self.aborted.clear()
        self._awaited.clear()
        self.fused.clear()
        self.events.clear()
        self.errors.clear()
        self.persistent_events.release()
        self.features.reset()
        self.alerts.reset()
        self.keep_alive.stop()
        self.thermal.look()
        self.firmware.reset()
        self.apu.reset(next_host=next_host)
        if next_host:
            self.board.trace.recent.clear()

    @property
    def highest_nsid(self) -> int:
        """NN: the largest identifier that a namespace may have."""
        return max(self.board.drive.most, *self.allocated, 1)

    @property
    def unallocated(self) -> int:
        """Bytes that no namespace has, of which new ones can be made."""
        drive = self.board.drive
        return drive.capacity - drive.allocated

    @property
    def total_capacity(self) -> int:
        """Bytes of all namespaces that there are and can be."""
        return sum(namespace.size for namespace in self.allocated.values()) + self.unallocated

    def active(self, nsid: int) -> Namespace:
        """The attached namespace of that identifier. Raises NvmeError where there is none."""
        namespace = self.namespaces.get(nsid)
        if namespace is None:
            raise no_namespace(self, nsid)
        return namespace

    def namespace(self, command: Command) -> Namespace:
        """The command's namespace, whose blocks it may touch. Raises NvmeError."""
        namespace = self.active(command.entry.nsid)
        closed = namespace.in_flight.closed
        if closed is not None:
            raise NvmeError(
                closed, dnr=False, detail=f"the blocks of namespace {namespace.nsid} are closed"
            )
        return namespace

    def quiet(self, namespaces: Iterable[Namespace]) -> Steps:
        """Wait for whatever was begun on these namespaces, on which nothing new may begin."""
        yield self.unfinished | self.tasks.calls
        # A command that had begun may have a next step, which is what it has begun now.
        while going_on := set().union(*(one.in_flight.futures for one in namespaces)):
            yield going_on
        return None

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
        views = self.views(command, len(data), write=True)
        with self.moving(command, views, to_host=True):
            scatter(views, data)

    def moving(
        self, command: Command, views: Sequence[memoryview], *, to_host: bool
    ) -> AbstractContextManager[object]:
        """A block in which the command's data moves, for who watches."""
        trace = self.board.trace
        if trace.sink is None or not views:
            return nullcontext()
        return trace.span("dma", **_transfer(command, views, to_host))

    def at_once(
        self,
        command: Command,
        move: Callable[[Sequence[memoryview], int], bool],
        views: Sequence[memoryview],
        offset: int,
        *,
        to_host: bool,
    ) -> bool:
        """Move the command's data from or to the media by `move`, if that need not wait.

        Whether it has; then nobody else has to. Raises MediaError.
        """
        trace = self.board.trace
        if trace.sink is None:
            return move(views, offset)
        began = time.monotonic()
        done = move(views, offset)
        if done:
            what = "read" if to_host else "write"
            trace.sink("dma", {"began": began, **_transfer(command, views, to_host)})
            trace.sink("media.at_once", {"began": began, "what": what, "offset": offset})
        return done

    def on_media(self, call: Callable[[], T], *, flushes: bool = False) -> "Future[T]":
        """Have `call` made where it may block; its future is a token to wait for.

        `flushes` says that it only flushes media.
        """
        if self.board.trace.sink is not None:
            call = self._watched(call)
        future: Future[T] = self.board.executor.submit(call, flushes=flushes)
        self.unfinished.add(future)
        return future

    def flush(self, namespaces: Sequence[Namespace]) -> "Future[list[Flushed]]":
        """A flush of these that begins from now on: with the others that wait for the same.

        So a host cannot fill the media's threads with flushes, however long one takes.
        """
        key = tuple(namespaces)
        future = self._flushes.get(key)
        if future is None or future.running() or future.done():

            def flush() -> list[Flushed]:
                return flush_all(key)

            future = self._flushes[key] = self.on_media(flush, flushes=True)
        return future

    def _watched(self, call: Callable[[], T]) -> Callable[[], T]:
        trace, what = self.board.trace, _words(getattr(call, "__qualname__", type(call).__name__))

        def watched() -> T:
            with trace.span("media.work", what=what):
                return call()

        return watched

    def on_blocks(
        self,
        namespace: Namespace,
        ranges: Iterable[tuple[int, int]],
        call: Callable[[], T],
        *,
        writes: bool,
        alone: bool = False,
    ) -> "Future[T]":
        """As `on_media`, for a call that touches `ranges` of first byte and length."""
        future = self.on_media(call)
        namespace.in_flight.add(future, ranges, writes=writes, alone=alone)
        return future

    def dulbe(self, namespace: Namespace) -> bool:
        """Reading a block that is deallocated or was never written is an error."""
        return namespace.tells_deallocated and self.features.dulbe(namespace.settings.nsid)

    def watch(self) -> None:
        """Have commands look before they touch blocks where some are special."""
        for namespace in self.allocated.values():
            namespace.in_flight.watched = bool(namespace.uncorrectable) or self.dulbe(namespace)

    def restore_uncorrectable(self) -> None:
        """Remember the uncorrectable blocks of the time before the power cycle."""
        kept = self.board.sidecar.get(UNCORRECTABLE)
        for namespace in self.allocated.values() if isinstance(kept, Mapping) else ():
            namespace.uncorrectable.restore(kept.get(_kept_name(namespace)), namespace.blocks)
        self.watch()

    @property
    def uncorrectable_is_full(self) -> bool:
        """No further range of uncorrectable blocks can be kept."""
        ranges = sum(len(namespace.uncorrectable) for namespace in self.allocated.values())
        return ranges >= MOST_RANGES

    @property
    def uncorrectable_is_kept(self) -> bool:
        """What is uncorrectable now would be so after a power cycle, and nothing else."""
        return self._uncorrectable_kept == self._uncorrectable_changes

    def keep_uncorrectable(self, then: Callable[[], Result] = lambda: None) -> Pending:
        """Have the uncorrectable blocks, as they are now, outlive a power cycle, `then` go on."""
        save = self.uncorrectable_changed()
        change = self._uncorrectable_changes

        def finish(future: "Future[None]") -> Result:
            try:
                future.result()
            except MediaError as error:
                # It is so for now, and kept as soon as a flush finds the sidecar writable again.
                raise NvmeError(Status.WRITE_FAULT, dnr=False, detail=str(error.strerror)) from None
            self._uncorrectable_kept = max(self._uncorrectable_kept, change)
            return then()

        return Pending(self.on_media(save), finish)

    def save_uncorrectable(self) -> Steps:
        """As `keep_uncorrectable`, within a task. Raises MediaError."""
        save = self.uncorrectable_changed()
        change = self._uncorrectable_changes
        yield save
        self._uncorrectable_kept = max(self._uncorrectable_kept, change)
        return None

    def uncorrectable_changed(self) -> Callable[[], None]:
        """What is to be called, where it may wait, to have that kept. Raises MediaError."""
        self._uncorrectable_changes += 1
        self.watch()
        self.board.sidecar.put(
            UNCORRECTABLE,
            {
                _kept_name(namespace): namespace.uncorrectable.ranges()
                for namespace in self.allocated.values()
                if namespace.uncorrectable
            },
        )
        return self.board.sidecar.save

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
        media = [namespace.media for namespace in self.allocated.values()]
        if any(one.lost is not None for one in media):
            warning |= CriticalWarning.RELIABILITY_DEGRADED
        if media and not any(one.writable for one in media):
            warning |= CriticalWarning.READ_ONLY
        return warning

    def namespace_changed(self, nsid: int) -> None:
        """A namespace has come, gone, or changed: note it for the host, and tell it so."""
        self.changed_namespaces.add(nsid)
        self.alerts.notice(NoticeEvent.NAMESPACE_ATTRIBUTE_CHANGED)

    def timestamp(self) -> int:
        """The Timestamp feature's value, as its structure lies in memory."""
        return int.from_bytes(bytes(self.features.timestamp), "little")

    def _io_waits(self) -> bool:
        return len(self.outstanding) > self.outstanding.admin

    def _media_failed(self) -> None:
        self.health.media_errors += 1
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.MEDIA_AND_DATA_INTEGRITY))

    def _media_lost(self) -> None:
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.CRITICAL_WARNING))
        self.alerts.health()

    def _threshold(self, kind: ThresholdType) -> int:
        choice = TemperatureThreshold(thsel=kind).encode()
        return TemperatureThreshold(
            self.features.get(FeatureId.TEMPERATURE_THRESHOLD, choice)
        ).tmpth

    def _tells_deallocated(self, nsid: int) -> bool:
        namespace = self.allocated.get(nsid)
        return namespace is not None and namespace.tells_deallocated

    def _throttling_thresholds(self) -> HostControlledThermalManagement:
        return HostControlledThermalManagement(
            self.features.get(FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT)
        )

    def _blocks(self, nsid: int) -> int:
        namespace = self.allocated.get(nsid)
        return namespace.blocks if namespace is not None else 0

    def end_of(self, work: "set[Future[Any]]") -> object:
        """A token that comes when all of `work`, of which there is some, has ended."""
        token = object()
        self._awaited[token] = work
        return token

    def media_finished(self, future: "Future[Any]") -> list[object]:
        """Media work has ended; the tokens that come with it."""
        self.unfinished.discard(future)
        if self._flushes:
            self._flushes = {key: one for key, one in self._flushes.items() if one is not future}
        for namespace in self.allocated.values():
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
        self.fused.pop(qid, None)
        for waiting in self.outstanding.of_queue(qid):
            token = waiting.pending.token
            if isinstance(token, Future):
                begun.add(token)
                continue
            self.outstanding.take(token)
            self.aborted.append((waiting.command, NvmeError(Status.SQ_DELETION_ABORTED, dnr=False)))
        return begun


def _kept_name(namespace: Namespace) -> str:
    """What the uncorrectable blocks of a namespace are kept under, until its next format."""
    return f"{namespace.nsid}/{namespace.formats}"


def no_namespace(core: Core, nsid: int) -> NvmeError:
    """What a command gets whose namespace is not there (Base 2.0, section 3.2.1).

    An identifier that a namespace may have is invalid in no way but that none has it.
    """
    if 1 <= nsid <= core.highest_nsid:
        return NvmeError(Status.INVALID_FIELD, detail=f"namespace {nsid} is not active")
    return NvmeError(
        Status.INVALID_NAMESPACE, detail=f"no namespace can have the identifier {nsid:#x}"
    )


def _transfer(command: Command, views: Sequence[memoryview], to_host: bool) -> dict[str, object]:
    """What there is to say of a command's transfer."""
    qid, cid = command.key
    size = sum(map(len, views))
    return {"qid": qid, "cid": cid, "to_host": to_host, "bytes": size, "pieces": len(views)}


def _words(qualified: str) -> str:
    """What a piece of work is called that a handler has made: as the function, or the handler."""
    places = [one for one in qualified.split(".") if not one.startswith("<")]
    named = not qualified.endswith("<lambda>")
    return places[-1].strip("_") if named or len(places) < 2 else places[-2]
