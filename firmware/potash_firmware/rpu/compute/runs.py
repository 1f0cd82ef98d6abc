"""The Execute Program commands of one compute namespace, from their fields to their outcome.

Only a few are passed to the engine at a time, and the others wait here, so that no host can fill
the mailbox, or memory with the data of commands. An execution is stopped by an Abort, the deletion
of its queue or of a namespace, and a reset; it counts until the engine has released its memory.

Source: Computational Programs Command Set 1.1, figures 16 to 23, as implementers have them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from csd_spec import chains
from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.computational import MEMORY_RANGE_SIZE, Execute, MemoryRange
from nvme_spec.status import NvmeError, Status
from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.compute.engine import Execution, ProgramEngine, SharedRange
from potash_firmware.rpu.compute.programs import Program, Programs
from potash_firmware.rpu.compute.ranges import RangeSet, RangeSets
from potash_firmware.rpu.scheduler import Signal, Wait, never
from potash_firmware.rpu.transfer import Transfer, check_size

if TYPE_CHECKING:  # it takes NumPy, as in the controller
    from potash_firmware.rpu.timing.jobs import JobTime, Timed

RUN_LIMIT = 4
"""Execute commands of one namespace that are with the engine at once."""

_FAILURES = {
    Outcome.FAULTED: NvmeError(Status.INTERNAL_ERROR, detail="the program has met a fault"),
    Outcome.REFUSED: NvmeError(Status.INVALID_PROGRAM_DATA, detail="the program cannot be run"),
    Outcome.EXPIRED: NvmeError(Status.INTERNAL_ERROR, detail="the program took too long"),
    Outcome.LOST: NvmeError(Status.INTERNAL_ERROR, dnr=False, detail="the engine was lost"),
    Outcome.CANCELLED: NvmeError(Status.INTERNAL_ERROR, dnr=False, detail="the engine has stopped"),
}


@dataclass(eq=False, slots=True)
class ExecuteCommand:
    """An Execute command in progress."""

    command: Command
    program: Program
    index: int
    """The index of the program."""
    ranges: tuple[MemoryRange, ...]
    range_set: RangeSet | None
    parameters: tuple[int, int]
    length: int
    """Bytes of the command's data."""
    skipped: int
    """Bytes of range descriptors at the beginning of that."""
    turn: Signal = field(default_factory=Signal)
    """Sent when the command may be given to the engine, or was stopped while it waited and has to
    end."""
    execution: Future[Execution] | None = None
    stopped: Exception | None = None
    """The error with which it ends, if it was stopped."""
    timed: Timed | None = None
    """The command's time, where that is modelled."""


