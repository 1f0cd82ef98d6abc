"""The words by which compiled code finds the arrays of a state and of a batch."""

import ctypes

import numpy as np
import pytest

from potash_device import placing
from potash_firmware.ftl import compiled
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import Op
from potash_firmware.ftl.state import DriveState
from potash_firmware.ftl.words import SMALLEST, Batch, Words, sample_state

ROWS, ONE = np.zeros((3, 7), np.int64), np.zeros(3, np.int64)


def test_words_are_those_of_arrays_as_numba_has_them() -> None:
    """Two pointers, items, their size, address, shape, strides; results follow."""
    words = Words(Batch(ROWS, ONE, ONE[:0]))
    found = (ctypes.c_int64 * 23).from_address(words.address)
    rows = [0, 0, 21, 8, ROWS.ctypes.data, 3, 7, 56, 8]
    assert list(found) == [
        *rows, 0, 0, 3, 8, ONE.ctypes.data, 3, 8, 0, 0, 0, 8, ONE[:0].ctypes.data, 0, 8
    ]  # fmt: skip
    assert words.pointers == (words.address + 23 * 8, words.address + 24 * 8)


@pytest.mark.parametrize(
    "arrays",
    [
        Batch(ROWS.astype(np.int32), ONE, ONE),
        Batch(ROWS, ONE.reshape(1, 3), ONE),
        Batch(ROWS[:, ::2], ONE, ONE),
        Batch(np.asfortranarray(ROWS), ONE, ONE),
        sample_state()._replace(places=ONE),
    ],
)
def test_arrays_of_other_types_are_refused(arrays: Batch | DriveState) -> None:
    """Compiled code does not check them."""
    with pytest.raises(TypeError, match="other types"):
        Words(arrays)


def _completions() -> list[int]:
    drive = Drive(SMALLEST)
    return [drive.submit(0, Op.WRITE, 0, 1), drive.submit(10**6, Op.READ, 0, 1)]


def test_llvm_loads_what_cannot_be_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    times = _completions()
    calls = []

    def refuse(*arguments: object) -> None:
        calls.append(arguments)
        raise placing.CannotPlaceError

    monkeypatch.setattr(placing, "place", refuse)
    monkeypatch.setattr(compiled, "_native", compiled._native.__wrapped__)
    assert _completions() == times
    assert calls
