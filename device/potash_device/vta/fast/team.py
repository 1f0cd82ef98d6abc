"""Threads that execute a stream together.

The first thread is the caller, whose buffers are the core's. The others wait for work in Python,
and execute it without the GIL.
"""

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast import paths
from potash_device.vta.fast.binding import Bound
from potash_device.vta.fast.division import Division
from potash_device.vta.fast.execution import LINE, Work, run

PAUSE = 50e-6
"""Seconds that a thread sleeps when it has waited for another thread for a while."""

LONGEST_REST = 63
"""Runs of a stream in one thread before several are tried again."""


@dataclass(slots=True)
class Pace:
    """The choice between one thread and several for a stream, by the times of its last runs.

    Several are slower where other work has the processors: waiting for a thread that has no
    processor takes a time slice.
    """

    alone: float = math.inf
    """Seconds of the last run in one thread."""
    rest: int = 0
    """Runs in one thread before the next one in several."""
    slower: int = 0
    """Runs in several threads that took longer, since the last one that did not."""

    def rests(self) -> bool:
        """True where the next run is to be in one thread. To be called once for each run."""
        self.rest -= self.rest > 0
        return self.rest > 0

    def took(self, seconds: float, *, divided: bool) -> None:
        """Record the time of a run in one thread, or of a `divided` run."""
        if not divided:
            self.alone = seconds
        elif seconds <= self.alone:
            self.slower = 0
        else:
            self.slower += 1
            self.rest = min(1 << self.slower, LONGEST_REST + 1)


_Work = SimpleQueue[Callable[[], None] | None]


class Team:
    """`threads` threads for a core with this path, including the caller.

    Raises RuntimeError where there cannot be so many threads.
    """

    def __init__(self, threads: int, path: str, config: Config) -> None:
        self._config = config
        lanes = config.batch * config.block_out
        accumulators = config.depth(MemoryId.ACC) * lanes
        self._buffers = [paths.make(path, config) for _ in range(threads - 1)]
        self._accs = [paths.aligned(accumulators, np.int32) for _ in range(threads - 1)]
        self._progress = paths.aligned(threads * LINE, np.int64)
        self._threads: list[threading.Thread] = []
        self._work: list[_Work] = []
        for _ in range(threads - 1):
            work: _Work = SimpleQueue()
            thread = threading.Thread(target=_serve, args=(work,), name="potash-vta", daemon=True)
            thread.start()
            weakref.finalize(self, work.put, None)
            self._work.append(work)
            self._threads.append(thread)

    @property
    def is_whole(self) -> bool:
        """False where threads are missing, as after a fork."""
        return all(thread.is_alive() for thread in self._threads)

    def shares(self, division: Division, work: Work) -> tuple[Bound, ...]:
        """The executions of a division's parts; `work` is that of the whole stream."""
        own = [(work.buffers, work.acc), *zip(self._buffers, self._accs, strict=True)]
        return tuple(
            Bound(
                run,
                work._replace(part=part, buffers=buffers, acc=acc, progress=self._progress),
            )
            for part, (buffers, acc) in zip(division.parts, own, strict=True)
        )

    def execute(
        self,
        division: Division,
        shares: Sequence[Bound],
        buffers: paths.Path,
        acc: NDArray[np.int32],
    ) -> None:
        """Execute a stream that is divided into one part for each thread. If this is interrupted,
        the team must not be used again, and the buffers are undefined."""
        config = self._config
        progress = self._progress
        progress[:] = 0

        def execute_part(thread: int) -> None:
            size, place = division.parts[thread].steps.size, 0
            while True:
                place = shares[thread](place, thread)
                if place > size:
                    return
                time.sleep(PAUSE)

        for number, work in enumerate(self._work):
            work.put(partial(execute_part, number + 1))
        try:
            execute_part(0)
        except BaseException:  # as an interrupt
            progress[:] = np.iinfo(np.int64).max  # nobody waits any more
            raise
        lanes = config.batch * config.block_out
        for memory, thread, begin, end in division.left:
            its_buffers, its_acc = self._buffers[thread - 1], self._accs[thread - 1]
            if memory is MemoryId.ACC:
                acc[begin * lanes : end * lanes] = its_acc[begin * lanes : end * lanes]
            else:
                paths.copy_elements(buffers, its_buffers, memory, begin, end, config)


def _serve(work: _Work) -> None:
    while (task := work.get()) is not None:
        task()
