"""The DMA windows of a client in the order of their addresses, none over another.

They are stored in a list of short sorted lists: a guest with an IOMMU has tens of thousands of
windows of a page, and inserting into one list of all of them would move half of it each time.
"""

from bisect import bisect_left, bisect_right, insort
from operator import attrgetter
from typing import NamedTuple

from pyvfio_user.files import Content

MOST_IN_LIST = 512
"""Windows of one list; a list with more is split in two."""


class Window(NamedTuple):
    """One window: the bytes for reading and for writing, each None where that is refused.

    Where there is no content the rights say what may be done by messages.
    """

    start: int
    end: int
    source: memoryview | None
    target: memoryview | None
    content: Content | None
    offset: int
    """Offset of the first byte in the file."""
    readable: bool
    writable: bool


_start = attrgetter("start")


class Windows:
    """Windows by address. Finding, adding or removing one takes a time that grows with the
    logarithm of their number."""

    def __init__(self) -> None:
        self._lists: list[list[Window]] = [[]]
        self._starts: list[int] = []
        """The least address of each list but the first, which has all lower ones."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def at(self, address: int) -> Window | None:
        """The window with the byte at `address`."""
        number = bisect_right(self._starts, address)
        windows = self._lists[number]
        at = bisect_right(windows, address, key=_start)
        if not at and number:  # a window of the list before may reach as far
            windows = self._lists[number - 1]
            at = len(windows)
        if not at or windows[at - 1].end <= address:
            return None
        return windows[at - 1]

    def within(self, start: int, end: int) -> list[Window]:
        """The windows with bytes from `start` to `end`, also those that reach beyond."""
        first = self.at(start)
        found = [] if first is None else [first]
        for number in range(bisect_right(self._starts, start), bisect_left(self._starts, end) + 1):
            windows = self._lists[number]
            behind = bisect_right(windows, start, key=_start)
            found += windows[behind : bisect_left(windows, end, key=_start)]
        return found

    def add(self, window: Window) -> None:
        """Add a window, which has no byte of another one."""
        number = bisect_right(self._starts, window.start)
        windows = self._lists[number]
        insort(windows, window, key=_start)
        self._count += 1
        if len(windows) > MOST_IN_LIST:
            upper = windows[MOST_IN_LIST // 2 :]
            del windows[MOST_IN_LIST // 2 :]
            self._lists.insert(number + 1, upper)
            self._starts.insert(number, upper[0].start)

    def remove(self, window: Window) -> None:
        """Remove one of the windows."""
        number = bisect_right(self._starts, window.start)
        windows = self._lists[number]
        del windows[bisect_left(windows, window.start, key=_start)]
        self._count -= 1
        if not windows and number:
            del self._lists[number], self._starts[number - 1]
