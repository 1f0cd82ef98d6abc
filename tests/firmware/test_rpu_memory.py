"""Memory namespaces: Memory Read, Write, Fill and Flush, in bytes."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.memory import (
    COMPUTE,
    FILL,
    FLUSH,
    INVALID_FIELD,
    MEMORY,
    MIB,
    READ,
    WRITE,
    move,
    powered,
    read,
    write,
)
from support.nvme_host import DATA, Host

SIZE = 2 * MIB
INVALID_OPCODE = 1


@pytest.fixture
def host() -> Iterator[Host]:
    with powered() as found:
        yield found


def test_what_is_written_is_read_and_the_rest_is_zero(host: Host) -> None:
    content = bytes(range(256)) * 16
    write(host, content, 4096 + 4)
    assert read(host, 8192, 4096) == bytes(4) + content + bytes(4092)
    assert read(host, 4, SIZE - 4) == bytes(4)


def test_fill_writes_zeroes(host: Host) -> None:
    write(host, b"A" * 8192)
    assert move(host, FILL, 4, 4096).status == 0
    assert read(host, 8192) == b"A" * 4 + bytes(4096) + b"A" * 4092


def test_a_large_fill_is_done_by_the_executor(host: Host) -> None:
    write(host, b"A" * 4096)
    write(host, b"B" * 4096, SIZE - 4096)
    assert move(host, FILL, 4, SIZE - 8).status == 0
    assert read(host, 8, 0) == b"A" * 4 + bytes(4)
    assert read(host, 8, SIZE - 8) == bytes(4) + b"B" * 4


@pytest.mark.parametrize("opcode", [READ, WRITE, FILL])
@pytest.mark.parametrize(
    ("start", "length"),
    [(1, 4), (2, 4), (0, 3), (0, 4097), (SIZE - 4, 8), (SIZE, 4), (1 << 63, 4), ((1 << 64) - 4, 8)],
)
def test_bytes_outside_or_no_whole_dwords(host: Host, opcode: int, start: int, length: int) -> None:
    write(host, b"A" * 4096)
    host.put(b"B" * 8192)
    done = move(host, opcode, start, length)
    assert (done.status, done.dnr) == (INVALID_FIELD, True)
    assert host.data(8192) == b"B" * 8192
    assert read(host, 4096) == b"A" * 4096


@pytest.mark.parametrize("opcode", [READ, WRITE, FILL])
def test_nothing_is_moved_by_a_length_of_zero(host: Host, opcode: int) -> None:
    host.put(b"B" * 8)
    for start in (0, SIZE):
        done = host.command(host.io[1], opcode, nsid=MEMORY, prp1=0, cdws=(start, 0, 0))
        assert (done.status, done.dw0) == (0, 0)
    assert host.data(8) == b"B" * 8


def test_no_more_than_mdts_moves_at_once(host: Host) -> None:
    for opcode in (READ, WRITE):
        assert move(host, opcode, 0, MIB // 2 + 4).status == INVALID_FIELD


def test_memory_that_the_host_does_not_have_is_an_error(host: Host) -> None:
    write(host, b"A" * 4096)
    done = host.command(host.io[1], WRITE, nsid=MEMORY, prp1=1 << 50, cdws=(0, 0, 4096))
    assert done.status != 0
    assert read(host, 4096) == b"A" * 4096


def test_commands_of_other_command_sets_are_no_commands_here(host: Host) -> None:
    for opcode in (0x08, 0x09, 0x0C, 0x19, 0x81, 0x91):
        done = host.command(host.io[1], opcode, nsid=MEMORY)
        assert (done.status, done.dnr) == (INVALID_OPCODE, True), hex(opcode)
    assert host.command(host.io[1], READ, nsid=COMPUTE, prp1=DATA).status == INVALID_OPCODE


def test_a_controller_reset_keeps_the_bytes(host: Host) -> None:
    write(host, b"A" * 4096)
    host.disable()
    host.enable()
    host.create_io_queue()
    assert read(host, 4096) == b"A" * 4096


@pytest.mark.parametrize(
    "reset",
    [
        lambda host: host.write32(0x20, 0x4E56_4D65),
        lambda host: host.board.reset(),
        lambda host: (host.board.detached(), host.board.attached(host.space, host.lines)),
    ],
    ids=["subsystem reset", "function reset", "another client"],
)
def test_who_may_be_another_tenant_finds_zeroes(
    host: Host, reset: Callable[[Host], object]
) -> None:
    write(host, b"A" * 4096)
    for _ in range(2):
        reset(host)
        host.service()
    assert len(host.executor.waiting) <= 1, "memory that was not used is not replaced"
    host.enable()
    host.create_io_queue()
    assert read(host, 4096) == bytes(4096)
    write(host, b"B" * 4096)
    host.executor.run_all()
    assert read(host, 4096) == b"B" * 4096


def test_there_is_no_memory_left_for_the_next_tenant(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(host, b"A" * 4096)

    def fails(size: int) -> None:
        raise OSError(12, "no memory")

    monkeypatch.setattr("potash_firmware.rpu.namespaces.memory.Memory", fails)
    host.board.reset()
    host.enable()
    host.create_io_queue()
    assert read(host, 4096) == bytes(4096)


def test_a_deleted_namespace_leaves_nothing_to_the_next_one(host: Host) -> None:
    write(host, b"A" * 4096)
    assert host.command(host.admin, 0x0D, nsid=MEMORY, cdws=(1,)).status == 0
    host.put(SIZE.to_bytes(8, "little") * 2 + bytes(4080))
    made = host.command(host.admin, 0x0D, cdws=(0, 3 << 24))
    assert (made.status, made.dw0) == (0, MEMORY)
    host.put(b"\x01\0\0\0" + bytes(4092))
    assert host.command(host.admin, 0x15, nsid=MEMORY, cdws=(0,)).status == 0
    assert read(host, 4096) == bytes(4096)


def test_flush_of_each_and_of_all(host: Host) -> None:
    for nsid in (1, MEMORY, COMPUTE, 0xFFFF_FFFF):
        assert host.command(host.io[1], FLUSH, nsid=nsid).status == 0


def test_a_sanitize_operation_keeps_commands_out_and_leaves_zeroes(host: Host) -> None:
    write(host, b"A" * 4096)
    host.place(host.admin, 0x84, 1, cdws=(2,))
    host.ring(host.admin)
    host.service()
    host.executor.run_next()
    host.service()
    for opcode in (READ, WRITE, FILL):
        host.place(host.io[1], opcode, opcode, nsid=MEMORY, prp1=DATA, cdws=(0, 0, 4096))
    host.ring(host.io[1])
    host.service()
    assert {done.status for done in host.reap(host.io[1])} == {0x1D}
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    assert read(host, 4096) == bytes(4096)


def test_formats_are_of_blocks_alone(host: Host) -> None:
    write(host, b"A" * 4096)
    assert host.command(host.admin, 0x80, nsid=MEMORY).status == 0xB
    assert host.command(host.admin, 0x80, nsid=0xFFFF_FFFF, cdws=(1 | 1 << 9,)).status == 0
    assert read(host, 4096) == b"A" * 4096
    for nsid in (MEMORY, COMPUTE):
        assert host.command(host.admin, 0x14, nsid=nsid, cdws=(1,)).status == 0xB
        assert host.command(host.admin, 0x86, nsid=nsid, cdws=(0, 0, 7, 0x11 << 24)).status == 0xB
        assert host.command(host.admin, 0x09, nsid=nsid, cdws=(5, 1)).status == 0xB


def test_no_descriptor_of_memory_is_left_behind() -> None:
    def memories() -> int:
        links = (Path("/proc/self/fd") / one for one in os.listdir("/proc/self/fd"))
        return sum(
            os.readlink(one).startswith("/memfd:potash-media") for one in links if one.is_symlink()
        )

    gc.collect()
    before = memories()
    with powered() as host:
        present = memories()
        for _ in range(3):
            write(host, b"A" * 4096)
            host.board.reset()
            host.enable()
            host.create_io_queue()
            host.executor.run_all()
            host.service()
            assert memories() == present
        assert host.command(host.admin, 0x0D, nsid=MEMORY, cdws=(1,)).status == 0
        assert memories() == present - 2, "a mapping has a descriptor of its own"
    assert memories() == before
