"""Operations on a drive with several controllers (Format NVM, Sanitize, firmware), and what the
zones of a namespace do by themselves."""

import struct

import pytest

from potash_device.media.drive import Drive
from support import zones
from support.controllers import (
    changed,
    controllers,
    end_media_work,
    queues,
    read,
    watch,
    write,
)
from support.nvme_host import CSTS, NSSR, Host

WRITE, READ, FORMAT, SANITIZE = 0x01, 0x02, 0x80, 0x84
GET_LOG, SET_FEATURES, COMMIT, DOWNLOAD, ATTACHMENT = 0x02, 0x09, 0x10, 0x11, 0x15
BLOCK_ERASE = 2
IN_PROGRESS, FORMATTING = 0x01D, 0x084
SANITIZE_COMPLETED = 6 | 1 << 8 | 0x81 << 16
FIRMWARE_STARTS = 2 | 1 << 8 | 3 << 16
ZONES_CHANGED = 2 | 0xEF << 8 | 0xBF << 16
PAGE = 4096


def begin(host: Host, opcode: int, cid: int, **fields: object) -> None:
    """Submit an Admin command."""
    host.place(host.admin, opcode, cid, **fields)  # type: ignore[arg-type]  # as it takes them
    host.ring(host.admin)
    host.service()


def events(host: Host) -> list[int]:
    """Dword 0 of the events of the request that waits."""
    host.service()
    return [each.dw0 for each in host.reap(host.admin) if each.cid == 0x99]


def sanitize(host: Host, cid: int = 9) -> None:
    """Begin a Sanitize operation, whose command completes."""
    begin(host, SANITIZE, cid, cdws=(BLOCK_ERASE,))
    host.executor.run_next()
    host.service()


# Format NVM.


def test_a_format_keeps_both_controllers_from_the_blocks(slow_pair: list[Host]) -> None:
    (first, second), (_, two) = slow_pair, queues(slow_pair)
    assert write(second, two, b"before") == 0
    second.place(two, WRITE, 8, nsid=1)
    second.ring(two)
    second.service()
    begin(first, FORMAT, 9, nsid=1)
    second.place(two, READ, 10, nsid=1)
    second.ring(two)
    second.service()
    end_media_work(first)
    assert [(each.cid, each.status) for each in first.reap(first.admin)] == [(9, 0)]
    ended = {each.cid: each.status for each in second.reap(two)}
    assert ended == {8: 0, 10: FORMATTING}
    assert read(second, two) == bytes(PAGE) and changed(second) == [1] == changed(first)


def test_write_protection_by_one_host_is_a_change_for_both(pair: list[Host]) -> None:
    first, _ = pair
    assert first.command(first.admin, SET_FEATURES, nsid=1, cdws=(0x84, 1)).status == 0
    assert [changed(host) for host in pair] == [[1], [1]]


# Sanitize.


def test_a_sanitize_operation_restricts_both_and_its_controller_reports_its_end(
    pair: list[Host],
) -> None:
    (first, second), (_, two) = pair, queues(pair)
    assert write(second, two, b"before") == 0
    for host in pair:
        watch(host)
    begin(first, SANITIZE, 9, cdws=(BLOCK_ERASE,))
    second.place(two, READ, 10, nsid=1)
    second.ring(two)
    second.service()
    end_media_work(first)
    assert [each.status for each in second.reap(two)] == [IN_PROGRESS]
    assert (events(first), events(second)) == ([SANITIZE_COMPLETED], [])
    assert read(second, two) == bytes(PAGE)


def test_an_older_end_of_a_sanitize_operation_is_withdrawn_everywhere(pair: list[Host]) -> None:
    first, second = pair
    for host in (second, first):  # two ends, of which no host has read
        begin(host, SANITIZE, 9, cdws=(BLOCK_ERASE,))
        end_media_work(first)
    watch(second)
    assert events(second) == [], "of an operation that is not the last"
    watch(first)
    assert events(first) == [SANITIZE_COMPLETED]
    # An end that was reported, and whose log page was not read, silences the next one no more.
    sanitize(first)
    watch(first)
    assert events(first) == []
    end_media_work(first)
    assert events(first) == [SANITIZE_COMPLETED]


@pytest.mark.parametrize(
    ("opcode", "fields"),
    [(FORMAT, {"nsid": 1}), (ATTACHMENT, {"nsid": 1, "cdws": (1,)})],
    ids=["format", "detach"],
)
def test_an_operation_of_the_other_that_waits_is_ended_by_a_sanitize_operation(
    slow_pair: list[Host], opcode: int, fields: dict[str, object]
) -> None:
    first, second = slow_pair
    second.put(struct.pack("<HH", 1, 1).ljust(PAGE, b"\0"))
    begin(first, SANITIZE, 9, cdws=(BLOCK_ERASE,))
    begin(second, opcode, 8, **fields)
    end_media_work(first)
    assert [(each.cid, each.status) for each in second.reap(second.admin)] == [(8, IN_PROGRESS)]


def test_a_sanitize_operation_goes_on_through_resets_of_all_and_of_its_controller(
    pair: list[Host],
) -> None:
    first, second = pair
    two = second.create_io_queue(1)
    assert write(second, two, b"before") == 0
    sanitize(first)
    first.disable()
    second.place(two, READ, 10, nsid=1)
    second.ring(two)
    second.service()
    assert [each.status for each in second.reap(two)] == [IN_PROGRESS]
    second.write32(NSSR, 0x4E56_4D65)
    second.service()
    end_media_work(first)
    for host in pair:
        host.enable()
    assert read(second, second.create_io_queue(1)) == bytes(PAGE)
    watch(second)
    watch(first)
    assert (events(first), events(second)) == ([SANITIZE_COMPLETED], [])


