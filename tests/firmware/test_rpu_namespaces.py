"""Several namespaces, each with its own size and block size."""

import os
import struct
from collections.abc import Iterator

import pytest

from csd_spec.fields import LocalStorage
from nvme_spec.status import NvmeError
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.apu.blocks import first_bytes, overhang, resolve
from potash_firmware.apu.config import NamespaceConfig, RangeBlocks
from potash_firmware.apu.model import ByteRange
from support.nvme_host import DATA, PAGE, Host, Queue

FLUSH, WRITE, READ = 0, 1, 2
IDENTIFY = 6

SIZES = {1: 1 << 20, 2: 100_000, 4: 3 * PAGE}
BLOCKS = {1: 4096, 2: 512, 4: 4096}


@pytest.fixture
def host() -> Iterator[Host]:
    shapes = {nsid: NamespaceShape(size, BLOCKS[nsid]) for nsid, size in SIZES.items()}
    media = {nsid: MemoryMedia.create(size) for nsid, size in SIZES.items()}
    with Host(media, shapes=shapes) as host:
        host.enable()
        host.create_io_queue()
        yield host


def test_identify_gives_each_its_size_and_its_format(host: Host) -> None:
    """Offsets of NVM Command Set 1.0, figure 97."""
    for nsid, lbads, blocks in ((1, 12, 256), (2, 9, 195), (4, 12, 3)):
        assert host.command(host.admin, IDENTIFY, nsid=nsid).status == 0
        page = host.data(PAGE)
        assert struct.unpack_from("<QQQ", page) == (blocks, blocks, blocks)
        assert (page[25], page[26]) == (13, (9, 12).index(lbads))
        assert int.from_bytes(page[48:64], "little") == blocks << lbads
        assert page[99] == 0
        assert struct.unpack_from("<HBBHBBI", page, 128) == (0, 9, 0, 0, 12, 0, 9 << 16 | 8)


def test_identify_counts_the_namespaces_and_their_bytes(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    page = host.data(PAGE)
    assert int.from_bytes(page[516:520], "little") == 64
    assert int.from_bytes(page[280:296], "little") == (1 << 20) + 195 * 512 + 3 * PAGE
    assert int.from_bytes(page[296:312], "little") == 0
    assert int.from_bytes(page[520:522], "little") & 1 << 4
    assert page[526:530] == bytes(4)
    assert host.command(host.admin, IDENTIFY, cdws=(2,)).status == 0
    assert struct.unpack("<4I", host.data(16)) == (1, 2, 4, 0)
    assert host.command(host.admin, IDENTIFY, nsid=3).status == 0
    assert host.data(PAGE) == bytes(PAGE)


def test_blocks_of_512_bytes_are_read_and_written(host: Host, queue: Queue) -> None:
    content = os.urandom(3 * 512)
    host.put(content)
    assert host.command(queue, WRITE, nsid=2, cdws=(192, 0, 2)).status == 0
    assert os.pread(host.media[2].fd, 3 * 512, 192 * 512) == content
    host.clear(DATA, 512)
    assert host.command(queue, READ, nsid=2, prp1=DATA + 8, cdws=(193, 0, 0)).status == 0
    assert host.data(512, DATA + 8) == content[512:1024]
    for nsid in (1, 4):
        assert not any(os.pread(host.media[nsid].fd, SIZES[nsid], 0))


@pytest.mark.parametrize(
    ("nsid", "lba", "blocks", "status"),
    [
        (2, 194, 1, 0),
        (2, 195, 1, 0x080),
        (2, 194, 2, 0x080),
        (4, 2, 1, 0),
        (4, 3, 1, 0x080),
        (3, 0, 1, 0x002),
        (64, 0, 1, 0x002),
        (65, 0, 1, 0x00B),
        (2, 0, 1025, 0x002),
        (1, 0, 129, 0x002),
    ],
)
def test_each_has_its_own_end(
    host: Host, queue: Queue, nsid: int, lba: int, blocks: int, status: int
) -> None:
    prps = DATA + 200 * PAGE
    host.put(b"".join((DATA + n * PAGE).to_bytes(8, "little") for n in range(1, 100)), prps)
    prp2 = DATA + PAGE if blocks == 2 else prps
    completion = host.command(queue, READ, nsid=nsid, prp2=prp2, cdws=(lba, 0, blocks - 1))
    assert completion.status == status


def test_flush_means_one_or_all(host: Host, queue: Queue) -> None:
    for nsid, status in ((2, 0), (0xFFFFFFFF, 0), (3, 0x002), (65, 0x00B)):
        assert host.command(queue, FLUSH, nsid=nsid).status == status


CONFIGS = {2: NamespaceConfig(2, 195 * 512, 512)}


@pytest.mark.parametrize(
    ("start", "pages", "bytes_"), [(0, 1, (0, 4096)), (3, 2, (12288, 8192)), (24, 1, (98304, 4096))]
)
def test_the_accelerators_count_pages_where_blocks_have_512_bytes(
    start: int, pages: int, bytes_: tuple[int, int]
) -> None:
    found = resolve(LocalStorage(start, pages, 0), 2, CONFIGS, RangeBlocks())
    assert found == ByteRange(2, *bytes_)


def test_the_last_page_of_a_namespace_may_be_no_whole_one() -> None:
    """195 blocks are 24 pages and 3 blocks."""
    last = resolve(LocalStorage(24, 1, 0), 2, CONFIGS, RangeBlocks())
    assert overhang(last, CONFIGS) == 5 * 512
    with pytest.raises(NvmeError) as caught:
        resolve(LocalStorage(25, 1, 0), 2, CONFIGS, RangeBlocks())
    assert caught.value.status == 0x080


@pytest.mark.parametrize(("size", "written"), [(1, 512), (512, 512), (513, 1024), (5000, 5120)])
def test_an_output_takes_whole_blocks_and_no_more(size: int, written: int) -> None:
    ranges = (ByteRange(2, 4096, 8192),)
    assert first_bytes(ranges, size, CONFIGS) == (ByteRange(2, 4096, written),)
