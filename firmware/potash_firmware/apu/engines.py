"""The engines of compute namespaces, which pass executions from the RPU to workers.

Each engine has a few workers, each of which does one execution at a time; others wait in their
order. A worker has descriptors of what its execution names, and keeps them until another order
comes, as the next one often names the same. Whatever an execution meets, it is answered once.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from csd_spec.descriptors import LogEntryType
from potash_firmware.apu.channel import ANSWERS, ENGINE, ChannelError, FromWorker, Line, Ready
from potash_firmware.apu.checks import Checks
from potash_firmware.apu.config import Config
from potash_firmware.apu.model import Log, Snapshot
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.mailbox.messages import (
    FIRST_SERIAL,
    Cancel,
    CheckProgram,
    CloseEngine,
    Execute,
    Executed,
    ExecutionToApu,
    Forget,
    OpenEngine,
    Outcome,
    ProgramChecked,
    ShareMemory,
    ShareProgram,
    ToRpu,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shared:
    """Memory or a program, while the RPU has not forgotten it or an execution still waits for
    it."""

    descriptor: int
    length: int
    users: int = 0
    forgotten: bool = False


@dataclass(eq=False, slots=True)
class _Worker:
    """A worker process and what it does."""

    engine: _Engine
    process: Worker
    job: _Job | None = None
    stale: bool = False
    """The worker has memory or a program that was deleted, and ends as soon as it is idle."""

    @property
    def is_idle(self) -> bool:
        return self.job is None and self.process.ready and not self.process.ending


@dataclass(eq=False, slots=True)
class _Job:
    """An execution that has not been answered."""

    message: Execute
    names: frozenset[int]
    ended: Outcome = Outcome.LOST
    """The outcome if its worker exits."""


@dataclass(eq=False, slots=True)
class _Engine:
    """The engine of a compute namespace."""

    nsid: int
    log: Log
    snapshot: Snapshot = field(default_factory=Snapshot)
    workers: list[_Worker] = field(default_factory=list)
    waiting: deque[_Job] = field(default_factory=deque)


class Engines:
    """All engines; answers go to the RPU by `send`."""

    messages_at_once = 1
    """An answer is mostly all that a worker sends."""

    def __init__(
        self,
        config: Config,
        supervisor: Supervisor,
        checks: Checks,
        send: Callable[[ToRpu], None],
        clock: Callable[[], float],
    ) -> None:
        self._limits = config.limits
        self._supervisor = supervisor
        self._checks = checks
        self._send = send
        self._clock = clock
        self._engines: dict[int, _Engine] = {}
        self._leaving: list[_Engine] = []
        """Closed, with workers that are not gone yet."""
        self._shared: dict[int, _Shared] = {}
        self._workers: dict[Worker, _Worker] = {}

    # What the service asks.

    @property
    def idle(self) -> bool:
        """Nothing runs, and nobody that was killed may still be there."""
        return not any(one.job is not None or one.process.ending for one in self._workers.values())

    def log_of(self, nsid: int) -> tuple[Log, Snapshot] | None:
        """A compute namespace's log; None where there is none such."""
        engine = self._engines.get(nsid)
        return None if engine is None else (engine.log, engine.snapshot)

    def close(self) -> None:
        for shared in self._shared.values():
            os.close(shared.descriptor)
        self._shared.clear()

    # What the RPU asks.

    def handle(self, message: ExecutionToApu) -> None:
        match message:
            case Execute():
                self._begin(message)
            case Cancel(tag):
                self._cancel(tag)
            case ShareMemory() | ShareProgram():
                self._share(message)
            case Forget(serial):
                self._forget(serial)
            case CheckProgram():
                self._check(message)
            case OpenEngine(nsid):
                self._open(nsid)
            case CloseEngine(nsid):
                self._close(nsid)

    def reset(self, *, forget: bool, cancel: bool) -> None:
        """A reset: `cancel` what is under way, `forget` what programs have said and left behind."""
        for engine in (*self._engines.values(), *self._leaving):
            if cancel:
                self._cancel_all(engine)
            if forget:
                engine.log.clear()
                engine.snapshot.release()
                for worker in list(engine.workers):
                    worker.stale |= worker.process.used
                    self._retire(worker)

    def _open(self, nsid: int) -> None:
        if nsid in self._engines:
            return
        limits = self._limits
        engine = _Engine(nsid, Log(limits.log_entries, limits.log_text, self._clock))
        self._engines[nsid] = engine
        self._spawn(engine)

    def _close(self, nsid: int) -> None:
        engine = self._engines.pop(nsid, None)
        if engine is None:
            return
        self._cancel_all(engine)
        for worker in engine.workers:
            self._supervisor.kill(worker.process)
        if engine.workers:
            self._leaving.append(engine)

    def _share(self, message: ShareMemory | ShareProgram) -> None:
        try:
            sealed = fcntl.fcntl(message.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            fits = sealed and os.fstat(message.descriptor).st_size >= message.length
        except OSError:
            fits = False
        if not fits or message.serial in self._shared:
            log.error("what is shared as %d is not what it should be", message.serial)
            os.close(message.descriptor)
            return
        self._shared[message.serial] = _Shared(message.descriptor, message.length)

    def _forget(self, serial: int) -> None:
        shared = self._shared.get(serial)
        if shared is None:
            return
        shared.forgotten = True
        self._release(serial, shared)
        # Its memory is free when nobody has it mapped.
        for worker in self._workers.values():
            if serial in worker.process.named:
                worker.stale = True
                self._retire(worker)

    def _release(self, serial: int, shared: _Shared) -> None:
        if shared.forgotten and not shared.users:
            os.close(shared.descriptor)
            del self._shared[serial]

    def _check(self, message: CheckProgram) -> None:
        shared, engine = self._shared.get(message.serial), self._engines.get(message.nsid)

        def decided(reason: str | None) -> None:
            if reason is not None and engine is not None:
                engine.log.add(LogEntryType.ACCELERATOR_ERROR, f"a program was refused: {reason}")
            verdict = Outcome.RETURNED if reason is None else Outcome.REFUSED
            self._send(ProgramChecked(message.tag, verdict))

        if shared is None:
            decided("it is not there")
            return
        image = os.pread(shared.descriptor, shared.length, 0)
        self._checks.begin(
            image,
            decided,
            lambda: self._send(ProgramChecked(message.tag, Outcome.LOST)),
        )

    # Executions.

    def _begin(self, message: Execute) -> None:
        names = message.named
        engine = self._engines.get(message.nsid)
        reason = None if engine is not None else f"namespace {message.nsid} has no engine"
        for one in message.ranges:
            shared = self._shared.get(one.serial)
            if shared is None or one.offset + one.length > shared.length:
                reason = f"{one} is not there"
        if message.program >= FIRST_SERIAL and message.program not in self._shared:
            reason = f"program {message.program} is not there"
        if engine is None or reason is not None:
            log.error("an execution is refused: %s", reason)
            if message.data_length:
                os.close(message.descriptor)
            self._send(Executed(message.tag, Outcome.REFUSED))
            return
        for serial in names:
            self._shared[serial].users += 1
        job = _Job(message, names)
        engine.waiting.append(job)
        self._hand_over(engine)

    def _hand_over(self, engine: _Engine) -> None:
        """Give jobs that wait to workers that have nothing to do."""
        while engine.waiting:
            idle = [one for one in engine.workers if one.is_idle]
            if not idle:
                more = len(engine.workers) < self._limits.engine_workers
                if more and all(one.process.ready for one in engine.workers):
                    self._spawn(engine)
                return
            job = engine.waiting.popleft()
            # One that has the program and the memory still has them in place.
            worker = (
                max(idle, key=lambda one: len(one.process.named & job.names))
                if idle[1:]
                else idle[0]
            )
            self._start(worker, job)

    def _start(self, worker: _Worker, job: _Job) -> None:
        message = job.message
        shared = {serial: self._shared[serial].descriptor for serial in job.names}
        data = [message.descriptor] if message.data_length else []
        worker.job = job
        self._supervisor.execute(worker.process, message, shared, data, self._limits.seconds)
        self._let_go(job)

    def _let_go(self, job: _Job) -> None:
        """A job needs nothing from here any more: its worker has it, or nobody will."""
        if job.message.data_length:
            os.close(job.message.descriptor)
        for serial in job.names:
            shared = self._shared[serial]
            shared.users -= 1
            self._release(serial, shared)

    def _cancel(self, tag: int) -> None:
        for engine in self._engines.values():
            for job in engine.waiting:
                if job.message.tag == tag:
                    engine.waiting.remove(job)
                    self._let_go(job)
                    self._send(Executed(tag, Outcome.CANCELLED))
                    return
            for worker in engine.workers:
                if worker.job is not None and worker.job.message.tag == tag:
                    self._end(worker)
                    return

    def _cancel_all(self, engine: _Engine) -> None:
        self._drop_waiting(engine, Outcome.CANCELLED)
        for worker in engine.workers:
            if worker.job is not None:
                self._end(worker)

    def _end(self, worker: _Worker) -> None:
        """Cancel what a worker does, which is answered when it is gone for certain."""
        assert worker.job is not None
        worker.job.ended = Outcome.CANCELLED
        self._supervisor.kill(worker.process)

    # Workers.

    def _spawn(self, engine: _Engine) -> None:
        worker = _Worker(engine, self._supervisor.spawn(ENGINE, self))
        engine.workers.append(worker)
        self._workers[worker.process] = worker

    def _retire(self, worker: _Worker) -> None:
        """End a worker that is not to be used again, if it does nothing."""
        if worker.stale and worker.job is None:
            self._supervisor.kill(worker.process)

    def expired(self, process: Worker) -> None:
        worker = self._workers[process]
        worker.engine.log.add(
            LogEntryType.LIMIT_EXCEEDED, f"the execution took more than {self._limits.seconds:g} s"
        )
        if worker.job is not None:
            worker.job.ended = Outcome.EXPIRED
        self._supervisor.kill(process)

    def received(self, process: Worker, message: FromWorker) -> None:
        worker = self._workers[process]
        engine, job = worker.engine, worker.job
        match message:
            case Ready():
                pass
            case Line(kind, text):
                engine.log.add(kind, text)
                return
            case Executed(tag, outcome) if (
                type(message) is Executed
                and outcome in ANSWERS
                and job is not None
                and job.message.tag == tag
            ):
                worker.job = None
                self._send(message)
                worker.stale |= self._supervisor.finish(process)
                self._retire(worker)
            case _:
                raise ChannelError(f"an engine's worker sent {message}")
        self._hand_over(engine)

    def exited(self, process: Worker, why: str) -> None:
        worker = self._workers.pop(process)
        engine = worker.engine
        engine.workers.remove(worker)
        job = worker.job
        if job is not None:
            if job.ended is Outcome.LOST:
                engine.log.add(
                    LogEntryType.PROCESS_LOST, f"the execution's process was lost: {why}"
                )
            self._send(Executed(job.message.tag, job.ended))
        if engine in self._leaving:
            if not engine.workers:
                self._leaving.remove(engine)
        elif process.ready and not engine.workers:
            self._spawn(engine)
        elif not process.ready and not engine.workers and engine.waiting:
            # None can be made: what waits for one would wait for ever.
            self._drop_waiting(engine, Outcome.LOST)
        self._hand_over(engine)

    def _drop_waiting(self, engine: _Engine, outcome: Outcome) -> None:
        while engine.waiting:
            job = engine.waiting.popleft()
            self._let_go(job)
            self._send(Executed(job.message.tag, outcome))
