"""Load Program and Program Activation Management, rule by rule; and log pages 82h and 83h.

Expected statuses are those of the tables that implementers of the command set agree on.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.compute import state
from potash_firmware.rpu.compute.engine import Shared
from support.compute import (
    ACTIVATION,
    BLOCKS,
    BUILT_IN,
    COMPUTE,
    LOAD,
    MEMORY,
    OTHER_COMPUTE,
    SMALL,
    ComputeHost,
    compute_host,
)
from support.nvme_host import DATA, Cqe, Queue

INVALID_FIELD, INVALID_NAMESPACE, INTERNAL_ERROR = 0x002, 0x00B, 0x006
INVALID_PROGRAM_DATA, INVALID_PROGRAM_INDEX, INVALID_PROGRAM_TYPE = 0x18E, 0x18F, 0x190
INSUFFICIENT, TOO_MANY_ACTIVATED, TOO_MANY_BYTES, NO_PROGRAM = 0x18A, 0x193, 0x194, 0x196
IN_USE, NOT_DOWNLOADABLE, TOO_BIG = 0x199, 0x19A, 0x19B

PROGRAM = bytes(range(256)) * 2


@pytest.fixture
def host() -> Iterator[ComputeHost]:
    with compute_host() as host:
        yield host


@pytest.fixture
def queue(host: ComputeHost) -> Queue:
    return host.create_io_queue()


def refused(completion: Cqe, status: int, *, dnr: bool = True) -> bool:
    return (completion.status, completion.dnr) == (status, dnr)


def log(host: ComputeHost, lid: int, size: int, nsid: int = COMPUTE, **fields: int) -> bytes:
    words = ((size // 4 - 1) << 16 | lid, fields.get("lsi", 0) << 16, 0, 0)
    csi = fields.get("csi", 4) << 24
    assert host.command(host.admin, 2, nsid=nsid, cdws=(*words, csi), prp2=0).status == 0
    return host.data(size)


def programs(host: ComputeHost, nsid: int = COMPUTE) -> list[bytes]:
    """The descriptors of the Program List."""
    page = log(host, 0x82, 64 + 64 * SMALL.programs, nsid)
    assert page[:64] == struct.pack("<I", SMALL.programs) + bytes(60)
    return [page[at : at + 64] for at in range(64, len(page), 64)]


def image(host: ComputeHost) -> bytes:
    """The program that the engine was last asked to check."""
    program, _ = host.engine.checks[-1]
    return os.pread(program.fd, program.length + 1, 0)


# Whole programs.


def test_a_program_in_one_piece_is_loaded_activated_and_unloaded(host: ComputeHost) -> None:
    host.engine.verdict = None
    assert programs(host)[2] == bytes(64)
    assert host.load(2, PROGRAM, pit=1, pid=0x1122_3344_5566_7788).status == 0
    assert programs(host)[2] == bytes.fromhex("09c0 000000000000 8877665544332211") + bytes(48)
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.ring(host.admin)
    assert host.answers(host.admin) == []
    assert image(host) == PROGRAM
    host.engine.end_check(Outcome.RETURNED)
    assert host.answers(host.admin) == [(7, 0, False)]
    assert programs(host)[2][0] == 1 | 1 << 2 | 1 << 3
    assert host.deactivate(2).status == 0
    assert host.unload(2).status == 0
    assert programs(host)[2] == bytes(64)


def test_the_memory_of_a_program_cannot_be_written(host: ComputeHost) -> None:
    host.engine.verdict = None
    assert host.load(2, PROGRAM).status == 0
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.ring(host.admin)
    host.service()
    program, _ = host.engine.checks[0]
    with pytest.raises(PermissionError):
        os.pwrite(program.fd, b"\0", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(program.fd, 0)


def test_a_serial_number_names_one_program(host: ComputeHost) -> None:
    handles = []
    for _ in range(3):
        assert host.load(2, PROGRAM).status == 0
        host.engine.verdict = None
        host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
        host.ring(host.admin)
        host.service()
        handles.append(host.engine.checks[0][0].handle)
        host.engine.end_check(Outcome.RETURNED)
        assert host.answers(host.admin) == [(7, 0, False)]
        assert host.deactivate(2).status == 0
        assert host.unload(2).status == 0
    assert len(set(handles)) == 3
    assert host.engine.forgotten == handles


def test_namespaces_have_programs_of_their_own(host: ComputeHost) -> None:
    assert host.load(2, PROGRAM).status == 0
    assert programs(host, OTHER_COMPUTE)[2] == bytes(64)
    assert refused(host.activate(2, nsid=OTHER_COMPUTE), NO_PROGRAM)
    assert host.load(2, PROGRAM, nsid=OTHER_COMPUTE).status == 0
    assert host.unload(2).status == 0
    assert programs(host, OTHER_COMPUTE)[2][0] == 1


# Pieces.


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (0, 0, 1, 3, 2)])
def test_pieces_in_any_order(host: ComputeHost, order: tuple[int, ...]) -> None:
    for at, piece in enumerate(order):
        data = PROGRAM[128 * piece : 128 * piece + 128]
        assert host.load(2, data, psize=512, loff=128 * piece).status == 0
        if at < len(order) - 1:
            assert programs(host)[2][0] == 1
            assert refused(host.activate(2), INVALID_PROGRAM_DATA)
    host.engine.verdict = None
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.ring(host.admin)
    host.service()
    assert image(host) == PROGRAM


def test_pieces_that_overlap(host: ComputeHost) -> None:
    assert host.load(2, b"x" * 300, psize=512, loff=100).status == 0
    assert host.load(2, PROGRAM[:200], psize=512).status == 0
    assert host.load(2, PROGRAM[150:], psize=512, loff=150).status == 0
    host.engine.verdict = None
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.ring(host.admin)
    host.service()
    assert image(host) == PROGRAM


def test_a_program_that_is_not_whole_can_be_unloaded(host: ComputeHost) -> None:
    assert host.load(2, PROGRAM[:8], psize=512).status == 0
    assert host.unload(2).status == 0
    assert host.load(2, PROGRAM[:16], psize=16).status == 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"psize": 520}, INVALID_FIELD),
        ({"pid": 6}, INVALID_FIELD),
        ({"pit": 0, "pid": 0}, INVALID_FIELD),
        ({"ptype": 0xC1}, INVALID_PROGRAM_TYPE),
    ],
)
def test_what_is_said_of_a_program_stays(
    host: ComputeHost, fields: dict[str, int], status: int
) -> None:
    first = {"psize": 512, "pit": 1, "pid": 5}
    assert host.load(2, PROGRAM[:256], **first).status == 0
    before = programs(host)
    assert refused(host.load(2, PROGRAM[256:], loff=256, **{**first, **fields}), status)
    assert programs(host) == before
    assert host.load(2, PROGRAM[256:], loff=256, **first).status == 0


def test_a_host_cannot_make_gaps_without_end(host: ComputeHost) -> None:
    size = 8 * 1024
    for at in range(1023):
        assert host.load(2, b"x", psize=size, loff=8 * at + 1).status == 0
    assert refused(host.load(2, b"x", psize=size, loff=8190), INSUFFICIENT)
    assert host.unload(2).status == 0


# What cannot be loaded.


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"index": SMALL.programs}, INVALID_PROGRAM_INDEX),
        ({"index": 0xFFFF}, INVALID_PROGRAM_INDEX),
        ({"index": 0}, NOT_DOWNLOADABLE),
        ({"index": BUILT_IN - 1}, NOT_DOWNLOADABLE),
        ({"psize": 0}, INVALID_PROGRAM_DATA),
        ({"psize": 513}, INVALID_PROGRAM_DATA),
        ({"psize": 516}, INVALID_PROGRAM_DATA),
        ({"psize": 504}, TOO_BIG),
        ({"psize": 512, "loff": 8}, TOO_BIG),
        ({"psize": 512, "loff": 0xFFFF_FFFF}, TOO_BIG),
        ({"psize": (1 << 20) + 8}, TOO_MANY_BYTES),
        ({"psize": 0xFFFF_FFF8}, TOO_MANY_BYTES),
        ({"piece": b"", "psize": 512}, INVALID_FIELD),
        ({"ptype": 0x00}, INVALID_PROGRAM_TYPE),
        ({"ptype": 0x01}, INVALID_PROGRAM_TYPE),
        ({"ptype": 0xFF}, INVALID_PROGRAM_TYPE),
        ({"pit": 2}, INVALID_FIELD),
        ({"pit": 7}, INVALID_FIELD),
        ({"nsid": 0}, INVALID_NAMESPACE),
        ({"nsid": BLOCKS}, INVALID_NAMESPACE),
        ({"nsid": MEMORY}, INVALID_NAMESPACE),
        ({"nsid": 0xFFFF_FFFF}, INVALID_NAMESPACE),
        ({"nsid": 9}, INVALID_FIELD),
    ],
)
def test_a_piece_that_is_refused_changes_nothing(
    host: ComputeHost, fields: dict[str, int], status: int
) -> None:
    before = programs(host)
    arguments = {"index": 2, "piece": PROGRAM, **fields}
    assert refused(host.load(**arguments), status)  # type: ignore[arg-type]  # of several kinds
    assert programs(host) == before


def test_a_piece_longer_than_one_transfer_is_refused(host: ComputeHost) -> None:
    """MDTS is 512 KiB."""
    size = (512 << 10) + 8
    done = host.command(host.admin, LOAD, nsid=COMPUTE, cdws=(2 | 0xC0 << 16, size, 0, 0, size, 0))
    assert refused(done, INVALID_FIELD)
    assert programs(host)[2] == bytes(64)


def test_a_piece_from_memory_that_is_not_there_changes_nothing(host: ComputeHost) -> None:
    words = (2 | 0xC0 << 16, 512, 0, 0, 512, 0)
    done = host.command(host.admin, LOAD, nsid=COMPUTE, cdws=words, prp1=1 << 40)
    assert done.status == 0x004
    assert programs(host)[2] == bytes(64)


def test_all_programs_together_have_a_limit(host: ComputeHost) -> None:
    assert host.load(2, PROGRAM, psize=1 << 19).status == 0
    assert host.load(3, PROGRAM, psize=1 << 19).status == 0
    assert refused(host.load(4, PROGRAM), TOO_MANY_BYTES)
    assert host.load(4, PROGRAM, nsid=OTHER_COMPUTE).status == 0
    assert host.unload(2).status == 0
    assert host.load(4, PROGRAM).status == 0


def test_an_index_that_holds_a_program_takes_no_other(host: ComputeHost) -> None:
    assert host.load(2, PROGRAM).status == 0
    assert refused(host.load(2, PROGRAM), IN_USE)
    assert host.activate(2).status == 0
    assert refused(host.load(2, PROGRAM), IN_USE)


def test_a_system_without_memory_is_named(
    host: ComputeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> int:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", none)
        assert refused(host.load(2, PROGRAM), INSUFFICIENT, dnr=False)
    assert programs(host)[2] == bytes(64)
    assert host.load(2, PROGRAM).status == 0


def test_the_drive_holds_so_many_programs(
    host: ComputeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a descriptor of the device's process."""
    monkeypatch.setattr(state, "LOADED_LIMIT", 3)
    assert host.load(2, PROGRAM).status == 0
    assert host.load(2, PROGRAM, nsid=OTHER_COMPUTE).status == 0
    assert host.load(3, PROGRAM, psize=1024).status == 0
    assert refused(host.load(4, PROGRAM), INSUFFICIENT, dnr=False)
    assert host.load(3, PROGRAM, psize=1024, loff=512).status == 0, "a piece of one that is there"
    assert host.unload(2, nsid=OTHER_COMPUTE).status == 0
    assert host.load(4, PROGRAM).status == 0


