"""Media that remember what was done to them, and tell what a loss of power at any point would
leave.

A process that is killed loses nothing that the system has taken, so killing one proves little of
durability. These media keep a log of every write and flush, into which whoever uses them notes what
was promised to whom. Cut at any point, the log says what each block may hold then: everything that
a completed flush covers is there, and of the rest each block is old or new, in any combination.

An instrument for tests; the blocks themselves are in memory, and every access goes to the executor,
as it does for a file.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self

from potash_device.media.store import MemoryMedia


class Step(Enum):
    """What a line of the log says."""

    WRITE_BEGUN = "a write has begun"
    WRITE_ENDED = "a write has ended"
    FLUSH_BEGUN = "a flush has begun"
    FLUSH_ENDED = "a flush has ended"
    NOTED = "somebody has noted something"


class Line(NamedTuple):
    """One line of the log; `what` is the note, or the first byte and length of a write."""

    step: Step
    what: object = None


@dataclass(slots=True)
class Life:
    """What one write brought to one block; times are positions in the log.

    `durable` is when that was known to be on stable storage, or acknowledged to be: the same form
    serves for what media have done and for what a host was promised.
    """

    content: bytes
    begun: int
    ended: int | None = None
    durable: int | None = None


def may_remain(lives: Iterable[Life], cut: int) -> set[bytes]:
    """What a block may hold when everything stops before the log's line `cut`.

    Any content that was on its way by then, unless it had ended before another one began that was
    durable by then.
    """
    begun = [life for life in lives if life.begun < cut]
    kept = [life for life in begun if life.durable is not None and life.durable < cut]
    return {
        life.content
        for life in begun
        if not any(life.ended is not None and life.ended < other.begun for other in kept)
    }


class RecordingMedia(MemoryMedia):
    """Zeroed blocks of `block_size` bytes, and the log of all that has happened to them."""

    block_size = 4096

    def __init__(self, fd: int, size: int, *, read_only: bool = False) -> None:
        super().__init__(fd, size, read_only=read_only)
        self.log: list[Line] = []
        self._lives: dict[int, list[Life]] = {}
        self._lock = threading.Lock()

    @classmethod
    def with_blocks(cls, size: int, block_size: int) -> Self:
        """As `create`, with blocks of another size."""
        media = cls.create(size)
        media.block_size = block_size
        return media

    def note(self, what: object) -> int:
        """Add a line of the user's own to the log; its position."""
        with self._lock:
            return self._add(Step.NOTED, what)

    def after_power_loss(self, block: int, cut: int) -> set[bytes]:
        """What `block` may hold when power is lost before the log's line `cut`."""
        first = Life(bytes(self.block_size), -1, -1, -1)
        return may_remain([first, *self._lives.get(block, [])], cut)

    def read_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        """Never: the executor reads."""
        return False

    def write_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        """Never: the executor writes."""
        return False

    def write_from(self, views: Sequence[memoryview], offset: int) -> None:
        """As `Media.write_from`. Raises ValueError for a part of a block, which could tear it."""
        self._record(
            b"".join(views), offset, lambda: super(RecordingMedia, self).write_from(views, offset)
        )

    def punch(self, offset: int, length: int) -> None:
        """As `Media.punch`: to a reader it is a write of zeroes. Raises ValueError as above."""
        self._record(
            bytes(length), offset, lambda: super(RecordingMedia, self).punch(offset, length)
        )

    def _record(self, content: bytes, offset: int, write: Callable[[], None]) -> None:
        if offset % self.block_size or len(content) % self.block_size:
            raise ValueError(f"{len(content)} bytes at {offset} are not whole blocks")
        with self._lock:
            at = self._add(Step.WRITE_BEGUN, (offset, len(content)))
            lives = []
            for start in range(0, len(content), self.block_size):
                life = Life(content[start : start + self.block_size], at)
                self._lives.setdefault((offset + start) // self.block_size, []).append(life)
                lives.append(life)
        write()
        with self._lock:
            at = self._add(Step.WRITE_ENDED, (offset, len(content)))
            for life in lives:
                life.ended = at

    def flush(self) -> None:
        """As `Media.flush`: what was written before it begins is durable when it ends."""
        with self._lock:
            self._add(Step.FLUSH_BEGUN)
            covered = [
                life
                for lives in self._lives.values()
                for life in lives
                if life.ended is not None and life.durable is None
            ]
        super().flush()
        with self._lock:
            at = self._add(Step.FLUSH_ENDED)
            for life in covered:
                if life.durable is None:
                    life.durable = at

    def _add(self, step: Step, what: object = None) -> int:
        self.log.append(Line(step, what))
        return len(self.log) - 1
