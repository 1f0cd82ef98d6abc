"""Identify: every structure at the standard's offsets, and a status for every wrong question.

Figures 273 to 280 of NVMe Base 2.0; figures 97 to 102 of the NVM Command Set 1.0.
"""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from support.nvme_host import DATA, PAGE, Host

GET_LOG, IDENTIFY, SET_FEATURES, GET_FEATURES, KEEP_ALIVE = 2, 6, 9, 0xA, 0x18

SUCCESS, INVALID_FIELD, INVALID_NAMESPACE = 0x000, 0x002, 0x00B
ZEROES = bytes(PAGE)
ALL = 0xFFFFFFFF
CC = 0x14


@pytest.fixture
def host() -> Iterator[Host]:
    """Namespaces 1, 2 (read-only) and 4: 3 is inactive, and 5 and more are invalid."""
    media = {nsid: MemoryMedia.create(1 << 20) for nsid in (1, 2, 4)}
    media[2].read_only = True
    with Host(media, shapes={4: NamespaceShape(1 << 20, 512)}) as host:
        host.enable()
        yield host


def identify(host: Host, cns: int, nsid: int = 0, csi: int = 0, cntid: int = 0) -> bytes:
    host.memory.view[DATA : DATA + PAGE] = b"\xee" * PAGE
    cdws = (cntid << 16 | cns, csi << 24)
    completion = host.command(host.admin, IDENTIFY, nsid=nsid, cdws=cdws)
    assert completion.status == SUCCESS, hex(completion.status)
    return host.data(PAGE)


@pytest.mark.parametrize(
    ("cns", "nsid", "csi", "cntid", "status"),
    [
        # 00h: an inactive identifier is a structure of zeroes, an invalid one an error.
        (0x00, 1, 0, 0, SUCCESS),
        (0x00, 3, 0, 0, SUCCESS),
        (0x00, 0, 0, 0, INVALID_NAMESPACE),
        (0x00, 65, 0, 0, INVALID_NAMESPACE),
        (0x00, 0xFFFFFFFE, 0, 0, INVALID_NAMESPACE),
        # CNTID and CSI are not looked at where they are not used.
        (0x00, 1, 2, 7, SUCCESS),
        (0x01, 0, 0, 0, SUCCESS),
        (0x01, 0, 2, 7, SUCCESS),
        # What uses no namespace has none (figure 87, NSID).
        (0x01, 1, 0, 0, INVALID_FIELD),
        (0x01, ALL, 0, 0, INVALID_FIELD),
        (0x02, 0, 0, 0, SUCCESS),
        (0x02, 0xFFFFFFFD, 0, 0, SUCCESS),
        (0x02, 0xFFFFFFFE, 0, 0, INVALID_NAMESPACE),
        (0x02, ALL, 0, 0, INVALID_NAMESPACE),
        (0x03, 1, 0, 0, SUCCESS),
        (0x03, 0, 0, 0, INVALID_NAMESPACE),
        (0x03, 3, 0, 0, INVALID_FIELD),
        (0x03, 65, 0, 0, INVALID_NAMESPACE),
        (0x03, ALL, 0, 0, INVALID_NAMESPACE),
        (0x05, 1, 0, 0, SUCCESS),
        (0x05, 3, 0, 0, SUCCESS),
        (0x05, 0, 0, 0, INVALID_NAMESPACE),
        (0x05, 65, 0, 0, INVALID_NAMESPACE),
        (0x05, 1, 1, 0, INVALID_FIELD),
        (0x05, 1, 2, 0, INVALID_FIELD),
        (0x05, 1, 0xFF, 0, INVALID_FIELD),
        (0x06, 0, 0, 0, SUCCESS),
        (0x06, 0, 2, 0, INVALID_FIELD),
        (0x06, 1, 0, 0, INVALID_FIELD),
        (0x07, 0, 0, 0, SUCCESS),
        (0x07, 0, 2, 0, INVALID_FIELD),
        (0x07, 0xFFFFFFFE, 0, 0, INVALID_NAMESPACE),
        (0x07, ALL, 0, 0, INVALID_NAMESPACE),
        (0x08, 1, 0, 0, SUCCESS),
        (0x08, 3, 0, 0, SUCCESS),
        (0x08, 0, 0, 0, INVALID_NAMESPACE),
        (0x08, 65, 0, 0, INVALID_NAMESPACE),
        (0x1C, 0, 0, 0, SUCCESS),
        (0x1C, 0, 0, 0xFFFF, SUCCESS),
        (0x1C, 0, 0, 1, INVALID_FIELD),
        (0x1C, 1, 0, 0, INVALID_FIELD),
        (0x1A, 0, 0, 0, SUCCESS),
        (0x1A, 0, 3, 0, INVALID_FIELD),
        (0x1A, 0xFFFF_FFFE, 0, 0, INVALID_NAMESPACE),
        (0x1B, 0, 0, 0, INVALID_NAMESPACE),
        (0x1B, 1, 4, 0, INVALID_FIELD),
        (0x1B, 3, 0, 0, SUCCESS),
        (0x1B, 0xFFFF_FFFF, 0, 0, SUCCESS),
        (0x1F, 3, 0, 0, SUCCESS),
        (0x1F, 0xFFFF_FFFF, 0, 0, INVALID_NAMESPACE),
        # NVM sets, user data formats, secondary controllers, granularity, UUIDs, domains,
        # endurance groups: things that this device has not.
        *((cns, 0, 0, 0, INVALID_FIELD) for cns in (4, 9, 0xA, 0xB, 0xF)),
        *((cns, 0, 0, 0, INVALID_FIELD) for cns in (*range(0x14, 0x1A), 0x1D, 0x1E, 0x20, 0xFF)),
    ],
)
def test_a_question_gets_an_answer_or_its_status(
    host: Host, cns: int, nsid: int, csi: int, cntid: int, status: int
) -> None:
    cdws = (cntid << 16 | cns, csi << 24)
    completion = host.command(host.admin, IDENTIFY, nsid=nsid, cdws=cdws)
    assert (completion.status, completion.dnr) == (status, status != SUCCESS)


