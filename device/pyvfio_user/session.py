"""Session of a client: its memory, its interrupts, and the table of its commands.

A session has two states, and a table for each: before the version is negotiated there is only
VERSION, and a missing entry is the protocol error; after it, everything else.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification".
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from pyvfio_user import payloads, protocol
from pyvfio_user.connection import MAX_MSG_FDS, Message
from pyvfio_user.device import Device, Region, Waiting, failure_of, wait_for
from pyvfio_user.device_features import DeviceFeatures
from pyvfio_user.dma_messages import DmaMessages
from pyvfio_user.irqs import InterruptLines, Irq
from pyvfio_user.memory import MAX_MAPPINGS, AddressSpace

MAX_TRANSFER = protocol.DEFAULT_MAX_TRANSFER
"""Bytes of data in one REGION_READ or REGION_WRITE."""

_NO_REPLY = int(protocol.MessageFlags.NO_REPLY)
"""A plain number: `&` with an IntFlag costs 0.4 µs, and every message needs it."""
_NO_REGION = Region(0, readable=False, writable=False)
_NO_IRQ = Irq(0, protocol.IrqFlags(0))


class Session:
    """One client of `device`, from its first message to `close`."""

    def __init__(
        self,
        device: Device,
        reply: Callable[[bytes], None],
        max_dma_maps: int = MAX_MAPPINGS,
        messages: DmaMessages | None = None,
        *,
        trust_memory: bool = False,
    ) -> None:
        """`reply` sends a reply that the device has made its message wait for; `messages` are for
        memory that cannot be mapped."""
        self._device = device
        self._reply = reply
        self._messages = messages
        self._regions: Mapping[int, Region] = device.regions
        self._memory = AddressSpace(max_dma_maps, messages, trust_memory=trust_memory)
        self._features = DeviceFeatures(device, self._memory)
        self._capabilities: dict[str, int | bool] = {
            "max_msg_fds": MAX_MSG_FDS,
            "max_dma_maps": max_dma_maps,
            "write_multiple": True,
            "max_data_xfer_size": MAX_TRANSFER,
        }
        """The most important first: a reply has those for which it has room."""
        self._lines = InterruptLines(device.irqs)
        self._attached = False
        self._commands = _OPENING
        self._max_fds = protocol.DEFAULT_MAX_MSG_FDS
        """File descriptors that the client takes with one message."""
        self.fds: Sequence[int] = ()
        """File descriptors to send with the reply that `handle` returned last. They are the
        device's, or closed in `sent`."""
        self._twin: socket.socket | None = None
        """The client's end of the second socket, until it has been sent."""

    def sent(self) -> None:
        """The reply has been sent, and `fds` with it."""
        if self._twin is not None:
            self._twin.close()
            self._twin = None

    @property
    def attached(self) -> bool:
        """True if the version has been negotiated and the device is attached."""
        return self._attached

    def handle(self, message: Message) -> bytes | None:
        """Do what a message asks, and return the reply to send, if it wants one.

        None also where the device is to finish first, after which the reply is sent. Raises
        ProtocolError where there is no sense in going on with this client.
        """
        handler = self._commands.get(message.command)
        if not self._attached and (handler is None or message.flags & _NO_REPLY):
            raise protocol.ProtocolError("the first message must be a VERSION that wants a reply")
        self.fds = ()
        try:
            if handler is None:
                raise OSError(errno.ENOTSUP, f"command {message.command} is not supported")
            answer = handler(self, message)
            payload = answer if isinstance(answer, bytes) else self._advance(answer, message)
            _require_open(self.fds)
        except protocol.ProtocolError:
            failure = errno.EINVAL
            if not self._attached:
                self._reply(protocol.encode_error(message.message_id, message.command, failure))
                raise
        except OSError as error:
            failure = error.errno or errno.EIO
        else:
            if payload is None or message.flags & _NO_REPLY:
                return None
            return protocol.encode_reply(message.message_id, message.command, payload)
        self.sent()
        self.fds = ()
        if message.flags & _NO_REPLY:
            return None
        return protocol.encode_error(message.message_id, message.command, failure)

    def _advance(self, waiting: Waiting, message: Message, error: int = 0) -> bytes | None:
        """Continue a handler until it returns a payload, or has to wait: None then.

        Where what it has waited for failed, it gets the `error`. Raises what the handler does.
        """
        try:
            while True:
                failure = OSError(error, os.strerror(error)) if error else None
                operation = waiting.throw(failure) if failure else next(waiting)
                if not operation.done():
                    operation.add_done_callback(partial(self._ended, waiting, message))
                    return None
                error = failure_of(operation)
        except StopIteration as end:
            return bytes(end.value)

    def _ended(self, waiting: Waiting, message: Message, operation: Future[None]) -> None:
        """The device has finished what a handler waits for: continue it, and reply."""
        if not self._attached:
            waiting.close()
            return
        try:
            payload = self._advance(waiting, message, failure_of(operation))
        except OSError as error:
            error_number = error.errno or errno.EIO
            reply = protocol.encode_error(message.message_id, message.command, error_number)
        except protocol.ProtocolError:
            reply = protocol.encode_error(message.message_id, message.command, errno.EINVAL)
        else:
            if payload is None:
                return
            reply = protocol.encode_reply(message.message_id, message.command, payload)
        if not message.flags & _NO_REPLY:
            self._reply(reply)

    def may_interleave(self, message: Message) -> bool:
        """True if a command may be handled while the device waits for the client's memory.

        A command that stops the device, or unmaps memory that is in use, may not: see
        `Device.stops_transfers`.
        """
        command, payload = message.command, message.payload
        try:
            if command == protocol.Command.REGION_WRITE:
                offset, region, _ = payloads.REGION_ACCESS.unpack_from(payload)
                return not self._stops(
                    region, offset, bytes(payload[payloads.REGION_ACCESS.size :])
                )
            if command == protocol.Command.REGION_WRITE_MULTI:
                writes = payloads.region_writes(payload)
                return not any(self._stops(region, at, data) for at, region, data in writes)
            if command == protocol.Command.DMA_UNMAP:
                request = payloads.DmaUnmap.decode_head(payload)
                return not request.flags and not self._memory.is_mapped(
                    request.address, request.size
                )
        except (protocol.ProtocolError, struct.error):
            return True  # it is refused, and does nothing
        return command in _HARMLESS

    def _stops(self, region: int, offset: int, data: bytes) -> bool:
        stops = getattr(self._device, "stops_transfers", None)
        if stops is not None:
            return bool(stops(region, offset, data))
        return self._device.pci and region == protocol.PciRegion.CONFIG

    def close(self) -> None:
        """Take the client's memory and eventfds away, then tell the device that it is gone."""
        self.sent()
        self._memory.unmap_all()
        self._lines.close()
        if self._attached:
            self._attached = False
            self._features.reset()
            self._device.detached()

    def _version(self, message: Message) -> bytes:
        proposed = payloads.Version.decode(message.payload)
        if proposed.major != protocol.MAJOR_VERSION:
            raise protocol.ProtocolError(
                f"the client speaks version {proposed.major}.{proposed.minor}"
            )
        self._max_fds = proposed.limit("max_msg_fds", protocol.DEFAULT_MAX_MSG_FDS)
        if self._messages is not None:
            limit = proposed.limit("max_data_xfer_size", protocol.DEFAULT_MAX_TRANSFER)
            self._messages.negotiated(limit)
        version = payloads.Version(
            protocol.MAJOR_VERSION, min(proposed.minor, protocol.MINOR_VERSION), {}
        )
        for name, value in self._capabilities.items():
            # "The capability list must be a subset of those proposed", and a client has room for as
            # much as it sent. It takes the default of what is missing.
            if name not in proposed.capabilities:
                continue
            value = value and proposed.flag(name) if isinstance(value, bool) else value
            longer = version._replace(capabilities={**version.capabilities, name: value})
            if len(longer.encode()) <= len(message.payload):
                version = longer
        if self._offer_twin_socket(proposed):
            # A client that proposes it has room for what only the reply has.
            twin = {"twin_socket": {"supported": True, "fd_index": 0}}
            version = version._replace(capabilities={**version.capabilities, **twin})
        self._device.attached(self._memory, self._lines)
        self._regions = self._device.regions  # some devices share other memory with each client
        self._attached = True
        self._commands = _NEGOTIATED
        return version.encode()

    def _offer_twin_socket(self, proposed: payloads.Version) -> bool:
        """True if the client gets a second socket, for commands to it."""
        wanted = proposed.capabilities.get("twin_socket", {}).get("supported") is True
        if self._messages is None or not wanted or not self._max_fds:
            return False
        self._twin = self._messages.use_twin_socket()
        self.fds = (self._twin.fileno(),)
        return True

    def _dma_map(self, message: Message) -> Waiting:
        request = payloads.DmaMap.decode_head(message.payload)
        _require_argsz(request.argsz, payloads.DmaMap.RECORD.size)
        if len(message.fds) > 1:
            raise protocol.ProtocolError(
                f"{len(message.fds)} file descriptors came with one DMA_MAP"
            )
        if request.flags & ~protocol.DMA_FLAGS:
            raise protocol.ProtocolError(f"DMA_MAP has unknown flags: {request.flags:#x}")
        window = self._memory.map(
            request.address,
            request.size,
            fd=message.fds[0] if message.fds else None,
            offset=request.offset,
            readable=bool(request.flags & protocol.DmaFlags.READABLE),
            writable=bool(request.flags & protocol.DmaFlags.WRITABLE),
        )
        try:
            yield from wait_for(self._device.memory_changed())
        except OSError:
            self._memory.close(window)
            raise
        return b""

    def _dma_unmap(self, message: Message) -> Waiting:
        request = payloads.DmaUnmap.decode_head(message.payload)
        _require_argsz(request.argsz, payloads.DmaUnmap.RECORD.size)
        if request.flags == protocol.DmaUnmapFlags.ALL and not request.address and not request.size:
            self._memory.unmap_all()
        elif request.flags:
            raise protocol.ProtocolError(f"DMA_UNMAP cannot be done with flags {request.flags:#x}")
        else:
            generation = self._memory.generation
            self._memory.unmap(request.address, request.size)
            if self._memory.generation == generation:
                return request.encode()
        yield from wait_for(self._device.memory_changed())
        return request.encode()

    def _device_info(self, message: Message) -> bytes:
        request = payloads.DeviceInfo.decode_head(message.payload)
        info = payloads.DeviceInfo(
            argsz=payloads.DeviceInfo.RECORD.size,
            flags=protocol.DeviceFlags.RESET
            | (protocol.DeviceFlags.PCI if self._device.pci else 0),
            num_regions=self._count(self._regions, len(protocol.PciRegion)),
            num_irqs=self._count(self._device.irqs, len(protocol.PciIrq)),
        )
        return _fitting(info.encode(), request.argsz)

    def _count(self, described: Mapping[int, object], pci: int) -> int:
        """Number of indexes: one more than the last index, and at least as many as PCI has."""
        return max([pci if self._device.pci else 0, *(index + 1 for index in described)])

    def _region_info(self, message: Message) -> bytes:
        request = payloads.RegionInfo.decode_head(message.payload)
        if request.index >= self._count(self._regions, len(protocol.PciRegion)):
            raise protocol.ProtocolError(f"the device has no region {request.index}")
        region = self._regions.get(request.index, _NO_REGION)
        flags = (protocol.RegionFlags.READ if region.readable else 0) | (
            protocol.RegionFlags.WRITE if region.writable else 0
        )
        capabilities = payloads.RegionCapabilities(type=region.type)
        fds: Sequence[int] = ()
        if region.fd is not None and region.size and self._max_fds:
            fds = (region.fd,)
            flags |= protocol.RegionFlags.MMAP
            if region.areas:
                capabilities = capabilities._replace(areas=region.areas)
        following = capabilities.encode()
        needed = payloads.RegionInfo.RECORD.size + len(following)
        if needed > request.argsz:
            # The client asks again when it sees `argsz`. QEMU refuses CAPS without an offset.
            following = b""
        info = payloads.RegionInfo(
            argsz=needed,
            flags=flags | (protocol.RegionFlags.CAPS if following else 0),
            index=request.index,
            cap_offset=payloads.RegionInfo.RECORD.size if following else 0,
            size=region.size,
            offset=region.fd_offset,
        )
        reply = _fitting(info.encode() + following, request.argsz)
        self.fds = fds
        return reply

    def _region_io_fds(self, message: Message) -> bytes:
        request = payloads.RegionIoFds.decode_head(message.payload)
        if request.flags or request.count:
            raise protocol.ProtocolError("a DEVICE_GET_REGION_IO_FDS has flags or a count")
        region = self._regions.get(request.index)
        if region is None:
            raise protocol.ProtocolError(f"the device has no region {request.index}")
        # "More than one sub-region may share the same file descriptor."
        fds = tuple(dict.fromkeys(one.fd for one in region.ioeventfds))
        if len(fds) > self._max_fds:
            raise OSError(
                errno.ENOSPC, f"the client takes {self._max_fds} of {len(fds)} file descriptors"
            )
        sub_regions = b"".join(
            payloads.SubRegion(
                one.offset,
                one.size,
                fds.index(one.fd),
                protocol.IoFdType.IOEVENTFD,
                (0 if one.datamatch is None else protocol.IoEventFdFlags.DATAMATCH)
                | (protocol.IoEventFdFlags.PIO if one.pio else 0),
                data=one.datamatch or 0,
            ).encode()
            for one in region.ioeventfds
        )
        needed = payloads.RegionIoFds.RECORD.size + len(sub_regions)
        info = payloads.RegionIoFds(needed, index=request.index, count=len(region.ioeventfds))
        if needed > request.argsz:
            return _fitting(info.encode(), request.argsz)
        self.fds = fds
        return info.encode() + sub_regions

    def _irq_info(self, message: Message) -> bytes:
        request = payloads.IrqInfo.decode_head(message.payload)
        if request.index >= self._count(self._device.irqs, len(protocol.PciIrq)):
            raise protocol.ProtocolError(f"the device has no interrupts of kind {request.index}")
        irq = self._device.irqs.get(request.index, _NO_IRQ)
        info = payloads.IrqInfo(payloads.IrqInfo.RECORD.size, irq.flags, request.index, irq.count)
        return _fitting(info.encode(), request.argsz)

    def _set_irqs(self, message: Message) -> bytes:
        request = payloads.SetIrqs.decode(message.payload)
        self._lines.set(request, message.fds)
        self._device.irqs_changed(request.index)
        return b""

    def _region_read(self, message: Message) -> bytes:
        if len(message.payload) < payloads.REGION_ACCESS.size:
            raise protocol.ProtocolError("the payload of REGION_READ is too short")
        offset, region, count = payloads.REGION_ACCESS.unpack_from(message.payload)
        self._require(offset, region, count, write=False)
        data = self._device.region_read(region, offset, count) if count else b""
        if len(data) != count:
            raise OSError(errno.EIO, f"the device answered {len(data)} bytes for {count}")
        return payloads.REGION_ACCESS.pack(offset, region, count) + data

    def _region_write(self, message: Message) -> bytes:
        # Doorbells: the payload is parsed here, which spares two tuples of 0.3 µs each.
        payload = message.payload
        if len(payload) < payloads.REGION_ACCESS.size:
            raise protocol.ProtocolError(f"a region access cannot be {len(payload)} bytes long")
        offset, region, count = payloads.REGION_ACCESS.unpack_from(payload)
        if len(payload) != payloads.REGION_ACCESS.size + count:
            raise protocol.ProtocolError(f"the data of a region write are not {count} bytes long")
        self._require(offset, region, count, write=True)
        if count:
            self._device.region_write(region, offset, bytes(payload[payloads.REGION_ACCESS.size :]))
        if message.flags & _NO_REPLY:
            return b""
        return payloads.REGION_ACCESS.pack(offset, region, count)

    def _region_write_multi(self, message: Message) -> bytes:
        writes = payloads.region_writes(message.payload)
        for offset, region, data in writes:
            self._require(offset, region, len(data), write=True)
        for offset, region, data in writes:
            if data:
                self._device.region_write(region, offset, data)
        return payloads.RegionWriteMultiReply(len(writes)).encode()

    def _require(self, offset: int, index: int, count: int, *, write: bool) -> None:
        """Refuse an access that does not lie in a region, or that the region does not allow."""
        region = self._regions.get(index, _NO_REGION)
        if count > MAX_TRANSFER or offset + count > region.size:
            raise protocol.ProtocolError(
                f"{count} bytes at {offset:#x} are not in region {index}, which has {region.size}"
            )
        if not (region.writable if write else region.readable):
            raise protocol.ProtocolError(
                f"region {index} is not for {'writing' if write else 'reading'}"
            )

    def _reset(self, message: Message) -> Waiting:
        if message.payload:
            raise protocol.ProtocolError("a DEVICE_RESET has no payload")
        operation = self._device.reset()
        self._features.reset()
        yield from wait_for(operation)
        return b""


