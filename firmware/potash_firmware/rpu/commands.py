"""The life of a command: begin, dispatch, wait, complete.

Only `_complete` posts completions. Commands that wait are tasks of the scheduler, which are closed
with their session; while Bus Master Enable is off, none goes on."""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from csd_spec.traffic import CompletionKind, TimedCompletion
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import CommandByte, ErrorEvent, SanitizeState
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.queues import BROADCAST_NSID, FLAGS_FUSE_MASK, FLAGS_PSDT_SHIFT, SubmissionEntry
from nvme_spec.status import NvmeError, Status
from potash_device.controller.queues import SubmissionQueue
from potash_device.trace import Note
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.command_sets.nvm import fused
from potash_firmware.rpu.command_sets.nvm.blocks import require_pointer
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NamespaceUse, Table, check_namespace
from potash_firmware.rpu.interrupts import Interrupts
from potash_firmware.rpu.lifecycle import READY, Lifecycle
from potash_firmware.rpu.outstanding import CommandTask
from potash_firmware.rpu.scheduler import Task
from pyvfio_user.memory import AccessFault

log = logging.getLogger(__name__)

_DISCOVERY = (Status.INVALID_FIELD, Status.INVALID_LOG_PAGE, Status.INVALID_NAMESPACE)
"""Answers to a driver that finds out what there is by asking for it."""