# Unload.


def test_unloading_what_cannot_be(host: ComputeHost) -> None:
    assert refused(host.unload(2), NO_PROGRAM)
    assert refused(host.unload(0), NOT_DOWNLOADABLE)
    assert refused(host.unload(SMALL.programs), INVALID_PROGRAM_INDEX)
    assert host.load(2, PROGRAM).status == 0
    assert host.activate(2).status == 0
    assert refused(host.unload(2), IN_USE)
    assert host.deactivate(2).status == 0
    assert host.unload(2).status == 0


# Activation.


def test_activation_of_what_is_not_there(host: ComputeHost) -> None:
    for sel in (0, 1):
        assert refused(host.activate(2, sel), NO_PROGRAM)
        assert refused(host.activate(SMALL.programs, sel), INVALID_PROGRAM_INDEX)
        assert refused(host.activate(0xFFFF, sel), INVALID_PROGRAM_INDEX)
        assert refused(host.activate(0, sel, nsid=MEMORY), INVALID_NAMESPACE)
    for sel in (2, 15):
        assert refused(host.activate(0, sel), INVALID_FIELD)


def test_the_state_that_is_there_already_is_a_success(host: ComputeHost) -> None:
    assert host.load(2, PROGRAM).status == 0
    assert host.deactivate(2).status == 0
    assert host.activate(2).status == 0
    assert host.activate(2).status == 0
    assert programs(host)[2][0] == 1 | 1 << 2


