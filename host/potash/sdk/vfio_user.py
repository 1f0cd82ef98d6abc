"""A device's vfio-user socket as a transport: attach as QEMU would, drive as a guest would.

vfio-user.rst ("The vfio-user Protocol Specification"), sections on attaching; what happens on the
controller is `potash.sdk.driver`'s.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from nvme_spec.queues import SubmissionEntry
from potash.sdk.driver.controller import Controller
from potash.sdk.driver.memory import BASE_ADDRESS, MAX_TRANSFER, DriverMemory
from potash.sdk.driver.pci import PciFunction
from potash.sdk.errors import (
    CommandTimeout,
    DeviceGone,
    DeviceMisbehaved,
    DeviceNotFound,
    PotashError,
)
from potash.sdk.transport import Completion, Ended, PendingCommand, Request
from pyvfio_user.client import Client, VfioUserError

VECTORS = 2
"""One vector for Admin completions and one for I/O, if the device has two."""

_GONE = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.EBADF})


class VfioUserTransport:
    """A controller that is ready, and all that was opened for it (`resources`, which it owns)."""

    max_transfer = MAX_TRANSFER
    queue_depth = 1
    nsid = None
    block_device = None
    reports_events = True

    def __init__(
        self,
        client: Client,
        function: PciFunction,
        memory: DriverMemory,
        controller: Controller,
        resources: ExitStack,
        *,
        timeout: float,
    ) -> None:
        self._client = client
        self._function = function
        self._memory = memory
        self._controller: Controller | None = controller
        self._resources = resources
        self._timeout = timeout

    def submit(self, request: Request, timeout: float) -> PendingCommand:
        """As `Transport.submit`. After a CommandTimeout or an interrupt the controller is reset."""
        try:
            return Ended(self._execute(request, timeout))
        except PotashError as error:
            return Ended(error)

    def _execute(self, request: Request, timeout: float) -> Completion:
        controller = self._opened()
        out, size = request.data_out, request.data_in_length
        if out:
            size = len(out)
            self._memory.data[:size] = out
        prp1, prp2 = self._memory.prps(size)
        command = SubmissionEntry(
            request.opcode, 0, 0, request.nsid, 0, 0, 0, prp1, prp2, *request.cdws
        )
        try:
            entry = controller.submit(request.admin, command, timeout)
        except VfioUserError as error:
            raise self._lost(error) from error
        except CommandTimeout:
            # The command's buffer is the driver's only one: take it back before it is used again.
            self.reset()
            raise
        except (KeyboardInterrupt, SystemExit):
            with suppress(PotashError):
                self.reset()
            raise
        return Completion(entry.dw0, b"" if out else bytes(self._memory.data[:size]))

    def await_event(self, timeout: float) -> int | None:
        try:
            return self._opened().await_event(timeout)
        except VfioUserError as error:
            raise self._lost(error) from error

    def reset(self) -> None:
        controller = self._opened()
        try:
            with _device_errors():
                controller.start(self._timeout)
        except PotashError:
            self._abandon()
            raise

    def close(self) -> None:
        """Shut the controller down and leave. A device that is gone already is left in peace."""
        controller, self._controller = self._controller, None
        if controller is None:
            return
        with self._resources:
            try:
                with _device_errors():
                    controller.shut_down()
                    self._function.disable()
                    self._client.dma_unmap(BASE_ADDRESS, len(self._memory))
            except PotashError:
                pass  # It was to be left anyway.

    def _opened(self) -> Controller:
        if self._controller is None:
            raise DeviceGone("the device is closed")
        return self._controller

    def _lost(self, error: VfioUserError) -> PotashError:
        lost = _translated(error)
        if isinstance(lost, DeviceGone):
            self._abandon()
        return lost

    def _abandon(self) -> None:
        """Release everything without a word to the device."""
        self._controller = None
        self._resources.close()


def open_vfio_user(path: str, *, timeout: float) -> VfioUserTransport:
    """Attach to the device at the socket `path` and bring its controller to ready.

    Raises DeviceNotFound when no device listens; what was opened is released on any error.
    """
    with ExitStack() as resources:
        try:
            client = resources.enter_context(Client(path))
        except OSError as error:
            raise _not_found(path, error) from error
        memory = DriverMemory()
        resources.callback(memory.close)
        with _device_errors():
            _negotiate(client, path)
            client.dma_map(BASE_ADDRESS, len(memory), memory.shared.fd)
            function = PciFunction(client)
            function.enable()
            eventfds = [_eventfd(resources) for _ in range(min(VECTORS, function.vectors))]
            controller = Controller(function, memory, eventfds)
            resources.callback(controller.release)
            function.enable_interrupts(eventfds)
            controller.start(timeout)
        return VfioUserTransport(
            client, function, memory, controller, resources.pop_all(), timeout=timeout
        )


def require_free(path: str) -> None:
    """See that a device listens at `path` and takes a client, for somebody who says less about it.

    Raises DeviceNotFound where there is none, or it has a client already.
    """
    with ExitStack() as resources:
        try:
            client = resources.enter_context(Client(path))
        except OSError as error:
            raise _not_found(path, error) from error
        with _device_errors():
            _negotiate(client, path)


def _not_found(path: str, error: OSError) -> DeviceNotFound:
    reason = error.strerror or str(error)
    if not path:
        return DeviceNotFound("vfio-user: needs the path of a socket behind the colon")
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return DeviceNotFound(
            f"no device listens at {path}; start one with: potash serve --socket {path}"
        )
    return DeviceNotFound(f"the socket {path} cannot be used: {reason}")


def _negotiate(client: Client, path: str) -> None:
    """Begin the conversation, for which the device takes one client at a time."""
    try:
        client.negotiate()
    except VfioUserError as error:
        # It closes the connection of a further one; a server of another kind lets it wait.
        if error.errno not in (errno.ETIMEDOUT, errno.ECONNRESET):
            raise
        raise DeviceNotFound(
            f"the device at {path} is busy with another client; try again when that has left"
        ) from error


def _eventfd(resources: ExitStack) -> int:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    resources.callback(os.close, fd)
    return fd


@contextmanager
def _device_errors() -> Iterator[None]:
    try:
        yield
    except VfioUserError as error:
        raise _translated(error) from error


def _translated(error: VfioUserError) -> PotashError:
    if error.errno in _GONE:
        return DeviceGone(f"the device is gone: {error.strerror}")
    if error.errno == errno.ETIMEDOUT:
        return DeviceGone(f"the device does not answer any more: {error.strerror}")
    if error.errno == errno.EPROTO:
        return DeviceMisbehaved(f"what listens there does not speak vfio-user: {error.strerror}")
    return DeviceMisbehaved(f"the device refused an access: {error.strerror}")
