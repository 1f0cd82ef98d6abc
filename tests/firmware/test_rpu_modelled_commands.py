"""What each command on blocks asks of the modelled drive, and when it completes.

Expected times are those of a second drive of the same profile, which is asked directly.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from csd_spec.faults import Fault, FaultKind
from nvme_spec.status import NvmeError
from potash_device.media.drive import Drive as MediaDrive
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.policies import Greedy, Policies, Superblocks
from potash_firmware.ftl.requests import Op
from potash_firmware.rpu.timing.report import timing_log
from support.modelled_time import PROFILE, completions, drive_of, model, modelled
from support.namespaces import ALL, attach, create, delete, finish
from support.nvme_host import DATA, PAGE, Host, Queue

pytestmark = pytest.mark.filterwarnings("ignore:custom policies:DeprecationWarning")

FLUSH, WRITE, READ, COMPARE, ZEROES, DSM, VERIFY, COPY = 0, 1, 2, 5, 8, 9, 12, 25
FORMAT, SANITIZE = 0x80, 0x84
FUA = 1 << 30
FUSED_FIRST, FUSED_SECOND = 1, 2
COMPARE_FAILURE, WRITE_PROTECTED, INTERNAL_ERROR = 0x285, 0x20, 0x06
UNRECOVERED = 0x281
MIB = 1 << 20
START = 10**9


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=modelled()) as host:
        host.enable()
        host.create_io_queue()
        host.now = 1.0
        yield host


def send(host: Host, queue: Queue, opcode: int, cid: int = 1, *cdws: int, **fields: Any) -> None:
    host.place(queue, opcode, cid, cdws=cdws, **{"nsid": 1} | fields)
    host.ring(queue)
    host.service()


def test_reads_in_every_guise_take_the_time_of_a_read(host: Host, queue: Queue) -> None:
    expected = model()
    host.put(bytes(PAGE))
    for page in range(4):
        send(host, queue, WRITE, 1, page, 0, 0)
        expected.submit(drive_of(host).now, Op.WRITE, page, 1)
        completions(host, queue)
    for opcode in (READ, COMPARE, VERIFY):
        host.now = now = host.now + 1
        send(host, queue, opcode, 1, 1, 0, 1, prp2=DATA + PAGE)
        due = expected.submit(round(now * 1e9), Op.READ, 1, 2)
        assert completions(host, queue) == {1: due}


def test_a_comparison_that_fails_takes_as_long(host: Host, queue: Queue) -> None:
    host.put(b"x" * PAGE)
    send(host, queue, COMPARE, 1, 0, 0, 0)
    due = model().submit(START, Op.READ, 0, 1)
    assert completions(host, queue, status=COMPARE_FAILURE) == {1: due}


def test_writes_with_fua_and_flushes_wait_for_programs(host: Host, queue: Queue) -> None:
    expected = model()
    send(host, queue, WRITE, 1, 0, 0, 0)
    send(host, queue, WRITE, 2, 1, 0, FUA)
    send(host, queue, FLUSH, 3)
    dues = {
        1: expected.submit(START, Op.WRITE, 0, 1),
        2: expected.submit(START, Op.WRITE, 1, 1, fua=True),
        3: expected.submit(START, Op.FLUSH),
    }
    assert completions(host, queue) == dues
    program = PROFILE.program_ns[0]
    assert dues[1] < START + program < min(dues[2], dues[3])


def test_every_write_waits_for_its_program_without_a_write_cache(host: Host, queue: Queue) -> None:
    assert host.command(host.admin, 0x09, cdws=(6, 0)).status == 0
    send(host, queue, WRITE, 1, 0, 0, 0)
    due = model().submit(START, Op.WRITE, 0, 1, fua=True)
    assert completions(host, queue) == {1: due}


def test_deallocated_blocks_are_read_without_flash(host: Host, queue: Queue) -> None:
    for page in range(4):
        send(host, queue, WRITE, 1, page, 0, 0)
        completions(host, queue)
    drive = drive_of(host)
    host.put(struct.pack("<IIQ", 0, 1, 0) + struct.pack("<IIQ", 0, 2, 2))
    send(host, queue, DSM, 1, 1, 4)
    completions(host, queue)
    assert (drive.state.places[:4] >= 0).tolist() == [False, True, False, False]
    send(host, queue, ZEROES, 1, 1, 0, 0)
    completions(host, queue)
    assert not (drive.state.places >= 0).any()
    before = drive.counters.senses
    host.now = now = host.now + 1
    send(host, queue, READ, 1, 0, 0, 0)
    # Submission, command, link, completion.
    assert completions(host, queue) == {1: round(now * 1e9) + 500 + 2000 + 1024 + 700}
    assert drive.counters.senses == before


def test_a_copy_is_a_write_after_its_reads(host: Host, queue: Queue) -> None:
    expected = model()
    for page in range(4):
        send(host, queue, WRITE, 1, page, 0, 0)
        expected.submit(drive_of(host).now, Op.WRITE, page, 1)
        completions(host, queue)
    host.now = 2.0
    host.put(struct.pack("<QQHHI8x", 0, 0, 0, 0, 0) + struct.pack("<QQHHI8x", 0, 3, 0, 0, 0))
    send(host, queue, COPY, 1, 8, 0, 1)
    read = max(expected.submit(2 * START, Op.READ, page, 1) for page in (0, 3))
    written = expected.submit(2 * START, Op.WRITE, 8, 2) - 2 * START
    assert completions(host, queue) == {1: read + written}


def test_halves_of_a_fused_operation_end_one_after_the_other(host: Host, queue: Queue) -> None:
    expected = model()
    host.put(bytes(PAGE))
    host.place(queue, COMPARE, 1, nsid=1, flags=FUSED_FIRST)
    host.place(queue, WRITE, 2, nsid=1, flags=FUSED_SECOND)
    host.ring(queue)
    host.service()
    read = expected.submit(START, Op.READ, 0, 1)
    written = expected.submit(START, Op.WRITE, 0, 1) - START
    assert completions(host, queue) == {1: read, 2: read + written}


def test_a_comparison_after_which_blocks_were_written_cannot_be_aborted(
    host: Host, queue: Queue
) -> None:
    host.put(bytes(PAGE))
    host.place(queue, COMPARE, 1, nsid=1, flags=FUSED_FIRST)
    host.put(b"n" * PAGE, DATA + PAGE)
    host.place(queue, WRITE, 2, nsid=1, flags=FUSED_SECOND, prp1=DATA + PAGE)
    host.ring(queue)
    host.service()
    host.executor.run_all()
    host.service()
    assert os.pread(host.media[1].fd, 1, 0) == b"n"
    host.place(host.admin, 0x08, 3, cdws=(1 << 16 | 1,))
    host.ring(host.admin)
    host.service()
    assert [one.dw0 for one in host.reap(host.admin)] == [1]  # not aborted
    assert list(completions(host, queue)) == [1, 2]  # with status 0


def test_blocks_of_512_bytes_take_whole_pages() -> None:
    expected = model()
    with Host(settings=modelled(), shapes={1: NamespaceShape(1 << 20, 512)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.now = 1.0
        send(host, queue, WRITE, 1, 7, 0, 1)  # the last block of a page, and one of the next
        assert completions(host, queue) == {1: expected.submit(START, Op.WRITE, 0, 2)}
        host.put(struct.pack("<IIQ", 0, 15, 1))
        send(host, queue, DSM, 1, 0, 4)  # blocks 1 to 15: of page 0 only a part
        completions(host, queue)
        assert (drive_of(host).state.places[:2] >= 0).tolist() == [True, False]


def test_a_format_erases_the_flash(host: Host, queue: Queue) -> None:
    expected = model()
    send(host, queue, WRITE, 1, 0, 0, 0, prp2=0)
    expected.submit(START, Op.WRITE, 0, 1)
    completions(host, queue)
    host.now = 2.0
    send(host, host.admin, FORMAT, 1, 1)
    due = expected.submit(2 * START, Op.FORMAT)
    assert due >= 2 * START + PROFILE.erase_ns
    assert completions(host, host.admin) == {1: due}
    assert not (drive_of(host).state.places >= 0).any()


def test_a_format_erases_the_flash_of_namespaces_that_are_attached_or_not_by_then(
    host: Host, queue: Queue
) -> None:
    send(host, queue, WRITE, 1, 0, 0, 0, prp2=0)
    completions(host, queue)
    send(host, host.admin, FORMAT, 1, 1, nsid=ALL)
    host.put(struct.pack("<2H", 1, 0))
    send(host, host.admin, 0x15, 2, 1)  # Namespace Attachment: detach, when the format has ended
    finish(host)
    assert sorted((one.cid, one.status) for one in host.reap(host.admin)) == [(1, 0), (2, 0)]
    assert not (drive_of(host).state.places >= 0).any()


def test_a_sanitize_operation_erases_the_flash(host: Host, queue: Queue) -> None:
    send(host, queue, WRITE, 1, 0, 0, 0)
    completions(host, queue)
    drive = drive_of(host)
    assert host.command(host.admin, SANITIZE, cdws=(2,)).status == 0
    assert not (drive.state.places >= 0).any()
    assert drive.counters.erased


def test_namespaces_share_the_drive() -> None:
    shapes = (NamespaceShape(MIB // 2), NamespaceShape(MIB // 4, 512))
    with (
        MediaDrive.open(None, shapes, capacity=MIB) as drive,
        Host(settings=modelled(), drive=drive) as host,
    ):
        host.enable()
        queue = host.create_io_queue()
        flash = drive_of(host)

        def mapped() -> list[int]:
            found: list[int] = (flash.state.places >= 0).nonzero()[0].tolist()
            return found

        send(host, queue, WRITE, 1, 5, 0, 0, nsid=1)
        send(host, queue, WRITE, 2, 0, 0, 7, nsid=2)
        completions(host, queue)
        assert mapped() == [5, 128]
        # One is formatted, and the other is not.
        send(host, host.admin, FORMAT, 1, 1, nsid=1)
        completions(host, host.admin)
        assert mapped() == [128]
        assert delete(host, 1).status == 0
        # The hole that it leaves and the end of the drive are one namespace's pages.
        assert create(host, 3 * MIB // 4 // PAGE).dw0 == 1
        assert attach(host, 1).status == 0
        send(host, queue, WRITE, 1, 127, 0, 1, nsid=1, prp2=DATA + PAGE)
        completions(host, queue)
        assert mapped() == [127, 128, 192]
        assert delete(host, ALL).status == 0
        assert mapped() == []


def test_namespaces_that_end_within_a_page_have_room() -> None:
    shapes = (NamespaceShape(MIB // 2 + 512, 512), NamespaceShape(MIB // 2 - 512, 512))
    with MediaDrive.open(None, shapes) as drive, Host(settings=modelled(), drive=drive) as host:
        host.enable()
        queue = host.create_io_queue()
        for nsid, lba in ((1, 1024), (2, 1022)):  # the last block of each
            send(host, queue, WRITE, nsid, lba, 0, 0, nsid=nsid)
        assert set(completions(host, queue)) == {1, 2}
        places = drive_of(host).state.places
        assert (places >= 0).nonzero()[0].tolist() == [128, 255]


def test_a_worn_drive_refuses_writes_and_is_read() -> None:
    worn = replace(PROFILE, cycles=1)
    media = MemoryMedia.create(MIB)
    with Host({1: media}, settings=modelled(worn)) as host:
        host.enable()
        queue = host.create_io_queue()
        drive = drive_of(host)
        rewritten = 0
        while not drive.worn:
            drive.submit(drive.now, Op.WRITE, rewritten % 250, 1)
            rewritten += 1
        host.put(b"x" * PAGE)
        send(host, queue, WRITE, 1, 0, 0, 0)
        assert [(one.status, one.dnr) for one in host.reap(queue)] == [(WRITE_PROTECTED, True)]
        assert os.pread(media.fd, PAGE, 0) == bytes(PAGE)
        send(host, queue, READ, 2, 0, 0, 0)
        assert list(completions(host, queue)) == [2]
        host.command(host.admin, 0x02, nsid=ALL, cdws=(127 << 16 | 2,))
        assert host.data(1)[0] & 1 << 3, "media are read-only"


def test_a_fault_has_programs_fail(host: Host, queue: Queue) -> None:
    fault = Fault(FaultKind.PROGRAM_FAILURE, times=2)
    controller = host.rpu.controller
    assert controller.faults.add(fault) == 1
    send(host, queue, WRITE, 1, 0, 0, FUA | 7)
    completions(host, queue)
    assert controller.faults.listed() == [fault._replace(identifier=1, triggered=2)]
    assert controller.timing is not None and timing_log(controller.timing).grown_bad == 2
    with Host() as other, pytest.raises(NvmeError, match="modelled time"):
        other.rpu.controller.faults.add(fault)


def test_blocks_with_too_many_bit_errors_cannot_be_read() -> None:
    # No more than one read of a superblock succeeds, and that with a retry.
    disturbed = replace(
        PROFILE, rber=(0.2, 0, 1, 0, 0, 1, 1, 0, 1), retry_rber=(0.1, 0.2), retry_ns=(700,)
    )
    with Host(settings=modelled(disturbed), shapes={1: NamespaceShape(MIB, 512)}) as host:
        host.enable()
        queue, expected = host.create_io_queue(), Drive(disturbed)
        send(host, queue, WRITE, 1, 0, 0, FUA | 15)
        expected.submit(0, Op.WRITE, 0, 2, fua=True)
        completions(host, queue)
        for opcode, status in ((READ, 0), (READ, UNRECOVERED), (VERIFY, UNRECOVERED)):
            host.now = now = host.now + 1
            send(host, queue, opcode, 1, 11, 0, 0)  # a block of the second page
            due = expected.submit(round(now * 1e9), Op.READ, 1, 1)
            assert completions(host, queue, status=status) == {1: due}
        assert drive_of(host).counters.retries == 3
        assert drive_of(host).counters.uncorrectable == 2
        host.command(host.admin, 0x02, nsid=ALL, cdws=(127 << 16 | 2,))
        assert int.from_bytes(host.data(512)[160:176], "little") == 2, "media errors"
        host.command(host.admin, 0x02, nsid=ALL, cdws=(15 << 16 | 1,))
        entry = host.data(64)
        assert int.from_bytes(entry[16:24], "little") == 11, "LBA in the error log"
        send(host, queue, WRITE, 1, 8, 0, FUA | 7)
        completions(host, queue)
        send(host, queue, READ, 1, 11, 0, 0)
        # Page 1 is in another place of the same superblock.
        completions(host, queue, status=UNRECOVERED)


class Raising:
    def victim(self, superblocks: Superblocks) -> int:
        raise RuntimeError("no idea")


def test_a_policy_that_fails_ends_a_command_and_the_drive_goes_on() -> None:
    with Host(settings=modelled(policies=Policies(gc=Raising()))) as host:
        host.enable()
        queue = host.create_io_queue(size=64)
        failed = []
        for turn in range(1000):
            send(host, queue, WRITE, 1, turn * 37 % 256, 0, 0)
            if host.deadline is None:
                failed += host.reap(queue)
            else:
                completions(host, queue)
        assert [(one.status, one.dnr) for one in failed] == [(INTERNAL_ERROR, False)]
        assert drive_of(host).counters.erased
        host.command(host.admin, 0x02, nsid=ALL, cdws=(15 << 16 | 1,))
        assert struct.unpack_from("<QHHH", host.data(64))[:4] == (1, 1, 1, INTERNAL_ERROR << 1)


def test_a_policy_that_fails_does_not_keep_a_namespace() -> None:
    """TRIM of a drive with a mapping cache may have to collect garbage first."""
    cached = replace(PROFILE, mapping_cache=PAGE, background=PROFILE.blocks, background_pages=1)
    policies = Policies(gc=Raising())
    with (
        MediaDrive.open(None, [NamespaceShape(MIB // 4, PAGE)] * 2) as drive,
        Host(settings=modelled(cached, policies=policies), drive=drive) as host,
    ):
        host.enable()
        flash = drive_of(host)
        flash.policies = Policies()
        for page in range(cached.superblock_pages + 8):
            flash.submit(0, Op.WRITE, page % 64, 1)
        flash.policies = policies
        assert delete(host, 1).status == 0
        assert 1 not in host.board.storage.media
        assert type(flash.policies.gc) is Greedy
        assert (flash.state.places[:64] == -1).all()
        assert delete(host, 2).status == 0
