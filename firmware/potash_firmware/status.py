"""The status of a running device: a snapshot, and the socket that serves it.

Each client gets one JSON object when it is accepted. Nothing is read from it, and data that does
not fit into its socket's buffer is not sent. Only the device's user can open the socket."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar, cast

from csd_spec.status import StatusId
from csd_spec.text import plain
from nvme_spec.status import describe
from potash_device.board import Board
from potash_firmware import snapshot as reported
from potash_firmware.apu_process import ApuProcess
from potash_firmware.log_components import component_of
from potash_firmware.mailbox.shared import Counters, Row, Word
from potash_firmware.naming import CommandNames, command_name
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.loop import Rpu
from potash_firmware.rpu.statistics import BOUNDS, Histogram
from potash_firmware.rpu.timing.holding import Cause, Holding
from potash_firmware.rpu.timing.report import timing_log
from pyvfio_user.server import Server
from pyvfio_user.socket_path import listen, unlink

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION = 1
"""Version of a snapshot's contents; keys may be added without a new version."""

BACKLOG = 8

BUFFER = 1 << 20
"""Bytes of a snapshot that a client need not have read yet; one has 10 KiB or so."""

LINES = 64
LINE = 400
"""Lines of the log that a snapshot has, and characters of each."""

NANOSECONDS = 1e9

LINK_DIRECTIONS = 2


class Running(Protocol):
    """The parts of a running device (`boot.Device`) that a snapshot reads."""

    boards: list[Board]
    rpu: Rpu
    link: ApuLink
    servers: list[Server]
    apu: ApuProcess
    counters: Counters
    accelerators: dict[int, int]
    """The place of each accelerator's row among the counters."""


class RecentLines(logging.Handler):
    """Keeps the last lines that this process has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[reported.LogLine] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(
            reported.LogLine(
                time=record.created,
                level=record.levelname.lower(),
                component=component_of(record.name),
                message=plain(record.getMessage())[:LINE],
            )
        )


class StatusSocket:
    """Listens at `path` as long as the block lasts; the one who waits for it calls `answer`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._recent = RecentLines()

    def __enter__(self) -> Self:
        """Raises OSError as `pyvfio_user.server.Server` does."""
        self._listener, self._identity = listen(self.path, BACKLOG)
        logging.getLogger().addHandler(self._recent)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._recent)
        self._listener.close()
        unlink(self.path, self._identity)

    def fileno(self) -> int:
        return self._listener.fileno()

    def answer(self, snapshot: Callable[[], reported.Snapshot]) -> bool:
        """Give one client what `snapshot` makes, without waiting; whether there was any."""
        try:
            client, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are no descriptors for it
            return False
        with client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            try:
                known = {**snapshot(), "log": list(self._recent.lines)}
                data = json.dumps(known, separators=(",", ":")).encode() + b"\n"
                client.send(data, socket.MSG_NOSIGNAL)
            except OSError as error:
                log.debug("a snapshot was not taken: %s", error)
            except Exception:  # a bug of the firmware must not end the drive
                log.exception("a snapshot went wrong")
        return True


def snapshot(device: Running) -> reported.Snapshot:
    """A snapshot of a device, without its log."""
    rpu, link = device.rpu, device.link
    core, first = rpu.controller, _of_controller(device, 0)
    return reported.Snapshot(
        version=VERSION,
        pid=os.getpid(),
        time=time.monotonic(),
        controller=first["controller"],
        bytes=reported.Moved(read=core.health.bytes_read, written=core.health.bytes_written),
        namespaces=first["namespaces"],
        queues=first["queues"],
        latencies=first["latencies"],
        errors=first["errors"],
        media=reported.Media(work_in_flight=len(rpu.subsystem.media_work.every)),
        mailbox=reported.Mailbox(
            apu_running=link.port is not None and not link.port.closed,
            apu_starts=device.apu.starts,
            sent=link.sent,
            received=link.received,
            requests_in_flight=link.in_flight,
        ),
        accelerators=[
            _accelerator(identifier, device.counters.row(place))
            for identifier, place in device.accelerators.items()
        ],
        modelled=_modelled(core, rpu.holding),
        extensions=[
            _same(reported.Extension, listed)
            for listed in (core.settings.extensions.listed if core.settings.extensions else ())
        ],
        placement=[
            _same(reported.PlacementHandle, counted)
            for counted in (core.placement.counters if core.placement else ())
        ],
        access_groups=access_groups(rpu.subsystem.controllers),
        log=[],
        others=[_of_controller(device, number) for number in range(1, len(rpu.hosts))],
    )


def _of_controller(device: Running, number: int) -> reported.OtherController:
    """The part of a snapshot that is about one controller."""
    rpu, board, host = device.rpu, device.boards[number], device.rpu.hosts[number]
    core = host.controller
    return reported.OtherController(
        id=number,
        controller=reported.Controller(
            state=host.lifecycle.state.name.lower(),
            host_attached=device.servers[number].connected,
            shadow_doorbells=board.queues.shadow is not None,
            memory_by_messages=board.dma.by_messages,
            session_ends=core.statistics.resets,
            interrupts=board.interrupts.fired,
        ),
        namespaces=[
            reported.NamespaceSize(nsid=nsid, bytes=blocks.size, block_size=blocks.block_size)
            for nsid, blocks in core.namespaces.attached_blocks.items()
        ],
        queues=_queues(core, rpu.names),
        latencies=reported.Latencies(
            read=_histogram(core.statistics.reads),
            write=_histogram(core.statistics.writes),
            other=_histogram(core.statistics.others),
        ),
        errors=[
            reported.Errors(status=status, meaning=describe(status), commands=count)
            for status, count in sorted(core.statistics.errors.items())
        ],
    )


