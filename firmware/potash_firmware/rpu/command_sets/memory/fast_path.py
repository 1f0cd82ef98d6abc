"""The fast path of memory namespaces: Memory Read and Memory Write of plain pages.

As that of the NVM command set (`command_sets.nvm.fast_path`): what is unusual about the oldest
entry of a queue, be it a flag, an address or an error, is left in the queue for the slow path.
"""

from time import perf_counter_ns

from nvme_spec.commands import READ_WRITE_ENTRY
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MEMORY_GRANULARITY, MemoryOpcode
from nvme_spec.queues import SUBMISSION_ENTRY_SIZE
from nvme_spec.status import NvmeError
from potash_device.controller.dma import gather_into, scatter
from potash_device.controller.queues import SubmissionQueue
from potash_firmware.rpu.command_sets.nvm.fast_path import BATCH, Complete, Staging
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.transfer import MAX_TRANSFER

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
        namespaces, views_of = controller.namespaces.attached, controller.board.dma.views
        staging = None
        if controller.board.dma.remote:
            staging = Staging(controller.board.dma)
            views_of = staging.views
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
                if flags or cid in waiting:
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
                if opcode == _READ:
                    views = views_of(prp1, prp2, length, write=True)
                    scatter(views, memory[start : start + length])
                elif opcode == _WRITE:
                    views = views_of(prp1, prp2, length, write=False)
                    gather_into(memory[start : start + length], views)
                    writes += 1
                else:
                    break
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
