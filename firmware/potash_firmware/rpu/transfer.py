"""Transfers of a command's data between guest memory and the device, and their maximum size (MDTS).

Only the loop's thread touches guest memory.

Source: NVM Express Base Specification 2.0, section 4.1 (PRPs, SGLs) and figure 275 (MDTS)."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from nvme_spec.logs import CommandByte
from nvme_spec.queues import FLAGS_PSDT_SHIFT, Psdt
from nvme_spec.status import NvmeError, Status
from potash_device.controller import sgl
from potash_device.controller.dma import PAGE_SIZE, DmaEngine, gather_into, scatter, transfer_error
from potash_device.trace import Trace
from potash_firmware.mailbox.shared import SLOT_SIZE
from potash_firmware.rpu.command import Command
from pyvfio_user.memory import AccessFault

MAX_TRANSFER_SHIFT = 7
"""MDTS: 2**7 memory pages."""

MAX_TRANSFER = PAGE_SIZE << MAX_TRANSFER_SHIFT
"""Bytes that one command moves at most; a transfer slot of the mailbox holds as much."""

assert MAX_TRANSFER == SLOT_SIZE


_NO_SPAN = nullcontext()


def check_size(length: int) -> None:
    """Raise NvmeError for more bytes than one command may move."""
    if length > MAX_TRANSFER:
        raise NvmeError(Status.INVALID_FIELD, f"{length} bytes are more than MDTS allows")


class Transfer:
    """The data of one controller's commands."""

    def __init__(self, dma: DmaEngine, trace: Trace) -> None:
        self._dma = dma
        self._trace = trace
        self.to_host = self.from_host = 0
        """Bytes that were moved, those of the fast path included."""

    def views(self, command: Command, length: int, *, write: bool) -> list[memoryview]:
        """The command's `length` bytes of guest memory, as its PRPs or its SGL name them, in order.

        They are valid for this pass: a command that waits asks again. Raises NvmeError.
        """
        if length > MAX_TRANSFER:
            check_size(length)
        entry = command.entry
        if entry.flags >> FLAGS_PSDT_SHIFT:
            return sgl.views(self._dma, entry.prp1, entry.prp2, length, write=write)
        return self._dma.views(entry.prp1, entry.prp2, length, write=write)

    def metadata_views(self, command: Command, length: int, *, write: bool) -> list[memoryview]:
        """The same as `views`, for the command's separate metadata buffer. Raises NvmeError."""
        entry = command.entry
        if entry.psdt is Psdt.SGL_MPTR_SEGMENT:
            return sgl.metadata_views(self._dma, entry.mptr, length, write=write)
        if entry.mptr % 4 or not entry.mptr:  # 0 is what a host leaves that has no metadata
            raise NvmeError(
                Status.INVALID_FIELD,
                f"{entry.mptr:#x} is no address of metadata",
                location=CommandByte.MPTR,
            )
        try:
            return self._dma.pieces(entry.mptr, length, write=write)
        except AccessFault as fault:
            raise transfer_error(fault) from None

    def buffer(self, length: int) -> memoryview:
        """A private buffer of a length that a host has chosen.

        Raises NvmeError for more than one command may move; nothing is allocated then.
        """
        if length > MAX_TRANSFER:
            check_size(length)
        return memoryview(bytearray(length))

    def send(self, command: Command, data: bytes | memoryview, length: int | None = None) -> None:
        """Write `data` to guest memory; where the host asks for `length` bytes, as many of it and
        zeroes for the rest. Raises NvmeError, having written nothing."""
        if length is None:
            length = len(data)
        views = self.views(command, length, write=True)
        if length != len(data):
            data = bytes(data[:length]).ljust(length, b"\0")
        self.scatter(command, views, data)

    def scatter(self, command: Command, views: list[memoryview], data: bytes | memoryview) -> None:
        """Write `data` to the first bytes of `views`, which are the command's. Raises NvmeError."""
        traced = self._trace.sink is not None and views
        with self._span(command, views, to_host=True) if traced else _NO_SPAN:
            scatter(views, data)
            self.to_host += len(data)
            if self._dma.remote:
                self._dma.store(views, len(data))

    def receive(self, command: Command, length: int) -> memoryview:
        """A private copy of the command's `length` bytes of guest memory. Raises NvmeError."""
        buffer = self.buffer(length)
        self.gather(command, self.views(command, length, write=False), buffer)
        return buffer

    def head(self, command: Command, views: Sequence[memoryview], length: int) -> memoryview:
        """A private copy of the first `length` bytes of `views`, which are the command's."""
        head: list[memoryview] = []
        left = length
        for view in views:
            head.append(view[:left])
            left -= len(head[-1])
        buffer = self.buffer(length)
        self.gather(command, head, buffer)
        return buffer

    def gather(self, command: Command, views: list[memoryview], buffer: memoryview) -> None:
        """Copy `views`, which are the command's, to `buffer`."""
        traced = self._trace.sink is not None and views
        with self._span(command, views, to_host=False) if traced else _NO_SPAN:
            gather_into(buffer, views)
            self.from_host += len(buffer)

    def _span(
        self, command: Command, views: Sequence[memoryview], *, to_host: bool
    ) -> AbstractContextManager[object]:
        return self._trace.span("dma", **_described(command, views, to_host=to_host))

    def at_once(
        self,
        command: Command,
        move: Callable[[Sequence[memoryview], int], bool],
        views: Sequence[memoryview],
        offset: int,
        *,
        to_host: bool,
    ) -> bool:
        """Move the command's data from or to the media by `move`, if that need not wait.

        Whether it has been moved. Raises MediaError, and NvmeError where the host does not take it.
        """
        trace = self._trace
        began = 0.0 if trace.sink is None else time.monotonic()
        done = move(views, offset)
        if done:
            size = sum(map(len, views))
            if to_host:
                self._dma.store(views)
                self.to_host += size
            else:
                self.from_host += size
        if done and trace.sink is not None:
            what = "read" if to_host else "write"
            trace.sink("dma", {"began": began, **_described(command, views, to_host=to_host)})
            trace.sink("media.at_once", {"began": began, "what": what, "offset": offset})
        return done


def _described(
    command: Command, views: Sequence[memoryview], *, to_host: bool
) -> dict[str, object]:
    qid, cid = command.key
    size = sum(map(len, views))
    return {"qid": qid, "cid": cid, "to_host": to_host, "bytes": size, "pieces": len(views)}
