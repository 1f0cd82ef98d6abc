"""The client: what a virtual machine does to a device, for drivers and tests in user space.

It speaks as QEMU's client does: every command but a posted write waits for its reply, and memory is
shared as sealed memfds.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification".
"""

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from pyvfio_user import dma_client, payloads
from pyvfio_user.channel import Channel, VfioUserError
from pyvfio_user.connection import MAX_MSG_FDS
from pyvfio_user.descriptors import close_all
from pyvfio_user.mapped import MappedRegion
from pyvfio_user.migration import (
    DeviceState,
    Feature,
    FeatureFlags,
    FeatureMessage,
    LoggingControl,
    LoggingReport,
    MigrationData,
    MigrationFlags,
    MigrationStates,
    State,
)
from pyvfio_user.protocol import (
    DEFAULT_MAX_DMA_MAPS,
    DEFAULT_MAX_MSG_FDS,
    DEFAULT_MAX_TRANSFER,
    MAJOR_VERSION,
    MINOR_VERSION,
    Command,
    DmaFlags,
    DmaUnmapFlags,
    IrqSetFlags,
    ProtocolError,
    RegionFlags,
    Structure,
)

S = TypeVar("S", bound=Structure)

PIECE = 1 << 16
"""Bytes of state in one message, for every server."""


