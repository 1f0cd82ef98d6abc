"""The fork server: the process that forks workers, and reaps them.

With its first order it imports once what every worker needs, and forks a worker for each: that
takes milliseconds where a fresh interpreter takes a second. It is the workers' parent, so it alone
can kill and reap them without ever hitting another process. It runs no program itself.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from potash_firmware.apu import channel
from potash_firmware.apu.compile_service import EXCHANGE, CompileClient, CompileConnection
from potash_firmware.apu.config import CONFIG_VARIABLE, Config, parse_descriptors
from potash_firmware.apu.inference import preload, preload_operators
from potash_firmware.apu.process import die_with_parent, set_name, yield_to_others
from potash_firmware.confinement import be_undumpable, libraries, missing, stay_readable
from potash_firmware.mailbox.shared import SharedMemory

log = logging.getLogger(__name__)

PROCESS = "potash-fork-srv"

Serve = Callable[[socket.socket, int, CompileClient], None]
"""What a worker does with its end of its channel, for the accelerator with this identifier, and
with who compiles for it."""


class Child(NamedTuple):
    """A worker, and the connection at which it asks."""

    serial: int
    pid: int
    pidfd: int
    connection: CompileConnection


class CacheWriter(NamedTuple):
    """A process that serves a request of a connection."""

    pid: int
    pidfd: int
    connection: CompileConnection


class ForkServer:
    """Owns `control` and the worker processes."""

    def __init__(self, control: socket.socket, serve: Serve, config: Config) -> None:
        self._control = control
        self._serve = serve
        self._config = config
        self._children: dict[int, Child] = {}
        self._cache_writers: list[CacheWriter] = []

    def run(self) -> None:
        """Serve until the service is gone; the kernel then ends the workers with this process."""
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._control, selectors.EVENT_READ)
            while True:
                for key, _ in self._selector.select():
                    match key.data:
                        case Child():
                            self._reap(key.data)
                        case CacheWriter():
                            self._reap_cache_writer(key.data)
                        case CompileConnection():
                            self._asked(key.data)
                        case _ if not self._order():
                            return

    def _order(self) -> bool:
        """Follow one order; False when there will be none any more."""
        data, fds, _, _ = socket.recv_fds(self._control, channel.MAX_REQUEST, 1)
        if not data:
            return False
        match channel.decode_request(data):
            case channel.Spawn(serial, accelerator):
                self._spawn(serial, accelerator, fds[0])
            case channel.Kill(serial):
                child = self._children.get(serial)
                if child is not None:
                    os.kill(child.pid, signal.SIGKILL)
        return True

    def _spawn(self, serial: int, accelerator: int, fd: int) -> None:
        fork_server = os.getpid()
        connection = None
        try:
            connection = CompileConnection(self._config)
            pid = os.fork()
        except OSError as error:  # no more processes: this one's loss must not be the others'
            log.error("a worker cannot be made: %s", error.strerror)
            os.close(fd)
            if connection is not None:
                connection.close()
            self._control.send(channel.encode(channel.Exited(serial, os.EX_OSERR)))
            return
        if pid == 0:
            self._become_worker(fork_server, accelerator, fd, connection)
        os.close(fd)
        connection.handed_over()
        child = Child(serial, pid, os.pidfd_open(pid), connection)
        self._children[serial] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        self._selector.register(connection, selectors.EVENT_READ, connection)

    def _asked(self, connection: CompileConnection) -> None:
        """Start what a worker asks for; one that is gone is reaped elsewhere."""
        if connection.closed:
            return  # its worker has been reaped since this was seen
        try:
            pid = connection.serve()
        except (EOFError, OSError):
            self._selector.unregister(connection)
            return
        self._watch(pid, connection)

    def _watch(self, pid: int | None, connection: CompileConnection) -> None:
        if pid is not None:
            cache_writer = CacheWriter(pid, os.pidfd_open(pid), connection)
            self._cache_writers.append(cache_writer)
            self._selector.register(cache_writer.pidfd, selectors.EVENT_READ, cache_writer)

    def _reap_cache_writer(self, cache_writer: CacheWriter) -> None:
        _, status = os.waitpid(cache_writer.pid, 0)
        self._cache_writers.remove(cache_writer)
        self._selector.unregister(cache_writer.pidfd)
        os.close(cache_writer.pidfd)
        self._watch(
            cache_writer.connection.ended(os.waitstatus_to_exitcode(status)),
            cache_writer.connection,
        )

    def _become_worker(
        self, fork_server: int, accelerator: int, fd: int, connection: CompileConnection
    ) -> None:
        """Never returns: what is below on the stack belongs to the fork server."""
        code = 1
        try:
            die_with_parent(fork_server)
            yield_to_others()
            set_name(channel.process_name(accelerator))
            compiler = CompileClient(
                self._config, connection.its, SharedMemory.adopt(connection.exchange, EXCHANGE)
            )
            with socket.socket(fileno=fd) as end:
                self._serve(end, accelerator, compiler)
            code = 0
        except Exception:
            log.exception("a worker of accelerator %d met a mistake of the firmware", accelerator)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _reap(self, child: Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.serial]
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        with suppress(KeyError):  # it has said by itself that there is nobody any more
            self._selector.unregister(child.connection)
        child.connection.close()
        self._end_abandoned()
        self._control.send(
            channel.encode(channel.Exited(child.serial, os.waitstatus_to_exitcode(status)))
        )

    def _end_abandoned(self) -> None:
        """Let what nobody waits for any more be compiled for the next time, but only so much of
        it."""
        abandoned = [one for one in self._cache_writers if one.connection.closed]
        for cache_writer in abandoned[: -len(self._config.accelerators)]:
            os.kill(cache_writer.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="potash_firmware.apu.fork_server")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--fds", required=True)
    arguments = parser.parse_args()
    be_undumpable()
    config = Config.from_json(os.environ[CONFIG_VARIABLE])
    with socket.socket(fileno=arguments.control) as control:
        run(arguments.parent, control, config, parse_descriptors(arguments.fds))


def run(parent: int, control: socket.socket, config: Config, descriptors: dict[str, int]) -> None:
    """Follow the orders that come at `control`, from the process `parent`, until it is gone."""
    die_with_parent(parent)
    set_name(PROCESS)
    config.log.apply(PROCESS)
    select.select([control], [], [])  # the first order, or that there will be none
    # A service that goes while there is something to say to it has gone nevertheless.
    with suppress(BrokenPipeError, ConnectionResetError):
        if control.recv(1, socket.MSG_PEEK):
            ForkServer(control, _loaded(config, descriptors), config).run()


def _loaded(config: Config, descriptors: dict[str, int]) -> Serve:
    gc.disable()  # until all is there: it stays
    from potash_firmware.apu import worker
    from potash_firmware.bpf import added
    from potash_firmware.bpf.engine import usable

    engine = usable(config.engine)
    for problem in (*added.found().problems, *preload_operators()):
        log.error("%s", problem)
    for lack in missing():
        log.warning("%s", lack)
    if not stay_readable(libraries()):
        preload()

    # What is here now is shared with every worker: the collector must not touch, and so copy, it.
    # To collect first takes a tenth of all this, and leaves holes that workers fill with copies.
    gc.freeze()
    gc.enable()
    return partial(worker.run, config=config, descriptors=descriptors, engine=engine)


if __name__ == "__main__":
    main()
