"""The supervisor of all worker processes, from the request to fork one until its exit is certain.

A separate process, the fork server, forks and reaps workers; the supervisor starts a fork server
when it needs one. What a worker sends goes in order to its owner, the part of the APU that uses it.
A worker that breaks the rules of its channel, or closes it, is killed. When it has certainly
exited, its owner is notified once, after the worker's last messages.
"""

import itertools
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from potash_firmware.apu import channel
from potash_firmware.apu.config import Config, format_descriptors
from potash_firmware.apu.process import Forked, close_others, fork
from potash_firmware.mailbox import is_returned, tag_of, untagged
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import Execute
from potash_firmware.mailbox.values import JobValueRead, ValueRead

log = logging.getLogger(__name__)

FORK_SERVER = "potash_firmware.apu.fork_server"

START_PATIENCE = 60.0
"""Seconds in which a new worker has to be ready. Long, as the fork server may still be importing on
a busy machine."""

LAST_MESSAGES = 4096
"""The most messages of a worker that are read once it has exited: more than its channel holds, but
not without end, should anything else hold the channel open and send."""

MEANINGS: Mapping[int, str] = {
    signal.SIGSYS: ", as it made a system call that workers may not make",
    signal.SIGXCPU: ", as it took more processor time than workers may take",
}
"""The reasons for which signals end a worker."""


RunForkServer = Callable[[socket.socket, Config, dict[str, int]], None]
"""The fork server's main function; it gets its connection, the configuration and descriptors."""


class Owner(Protocol):
    """The part of the APU that a worker works for."""

    messages_at_once: int
    """Messages of one worker that are read in one pass, so that none holds up the others."""

    def received(self, worker: "Worker", message: channel.FromWorker) -> None:
        """Handle a message. Raises ChannelError, at which the worker is killed."""

    def expired(self, worker: "Worker") -> None:
        """An execution has exceeded its time."""

    def exited(self, worker: "Worker", why: str) -> None:
        """A worker has exited: nothing of it runs any more."""


