"""The fast path: plain reads and writes, of blocks and of memory, that need no waiting.

The slow path (a command object, the dispatch table, a handler, a result) takes three times as long
as moving 4 KiB does: 9 µs a command against 3 (`potash bench nvme`). So this decodes the oldest
entry of a queue, and takes it only if it can finish it here and now; whatever is unusual is left in
the queue for the slow path. What a namespace asks beyond moving data is behind its `fast_path`."""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Protocol

from nvme_spec.commands import READ_WRITE_ENTRY
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.queues import FLAGS_PSDT_SHIFT, SUBMISSION_ENTRY_SIZE, Psdt
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import DmaEngine
from potash_device.controller.queues import SubmissionQueue
from potash_device.media.errors import MediaError
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import FastAccess, FastMedia
from potash_firmware.rpu.transfer import MAX_TRANSFER

SGL_FLAGS = int(Psdt.SGL_MPTR_BUFFER) << FLAGS_PSDT_SHIFT
"""The flags of a command with an SGL. Where that is one data block of the command's length, the
second half of its data pointer is that length, as a data block's type and sub type are 0."""

NVM = int(CommandSet.NVM)
"""A constant, as Python 3.11 takes 60 ns to look a member of an enumeration up."""

BATCH = 16
"""Commands whose completions are stored together. A host that is awake takes them from there."""

Complete = Callable[[SubmissionQueue, Sequence[int]], None]
"""Answers the commands with those identifiers: they have succeeded, and there is room."""


class Staging:
    """The data of a batch that the host is sent by messages, when the batch is over.

    It stands in for the DMA engine only then: a check for each command would take 3 % of its time.
    """

    def __init__(self, dma: DmaEngine) -> None:
        self._dma = dma
        self.known_views: dict[tuple[int, int, bool], list[memoryview]] = {}
        self._filled: list[list[memoryview]] = []

    def views(self, prp1: int, prp2: int, length: int, *, write: bool) -> list[memoryview]:
        """The views of the DMA engine, kept for `store`. Raises NvmeError also where a command
        would read guest memory that the batch has yet to fill: that begins the next one."""
        self._require_filled(write=write)
        return self._kept(self._dma.views(prp1, prp2, length, write=write), write=write)

    def block(self, address: int, length: int, *, write: bool) -> list[memoryview]:
        """The data block of an SGL, kept for `store`. Raises NvmeError as `views` does."""
        self._require_filled(write=write)
        return self._kept(self._dma.block(address, length, write=write), write=write)

    def _require_filled(self, *, write: bool) -> None:
        if self._filled and not write:
            raise NvmeError(Status.DATA_TRANSFER_ERROR, "guest memory is not filled yet", dnr=False)

    def _kept(self, views: list[memoryview], *, write: bool) -> list[memoryview]:
        if write:
            self._filled.append(views)
        return views

    def store(self, count: int) -> bool:
        """Have the host get what the first `count` commands that write to it have filled.

        Where it does not take some of it, none of the batch's commands has been done: the slow path
        finds out which of them fails.
        """
        try:
            self._dma.store([view for views in self._filled[:count] for view in views])
        except NvmeError:
            return False
        return True


class Deferral(Protocol):
    """The completion of commands in modelled time, after their data were moved."""

    def begin(
        self, queue: SubmissionQueue, entries: memoryview, cids: list[int]
    ) -> Callable[[int], None]:
        """Begin a batch. Returns a function to call with the identifier of each command whose data
        were moved: the command waits from then on, and `cids` has its identifier."""

    def media(self, nsid: int, access: FastAccess) -> FastMedia:
        """The media of a namespace, which ask the model before they move data."""


class FastPath:
    """The fast path of one controller; `complete` posts the completions, and `interrupt` interrupts
    the host for them."""

    def __init__(
        self, controller: Controller, complete: Complete, interrupt: Callable[[], None]
    ) -> None:
        self._controller = controller
        self._complete, self._interrupt = complete, interrupt
        self._timed: Deferral | None = None

    def run(self, queue: SubmissionQueue, limit: int) -> int:
        """Execute up to `limit` commands from the head of `queue` to the last entry of the ring at
        most, all of one command set; how many there were.

        Raises AccessFault when the queue's memory is gone.
        """
        controller, timed = self._controller, self._timed
        began = perf_counter_ns()
        board, restricted = controller.board, controller.reservations.restricted
        namespaces = controller.namespaces.accessible
        staging = Staging(board.dma) if board.dma.remote else None
        dma = staging or board.dma
        known_views = dma.known_views
        waiting = controller.outstanding.by_queue[queue.qid]
        head, tail = queue.head, queue.tail
        end = tail if head <= tail else queue.size
        if end - head > 1:
            end = head + min(BATCH, limit, end - head)
        if timed is None:
            end = head + board.queues.room(queue.completions, end - head)
        entries = queue.entries[head * SUBMISSION_ENTRY_SIZE : end * SUBMISSION_ENTRY_SIZE]
        cids: list[int] = []
        taken = cids.append
        if timed is not None:
            entries = memoryview(bytes(entries))
            taken = timed.begin(queue, entries, cids)
        writes = bytes_read = bytes_written = 0
        last_nsid = counted = whole = csi = None
        try:
            for (
                opcode, flags, cid, nsid, prp1, prp2, first, count
            ) in READ_WRITE_ENTRY.iter_unpack(entries):  # fmt: skip
                if cid in waiting:
                    break
                if nsid != last_nsid:
                    namespace = namespaces.get(nsid)
                    path = None if namespace is None else namespace.fast_path
                    if path is None or nsid in restricted or (csi is not None and path.csi != csi):
                        break
                    csi, read, write, unit, zero_based, most, units, media = path
                    last_nsid, counted, bound = nsid, None, units - zero_based
                    if timed is not None:
                        media = timed.media(nsid, path)
                if count != counted:
                    length = (count + zero_based) * unit
                    if count > most or not 0 < length <= MAX_TRANSFER:
                        break
                    counted = count
                if first + count > bound or (flags and (flags != SGL_FLAGS or prp2 != length)):
                    break
                if opcode == read:
                    if flags:
                        views = dma.block(prp1, length, write=True)
                    else:
                        views = known_views.get((prp1, length, True)) or dma.views(
                            prp1, prp2, length, write=True
                        )
                    if not media.read_at_once(views, first * unit):
                        break
                    bytes_read += length
                elif opcode == write:
                    if flags:
                        views = dma.block(prp1, length, write=False)
                    else:
                        views = known_views.get((prp1, length, False)) or dma.views(
                            prp1, prp2, length, write=False
                        )
                    if media is not whole:
                        media.require_whole()
                        whole = media
                    if not media.write_at_once(views, first * unit):
                        break
                    bytes_written += length
                    writes += 1
                else:
                    break
                taken(cid)
        except (NvmeError, MediaError):
            pass  # of the command that is the head now
        done = len(cids)
        if staging is not None and not staging.store(done - writes):
            return 0
        if csi is not None and done:
            queue.head = (head + done) % queue.size
            if timed is None:
                self._complete(queue, cids)
                took = perf_counter_ns() - began
                if queue.head == tail and staging is None:  # all that the host waits for here
                    self._interrupt()
                # After the host has its answers.
                controller.statistics.executed(queue.qid, csi, done - writes, writes, took)
            else:
                controller.statistics.fetched(queue.qid, csi, done - writes, writes)
            controller.transfer.to_host += bytes_read
            controller.transfer.from_host += bytes_written
            if csi == NVM:
                controller.health.count(done - writes, bytes_read, writes, bytes_written)
        return done
