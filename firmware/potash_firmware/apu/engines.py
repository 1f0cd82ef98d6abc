"""The engines of compute namespaces, which pass executions from the RPU to workers.

Each engine has a few workers, each of which runs one execution at a time; further executions wait
in order. A worker keeps descriptors of what its execution names until the next one, which often
names the same. Every execution is answered once, however it ends.
"""

import fcntl
import logging
import os
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from csd_spec.descriptors import LogEntryType
from potash_firmware.apu import queries
from potash_firmware.apu.channel import ANSWERS, ENGINE, ChannelError, FromWorker, Line, Ready
from potash_firmware.apu.checks import Checks
from potash_firmware.apu.config import Config
from potash_firmware.apu.model import Clock, Log, Snapshot
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.mailbox import ApuPort, nsid_of, tag_number, untagged
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    FIRST_HANDLE,
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
)
from potash_firmware.mailbox.values import MAX_OWN, NO_RANGE, ReadValue, ValueRead

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Shared:
    """Memory or a program, until the RPU has forgotten it and no waiting execution names it."""

    descriptor: int
    length: int
    users: int = 0
    forgotten: bool = False


@dataclass(eq=False, slots=True)
class _Execution:
    """An execution that has not been answered yet."""

    tag: int
    message: Execute
    """The message by which it was asked for, or one that differs in its tag alone."""
    names: frozenset[int]
    ended: Outcome = Outcome.LOST
    """The outcome if its worker exits."""
    reading: bool = False
    """It waits for a value."""

    def may_read(self, message: ReadValue) -> bool:
        """True if its program may make this request now: it has no other one, and there is room
        for the value."""
        if self.reading or self.tag != message.tag:
            return False
        if message.range == NO_RANGE:
            return message.room <= MAX_OWN
        lengths = [item.length for item in self.message.ranges[message.range :]]
        return message.offset + message.room <= (lengths or [-1])[0]

    def in_place(self, worker: Worker) -> tuple[bool, bool, int]:
        """The rank of a worker by what it has: best is the same program on the same ranges, where a
        query goes on; worst is another query; otherwise, the more of the memory the better."""
        ran, message = worker.ran, self.message
        same = ran is not None and (ran.program, ran.ranges) == (message.program, message.ranges)
        free = ran is None or ran.program != DeviceProgram.QUERY
        return same, free, len(worker.named & self.names)


