"""Compiling programs and models for workers, in processes that a worker cannot influence.

A worker is confined and writes no file, so it cannot leave machine code for the next one. To have
something compiled, it writes it to memory that it shares with the fork server, and sends a request.
For each request the fork server forks a *cache writer*, which forks a *compiler*. The compiler is
confined like a worker, receives only the bytes of the request, and writes its result to a pipe. The
cache writer copies the result without reading it, stores it under a digest of the request's bytes,
and passes it to the worker. So a program that compromises its compiler affects only itself.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from potash_firmware.apu.config import Config
from potash_firmware.apu.confined import close_others, confine_compiler
from potash_firmware.apu.inference import preload
from potash_firmware.apu.process import die_with_parent, yield_to_others
from potash_firmware.mailbox.shared import SharedMemory

if TYPE_CHECKING:
    from potash_device.cache import Store
    from potash_device.vta.config import Config as CoreConfig

log = logging.getLogger(__name__)

EXCHANGE = 128 << 20
"""Bytes of a request or of an answer; pages that are never written cost nothing."""

_REQUEST = struct.Struct("<IIq")
"""The kind of work, the length of its bytes, and a number that belongs to them."""
_ANSWER = struct.Struct("<iI")
"""How it went, and how many bytes there are: the result, or a sentence."""

_SOURCE_OF_FAILURE = b"\x01"

_running_models = count()
"""Workers that have said so, in the fork server."""


class RequestKind(IntEnum):
    """What can be asked for."""

    PROGRAM = 1
    """Machine code of a program: its instructions, and the index of its entry."""
    MODEL = 2
    """A model's partitions for the tensor accelerator: its bytes."""
    COUNTED_PROGRAM = 4
    """The same, with code that counts instructions by kind."""
    RUNS_MODELS = 5
    """Nothing, and no answer: this worker imports what models take."""
    KERNELS = 3
    """The tensor accelerator's own code, which depends on no untrusted input."""


class Handler(NamedTuple):
    """How a kind of request is served."""

    compile: Callable[[Config, bytes, int], bytes]
    """Called in the compiler. The worker gets the sentence of a `Refused` that it raises."""
    entry: Callable[[Config, bytes, int], tuple[Store, str]]
    """The store and the name under which the result is cached."""


class Refused(Exception):
    """It cannot be made, one sentence."""


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
    """The worker's side: `end` leads to the fork server, `exchange` is memory that it shares."""

    def __init__(self, config: Config, end: socket.socket, exchange: SharedMemory) -> None:
        self._config = config
        self._end = end
        self._exchange = exchange

    @property
    def descriptors(self) -> tuple[int, int]:
        """What a worker must keep for this."""
        return self._end.fileno(), self._exchange.fd

    def runs_models(self) -> None:
        """Report that this worker imports what models take; the fork server may for later ones."""
        with suppress(OSError):
            self._end.send(_REQUEST.pack(RequestKind.RUNS_MODELS, 0, 0), socket.MSG_NOSIGNAL)

    def program(self, code: bytes, entry: int, by_kind: bool) -> bytes:
        """The object file of a program. Raises EngineUnavailable."""
        from potash_firmware.bpf import EngineUnavailable

        try:
            return self.make(
                RequestKind.COUNTED_PROGRAM if by_kind else RequestKind.PROGRAM, code, entry
            )
        except Refused as error:
            raise EngineUnavailable(str(error)) from None

    def model(self, model: bytes) -> None:
        """Have the partitions of a model at hand; whoever loads it compiles what is missing."""
        from potash_firmware.apu.models import core_config
        from potash_firmware.tflite import partition_cache

        store, name = _cache_entry_of_model(self._config, model, 0)
        contents = store.load(name)
        if contents is None:
            # Finding schedules takes the tensor accelerator's clock, which is compiled code too.
            self.kernels(core_config(self._config.vta))
            try:
                contents = self.make(RequestKind.MODEL, model, 0)
            except Refused as error:
                log.debug("a model is compiled in its worker: %s", error)
                return
        partition_cache.lend(name, contents)

    def kernels(self, core: CoreConfig) -> None:
        """Have the tensor accelerator's code compiled and kept, if it can be kept."""
        from potash_device.vta import warming
        from potash_device.vta.fast import compiling

        if compiling.cache_folder() is not None and not warming.is_warm(core):
            try:
                self.make(RequestKind.KERNELS, b"", 0)
            except Refused as error:
                log.warning("the tensor accelerator's code is compiled in its worker: %s", error)

    def make(self, kind: RequestKind, contents: bytes, number: int) -> bytes:
        """Have something made. Raises Refused."""
        if len(contents) > self._exchange.size:
            raise Refused(f"{len(contents)} bytes are too many to compile")
        self._exchange.view[: len(contents)] = contents
        try:
            self._end.send(_REQUEST.pack(kind, len(contents), number), socket.MSG_NOSIGNAL)
            answer = self._end.recv(_ANSWER.size)
        except OSError as error:
            raise Refused(f"nobody compiles: {error.strerror}") from None
        if len(answer) != _ANSWER.size:
            raise Refused("nobody compiles: the fork server is gone")
        status, length = _ANSWER.unpack(answer)
        result = bytes(self._exchange.view[:length])
        self._exchange.discard(0, self._exchange.size)
        if status:
            raise Refused(result.decode(errors="replace") or "the compiler's process was lost")
        return result