class MigrationCommands:
    """The commands of one client: each raises VfioUserError, as the client's other ones do.

    `command` sends one and gives its reply's payload; `broken` makes the error of a server that
    does not speak the protocol.
    """

    def __init__(
        self, command: Callable[[Command, bytes], bytes], broken: Callable[[int, str], OSError]
    ) -> None:
        self._command = command
        self._broken = broken

    def flags(self) -> MigrationFlags:
        """The device's migration states; EINVAL if it cannot be migrated."""
        found = self._get(Feature.MIGRATION, MigrationStates.RECORD.size)
        return MigrationFlags(self._decode(MigrationStates, found).flags)

    def supports(self, feature: Feature, methods: FeatureFlags) -> bool:
        """True if the device has a feature and can GET it, SET it, or both."""
        try:
            self._feature(feature | methods | FeatureFlags.PROBE, b"")
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        return True

    @property
    def state(self) -> State:
        """The state that the device is in."""
        found = self._get(Feature.MIG_DEVICE_STATE, DeviceState.RECORD.size)
        return State(self._decode(DeviceState, found).state)

    def enter(self, state: State) -> None:
        """Have the device in another state, however long it takes to get there."""
        self._set(Feature.MIG_DEVICE_STATE, DeviceState(state).encode())

    def read(self, size: int = PIECE) -> bytes:
        """The next bytes of the state; fewer than `size` where these are the last."""
        request = MigrationData(MigrationData.RECORD.size + size, size).encode()
        found = self._decode(MigrationData, self._command(Command.MIG_DATA_READ, request))
        if not len(found.data) == found.size <= size:
            reason = f"{len(found.data)} bytes of state come as {found.size}"
            raise self._broken(errno.EPROTO, reason)
        return found.data

    def write(self, data: bytes) -> None:
        """The next bytes of a state."""
        size = MigrationData.RECORD.size + len(data)
        self._command(Command.MIG_DATA_WRITE, MigrationData(size, len(data), data).encode())

    def save(self) -> bytes:
        """Stop the device, and read its whole state; it stays in STOP_COPY."""
        self.enter(State.STOP_COPY)
        pieces = [self.read()]
        while len(pieces[-1]) == PIECE:
            pieces.append(self.read())
        return b"".join(pieces)

    def load(self, state: bytes) -> None:
        """Have the device go on from a state that was saved."""
        self.enter(State.RESUMING)
        for at in range(0, len(state), PIECE):
            self.write(state[at : at + PIECE])
        self.enter(State.RUNNING)

    def start_log(self, page_size: int, ranges: Sequence[tuple[int, int]] = ()) -> int:
        """Have the device log which pages it writes, of ranges (address, length) or of all memory.

        Gives the size of a page that it takes.
        """
        control = LoggingControl(page_size, tuple(ranges))
        reply = self._set(Feature.DMA_LOGGING_START, control.encode())
        return self._decode(LoggingControl, reply).page_size

    def stop_log(self) -> None:
        """Have the device log nothing any more."""
        self._set(Feature.DMA_LOGGING_STOP, b"")

    def written(self, address: int, length: int, page_size: int = 4096) -> list[int]:
        """The addresses of the pages of a range that were written since the last time."""
        size = -(-length // page_size // 64) * 8 + 8
        report = LoggingReport(address, length, page_size).encode()
        reply = self._get(Feature.DMA_LOGGING_REPORT, len(report) + size, report)
        bits = int.from_bytes(self._decode(LoggingReport, reply).bitmap, "little")
        return [address + at * page_size for at in range(bits.bit_length()) if bits >> at & 1]

    def _decode(self, kind: type[S], payload: bytes) -> S:
        try:
            return kind.decode_head(payload)
        except ProtocolError as error:
            raise self._broken(errno.EPROTO, str(error)) from None

    def _get(self, feature: Feature, size: int, data: bytes = b"") -> bytes:
        """A feature's data, of up to `size` bytes."""
        return self._feature(feature | FeatureFlags.GET, data, size)

    def _set(self, feature: Feature, data: bytes) -> bytes:
        return self._feature(feature | FeatureFlags.SET, data, len(data))

    def _feature(self, flags: int, data: bytes, size: int = 0) -> bytes:
        """The data of the reply, of up to `size` bytes."""
        request = FeatureMessage(FeatureMessage.RECORD.size + size, flags, data)
        reply = self._command(Command.DEVICE_FEATURE, request.encode())
        return reply[FeatureMessage.RECORD.size :]


__all__ = ["DEFAULT_TIMEOUT", "Client", "VfioUserError"]

DEFAULT_TIMEOUT = 5.0
"""Seconds that a command may take; QEMU waits as long."""

_CAPABILITIES = {
    "max_msg_fds": MAX_MSG_FDS,
    "max_data_xfer_size": DEFAULT_MAX_TRANSFER,
    "max_dma_maps": DEFAULT_MAX_DMA_MAPS,
    "write_multiple": True,
}
_Info = TypeVar("_Info", payloads.DeviceInfo, payloads.RegionInfo, payloads.IrqInfo)


class Client:
    """Talks to the server at the socket `path`, once entered as a context manager.

    With `twin_socket` it offers to take the server's commands at a second socket. It answers them
    while it waits for a reply of its own, and in `answer`.

    Every method raises VfioUserError: with the errno of the server's reply, ETIMEDOUT when there is
    none within `timeout` seconds, ECONNRESET when the server is gone, and EPROTO when it does not
    speak the protocol. After the last three the connection is closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = DEFAULT_TIMEOUT,
        twin_socket: bool = False,
    ) -> None:
        self._channel = Channel(path, timeout)
        self._wants_twin = twin_socket
        self._max_msg_fds = DEFAULT_MAX_MSG_FDS
        self.capabilities: dict[str, Any] = {}
        """The server's, once negotiated."""
        self.migration = MigrationCommands(self._channel.command, self._channel.broken)
        """The commands by which a device's state is moved, and its writes are logged."""

    def __enter__(self) -> Self:
        """Connect. Raises OSError where nobody listens."""
        self._channel.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The server's socket."""
        return self._channel.path

    def close(self) -> None:
        """Leave; the server gives up our memory and eventfds by itself."""
        self._channel.close()

    def negotiate(self) -> payloads.Version:
        """Agree on a version: the first thing to do. The server attaches the device by it."""
        twin = {"twin_socket": {"supported": True}} if self._wants_twin else {}
        proposed = payloads.Version(MAJOR_VERSION, MINOR_VERSION, {**_CAPABILITIES, **twin})
        reply, fds = self._channel.command_fds(Command.VERSION, proposed.encode())
        agreed = self._channel.decode(payloads.Version, reply)
        try:
            self._channel.twin = dma_client.take_twin_socket(agreed.capabilities, fds)
            if agreed.major != MAJOR_VERSION or agreed.minor > MINOR_VERSION:
                raise ProtocolError(f"the server speaks version {agreed.major}.{agreed.minor}")
            self._max_msg_fds = max(1, agreed.limit("max_msg_fds", DEFAULT_MAX_MSG_FDS))
            self._channel.max_transfer = agreed.limit("max_data_xfer_size", DEFAULT_MAX_TRANSFER)
        except ProtocolError as error:
            raise self._channel.broken(errno.EPROTO, str(error)) from None
        finally:
            close_all(fds)
        self.capabilities = agreed.capabilities
        return agreed

    @property
    def max_transfer(self) -> int:
        """Bytes that the server takes in one access to a region."""
        return self._channel.max_transfer

    def device_info(self) -> payloads.DeviceInfo:
        """The device's numbers of regions and of kinds of interrupt."""
        return self._ask(
            Command.DEVICE_GET_INFO, payloads.DeviceInfo(payloads.DeviceInfo.RECORD.size)
        )

    def region_info(self, index: int) -> payloads.RegionInfo:
        """The size and rights of a region."""
        request = payloads.RegionInfo(payloads.RegionInfo.RECORD.size, index=index)
        return self._ask(Command.DEVICE_GET_REGION_INFO, request)

    def map_region(self, index: int) -> MappedRegion:
        """Map the shared part of a region; the caller closes the mapping. Raises VfioUserError with
        ENODEV if no part is shared."""
        request = payloads.RegionInfo(payloads.RegionInfo.RECORD.size, index=index)
        reply, fds = self._ask_whole(Command.DEVICE_GET_REGION_INFO, request)
        try:
            info = payloads.RegionInfo.decode_head(reply)
            if not info.flags & RegionFlags.MMAP:
                raise VfioUserError(errno.ENODEV, f"region {index} cannot be mapped")
            areas = payloads.RegionCapabilities.decode(reply).areas
            if len(fds) != 1:
                raise ProtocolError(f"{len(fds)} file descriptors came for a region")
            whole = (payloads.Area(0, info.size),)
            return MappedRegion(fds[0], info, whole if areas is None else areas)
        except ProtocolError as error:
            raise self._channel.broken(errno.EPROTO, str(error)) from None
        finally:
            close_all(fds)

    def region_capabilities(self, index: int) -> payloads.RegionCapabilities:
        """The areas of a region that can be mapped, and its type."""
        request = payloads.RegionInfo(payloads.RegionInfo.RECORD.size, index=index)
        reply, fds = self._ask_whole(Command.DEVICE_GET_REGION_INFO, request)
        close_all(fds)
        return self._channel.decode(payloads.RegionCapabilities, reply)

    def region_io_fds(self, index: int) -> tuple[list[payloads.SubRegion], list[int]]:
        """The parts of a region whose accesses file descriptors report, and those descriptors,
        which the caller closes."""
        request = payloads.RegionIoFds(payloads.RegionIoFds.RECORD.size, index=index)
        reply, fds = self._ask_whole(Command.DEVICE_GET_REGION_IO_FDS, request)
        try:
            sub_regions = payloads.SubRegion.decode_all(reply)
            if any(one.fd_index >= len(fds) for one in sub_regions):
                raise ProtocolError("a sub-region has a file descriptor that did not come")
        except ProtocolError as error:
            close_all(fds)
            raise self._channel.broken(errno.EPROTO, str(error)) from None
        return sub_regions, fds

    def irq_info(self, index: int) -> payloads.IrqInfo:
        """The number of interrupts of a kind, and the operations that they have."""
        return self._ask(
            Command.DEVICE_GET_IRQ_INFO, payloads.IrqInfo(payloads.IrqInfo.RECORD.size, index=index)
        )

    def dma_map(
        self,
        address: int,
        size: int,
        fd: int | None,
        offset: int = 0,
        *,
        readable: bool = True,
        writable: bool = True,
        memory: memoryview | None = None,
    ) -> None:
        """Let the device use `size` bytes of the file `fd` from `offset` on, as `address` on.

        Where it cannot map them, it reaches the bytes of `memory` instead, by messages.
        """
        flags = (DmaFlags.READABLE if readable else 0) | (DmaFlags.WRITABLE if writable else 0)
        request = payloads.DmaMap(payloads.DmaMap.RECORD.size, flags, offset, address, size)
        self._channel.command(Command.DMA_MAP, request.encode(), fds=() if fd is None else (fd,))
        if memory is not None:
            self._channel.windows.add(address, memory[:size], readable=readable, writable=writable)

    def dma_unmap(self, address: int, size: int) -> None:
        """Take all memory back that is mapped inside a range; EINVAL for a part of a window."""
        request = payloads.DmaUnmap(payloads.DmaUnmap.RECORD.size, 0, address, size)
        self._channel.command(Command.DMA_UNMAP, request.encode())
        self._channel.windows.remove(address, size)

    def dma_unmap_all(self) -> None:
        request = payloads.DmaUnmap(payloads.DmaUnmap.RECORD.size, DmaUnmapFlags.ALL, 0, 0)
        self._channel.command(Command.DMA_UNMAP, request.encode())
        self._channel.windows.clear()

    def answer(self, seconds: float, until: int | None = None) -> bool:
        """Do what the server asks, for so long or until a descriptor is readable; whether it is."""
        return self._channel.answer(seconds, until)

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        """`count` bytes at `offset` of a region."""
        request = payloads.RegionAccess(offset, region, count)
        reply = self._channel.decode(
            payloads.RegionData, self._channel.command(Command.REGION_READ, request.encode())
        )
        if len(reply.data) != count:
            raise self._channel.broken(errno.EPROTO, f"{len(reply.data)} bytes came for {count}")
        return reply.data

    def region_write(self, region: int, offset: int, data: bytes, *, posted: bool = False) -> None:
        """Write `data` at `offset` of a region; `posted` writes have no reply and no error."""
        request = payloads.RegionData(offset, region, bytes(data))
        if posted:
            self._channel.send(Command.REGION_WRITE, request.encode(), no_reply=True)
        else:
            self._channel.decode(
                payloads.RegionAccess, self._channel.command(Command.REGION_WRITE, request.encode())
            )

    def region_write_multi(
        self, writes: Sequence[tuple[int, int, bytes]], *, posted: bool = False
    ) -> None:
        """Several writes of at most 8 bytes in one message, each (region, offset, data)."""
        request = payloads.RegionWriteMulti(
            tuple(payloads.RegionData(offset, region, data) for region, offset, data in writes)
        )
        if posted:
            self._channel.send(Command.REGION_WRITE_MULTI, request.encode(), no_reply=True)
        else:
            payload = self._channel.command(Command.REGION_WRITE_MULTI, request.encode())
            self._channel.decode(payloads.RegionWriteMultiReply, payload)

    def set_irqs(self, index: int, start: int, fds: Sequence[int | None]) -> None:
        """Enable interrupts of the kind `index` from `start` on, each with its eventfd or with
        none.

        Goes out in messages of as many eventfds as the server takes, none of which mixes interrupts
        that have one with others.
        """
        for is_eventfd, run in itertools.groupby(fds, lambda fd: fd is not None):
            vectors = list(run)
            for at in range(0, len(vectors), self._max_msg_fds):
                chunk = vectors[at : at + self._max_msg_fds]
                self._set_irqs(
                    IrqSetFlags.DATA_EVENTFD | IrqSetFlags.ACTION_TRIGGER,
                    index,
                    start,
                    len(chunk),
                    [fd for fd in chunk if fd is not None] if is_eventfd else [],
                )
                start += len(chunk)

    def disable_irqs(self, index: int) -> None:
        """Disable all interrupts of the kind `index`."""
        self._set_irqs(IrqSetFlags.DATA_NONE | IrqSetFlags.ACTION_TRIGGER, index, 0, 0, [])

    def control_irqs(self, action: IrqSetFlags, index: int, start: int, count: int) -> None:
        """Mask, unmask or trigger interrupts: `action` is one of `IrqSetFlags.ACTION_*`."""
        self._set_irqs(IrqSetFlags.DATA_NONE | action, index, start, count, [])

    def _set_irqs(
        self, flags: IrqSetFlags, index: int, start: int, count: int, fds: Sequence[int]
    ) -> None:
        request = payloads.SetIrqs(payloads.SetIrqs.RECORD.size, flags, index, start, count)
        self._channel.command(Command.DEVICE_SET_IRQS, request.encode(), fds=fds)

    def device_reset(self) -> None:
        self._channel.command(Command.DEVICE_RESET, b"")

    def _ask(self, command: Command, request: _Info) -> _Info:
        """Send a command whose reply has the form of the request."""
        return self._channel.decode(type(request), self._channel.command(command, request.encode()))

    def _ask_whole(
        self, command: Command, request: payloads.RegionInfo | payloads.RegionIoFds
    ) -> tuple[bytes, list[int]]:
        """The payload of a reply that may be longer than its structure, and its descriptors.

        Asks again with the room that the first reply says is needed.
        """
        for _ in range(2):
            reply, fds = self._channel.command_fds(command, request.encode())
            try:
                needed = type(request).decode_head(reply).argsz
                if len(reply) < needed <= request.argsz:
                    raise ProtocolError(f"{len(reply)} of {needed} bytes came of {command.name}")
            except ProtocolError as error:
                close_all(fds)
                raise self._channel.broken(errno.EPROTO, str(error)) from None
            if needed <= request.argsz:
                return reply, fds
            close_all(fds)
            request = request._replace(argsz=needed)
        raise self._channel.broken(
            errno.EPROTO, f"the server needs more room for each {command.name}"
        )