@dataclass(eq=False)
class Runs:
    """The Execute commands of compute namespace `nsid`."""

    nsid: int
    engine: ProgramEngine
    transfer: Transfer
    job_time: JobTime | None = None
    """The time of executions, where that is modelled."""
    running: set[ExecuteCommand] = field(default_factory=set)
    """Commands that were given to the engine, or are about to be."""
    _waiting: deque[ExecuteCommand] = field(default_factory=deque)

    def execute(self, command: Command, programs: Programs, sets: RangeSets) -> Steps:
        """Take an Execute Program command. Raises NvmeError."""
        run, ranges = self._prepare(command, programs, sets)
        return (yield from self._carry_out(run, ranges, sets))

    def execute_chain(self, command: Command, programs: Programs, sets: RangeSets) -> Steps:
        """Take an Execute Chain command. Raises NvmeError."""
        length = command.entry.cdw10 * DWORD_SIZE
        check_size(length)
        try:
            steps = chains.decode(bytes(self.transfer.receive(command, length)))
        except chains.ChainError as error:
            raise NvmeError(Status.INVALID_FIELD, detail=str(error)) from None
        for step in steps:  # before anything runs
            programs.runnable(step.program)
            sets.check_count(len(step.ranges) or 1)
            sets.resolve(_ranges_of(step))
        value = 0
        for number, step in enumerate(steps, 1):
            cparam1 = value if step.flags & chains.StepFlag.PREVIOUS else step.cparam1
            parameters, ranges = (cparam1, step.cparam2), _ranges_of(step)
            program = programs.runnable(step.program)
            run = ExecuteCommand(command, program, step.program, ranges, None, parameters, 0, 0)
            try:
                value = yield from self._carry_out(run, sets.resolve(ranges), sets)
            except NvmeError as error:
                detail = f"step {number} of {len(steps)}: {error.detail}"
                ended = number - 1
                raise NvmeError(error.status, detail, dnr=error.dnr, result=ended) from None
        return value

    def _carry_out(
        self, run: ExecuteCommand, ranges: tuple[SharedRange, ...] | None, sets: RangeSets
    ) -> Generator[Any, Any, int]:
        """Run a program, once it is its turn; the value that it returns. Raises NvmeError."""
        if self.job_time is not None:
            overdue = NvmeError(Status.INTERNAL_ERROR, detail="the guest has stood still too long")
            run.timed = self.job_time.arrive(
                self.nsid,
                partial(self.stop, run, overdue),
                program=run.index,
                priority=run.program.priority,
                loaded=not run.program.device_defined,
            )
        if len(self.running) < RUN_LIMIT and not self._waiting:
            self.running.add(run)
        else:
            self._waiting.append(run)
            ranges = None
        try:
            if ranges is None:
                yield Wait(run.turn)
                if run.stopped is not None:
                    raise run.stopped
                # Memory may have gone, or come, since it was checked.
                ranges = sets.resolve(run.ranges)
            data = memoryview(b"")
            if run.length > run.skipped:
                data = self.transfer.receive(run.command, run.length)[run.skipped :]
        except BaseException:
            self.release(run)
            raise
        row = 0
        if self.job_time is not None and run.timed is not None:
            row = self.job_time.row(run.timed)
        image = run.program.image
        run.execution = self.engine.execute(self.nsid, image, ranges, run.parameters, data, row)
        try:
            execution = yield Wait(run.execution, never, stop=partial(self.stop, run))
        except GeneratorExit:  # the command is gone, and the engine has yet to release its memory
            run.execution.add_done_callback(lambda _: self.release(run))
            raise
        self.release(run)
        if self.job_time is not None and run.timed is not None:
            yield from self.job_time.until_end(run.timed)
        return self._outcome(run, execution)

    def _prepare(
        self, command: Command, programs: Programs, sets: RangeSets
    ) -> tuple[ExecuteCommand, tuple[SharedRange, ...]]:
        """A command's fields, checked, and its ranges. Raises NvmeError."""
        fields = Execute.decode(command.entry)
        program = programs.runnable(fields.pind)
        skipped = fields.numr * MEMORY_RANGE_SIZE
        range_set = None
        ranges: tuple[MemoryRange, ...] = ()
        # A host behind Linux's passthrough cannot set DLEN: 0 is then the length of the ranges.
        length = fields.dlen or skipped
        if fields.rsid and fields.numr:
            raise NvmeError(Status.INVALID_FIELD, detail="a range set and ranges in the command")
        if fields.numr:
            sets.check_count(fields.numr)
        if length < skipped:
            raise NvmeError(Status.INVALID_FIELD, detail="the data is shorter than its ranges")
        check_size(length)
        views = self.transfer.views(command, length, write=False) if length else []
        if fields.rsid:
            range_set = sets.get(fields.rsid)
            ranges = range_set.ranges
        elif fields.numr:
            head = self.transfer.head(command, views, skipped)
            ranges = tuple(MemoryRange.decode_list(head))
        resolved = sets.resolve(ranges)
        parameters = (fields.cparam1, fields.cparam2)
        run = ExecuteCommand(
            command, program, fields.pind, ranges, range_set, parameters, length, skipped
        )
        return run, resolved

    def _outcome(self, run: ExecuteCommand, execution: Execution) -> int:
        if execution.outcome is Outcome.RETURNED:
            return execution.value
        if execution.outcome is Outcome.CANCELLED and run.stopped is not None:
            raise run.stopped
        if execution.outcome is Outcome.REFUSED and run.program.device_defined:
            raise NvmeError(Status.INVALID_FIELD, detail="ranges or parameters make no sense")
        failure = _FAILURES[execution.outcome]
        raise NvmeError(failure.status, dnr=failure.dnr, detail=failure.detail)

    # Stopping.

    def stop(self, run: ExecuteCommand, error: Exception) -> None:
        """Have it end soon, with `error` unless its end comes first."""
        if run.stopped is None:
            run.stopped = error
            if run.execution is not None:
                self.engine.cancel(run.execution)

    def stop_all(self, error: NvmeError, memory: int = 0) -> set[Future[Execution]]:
        """Stop every command, or those that use a memory namespace; what is to be waited for."""

        def concerns(run: ExecuteCommand) -> bool:
            return not memory or any(area.nsid == memory for area in run.ranges)

        for run in [waiting for waiting in self._waiting if concerns(waiting)]:
            self.stop(run, error)
            self._waiting.remove(run)
            run.turn.send()
        concerned = [run for run in self.running if concerns(run)]
        for run in concerned:
            self.stop(run, error)
        return {run.execution for run in concerned if run.execution is not None}

    def reset(self) -> None:
        """The session is over: nobody waits for its commands any more."""
        self.stop_all(NvmeError(Status.ABORT_REQUESTED, dnr=False))

    # Turns.

    def release(self, run: ExecuteCommand) -> None:
        """Remove a command that neither runs nor waits any more, so that others may run."""
        self.running.discard(run)
        if run in self._waiting:
            self._waiting.remove(run)
        if self.job_time is not None and run.timed is not None:
            execution = run.execution
            ended = execution is not None and execution.done()
            work = execution.result().work if execution is not None and ended else None
            self.job_time.executed(run.timed, work)
        while self._waiting and len(self.running) < RUN_LIMIT:
            following = self._waiting.popleft()
            self.running.add(following)
            following.turn.send()

    @property
    def executions(self) -> set[Future[Execution]]:
        """Executions that the engine has not ended."""
        return {run.execution for run in self.running if run.execution is not None}

    def uses(self, what: Program | RangeSet) -> bool:
        """True where a command uses a program or a range set."""
        every = (*self.running, *self._waiting)
        return any(what in (run.program, run.range_set) for run in every)


def _ranges_of(step: chains.ChainStep) -> tuple[MemoryRange, ...]:
    return tuple(MemoryRange(area.nsid, area.length, area.start) for area in step.ranges)
