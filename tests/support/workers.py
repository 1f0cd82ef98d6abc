"""A supervisor whose fork server and workers are played by the test."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Self

from potash_firmware.apu import channel
from potash_firmware.apu.config import Config
from potash_firmware.apu.supervisor import Owner, Supervisor, Worker


class PlayedSupervisor(Supervisor):
    """Forks no process. `ends` are the workers' ends of their channels, by number, and
    `killed` the numbers of those that are to be killed. A context manager."""

    def __init__(self, config: Config, monotonic: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(config, {}, monotonic)
        self._control, self._fork_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._queries = True  # all its workers can run them
        self.ends: dict[int, socket.socket] = {}
        self.killed: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for end in (self._fork_server, *self.ends.values()):
            end.close()

    def spawn(self, kind: int, owner: Owner) -> Worker:
        worker = super().spawn(kind, owner)
        _, (fd,), _, _ = socket.recv_fds(self._fork_server, channel.MAX_REQUEST, 1)
        self.ends[worker.number] = socket.socket(fileno=fd)
        return worker

    def kill(self, worker: Worker) -> None:
        before = worker.ending
        super().kill(worker)
        if not before:
            request = channel.decode_request(self._fork_server.recv(channel.MAX_REQUEST))
            assert request == channel.Kill(worker.number)
            self.killed.append(worker.number)

    def say(self, *messages: channel.FromWorker, number: int = 1) -> None:
        """Have a worker send messages, and the supervisor read them."""
        for message in messages:
            self.ends[number].send(channel.encode(message))
        for _ in messages:
            for worker in self.workers:
                if worker.number == number:
                    self.listen(worker)

    def end_fork_server(self) -> None:
        """Have the fork server exit without a word."""
        self._fork_server.close()
        self.reap()

    def exit(self, number: int = 1, code: int = os.EX_OK) -> None:
        """Have the fork server report that a worker has exited."""
        self._fork_server.send(channel.encode(channel.Exited(number, code)))
        self.reap()