def test_the_controller_of_a_sanitize_operation_outlives_a_power_cycle(pair: list[Host]) -> None:
    first, second = pair
    sanitize(second)
    sidecar, media = first.sidecar.media, dict(first.media)
    first.executor.waiting.clear()
    with controllers(2, media=media, sidecar=sidecar) as (again, other):
        watch(again)
        watch(other)
        end_media_work(again)
        assert (events(again), events(other)) == ([], [SANITIZE_COMPLETED])


# NVM subsystem reset.


def test_a_reset_of_the_subsystem_ends_what_every_host_has_in_flight(slow_pair: list[Host]) -> None:
    first, second = slow_pair
    two = second.create_io_queue(1)
    second.put(b"half".ljust(PAGE, b"\0"))
    second.place(two, WRITE, 7, nsid=1)
    second.ring(two)
    begin(second, FORMAT, 9, nsid=1)  # which waits for the write
    watch(second)
    first.write32(NSSR, 0x4E56_4D65)
    first.service()
    for host in slow_pair:
        assert host.read32(CSTS) == 1 << 4  # NSSRO
        host.begin_enable()
        host.service()
    assert (first.ready, second.ready) == (True, False), "its write is still on its way"
    end_media_work(first)
    assert second.ready
    assert second.reap(second.admin) == [] == second.reap(two)
    # The format had begun, and is the drive's.
    assert read(second, second.create_io_queue(1)) == bytes(PAGE)
    assert changed(first) == [1]


# Firmware.


def download(host: Host) -> None:
    host.put(b"PTSHFW1\0" + b"NEW     ")
    assert host.command(host.admin, DOWNLOAD, cdws=(3, 0)).status == 0


def test_a_firmware_image_becomes_active_for_both(pair: list[Host]) -> None:
    first, second = pair
    subsystem = first.rpu.subsystem
    subsystem.firmware.next = 1
    second.disable()
    assert subsystem.firmware.next is None, "at the reset of either"


def test_activation_without_a_reset_is_announced_by_every_controller(pair: list[Host]) -> None:
    first, _ = pair
    for host in pair:
        assert host.command(host.admin, SET_FEATURES, cdws=(0x0B, 1 << 9)).status == 0
        watch(host)
    download(first)
    begin(first, COMMIT, 7, cdws=(2 | 3 << 3,))
    end_media_work(first)
    found = [[(each.cid, each.dw0) for each in host.reap(host.admin)] for host in pair]
    assert (0x99, FIRMWARE_STARTS) in found[0] and found[1] == [(0x99, FIRMWARE_STARTS)]


def test_pieces_of_an_image_belong_to_their_controller(pair: list[Host]) -> None:
    first, second = pair
    download(first)
    assert second.command(second.admin, COMMIT, cdws=(2,)).status == 0x107  # Invalid Firmware Image
    second.disable()
    assert first.command(first.admin, COMMIT, cdws=(2,)).status == 0


@pytest.mark.parametrize("action", [1, 2, 3])
def test_no_sanitize_operation_begins_while_the_other_commits_an_image(
    pair: list[Host], action: int
) -> None:
    first, second = pair
    download(first)
    assert first.command(first.admin, COMMIT, cdws=(2,)).status == 0
    download(first)
    begin(first, COMMIT, 7, cdws=(2 | action << 3,))
    refused = second.command(second.admin, SANITIZE, cdws=(BLOCK_ERASE,))
    assert (refused.status, refused.dnr) == (0x00C, False)  # Command Sequence Error
    end_media_work(first)
    assert [each.status for each in first.reap(first.admin)] == [0]
    again = second.command(second.admin, SANITIZE, cdws=(BLOCK_ERASE,))
    assert again.status == (
        0 if action == 3 else 0x111
    )  # Firmware Activation Requires Controller Level Reset


# Zones.


def changed_zones(host: Host) -> list[int]:
    """The Changed Zone List."""
    assert host.command(host.admin, GET_LOG, nsid=1, cdws=(1023 << 16 | 0xBF,)).status == 0
    count, *found = struct.unpack("<512Q", host.data(PAGE))
    return list(found[:count])


def test_every_host_learns_of_changed_zones_whatever_the_others_have_read() -> None:
    with (
        Drive.open(None, (zones.shape(),)) as drive,
        controllers(2, drive=drive) as hosts,
    ):
        first, second = hosts
        for host in hosts:
            host.create_io_queue(1)
            assert host.command(host.admin, SET_FEATURES, cdws=(0x0B, 1 << 27)).status == 0
        zones.write(first, zones.BLOCKS)
        for state in (1, 0):  # a protected namespace has no open zones
            assert first.command(first.admin, SET_FEATURES, nsid=1, cdws=(0x84, state)).status == 0
        for host in hosts:
            watch(host)
            assert events(host) == [ZONES_CHANGED]
        assert changed_zones(first) == [zones.BLOCKS] and changed_zones(first) == []
        zones.write(second, 0)
        assert second.command(second.admin, SET_FEATURES, nsid=1, cdws=(0x84, 1)).status == 0
        assert changed_zones(second) == [0, zones.BLOCKS]
        assert changed_zones(first) == [0]
        first.write32(NSSR, 0x4E56_4D65)
        first.service()
        for host in hosts:
            host.enable()
            assert changed_zones(host) == []