class Engines:
    """All engines; answers go to the RPU through `port`."""

    def __init__(
        self,
        config: Config,
        supervisor: Supervisor,
        checks: Checks,
        port: ApuPort,
        clock: Clock,
    ) -> None:
        self.limits = config.limits
        self.supervisor = supervisor
        self.send = port.send
        self.pass_on = port.send_encoded
        self.clock = clock
        self._checks = checks
        self._engines: dict[int, _Engine] = {}
        self._closed: list[_Engine] = []
        """Engines with workers that have not exited yet."""
        self._shared: dict[int, _Shared] = {}

    def log_of(self, nsid: int) -> tuple[Log, Snapshot] | None:
        """A compute namespace's log; None if there is no such namespace."""
        engine = self._engines.get(nsid)
        return None if engine is None else (engine.log, engine.snapshot)

    def close(self) -> None:
        """Release all memory and programs."""
        for shared in self._shared.values():
            os.close(shared.descriptor)
        self._shared.clear()

    def handle(self, message: ExecutionToApu) -> None:
        """Follow a message of the RPU."""
        match message:
            case Execute():
                self._execute(message)
            case Cancel(tag):
                any(engine.cancel(tag) for engine in self._engines.values())
            case ValueRead():
                any(engine.answer(message) for engine in self._engines.values())
            case ShareMemory() | ShareProgram():
                self._share(message)
            case Forget(handle):
                self._forget(handle)
            case CheckProgram():
                self._check(message)
            case OpenEngine(nsid) if nsid not in self._engines:
                self._engines[nsid] = _Engine(nsid, self)
            case CloseEngine(nsid) if nsid in self._engines:
                engine = self._engines.pop(nsid)
                self._closed.append(engine)
                engine.close()

    def repeat(self, data: bytes) -> bool:
        """Pass an encoded execution on as it is, if an idle worker's last one equals it but for the
        tag; False if it is to be handled as any other message.

        It would pass all checks: the worker's last one has, and what that names is still there, as
        a worker is killed when something of it is forgotten or its engine is closed.
        """
        engine = self._engines.get(nsid_of(data))
        return engine is not None and engine.repeat(data)

    def reset(self, *, forget: bool, cancel: bool, nsids: Collection[int] | None = None) -> None:
        """A reset, of the engines of all compute namespaces or of some: `cancel` executions,
        `forget` logs and what programs have left in workers."""
        engines = (*self._engines.values(), *self._closed)
        for engine in engines:
            if nsids is not None and engine.nsid not in nsids:
                continue
            if cancel:
                engine.cancel_all()
            if forget:
                engine.forget()

    def removed(self, engine: "_Engine") -> None:
        """All workers of a closed engine have exited."""
        if engine in self._closed:
            self._closed.remove(engine)

    def descriptors(self, execution: _Execution) -> dict[int, int]:
        """Descriptors of what an execution names, by handle."""
        return {handle: self._shared[handle].descriptor for handle in execution.names}

    def release(self, execution: _Execution) -> None:
        """Release the descriptors of an execution: its worker has them, or it will not run."""
        if execution.message.data_length:
            os.close(execution.message.descriptor)
        for handle in execution.names:
            self._shared[handle].users -= 1
            self._close_unused(handle)

    def _close_unused(self, handle: int) -> None:
        shared = self._shared[handle]
        if shared.forgotten and not shared.users:
            os.close(shared.descriptor)
            del self._shared[handle]

    def _share(self, message: ShareMemory | ShareProgram) -> None:
        try:
            sealed = fcntl.fcntl(message.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            fits = sealed and os.fstat(message.descriptor).st_size >= message.length
        except OSError:
            fits = False
        if not fits or message.handle in self._shared:
            log.error("the memory with the handle %d is refused", message.handle)
            os.close(message.descriptor)
            return
        self._shared[message.handle] = _Shared(message.descriptor, message.length)

    def _forget(self, handle: int) -> None:
        if handle not in self._shared:
            return
        self._shared[handle].forgotten = True
        self._close_unused(handle)
        # Its memory is freed when no worker has it mapped any more.
        for engine in (*self._engines.values(), *self._closed):
            for worker in engine.workers:
                if handle in worker.named:
                    self.supervisor.retire(worker)

    def _check(self, message: CheckProgram) -> None:
        shared, engine = self._shared.get(message.handle), self._engines.get(message.nsid)

        def ended(outcome: Outcome, reason: str, priority: int = 0) -> None:
            if reason and engine is not None:
                engine.log.add(LogEntryType.ACCELERATOR_ERROR, f"a program was refused: {reason}")
            self.send(ProgramChecked(message.tag, outcome, priority))

        if shared is None:
            ended(Outcome.REFUSED, "it does not exist")
        else:
            image = os.pread(shared.descriptor, shared.length, 0)
            self._checks.begin(image, ended, ("namespace", message.nsid))

    def _execute(self, message: Execute) -> None:
        engine, reason = self._engines.get(message.nsid), None
        if engine is None:
            reason = f"namespace {message.nsid} has no engine"
        for item in message.ranges:
            shared = self._shared.get(item.handle)
            if shared is None or item.offset + item.length > shared.length:
                reason = f"{item} does not exist"
        if message.program >= FIRST_HANDLE and message.program not in self._shared:
            reason = f"program {message.program} does not exist"
        lack = queries.refusal() if message.program == DeviceProgram.QUERY else None
        if engine is not None and lack is not None:
            engine.log.add(LogEntryType.ACCELERATOR_ERROR, lack)
            reason = lack
        if engine is None or reason is not None:
            log.error("an execution is refused: %s", reason)
            if message.data_length:
                os.close(message.descriptor)
            self.send(Executed(message.tag, Outcome.REFUSED))
            return
        execution = _Execution(message.tag, message, message.named)
        for handle in execution.names:
            self._shared[handle].users += 1
        engine.begin(execution)


class _Engine:
    """The engine of one compute namespace, for which its workers work."""

    messages_at_once = 1
    """A worker mostly sends one message, its answer."""

    def __init__(self, nsid: int, engines: Engines) -> None:
        self.nsid = nsid
        self._engines = engines
        self._limits = limits = engines.limits
        self._supervisor = engines.supervisor
        self.log = Log(limits.log_entries, limits.log_text, engines.clock)
        self.snapshot = Snapshot()
        self.workers: list[Worker] = []
        self._running: dict[Worker, _Execution] = {}
        self._waiting: deque[_Execution] = deque()
        self._is_closed = False
        self._spawn()

    def begin(self, execution: _Execution) -> None:
        """Run an execution, or have it wait for a worker."""
        self._waiting.append(execution)
        self._hand_over()

    def repeat(self, data: bytes) -> bool:
        """Pass an encoded execution on, as `Engines.repeat` says."""
        if self._waiting:  # it has to wait, too
            return False
        like = untagged(data)
        for worker in self.workers:
            if worker.like == like and worker.idle and worker.ran is not None:
                self._running[worker] = _Execution(tag_number(data), worker.ran, worker.named)
                self._supervisor.repeat(worker, data, self._limits.seconds)
                return True
        return False

    def returned(self, worker: Worker, data: bytes) -> None:
        """Pass an encoded answer on: a worker's program has returned a value."""
        del self._running[worker]
        self._engines.pass_on(data)
        self._supervisor.finish(worker)
        self._hand_over()

    def cancel(self, tag: int) -> bool:
        """Cancel an execution, if this engine has it. It is answered when its worker has exited."""
        for execution in self._waiting:
            if execution.tag == tag:
                self._waiting.remove(execution)
                self._drop(execution, Outcome.CANCELLED)
                return True
        for worker, execution in self._running.items():
            if execution.tag == tag:
                self._kill(worker, Outcome.CANCELLED)
                return True
        return False

    def answer(self, message: ValueRead) -> bool:
        """Pass a value on, if one of this engine's executions waits for it."""
        for worker, execution in self._running.items():
            if execution.tag == message.tag and execution.reading:
                execution.reading = False
                self._supervisor.answer(worker, message)
                return True
        return False

    def cancel_all(self) -> None:
        self._drop_waiting(Outcome.CANCELLED)
        for worker in self._running:
            self._kill(worker, Outcome.CANCELLED)

    def forget(self) -> None:
        """Clear the log, and replace workers that have run a program when they are idle."""
        self.log.clear()
        self.snapshot.release()
        for worker in self.workers:
            if worker.used:
                self._supervisor.retire(worker)

    def close(self) -> None:
        self._is_closed = True
        self.cancel_all()
        for worker in self.workers:
            self._supervisor.kill(worker)
        if not self.workers:
            self._engines.removed(self)

    def received(self, worker: Worker, message: FromWorker) -> None:
        execution = self._running.get(worker)
        match message:
            case Ready():
                self._hand_over()
            case Line(kind, text):
                self.log.add(kind, text)
            case ReadValue() if execution is not None and execution.may_read(message):
                execution.reading = True
                self._engines.send(message)
            case Executed(tag, outcome) if (
                type(message) is Executed
                and outcome in ANSWERS
                and execution is not None
                and execution.tag == tag
            ):
                del self._running[worker]
                self._engines.send(message)
                self._supervisor.finish(worker)
                self._hand_over()
            case _:
                raise ChannelError(f"an engine's worker sent {message}")

    def expired(self, worker: Worker) -> None:
        self.log.add(
            LogEntryType.LIMIT_EXCEEDED, f"the execution took more than {self._limits.seconds:g} s"
        )
        self._kill(worker, Outcome.EXPIRED)

    def exited(self, worker: Worker, why: str) -> None:
        self.workers.remove(worker)
        execution = self._running.pop(worker, None)
        if execution is not None:
            if execution.ended is Outcome.LOST:
                self.log.add(LogEntryType.PROCESS_LOST, f"the execution's process was lost: {why}")
            self._engines.send(Executed(execution.tag, execution.ended))
        if self.workers:
            self._hand_over()
        elif self._is_closed:
            self._engines.removed(self)
        elif worker.ready:
            self._spawn()
        else:
            # None can be forked: an execution that waits for one would wait for ever.
            self._drop_waiting(Outcome.LOST)

    def _hand_over(self) -> None:
        """Give waiting executions to idle workers."""
        while self._waiting:
            suits, program = self._supervisor.suits, self._waiting[0].message.program
            idle = [worker for worker in self.workers if worker.idle and suits(worker, program)]
            if not idle:
                more = len(self.workers) < self._limits.engine_workers
                if more and all(worker.ready for worker in self.workers):
                    self._spawn()
                return
            execution = self._waiting.popleft()
            worker = max(idle, key=execution.in_place) if idle[1:] else idle[0]
            message = execution.message
            self._running[worker] = execution
            data = [message.descriptor] if message.data_length else []
            shared = self._engines.descriptors(execution)
            self._supervisor.execute(worker, message, shared, data, self._limits.seconds)
            self._engines.release(execution)

    def _kill(self, worker: Worker, outcome: Outcome) -> None:
        self._running[worker].ended = outcome
        self._supervisor.kill(worker)

    def _drop_waiting(self, outcome: Outcome) -> None:
        while self._waiting:
            self._drop(self._waiting.popleft(), outcome)

    def _drop(self, execution: _Execution, outcome: Outcome) -> None:
        self._engines.release(execution)
        self._engines.send(Executed(execution.tag, outcome))

    def _spawn(self) -> None:
        worker = self._supervisor.spawn(ENGINE, self)
        worker.returned = partial(self.returned, worker)
        self.workers.append(worker)
