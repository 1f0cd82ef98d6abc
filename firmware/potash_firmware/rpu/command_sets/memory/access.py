"""Memory Read, Memory Write, Memory Fill and Flush.

None of these has to wait: the memory is mapped, so a command transfers its bytes at once. The host
has to order them with programs that use the same bytes. As with the NVM command set, what is
unusual about the oldest entry of a queue, be it a flag, an address or an error, is left in the
queue by the fast path, for the slow path.

Source: NVM Express Subsystem Local Memory Command Set Specification 1.0
(`nvme_spec.memory_commands` says how sure its layouts are).
"""

from functools import partial
from time import perf_counter_ns

from nvme_spec.commands import READ_WRITE_ENTRY
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MEMORY_GRANULARITY, MemoryAccess, MemoryOpcode
from nvme_spec.queues import SUBMISSION_ENTRY_SIZE
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import gather_into, scatter
from potash_device.controller.queues import SubmissionQueue
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.command_sets.nvm.fast_path import (
    BATCH,
    SGL_FLAGS,
    Complete,
    Staging,
    Views,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.transfer import MAX_TRANSFER, check_size

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
    """What is acknowledged is in the memory; nothing of it is ever stored elsewhere."""
    return None


def target(controller: Controller, command: Command) -> tuple[MemoryNamespace, int, int]:
    """The namespace, first byte and length. Raises NvmeError."""
    namespace = controller.namespaces.of_kind(MemoryNamespace, command.entry.nsid)
    fields = MemoryAccess.decode(command.entry.cdws)
    start, length = fields.start, fields.length
    require_granularity(start, length)
    namespace.require_range(start, length)
    return namespace, start, length


_READ = int(MemoryOpcode.MEMORY_READ)
_WRITE = int(MemoryOpcode.MEMORY_WRITE)
_CSI = int(CommandSet.MEMORY)


class MemoryFastPath:
    """The fast path of one controller; `complete` posts the completions."""

    def __init__(self, controller: Controller, complete: Complete) -> None:
        self._controller = controller
        self._complete = complete

    def run(self, queue: SubmissionQueue, limit: int) -> int:
        """Execute up to `limit` commands from the head of `queue`; how many there were.

        Raises AccessFault when the queue's memory is gone.
        """
        controller = self._controller
        began = perf_counter_ns()
        namespaces, dma = controller.namespaces.attached, controller.board.dma
        views_of: Views = dma.views
        block_at: Views = dma.block
        staging = None
        if dma.remote:
            staging = Staging(dma)
            views_of, block_at = staging.staged(dma.views), staging.staged(dma.block)
        waiting = controller.outstanding.identifiers(queue.qid)
        limit = controller.board.queues.room(queue.completions, min(limit, BATCH))
        unpack = READ_WRITE_ENTRY.unpack_from  # its fields are in the same places
        entries, size, tail, head = queue.entries, queue.size, queue.tail, queue.head
        cids: list[int] = []
        writes = 0
        known = None
        try:
            while head != tail and len(cids) < limit:
                opcode, flags, cid, nsid, prp1, prp2, start, length = unpack(
                    entries, head * SUBMISSION_ENTRY_SIZE
                )
                if cid in waiting or (flags and (flags != SGL_FLAGS or prp2 != length)):
                    break
                if nsid != known:
                    namespace = namespaces.get(nsid)
                    if not isinstance(namespace, MemoryNamespace) or namespace.in_flight.closed:
                        break
                    known, memory, end = nsid, namespace.memory.bytes, namespace.size
                if (
                    (start | length) % MEMORY_GRANULARITY
                    or not 0 < length <= MAX_TRANSFER
                    or start + length > end
                ):
                    break
                to_host = opcode == _READ
                if not to_host and opcode != _WRITE:
                    break
                if flags:
                    views = block_at(prp1, length, write=to_host)
                else:
                    views = views_of(prp1, prp2, length, write=to_host)
                if to_host:
                    scatter(views, memory[start : start + length])
                else:
                    gather_into(memory[start : start + length], views)
                    writes += 1
                head = head + 1 if head + 1 < size else 0
                cids.append(cid)
        except NvmeError:
            pass  # of the command that is the head now
        if staging is not None and not staging.store(len(cids) - writes):
            return 0
        if cids:
            queue.head = head
            reads = len(cids) - writes
            self._complete(queue, cids)
            took = perf_counter_ns() - began
            controller.statistics.executed(queue.qid, _CSI, reads, writes, took)
        return len(cids)


class NoMemoryFastPath(MemoryFastPath):
    """That of a drive whose time is modelled, which is asked for each command."""

    def run(self, queue: SubmissionQueue, limit: int) -> int:
        return 0
