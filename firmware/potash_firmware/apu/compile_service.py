"""Compiling programs and models for workers, in processes that a worker cannot influence.

A worker is confined and writes no file, so it cannot leave machine code for the next one. To have
something compiled, it writes it to memory that it shares with the fork server, and sends a request.
For each request the fork server forks a *cache writer*, which forks a *compiler*. The compiler is
confined like a worker, receives only the bytes of the request, and writes its result to a pipe. The
cache writer copies the result without reading it, stores it under a digest of the request's bytes,
and passes it to the worker. So a program that compromises its compiler affects only itself.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, NamedTuple

from potash_firmware import extensions
from potash_firmware.apu.config import Config
from potash_firmware.apu.process import close_others, confine_compiler, fork, yield_to_others
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.datagrams import decode, encode, kinds_of, message
from potash_firmware.mailbox.shared import SharedMemory
from potash_firmware.tflite import OPERATOR_GROUP
from potash_wire.records import BOOL, U64, Stored

if TYPE_CHECKING:
    from potash_device.cache import Store
    from potash_device.vta.config import Config as CoreConfig

log = logging.getLogger(__name__)

EXCHANGE = 128 << 20
"""Bytes of the memory for what is compiled; pages that are never written cost nothing."""

MAX_MESSAGE = 64
"""Bytes of a message on a connection."""

_FAILED = b"\x01"
"""The first byte of what a compiler writes, before the reason."""

_running_models = count()
"""Counts, in the fork server, the workers that run models."""


class RequestKind(IntEnum):
    """The kinds of requests."""

    PROGRAM = 1
    """Machine code of a program: its instructions, and the index of its entry."""
    MODEL = 2
    """A model's partitions for the tensor accelerator: its bytes."""
    COUNTED_PROGRAM = 4
    """The same, with code that counts instructions by kind."""
    RUNS_MODELS = 5
    """Nothing, and no answer: this worker imports what models need."""
    KERNELS = 3
    """The tensor accelerator's own code, which depends on no untrusted input."""


@message(84)
class CompileRequest:
    """Worker to fork server: compile the first `length` bytes of the memory that both share."""

    kind: Annotated[RequestKind, Stored("B")]
    length: U64 = 0
    number: U64 = 0
    """The index of a program's entry."""


@message(85)
class CompileAnswer:
    """Fork server to worker: the memory begins with `length` bytes of the result, or of the reason
    why there is none."""

    failed: BOOL
    length: U64 = 0


class Handler(NamedTuple):
    """The functions that serve a kind of request."""

    compile: Callable[[Config, bytes, int], bytes]
    """Called in the compiler. The worker gets the sentence of a `Refused` that it raises."""
    entry: Callable[[Config, bytes, int], tuple[Store, str]]
    """The store and the name under which the result is cached."""


class Refused(Exception):
    """The request cannot be compiled; the message is a sentence."""


def _program(config: Config, code: bytes, entry: int, by_kind: bool = False) -> bytes:
    from potash_firmware.bpf import EngineUnavailable
    from potash_firmware.bpf.native import compiler

    try:
        return compiler.compile_program(code, entry, by_kind)
    except EngineUnavailable as error:
        raise Refused(str(error)) from None


def _cache_entry_of_program(
    config: Config, code: bytes, entry: int, by_kind: bool = False
) -> tuple[Store, str]:
    from potash_firmware.bpf.native import compiler, engine

    return compiler.OBJECTS, engine.name_of(code, entry, by_kind)


def _model(config: Config, model: bytes, _: int) -> bytes:
    from csd_spec.program import Processor
    from potash_firmware.apu.models import Models
    from potash_firmware.tflite import partition_cache
    from potash_firmware.tflite.validation import ModelError

    try:
        return partition_cache.collected(
            lambda: Models(config.vta).load(memoryview(model), Processor.VTA)
        )
    except ModelError as error:
        raise Refused(str(error)) from None


def _cache_entry_of_model(config: Config, model: bytes, _: int) -> tuple[Store, str]:
    from potash_firmware.apu.models import core_config
    from potash_firmware.tflite import partition_cache
    from potash_firmware.tflite.lowering import Settings

    settings = Settings(core_config(config.vta))
    return partition_cache.MODELS, partition_cache.name_of_model(model, settings)


HANDLERS: Mapping[RequestKind, Handler] = {
    RequestKind.PROGRAM: Handler(_program, _cache_entry_of_program),
    RequestKind.COUNTED_PROGRAM: Handler(
        partial(_program, by_kind=True), partial(_cache_entry_of_program, by_kind=True)
    ),
    RequestKind.MODEL: Handler(_model, _cache_entry_of_model),
}


