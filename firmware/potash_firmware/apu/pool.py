"""The service's side of the nursery, through which it starts and kills worker processes.

A worker's death is known from the nursery, which reaps it; when the nursery itself is gone, its
workers are killed by the kernel, and the end of a worker's channel says that it happened: a process
loses its memory before its descriptors.
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
from typing import NamedTuple

from potash_firmware.apu import channel, orders
from potash_firmware.apu.config import Config, format_descriptors
from potash_firmware.apu.confined import close_others

log = logging.getLogger(__name__)

NURSERY = "potash_firmware.apu.nursery"

START_PATIENCE = 60.0
"""Seconds in which a worker has to be ready: its nursery has to import, on however busy a
machine."""

MEANINGS: Mapping[int, str] = {
    signal.SIGSYS: ", as it made a system call that workers may not make",
    signal.SIGXCPU: ", as it took more processor time than workers may take",
}
"""What a signal says that ended a worker."""


Run = Callable[[int, socket.socket, Config, dict[str, int]], None]
"""What a nursery does: for this parent, at its end of the channel, with these descriptors."""


class NurseryLost(Exception):
    """The nursery is gone, and with it every worker."""


class Worker:
    """One worker process, from the order to make it until its death is certain."""

    def __init__(self, serial: int, accelerator: int, end: socket.socket) -> None:
        self.serial = serial
        self.accelerator = accelerator
        self.ready = False
        """It has said so at least once: what it needs can be imported."""
        self.used = False
        """It has been given a job, so what it remembers may be somebody's data."""
        self.doomed = False
        """It has been killed, and what it still says counts for nothing."""
        self.silent = False
        """Its end of the channel is closed."""
        self.orphaned = False
        """Its nursery is gone: nobody will tell of its death."""
        self.began: float | None = None
        self.seconds = 0.0
        """When its job was handed over, and how long all that have ended took."""
        self._socket = end
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def run(
        self, job: channel.Run | channel.Check | channel.Perform, descriptors: Sequence[int]
    ) -> None:
        """Hand over work, its contents the first of `descriptors`. Whether it arrives shows in the
        process's death."""
        self.used = True
        try:
            if descriptors:
                socket.send_fds(self._socket, [channel.encode(job)], descriptors)
            else:
                self._socket.send(channel.encode(job))
        except OSError as error:
            log.warning("a job did not reach its worker: %s", error)

    def messages(self, limit: int) -> Iterator[channel.FromWorker]:
        """What it has said, at most `limit` messages now. Raises ChannelError."""
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
            if not self.doomed:
                yield channel.decode(data)

    def rest(self, now: float) -> float:
        """It has ended its job; the seconds that all its jobs have taken.

        Its owner is to replace it when they exceed one longest job: the kernel gives it the
        processor for two (`confined.CPU_FACTOR`).
        """
        if self.began is not None:
            self.seconds += now - self.began
            self.began = None
        return self.seconds

    def close(self) -> None:
        self._socket.close()


def contents_of(*parts: bytes) -> int:
    """A descriptor of memory that holds these, to be read from its beginning; the caller closes
    it."""
    contents = os.memfd_create("potash-job", os.MFD_CLOEXEC)
    with os.fdopen(contents, "wb", closefd=False) as file:
        file.writelines(parts)
    os.lseek(contents, 0, os.SEEK_SET)
    return contents


class _Forked(NamedTuple):
    """A child of this process, like those of `subprocess`."""

    pid: int

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


