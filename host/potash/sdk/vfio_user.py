"""A device's vfio-user socket as a transport: a client like QEMU, and a driver like a guest's.

vfio-user.rst ("The vfio-user Protocol Specification"), sections on attaching; what happens on the
controller is `potash.sdk.driver`'s.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from csd_spec.opcodes import ClockOpcode
from nvme_spec.commands import Abort
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.queues import CompletionEntry, SubmissionEntry
from nvme_spec.status import Status
from potash.sdk import errors
from potash.sdk.driver.controller import Controller, OnEnd, admin_command, command_timeout
from potash.sdk.driver.memory import BASE_ADDRESS, MAX_TRANSFER, DriverMemory
from potash.sdk.driver.pci import PciFunction, translated
from potash.sdk.transport import Completion, Ended, HostClock, PendingCommand, Request
from pyvfio_user.client import Client, VfioUserError
from pyvfio_user.migration import State
from pyvfio_user.protocol import PciIrq

VECTORS = 2
"""One vector for Admin completions and one for I/O, if the device has two."""
STEPPED_POLL = 0.01
"""Seconds to wait for an event that the drive has raised by the time of its next completion."""
LEAVING = 0.5
"""Seconds for which a client that is turned away tries again, as the one before may be leaving.
Where a process has used io_uring, as QEMU does, Linux closes its sockets only about 30 ms after it
has ended."""
LEAVING_POLL = 0.02
"""Seconds between two attempts."""


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _reset_if_interrupted(
    method: Callable[Concatenate[VfioUserTransport, _Arguments], _Result],
) -> Callable[Concatenate[VfioUserTransport, _Arguments], _Result]:
    """Reset the controller after an interrupt of `method`, so that commands can be sent again."""

    @wraps(method)
    def guarded(
        self: VfioUserTransport, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        try:
            return method(self, *args, **kwargs)
        except (KeyboardInterrupt, SystemExit):
            with suppress(errors.PotashError):
                self.reset()
            raise

    return guarded


@dataclass(eq=False)
class VfioUserTransport:
    """A controller that is ready, and the resources that it owns."""

    max_transfer = MAX_TRANSFER
    nsid = None
    block_device = None
    reports_events = True
    carries_cdw4 = True

    client: Client
    function: PciFunction
    memory: DriverMemory
    controller: Controller | None
    eventfds: list[int]
    resources: ExitStack
    timeout: float
    queue_depth: int
    clock: HostClock | None = None
    """The host's clock, for a drive whose clock is advanced by `_advance`."""
    _drive_now: int = field(default=0, init=False)
    _in_flight: dict[int, CommandInFlight] = field(default_factory=dict, init=False)
    """The commands by their buffers' numbers."""

    @_reset_if_interrupted
    def submit(self, request: Request, timeout: float) -> PendingCommand:
        """Implement `Transport.submit`; a CommandTimeout or an interrupt resets the controller.

        The reset ends the other commands in flight with Command Aborted By Host.
        """
        try:
            controller = self._opened()
            if self.clock is not None and self._drive_now < self.clock.now:
                self._advance(self.clock.now)
            while len(self._in_flight) == self.queue_depth:
                self.wait(next(iter(self._in_flight.values())))
            slot = next(one for one in range(self.queue_depth) if one not in self._in_flight)
            out, size = request.data_out, request.data_in_length
            if out:
                size = len(out)
                self.memory.buffer(slot, size)[:] = out
            prp1, prp2 = self.memory.prps(slot, size)
            command = SubmissionEntry(
                request.opcode,
                0,
                0,
                request.nsid,
                request.cdw2,
                request.cdw3,
                request.cdw4,
                prp1,
                prp2,
                *request.cdws,
            )
            pending = self._in_flight[slot] = CommandInFlight(self, request, slot, timeout)
            pending.key = controller.submit(request.admin, command, pending.end)
            return pending
        except errors.PotashError as error:
            return Ended(error)

    @_reset_if_interrupted
    def poll(self, pending: CommandInFlight) -> None:
        """Handle completions without waiting; a device that is lost is left to `wait`."""
        with suppress(errors.PotashError):
            self._opened().wait(pending.request.admin, 0.0)

    @_reset_if_interrupted
    def wait(self, pending: CommandInFlight) -> None:
        """Handle completions, or wait for some, at most until a command's deadline."""
        if self.clock is not None and (self._pass_time() or pending.outcome is not None):
            return
        if not self._opened().wait(pending.request.admin, pending.deadline):
            pending.outcome = pending.outcome or command_timeout(pending.timeout)
            # The device may still use the command's buffer: take it back.
            self.reset()

    def handle_completions(self) -> None:
        """Handle the completions that there are. Raises DeviceGone and DeviceMisbehaved."""
        for admin in (True, False):
            self._opened().wait(admin, 0.0)

    def check(self) -> None:
        """Raises DeviceGone for a device that is lost, DeviceMisbehaved for a fatal status."""
        self._opened().check()

    def abort(self, pending: CommandInFlight, on_end: OnEnd) -> None:
        """Send an Abort for a command in flight, and have its completion handled by `on_end`."""
        qid, cid = pending.key
        command = admin_command(AdminOpcode.ABORT, 0, Abort(qid, cid).encode())
        self._opened().submit(True, command, on_end)

    def release(self, slot: int, size: int) -> bytes:
        """Take a command's buffer back; what is in its first `size` bytes."""
        self._in_flight.pop(slot, None)
        return bytes(self.memory.buffer(slot, size))

    @_reset_if_interrupted
    def await_event(self, timeout: float) -> int | None:
        controller = self._opened()
        event = None
        if self.clock is not None and timeout:
            event = controller.await_event(0)
            if event is None:
                self._pass_time()
                timeout = min(timeout, STEPPED_POLL)
        return controller.await_event(timeout) if event is None else event

    def _pass_time(self) -> bool:
        """Handle completions; without any, let time pass up to the next one, and return False."""
        controller = self._opened()
        if controller.wait(True, 0) | controller.wait(False, 0):
            return True
        self._advance(0)
        if self.clock is not None:
            self.clock.now = max(self.clock.now, self._drive_now)
        return False

    def _advance(self, until: int) -> None:
        """Let the drive's clock go on to a time, or for 0 to its next completion. Raises
        CommandFailed (Invalid Command Opcode) by a drive whose clock needs no host."""
        controller = self._opened()
        words = until & 0xFFFF_FFFF, until >> 32, controller.heads, 0, 0, 0
        entry = controller.execute(admin_command(ClockOpcode.ADVANCE, 0, words), self.timeout)
        self._drive_now = entry.dw1 << 32 | entry.dw0

    def move(self, path: str) -> None:
        """Move to the device at the socket `path`, which gets the state of this one.

        Commands in flight complete there. Raises as `attach`; if the other device fails, this one
        continues.
        """
        source = self.client
        with _device_errors():
            state = source.migration.save()
        try:
            self.attach(path, state)
        except errors.PotashError:
            with _device_errors():
                source.migration.enter(State.RUNNING)
            raise
        source.close()

    def attach(self, path: str, state: bytes | None = None) -> None:
        """Continue with the device at the socket `path`, with a given state or the one that it has.
        Raises DeviceNotFound, DeviceGone and DeviceMisbehaved."""
        with ExitStack() as resources, _device_errors():
            client = resources.enter_context(attached(path))
            client.dma_map(BASE_ADDRESS, len(self.memory), self.memory.shared.fd)
            client.set_irqs(PciIrq.MSIX, 0, self.eventfds)
            if state is None:
                client.migration.enter(State.RUNNING)
            else:
                client.migration.load(state)
            self.client = self.function.client = client
            self.resources.push(resources.pop_all())

    def reset(self) -> None:
        controller = self._opened()
        try:
            controller.start(self.timeout)
            self._in_flight.clear()
        except errors.PotashError:
            # There are no queues: release everything without shutting it down.
            self.controller = None
            self.resources.close()
            raise

    def close(self) -> None:
        """Shut the controller down and disconnect; a device that has ended is no error."""
        controller, self.controller = self.controller, None
        if controller is None:
            return
        with self.resources:
            try:
                with _device_errors():
                    controller.shut_down()
                    self.function.disable()
                    self.client.dma_unmap(BASE_ADDRESS, len(self.memory))
            except errors.PotashError:
                pass  # The device was to be left anyway.

    def _opened(self) -> Controller:
        if self.controller is None:
            raise errors.DeviceGone("the device is closed")
        return self.controller


