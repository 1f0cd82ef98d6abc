"""Confinement of the APU's processes.

A worker keeps its channel, the memory of its accelerator, its connection to the compile service,
the counters, and the trace where there is one; a job brings read-only descriptors of the namespaces
that it names. A worker can read the code that it may still load, and cached compiled code; it
writes no file.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from potash_firmware import confinement
from potash_firmware.apu.config import Limits

CACHES = ("bpf", "models", "schedules", "vta")
"""Folders of what was compiled, which confined processes read."""

CPU_FACTOR = 2
"""A worker may take so many times the seconds of a job, with each thread that executes the tensor
accelerator's streams: one that a job has left behind ends."""

OPEN_FILES = 192
"""Descriptors: a job's namespaces are at most 64."""

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2


def confine_worker(limits: Limits, threads: int, keep: Collection[int]) -> None:
    """Confine this process, a worker, which needs the descriptors `keep` and has so many `threads`
    for the tensor accelerator. Raises OSError."""
    close_others(keep)
    confinement.confine(
        confinement.Bounds(
            memory=limits.memory,
            seconds=CPU_FACTOR * threads * max(1, int(limits.seconds)),
            open_files=OPEN_FILES,
            readable=confinement.libraries(),
            unlisted=_caches(),
        )
    )


def confine_compiler(limits: Limits, keep: Collection[int]) -> None:
    """Confine this process, which compiles or checks what one stranger sent. Raises OSError."""
    close_others(keep)
    seconds = max(1, int(limits.compile_seconds))
    confinement.confine(
        confinement.Bounds(
            memory=limits.compile_memory,
            seconds=seconds,
            readable=confinement.libraries(),
            unlisted=_caches(),
        )
    )


def close_others(keep: Collection[int]) -> None:
    """Close every descriptor but these and standard error, which takes what goes to standard
    output."""
    with suppress(OSError):
        os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    kept = {STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR, *keep}
    for number in os.listdir("/proc/self/fd"):
        if int(number) not in kept:
            with suppress(OSError):  # the one that the list was read by
                os.close(int(number))


def _caches() -> tuple[Path, ...]:
    """Directories that also have other clients' code: only a worker that has a program can name its
    code."""
    from potash_device import cache  # the fork server imports it, and the APU does without

    with suppress(RuntimeError):
        return tuple(cache.folder(name) for name in CACHES)
    return ()