class Pool:
    """Makes and kills workers through a nursery, which it starts when it needs one."""

    def __init__(self, config: Config, descriptors: dict[str, int]) -> None:
        self._config = config
        self._descriptors = descriptors
        self._process: subprocess.Popen[bytes] | _Forked | None = None
        self._control: socket.socket | None = None
        self._serials = itertools.count(1)
        self._due: dict[int, float] = {}
        """When a worker must be ready, or its death have been told of, if ever; by the serials of
        those that live."""
        self._settled = False
        """The nursery has made a worker that is ready."""

    @property
    def control(self) -> socket.socket | None:
        """What the nursery says comes from here; None when there is no nursery."""
        return self._control

    def start(self) -> None:
        if self._control is not None:
            return
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-P", "-m", NURSERY]
            command += ["--parent", str(os.getpid()), "--control", str(its.fileno())]
            command += ["--fds", format_descriptors(self._descriptors)]
            process = subprocess.Popen(
                command,
                pass_fds=(its.fileno(), *self._descriptors.values()),
                stdin=subprocess.DEVNULL,
            )
        self._started(process, mine)

    def fork(self, run: Run) -> None:
        """Start a nursery, whose `run` this is, that shares what this process has imported.

        It shares this process's memory, too, and its workers do. So this is only for a process that
        has not taken in anything of a host yet.
        """
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                close_others([its.fileno(), *self._descriptors.values()])
                run(parent, its, self._config, self._descriptors)
                code = 0
            except Exception:
                log.exception("the nursery met a mistake of the firmware")
            finally:
                sys.stderr.flush()
                os._exit(code)
        its.close()
        self._started(_Forked(pid), mine)

    def _started(self, process: subprocess.Popen[bytes] | _Forked, control: socket.socket) -> None:
        self._process = process
        control.setblocking(False)
        self._control = control
        self._settled = False

    def spawn(self, accelerator: int) -> Worker:
        """Order a worker; jobs can be handed to it at once."""
        self.start()
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            worker = Worker(next(self._serials), accelerator, mine)
            self._order(orders.Spawn(worker.serial, accelerator), [its.fileno()])
        # How long a check may take is for those to say who have asked for it.
        self._due[worker.serial] = math.inf
        if accelerator != orders.CHECKER:
            self._wait_for(worker, START_PATIENCE)
        return worker

    def kill(self, worker: Worker) -> None:
        """Order a worker's end, once; `exits` or the end of its channel tells when it has come."""
        if worker.doomed:
            return
        worker.doomed = True
        self.expect(worker)
        self._order(orders.Kill(worker.serial), [])

    def expect(self, worker: Worker) -> None:
        """The nursery is to tell of this worker's death soon, unless it has."""
        self._wait_for(worker, self._config.limits.patience if self._settled else START_PATIENCE)

    def ready(self, worker: Worker) -> None:
        self._settled = True
        if worker.serial in self._due:
            self._due[worker.serial] = math.inf

    def deadline(self) -> float | None:
        """Seconds until `expire` has something to do; None when nothing is expected."""
        due = min(self._due.values(), default=math.inf)
        return max(0.0, due - time.monotonic()) if due < math.inf else None

    def expire(self) -> None:
        """End a nursery that does not do in time what it is to; `exits` says what became of it.

        Its workers go with it, as only another one can make new ones. (A worker that waits for a
        disk dies when the disk answers, under any nursery.)
        """
        if self.deadline() == 0.0:
            self._due.clear()
            if self._process is not None:
                log.error("the nursery does not answer any more, and is ended")
                self._process.send_signal(signal.SIGKILL)

    def _wait_for(self, worker: Worker, seconds: float) -> None:
        before = self._due.get(worker.serial)
        if before is not None:
            self._due[worker.serial] = min(time.monotonic() + seconds, before)

    def exits(self) -> list[orders.Exited]:
        """Workers that have gone. Raises NurseryLost, once."""
        gone: list[orders.Exited] = []
        while self._control is not None:
            try:
                data = self._control.recv(orders.MAX_ORDER)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                if gone:
                    break  # the end will be there again at the next call
                self.close()
                raise NurseryLost
            message = orders.decode(data)
            if isinstance(message, orders.Exited):
                self._due.pop(message.serial, None)
                gone.append(message)
        return gone

    def close(self) -> None:
        self._due.clear()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _order(self, order: orders.Spawn | orders.Kill, fds: list[int]) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [orders.encode(order)], fds)
        except OSError as error:
            # It is gone (or hangs, which only its death can mend): `exits` will say so.
            log.warning("the nursery does not take an order: %s", error)
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)


def cause(code: int) -> str:
    """What an exit code, or a signal's number negated, says of a worker's end."""
    if code >= 0:
        return f"it exited with status {code}"
    try:
        name = signal.Signals(-code).name
        return f"it was ended by {name}{MEANINGS.get(-code, '')}"
    except ValueError:
        return f"it was ended by signal {-code}"
