"""Get Log Page: what may be asked, in which pieces, and the status of what may not."""

from collections.abc import Iterator

import pytest

from support.nvme_host import DATA, PAGE, Host

GET_LOG, IDENTIFY = 0x02, 0x06


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        yield host


def get(host: Host, lid: int, size: int, offset: int = 0) -> bytes:
    """`size` bytes of a log page, retaining its event."""
    numd_z = size // 4 - 1
    cdws = (numd_z << 16 | 1 << 15 | lid, numd_z >> 16, offset & 0xFFFFFFFF, offset >> 32)
    assert host.command(host.admin, GET_LOG, cdws=cdws).status == 0
    return host.data(size)


def test_the_page_of_pages_names_exactly_what_is_answered(host: Host) -> None:
    """Every identifier is tried (section 5.16.1.1): LSUPP is bit 0."""
    host.connect_apu()
    page = get(host, 0, 1024)
    supported = [lid for lid in range(256) if page[4 * lid] & 1]
    for lid in set(range(256)) - {0xC0}:  # that one is the APU's to answer
        status = host.command(host.admin, GET_LOG, cdws=(1 << 15 | lid,)).status
        assert (status != 0x109) == (lid in supported), hex(lid)
    assert 0xC0 in supported
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    assert host.data(1, DATA + 261)[0] & 1 << 5  # LPA: the page itself


@pytest.mark.parametrize(
    ("nsid", "cdws", "status"),
    [
        (0, (2, 0, 0, 0, 1), 0x002),  # a UUID index, and no list of UUIDs
        (0, (2, 0, 0, 0, 1 << 23), 0x002),  # an offset in structures, of a page without any
        (0, (2, 0, 6), 0x002),
        (0, (2, 0, 516), 0x002),  # behind the page's 512 bytes
        (0, (2, 0, 512), 0x000),  # at its end
        (0, (2, 0, 0, 1), 0x002),
        (1, (2,), 0x002),
        (7, (1,), 0x002),
        (0xFFFFFFFE, (3,), 0x002),
        (0xFFFFFFFF, (5,), 0x000),
        (0, (1, 2), 0x002),  # half a megabyte and a dword
    ],
)
def test_a_field_that_cannot_be_has_its_status(
    host: Host, nsid: int, cdws: tuple[int, ...], status: int
) -> None:
    answer = host.command(host.admin, GET_LOG, nsid=nsid, cdws=cdws)
    assert (answer.status, answer.dnr) == (status, status != 0)


def test_what_is_behind_a_page_reads_as_zeroes(host: Host) -> None:
    host.put(b"\xff" * PAGE)
    assert get(host, 3, 1024)[512:] == bytes(512)
    assert host.data(4, DATA + 1024) == b"\xff" * 4