class CompileClient:
    """The worker's side: `end` leads to the fork server, which shares the memory `exchange`."""

    def __init__(self, config: Config, service: socket.socket, exchange: SharedMemory) -> None:
        self._config = config
        self._socket = service
        self._exchange = exchange

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors that a worker must keep for this."""
        return self._socket.fileno(), self._exchange.fd

    def runs_models(self) -> None:
        """Report that this worker imports what models take; the fork server may for later ones."""
        with suppress(OSError):
            _send(self._socket, CompileRequest(RequestKind.RUNS_MODELS))

    def program(self, code: bytes, entry: int, by_kind: bool) -> bytes:
        """The object file of a program. Raises EngineUnavailable."""
        from potash_firmware.bpf import EngineUnavailable

        kind = RequestKind.COUNTED_PROGRAM if by_kind else RequestKind.PROGRAM
        try:
            return self.compile(kind, code, entry)
        except Refused as error:
            raise EngineUnavailable(str(error)) from None

    def model(self, model: bytes) -> None:
        """Have the partitions of a model compiled; missing ones are compiled when it is loaded."""
        from potash_firmware.apu.models import core_config
        from potash_firmware.tflite import partition_cache

        store, name = _cache_entry_of_model(self._config, model, 0)
        contents = store.load(name)
        if contents is None:
            # Finding schedules takes the tensor accelerator's clock, which is compiled code too.
            self.kernels(core_config(self._config.vta))
            try:
                contents = self.compile(RequestKind.MODEL, model)
            except Refused as error:
                log.debug("a model is compiled in its worker: %s", error)
                return
        partition_cache.lend(name, contents)

    def kernels(self, core: CoreConfig) -> None:
        """Have the tensor accelerator's code compiled and kept, if it can be kept."""
        from potash_device.vta import warming
        from potash_device.vta.fast import compiling

        if compiling.cache_folder() is not None and not warming.is_warm(core):
            log.info("compiling the simulator of the tensor accelerator, once")
            try:
                self.compile(RequestKind.KERNELS, b"")
            except Refused as error:
                log.warning("the tensor accelerator's code is compiled in its worker: %s", error)

    def compile(self, kind: RequestKind, contents: bytes, number: int = 0) -> bytes:
        """The result of a request. Raises Refused."""
        if len(contents) > self._exchange.size:
            raise Refused(f"{len(contents)} bytes are too many to compile")
        self._exchange.view[: len(contents)] = contents
        try:
            _send(self._socket, CompileRequest(kind, len(contents), number))
            data = self._socket.recv(MAX_MESSAGE)
        except OSError as error:
            raise Refused(f"the compile service fails: {error.strerror}") from None
        if not data:
            raise Refused("the compile service has exited")
        answer: CompileAnswer = decode(data, kinds_of(CompileAnswer))
        result = bytes(self._exchange.view[: answer.length])
        self._exchange.discard(0, self._exchange.size)
        if answer.failed:
            raise Refused(result.decode(errors="replace") or "the compiler's process was lost")
        return result


