"""The drive as functions of extensions see it (`potash_firmware.extensions.Drive`).

What they read and write goes through the handlers of Read and Write, with a buffer in the place of
guest memory: so it is ordered with commands of the host, follows the rules of zones, and takes its
modelled time.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from operator import index
from typing import Any, cast

from nvme_spec.features import Select
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import IoOpcode
from nvme_spec.queues import SubmissionEntry
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import DmaEngine
from potash_device.controller.queues import SubmissionQueue
from potash_device.media.errors import MediaError
from potash_device.trace import Trace
from potash_firmware.extension_interface import Namespace
from potash_firmware.extension_registry import DriveState
from potash_firmware.rpu.command import Command, steps_of
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import Table
from potash_firmware.rpu.extension_state import States
from potash_firmware.rpu.namespaces.inventory import AnyNamespace
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.memory import ComputeNamespace, MemoryNamespace
from potash_firmware.rpu.scheduler import Steps
from potash_firmware.rpu.transfer import Transfer, check_size

log = logging.getLogger(__name__)

MOST_BLOCKS = 1 << 16
"""Blocks of a Read or a Write."""
LONGEST_SLEEP = 24 * 3600 * 10**6
"""Microseconds."""


class Request:
    """Steps of the drive for which a function of an extension waits, on behalf of a command that
    was fetched from `queue`."""

    def __init__(self, steps: Callable[[SubmissionQueue], Steps[Any]]) -> None:
        self.steps = steps


def _described(namespace: AnyNamespace) -> Namespace:
    match namespace:
        case ComputeNamespace():
            return Namespace(namespace.nsid, namespace.csi, 1, 0)
        case MemoryNamespace() | KeyValueNamespace():
            return Namespace(namespace.nsid, namespace.csi, 1, namespace.size)
    return Namespace(namespace.nsid, namespace.csi, namespace.block_size, namespace.blocks)


class Drive:
    """A `potash_firmware.extensions.Drive`; `tables` has the I/O commands."""

    def __init__(
        self, controller: Controller, tables: Mapping[CommandSet, Table], states: States
    ) -> None:
        self._controller = controller
        self._tables = tables
        self._states = states

    @property
    def namespaces(self) -> dict[int, Namespace]:
        return {nsid: _described(o) for nsid, o in self._controller.namespaces.attached.items()}

    def now(self) -> int:
        return self._controller.deadlines.clock.now()

    def log(self, text: str) -> None:
        log.info("%s", str(text))

    def notify(self, page: int, info: int = 0) -> bool:
        if not (0 <= page <= 0xFF and 0 <= info <= 0xFF):
            raise ValueError(f"there is no event {info} of log page {page}")
        return self._controller.alerts.vendor(info, page)

    def feature(self, fid: int) -> int | bytes:
        value = self._controller.features.read(Select.CURRENT, fid)
        return value.data if self._controller.features.row(fid).given(0) else value.dword

    def memory(self, nsid: int) -> memoryview:
        return self._controller.namespaces.of_kind(MemoryNamespace, nsid).memory.bytes

    def read(self, nsid: int, lba: int, blocks: int = 1) -> Request:
        nsid, lba, blocks = map(index, (nsid, lba, blocks))  # fails where it is called

        def steps(queue: SubmissionQueue) -> Generator[Any, Any, bytes]:
            data = bytearray(self._length(nsid, lba, blocks))
            yield from self._execute(queue, IoOpcode.READ, nsid, lba, blocks, data)
            return bytes(data)

        return Request(steps)

    def write(self, nsid: int, lba: int, data: bytes) -> Request:
        nsid, lba, content = index(nsid), index(lba), bytearray(memoryview(data))

        def steps(queue: SubmissionQueue) -> Steps[None]:
            blocks, rest = divmod(len(content), self._block_size(nsid))
            if rest:
                raise NvmeError(Status.INVALID_FIELD, f"{len(content)} bytes are no whole blocks")
            self._length(nsid, lba, blocks)
            yield from self._execute(queue, IoOpcode.WRITE, nsid, lba, blocks, content)

        return Request(steps)

    def sleep(self, microseconds: float) -> Request:
        if not 0 <= microseconds <= LONGEST_SLEEP:
            raise ValueError(f"nobody sleeps for {microseconds} µs")
        until = self.now() + round(microseconds * 1000)

        def steps(queue: SubmissionQueue) -> Steps[None]:
            yield until

        return Request(steps)

    def save(self) -> Request:
        def steps(queue: SubmissionQueue) -> Steps[None]:
            if not self._states.note():
                raise NvmeError(Status.INTERNAL_ERROR, "a state cannot be saved")
            try:
                yield self._controller.media_work.submit(self._states.save)
            except MediaError as error:
                raise NvmeError(Status.INTERNAL_ERROR, str(error.strerror), dnr=False) from None

        return Request(steps)

    def state(self, declared: DriveState[Any]) -> Any:
        """The value of a state."""
        return self._states.values[declared.name]

    def changed(self) -> None:
        """A function of an extension is called, which may change states."""
        self._states.changes += 1

    def set_state(self, declared: DriveState[Any], value: Any) -> None:
        self._states.values[declared.name] = value

    # Reading and writing.

    def _block_size(self, nsid: int) -> int:
        """Bytes of a block. Raises NvmeError for a namespace that cannot be accessed."""
        namespace = self._controller.namespaces.usable(nsid)
        if namespace.metadata.size:
            raise NvmeError(
                Status.INVALID_FIELD, "extensions do not access namespaces with metadata"
            )
        return namespace.block_size

    def _length(self, nsid: int, lba: int, blocks: int) -> int:
        """Bytes of some blocks. Raises NvmeError for more than a command may move."""
        if not (0 <= lba < 1 << 64 and 0 < blocks <= MOST_BLOCKS):
            raise NvmeError(Status.INVALID_FIELD, f"there are no {blocks} blocks at {lba}")
        length = blocks * self._block_size(nsid)
        check_size(length)
        return length

    def _execute(
        self,
        queue: SubmissionQueue,
        opcode: IoOpcode,
        nsid: int,
        lba: int,
        blocks: int,
        data: bytearray,
    ) -> Steps[None]:
        csi = self._controller.namespaces.usable(nsid).csi
        dwords = {"cdw10": lba & 0xFFFF_FFFF, "cdw11": lba >> 32, "cdw12": blocks - 1}
        command = Command(SubmissionEntry(opcode, nsid=nsid, **dwords), queue, csi, self.now())
        handler = self._tables[csi][opcode].handler
        controller = cast(Controller, _WithBuffer(self._controller, memoryview(data)))
        yield from steps_of(lambda: handler(controller, command))


class _Buffer(Transfer):
    """A buffer in the place of guest memory."""

    def __init__(self, data: memoryview) -> None:
        super().__init__(DmaEngine(), Trace())
        self._data = data

    def views(self, command: Command, length: int, *, write: bool) -> list[memoryview]:
        return [self._data[:length]]


class _Uncounted:
    """The health log's counters of data that hosts move: an extension's are not among them."""

    def count_read(self, length: int) -> None:
        pass

    def count_write(self, length: int) -> None:
        pass


class _WithBuffer:
    """The controller, for a handler whose data is a buffer."""

    def __init__(self, controller: Controller, data: memoryview) -> None:
        self._controller = controller
        self.transfer = _Buffer(data)
        self.health = _Uncounted()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)
