"""Device Self-test: what is looked at, its log, and everything that ends it."""

from pathlib import Path
from typing import NamedTuple

import pytest

from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import Media
from support.namespaces import (
    ALL,
    ATTACH,
    FORMAT,
    MANAGE,
    SANITIZE,
    SELF_TEST,
    begin,
    create,
    finish,
    format_,
    identify,
    io,
    log_page,
    powered,
)
from support.nvme_host import Host

MIB = 1 << 20
SHORT, EXTENDED, ABORT = 1, 2, 15


class Result(NamedTuple):
    """An entry of the log (Base 2.0, section 5.16.1.7)."""

    result: int
    code: int
    segment: int
    valid: int
    hours: int
    nsid: int
    lba: int
    status: int


class Log(NamedTuple):
    operation: int
    completion: int
    results: list[Result]


def log(host: Host) -> Log:
    page = log_page(host, 6, 564)
    results = []
    for at in range(4, 564, 28):
        entry = page[at : at + 28]
        if entry[0] & 15 == 15:
            assert entry[1:] == bytes(27)
            continue
        results.append(
            Result(
                entry[0] & 15,
                entry[0] >> 4,
                entry[1],
                entry[2],
                int.from_bytes(entry[4:12], "little"),
                int.from_bytes(entry[12:16], "little"),
                int.from_bytes(entry[16:24], "little"),
                entry[24] << 8 | entry[25],
            )
        )
    return Log(page[0], page[1], results)


def peek(host: Host) -> Log:
    """The log while the media do nothing."""
    begin(host, host.admin, 2, 0x99, cdws=(140 << 16 | 6,))
    assert 0x99 in [one.cid for one in host.reap(host.admin)]
    page = host.data(2)
    return Log(page[0], page[1], [])


def start(host: Host, code: int, nsid: int = ALL) -> None:
    """Give the command, and let nothing of the test be done."""
    begin(host, host.admin, SELF_TEST, nsid=nsid, cdws=(code,))


def answered(host: Host, waiting: int = 1) -> list[int]:
    """Let the command be answered, which waits for the sidecar."""
    host.executor.run_next(waiting)
    host.service()
    return [one.status for one in host.reap(host.admin)]


PASSED = {code: Result(0, code, 0, 0, 0, 0, 0, 0) for code in (SHORT, EXTENDED)}


@pytest.mark.parametrize("code", [SHORT, EXTENDED])
@pytest.mark.parametrize("nsid", [0, 2, ALL])
def test_a_test_goes_on_behind_its_command_and_passes(code: int, nsid: int) -> None:
    with powered() as host:
        assert log(host) == (0, 0, [])
        start(host, code, nsid)
        assert answered(host) == [0]
        seen = set()
        while host.goes_on():
            if host.executor.waiting:
                host.executor.run_next()
                host.service()
            seen.add(peek(host)[:2])
        assert {operation for operation, _ in seen} == {code, 0}
        assert {completion for _, completion in seen} <= set(range(101))
        assert log(host) == (0, 0, [PASSED[code]])


@pytest.mark.parametrize("code", [SHORT, EXTENDED])
@pytest.mark.parametrize("nsid", [0, ALL])
def test_a_host_that_looks_once_a_second_sees_it_under_way_and_its_end(
    code: int, nsid: int
) -> None:
    """nvme-cli waits until it has seen a number that is not 0, and then 0."""
    with powered() as host:
        start(host, code, nsid)
        assert answered(host) == [0]
        host.executor.run_all()
        host.service()
        told = []
        for second in (1.0, 2.0, 3.0):
            while (due := host.deadline) is not None:
                if due > second * 1e9:
                    break
                host.now = due / 1e9
                host.service()
                host.executor.run_all()
                host.service()
            host.now = second
            told.append(peek(host).completion)
        assert (told[0] <= 40, 0 < told[1] <= 80, told[2]) == (True, True, 0)
        assert log(host).results == [PASSED[code]]


