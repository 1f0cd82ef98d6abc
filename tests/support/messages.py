"""The client's end of messages for its memory, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyvfio_user.dma_messages import TransferError
from pyvfio_user.protocol import Buffer


class LocalMessages:
    """`DmaMessages` of a client whose `memory` begins at address 0.

    It refuses what `refuses` says, and what is behind its memory. A command of its own comes first when `interrupts` says so, and
    every transfer fails then until the test sets `interrupted` back, as the server does.
    """

    possible = True

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.interrupted = False
        self.refuses: Callable[[int, int], bool] = lambda address, count: False
        self.interrupts: Callable[[], bool] = lambda: False
        self.on_write: Callable[[], None] = lambda: None
        """Called after each piece that is written."""
        self.reads: list[list[tuple[int, int]]] = []
        self.writes: list[list[tuple[int, int]]] = []
        """Address and size of each piece of each transfer."""

    def read(self, wanted: Sequence[tuple[int, memoryview]]) -> None:
        self.reads.append([(address, len(piece)) for address, piece in wanted])
        for address, into in self._allowed(wanted):
            into[:] = self.memory[address : address + len(into)]

    def write(self, pieces: Sequence[tuple[int, Buffer]]) -> None:
        self.writes.append([(address, len(piece)) for address, piece in pieces])
        for address, data in self._allowed(pieces):
            self.memory[address : address + len(data)] = data
            self.on_write()

    def _allowed(self, pieces: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Those that are done; raises TransferError for the first that is not."""
        for address, piece in pieces:
            self.interrupted = self.interrupted or self.interrupts()
            if self.interrupted:
                raise TransferError("a command comes first")
            if self.refuses(address, len(piece)) or address + len(piece) > len(self.memory):
                raise TransferError("refused")
            yield address, piece
