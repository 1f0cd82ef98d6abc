"""A device as a user holds it: the standard's commands, its blocks and its accelerators.

NVM Express Base Specification 2.0, section 5; NVM Command Set Specification 1.0, section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from types import TracebackType
from typing import Self

from csd_spec import fields as csd_fields
from csd_spec.descriptors import DescriptorError, IdentifyData, dwords, identify_length
from csd_spec.opcodes import DWORD_SIZE
from csd_spec.opcodes import AdminOpcode as CsdAdminOpcode
from nvme_spec import commands
from nvme_spec.identify import (
    IDENTIFY_SIZE,
    NAMESPACE_LIST_ENTRIES,
    Cns,
    IdentifyController,
    IdentifyNamespace,
    decode_namespace_list,
)
from nvme_spec.logs import AsyncEvent
from nvme_spec.opcodes import AdminOpcode, DataDirection, IoOpcode, data_direction
from nvme_spec.registers import MINIMUM_PAGE_SHIFT
from potash.sdk.accelerator import Accelerator
from potash.sdk.errors import DeviceMisbehaved, DeviceNotFound, InvalidRequest
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import NO_CDWS, Buffer, Cdws, Completion, Request, Transport, encoded

DEFAULT_TIMEOUT = 30.0
"""Seconds for one command, as Linux gives an I/O command."""
IDENTIFY_HEADER_DWORDS = 4
MIN_BLOCK_SIZE = 512
MAX_BLOCKS = 1 << 16
"""Blocks in one Read or Write: NLB has 16 bits."""


class Device:
    """One controller; closes its transport when a `with` block ends.

    Every method that sends a command raises CommandFailed, CommandTimeout or DeviceGone, and
    InvalidRequest for what cannot be sent.
    """

    def __init__(self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.transport = transport
        self.timeout = timeout
        self._max_transfer: int | None = None
        self._nsid = transport.nsid
        self._block_size: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        """Reset the controller; what was learnt from it is asked again."""
        self._max_transfer = self._block_size = None
        self.transport.reset()

    def admin(
        self,
        opcode: int,
        *,
        nsid: int = 0,
        cdws: Cdws = NO_CDWS,
        data_out: Buffer | None = None,
        data_in_length: int = 0,
        timeout: float | None = None,
    ) -> Completion:
        """Send an Admin command; InvalidRequest when the data's direction is not the opcode's."""
        request = Request(True, opcode, nsid, cdws, data_out, data_in_length)
        return self._submit(request, timeout)

    def io(
        self,
        opcode: int,
        *,
        nsid: int | None = None,
        cdws: Cdws = NO_CDWS,
        data_out: Buffer | None = None,
        data_in_length: int = 0,
        timeout: float | None = None,
    ) -> Completion:
        """Send an I/O command, to `self.nsid` unless another namespace is named."""
        namespace = self.nsid if nsid is None else nsid
        request = Request(False, opcode, namespace, cdws, data_out, data_in_length)
        return self._submit(request, timeout)

    def _submit(self, request: Request, timeout: float | None) -> Completion:
        direction = data_direction(request.opcode)
        if request.data_out and not direction & DataDirection.HOST_TO_CONTROLLER:
            raise InvalidRequest(f"opcode {request.opcode:02X}h does not send data")
        if request.data_in_length and not direction & DataDirection.CONTROLLER_TO_HOST:
            raise InvalidRequest(f"opcode {request.opcode:02X}h does not receive data")
        size = len(request.data_out or b"") + request.data_in_length
        if size > self.transport.max_transfer:
            raise InvalidRequest(
                f"{size} bytes are too many for one command; the most is "
                f"{self.transport.max_transfer}"
            )
        try:
            return self.transport.submit(request, self.timeout if timeout is None else timeout)
        except struct.error as error:
            raise InvalidRequest(f"a field of the command is out of its range: {error}") from None

    def identify_controller(self) -> IdentifyController:
        return IdentifyController(self._identify(Cns.CONTROLLER))

    def identify_namespace(self, nsid: int) -> IdentifyNamespace:
        return IdentifyNamespace(self._identify(Cns.NAMESPACE, nsid))

    def namespaces(self) -> list[int]:
        """Identifiers of the active namespaces, ascending."""
        found: list[int] = []
        while True:
            last = found[-1] if found else 0
            more = decode_namespace_list(self._identify(Cns.ACTIVE_NAMESPACE_LIST, last))
            if any(one >= two for one, two in pairwise([last, *more])):
                raise DeviceMisbehaved("the device's list of namespaces is out of order")
            found += more
            if len(more) < NAMESPACE_LIST_ENTRIES:
                return found

    def _identify(self, cns: Cns, nsid: int = 0) -> bytes:
        completion = self.admin(
            AdminOpcode.IDENTIFY,
            nsid=nsid,
            cdws=encoded(commands.Identify(cns)),
            data_in_length=IDENTIFY_SIZE,
        )
        return completion.data

    def log_page(
        self, lid: int, length: int, *, lsi: int = 0, rae: bool = False, nsid: int = 0
    ) -> bytes:
        """`length` bytes of a log page, in as many commands as that takes.

        `rae` (Retain Asynchronous Event) counts for the last command; those before retain.
        """
        pieces: list[bytes] = []
        for start, size in pieces_of(length, self.max_transfer):
            last = start + size == length
            command = commands.GetLogPage(
                lid, dwords(size) - 1, rae=rae or not last, lsi=lsi, offset=start
            )
            completion = self.admin(
                AdminOpcode.GET_LOG_PAGE,
                nsid=nsid,
                cdws=encoded(command),
                data_in_length=command.length,
            )
            pieces.append(completion.data[:size])
        return b"".join(pieces)

    @property
    def tells_events(self) -> bool:
        """Whether `await_event` can be used: over vfio-user; the kernel keeps events for itself."""
        return self.transport.tells_events

    def await_event(self, timeout: float) -> AsyncEvent | None:
        """The device's next asynchronous event; None when there is none within `timeout` seconds.

        The device tells of no further event of its type before its log page has been read.
        """
        told = self.transport.await_event(timeout)
        return None if told is None else AsyncEvent(told)

    @property
    def block_device(self) -> int | None:
        """The number of the block device that was opened; None when it was none."""
        return self.transport.block_device

    @property
    def nsid(self) -> int:
        """The namespace that was opened, or the controller's first."""
        if self._nsid is None:
            namespaces = self.namespaces()
            if not namespaces:
                raise DeviceNotFound("the device has no namespace")
            self._nsid = namespaces[0]
        return self._nsid

    @property
    def block_size(self) -> int:
        """Bytes of a logical block; asked for once, as every transfer counts with it."""
        if self._block_size is None:
            found = self.identify_namespace(self.nsid).block_size
            if not MIN_BLOCK_SIZE <= found <= self.max_transfer:
                raise DeviceMisbehaved(f"the device has blocks of {found} bytes")
            self._block_size = found
        return self._block_size

    @property
    def capacity(self) -> int:
        """Bytes of the namespace."""
        return self.identify_namespace(self.nsid).nsze * self.block_size

    @property
    def max_transfer(self) -> int:
        """The most bytes that one command may move: the controller's MDTS and the transport's."""
        if self._max_transfer is None:
            mdts = self.identify_controller().mdts
            limit = self.transport.max_transfer
            self._max_transfer = min(limit, 1 << MINIMUM_PAGE_SHIFT + mdts) if mdts else limit
        return self._max_transfer

    def read(self, lba: int, count: int, *, progress: Progress = silent) -> bytes:
        """`count` blocks from block `lba`."""
        size = self.block_size
        pieces: list[bytes] = []
        for start, blocks in pieces_of(count, self._blocks_per_command):
            completion = self.io(
                IoOpcode.READ,
                cdws=encoded(commands.ReadWrite(lba + start, blocks - 1)),
                data_in_length=blocks * size,
            )
            pieces.append(completion.data)
            progress("reading blocks", (start + blocks) / count)
        return b"".join(pieces)

    def write(self, lba: int, data: Buffer, *, progress: Progress = silent) -> None:
        """Write whole blocks from block `lba`; InvalidRequest when `data` ends inside one."""
        size = self.block_size
        view = memoryview(data).cast("B")
        if len(view) % size:
            raise InvalidRequest(f"{len(view)} bytes are not a whole number of {size}-byte blocks")
        for start, blocks in pieces_of(len(view) // size, self._blocks_per_command):
            self.io(
                IoOpcode.WRITE,
                cdws=encoded(commands.ReadWrite(lba + start, blocks - 1)),
                data_out=view[start * size : (start + blocks) * size],
            )
            progress("writing blocks", (start + blocks) * size / len(view))

    @property
    def _blocks_per_command(self) -> int:
        return min(MAX_BLOCKS, self.max_transfer // self.block_size)

    def flush(self) -> None:
        """Wait until everything that was written is on the media."""
        self.io(IoOpcode.FLUSH)

    def accelerators(self) -> list[Accelerator]:
        """The accelerators behind this device.

        Raises CommandFailed (Invalid Command Opcode) when the device is none that has them, and
        DeviceMisbehaved for an answer that makes no sense.
        """
        try:
            length = identify_length(self._identify_accelerators(IDENTIFY_HEADER_DWORDS))
            data = self._identify_accelerators(dwords(min(length, self.max_transfer)))
            described = IdentifyData.decode(data).accelerators
        except DescriptorError as error:
            raise DeviceMisbehaved(f"the device's accelerators are unreadable: {error}") from error
        return [Accelerator(self, item) for item in described]

    def _identify_accelerators(self, count: int) -> bytes:
        completion = self.admin(
            CsdAdminOpcode.IDENTIFY,
            cdws=encoded(csd_fields.Identify(count)),
            data_in_length=count * DWORD_SIZE,
        )
        return completion.data


def pieces_of(total: int, limit: int) -> Iterator[tuple[int, int]]:
    """Start and size of the pieces, none larger than `limit`, that make up `total`."""
    for start in range(0, total, limit):
        yield start, min(limit, total - start)
