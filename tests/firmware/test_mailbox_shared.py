"""The shared memory is what both sides agreed on, and nobody can pull it away."""

import os

import pytest

from potash_firmware.mailbox import ArenaPlan, MailboxError, SharedBuffers
from potash_firmware.mailbox.shared import SLOT_SIZE, SLOTS, STATE_SIZE, SharedMemory

PLAN = ArenaPlan(input_size=8192, output_size=5000)


def test_parts_of_an_arena_start_on_pages_and_do_not_overlap() -> None:
    assert PLAN.input_offset % 4096 == 0
    assert PLAN.output_offset == PLAN.input_offset + 8192
    assert PLAN.data_offset == PLAN.output_offset + 8192
    assert PLAN.writes_offset == PLAN.data_offset + PLAN.data_size
    assert PLAN.size == PLAN.writes_offset + PLAN.writes_size


def test_two_processes_would_see_the_same_bytes() -> None:
    with SharedBuffers.create({4: PLAN}) as made:
        names = made.descriptors()
        assert set(names) == {"state", "transfer", "arena4"}
        transfer, state, arena = (os.dup(names[key]) for key in ("transfer", "state", "arena4"))
        with SharedBuffers.adopt(transfer, state, {4: (arena, PLAN)}) as adopted:
            made.slot(15)[-1] = 7
            made.arena(4)[PLAN.output_offset] = 8
            assert adopted.slot(15)[SLOT_SIZE - 1] == 7
            assert adopted.arena(4)[PLAN.output_offset] == 8
            assert adopted.state.size == STATE_SIZE


def test_slots_do_not_overlap() -> None:
    with SharedBuffers.create({}) as made:
        for index in range(SLOTS):
            made.slot(index)[:] = bytes([index]) * SLOT_SIZE
        assert all(set(bytes(made.slot(index)[::4096])) == {index} for index in range(SLOTS))


@pytest.mark.parametrize("index", [-1, SLOTS])
def test_there_are_no_other_slots_or_arenas(index: int) -> None:
    with SharedBuffers.create({}) as made:
        with pytest.raises(MailboxError):
            made.slot(index)
        with pytest.raises(MailboxError):
            made.arena(index)


def test_shared_memory_cannot_be_resized() -> None:
    with SharedBuffers.create({0: PLAN}) as made:
        for fd in made.descriptors().values():
            for size in (0, 1 << 40):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, size)


def test_memory_of_another_size_or_unsealed_is_not_adopted() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    reader, writer = os.pipe()
    memory = SharedMemory(4096, "sealed")
    try:
        os.ftruncate(fd, 4096)
        with pytest.raises(MailboxError, match="sealed"):
            SharedMemory.adopt(fd, 4096)
        with pytest.raises(MailboxError, match="8192"):
            SharedMemory.adopt(memory.fd, 8192)
        with pytest.raises(MailboxError):
            SharedMemory.adopt(reader, 4096)
    finally:
        memory.close()
        for item in (fd, reader, writer):
            os.close(item)


def test_discarded_bytes_are_zero_and_their_neighbours_stay() -> None:
    memory = SharedMemory(3 * 4096, "discard")
    try:
        memory.view[:] = b"\xaa" * len(memory.view)
        memory.discard(4096, 4096)
        assert bytes(memory.view[4096:8192]) == bytes(4096)
        assert set(bytes(memory.view[:4096])) == set(bytes(memory.view[8192:])) == {0xAA}
    finally:
        memory.close()


def test_closing_releases_the_descriptors() -> None:
    made = SharedBuffers.create({0: PLAN})
    fds = list(made.descriptors().values())
    made.close()
    made.close()
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)
