"""Memory Read, Memory Write, Memory Fill and Flush.

None of these has to wait: the memory is mapped, so a command transfers its bytes immediately. The
host has to order them with programs that use the same bytes.

Source: NVM Express Subsystem Local Memory Command Set Specification 1.0
(`nvme_spec.memory_commands` says how sure its layouts are).
"""

from functools import partial

from nvme_spec.memory_commands import MEMORY_GRANULARITY, MemoryAccess
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.transfer import check_size

AT_ONCE = 1 << 20
"""Bytes that are filled here; more are the media executor's, as nobody is served meanwhile."""

_ZEROES = bytes(AT_ONCE)


def require_granularity(start: int, length: int) -> None:
    """Raise NvmeError for bytes that are no whole dwords."""
    if start % MEMORY_GRANULARITY or length % MEMORY_GRANULARITY:
        raise NvmeError(Status.INVALID_FIELD, f"{length} bytes from {start} on are no whole dwords")


def read(controller: Controller, command: Command) -> Result:
    """Memory to guest memory."""
    namespace, start, length = target(controller, command)
    check_size(length)
    if length:
        controller.transfer.send(command, namespace.memory.bytes[start : start + length])
    return None


def write(controller: Controller, command: Command) -> Result:
    """Guest memory to memory."""
    namespace, start, length = target(controller, command)
    check_size(length)
    if length:
        views = controller.transfer.views(command, length, write=False)
        controller.transfer.gather(command, views, namespace.memory.bytes[start : start + length])
    return None


def fill(controller: Controller, command: Command) -> Steps:
    """Zeroes to memory."""
    namespace, start, length = target(controller, command)
    if length <= AT_ONCE:
        namespace.memory.bytes[start : start + length] = _ZEROES[:length]
        return None
    yield controller.media_work.on_blocks(
        namespace.in_flight,
        [(start, length)],
        partial(namespace.memory.media.punch, start, length),
        writes=True,
    )
    return None


def flush(controller: Controller, command: Command) -> Result:
    """Complete immediately: acknowledged data is in the memory, and is never stored elsewhere."""
    return None


def target(controller: Controller, command: Command) -> tuple[MemoryNamespace, int, int]:
    """The namespace, first byte and length. Raises NvmeError."""
    namespace = controller.namespaces.of_kind(MemoryNamespace, command.entry.nsid)
    fields = MemoryAccess.decode(command.entry.cdws)
    start, length = fields.start, fields.length
    require_granularity(start, length)
    namespace.require_range(start, length)
    return namespace, start, length