def test_device_defined_programs_are_activated_from_the_start(host: ComputeHost) -> None:
    first, second, *rest = programs(host)
    assert first == second == b"\x06" + bytes(63)
    assert not any(map(any, rest))
    assert host.deactivate(0).status == 0
    assert programs(host)[0] == b"\x02" + bytes(63)
    assert host.activate(0).status == 0
    assert not host.engine.checks


def test_as_many_programs_as_maxact_are_activated(host: ComputeHost) -> None:
    for index in range(2, 6):
        assert host.load(index, PROGRAM).status == 0
    for index in range(2, 5):
        assert host.activate(index).status == 0
    assert refused(host.activate(5), TOO_MANY_ACTIVATED)
    assert host.deactivate(0).status == 0
    assert host.activate(5).status == 0


def test_programs_that_are_not_sound(host: ComputeHost) -> None:
    host.engine.verdict = Outcome.REFUSED
    assert host.load(2, PROGRAM).status == 0
    assert refused(host.activate(2), INVALID_PROGRAM_DATA)
    assert programs(host)[2][0] == 1
    host.engine.verdict = Outcome.LOST
    assert refused(host.activate(2), INTERNAL_ERROR, dnr=False)
    host.engine.verdict = Outcome.RETURNED
    assert host.activate(2).status == 0
    host.engine.verdict = Outcome.REFUSED
    assert host.deactivate(2).status == 0
    assert host.activate(2).status == 0, "it was found to be sound"


