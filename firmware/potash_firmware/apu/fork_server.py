"""The fork server: the process that forks workers, and reaps them.

With its first request it imports once what every worker needs, and forks a worker for each request:
that takes milliseconds where a fresh interpreter takes a second. It is the workers' parent, so it
alone can kill and reap them without ever hitting another process. It runs no program itself.
"""

import argparse
import gc
import logging
import os
import select
import selectors
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from potash_device.vta import compiled_code
from potash_firmware.apu import channel
from potash_firmware.apu.compile_service import (
    EXCHANGE,
    CompileClient,
    CompileConnection,
    preload,
    preload_operators,
)
from potash_firmware.apu.config import Config, parse_descriptors
from potash_firmware.apu.process import die_with_parent, fork, set_name, yield_to_others
from potash_firmware.confinement import be_undumpable, libraries, missing, stay_readable
from potash_firmware.mailbox.shared import SharedMemory

log = logging.getLogger(__name__)

PROCESS = "potash-fork-srv"

RunWorker = Callable[[socket.socket, int, CompileClient], None]
"""A worker's main function; it gets its end of its channel, its kind, and its connection to the
compile service."""


class ForkServer:
    """Follows the requests that come through `control`; workers call `run_worker`."""

    def __init__(self, control: socket.socket, run_worker: RunWorker, config: Config) -> None:
        self._control = control
        self._run_worker = run_worker
        self._config = config
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, int] = {}
        """Process IDs, by the workers' numbers."""
        self._cache_writers: dict[int, CompileConnection] = {}
        """The connections for which cache writers work, by process ID."""

    def run(self) -> None:
        """Serve until the service has exited; the kernel then ends the workers, too."""
        self._selector.register(self._control, selectors.EVENT_READ, self._serve)
        while self._control in self._selector.get_map():
            for key, _ in self._selector.select():
                key.data()

    def _serve(self) -> None:
        """Follow one request."""
        data, fds, _, _ = socket.recv_fds(self._control, channel.MAX_REQUEST, 1)
        if not data:
            self._selector.unregister(self._control)
            return
        match channel.decode_request(data):
            case channel.Spawn(number, kind):
                self._spawn(number, kind, fds[0])
            case channel.LoadQueries():
                _load_queries()
            case channel.Kill(number) if number in self._workers:
                os.kill(self._workers[number], signal.SIGKILL)

    def _spawn(self, number: int, kind: int, channel_fd: int) -> None:
        connection = None
        try:
            connection = CompileConnection(self._config)
            pid = fork(partial(self._become_worker, kind, channel_fd, connection))
        except OSError as error:  # no more processes: other workers must not be lost
            log.error("a worker cannot be forked: %s", error.strerror)
            if connection is not None:
                connection.close()
            self._report_exit(number, os.EX_OSERR)
            return
        finally:
            os.close(channel_fd)
        connection.close_worker_socket()
        self._workers[number] = pid
        serve = partial(self._serve_compilation, connection)
        self._selector.register(connection, selectors.EVENT_READ, serve)
        self._watch(pid, partial(self._worker_exited, number, connection))

    def _become_worker(self, kind: int, channel_fd: int, connection: CompileConnection) -> None:
        yield_to_others()
        set_name(channel.process_name(kind))
        exchange = SharedMemory.adopt(connection.exchange, EXCHANGE)
        compiler = CompileClient(self._config, connection.worker_socket, exchange)
        with socket.socket(fileno=channel_fd) as opened:
            self._run_worker(opened, kind, compiler)

    def _serve_compilation(self, connection: CompileConnection) -> None:
        """Start what a worker requests; a worker that has exited is reaped elsewhere."""
        if connection.closed:
            return  # its worker has been reaped since the selector saw the request
        try:
            self._watch_cache_writer(connection.serve(), connection)
        except (EOFError, OSError):
            self._selector.unregister(connection)

    def _watch_cache_writer(self, pid: int | None, connection: CompileConnection) -> None:
        if pid is not None:
            self._cache_writers[pid] = connection
            self._watch(pid, partial(self._cache_writer_exited, pid))

    def _cache_writer_exited(self, pid: int, code: int) -> None:
        connection = self._cache_writers.pop(pid)
        self._watch_cache_writer(connection.ended(code), connection)

    def _worker_exited(self, number: int, connection: CompileConnection, code: int) -> None:
        del self._workers[number]
        with suppress(KeyError):  # it may have closed its end before
            self._selector.unregister(connection)
        connection.close()
        self._end_abandoned()
        self._report_exit(number, code)

    def _report_exit(self, number: int, code: int) -> None:
        self._control.send(channel.encode(channel.Exited(number, code)))

    def _end_abandoned(self) -> None:
        """End compilations of workers that have exited, except the last few, for later use."""
        abandoned = [pid for pid, connection in self._cache_writers.items() if connection.closed]
        kept = max(1, len(self._config.accelerators))
        for pid in abandoned[: max(0, len(abandoned) - kept)]:
            os.kill(pid, signal.SIGKILL)

    def _watch(self, pid: int, exited: Callable[[int], None]) -> None:
        """Have `exited` called with a child's exit code, or its signal's number negated."""
        pidfd = os.pidfd_open(pid)

        def reap() -> None:
            _, status = os.waitpid(pid, 0)
            self._selector.unregister(pidfd)
            os.close(pidfd)
            exited(os.waitstatus_to_exitcode(status))

        self._selector.register(pidfd, selectors.EVENT_READ, reap)


