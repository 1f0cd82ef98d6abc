"""The APU's loop: it waits for the RPU, the fork server and the workers, and for nothing else.

Every command is answered immediately; nothing in this process computes for long or waits for
storage. A host's configuration is written to the state area before its command is answered, so that
a restarted APU continues from there.

Alkali CSD platform documentation, section 3.4.4 (Userspace custom NVMe command handler).
"""

import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, get_args

from csd_spec.opcodes import LOG_PAGE
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.channel import ENGINE
from potash_firmware.apu.checks import Checks, Owner
from potash_firmware.apu.commands import Answer, Context, IfSound, dispatch
from potash_firmware.apu.config import Config
from potash_firmware.apu.engines import Engines
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import StateArea, Subsystem, count_restart
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.mailbox import ApuPort, MailboxError, SharedBuffers, messages
from potash_firmware.mailbox.shared import Counters
from potash_firmware.mailbox.values import JobValueRead
from potash_firmware.waiting import READ, WRITE, Waiting, earliest

log = logging.getLogger(__name__)

REQUESTS_AT_ONCE = 64
"""Messages of the RPU that are handled in one pass."""

CHECK_INTERVAL = 0.1
"""Seconds after which timeouts are checked, however busy the engines are."""

PREPARE_AFTER = 10.0
"""Seconds after which accelerators have their workers though no command has come for one.

What workers import takes longer than the rest of a device's start. It would slow down a guest that
boots meanwhile, and a drive that is used only for seconds does not need it."""

EXECUTIONS = get_args(messages.ExecutionToApu)

Source = ApuPort | socket.socket | Worker
"""The sources that the loop waits for; the socket is the fork server's."""


class Deferred(NamedTuple):
    """An action that waits for a condition."""

    ready: Callable[[], bool]
    then: Callable[[], None]


_LENGTH = struct.Struct("<Q")


