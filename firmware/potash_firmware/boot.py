"""Booting the firmware on its boards: the RPU in this process, the APU in its own.

One loop waits for the vfio-user servers, one for each controller, the RPU and the APU's mailbox. An
APU that dies is started again; its requests fail, and the drive continues."""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from csd_spec.status import StatusId
from potash_device.board import Board
from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.executor import MediaExecutor
from potash_device.media.flash import Flash
from potash_device.media.shapes import first_memories
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import Media, MemoryMedia
from potash_device.settings import MOST_CONTROLLERS, BoardSettings
from potash_device.storage import Storage
from potash_device.trace import Trace, record, record_part
from potash_device.vta.config import default_threads
from potash_firmware.apu import config
from potash_firmware.apu_process import ApuProcess
from potash_firmware.extension_limits import ExtensionError
from potash_firmware.mailbox import SharedBuffers, pair
from potash_firmware.mailbox.shared import ENGINE_ROWS, Counters, Word
from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.loop import Rpu
from potash_firmware.rpu.migration.migration import PATIENCE
from potash_firmware.rpu.timing.holding import Holding, Standstill
from potash_firmware.settings import DeviceSettings
from potash_firmware.status import StatusSocket, access_groups, snapshot
from potash_firmware.stop_signals import StopSignals, wake_on_time
from potash_firmware.waiting import READ, WRITE, Pollable, Waiting, earliest
from pyvfio_user.device import failure_of
from pyvfio_user.dma_messages import UNANSWERED
from pyvfio_user.server import Server

if TYPE_CHECKING:  # of drives with asymmetric access
    from potash_firmware.control import ControlSocket

log = logging.getLogger(__name__)

MESSAGES_PER_PASS = 64
"""Messages of the host that are handled before the RPU is serviced."""

HOST_WRITES_WAITING = 1024
"""Host writes that wait for the RPU before the host's further messages wait in their socket."""

REFUSAL_LOG_INTERVAL = 10.0
"""Seconds before the next client that is refused is worth a line."""


