"""A drive whose time is modelled: commands complete when the model says, and not before.

Expected times are those of a second drive of the same profile, which is asked directly.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from potash_device.timing.drive import Drive
from potash_device.timing.profile import Profile, Rate
from potash_device.timing.requests import Op
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.nvme_host import DATA, PAGE, Host, Queue

WRITE, READ = 1, 2

PROFILE = Profile(
    channels=2,
    dies=2,
    planes=1,
    blocks=20,
    pages=8,
    page_bytes=4096,
    program_pages=1,
    capacity=1 << 20,
    read_ns=(50_000, 70_000),
    program_ns=(400_000,),
    erase_ns=2_000_000,
    bus=Rate(400, 1000),
    link=Rate(4000, 1000),
    submission_ns=500,
    completion_ns=700,
    cores=1,
    read_command_ns=2000,
    write_command_ns=3000,
    other_command_ns=1000,
    buffer_bytes=64 << 10,
)


def modelled(profile: Profile = PROFILE, factor: int = 1) -> RpuSettings:
    return RpuSettings(time=TimeSettings(Drive(profile), factor))


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=modelled()) as host:
        host.enable()
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.create_io_queue()


def ns(host: Host) -> int:
    return round(host.now * 1e9)


def send(host: Host, queue: Queue, opcode: int, cid: int, page: int, count: int = 1) -> None:
    host.place(queue, opcode, cid, nsid=1, prp2=DATA + PAGE, cdws=(page, 0, count - 1))
    host.ring(queue)
    host.service()


def completions(host: Host, queue: Queue) -> dict[int, int]:
    """When each command completes, by its identifier: a nanosecond before it does not."""
    found = {}
    while (due := host.rpu.controller.deadlines.next) is not None:
        host.now = (due - 1) / 1e9
        host.service()
        assert not host.reap(queue)
        host.now = due / 1e9
        host.service()
        done = host.reap(queue)
        assert done
        assert all(one.status == 0 for one in done)
        found.update(dict.fromkeys((one.cid for one in done), due))
    return found


def test_commands_complete_at_the_times_of_the_model(host: Host, queue: Queue) -> None:
    model = Drive(PROFILE)
    host.now = 1.0
    send(host, queue, WRITE, 1, page=0, count=2)
    send(host, queue, WRITE, 2, page=2)
    expected = {
        1: model.submit(10**9, Op.WRITE, 0, 2),
        2: model.submit(10**9, Op.WRITE, 2, 1),
    }
    assert completions(host, queue) == expected
    # By now the pages are programmed; two reads share a die, the third one has its own.
    host.now = 2.0
    for cid, page in enumerate((0, 0, 1), start=3):
        send(host, queue, READ, cid, page)
        expected[cid] = model.submit(2 * 10**9, Op.READ, page, 1)
    assert completions(host, queue) == {cid: expected[cid] for cid in (3, 4, 5)}
    # Submission, command, tR, bus, link, completion: 10.24 µs for 4 KiB on the bus, 1.024 on PCIe.
    assert expected[3] - 2 * 10**9 == 500 + 2000 + 50_000 + 10_240 + 1024 + 700


def test_what_is_written_is_there_before_the_write_completes(host: Host, queue: Queue) -> None:
    host.put(b"\xaa" * PAGE)
    send(host, queue, WRITE, 1, page=5)
    host.clear(DATA, PAGE)
    send(host, queue, READ, 2, page=5)
    assert not host.reap(queue)
    assert host.data(PAGE) == b"\xaa" * PAGE


def test_a_factor_multiplies_every_time() -> None:
    model = Drive(PROFILE)
    with Host(settings=modelled(factor=10)) as host:
        host.enable()
        queue = host.create_io_queue()
        host.now = 3.0
        send(host, queue, WRITE, 1, page=0)
        send(host, queue, READ, 2, page=7)
        expected = (
            10 * model.submit(3 * 10**8, Op.WRITE, 0, 1),
            10 * model.submit(3 * 10**8, Op.READ, 7, 1),
        )
        assert completions(host, queue) == dict(zip((1, 2), expected, strict=True))


def test_the_loop_sleeps_until_it_has_to_poll(host: Host, queue: Queue) -> None:
    host.now = 1.0
    send(host, queue, WRITE, 1, page=0)
    assert host.rpu.timeout == 0.0  # a deadline of microseconds
    completions(host, queue)
    slow = replace(PROFILE, submission_ns=10_000_000)
    with Host(settings=modelled(slow)) as other:
        other.enable()
        queue = other.create_io_queue()
        send(other, queue, WRITE, 1, page=0)
        due = other.rpu.controller.deadlines.next
        assert due is not None
        timeout = other.rpu.timeout
        assert timeout == pytest.approx((due - 300_000 - ns(other)) / 1e9)


def test_lateness_is_counted(host: Host, queue: Queue) -> None:
    timing = host.rpu.controller.timing
    assert timing is not None
    send(host, queue, READ, 1, page=0)
    due = host.rpu.controller.deadlines.next
    assert due is not None
    host.now = (due + 40_000) / 1e9
    host.service()
    assert len(host.reap(queue)) == 1
    assert (timing.lateness.count, timing.lateness.largest) == (1, 40_000)
    assert timing.lateness.percentile(0.5) == 40_000


def test_a_command_that_is_refused_is_not_kept(host: Host, queue: Queue) -> None:
    send(host, queue, READ, 1, page=256)
    assert [one.status for one in host.reap(queue)] == [0x80]


def test_a_drive_that_has_no_room_for_the_namespaces_is_refused() -> None:
    with pytest.raises(ValueError, match="no room for 256 pages"):
        Host(settings=modelled(replace(PROFILE, capacity=1 << 19)))