def test_a_program_that_is_being_checked_is_in_use(host: ComputeHost, queue: Queue) -> None:
    host.engine.verdict = None
    assert host.load(2, PROGRAM).status == 0
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.ring(host.admin)
    assert host.answers(host.admin) == []
    assert refused(host.activate(2), IN_USE, dnr=False)
    assert refused(host.deactivate(2), IN_USE, dnr=False)
    assert refused(host.unload(2), IN_USE, dnr=False)
    assert refused(host.load(2, PROGRAM), IN_USE)
    assert host.refusal(queue, 2) == (0x198, True)
    host.engine.end_check(Outcome.RETURNED)
    assert host.answers(host.admin) == [(7, 0, False)]


def test_a_reset_during_a_check(host: ComputeHost) -> None:
    host.engine.verdict = None
    assert host.load(2, PROGRAM).status == 0
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.ring(host.admin)
    host.service()
    host.disable()
    host.enable()
    host.engine.end_check(Outcome.RETURNED)
    assert host.answers(host.admin) == []
    assert programs(host)[2][0] == 1
    assert host.activate(2).status == 0, "found to be sound, and activated by nobody yet"


def test_an_activation_is_aborted(host: ComputeHost) -> None:
    host.engine.verdict = None
    assert host.load(2, PROGRAM).status == 0
    host.place(host.admin, ACTIVATION, 7, nsid=COMPUTE, cdws=(2 | 1 << 16,))
    host.place(host.admin, 0x08, 8, cdws=(7 << 16,))
    host.ring(host.admin)
    assert host.answers(host.admin) == [(7, 0x007, False), (8, 0, False)]
    host.engine.end_check(Outcome.RETURNED)
    assert host.answers(host.admin) == []
    assert programs(host)[2][0] == 1