class Device:
    """A running device at a socket, or at several; a context manager, stepped with `run_once`.

    It is one NVM subsystem, with a controller at each socket. `media` are the namespaces' blocks by
    identifier, `flash` is what holds firmware images, and `sidecar` everything small that is to
    outlive a power cycle (nothing does without it); `drive` is what a host makes namespaces of
    (memory without it). `trace` is a descriptor, open for appending, for what all processes of the
    device do. They stay the caller's. A snapshot of how the device is doing can be had at the
    socket `status` (`status.py`); beside each socket is the one by which asymmetric access changes
    (`control.py`). One that is `incoming` is stopped until it is given the state of another one,
    whose media it then has. `standstill` makes what stops the guests while the emulation is
    behind, of their clock, for a drive whose time is modelled. Entering raises OSError where a
    socket cannot be made.
    """

    def __init__(
        self,
        socket: Path | Sequence[Path],
        media: Mapping[int, Media],
        flash: Media,
        settings: DeviceSettings | None = None,
        *,
        sidecar: Media | None = None,
        drive: Drive | None = None,
        trace: int | None = None,
        status: Path | None = None,
        incoming: bool = False,
        standstill: Callable[[GuestClock], Standstill] | None = None,
    ) -> None:
        self._sockets = [socket] if isinstance(socket, Path) else list(socket)
        if not 1 <= len(self._sockets) <= MOST_CONTROLLERS:
            raise ValueError(f"a device has 1 to {MOST_CONTROLLERS} sockets")
        self._incoming = incoming
        self._drive = drive
        self._media = media
        self._flash = flash
        self._sidecar = sidecar
        self._trace = trace
        self._status_path = status
        self._status: StatusSocket | None = None
        self._controls: list[ControlSocket] = []
        """The control socket of each controller, of a drive with asymmetric access."""
        self._make_standstill = standstill
        self._settings = settings if settings is not None else DeviceSettings()
        self._stack = ExitStack()
        self._powered = False
        self._busy = True
        self._more = [True] * len(self._sockets)
        """Flags: a client has sent more than was handled."""
        self._namespaces_version: int | None = None
        """Version of the namespaces that the APU knows; None where it could not be started with
        them."""
        self._refusal_logged_until = 0.0

    def __enter__(self) -> Self:
        settings = self._settings
        with ExitStack() as stack:
            self._waiting = stack.enter_context(Waiting())
            buffers = stack.enter_context(
                SharedBuffers.create({one.id: one.plan for one in settings.accelerators})
            )
            rows = len(settings.accelerators) + (0 if settings.rpu.time is None else ENGINE_ROWS)
            self.counters = stack.enter_context(Counters.create(rows))
            self.accelerators = {one.id: at for at, one in enumerate(settings.accelerators)}
            """Rows of the accelerators in `counters`, by their identifiers."""
            kept = self._sidecar
            if kept is None:
                kept = MemoryMedia.create(SIDECAR_SIZE)
                stack.callback(kept.close)
            stack.push(self._power_off)
            # Its end waits for its work, which may read the buffers.
            executor = stack.enter_context(MediaExecutor())
            sidecar = Sidecar(kept)
            sidecar.load()
            flash = Flash(self._flash, sidecar)
            flash.load()
            drive = self._drive
            if drive is None:
                drive = stack.enter_context(Drive.around(self._media))
            self.storage = Storage(dict(self._media), flash, executor, sidecar, drive)
            self.boards = self._make_boards(self.storage)
            owners = {item.id: item.controller for item in settings.accelerators}
            of_rpu = replace(settings.rpu, accelerators=owners)
            self.rpu = Rpu(self.boards, of_rpu, buffers, clock=time.monotonic)
            self.link = self.rpu.controller.apu
            stack.callback(self.rpu.controller.faults.release)
            self._share_rows()
            job_time = self.rpu.controller.job_time
            if self._make_standstill is not None and job_time is not None:
                clock = self.rpu.controller.deadlines.clock
                standstill = self._make_standstill(clock)
                stack.callback(standstill.close)
                scheduler = self.rpu.controller.scheduler
                holds = settings.rpu.time is not None and settings.rpu.time.hold
                self.rpu.holding = Holding(
                    standstill, clock, job_time.running, job_time.fail, scheduler if holds else None
                )
            self._buffers = {**buffers.descriptors(), "counters": self.counters.fd}
            self._readers: dict[str, int] = {}
            stack.callback(self._close_readers)
            self.apu = stack.enter_context(ApuProcess(*self._equipment()))
            self.servers = [
                stack.enter_context(self._serve_at(socket, board))
                for socket, board in zip(self._sockets, self.boards, strict=True)
            ]
            """The server of each controller."""
            pairs = enumerate(zip(self.servers, self.boards, strict=True))
            self._numbered = [
                (number, server, board.registers.host_writes) for number, (server, board) in pairs
            ]
            if self._status_path is not None:
                self._status = _status_socket(stack, self._status_path)
                if self.rpu.controller.ana is not None:
                    from potash_firmware.control import SUFFIX, ControlSocket

                    self._controls = [
                        stack.enter_context(ControlSocket(f"{socket}{SUFFIX}"))
                        for socket in self._sockets
                    ]
            stack.callback(self.link.disconnect)
            self._start_apu()
            migration = self.rpu.migration
            migration.jobs_run, migration.end_apu = self._jobs_run, self.apu.stop
            if self._incoming:
                migration.wait_for_media()
            else:
                self._power_on()
            self._powered = True
            self._stack = stack.pop_all()
        return self

    def _make_boards(self, storage: Storage) -> list[Board]:
        """A board for each controller. Each has a trace of its own if there are several."""
        count = len(self._sockets)
        boards = [
            Board(self._board_settings(storage, number), storage, Trace() if count > 1 else None)
            for number in range(count)
        ]
        if self._trace is not None:
            record(storage.trace, self._trace, "potash")
            for number, board in enumerate(boards):
                if board.trace is not storage.trace:
                    record_part(storage.trace, board.trace, controller=number)
        return boards

    def _board_settings(self, storage: Storage, controller: int) -> BoardSettings:
        """The settings of a controller's board. The first one has the memory of peers."""
        settings = self._settings.board
        if settings.memory_bar:
            sizes = first_memories(storage.drive.shapes, len(self._sockets))
            settings = replace(settings, memory_bar=sizes.get(controller, 0))
        return settings if controller == 0 else replace(settings, peers=None)

    @contextmanager
    def _serve_at(self, socket: Path, board: Board) -> Iterator[Server]:
        """Listen at a socket. Raises OSError, with the socket as its file name."""
        server = Server(
            socket,
            board,
            on_disconnect=_host_is_gone,
            on_refuse=self._refused,
            trust_memory=self._settings.trust_memory,
            # The hosts of other controllers would wait for a client that answers none.
            messages=len(self._sockets) == 1 or self._settings.trust_memory,
        )
        try:
            server.__enter__()
        except OSError as error:
            error.filename = str(socket)
            raise
        with closing(server):
            yield server

    def _power_on(self) -> None:
        """Raises MediaError and ExtensionError. Whatever else a sidecar does, the drive starts as
        without one."""
        try:
            self.rpu.power_on()
        except (MediaError, ExtensionError):
            raise
        except Exception:
            log.exception("the sidecar cannot be used, so counters and saved features start anew")
            self.storage.sidecar.clear()
            self.rpu.power_on()

    @property
    def board(self) -> Board:
        """The board of the first controller."""
        return self.boards[0]

    @property
    def server(self) -> Server:
        """The server of the first controller."""
        return self.servers[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, exception, traceback)

    def _share_rows(self) -> None:
        """Have the RPU see what jobs have read, and what they and executions have modelled."""
        for controller in self.rpu.subsystem.controllers:
            places = [self.accelerators[key] for key in controller.accelerators.owned]
            controller.statistics.read_by_jobs = partial(self._read_by_jobs, places)
        job_time = self.rpu.controller.job_time
        if job_time is not None:
            row, engines = self.counters.row, len(self.accelerators)
            job_time.accelerator_row = lambda identifier: row(self.accelerators[identifier])
            job_time.engine_row = lambda number: row(engines + number - 1)

    def _read_by_jobs(self, places: Iterable[int]) -> int:
        """Bytes that jobs of these accelerators have read."""
        return sum(self.counters.row(place)[Word.READ] for place in places)

    def _power_off(self, kind: type[BaseException] | None, *_: object) -> None:
        """The board's last moment: nobody is served, and the media executor has nothing left."""
        if self._powered and self.rpu.migration.owns_media:
            self.rpu.power_off(clean=kind is None)

    def run_once(self, timeout: float | None = None, wake: int | None = None) -> bool:
        """Wait for something to do, at most `timeout` seconds, and do it.

        Also returns when the descriptor `wake` becomes readable, which is left to the caller; True
        then.
        """
        ready = self._wait(timeout, wake)
        port = self.link.port
        self._serve_host(ready)
        if port is not None and port.wants_write():
            port.flush()
        self._busy = self.rpu.service(
            media=self.storage.executor.fileno() in ready,
            apu=port is None or port.closed or port.fileno() in ready,
        )
        for number, server, _ in self._numbered:
            if server.has_message:  # which came, or failed, while guest memory was waited for
                self._more[number] = True
        holding = self.rpu.holding
        if holding is not None:
            could_fetch = holding.may_fetch
            holding.service([server.peer for server in self.servers], busy=self._busy)
            self._busy |= holding.may_fetch and not could_fetch
        if self._namespaces_version != self.rpu.subsystem.inventory.version:
            self._replace_apu()
        elif port is None or port.closed:
            self._keep_apu()
        if self._status is not None and self._status.fileno() in ready:
            self._status.answer(lambda: snapshot(self))
        for control, controller in zip(
            self._controls, self.rpu.subsystem.controllers, strict=False
        ):
            if control.fileno() in ready and controller.ana is not None:
                control.answer(controller.ana.change, partial(access_groups, [controller]))
                self._busy = True
        return wake in ready

    def load(self, state: bytes) -> None:
        """Take the state of another device, with which a client goes on that attaches. For an
        incoming one, before `run_once`. Raises OSError."""
        self.rpu.migration.load(state)

    def save(self) -> bytes:
        """Stop for good, and give the state with which another device can go on. Raises OSError
        where the device is too busy; it runs on then."""
        migration = self.rpu.migration
        stopping = migration.stop()
        patience = 0.0  # Nothing else has the loop notice that it is to stop.
        while stopping is not None and not stopping.done():
            self.run_once(patience)
            patience = PATIENCE
        if stopping is not None and (failure := failure_of(stopping)):
            raise OSError(failure, "the drive is too busy to be stopped")
        state = migration.save()
        migration.let_go(for_good=True)
        return state

    def _jobs_run(self) -> bool:
        rows = (self.counters.row(at) for at in self.accelerators.values())
        return any(row[Word.STATE] == StatusId.RUNNING for row in rows)

    def _serve_host(self, ready: Collection[int]) -> None:
        """Handle the hosts' messages, and refuse clients of a controller that has one."""
        for number, server, writes in self._numbered:
            # A pass at a tick finds nothing to read nearly always: asking each would cost 5 µs.
            if (self._more[number] or server.fileno() in ready) and len(
                writes
            ) < HOST_WRITES_WAITING:
                self._more[number] = server.drain(MESSAGES_PER_PASS) == MESSAGES_PER_PASS
            if server.timeout == 0.0:
                server.expire()
            # Not before the last host's messages are all read, the end of its connection with them.
            if server.connected and server.listener in ready and not self._more[number]:
                server.turn_away()

    def _refused(self, reason: str) -> None:
        now = time.monotonic()
        if now >= self._refusal_logged_until:
            self._refusal_logged_until = now + REFUSAL_LOG_INTERVAL
            log.warning("a client is refused: %s", reason)

    def _wait(self, timeout: float | None, wake: int | None) -> Collection[int]:
        """The descriptors that have become readable or writable."""
        port = self.link.port
        waiting: list[tuple[Pollable | int, int]] = []
        for server in self.servers:
            kinds = READ | WRITE if server.wants_write() else READ
            for source in server.sources:  # the client comes first, to whom replies wait
                waiting.append((source, kinds))
                kinds = READ
        waiting.append((self.storage.executor, READ))
        heard = not self.rpu.migration.stopped or self.rpu.migration.starting
        if port is not None and not port.closed and heard:
            waiting.append((port, READ | WRITE if port.wants_write() else READ))
        if wake is not None:
            waiting.append((wake, READ))
        if self._status is not None:
            waiting.append((self._status, READ))
        waiting += [(control, READ) for control in self._controls]
        holding = self.rpu.holding
        for monitor in () if holding is None else holding.standstill.sources:
            waiting.append((monitor, READ | WRITE if monitor.wants_write else READ))
        limit: float | None = 0.0
        if not self._busy and not any(self._more) and (limit := self.rpu.timeout) == 0.0:
            self.rpu.spin()
        if limit != 0.0:
            limits = [timeout, limit, *(server.timeout for server in self.servers)]
            if port is None and self.rpu.apu_may_start:
                limits.append(self.apu.wait_before_start())
            limit = earliest(*limits)
        return self._waiting.wait(waiting, limit)

    def _keep_apu(self) -> None:
        """Take leave of an APU that is gone, and start another one when it is time."""
        if self.link.lost:
            log.error("the APU is gone; its jobs have failed, and it is started again")
            self.apu.give_up()
            self.link.disconnect()
            self._busy = True
        if self.link.port is None and self.rpu.apu_may_start and not self.apu.wait_before_start():
            try:
                self._start_apu()
            except OSError as error:  # no more processes, descriptors, memory: of now, perhaps
                log.error("the APU cannot be started, which is tried again: %s", error)
                self.apu.give_up()

    def _replace_apu(self) -> None:
        """Namespaces have come, gone or changed: have an APU that knows those that there are.

        Its jobs fail. It keeps no media open that a host has deleted, and takes no bytes of one
        namespace for those of another.
        """
        if self.link.port is not None:
            self.link.disconnect()
            self._busy = True
        try:
            equipment = self._equipment()
        except OSError as error:  # no more descriptors, of now, perhaps
            log.error("the APU cannot be given its media, which is tried again: %s", error)
            self._namespaces_version = None
            self.apu.give_up()
            return
        log.info("the accelerators start again, as there are other namespaces now")
        self.apu.replace(*equipment)
        self._busy = True

    def _equipment(self) -> tuple[config.Config, Mapping[str, int]]:
        """Inputs of an APU's process: its configuration, and descriptors by name."""
        self._close_readers()
        self._namespaces_version = self.rpu.subsystem.inventory.version
        for nsid in self.rpu.subsystem.inventory.of_accelerators:
            self._readers[f"media{nsid}"] = self.storage.media[nsid].reader()
        traces = {} if self._trace is None else {"trace": self._trace}
        return self._apu_config(), {**self._buffers, **self._readers, **traces}

    def _close_readers(self) -> None:
        while self._readers:
            os.close(self._readers.popitem()[1])

    def _start_apu(self) -> None:
        with ExitStack() as undo:
            rpu_port, apu_port = pair()
            rpu_port.trace = self.storage.trace
            undo.callback(rpu_port.close)
            with apu_port:
                self.apu.start(apu_port.fileno())
            undo.pop_all()
        self.rpu.apu_started(rpu_port)

    def _apu_config(self) -> config.Config:
        settings = self._settings
        return config.Config(
            accelerators=settings.accelerators,
            namespaces=tuple(
                config.NamespaceConfig(nsid, namespace.size, namespace.block_size)
                for nsid, namespace in self.rpu.subsystem.inventory.of_accelerators.items()
            ),
            range_blocks=settings.range_blocks,
            vta=settings.board.vta.to_mapping(),
            vta_threads=settings.vta_threads or default_threads(),
            limits=settings.limits,
            engine=settings.engine,
            count_cycles=settings.count_cycles,
            platform_status=settings.platform_status,
            log=settings.log,
            extensions=settings.rpu.extensions.sources if settings.rpu.extensions else (),
            processor=None if settings.rpu.time is None else settings.rpu.time.processor,
        )


def _host_is_gone(reason: str) -> None:
    if reason.startswith(UNANSWERED):
        log.warning(
            "the host is gone: %s; if its memory is not sealed, or in huge pages, as SPDK's is, "
            "start the device with --trust-memory",
            reason,
        )
    else:
        log.info("the host is gone: %s", reason)


def _status_socket(stack: ExitStack, path: Path) -> StatusSocket | None:
    """The status socket; None if it cannot be made, without which the drive works, too."""
    try:
        return stack.enter_context(StatusSocket(path))
    except OSError as error:
        log.warning("nobody can ask how the device is doing at %s: %s", path, error)
        return None


def run_until(device: Device, stop: StopSignals) -> None:
    """Run `device` until a signal comes."""
    wake_on_time()
    while not (device.run_once(wake=stop.fileno()) and stop.came()):
        pass
