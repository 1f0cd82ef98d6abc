"""The SDK for asyncio: the same methods, to be awaited, with many commands in flight.

    async with potash.aio.open("vfio-user:/tmp/potash.sock") as device:
        compute = await device.compute_namespace()
        results = await asyncio.gather(*(compute.execute(12, areas) for areas in work))

`submit` and `execute` send their command from the event loop. The other methods are
those of `potash.sdk`, each in a thread whose commands the event loop sends.

NVM Express Base Specification 2.0, section 5.1 (Abort command).
"""

from __future__ import annotations

import asyncio
import os
import threading
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast

from potash import sdk
from potash.sdk.commands import DEFAULT_TIMEOUT, AnyNamespace, Fields
from potash.sdk.compute_namespace import ComputeNamespace, Given
from potash.sdk.driver.controller import LIVENESS_POLL
from potash.sdk.errors import DeviceGone, DeviceNotFound, InvalidRequest, PotashError
from potash.sdk.ioctl import IoctlTransport
from potash.sdk.memory_namespace import Bytes, MemoryNamespace
from potash.sdk.transport import Completion, Ended, PendingCommand, Request
from potash.sdk.vfio_user import CommandInFlight, VfioUserTransport

P = ParamSpec("P")
R = TypeVar("R")
S_co = TypeVar("S_co", covariant=True)
N_co = TypeVar("N_co", bound=AnyNamespace, covariant=True)

QUEUE_DEPTH = 64
THREADS = 64
"""Methods that run in threads at a time; further ones wait."""
ABORT_AGAIN = 0.05
"""Seconds after which a command that has not ended is aborted again: an Abort that the drive
executes before it has fetched the command has no effect."""