# Log pages.


def test_the_types_that_can_be_loaded(host: ComputeHost) -> None:
    page = log(host, 0x83, 64)
    assert page == struct.pack("<I", 1) + bytes(28) + b"\xc0" + bytes(31)


@pytest.mark.parametrize("lid", [0x82, 0x83, 0x84])
def test_whose_log_pages_they_are(host: ComputeHost, lid: int) -> None:
    def status(nsid: int, csi: int) -> int:
        return host.command(
            host.admin, 2, nsid=nsid, cdws=(15 << 16 | lid, 0, 0, 0, csi << 24)
        ).status

    assert status(COMPUTE, 4) == status(COMPUTE, 0) == 0
    assert status(COMPUTE, 3) == INVALID_FIELD
    for nsid in (0, BLOCKS, MEMORY, 0xFFFF_FFFF):
        assert status(nsid, 4) == INVALID_NAMESPACE
    assert status(9, 4) == INVALID_FIELD


def test_a_part_of_the_program_list(host: ComputeHost) -> None:
    done = host.command(host.admin, 2, nsid=COMPUTE, cdws=(15 << 16 | 0x82, 0, 64, 0, 4 << 24))
    assert done.status == 0
    assert host.data(64) == b"\x06" + bytes(63)


@pytest.mark.parametrize("opcode", [0x85, 0x88, 0x89])
def test_a_plain_drive_knows_none_of_it(opcode: int) -> None:
    """With CC.CSS = 0 there is the NVM command set alone."""
    with ComputeHost() as host:
        host.css = 0
        host.enable()
        assert refused(host.command(host.admin, opcode, nsid=COMPUTE), 0x001)
        assert host.command(host.admin, 2, nsid=COMPUTE, cdws=(15 << 16 | 0x82,)).status == 0x109


def test_more_programs_than_the_drive_has_indexes_for() -> None:
    with compute_host(replace(SMALL, programs=3)) as host:
        assert host.load(2, PROGRAM).status == 0
        assert refused(host.load(3, PROGRAM), INVALID_PROGRAM_INDEX)


def test_shared_programs_are_what_the_engine_is_given(host: ComputeHost, queue: Queue) -> None:
    assert host.load(2, PROGRAM).status == 0
    assert host.activate(2).status == 0
    host.begin(queue, 2)
    (asked,) = host.engine.asked
    assert isinstance(asked.program, Shared)
    assert os.pread(asked.program.fd, 1024, 0) == PROGRAM
    host.begin(queue, 1, 2)
    assert host.engine.asked[1].program == 1
    assert host.data(1, DATA) == PROGRAM[:1]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"programs": 1}, [6]), ({"programs": 4, "activated": 1}, [6, 2, 0, 0])],
)
def test_a_drive_with_less_room_than_device_defined_programs(
    limits: dict[str, Any], expected: list[int]
) -> None:
    with compute_host(replace(SMALL, **limits)) as host:
        page = log(host, 0x82, 64 + 64 * len(expected))
        assert list(page[64::64]) == expected
        if limits.get("activated"):
            assert refused(host.activate(1), TOO_MANY_ACTIVATED)
        assert host.deactivate(0).status == 0
        assert host.activate(0).status == 0