class CommandInFlight:
    """A command in flight, which has buffer number `slot` until it ends."""

    def __init__(
        self, transport: VfioUserTransport, request: Request, slot: int, timeout: float
    ) -> None:
        self.request = request
        self.slot = slot
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.key = 0, 0
        self.outcome: Completion | errors.PotashError | None = None
        self.on_end: Callable[[CommandInFlight], None] = lambda _: None
        self._transport = transport

    def done(self) -> bool:
        if self.outcome is None:
            self._transport.poll(self)
        return self.outcome is not None or time.monotonic() >= self.deadline

    def result(self) -> Completion:
        while self.outcome is None:
            self._transport.wait(self)
        if isinstance(self.outcome, errors.PotashError):
            raise self.outcome
        return self.outcome

    def end(self, entry: CompletionEntry | None) -> None:
        """The command has a completion, or None after a reset."""
        request = self.request
        data = self._transport.release(self.slot, request.data_in_length)
        outcome: Completion | errors.PotashError
        result = 0 if entry is None else entry.dw1 << 32 | entry.dw0
        if entry is None:
            aborted = Status.COMMAND_ABORTED_BY_HOST
            outcome = errors.CommandFailed(request.admin, request.opcode, aborted, csi=request.csi)
        elif entry.status:
            outcome = errors.CommandFailed(
                request.admin,
                request.opcode,
                entry.status,
                dnr=entry.dnr,
                csi=request.csi,
                result=result,
            )
        else:
            outcome = Completion(result, data)
        self.outcome = self.outcome or outcome
        self.on_end(self)