def main() -> None:
    parser = argparse.ArgumentParser(prog="potash_firmware.apu.fork_server")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--fds", required=True)
    arguments = parser.parse_args()
    be_undumpable()
    die_with_parent(arguments.parent)
    descriptors = parse_descriptors(arguments.fds)
    with socket.socket(fileno=arguments.control) as control:
        run(control, Config.adopt(descriptors["config"]), descriptors)


def run(control: socket.socket, config: Config, descriptors: dict[str, int]) -> None:
    """Follow the requests that come through `control`, until its other end is closed."""
    set_name(PROCESS)
    config.log.apply(PROCESS)
    select.select([control], [], [])  # the first request, or that there will be none
    # The service may have exited while an exit is to be reported to it.
    with suppress(BrokenPipeError, ConnectionResetError):
        if control.recv(1, socket.MSG_PEEK):
            ForkServer(control, _load_worker(config, descriptors), config).run()


def _load_worker(config: Config, descriptors: dict[str, int]) -> RunWorker:
    """Import what every worker needs."""
    gc.disable()  # until everything is imported: it stays
    from potash_firmware.apu import worker_process
    from potash_firmware.bpf import added
    from potash_firmware.bpf.engine import usable

    if config.extensions:
        _extend(config.extensions)
    engine = usable(config.engine)
    for problem in (*added.found().problems, *preload_operators()):
        log.error("%s", problem)
    for lack in missing():
        log.warning("%s", lack)
    if not stay_readable(libraries()):
        preload()
    # A worker cannot make it, and would compile the simulator anew for each model.
    with suppress(ImportError):  # then no model can run
        compiled_code.STORE.directory()

    # What is here now is shared with every worker: the collector must not touch, and so copy, it.
    # Collecting first would take a tenth of this time, and leave holes that workers fill with
    # copies.
    gc.freeze()
    gc.enable()
    return partial(worker_process.run, config=config, descriptors=descriptors, engine=engine)


def _load_queries() -> None:
    """Import what queries of tables need; memory is the C library's, which a limit counts."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    gc.disable()
    try:
        import pyarrow.acero  # each worker would import it for its first groups

        # Here and not by the engine: a host that combines results has a process of its user, in
        # which Arrow crashes if there are more threads later than when it first aggregated.
        pyarrow.set_cpu_count(1)
        pyarrow.set_io_thread_count(1)
        from potash_firmware import tables  # noqa: F401
    except ImportError as error:
        log.error("queries cannot run: %s", error)
    gc.freeze()
    gc.enable()


def _extend(sources: Sequence[str]) -> None:
    """Import the extensions, which the RPU has imported, too."""
    from potash_firmware import extension_files, extensions

    try:
        extensions.programs = extension_files.load(sources)
    except extensions.ExtensionError as error:
        log.error("programs have nothing of it: %s", error)


if __name__ == "__main__":
    main()