class Worker:
    """One worker process. Its kind is an accelerator's identifier, `CHECKER` or `ENGINE`."""

    def __init__(self, number: int, kind: int, owner: Owner, connection: socket.socket) -> None:
        self.number = number
        self.kind = kind
        self.owner = owner
        self.ready = False
        """It has reported that it has imported what it needs."""
        self.used = False
        """It has been given an execution, so what it has kept may be somebody's data."""
        self.ending = False
        """It has been killed, and what it still sends is ignored."""
        self.retired = False
        """It is killed when its execution has ended."""
        self.silent = False
        """Its end of the channel is closed."""
        self.orphaned = False
        """Its fork server has exited, and cannot report its exit."""
        self.began: float | None = None
        """The time when its execution began, while it has one."""
        self.deadline = math.inf
        """The time when that exceeds its limit."""
        self.named: frozenset[int] = frozenset()
        """Handles of the programs and memory of which it has descriptors."""
        self.seconds = 0.0
        """The seconds of all executions that have ended."""
        self.queries = False
        """It has what queries of tables need."""
        self.ran: Execute | None = None
        """The last execution that it was given, or one that differs in its tag alone."""
        self.like = b""
        """The same, encoded, without its tag; empty if it has data."""
        self.tag = b""
        """The tag of the execution that it has, in bytes."""
        self.returned: Callable[[bytes], None] | None = None
        """Takes the answer of a program that has returned a value, without its being decoded."""
        self._socket = connection
        self._socket.setblocking(False)

    @property
    def idle(self) -> bool:
        """True if it can be given an execution."""
        return self.ready and self.began is None and not self.ending

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Send an execution. Raises OSError."""
        if descriptors:
            socket.send_fds(self._socket, [data], descriptors)
        else:
            self._socket.send(data)

    def datagrams(self, limit: int) -> Iterator[bytes]:
        """The messages that have arrived, at most `limit`, which are not checked."""
        for _ in range(limit):
            try:
                data = self._socket.recv(channel.MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.silent = True
                return
            if not self.ending:
                yield data

    def close(self) -> None:
        self._socket.close()


class Supervisor:
    """Asks the fork server for workers, distributes what they send, and enforces their limits."""

    def __init__(
        self,
        config: Config,
        descriptors: dict[str, int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._descriptors = descriptors
        self._monotonic = monotonic
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._workers: dict[int, Worker] = {}
        self._due: dict[int, float] = {}
        """The time when each worker must be ready or its exit be reported, by its number;
        infinite while there is no limit."""
        self._settled = False
        """A worker of this fork server has become ready, so shorter limits apply."""
        self._queries = False
        """This fork server has been told to have what queries of tables need."""
        self.changed = False
        """The list of workers to poll has changed since the service cleared this."""

    @property
    def control(self) -> socket.socket | None:
        """The connection to the fork server, for `reap`; None when there is none."""
        return self._control

    @property
    def workers(self) -> list[Worker]:
        """The workers whose channel is open."""
        return [worker for worker in self._workers.values() if not worker.silent]

    @property
    def kills(self) -> bool:
        """True while a worker that has been killed may still exist."""
        return any(worker.ending for worker in self._workers.values())

    def start(self) -> None:
        """Start a fork server, unless there is one."""
        if self._control is not None:
            return
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-P", "-m", FORK_SERVER]
            command += ["--parent", str(os.getpid()), "--control", str(its.fileno())]
            command += ["--fds", format_descriptors(self._descriptors)]
            process = subprocess.Popen(
                command,
                pass_fds=(its.fileno(), *self._descriptors.values()),
                stdin=subprocess.DEVNULL,
            )
        self._started(process, mine)

    def fork(self, run: RunForkServer) -> None:
        """Start a fork server as a fork of this process, to save its imports; `run` is its main.

        It and its workers share this process's memory. So this is only for a process that has not
        received anything of a host yet.
        """
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def start() -> None:
            close_others([its.fileno(), *self._descriptors.values()])
            run(its, self._config, self._descriptors)

        with its:
            self._started(Forked(fork(start)), mine)

    def _started(self, process: subprocess.Popen[bytes] | Forked, control: socket.socket) -> None:
        self._process = process
        control.setblocking(False)
        self._control = control
        self._settled = self._queries = False

    def suits(self, worker: Worker, program: object) -> bool:
        """True if an idle worker can run a program. One without what queries need is killed; the
        workers that are spawned from then on have it."""
        if program != DeviceProgram.QUERY or worker.queries:
            return True
        self._load_queries()
        self.kill(worker)
        return False

    def _load_queries(self) -> None:
        if self._queries:
            return
        self._queries, self._settled = True, False
        # The fork server does nothing else meanwhile.
        patience = self._monotonic() + START_PATIENCE
        for number, due in self._due.items():
            if due < math.inf:
                self._due[number] = patience
        self._request(channel.LoadQueries(), [])

    def spawn(self, kind: int, owner: Owner) -> Worker:
        """Request a worker; an execution that is sent before it is ready waits in the channel."""
        self.start()
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            worker = Worker(next(self._numbers), kind, owner, mine)
            worker.queries = self._queries
            self._request(channel.Spawn(worker.number, kind), [its.fileno()])
        self._workers[worker.number] = worker
        self.changed = True
        # The owner of a check limits its time.
        self._due[worker.number] = math.inf
        if kind != channel.CHECKER:
            self._expect_within(worker, START_PATIENCE)
        return worker

    def execute(
        self,
        worker: Worker,
        message: Execute,
        shared: Mapping[int, int],
        others: Sequence[int],
        seconds: float,
    ) -> None:
        """Give a worker an execution, which may take at most `seconds`.

        `shared` has descriptors by handle, of which the worker gets those that the execution
        names and its last one did not; `others` are descriptors of this execution alone.
        """
        named = message.named
        descriptors = [shared[handle] for handle in sorted(named - worker.named)]
        descriptors += others
        worker.named = named
        worker.ran = message
        worker.used = True
        data = channel.encode(message)
        worker.like = b"" if message.data_length else untagged(data)
        self._send(worker, data, descriptors, seconds)

    def repeat(self, worker: Worker, data: bytes, seconds: float) -> None:
        """Give a worker an encoded execution that equals its last one but for the tag."""
        self._send(worker, data, (), seconds)

    def _send(
        self, worker: Worker, data: bytes, descriptors: Sequence[int], seconds: float
    ) -> None:
        worker.tag = tag_of(data)
        worker.began = self._monotonic()
        worker.deadline = worker.began + seconds
        try:
            worker.send(data, descriptors)
        except OSError as error:
            # It has exited, or has left so much in its channel that no more can be sent.
            log.warning("an execution did not reach its worker: %s", error)
            self.kill(worker)

    def answer(self, worker: Worker, message: ValueRead | JobValueRead) -> None:
        """Answer a request of a worker's program."""
        try:
            worker.send(channel.encode(message), ())
        except OSError as error:  # as above
            log.warning("an answer did not reach its worker: %s", error)
            self.kill(worker)

    def finish(self, worker: Worker) -> None:
        """Note that a worker's execution has ended. Kill the worker if it is retired.

        It is also killed if its executions have together taken longer than one may: the kernel ends
        it at `process.CPU_FACTOR` times that limit, which must not happen in the next one.
        """
        if worker.began is not None:
            worker.seconds += self._monotonic() - worker.began
        worker.began, worker.deadline, worker.tag = None, math.inf, b""
        if worker.retired or worker.seconds > self._config.limits.seconds:
            self.kill(worker)

    def retire(self, worker: Worker) -> None:
        """Kill a worker as soon as it has no execution."""
        worker.retired = True
        if worker.began is None:
            self.kill(worker)

    def kill(self, worker: Worker) -> None:
        """Request a worker's end, once; its owner is notified when it has exited."""
        if worker.ending:
            return
        worker.ending = True
        worker.deadline = math.inf
        # The fork server has to report its exit soon, unless that report has already come.
        self._expect_within(
            worker, self._config.limits.patience if self._settled else START_PATIENCE
        )
        self._request(channel.Kill(worker.number), [])

    def listen(self, worker: Worker) -> bool:
        """Handle a worker's messages; True if there were any and it is not being killed."""
        return self._listen(worker, worker.owner.messages_at_once)

    def reap(self) -> None:
        """Handle the exits that the fork server reports, or its own."""
        while self._control is not None:
            try:
                data = self._control.recv(channel.MAX_REQUEST)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._fork_server_exited()
                return
            gone = channel.decode_exit(data)
            self._due.pop(gone.number, None)
            worker = self._workers.get(gone.number)
            if worker is not None:
                self._listen(worker, LAST_MESSAGES)
                self._exited(worker, cause(gone.code))

    def deadline(self) -> float | None:
        """Seconds until `expire` has something to do; None when nothing has a limit."""
        ends = [*self._due.values(), *(worker.deadline for worker in self._workers.values())]
        first = min(ends, default=math.inf)
        return max(0.0, first - self._monotonic()) if first < math.inf else None

    def expire(self) -> None:
        """End executions that have exceeded their time, and a fork server that does not answer.

        A fork server that is late with a worker or an exit is assumed to hang; its workers die with
        it. (One that waits for a disk dies when the disk answers, under any fork server.)
        """
        now = self._monotonic()
        if min(self._due.values(), default=math.inf) <= now:
            self._due.clear()
            if self._process is not None:
                log.error("the fork server does not answer any more, and is ended")
                self._process.kill()
        for worker in [worker for worker in self._workers.values() if worker.deadline <= now]:
            worker.deadline = math.inf
            worker.owner.expired(worker)

    def close(self) -> None:
        """End all processes."""
        self._end_fork_server()
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _listen(self, worker: Worker, limit: int) -> bool:
        received = False
        try:
            for data in worker.datagrams(limit):
                received = True
                if worker.returned is not None and is_returned(data) and tag_of(data) == worker.tag:
                    worker.returned(data)
                    continue
                message = channel.decode_from_worker(data)
                if isinstance(message, channel.Ready):
                    worker.ready = True
                    self._settled = self._settled or worker.queries == self._queries
                    if worker.number in self._due:
                        self._due[worker.number] = math.inf
                worker.owner.received(worker, message)
        except channel.ChannelError as error:
            log.warning("%s", error)
            self.kill(worker)
        if worker.silent:
            self.changed = True
            if worker.orphaned:
                self._exited_with_fork_server(worker)
            else:
                self.kill(worker)  # it may have closed its channel and stayed
        return received and not worker.ending

    def _fork_server_exited(self) -> None:
        log.warning("the fork server has exited")
        self._end_fork_server()
        for worker in list(self._workers.values()):
            worker.orphaned = True
            if worker.silent:
                self._exited_with_fork_server(worker)

    def _exited_with_fork_server(self, worker: Worker) -> None:
        """Without its fork server, the end of its channel is what shows a worker's exit."""
        self._exited(worker, "the process that workers are forked from has exited")

    def _exited(self, worker: Worker, why: str) -> None:
        if self._workers.pop(worker.number, None) is not None:
            self.changed = True
            worker.close()
            worker.owner.exited(worker, why)

    def _end_fork_server(self) -> None:
        self._due.clear()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _expect_within(self, worker: Worker, seconds: float) -> None:
        before = self._due.get(worker.number)
        if before is not None:
            self._due[worker.number] = min(self._monotonic() + seconds, before)

    def _request(self, request: channel.ToForkServer, descriptors: list[int]) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [channel.encode(request)], descriptors)
        except OSError as error:
            # It has exited, or hangs and is killed: `reap` sees the closed connection.
            log.warning("a request does not reach the fork server: %s", error)
            if self._process is not None:
                self._process.kill()


def cause(code: int) -> str:
    """The reason for a worker's exit, from its exit code or a negated signal number."""
    if code >= 0:
        return f"it exited with status {code}"
    try:
        name = signal.Signals(-code).name
        return f"it was ended by {name}{MEANINGS.get(-code, '')}"
    except ValueError:
        return f"it was ended by signal {-code}"