class Service:
    """The accelerator subsystem behind `port`. The caller closes its arguments."""

    def __init__(
        self,
        config: Config,
        port: ApuPort,
        buffers: SharedBuffers,
        supervisor: Supervisor,
        counters: Counters | None = None,
        media: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._port = port
        self._buffers = buffers
        self._supervisor = supervisor
        self._subsystems = {
            controller: Subsystem.create(config, time.time, controller)
            for controller in sorted({0, *(item.controller for item in config.accelerators)})
        }
        """The accelerators of each controller."""
        accelerators = {
            key: item
            for subsystem in self._subsystems.values()
            for key, item in subsystem.accelerators.items()
        }
        if counters is not None:
            for place, item in enumerate(config.accelerators):
                accelerators[item.id].row = counters.row(place)
        self._jobs = Jobs(config, accelerators, supervisor, port.send, media)
        self._checks = Checks(supervisor, config.limits)
        self._engines = Engines(config, supervisor, self._checks, port, time.time)
        self._contexts = {
            controller: Context(config, subsystem, self._jobs, buffers, self._engines.log_of)
            for controller, subsystem in self._subsystems.items()
        }
        self._state = StateArea(buffers.state.view)
        self._saved: tuple[bytes, ...] = ()
        self._waiting = Waiting()
        self._later: list[Deferred] = []
        self._queued: deque[messages.Request | messages.Reset | messages.ExecutionToApu] = deque()
        """Messages that have arrived during a reset, perhaps from the next host."""
        self._resetting = False
        self._check_at = 0.0
        self._prepare_at: float | None = None
        self._sources: list[tuple[Source, int]] = []
        self._by_descriptor: dict[int, Source] = {}

    def run(self) -> None:
        self._port.send(messages.Alive())
        self._restore()
        self._prepare_at = time.monotonic() + PREPARE_AFTER
        try:
            while not self._port.closed:
                self.step()
        finally:
            self._engines.close()

    def step(self) -> None:
        """Wait for a message, an exit or a deadline, and handle it."""
        sources = self._wait()
        others = [source for source in sources if not self._is_execution(source)]
        # Executions are to be quick, and do not affect the rest of a pass.
        if sources and not others and time.monotonic() < self._check_at:
            return
        self._sources.clear()
        if self._prepare_at is not None and time.monotonic() >= self._prepare_at:
            self._prepare()
        self._supervisor.expire()
        self._answer_waiting()
        self._handle_queued()
        # A job that has ended must not run again when this process is restarted.
        self._save()
        self._check_at = time.monotonic() + CHECK_INTERVAL

    def _is_execution(self, source: Source) -> bool:
        """Handle what has arrived; True if that was for executions in compute namespaces alone."""
        if isinstance(source, Worker):
            return self._supervisor.listen(source) and source.kind == ENGINE
        if isinstance(source, ApuPort):
            return self._serve_port()
        self._supervisor.reap()
        return False

    def _wait(self) -> list[Source]:
        if self._sources and not self._port.wants_write() and not self._supervisor.changed:
            # Executions alone since these were found.
            limit: float | None = CHECK_INTERVAL
        else:
            limit = self._find_sources()
        by_descriptor = self._by_descriptor
        return [by_descriptor[fd] for fd in self._waiting.wait(self._sources, limit)]

    def _find_sources(self) -> float | None:
        self._supervisor.changed = False
        writing = self._port.wants_write()
        sources: list[tuple[Source, int]] = [(self._port, READ | WRITE if writing else READ)]
        self._sources = sources
        control = self._supervisor.control
        if control is not None:
            sources.append((control, READ))
        sources.extend((worker, READ) for worker in self._supervisor.workers)
        self._by_descriptor = {source.fileno(): source for source, _ in sources}
        if self._prepare_at is None:
            return self._supervisor.deadline()
        return earliest(self._supervisor.deadline(), max(0.0, self._prepare_at - time.monotonic()))

    def _serve_port(self) -> bool:
        """Handle the RPU's messages; True if all were for executions."""
        self._port.flush()
        others = self._resetting
        for _ in range(REQUESTS_AT_ONCE):
            data = self._port.receive_encoded()
            if data is None:
                break
            is_plain = data[0] == messages.EXECUTE and self._port.is_plain
            if is_plain and not self._resetting and self._engines.repeat(data):
                continue
            try:
                message = self._port.decode(data)
            except MailboxError as error:
                log.warning("%s", error)
                continue
            if isinstance(message, EXECUTIONS) and not self._resetting:
                self._engines.handle(message)
            else:
                others = True
                self._handle(message)
        return not (others or self._port.closed)

    def _handle(self, message: messages.ToApu) -> None:
        match message:
            case (
                messages.ReadChecked()
                | messages.WriteBackDone()
                | messages.JobDue()
                | messages.JobOverdue()
                | JobValueRead()
            ):
                self._jobs.handle(message)
            case messages.Ping(tag):
                self._port.send(messages.Alive(tag))
            case _:
                self._queued.append(message)
                self._handle_queued()

    def _handle_queued(self) -> None:
        while self._queued and not self._resetting:
            message = self._queued.popleft()
            if isinstance(message, messages.Reset):
                self._reset(message)
            elif isinstance(message, messages.Request):
                self._request(message)
            else:
                self._engines.handle(message)

    def _prepare(self) -> None:
        self._prepare_at = None
        self._jobs.prepare()

    def _request(self, request: messages.Request) -> None:
        if self._prepare_at is not None:
            self._prepare()
        try:
            context = self._contexts.get(request.controller)
            if context is None:
                raise NvmeError(Status.INVALID_OPCODE, "the controller has no accelerators")
            result = dispatch(context, request)
        except NvmeError as error:
            log.debug("command %#x: %s", request.opcode, error)
            self._port.send(messages.Reply(request.tag, error.status, error.dnr))
            return
        except Exception:
            log.exception("an error of the firmware in command %#x", request.opcode)
            self._port.send(messages.Reply(request.tag, Status.INTERNAL_ERROR))
            return
        self._save()
        if isinstance(result, Answer):
            self._answer(request, result)
            return
        if isinstance(result, IfSound):
            self._check(request, result)
            return
        until, then = result.until, result.then

        def succeed() -> None:
            then()
            self._save()
            self._answer(request, Answer())

        self._when(lambda: all(runner.idle for runner in until), succeed)

    def _check(self, request: messages.Request, result: IfSound) -> None:
        def ended(outcome: messages.Outcome, reason: str, _priority: int) -> None:
            try:
                if outcome is messages.Outcome.LOST:
                    raise NvmeError(Status.ABORT_REQUESTED, dnr=False)
                result.decided(reason or None)
            except NvmeError as error:
                self._port.send(messages.Reply(request.tag, error.status, error.dnr))
                return
            self._save()
            self._answer(request, Answer())

        self._checks.begin(result.image, ended, ("controller", request.controller))

    def _answer(self, request: messages.Request, answer: Answer) -> None:
        """Succeed: the host gets all the bytes that it has requested, with zeroes at the end."""
        length = 0
        if answer.data is not None and request.length:
            given, length = min(len(answer.data), request.length), request.length
            slot = self._buffers.slot(request.slot)
            slot[:given] = answer.data[:given]
            slot[given:length] = bytes(length - given)
        self._port.send(
            messages.Reply(request.tag, Status.SUCCESS, result=answer.result, length=length)
        )

    def _reset(self, reset: messages.Reset) -> None:
        """Reset accelerators, and clear what later commands or hosts must not find."""
        self._resetting = True
        subsystems: list[Subsystem] = [*self._subsystems.values()]
        engines: Collection[int] | None = None
        owners: set[Owner] | None = None
        if reset.only:
            controller, *engines = reset.only
            found = self._subsystems.get(controller)
            subsystems = [] if found is None else [found]
            owners = {("controller", controller), *(("namespace", nsid) for nsid in engines)}
        forget = messages.ResetScope.FORGET in reset.scope
        accelerators = [item for each in subsystems for item in each.accelerators.values()]
        runners = [self._jobs.runners[item.config.id] for item in accelerators]
        self._checks.drop(owners)
        for runner in runners:
            runner.reset()
            if forget:
                runner.replace_worker()
        disable = messages.ResetScope.DISABLE in reset.scope
        self._engines.reset(forget=forget, cancel=disable, nsids=engines)

        def done() -> None:
            for accelerator in accelerators:
                accelerator.blank()
                self._buffers.clear_arena(accelerator.config.id)
                if forget:
                    accelerator.log.clear()
            if disable:
                for subsystem in subsystems:
                    subsystem.enabled = False
            if forget:
                self._buffers.clear_state()
                self._saved = ()
            self._save()
            self._resetting = False
            self._port.send(messages.ResetDone(reset.tag))

        def ready() -> bool:
            return not self._supervisor.kills and all(runner.idle for runner in runners)

        self._when(ready, done)

    def _when(self, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        self._later.append(Deferred(ready, then))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Do what has waited for a condition that is met now."""
        for pending in [pending for pending in self._later if pending.ready()]:
            self._later.remove(pending)
            pending.then()

    def _save(self) -> None:
        """Write to the state area what is to survive this process."""
        subsystems = list(self._subsystems.values())
        pieces = subsystems[0].save()
        if len(subsystems) > 1:  # each behind its length
            every = [subsystem.save() for subsystem in subsystems]
            pieces = tuple(
                piece for found in every for piece in (_LENGTH.pack(sum(map(len, found))), *found)
            )
        if pieces != self._saved:
            self._state.store(b"".join(pieces))
            self._saved = pieces

    def _restore(self) -> None:
        """Continue from the contents of the state area."""
        data = self._state.load()
        try:
            if data is not None:
                subsystems = list(self._subsystems.values())
                for subsystem in subsystems:
                    size = len(data)
                    if len(subsystems) > 1:
                        (size,), data = _LENGTH.unpack_from(data), data[_LENGTH.size :]
                    subsystem.restore(data[:size])
                    data = data[size:]
        except Exception as error:  # noqa: BLE001 - the process would end again and again
            log.error(
                "the saved state of the accelerators is invalid, so they are reset: %s", error
            )
            data = None
        for subsystem in self._subsystems.values():
            for accelerator in subsystem.accelerators.values():
                count_restart(accelerator)
        if data is None:
            return
        for subsystem in self._subsystems.values():
            for interrupted in subsystem.interrupted:
                self._port.send(messages.JobEnded(interrupted, LOG_PAGE))
        self._save()
