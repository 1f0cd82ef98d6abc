"""Jobs in a real APU process: what a program reads and leaves, and how its end is told."""

from collections.abc import Iterator

import pytest

from csd_spec.status import StatusId
from support.apu import BUFFER, Board, board
from support.bpf import exit_, load, mov, store
from support.program import object_file

PRINT, SET_OUTPUT_LENGTH = 1, 4

RETURN_7 = object_file(mov(0, 7) + exit_)
COPY_8 = object_file(load(6, 1) + store(2, 6) + mov(0, -1) + exit_)


@pytest.fixture
def apu() -> Iterator[Board]:
    with board() as made:
        yield made


def test_a_program_copies_its_input_and_its_return_value_is_told(apu: Board) -> None:
    status = apu.run(COPY_8, b"ABCDEFGH12345678")
    assert status.status == StatusId.DONE
    assert (status.consumed, status.produced, status.return_value) == (16, BUFFER, -1)
    assert apu.read_data(12) == b"ABCDEFGH\0\0\0\0"