_Handler = Callable[[Session, Message], bytes | Waiting]

_OPENING: Mapping[int, _Handler] = {protocol.Command.VERSION: Session._version}

_NEGOTIATED: Mapping[int, _Handler] = {
    protocol.Command.DMA_MAP: Session._dma_map,
    protocol.Command.DMA_UNMAP: Session._dma_unmap,
    protocol.Command.DEVICE_GET_INFO: Session._device_info,
    protocol.Command.DEVICE_GET_REGION_INFO: Session._region_info,
    protocol.Command.DEVICE_GET_REGION_IO_FDS: Session._region_io_fds,
    protocol.Command.DEVICE_GET_IRQ_INFO: Session._irq_info,
    protocol.Command.DEVICE_SET_IRQS: Session._set_irqs,
    protocol.Command.REGION_READ: Session._region_read,
    protocol.Command.REGION_WRITE: Session._region_write,
    protocol.Command.DEVICE_RESET: Session._reset,
    protocol.Command.REGION_WRITE_MULTI: Session._region_write_multi,
    protocol.Command.DEVICE_FEATURE: lambda self, message: self._features.feature(message.payload),
    protocol.Command.MIG_DATA_READ: lambda self, message: self._features.read(message.payload),
    protocol.Command.MIG_DATA_WRITE: lambda self, message: self._features.write(message.payload),
}

_HARMLESS = frozenset(
    {
        protocol.Command.DMA_MAP,
        protocol.Command.DEVICE_GET_INFO,
        protocol.Command.DEVICE_GET_REGION_INFO,
        protocol.Command.DEVICE_GET_REGION_IO_FDS,
        protocol.Command.DEVICE_GET_IRQ_INFO,
        protocol.Command.DEVICE_SET_IRQS,
        protocol.Command.REGION_READ,
    }
)
"""Commands that may come in the middle of a transfer."""


def _require_open(fds: Sequence[int]) -> None:
    """Raise OSError with EBADF for a mistake of the device, which is to cost no connection."""
    for fd in fds:
        os.fstat(fd)


def _fitting(reply: bytes, argsz: int) -> bytes:
    """A reply for a client that has made room for `argsz` bytes of it."""
    _require_argsz(argsz, len(reply))
    return reply


def _require_argsz(argsz: int, needed: int) -> None:
    if argsz < needed:
        raise protocol.ProtocolError(f"argsz is {argsz} and must be at least {needed}")
