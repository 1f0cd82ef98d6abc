"""Device self-tests: their checks, and the log of their results.

A test is a list of small pieces of work for the media executor, so it does not delay commands. It
has a minimum duration, so that a host that polls once a second observes its progress. A short test
checks the sidecar, the firmware images and parts of each namespace, and ends with a reset; an
extended one reads every block, and continues after resets and power cycles.

Source: NVM Express Base Specification 2.0, section 5.9, 8.6 and 5.16.1.7 (its log)."""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Annotated, NamedTuple, TypedDict

from nvme_spec import logs
from nvme_spec.commands import SelfTestCode
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status, split
from potash_device.media.errors import MediaError
from potash_device.saved import Section, fits
from potash_device.storage import Storage
from potash_firmware.rpu.command import Steps
from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.namespaces.inventory import Inventory, Namespaces
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.operations.operations import Operations
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.reports import DriveReports
from potash_wire.records import U32

log = logging.getLogger(__name__)

PIECE = 4 << 20
"""Bytes that an extended test reads in one go."""

SAMPLE = 64 << 10
SAMPLES = 16
"""Parts of each namespace that a short test reads, from its first byte to its last."""

SHORTEST = 2.5
"""Seconds that a test takes at least: nvme-cli waits for one by polling once a second, and goes on
to wait for a test that it has never seen under way."""

READ_RATE = 256 << 20
"""Bytes a second that the recommended time of an extended test reckons with."""


class SavedTests(TypedDict, total=False):
    """The test at hand, its code and namespace, and the results in hexadecimal digits."""

    running: tuple[Annotated[int, fits(logs.SelfTestEntry.code)], U32] | None
    results: list[str]


SECTION: Section[SavedTests] = Section("self_test", SavedTests)
"""The sidecar's section."""


class Segment(IntEnum):
    """The segments of a test, with the numbers of the standard's example (Base 2.0, section
    8.6)."""

    SMART_CHECK = 2
    METADATA = 4
    NVM_INTEGRITY = 5
    DATA_INTEGRITY = 6


class Piece(NamedTuple):
    """A part of a test: `call` raises MediaError where it finds something wrong."""

    segment: Segment
    call: Callable[[], None]
    weight: int = SAMPLE
    namespace: Namespace | None = None


@dataclass(eq=False)
class Running:
    """The test at hand, of a controller; `done` of `total` is how far it is."""

    namespaces: Namespaces
    """The namespaces of the controller."""
    code: SelfTestCode
    nsid: int
    done: int = 0
    total: int = 1