def test_an_inactive_namespace_is_zeroes(host: Host) -> None:
    for cns in (0x00, 0x05, 0x08):
        assert identify(host, cns, nsid=3) == ZEROES


def test_the_lists_of_active_namespaces(host: Host) -> None:
    for cns in (0x02, 0x07):
        assert struct.unpack_from("<4I", identify(host, cns)) == (1, 2, 4, 0)
        assert struct.unpack_from("<3I", identify(host, cns, nsid=1)) == (2, 4, 0)
        assert identify(host, cns, nsid=4) == ZEROES


def test_what_every_command_set_says_of_a_namespace(host: Host) -> None:
    page = identify(host, 0x08, nsid=1)
    assert (page[1], page[8], page[14]) == (0, 0, 1)  # not shared, writable, ready
    assert identify(host, 0x08, nsid=2)[8] == 1
    assert identify(host, 0x00, nsid=2)[99] == 1


def test_there_is_one_combination_of_one_command_set(host: Host) -> None:
    page = identify(host, 0x1C, cntid=0xFFFF)
    assert struct.unpack_from("<QQ", page) == (1, 0)
    assert page[8:] == bytes(PAGE - 8)


def test_a_host_may_select_all_command_sets_or_the_nvm_one(host: Host) -> None:
    """CAP.CSS has bits 0 and 6, so CC.CSS may be 0 or 6; nothing else makes a controller ready."""
    assert host.read32(4) >> 5 & 0xFF == 0x41
    for css, ready in ((6, True), (0, True), (1, False), (7, False)):
        host.disable()
        host.begin_enable()
        host.write32(CC, 4 << 20 | 6 << 16 | css << 4)
        host.write32(CC, 4 << 20 | 6 << 16 | css << 4 | 1)
        host.service()
        assert (host.ready, host.fatal) == (ready, not ready)


def test_the_controller_says_what_its_tables_say(host: Host) -> None:
    """Bits that announce a feature, a command or a notice, each tried."""
    page = identify(host, 0x01)
    oaes, ctratt = struct.unpack_from("<II", page, 92)
    (kas, hctma, mntmt, mxtmt) = struct.unpack_from("<HHHH", page, 320)
    (oncs,) = struct.unpack_from("<H", page, 520)
    assert oaes & 1 << 9 and ctratt & 1 and oncs & 1 << 4 and oncs & 1 << 6
    assert kas == 1 and hctma == 1 and 273 < mntmt < mxtmt
    assert page[253] == 1  # NVMSR: an NVMe storage device
    for fid in (0x0F, 0x10, 0x0E, 0x81):
        assert host.command(host.admin, GET_FEATURES, cdws=(fid, 1)).status == SUCCESS
    assert host.command(host.admin, GET_FEATURES, cdws=(0x02, 0)).status == SUCCESS
    assert host.command(host.admin, KEEP_ALIVE).status == SUCCESS
    # The absent: power states but one, host memory, autonomous power, predictable latency.
    assert page[263] == 0 and page[265] == 0 and page[272:280] == bytes(8)
    for fid in (0x0C, 0x0D, 0x11, 0x12, 0x13, 0x14):
        assert host.command(host.admin, GET_FEATURES, cdws=(fid,)).status == INVALID_FIELD


@pytest.mark.parametrize(
    ("opcode", "bit"),
    [(0x19, 5), (0x1A, 5), (0x81, 0), (0x82, 0), (0x1C, 7), (0x1D, 6), (0x1E, 6), (0x24, 10)],
    ids=["directive send", "directive receive", "security send", "security receive",
         "virtualization", "mi send", "mi receive", "lockdown"],
)  # fmt: skip
def test_what_is_not_announced_is_no_command(host: Host, opcode: int, bit: int) -> None:
    assert not struct.unpack_from("<H", identify(host, 0x01), 256)[0] & 1 << bit
    completion = host.command(host.admin, opcode, nsid=1, cdws=(7,) * 6)
    assert (completion.status, completion.dnr) == (0x001, True)
    assert host.command(host.admin, GET_LOG, cdws=(1023 << 16 | 5,)).status == SUCCESS
    assert host.data(4, DATA + 4 * opcode) == bytes(4)


words = st.integers(0, 0xFFFFFFFF)
cns_values = st.one_of(st.sampled_from([*range(9), *range(0x10, 0x1D)]), st.integers(0, 255))
nsids = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 5, 0xFFFFFFFE, ALL]), words)


@pytest.fixture(scope="module")
def asked() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        yield host


@given(cns_values, st.integers(0, 0xFFFFFF), nsids, words, words)
def test_every_identify_ends_with_a_status_of_the_standard(
    asked: Host, cns: int, upper: int, nsid: int, cdw11: int, cdw14: int
) -> None:
    cdws = (upper << 8 | cns, cdw11, 0, 0, cdw14)
    completion = asked.command(asked.admin, IDENTIFY, nsid=nsid, cdws=cdws)
    assert completion.status in (SUCCESS, INVALID_FIELD, INVALID_NAMESPACE)
    assert completion.dnr == bool(completion.status)