class _Driver:
    """The driver over vfio-user: its interrupts are events of the loop."""

    def __init__(self, transport: VfioUserTransport) -> None:
        self.closed = False
        self._transport = transport
        self._free = asyncio.Semaphore(transport.queue_depth)
        self._aborting = asyncio.Lock()
        self._ends: dict[CommandInFlight, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()
        for fd in transport.eventfds:
            self._loop.add_reader(fd, self._interrupted, fd)
        self._tasks = {self._loop.create_task(self._watch())}

    async def carry_out(self, request: Request, timeout: float) -> Completion:
        await self._free.acquire()
        pending = Ended(_closed()) if self.closed else self._transport.submit(request, timeout)
        if not isinstance(pending, CommandInFlight):
            self._free.release()
            return pending.result()
        end = self._ends[pending] = self._loop.create_future()
        end.add_done_callback(lambda _: self._free.release())
        pending.on_end = self._end
        try:
            await asyncio.shield(end)
        except asyncio.CancelledError:
            task = self._loop.create_task(self._abort(pending, end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.shield(task)
            raise
        return pending.result()

    async def close(self) -> None:
        self.closed = True
        self._lose(_closed())
        self._remove_readers()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _abort(self, pending: CommandInFlight, end: asyncio.Future[None]) -> None:
        """Abort a command until it has ended."""
        pause = ABORT_AGAIN
        while not end.done():
            async with self._aborting:  # a controller limits how many are in flight
                answer = self._loop.create_future()
                with suppress(PotashError):
                    self._transport.abort(pending, lambda _: answer.set_result(None))  # noqa: B023
                    await asyncio.wait([end, answer], return_when=FIRST_COMPLETED)
            await asyncio.wait([end], timeout=pause)
            pause *= 2

    def _interrupted(self, fd: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(fd)
        self._handle(self._transport.handle_completions)

    async def _watch(self) -> None:
        """Check that the controller is alive, and end commands at their deadlines."""
        while True:
            await asyncio.sleep(LIVENESS_POLL)
            if self._ends:
                self._handle(self._transport.check)
            for pending in list(self._ends):
                if pending in self._ends and pending.done():
                    self._handle(pending.result)  # which resets the controller
                    self._end(pending)

    def _handle(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (sdk.CommandFailed, sdk.CommandTimeout):
            pass  # of one command, whose task raises it
        except PotashError as error:
            self._lose(error)

    def _lose(self, error: PotashError) -> None:
        """End the commands in flight with an error."""
        if self._transport.controller is None:
            self._remove_readers()
        for pending in list(self._ends):
            pending.outcome = pending.outcome or error
            self._end(pending)

    def _end(self, pending: CommandInFlight) -> None:
        end = self._ends.pop(pending, None)
        if end is not None:
            end.set_result(None)

    def _remove_readers(self) -> None:
        for fd in self._transport.eventfds:
            self._loop.remove_reader(fd)


class _Call:
    """A method that runs in a thread, and the command that it waits for.

    Where it is cancelled, one command is: those that follow stop a job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._command: Future[Completion] | None = None

    def send(
        self, command: Coroutine[Any, Any, Completion], loop: asyncio.AbstractEventLoop
    ) -> Future[Completion]:
        with self._lock:
            self._command = asyncio.run_coroutine_threadsafe(command, loop)
            if self._cancelled:
                self._cancelled = False
                self._command.cancel()
            return self._command

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = self._command is None or not self._command.cancel()


class _Connection:
    """A `Transport` for threads and for the event loop, which alone sends commands."""

    reports_events = False

    def __init__(self, transport: VfioUserTransport | IoctlTransport) -> None:
        self.max_transfer = transport.max_transfer
        self.queue_depth = transport.queue_depth
        self.nsid = transport.nsid
        self.block_device = transport.block_device
        self.carries_cdw4 = transport.carries_cdw4
        self._transport = transport
        self._driver = _Driver(transport) if isinstance(transport, VfioUserTransport) else None
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS)
        self._calls = threading.local()

    def submit(self, request: Request, timeout: float) -> PendingCommand:
        call: _Call | None = getattr(self._calls, "current", None)
        if call is None:
            return self._loop.create_task(self._carry_out(request, timeout))
        return call.send(self._carry_out(request, timeout), self._loop)

    async def _carry_out(self, request: Request, timeout: float) -> Completion:
        if self._driver is not None:
            return await self._driver.carry_out(request, timeout)
        pending = cast("Future[Completion]", self._transport.submit(request, timeout))
        return await asyncio.wrap_future(pending)

    def await_event(self, timeout: float) -> int | None:
        raise InvalidRequest("asynchronous events are for potash.sdk.open over vfio-user")

    def reset(self) -> None:
        async def work() -> None:
            self._transport.reset()

        asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def close(self) -> None:
        raise InvalidRequest("a device of potash.aio is closed by the end of its `async with`")

    async def aclose(self) -> None:
        if self._driver is not None:
            await self._driver.close()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._transport.close)

    async def call(self, function: Callable[[], R]) -> R:
        call = _Call()

        def work() -> R:
            self._calls.current = call
            return function()

        future = self._loop.run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait([future])
            future.exception()
            raise


class Wrapped(Generic[S_co]):
    """An object of `potash.sdk` for use in an event loop."""

    def __init__(self, connection: _Connection, wrapped: S_co) -> None:
        self._connection = connection
        self._wrapped = wrapped

    async def call(
        self, function: Callable[Concatenate[S_co, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a method of `potash.sdk`, or any function of its object, in a thread.

        `await device.call(sdk.Device.timing_log)`. Where the task is cancelled, the command that
        the thread waits for is aborted, and the function gets an exception; a job is stopped.
        """
        return await self._connection.call(lambda: function(self._wrapped, *args, **kwargs))


def _method(
    method: Callable[Concatenate[S_co, P], R],
) -> Callable[Concatenate[Wrapped[S_co], P], Coroutine[Any, Any, R]]:
    @wraps(method)
    async def call(self: Wrapped[S_co], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.call(method, *args, **kwargs)

    return call


class _AnyNamespace(Wrapped[N_co]):
    @property
    def nsid(self) -> int:
        """The namespace's identifier."""
        return self._wrapped.nsid


class AsyncNamespace(_AnyNamespace[sdk.Namespace]):
    """A namespace: its blocks."""

    identify = _method(sdk.Namespace.identify)
    read = _method(sdk.Namespace.read)
    write = _method(sdk.Namespace.write)
    flush = _method(sdk.Namespace.flush)


class AsyncMemoryNamespace(_AnyNamespace[MemoryNamespace]):
    """A memory namespace."""

    read = _method(MemoryNamespace.read)
    write = _method(MemoryNamespace.write)
    fill = _method(MemoryNamespace.fill)
    copy = _method(MemoryNamespace.copy)
    copy_file = _method(MemoryNamespace.copy_file)
    flush = _method(MemoryNamespace.flush)


class AsyncComputeNamespace(_AnyNamespace[ComputeNamespace]):
    """A compute namespace."""

    async def execute(
        self, index: int, ranges: int | Sequence[Bytes] = (), **given: Unpack[Given]
    ) -> int:
        """Call `ComputeNamespace.execute`; a program whose task is cancelled is stopped."""
        return (await _task(self._wrapped.submit(index, ranges, **given))).result

    execute_chain = _method(ComputeNamespace.execute_chain)
    identify = _method(ComputeNamespace.identify)
    programs = _method(ComputeNamespace.programs)
    free_index = _method(ComputeNamespace.free_index)
    load = _method(ComputeNamespace.load)
    unload = _method(ComputeNamespace.unload)
    activate = _method(ComputeNamespace.activate)
    deactivate = _method(ComputeNamespace.deactivate)
    create_ranges = _method(ComputeNamespace.create_ranges)
    delete_ranges = _method(ComputeNamespace.delete_ranges)
    range_sets = _method(ComputeNamespace.range_sets)


class AsyncAccelerator(Wrapped[sdk.Accelerator]):
    """An accelerator; `call` has its other methods."""

    run = _method(sdk.Accelerator.run)
    run_again = _method(sdk.Accelerator.run_again)
    wait = _method(sdk.Accelerator.wait)
    start = _method(sdk.Accelerator.start)
    stop = _method(sdk.Accelerator.stop)
    status = _method(sdk.Accelerator.status)
    log = _method(sdk.Accelerator.log)


class AsyncDevice(Wrapped[sdk.Device]):
    """A device. Its methods are those of `sdk.Device`, and raise the same errors.

    Where a task is cancelled, the drive aborts its command (NVMe Abort), and the task ends when the
    command has. Linux's driver has no request for that: there, the task ends at once, the command
    later, and closing the device waits for it.
    """

    identify = _method(sdk.Device.identify)
    read = _method(sdk.Device.read)
    write = _method(sdk.Device.write)
    flush = _method(sdk.Device.flush)
    log_page = _method(sdk.Device.log_page)
    traffic = _method(sdk.Device.traffic)
    reset = _method(sdk.Device.reset)

    def submit(
        self, opcode: int, *, admin: bool = False, **fields: Unpack[Fields]
    ) -> asyncio.Task[Completion]:
        """Send a command: `Device.submit` as a task. Further ones than fit in the queue wait."""
        return _task(self._wrapped.submit(opcode, admin=admin, **fields))

    async def namespace(self, nsid: int | None = None) -> AsyncNamespace:
        """Call `Device.namespace`."""
        return AsyncNamespace(self._connection, await self.call(sdk.Device.namespace, nsid))

    async def memory_namespace(self, nsid: int | None = None) -> AsyncMemoryNamespace:
        """Call `Device.memory_namespace`."""
        found = await self.call(sdk.Device.memory_namespace, nsid)
        return AsyncMemoryNamespace(self._connection, found)

    async def compute_namespace(self, nsid: int | None = None) -> AsyncComputeNamespace:
        """Call `Device.compute_namespace`."""
        found = await self.call(sdk.Device.compute_namespace, nsid)
        return AsyncComputeNamespace(self._connection, found)

    async def accelerator(self, accelerator_id: int | None = None) -> AsyncAccelerator:
        """Call `Device.accelerator`; the end of a job is polled for."""
        found = await self.call(sdk.Device.accelerator, accelerator_id)
        return AsyncAccelerator(self._connection, found)


@asynccontextmanager
async def open(
    target: str, *, timeout: float = DEFAULT_TIMEOUT, queue_depth: int = QUEUE_DEPTH
) -> AsyncIterator[AsyncDevice]:
    """Open a device as `potash.sdk.open` does, and close it at the end of the block.

    Commands that are then in flight end with DeviceGone; through Linux's driver they are waited
    for. The controller's queue may be shorter than `queue_depth`.
    """
    if queue_depth == 1 and not target.startswith(sdk.VFIO_USER_SCHEME):
        queue_depth = 2  # at 1, the ioctl would block the event loop
    opening = asyncio.ensure_future(
        asyncio.to_thread(sdk.open, target, timeout=timeout, queue_depth=queue_depth)
    )
    try:
        opened = await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            opening.result().close()
        raise
    transport = opened.transport
    assert isinstance(transport, VfioUserTransport | IoctlTransport)
    connection = _Connection(transport)
    try:
        device = sdk.Device(connection, timeout=timeout)
        device.target = target
        with suppress(DeviceNotFound):  # and then it is asked for no more
            await connection.call(lambda: device.nsid)
        yield AsyncDevice(connection, device)
    finally:
        await connection.aclose()


def _closed() -> DeviceGone:
    return DeviceGone("the device is closed")


def _task(pending: PendingCommand) -> asyncio.Task[Completion]:
    return cast("asyncio.Task[Completion]", pending)