def access_groups(controllers: Iterable[Controller]) -> list[reported.AccessGroup]:
    """The access of these controllers to groups of namespaces, where they have groups."""
    return [
        reported.AccessGroup(
            controller=controller.identifier,
            group=group.anagrpid,
            state=group.state.name.lower().replace("_", "-"),
            changes=group.changes,
            namespaces=list(group.nsids),
        )
        for controller in controllers
        if controller.ana is not None
        for group in controller.ana.listed()
    ]


def _modelled(core: Controller, holding: Holding | None) -> reported.ModelledTime | None:
    timing, value_time = core.timing, core.value_time
    if timing is None or value_time is None:
        return None
    log, values = timing_log(timing), value_time.counters
    scale = timing.factor / NANOSECONDS
    return reported.ModelledTime(
        factor=log.factor,
        guest_seconds=log.guest_ns / NANOSECONDS,
        frozen_seconds=log.frozen_ns / NANOSECONDS,
        lateness=_histogram(timing.lateness),
        pages=_same(reported.Pages, log),
        write_amplification=log.write_amplification,
        operations=reported.Operations(
            senses=log.senses, programs=log.programs, erases=log.erased, suspensions=log.suspensions
        ),
        mapping=reported.CacheAccesses(hits=log.hits, misses=log.misses),
        busy=reported.Busy(
            dies=reported.Resource(number=log.dies, seconds=log.die_ns * scale),
            channels=reported.Resource(number=log.channels, seconds=log.bus_ns * scale),
            link=reported.Resource(number=LINK_DIRECTIONS, seconds=log.link_ns * scale),
            cores=reported.Resource(number=log.cores, seconds=log.core_ns * scale),
        ),
        wear=reported.FlashWear(
            percentage_used=log.percentage_used,
            available_spare=log.available_spare,
            worn=bool(log.worn),
            superblocks=log.superblocks,
            free=log.free,
            retired=log.retired,
            erases=reported.EraseCounts(
                total=log.erases,
                least=log.erases_least,
                p50=log.erases_p50,
                p90=log.erases_p90,
                p99=log.erases_p99,
                most=log.erases_most,
            ),
            grown_bad=log.grown_bad,
        ),
        stops=reported.StopsByCause(
            jobs=_stops(None if holding is None else holding.jobs),
            commands=_stops(None if holding is None else holding.commands),
        ),
        slc=reported.SlcCache(superblocks=log.slc, folded=log.folded, programs=log.slc_programs),
        errors=_same(reported.BitErrors, log),
        read_cache=reported.CacheAccesses(hits=log.read_hits, misses=log.read_misses),
        copied_back=log.copied,
        areas=reported.RandomWriteAreas(written=log.area_writes, committed=log.commits),
        values=_same(reported.ValueLogs, values),
    )


def _same(kind: type[T], source: object) -> T:
    """A part of a snapshot that has attributes of an object."""
    return cast(T, {name: getattr(source, name) for name in kind.__annotations__})


def _stops(cause: Cause | None) -> reported.Stops:
    if cause is None:
        return reported.Stops(number=0, seconds=0.0)
    return reported.Stops(number=cause.stops, seconds=cause.stopped / NANOSECONDS)


def _histogram(times: Histogram) -> reported.Histogram:
    return reported.Histogram(
        commands=times.count,
        seconds=times.total / NANOSECONDS,
        p50=times.percentile(0.5) / NANOSECONDS,
        p99=times.percentile(0.99) / NANOSECONDS,
        most=times.largest / NANOSECONDS,
        buckets=[
            reported.Bucket(most=most / NANOSECONDS, commands=count)
            for most, count in zip(BOUNDS, times.buckets, strict=False)
        ],
    )


def _queues(core: Controller, names: CommandNames) -> list[reported.Queue]:
    submissions = core.board.queues.submissions
    commands: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for (qid, csi, opcode), count in sorted(core.statistics.commands.items()):
        name = names.get((not qid, csi, opcode))
        commands[qid][name or command_name(opcode, admin=qid == 0, csi=csi)] += count
    return [
        reported.Queue(
            qid=qid,
            size=queue.size if queue is not None else None,
            waiting=(queue.tail - queue.head) % queue.size if queue is not None else 0,
            outstanding=len(core.outstanding.by_queue[qid]),
            commands=commands[qid],
        )
        for qid in sorted({*submissions, *commands})
        for queue in [submissions.get(qid)]
    ]


_STATES = {one.value: one.name.lower() for one in StatusId}


def _accelerator(identifier: int, row: Row) -> reported.AcceleratorState:
    began = row[Word.BEGAN]
    running = time.monotonic_ns() - began if began else 0
    return reported.AcceleratorState(
        id=identifier,
        # A worker that is an attacker's may have put anything there.
        state=_STATES.get(row[Word.STATE], StatusId.FAILED.name.lower()),
        running_for=max(0, running) / NANOSECONDS if began else None,
        jobs=reported.Jobs(
            started=row[Word.STARTED],
            done=row[Word.DONE],
            failed=row[Word.FAILED],
            stopped=row[Word.STOPPED],
        ),
        seconds=row[Word.BUSY] / NANOSECONDS,
        bytes=reported.JobBytes(input=row[Word.INPUT], output=row[Word.OUTPUT]),
        models=row[Word.MODELS],
        vta=reported.Vta(
            streams=row[Word.STREAMS],
            instructions=row[Word.INSTRUCTIONS],
            modelled_cycles=row[Word.CYCLES],
        ),
    )