class CompileConnection:
    """The fork server's side of one worker's compiler."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._mine, self.its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = SharedMemory(EXCHANGE, "potash-exchange")
        self.exchange = os.dup(memory.fd)
        # Mapped in the fork server, it would be in every worker that is forked from now on.
        memory.close()
        self.busy = False
        self._next = b""
        """A request that came before the last one's cache writer was reaped."""

    def fileno(self) -> int:
        return self._mine.fileno()

    def handed_over(self) -> None:
        self.its.close()

    @property
    def closed(self) -> bool:
        return self._mine.fileno() < 0

    def close(self) -> None:
        """No more requests are served; a running cache writer has this side, too."""
        if self.closed:
            return
        self._mine.close()
        self.its.close()
        os.close(self.exchange)

    def serve(self) -> int | None:
        """Take a request and start its cache writer; its pid, None if there is none to wait for.

        Raises EOFError when the worker has closed its end.
        """
        data = self._mine.recv(_REQUEST.size + 1)
        if not data:
            raise EOFError
        if len(data) != _REQUEST.size:
            return None  # only a compromised worker does that
        if _REQUEST.unpack(data)[0] == RequestKind.RUNS_MODELS:
            if next(_running_models):  # this is the second one, and there will be others
                preload()
            return None
        if self.busy:
            self._next = data  # its cache writer has answered, and is not reaped yet
            return None
        return self._start(data)

    def _start(self, data: bytes) -> int | None:
        fork_server = os.getpid()
        if _REQUEST.unpack(data)[0] in (RequestKind.MODEL, RequestKind.KERNELS):
            preload()  # for its processes, and for the workers after them
        try:
            pid = os.fork()
        except OSError:
            self.lost()
            return None
        if pid == 0:
            code = 1
            try:
                die_with_parent(fork_server)
                yield_to_others()
                keep = (self._mine.fileno(), self.exchange)
                close_others(keep)
                self._compile(*_REQUEST.unpack(data))
                code = 0
            except BrokenPipeError:
                pass  # who has asked is gone
            except Exception:
                log.exception("a program could not be compiled")
            finally:
                sys.stderr.flush()
                os._exit(code)
        self.busy = True
        return pid

    def ended(self, code: int) -> int | None:
        """The cache writer has ended; the pid of the next one, if there is another request."""
        self.busy = False
        data, self._next = self._next, b""
        if data and not self.closed:
            return self._start(data)
        if code:
            self.lost()
        return None

    def lost(self) -> None:
        """Report to the worker that there is no result."""
        with suppress(OSError):
            self._mine.send(_ANSWER.pack(1, 0), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _compile(self, kind: int, length: int, number: int) -> None:
        """In the cache writer: have it compiled, store it, pass it to the worker."""
        if kind == RequestKind.KERNELS:
            self._compile_kernels()
            return
        handler = HANDLERS[RequestKind(kind)]
        exchange = SharedMemory.adopt(self.exchange, EXCHANGE)
        # What the worker does to it from now on changes nothing.
        contents = bytes(exchange.view[:length])
        if len(contents) != length:
            raise ValueError("a request is longer than its memory")
        failed, result = _compiled(handler, self._config, contents, number)
        if not failed:
            store, name = handler.entry(self._config, contents, number)
            store.keep(name, result)
        if len(result) > exchange.size:
            failed, result = True, b"what was compiled is too large"
        exchange.view[: len(result)] = result
        self._mine.send(_ANSWER.pack(failed, len(result)), socket.MSG_NOSIGNAL)

    def _compile_kernels(self) -> None:
        from potash_device.vta import warming
        from potash_firmware.apu.models import core_config

        warming.warm(core_config(self._config.vta))
        self._mine.send(_ANSWER.pack(0, 0), socket.MSG_NOSIGNAL)


def _compiled(handler: Handler, config: Config, contents: bytes, number: int) -> tuple[bool, bytes]:
    """What a separate confined compiler returns: whether it failed, and the result or why."""
    limits = config.limits
    reader, writer = os.pipe2(os.O_CLOEXEC)
    cache_writer = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(cache_writer)
            confine_compiler(limits, [writer])
            _write(writer, _outcome(handler, config, contents, number))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        said = _read(reader, time.monotonic() + limits.compile_seconds)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if said is None:
        return True, f"it takes more than {limits.compile_seconds:g} s".encode()
    code = -os.waitstatus_to_exitcode(status)
    if not said or code:  # it may have said a part
        name = signal.Signals(code).name if code in set(signal.Signals) else f"status {-code}"
        return True, f"the compiler was ended by {name}".encode()
    return said[:1] == _SOURCE_OF_FAILURE, said[1:]


def _outcome(handler: Handler, config: Config, contents: bytes, number: int) -> bytes:
    try:
        return b"\x00" + handler.compile(config, contents, number)
    except Refused as error:
        return _SOURCE_OF_FAILURE + str(error).encode()
    except MemoryError:
        return _SOURCE_OF_FAILURE + b"it takes too much memory"


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
