"""Arrays of a drive's state, and of a batch of requests, as compiled code finds them.

Compiled code gets the address of an array of words. Each array is there as numba has it
(`numba.core.datamodel`, ArrayModel): two pointers that are not used, the number of items, their
size, the address, the shape and the strides.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.flash.profile import Profile, Rate
from potash_firmware.ftl.state import DriveState, new_state

SMALLEST = Profile(
    channels=1, dies=1, planes=1, blocks=8, pages=1, page_bytes=4096, program_pages=1,
    capacity=4096, read_ns=(1,), program_ns=(1,), erase_ns=1, bus=Rate(1, 1), link=Rate(1, 1),
)  # fmt: skip
"""A drive for which the same code is compiled as for any other."""


class Batch(NamedTuple):
    """Requests (rows with the columns of `REQUEST`), their completions, and a heap of completion
    times or nothing."""

    requests: NDArray[np.int64]
    completions: NDArray[np.int64]
    flying: NDArray[np.int64]


class Words:
    """Arrays as compiled code finds them, which live as long as this. Raises TypeError for arrays
    of other types than it was compiled for."""

    def __init__(self, arrays: DriveState | Batch) -> None:
        flat = list(_flat(arrays))
        expected = _state_types() if isinstance(arrays, DriveState) else _batch_types()
        if [(array.dtype, array.ndim) for array in flat] != expected or not all(
            array.flags.c_contiguous for array in flat
        ):
            raise TypeError("compiled code was compiled for arrays of other types")
        self._arrays = flat
        words = [word for array in flat for word in _words(array)]
        kept = np.array([*words, 0, 0], np.int64)
        self.results: memoryview[int] = kept[-2:].data
        """The result of `run`, and its error."""
        self.address: int = kept.ctypes.data
        result = self.address + kept.itemsize * len(words)
        self.pointers = result, result + kept.itemsize


def _flat(arrays: tuple[Any, ...]) -> Iterator[NDArray[Any]]:
    for part in arrays:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part


def sample_state() -> DriveState:
    """Arrays of the types for which code is compiled."""
    return new_state(SMALLEST, [0])


def sample_batch() -> Batch:
    """The same of a batch."""
    return Batch(np.zeros((1, 1), np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))


@functools.cache
def _state_types() -> list[tuple[np.dtype[Any], int]]:
    """Element types and dimensions of the arrays of a state."""
    return [(array.dtype, array.ndim) for array in _flat(sample_state())]


@functools.cache
def _batch_types() -> list[tuple[np.dtype[Any], int]]:
    """The same of a batch."""
    return [(array.dtype, array.ndim) for array in _flat(sample_batch())]


def _words(array: NDArray[Any]) -> tuple[int, ...]:
    return (0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides)
