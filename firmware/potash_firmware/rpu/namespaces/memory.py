"""A memory namespace (CSI 03h): bytes that hosts and programs access.

The bytes are a memfd of the namespace's size, mapped here and, for programs, in the APU. They are
not stored: they are zero after power-on, and whenever another host may be next.

Source: NVM Express Subsystem Local Memory Command Set Specification 1.0.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MEMORY_GRANULARITY, MemoryOpcode
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import Media, SharedMemory
from potash_device.pcie.bar_memory import BarMemory
from potash_firmware.mailbox.messages import next_handle
from potash_firmware.rpu.media_work import BlocksInFlight
from potash_firmware.rpu.namespaces.namespace import FastAccess


class Memory:
    """The bytes of a namespace, until it gets others. Raises OSError when the system has none."""

    def __init__(self, size: int, shared: SharedMemory | None = None) -> None:
        self.shared = shared or SharedMemory(size)
        self.media, self.bytes, self.fd = self.shared.media, self.shared.bytes, self.shared.fd
        self.handle = next_handle()
        """Names it to the APU, which may have had another one of the same namespace."""
        self.fast_path = FastAccess(_CSI, _READ, _WRITE, 1, 0, size, size, _Dwords(self.bytes))


_CSI = int(CommandSet.MEMORY)
_READ, _WRITE = int(MemoryOpcode.MEMORY_READ), int(MemoryOpcode.MEMORY_WRITE)


class _Dwords:
    """The bytes of a namespace for the fast path, which leaves alone what is not aligned."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def require_whole(self) -> None:
        """It always is."""

    def read_at_once(self, views: list[memoryview], offset: int) -> bool:
        length = len(views[0]) if len(views) == 1 else sum(map(len, views))
        if (offset | length) % MEMORY_GRANULARITY:
            return False
        content = self._content
        for view in views:
            end = offset + len(view)
            view[:] = content[offset:end]
            offset = end
        return True

    def write_at_once(self, views: list[memoryview], offset: int) -> bool:
        length = len(views[0]) if len(views) == 1 else sum(map(len, views))
        if (offset | length) % MEMORY_GRANULARITY:
            return False
        content = self._content
        for view in views:
            end = offset + len(view)
            content[offset:end] = view
            offset = end
        return True


@dataclass(eq=False)
class MemoryNamespace:
    """Bytes that are addressed one by one, from 0 on."""

    csi: ClassVar[CommandSet] = CommandSet.MEMORY

    nsid: int
    shape: NamespaceShape
    bar: BarMemory | None = None
    """The BAR in which a host maps the bytes, all of them, if there is one."""
    memory: Memory = field(init=False)
    in_flight: BlocksInFlight = field(default_factory=BlocksInFlight)
    """Work of the media executor on its bytes."""

    def __post_init__(self) -> None:
        self.memory = Memory(self.size, self.bar.memory if self.bar else None)

    @property
    def size(self) -> int:
        """Bytes of the namespace."""
        return self.shape.size

    @property
    def media(self) -> Media:
        """Its bytes as a source of work that waits."""
        return self.memory.media

    @property
    def fast_path(self) -> FastAccess | None:
        """The fast path's access to the bytes; None while no command may touch them."""
        if self.in_flight.closed is not None:
            return None
        return self.memory.fast_path

    def require_range(self, start: int, length: int) -> None:
        """Raise NvmeError for bytes that are not all inside the namespace."""
        if start + length > self.size:
            raise NvmeError(
                Status.INVALID_FIELD,
                detail=f"{length} bytes from {start} on leave the namespace's {self.size}",
            )

    def renew(self) -> Memory | None:
        """Begin again with zeroes; the memory of before, if there is any.

        Who still has that of before sees nothing of what is written from now on. What a host has
        mapped stays what it is as long as that host is there.
        """
        if self.bar is not None:
            if self.bar.memory is self.memory.shared:
                self.clear()
                return None
            before, self.memory = self.memory, Memory(self.size, self.bar.memory)
            return before
        try:
            new = Memory(self.size)
        except OSError:  # no memory or descriptors, of now: what there is has to do
            self.clear()
            return None
        before, self.memory = self.memory, new
        return before

    def clear(self) -> None:
        """Zeroes, in the memory that there is."""
        self.memory.shared.clear()


@dataclass(eq=False)
class ComputeNamespace:
    """It has no size and holds no data of its own."""

    csi: ClassVar[CommandSet] = CommandSet.COMPUTE
    fast_path: ClassVar[None] = None

    nsid: int
    shape: NamespaceShape
