"""Firmware download and commit: pieces of any size, slots, and what outlives a power cycle."""

import errno
import hashlib
import os
import random
from collections.abc import Iterator

import pytest

from nvme_spec.status import NvmeError
from potash_device.media.errors import MediaError
from potash_device.media.flash import Flash
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import MemoryMedia
from potash_firmware import __version__
from potash_firmware.rpu.operations.firmware_slots import Download
from support.nvme_host import DATA, PAGE, Host

COMMIT, DOWNLOAD, IDENTIFY, GET_LOG = 0x10, 0x11, 0x06, 0x02
PRP_LIST = DATA + 200 * PAGE


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        host.put(b"".join((DATA + n * PAGE).to_bytes(8, "little") for n in range(1, 128)), PRP_LIST)
        yield host


def send(host: Host, image: bytes, size: int, order: random.Random | None = None) -> None:
    """Download `image` in pieces of `size` bytes, in order or shuffled."""
    starts = list(range(0, len(image), size))
    if order is not None:
        order.shuffle(starts)
    for start in starts:
        piece = image[start : start + size]
        host.put(piece)
        prp2 = DATA + PAGE if PAGE < len(piece) <= 2 * PAGE else PRP_LIST
        numd_z = len(piece) // 4 - 1
        assert host.command(host.admin, DOWNLOAD, prp2=prp2, cdws=(numd_z, start // 4)).status == 0


def commit(host: Host, slot: int = 0, action: int = 0) -> int:
    return host.command(host.admin, COMMIT, cdws=(slot | action << 3,)).status


def after_a_power_cycle(host: Host) -> Flash:
    sidecar = Sidecar(host.sidecar.media)
    sidecar.load()
    flash = Flash(host.flash.media, sidecar)
    flash.load()
    return flash


def revision(host: Host) -> str:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    return host.data(8, DATA + 64).decode().rstrip()


def slots(host: Host) -> tuple[int, int, list[str]]:
    """Active slot, next slot, and the revisions of slots 1 to 3."""
    assert host.command(host.admin, GET_LOG, cdws=(127 << 16 | 3,)).status == 0
    afi = host.data(1)[0]
    names = [host.data(8, DATA + 8 * n).decode().rstrip("\0 ") for n in (1, 2, 3)]
    return afi & 7, afi >> 4 & 7, names


@pytest.mark.parametrize("size", [131072, 4096, 4, 65540, 524288])
def test_a_bare_commit_puts_the_image_into_the_flash(host: Host, size: int) -> None:
    image = os.urandom(600_000 if size > 4 else 4000)
    send(host, image, size)
    assert commit(host) == 0
    stored = os.pread(host.flash.media.fd, len(image), 0)
    assert stored == image
    digest = hashlib.sha256(image).hexdigest()[:8]
    assert slots(host) == (1, 0, [__version__, digest, ""])
    assert revision(host) == __version__


def test_pieces_may_come_in_any_order(host: Host) -> None:
    image = os.urandom(50_000)
    send(host, image, 4096, random.Random(1))
    assert commit(host) == 0
    assert os.pread(host.flash.media.fd, len(image), 0) == image


@pytest.mark.parametrize(
    ("first", "length"), [(4096, 4096), (8188, 8), (4092, 8), (4092, 4104), (4100, 4), (8192, 4)]
)
def test_pieces_that_overlap_are_refused_and_change_nothing(
    host: Host, first: int, length: int
) -> None:
    image = os.urandom(8192)
    host.put(image[4096:])
    assert host.command(host.admin, DOWNLOAD, cdws=(1023, 1024)).status == 0
    host.put(bytes(8192))
    numd_z, dword = length // 4 - 1, first // 4
    status = host.command(host.admin, DOWNLOAD, prp2=DATA + PAGE, cdws=(numd_z, dword)).status
    assert status == (0 if first >= 8192 else 0x114)
    host.put(image[:4096])
    assert host.command(host.admin, DOWNLOAD, cdws=(1023, 0)).status == 0
    assert commit(host) == 0
    assert os.pread(host.flash.media.fd, len(image), 0) == image


def test_a_second_beginning_is_that_of_another_image(host: Host) -> None:
    image = os.urandom(10_000)
    send(host, bytes(20_000), 8192)
    send(host, image, 4096)
    assert commit(host) == 0
    assert os.pread(host.flash.media.fd, 20_000, 0).rstrip(b"\0") == image.rstrip(b"\0")


def test_a_stated_revision_is_active_after_a_reset_and_a_power_cycle(host: Host) -> None:
    send(host, b"PTSHFW1\0" + b"9.8.7\0\0\0" + bytes(100), 4096)
    assert commit(host, slot=3, action=1) == 0
    assert slots(host) == (1, 3, [__version__, "", "9.8.7"])
    assert revision(host) == __version__
    host.disable()
    host.enable()
    assert revision(host) == "9.8.7"
    assert slots(host)[:2] == (3, 0)
    again = after_a_power_cycle(host)
    assert again.active == 3
    assert again.images[3].revision == "9.8.7"


def test_activation_at_once_needs_no_reset_and_slot_1_can_come_back(host: Host) -> None:
    send(host, b"PTSHFW1\0NEW     " * 2, 32)
    assert commit(host, slot=2, action=3) == 0
    assert revision(host) == "NEW"
    assert commit(host, slot=1, action=2) == 0
    host.disable()
    host.enable()
    assert revision(host) == __version__


@pytest.mark.parametrize(
    ("slot", "action", "status"),
    [(1, 0, 0x106), (4, 0, 0x106), (7, 1, 0x106), (3, 2, 0x107), (0, 4, 0x002), (2, 6, 0x002)],
)
def test_what_cannot_be_committed_gets_its_status(
    host: Host, slot: int, action: int, status: int
) -> None:
    send(host, bytes(4096), 4096)
    assert commit(host, slot, action) == status


def test_an_image_with_a_gap_or_none_at_all_is_no_image(host: Host) -> None:
    assert commit(host) == 0x107
    assert host.command(host.admin, DOWNLOAD, cdws=(0, 1)).status == 0
    assert commit(host) == 0x107
    assert host.command(host.admin, DOWNLOAD, cdws=(0, 0)).status == 0
    host.disable()
    host.enable()
    assert commit(host) == 0x107


def test_pieces_past_the_limit_are_refused(host: Host) -> None:
    limit = 128 << 20
    assert host.command(host.admin, DOWNLOAD, cdws=(0, limit // 4 - 1)).status == 0
    assert host.command(host.admin, DOWNLOAD, cdws=(0, limit // 4)).status == 0x002
    assert host.command(host.admin, DOWNLOAD, cdws=(0xFFFFFFFF, 0)).status == 0x002


def test_a_second_commit_waits_for_the_first_to_end(host: Host) -> None:
    send(host, bytes(4096), 4096)
    host.place(host.admin, COMMIT, 1)
    host.place(host.admin, COMMIT, 2)
    host.ring(host.admin)
    host.service()
    assert [(one.cid, one.status, one.dnr) for one in host.reap(host.admin)] == [(2, 0x00C, False)]
    host.executor.run_all()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(1, 0)]


@pytest.mark.parametrize("damaged", ["image", "table"])
def test_a_slot_that_is_damaged_is_an_empty_one(host: Host, damaged: str) -> None:
    send(host, os.urandom(4096), 4096)
    assert commit(host, 2, 1) == 0
    assert after_a_power_cycle(host).active == 2
    if damaged == "image":
        os.pwrite(host.flash.media.fd, bytes(64), 64)
    else:
        os.pwrite(host.sidecar.media.fd, bytes([0xFF]) * 0x20000, 0)
    again = after_a_power_cycle(host)
    assert (again.images, again.active) == ({}, 1)


class WriteProtected:
    """Media that can only be read."""

    def before(self, offset: int, length: int, *, writes: bool) -> None:
        if writes:
            raise MediaError(errno.EIO, "no writes today")


def test_ranges_that_have_come_are_those_of_a_model() -> None:
    """Random pieces against a set of all dwords."""
    order = random.Random(2)
    for _ in range(30):
        download, came = Download(), set[int]()
        for _ in range(60):
            first, size = order.randrange(1, 60), order.randrange(1, 8)
            piece = set(range(first, first + size))
            content = bytes([first]) * 4 * size
            if came & piece:
                with pytest.raises(NvmeError):
                    download.put(4 * first, [memoryview(content)])
            else:
                download.put(4 * first, [memoryview(content)])
                came |= piece
        for dword in sorted(set(range(70)) - came):
            download.put(4 * dword, [memoryview(b"gaps")])
        assert len(download.take()) == 4 * 70


class Offset(int):
    """Counts how often any of them is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Offset.compared += 1
        return int.__lt__(self, other)


def test_a_piece_is_compared_with_few_of_thousands_of_others() -> None:
    download, piece = Download(), [memoryview(b"four")]
    for number in range(1000):
        download.put(Offset(8 * number), piece)
    assert 1000 <= Offset.compared < 1000 * 32
    for number in range(1000, 1 << 16):
        download.put(8 * number, piece)
    with pytest.raises(NvmeError):
        download.put(8 << 16, piece)
    download.put(4, piece)


@pytest.mark.parametrize(("slot", "action"), [(2, 1), (2, 2), (3, 1)])
def test_a_commit_that_failed_is_not_in_force_after_a_power_cycle(slot: int, action: int) -> None:
    """The record that could not be written then is written later for another reason."""
    sidecar = MemoryMedia.create(SIDECAR_SIZE)
    with Host(sidecar=sidecar) as host:
        host.enable()
        send(host, b"PTSHFW1\0first\0\0\0", 4096)
        assert commit(host, 2, 0) == 0
        before = slots(host)
        if action == 1:
            send(host, b"PTSHFW1\0second\0\0", 4096)
        sidecar.impair(WriteProtected())
        assert commit(host, slot, action) == 0x006
        sidecar.impair(None)
        host.sidecar.save()
        assert slots(host) == before
        again = after_a_power_cycle(host)
        assert (again.active, list(again.images)) == (1, [2])
