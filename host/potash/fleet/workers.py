"""Tasks in parallel: in processes of this machine, or on a Dask cluster's workers.

A task is a function's argument, and nothing in it may depend on the process it runs in. Both give
each task's number with its outcome as it comes, and leave nothing running when the block ends,
whatever ends it.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from potash.fleet.cluster import completed, connected
from potash.sdk.errors import PotashError
from potash.signals import handling

_PR_SET_PDEATHSIG = 1


_Task = TypeVar("_Task")
_Outcome = TypeVar("_Outcome")
Workers = Callable[[Sequence[_Task]], Iterator[tuple[int, _Outcome]]]


@contextmanager
def local(
    carry_out: Callable[[_Task], _Outcome], count: int | None = None
) -> Iterator[Workers[_Task, _Outcome]]:
    """`count` processes of this machine, by default one for each processor that this one may use.

    They begin afresh and end with this one.
    """
    count = count or len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_tie, initargs=(os.getpid(),))

    def work(tasks: Sequence[_Task]) -> Iterator[tuple[int, _Outcome]]:
        with _interrupted_later():
            futures = {pool.submit(carry_out, task): at for at, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise PotashError(
                "a worker has ended before its work was done; there may be too little memory for "
                f"{count} of them: try --jobs 1"
            ) from None

    try:
        yield work
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        for process in multiprocessing.active_children():
            process.join()


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """An interrupt while processes start comes when they have started: one that has only half of
    what it begins with would say so on the terminal.

    They inherit that it is blocked, as it is not their business. In this process that is not
    enough: any other thread may take it for the main one.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    in_main = threading.current_thread() is threading.main_thread()
    with handling({one: lambda number, _: came.append(number) for one in numbers if in_main}):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def cluster(
    carry_out: Callable[[_Task], _Outcome], address: str
) -> Iterator[Workers[_Task, _Outcome]]:
    """The workers of the Dask scheduler at `address`, which must have Potash installed. Raises
    PotashError where there is no such scheduler, or no Dask."""
    with connected(address) as client:

        def work(tasks: Sequence[_Task]) -> Iterator[tuple[int, _Outcome]]:
            if not client.nthreads():
                raise PotashError(f"the Dask scheduler at {address} has no workers; start one")
            for at, future in completed(client, client.map(carry_out, tasks, pure=False)):
                try:
                    yield at, future.result()
                except (OSError, ImportError) as error:
                    why = f"{type(error).__name__}: {error}"
                    raise PotashError(f"a worker of {address} failed: {why}") from None

        yield work


def _tie(parent: int) -> None:
    """In a worker: end with the process that started it, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