def test_a_test_that_rests_is_aborted_at_once_and_another_one_begins() -> None:
    with powered() as host:
        start(host, SHORT)
        assert answered(host) == [0]
        host.executor.run_all()
        host.service()
        assert host.deadline is not None and not host.sleeps
        begin(host, host.admin, SELF_TEST, 2, nsid=ALL, cdws=(ABORT,))
        begin(host, host.admin, SELF_TEST, 3, nsid=ALL, cdws=(EXTENDED,))
        finish(host)
        assert [one.status for one in host.reap(host.admin)] == [0, 0]
        assert [(one.result, one.code) for one in log(host).results] == [(0, 2), (1, 1)]
        assert host.deadline is None


def test_the_newest_twenty_results_are_kept_and_outlive_the_power(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        for number in range(21):
            host.now = number * 3600.0
            done = host.command(host.admin, SELF_TEST, cdws=(1 + number % 2,))
            assert done.status == 0
        assert [one.hours for one in log(host).results] == list(range(20, 0, -1))
        assert [one.code for one in log(host).results] == [1, 2] * 10
        before = log(host)
    with powered(tmp_path / "drive") as host:
        assert log(host) == before


def test_identify_and_the_effects_announce_it() -> None:
    with powered() as host:
        page = identify(host, 1)
        assert int.from_bytes(page[316:318], "little") == 1
        assert page[318] == 1


@pytest.mark.parametrize(
    ("code", "nsid", "status"),
    [
        (0, ALL, 0x002),
        (3, ALL, 0x002),
        (14, ALL, 0x002),
        (SHORT, 3, 0x002),
        (SHORT, 65, 0x00B),
        (EXTENDED, ALL - 1, 0x00B),
    ],
)
def test_what_no_test_can_be(code: int, nsid: int, status: int) -> None:
    with powered() as host:
        assert host.command(host.admin, SELF_TEST, nsid=nsid, cdws=(code,)).status == status
        assert log(host) == (0, 0, [])


def test_there_is_one_test_at_a_time_and_a_command_ends_it() -> None:
    with powered() as host:
        assert host.command(host.admin, SELF_TEST, cdws=(ABORT,)).status == 0
        assert log(host).results == []
        start(host, SHORT)
        answered(host)
        begin(host, host.admin, SELF_TEST, 2, nsid=ALL, cdws=(EXTENDED,))
        assert [one.status for one in host.reap(host.admin)] == [0x11D]
        begin(host, host.admin, SELF_TEST, 3, cdws=(ABORT,))
        finish(host)
        assert [one.status for one in host.reap(host.admin)] == [0]
        assert log(host).results == [Result(1, SHORT, 0, 0, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("nsid", "opcode", "of", "dword10", "result"),
    [
        (ALL, FORMAT, 1, 0, 4),
        (2, FORMAT, ALL, 0, 4),
        (2, FORMAT, 1, 0, 0),
        (0, FORMAT, 1, 0, 0),
        (ALL, MANAGE, 1, 1, 3),
        (2, MANAGE, 2, 1, 3),
        (2, MANAGE, 1, 1, 0),
        (0, SANITIZE, 0, 2, 9),
        (ALL, SANITIZE, 0, 2, 9),
    ],
)
def test_what_ends_a_test(nsid: int, opcode: int, of: int, dword10: int, result: int) -> None:
    with powered() as host:
        start(host, EXTENDED, nsid)
        answered(host)
        begin(host, host.admin, opcode, 2, nsid=of, cdws=(dword10,))
        finish(host)
        assert [one.status for one in host.reap(host.admin)] == [0]
        assert [one.result for one in log(host).results] == [result]


@pytest.mark.parametrize(("code", "result"), [(SHORT, 2), (EXTENDED, 0)])
def test_a_reset_ends_a_short_test_and_no_extended_one(code: int, result: int) -> None:
    with powered() as host:
        start(host, code)
        answered(host)
        host.executor.run_next()
        host.disable()
        host.enable()
        finish(host)
        assert [(one.result, one.code) for one in log(host).results] == [(result, code)]


@pytest.mark.parametrize(("code", "result"), [(SHORT, 2), (EXTENDED, 0)])
def test_a_power_cycle_ends_a_short_test_and_no_extended_one(
    tmp_path: Path, code: int, result: int
) -> None:
    with powered(tmp_path / "drive") as host:
        start(host, code)
        answered(host, waiting=1)
        host.executor.waiting.clear()
    with powered(tmp_path / "drive") as host:
        assert log(host).operation == (EXTENDED if code == EXTENDED else 0)
        finish(host)
        assert [(one.result, one.code) for one in log(host).results] == [(result, code)]


@pytest.mark.parametrize("code", [SHORT, EXTENDED])
def test_blocks_that_cannot_be_read_fail_it_with_their_place(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block 2040 of namespace 2 is in the last part, which a short test looks at, too."""
    with powered() as host:
        bad = host.media[2]
        reads = Media.verify

        def verify(media: Media, offset: int, length: int) -> None:
            if media is bad and offset <= 2040 * 512 < offset + length:
                raise MediaError.of(OSError(5, "no"), "reading", 2040 * 512)
            reads(media, offset, length)

        monkeypatch.setattr(Media, "verify", verify)
        start(host, code)
        finish(host)
        host.reap(host.admin)
        assert log(host).results == [Result(7, code, 5, 0b1111, 0, 2, 2040, 0x281)]


def test_an_extended_test_reads_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block 1001 is in none of the parts that a short one looks at."""
    drive = Drive.open(None, (NamespaceShape(64 * MIB),))
    with drive, Host(drive=drive) as host:
        host.enable()
        reads = Media.verify

        def verify(media: Media, offset: int, length: int) -> None:
            if offset <= 1001 * 4096 + 4095 and 1001 * 4096 < offset + length:
                raise MediaError.of(OSError(5, "no"), "reading", 1001 * 4096)
            reads(media, offset, length)

        monkeypatch.setattr(Media, "verify", verify)
        assert host.command(host.admin, SELF_TEST, nsid=ALL, cdws=(SHORT,)).status == 0
        assert host.command(host.admin, SELF_TEST, nsid=ALL, cdws=(EXTENDED,)).status == 0
        assert log(host).results == [
            Result(7, EXTENDED, 6, 0b1111, 0, 1, 1001, 0x281),
            PASSED[SHORT],
        ]


def test_a_damaged_image_and_a_damaged_sidecar_fail_it() -> None:
    with powered() as host:
        host.put(b"firmware" * 512)
        assert host.command(host.admin, 0x11, cdws=(1023, 0)).status == 0
        assert host.command(host.admin, 0x10, cdws=(0 << 3 | 2,)).status == 0
        assert host.command(host.admin, SELF_TEST, cdws=(SHORT,)).status == 0
        host.flash.media.write_from([memoryview(b"x")], 100)
        assert host.command(host.admin, SELF_TEST, cdws=(SHORT,)).status == 0
        found = [(one.result, one.segment, one.valid) for one in log(host).results]
        assert found == [(7, 4, 0), (0, 0, 0)]


def test_a_host_s_commands_go_on_beside_it() -> None:
    with powered() as host:
        host.create_io_queue()
        start(host, EXTENDED)
        answered(host)
        assert len(host.executor.waiting) == 1
        begin(host, host.io[1], 2, 5, nsid=1)
        assert [(one.cid, one.status) for one in host.reap(host.io[1])] == [(5, 0)]
        begin(host, host.admin, ATTACH, 6, nsid=1)
        assert len(host.executor.waiting) == 1  # One piece of a test at a time.


def test_a_test_is_not_for_blocks_that_are_being_formatted() -> None:
    with powered() as host:
        begin(host, host.admin, FORMAT, nsid=1, cdws=(0,))
        begin(host, host.admin, SELF_TEST, 2, nsid=ALL, cdws=(SHORT,))
        assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(2, 0x084)]
        finish(host)
        assert [one.status for one in host.reap(host.admin)] == [0]
        assert format_(host, 1, 1).status == 0


@pytest.mark.parametrize(
    "section",
    [
        [],
        {"running": [2, 99], "results": [1, "zz", "00", None, "00" * 28]},
        {"running": [1, -5], "results": "00"},
        {"running": [14, 1], "results": {}},
        {"running": "x"},
    ],
)
def test_what_makes_no_sense_in_the_sidecar_is_left_out(tmp_path: Path, section: object) -> None:
    with powered(tmp_path / "drive") as host:
        host.sidecar.put("self_test", section)
        host.sidecar.save()
    with powered(tmp_path / "drive") as host:
        assert log(host).operation == 0
        assert [one.result for one in log(host).results] in ([], [0])
        assert create(host, 8).status == 0
        assert io(host, 2, 1) if host.io else True