@dataclass(eq=False, repr=False)
class SelfTests(Part):
    """The self-tests of a drive, of which there is one at a time."""

    storage: Storage
    inventory: Inventory
    operations: Operations
    reports: DriveReports
    clock: GuestClock
    _results: list[bytes] = field(default_factory=list)
    running: Running | None = None

    # Commands of the host that begin or end tests.

    def begin(self, namespaces: Namespaces, code: SelfTestCode, nsid: int) -> None:
        """Start a test of a controller and of its namespace `nsid`: none, one or all.

        Raises NvmeError.
        """
        if self.running is not None:
            raise NvmeError(
                Status.DEVICE_SELF_TEST_IN_PROGRESS, "there is a test already", dnr=False
            )
        for namespace in _chosen(namespaces, nsid):
            if namespace.in_flight.closed is not None:
                raise NvmeError(
                    namespace.in_flight.closed,
                    f"the blocks of namespace {namespace.nsid} are closed",
                    dnr=False,
                )
        self._run(Running(namespaces, code, nsid))

    def abort(self, result: logs.SelfTestResult, nsids: Collection[int] | None = None) -> None:
        """End the test at hand, if it is about any of these namespaces (None: whatever it is)."""
        run = self.running
        if run is not None and (nsids is None or run.nsid == BROADCAST_NSID or run.nsid in nsids):
            self._end(run, result)

    def session_ended(self, namespaces: Namespaces) -> None:
        """A controller level reset: a short test does not outlive it."""
        run = self.running
        if run is not None and run.namespaces is namespaces and run.code == SelfTestCode.SHORT:
            self.abort(logs.SelfTestResult.ABORTED_BY_RESET)

    def restore(self, *, clean: bool | None = None) -> None:
        """The power is back: remember the results, and go on with an extended test."""
        section = self.storage.sidecar.get(SECTION) or {}
        results = [entry for entry in map(_entry, section.get("results", ())) if entry]
        self._results = results[: logs.SELF_TEST_RESULTS]
        namespaces = self.inventory.views[0]
        match section.get("running"):
            case (SelfTestCode.EXTENDED, nsid):
                try:
                    self.begin(namespaces, SelfTestCode.EXTENDED, nsid)
                except NvmeError as error:
                    log.warning("a self-test does not go on: %s", error)
            case (SelfTestCode.SHORT, nsid):
                self.running = Running(namespaces, SelfTestCode.SHORT, nsid)
                self.session_ended(namespaces)

    @property
    def extended_minutes(self) -> int:
        """EDSTT: how long an extended test may take, generously."""
        size = sum(namespace.size for namespace in self.inventory.blocks.values())
        return min(1 + size // (READ_RATE * 60), 0xFFFF)

    def encode(self) -> bytes:
        """The log page: the test at hand, then results, the newest first."""
        run = self.running
        unused = logs.SelfTestEntry(result=logs.SelfTestResult.NOT_USED)
        results = [logs.SelfTestEntry(entry) for entry in self._results]
        return bytes(
            logs.DeviceSelfTestLog(
                current_operation=run.code if run else SelfTestCode.NONE,
                current_completion=100 * run.done // run.total if run else 0,
                results=(*results, *[unused] * (logs.SELF_TEST_RESULTS - len(results))),
            )
        )

    def save(self) -> Callable[[], None]:
        """A function to be called, where it may wait, to save the results."""
        run = self.running
        sidecar = self.storage.sidecar
        sidecar.put(
            SECTION,
            {
                "running": [int(run.code), run.nsid] if run else None,
                "results": [entry.hex() for entry in self._results],
            },
        )

        def save() -> None:
            try:
                sidecar.save()
            except MediaError:
                pass  # The sidecar has said so; a test is not worth less for it.

        return save

    # The test itself.

    def _run(self, run: Running) -> None:
        namespaces = _chosen(run.namespaces, run.nsid)
        short = self._pieces(SelfTestCode.SHORT, namespaces)
        run.total = sum(piece.weight for piece in short)
        if run.code == SelfTestCode.EXTENDED:
            run.total += sum(namespace.size for namespace in namespaces)
        self.running = run
        self.operations.start(self._steps(run, namespaces))

    def _steps(self, run: Running, namespaces: list[Namespace]) -> Steps:
        yield self.save()
        begun = self.clock.now()
        for piece in self._pieces(run.code, namespaces):
            due = begun + round(SHORTEST * 1e9 * (run.done + piece.weight) / run.total)
            if due > self.clock.now() and self.running is run:
                yield due
            if self.running is not run:
                break
            try:
                yield piece.call
            except MediaError as error:
                self._end(run, logs.SelfTestResult.SEGMENT_FAILED, piece, error)
                break
            run.done += piece.weight
        self._end(run, logs.SelfTestResult.PASSED)
        yield self.save()
        return None

    def _pieces(self, code: SelfTestCode, namespaces: list[Namespace]) -> Iterator[Piece]:
        storage = self.storage
        yield Piece(Segment.SMART_CHECK, self._check_health)
        yield Piece(Segment.METADATA, storage.sidecar.check)
        for slot in list(storage.flash.images):
            yield Piece(Segment.METADATA, partial(storage.flash.check, slot))
        for namespace in namespaces:
            last = max(namespace.size - SAMPLE, 0)
            for at in sorted({last * part // (SAMPLES - 1) for part in range(SAMPLES)}):
                yield _reading(Segment.NVM_INTEGRITY, namespace, at, SAMPLE)
        for namespace in namespaces if code == SelfTestCode.EXTENDED else ():
            for at in range(0, namespace.size, PIECE):
                yield _reading(Segment.DATA_INTEGRITY, namespace, at, PIECE)

    def _check_health(self) -> None:
        if self.reports.critical_warning() & logs.CriticalWarning.RELIABILITY_DEGRADED:
            raise MediaError(0, "the media have lost data")

    def _end(
        self,
        run: Running,
        result: logs.SelfTestResult,
        piece: Piece | None = None,
        error: MediaError | None = None,
    ) -> None:
        """A result of `run`, unless it has one already."""
        if self.running is not run:
            return
        self.running = None
        entry = logs.SelfTestEntry(
            result=result, code=run.code, power_on_hours=self.reports.health.power_on_hours
        )
        if piece is not None:
            entry.segment = piece.segment
            if piece.namespace is not None and error is not None:
                entry.nsid, entry.nsid_valid = piece.namespace.nsid, 1
                entry.sct, entry.sc = split(Status.UNRECOVERED_READ_ERROR)
                entry.sct_valid = entry.sc_valid = 1
                if error.at is not None:
                    entry.failing_lba, entry.lba_valid = piece.namespace.lba_of(error), 1
        self._results = [bytes(entry), *self._results][: logs.SELF_TEST_RESULTS]
        if result not in (logs.SelfTestResult.PASSED, logs.SelfTestResult.ABORTED_BY_COMMAND):
            log.warning("a self-test has ended: %s", result.name.lower().replace("_", " "))


def _chosen(namespaces: Namespaces, nsid: int) -> list[Namespace]:
    """The namespaces of a test: none, one or all. Raises NvmeError."""
    if nsid == 0:
        return []
    if nsid == BROADCAST_NSID:
        return [ns for ns in namespaces.accessible.values() if isinstance(ns, Namespace)]
    return [namespaces.of_kind(Namespace, nsid)]


def _reading(segment: Segment, namespace: Namespace, at: int, most: int) -> Piece:
    size = min(most, namespace.size - at)
    return Piece(segment, partial(namespace.media.verify, at, size), size, namespace)


def _entry(text: str) -> bytes | None:
    """A result as the sidecar has it; None where it makes no sense."""
    try:
        entry = bytes.fromhex(text)
    except ValueError:
        return None
    return entry if len(entry) == logs.SelfTestEntry.SIZE else None