class CompileConnection:
    """The fork server's side of one worker's connection."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._socket, self.worker_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = SharedMemory(EXCHANGE, "potash-exchange")
        self.exchange = os.dup(memory.fd)
        # Mapped in the fork server, it would be in every worker that is forked from now on.
        memory.close()
        self.busy = False
        self._next: CompileRequest | None = None
        """A request that came before the last one's cache writer was reaped."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close_worker_socket(self) -> None:
        """Leave its end to the worker, which has been forked."""
        self.worker_socket.close()

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        """No more requests are served; a running cache writer has this side, too."""
        if self.closed:
            return
        self._socket.close()
        self.worker_socket.close()
        os.close(self.exchange)

    def serve(self) -> int | None:
        """Receive a request and start its cache writer; its pid, None if there is none to wait for.
        Raises EOFError when the worker has closed its end."""
        data = self._socket.recv(MAX_MESSAGE)
        if not data:
            raise EOFError
        try:
            request: CompileRequest = decode(data, kinds_of(CompileRequest))
        except MailboxError:
            return None  # only a compromised worker sends such a thing
        if request.kind is RequestKind.RUNS_MODELS:
            if next(_running_models):  # this is the second one, and there will be others
                preload()
            return None
        if self.busy:
            self._next = request  # its cache writer has answered, and is not reaped yet
            return None
        return self._start(request)

    def _start(self, request: CompileRequest) -> int | None:
        if request.kind in (RequestKind.MODEL, RequestKind.KERNELS):
            preload()  # for its processes, and for the workers after them
        try:
            pid = fork(partial(self._become_cache_writer, request))
        except OSError:
            self.report_loss()
            return None
        self.busy = True
        return pid

    def ended(self, code: int) -> int | None:
        """The cache writer has exited; the pid of the next one, if there is another request."""
        self.busy = False
        request, self._next = self._next, None
        if request is not None and not self.closed:
            return self._start(request)
        if code:
            self.report_loss()
        return None

    def report_loss(self) -> None:
        """Report to the worker that there is no result."""
        with suppress(OSError):
            _send(self._socket, CompileAnswer(failed=True), socket.MSG_DONTWAIT)

    def _become_cache_writer(self, request: CompileRequest) -> None:
        yield_to_others()
        close_others((self._socket.fileno(), self.exchange))
        with suppress(BrokenPipeError):  # the worker has exited
            self._compile(request)

    def _compile(self, request: CompileRequest) -> None:
        """Serve a request in the cache writer: have it compiled, store the result, pass it to the
        worker."""
        if request.kind is RequestKind.KERNELS:
            from potash_device.vta import warming
            from potash_firmware.apu.models import core_config

            warming.warm(core_config(self._config.vta))
            _send(self._socket, CompileAnswer(failed=False))
            return
        handler = HANDLERS[request.kind]
        exchange = SharedMemory.adopt(self.exchange, EXCHANGE)
        # What the worker does to it from now on changes nothing.
        contents = bytes(exchange.view[: request.length])
        if len(contents) != request.length:
            raise ValueError("a request is longer than its memory")
        failed, result = _run_compiler(handler, self._config, contents, request.number)
        if not failed:
            store, name = handler.entry(self._config, contents, request.number)
            store.keep(name, result)
        if len(result) > exchange.size:
            failed, result = True, b"the compiled code is too large"
        exchange.view[: len(result)] = result
        _send(self._socket, CompileAnswer(failed, len(result)))


def _send(receiver: socket.socket, message: CompileRequest | CompileAnswer, flags: int = 0) -> None:
    receiver.send(encode(message), socket.MSG_NOSIGNAL | flags)


def _run_compiler(
    handler: Handler, config: Config, contents: bytes, number: int
) -> tuple[bool, bytes]:
    """The result of a separate confined compiler: True if it failed, and its output or why."""
    limits = config.limits
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def run() -> None:
        confine_compiler(limits, [writer])
        _write(writer, _outcome(handler, config, contents, number))

    pid = fork(run)
    os.close(writer)
    try:
        output = _read(reader, time.monotonic() + limits.compile_seconds)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if output is None:
        return True, f"it takes more than {limits.compile_seconds:g} s".encode()
    code = -os.waitstatus_to_exitcode(status)
    if not output or code:  # it may have written a part
        name = signal.Signals(code).name if code in set(signal.Signals) else f"status {-code}"
        return True, f"the compiler was ended by {name}".encode()
    return output[:1] == _FAILED, output[1:]


def _outcome(handler: Handler, config: Config, contents: bytes, number: int) -> bytes:
    try:
        return b"\x00" + handler.compile(config, contents, number)
    except Refused as error:
        return _FAILED + str(error).encode()
    except MemoryError:
        return _FAILED + b"it takes too much memory"


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _read(fd: int, deadline: float) -> bytes | None:
    """All that comes until the other end is closed; None when that is after the deadline."""
    pieces: list[bytes] = []
    total = 0
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(fd, 1 << 20)
        total += len(piece)
        if not piece or total > EXCHANGE:
            return b"".join(pieces)
        pieces.append(piece)


@cache
def preload() -> None:
    """Import TensorFlow Lite and the tensor accelerator, for all processes forked from this one.

    They take several times the time and memory of all else that a worker imports. So a worker
    imports them itself with its first model, from folders that it may still read.
    """
    gc.disable()
    try:
        import email.parser  # noqa: F401 - the entry points are read with it

        from potash_device.vta import engines  # noqa: F401
        from potash_firmware.apu import models  # noqa: F401
    except ImportError as error:  # jobs with models fail, and no others
        log.error("no model can run: %s", error)
    gc.freeze()
    gc.enable()


def preload_operators() -> tuple[str, ...]:
    """Load the operators of other packages and of extensions, if there are any; what is wrong with
    them, a sentence each.

    A confined process may be unable to read the folders of such a package.
    """
    from importlib import metadata

    if not (extensions.programs.operators or metadata.entry_points(group=OPERATOR_GROUP)):
        return ()
    from potash_firmware.tflite import operators

    return operators.installed().problems