def open_vfio_user(
    path: str,
    *,
    timeout: float,
    queue_depth: int = 1,
    io_queues: int = 1,
    clock: HostClock | None = None,
) -> VfioUserTransport:
    """Connect to the device at the socket `path`, and enable its controller. Raises DeviceNotFound
    when no device listens; what was opened is released on any error."""
    with ExitStack() as resources:
        client = resources.enter_context(attached(path))
        memory = DriverMemory(queue_depth)
        resources.callback(memory.close)
        with _device_errors():
            client.dma_map(BASE_ADDRESS, len(memory), memory.shared.fd)
            function = PciFunction(client)
            function.enable()
            eventfds = [_eventfd(resources) for _ in range(min(VECTORS, function.vectors))]
            controller = Controller(function, memory, eventfds, io_queues)
            resources.callback(controller.release)
            function.enable_interrupts(eventfds)
            controller.start(timeout)
        # Half of a queue is for commands in flight, one of them an Asynchronous Event Request.
        depth = max(1, min(queue_depth, controller.entries // 2 - 1))
        return VfioUserTransport(
            client,
            function,
            memory,
            controller,
            eventfds,
            resources.pop_all(),
            timeout=timeout,
            queue_depth=depth,
            clock=clock,
        )


@contextmanager
def attached(path: str) -> Iterator[Client]:
    """A client of the device at a socket, which has negotiated. Raises as `require_free`."""
    deadline = time.monotonic() + LEAVING
    while True:
        with ExitStack() as resources:
            try:
                client = resources.enter_context(Client(path))
            except OSError as error:
                raise _not_found(path, error) from error
            with _device_errors():
                try:
                    client.negotiate()
                except VfioUserError as error:
                    if error.errno == errno.ECONNRESET and time.monotonic() < deadline:
                        time.sleep(LEAVING_POLL)
                        continue
                    # A server of another kind lets a further client wait.
                    if error.errno not in (errno.ETIMEDOUT, errno.ECONNRESET):
                        raise
                    raise errors.DeviceNotFound(
                        f"the device at {path} is busy with another client; try again when that "
                        "has left"
                    ) from error
            yield client
            return


def require_free(path: str) -> None:
    """Check that a device listens at `path` and takes a client. Raises DeviceNotFound where there
    is none, or it has a client already."""
    with attached(path):
        pass


def _not_found(path: str, error: OSError) -> errors.DeviceNotFound:
    reason = error.strerror or str(error)
    if not path:
        return errors.DeviceNotFound("vfio-user: needs the path of a socket behind the colon")
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return errors.DeviceNotFound(
            f"no device listens at {path}; start one with: potash serve --socket {path}"
        )
    return errors.DeviceNotFound(f"the socket {path} cannot be used: {reason}")


def _eventfd(resources: ExitStack) -> int:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    resources.callback(os.close, fd)
    return fd


@contextmanager
def _device_errors() -> Iterator[None]:
    try:
        yield
    except VfioUserError as error:
        raise translated(error) from error