@dataclass(eq=False, repr=False)
class Commands:
    """The commands of one controller.

    Args:
        admin, io: the dispatch tables, that of I/O commands for each command set.
        blocked: called when a completion found no room in its queue.
    """

    controller: Controller
    lifecycle: Lifecycle
    interrupts: Interrupts
    admin: Table
    io: Mapping[CommandSet, Table]
    blocked: Callable[[], None]
    clock: Callable[[], float]
    paused: bool = False
    """Guest memory cannot be reached for now, as Bus Master Enable is off or the controller is shut
    down: no command is begun, goes on or ends."""
    observes_io: bool = False
    """Something is done for each I/O command that has ended, so that the fast path is not used."""

    def __post_init__(self) -> None:
        self._board = self.controller.board
        self._trace = self.controller.board.trace
        self._outstanding = self.controller.outstanding
        self._scheduler = self.controller.scheduler
        self._outstanding.answer = self._answer_from_outside

    def must_wait(self) -> bool:
        """No command may go on, nor for what the host wants to be done before anything else."""
        dma = self._board.dma
        self.paused |= dma.remote and dma.interrupted
        return self.paused

    # Begin and dispatch.

    def begin(self, queue: SubmissionQueue) -> CommandSet:
        """Fetch the next command of a queue and take its first step; its command set. Raises
        AccessFault."""
        command = self._command(queue, queue.fetch())
        entry, qid, csi = command.entry, queue.qid, command.csi
        self.controller.statistics.commands[qid, csi, entry.opcode] += 1
        # For telemetry, which has nothing of the fast path.
        self._trace.recent.append(Note(self.clock(), "rpu.fetch", qid, entry.cid, entry))
        if self._trace.sink is not None:
            self._trace.sink("rpu.fetch", {"qid": qid, "csi": int(csi), **entry._asdict()})
        self._start(command)
        return csi

    def begin_again(self, queue: SubmissionQueue, entry: SubmissionEntry) -> None:
        """Take the first step of a command that was fetched before its state was moved here."""
        self._start(self._command(queue, entry))

    def _command(self, queue: SubmissionQueue, entry: SubmissionEntry) -> Command:
        namespace = self.controller.namespaces.attached.get(entry.nsid) if queue.qid else None
        csi = CommandSet.NVM if namespace is None else namespace.csi
        return Command(entry, queue, csi, self.controller.deadlines.clock.now())

    def _start(self, command: Command) -> None:
        entry, qid = command.entry, command.queue.qid
        half = qid and (qid in self._outstanding.fused or entry.flags & FLAGS_FUSE_MASK)
        if not half or not fused.begin(self.controller, command, self._run):
            self._run(command, self._begin)

    def _begin(self, command: Command) -> Result:
        """Take a command's first step, unless a fault is injected. Raises NvmeError."""
        qid, entry = command.queue.qid, command.entry
        if (
            entry.cid in self._outstanding.by_queue[qid]
            if qid
            else self._outstanding.conflicts(command)
        ):
            raise NvmeError(Status.COMMAND_ID_CONFLICT, f"command {entry.cid} is still outstanding")
        faults = self.controller.faults
        if faults.io if qid else faults.admin:
            return faults.inject(
                command, partial(self._dispatch, command), self.controller.identifier
            )
        return self._dispatch(command)

    def _dispatch(self, command: Command) -> Result:
        """Look the command up and call its handler. Raises NvmeError."""
        entry = command.entry
        namespaces = self.controller.namespaces
        table = self.io[command.csi] if command.queue.qid else self.admin
        row = table.get(entry.opcode)
        if row is None or row.command_set not in namespaces.enabled:
            raise NvmeError(Status.INVALID_OPCODE, f"opcode {entry.opcode:#04x} is not supported")
        if entry.flags & FLAGS_FUSE_MASK:
            raise NvmeError(
                Status.INVALID_FIELD, "there is no such fused operation", location=CommandByte.FLAGS
            )
        if entry.flags >> FLAGS_PSDT_SHIFT:
            require_pointer(command)
        sanitizing = self.controller.sanitizing
        if sanitizing.failure_mode or sanitizing.state is SanitizeState.IN_PROGRESS:
            sanitizing.check(command)
        if row.namespace is NamespaceUse.ONE:
            namespaces.require_usable(entry.nsid)
        else:
            check_namespace(self.controller, command, row.namespace)
        if self.controller.reservations.restricted:
            nsid = BROADCAST_NSID if row.namespace is NamespaceUse.NONE else entry.nsid
            self.controller.reservations.require(nsid, row.access)
        return row.handler(self.controller, command)

    # Wait and end.

    def _run(self, command: Command, begin: Callable[[Command], Result]) -> None:
        """Take a command's first steps by `begin`, up to where it waits."""
        if self.controller.power is not None:
            self.controller.power.begin()
        try:
            result = begin(command)
        except Exception as error:  # noqa: BLE001 - `_failed` logs it
            self._failed(command, error)
            return
        if isinstance(result, Generator):
            task = CommandTask(self._scheduler, result, self._ended, paused=self.must_wait)
            task.command = command
            if task.go_on():
                self._outstanding.add(task)
        else:
            self.succeeded(command, result)

    def _ended(self, task: Task, result: Any, error: Exception | None) -> None:
        task = cast(CommandTask, task)
        self._outstanding.discard(task)
        if error is None:
            self.succeeded(task.command, result)
        else:
            self._failed(task.command, error)

    def _failed(self, command: Command, error: Exception) -> None:
        if not isinstance(error, NvmeError):  # a bug of the firmware must not end the drive
            opcode = command.entry.opcode
            log.error("opcode %#04x failed", opcode, exc_info=error)
            self.controller.internal_fault(f"opcode {opcode:#04x}: {error!r}")
            self.controller.alerts.error(ErrorEvent.TRANSIENT_INTERNAL_ERROR)
            error = NvmeError(Status.INTERNAL_ERROR, str(error), dnr=False)
        self._refuse(command, error)

    def succeeded(self, command: Command, result: int | None = None) -> None:
        """Answer a command that has succeeded; `result` is dwords 0 and 1."""
        if self._outstanding.aborted:  # answered before the command that has ended them
            self._answer_aborted()
        self._complete(command, result=result or 0)

    def _answer_from_outside(self) -> None:
        """Answer what a command of another controller has ended, as this host may be served next
        only when something happens."""
        self._answer_aborted()
        with suppress(AccessFault):  # its next pass meets the same fault, and handles it
            self.interrupts.send()

    def _answer_aborted(self) -> None:
        while self._outstanding.aborted:
            reached, self._scheduler.reached = self._scheduler.reached, None
            self._refuse(*self._outstanding.aborted.pop(0))
            self._scheduler.reached = reached

    # Complete.

    def _refuse(self, command: Command, error: NvmeError) -> None:
        if log.isEnabledFor(logging.DEBUG):
            qid, cid = command.key
            info = {"qid": qid, "cid": cid, "opcode": command.entry.opcode, "status": error.status}
            log.debug("opcode %#04x: %s", command.entry.opcode, error, extra={"known": info})
        discovery = (
            command.queue.qid == 0
            and data_direction(command.entry.opcode) is DataDirection.CONTROLLER_TO_HOST
            and error.status in _DISCOVERY
        )
        if not discovery:
            self.controller.reports.errors.add(command, error)
        self.controller.statistics.errors[error.status] += 1
        self._complete(command, error.status, error.dnr, error.result)

    def _complete(
        self, command: Command, status: int = 0, dnr: bool = False, result: int = 0
    ) -> None:
        """Answer a command: the only place that does, but for `complete_successes`.

        `result` is dwords 0 and 1.
        """
        controller, trace = self.controller, self._trace
        queue, entry = command.queue, command.entry
        qid, cid = queue.qid, entry.cid
        trace.recent.append(Note(self.clock(), "rpu.complete", qid, cid, (status, result)))
        if self.lifecycle.state is not READY:
            return
        if trace.sink is not None:
            info = {"qid": qid, "cid": cid, "status": status, "dnr": dnr, "dw0": result}
            trace.sink("rpu.complete", info)
        try:
            posted = self._board.queues.post(queue, cid, status, dnr, result)
        except AccessFault as fault:
            self.lifecycle.fail(f"queue memory is gone: {fault}")
            return
        if posted:
            self.interrupts.announce(queue.completions, urgent=status != 0)
        else:
            self.blocked()
        if qid:
            took = controller.deadlines.clock.now() - command.fetched
            controller.statistics.ended(command.csi, entry.opcode, took)
        if controller.timing is not None:
            self._timed(command, status)

    def _timed(self, command: Command, status: int) -> None:
        """Keep when a command completed, unless it is one that takes no modelled time."""
        scheduler, timing = self._scheduler, self.controller.timing
        (qid, cid), entry = command.key, command.entry
        reached, scheduler.reached = scheduler.reached, None
        if reached is not None and timing is not None:
            began, due = reached
            if self.controller.power is not None:
                self.controller.power.completed = due
            timing.completed(
                TimedCompletion(
                    CompletionKind.COMMAND,
                    entry.opcode,
                    status,
                    qid,
                    cid,
                    entry.nsid,
                    command.csi,
                    command.fetched,
                    began or command.fetched,
                    due,
                )
            )

    def may_complete(self, queue: SubmissionQueue, count: int) -> bool:
        """True if `complete_successes` may answer so many commands, and nothing else is to be done
        for any of them."""
        if (
            self.lifecycle.state is not READY
            or self._trace.sink is not None
            or self._outstanding.aborted
        ):
            return False
        try:
            return self._board.queues.room(queue.completions, count) == count
        except AccessFault:
            return False

    def complete_successes(self, queue: SubmissionQueue, cids: Sequence[int]) -> None:
        """Answer commands of the fast path, which succeeded and whose completions have room."""
        completions = queue.completions
        try:
            completions.post_successes(queue, cids)
        except AccessFault as fault:
            self.lifecycle.fail(f"queue memory is gone: {fault}")
            return
        interrupt = completions.interrupt
        if interrupt.enabled:
            self.interrupts.coalescing.announce(interrupt.vector, len(cids))
