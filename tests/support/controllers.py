"""Hosts of the controllers of one NVM subsystem, each with memory and queues of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from potash_device.board import Board
from pyvfio_user.irqs import InterruptLines
from pyvfio_user.memory import AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from support.nvme_host import ADMIN_CQ, ADMIN_SQ, MEMORY, Host, Lines, Queue


class OtherHost(Host):
    """The host of a further controller of a drive."""

    def __init__(self, first: Host, board: Board) -> None:
        self.first = first
        self.board, self.rpu, self.executor = board, first.rpu, first.executor
        self.memory = SealedMemory(MEMORY)
        self.space = AddressSpace()
        self.space.map(0, MEMORY, fd=self.memory.fd, offset=0, readable=True, writable=True)
        self.lines = Lines()
        self.css = first.css
        self.cmb_at = None
        self.admin = Queue(0, ADMIN_SQ, ADMIN_CQ, 16)
        self.io = {}
        board.attached(self.space, cast(InterruptLines, self.lines))

    @property
    def now(self) -> float:
        return self.first.now

    @now.setter
    def now(self, now: float) -> None:
        self.first.now = now

    def __exit__(self, *_: object) -> None:
        self.board.detached()
        self.space.unmap_all()
        self.memory.close()


@contextmanager
def controllers(count: int, **settings: Any) -> Iterator[list[Host]]:
    """A drive with so many controllers, and the host of each, which has enabled it."""
    with Host(controllers=count, **settings) as first:
        hosts: list[Host] = [first, *(OtherHost(first, board) for board in first.boards[1:])]
        for host in hosts:
            host.css = 6
            host.enable()
        yield hosts
        for host in hosts[1:]:
            host.__exit__()
