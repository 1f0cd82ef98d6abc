"""Values that running programs request, with the test in the APU's place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvme_spec.asymmetric_access import AccessState
from nvme_spec.key_value import decode_keys, encode_keys
from nvme_spec.status import Status
from potash_device.media.errors import MediaError
from potash_device.media.shapes import NamespaceShape
from potash_device.media.values import ValueStore
from potash_firmware.mailbox.messages import (
    Execute,
    Executed,
    JobBegan,
    JobCounted,
    JobDue,
    Outcome,
    Read,
    Reset,
    ResetDone,
    ToApu,
)
from potash_firmware.mailbox.values import (
    MAX_OWN,
    JobValueRead,
    ReadJobValue,
    ReadValue,
    ValueRead,
)
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.settings import RpuSettings
from support.compute import EXECUTE, range_descriptor
from support.key_value import KV, LIST, LONGEST, store
from support.memory import MIB, powered
from support.modelled_time import PRICE, PROFILE, SECOND, WORK, job_time, with_core
from support.nvme_host import DATA, PAGE, Host

MEMORY, COMPUTE = 3, 4
START = 2 * PAGE
"""Where the second range begins in its namespace."""
FOR_PROGRAMS = (NamespaceShape.memory(2 * MIB), NamespaceShape.compute())
VALUE = b"value" * 1000


@contextmanager
def running(
    path: Path | None = None, settings: RpuSettings | None = None, size: int = 2 * MIB
) -> Iterator[Host]:
    """A drive with a value, and an APU."""
    shapes = NamespaceShape(1 << 18), NamespaceShape.key_value(size), *FOR_PROGRAMS
    with powered(path, *shapes, settings=settings) as host:
        host.connect_apu()
        assert store(host, b"k", VALUE) == 0
        yield host


@pytest.fixture
def host() -> Iterator[Host]:
    with running() as found:
        yield found


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Host]:
    """A drive whose values are read when the test runs its executor."""
    with running(tmp_path) as found:
        yield found


def sent(host: Host) -> list[ToApu]:
    """The messages to the APU, without descriptors."""
    assert host.apu is not None
    found = []
    while (message := host.apu.receive()) is not None:
        if getattr(message, "descriptor", -1) >= 0:
            os.close(message.descriptor)  # type: ignore[union-attr]
        found.append(message)
    return found


def begin(host: Host, cid: int = 0x100) -> int:
    """Begin an execution on two ranges; returns its tag."""
    host.put(range_descriptor((MEMORY, 0, PAGE)) + range_descriptor((MEMORY, START, MIB)))
    host.place(host.io[1], EXECUTE, cid, nsid=COMPUTE, prp1=DATA, first=(0, 2, 64))
    host.ring(host.io[1])
    host.service()
    (execution,) = [message for message in sent(host) if isinstance(message, Execute)]
    return execution.tag


def request(host: Host, message: ReadValue | ReadJobValue) -> None:
    assert host.apu is not None
    host.apu.send(message)
    host.service()


def work(host: Host) -> None:
    """Have the executor do what it is asked."""
    host.executor.run_all()
    host.service()


def answer(host: Host, message: ReadValue | ReadJobValue) -> ValueRead | JobValueRead:
    request(host, message)
    work(host)
    (found,) = sent(host)
    assert isinstance(found, ValueRead | JobValueRead)
    return found


def memory(host: Host) -> memoryview:
    namespace = host.rpu.controller.namespaces.attached[MEMORY]
    assert isinstance(namespace, MemoryNamespace)
    return namespace.memory.bytes


def test_a_value_is_copied_into_a_range_and_nowhere_else(host: Host) -> None:
    tag = begin(host)
    read = ReadValue(tag, KV, 4000, b"k", offset=8, range=1)
    assert answer(host, read) == ValueRead(tag, len(VALUE))
    assert memory(host)[START + 8 : START + 4008] == VALUE[:4000]
    assert not any(memory(host)[: START + 8]) and not any(memory(host)[START + 4008 :])
    large = os.urandom(LONGEST)
    assert store(host, b"large", large) == 0
    read = ReadValue(tag, KV, LONGEST, b"large", offset=MIB - LONGEST, range=1)
    assert answer(host, read) == ValueRead(tag, LONGEST)
    assert memory(host)[START + MIB - LONGEST : START + MIB] == large


def test_a_few_bytes_are_sent_to_the_program_s_own_memory(host: Host) -> None:
    tag = begin(host)
    found = answer(host, ReadValue(tag, KV, MAX_OWN, b"k"))
    assert found == ValueRead(tag, len(VALUE), VALUE[:MAX_OWN])
    assert answer(host, ReadValue(tag, KV, 0, b"k")) == ValueRead(tag, len(VALUE))
    assert not any(memory(host))


def test_keys_are_listed_from_one_on(host: Host) -> None:
    tag = begin(host)
    for key in (b"a", b"kk", b"k" * 16):
        assert store(host, key, b"") == 0
    found = answer(host, ReadValue(tag, KV, PAGE, b"", lists=True))
    assert (found.result, decode_keys(found.data)) == (4, [b"a", b"k", b"kk", b"k" * 16])
    found = answer(host, ReadValue(tag, KV, 12, b"k\0", lists=True))
    assert (found.result, decode_keys(found.data)) == (1, [b"kk"])
    found = answer(host, ReadValue(tag, KV, PAGE, b"k" * 16 + b"\0", lists=True, range=1))
    assert (found.result, found.data) == (0, b"")


def test_a_long_list_does_not_hold_up_the_firmware(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor makes it, for programs and for hosts."""
    tag, made = begin(host), []

    def counted(keys: list[bytes], size: int) -> bytes:
        made.append(size)
        return encode_keys(keys, size)

    monkeypatch.setattr("potash_firmware.rpu.value_work.encode_keys", counted)
    request(host, ReadValue(tag, KV, PAGE, b"", lists=True))
    host.place(host.io[1], LIST, 0x200, nsid=KV, cdws=(PAGE, 0))
    host.ring(host.io[1])
    host.service()
    assert len(host.executor.waiting) == 2 and not made
    work(host)
    assert made == [PAGE] * 2
    assert [done.status for done in host.reap(host.io[1])] == [0]


@pytest.mark.parametrize(
    ("nsid", "room", "key", "lists", "error"),
    [
        (KV, 4, b"absent", False, errno.ENOENT),
        (KV, 4, b"", False, errno.EINVAL),
        (KV, 4, bytes(17), False, errno.EINVAL),
        (KV, 3, b"", True, errno.EINVAL),
        (1, 4, b"k", False, errno.ENODEV),
        (MEMORY, 4, b"k", False, errno.ENODEV),
        (COMPUTE, 4, b"k", True, errno.ENODEV),
        (9, 4, b"k", False, errno.ENODEV),
        (0, 4, b"k", False, errno.ENODEV),
        (0xFFFF_FFFF, 4, b"k", False, errno.ENODEV),
    ],
)
def test_impossible_requests_have_an_errno(
    host: Host, nsid: int, room: int, key: bytes, lists: bool, error: int
) -> None:
    tag = begin(host)
    assert answer(host, ReadValue(tag, nsid, room, key, lists)) == ValueRead(tag, -error)
    job = ReadJobValue(1, nsid, room, key, lists)
    assert answer(host, job) == JobValueRead(1, -error)


def test_no_value_is_read_that_cannot_be_reached_or_used(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag, controller = begin(host), host.rpu.controller
    read = ReadValue(tag, KV, 4, b"k")
    controller.reachability.associate(False)
    assert answer(host, read).result == -errno.EACCES
    controller.reachability.associate(True)
    in_flight = controller.namespaces.values[0].in_flight
    in_flight.closed = Status.FORMAT_IN_PROGRESS
    assert answer(host, read).result == -errno.EBUSY
    in_flight.closed = None

    def fails(*_: object) -> None:
        raise MediaError(errno.EIO, "no")

    monkeypatch.setattr(ValueStore, "retrieve", fails)
    assert answer(host, read).result == -errno.EIO


def test_no_value_is_read_without_access_to_its_namespace() -> None:
    """For an execution that has begun before, and for a job."""
    with running(settings=RpuSettings(ana=True)) as host:
        tag = begin(host)
        ana = host.rpu.controller.ana
        assert ana is not None

        def results() -> list[int]:
            value, keys = ReadValue(tag, KV, 4, b"k"), ReadJobValue(1, KV, 4, b"k", lists=True)
            return [answer(host, value).result, answer(host, keys).result]

        assert results() == [len(VALUE), 0]
        ana.change(1, AccessState.INACCESSIBLE)
        assert results() == [-errno.EACCES] * 2
        ana.change(1, AccessState.OPTIMIZED, 5.0)
        assert results() == [-errno.EBUSY] * 2


@pytest.mark.parametrize(("index", "offset"), [(2, 0), (254, 0), (0, PAGE - 3), (1, 1 << 63)])
def test_nothing_is_copied_outside_the_ranges(host: Host, index: int, offset: int) -> None:
    """The APU lets no worker request it; the RPU does not rely on that."""
    tag = begin(host)
    read = ReadValue(tag, KV, 4, b"k", offset=offset, range=index)
    assert answer(host, read) == ValueRead(tag, -errno.ECANCELED)
    assert not any(memory(host))


def test_an_execution_that_has_ended_gets_nothing(slow: Host) -> None:
    host = slow
    tag = begin(host)
    request(host, ReadValue(tag, KV, 5, b"k", range=0))
    assert host.apu is not None
    host.apu.send(Executed(tag, Outcome.RETURNED))
    host.service()
    assert host.reap(host.io[1])
    work(host)
    assert sent(host) == [ValueRead(tag, -errno.ECANCELED)]
    assert not any(memory(host))


def test_the_next_apu_gets_no_answer_to_the_last_one(slow: Host) -> None:
    host = slow
    request(host, ReadJobValue(1, KV, 5, b"k"))
    host.rpu.controller.apu.disconnect()
    host.connect_apu()
    work(host)
    assert not any(isinstance(message, JobValueRead) for message in sent(host))


def test_a_job_s_value_is_in_its_arena(host: Host) -> None:
    arena = host.rpu.controller.apu.buffers.arena(0)
    found = answer(host, ReadJobValue(7, KV, 3, b"k", offset=64))
    assert found == JobValueRead(7, len(VALUE))
    assert bytes(arena[63:68]) == b"\0val\0"
    beyond = ReadJobValue(7, KV, 3, b"k", offset=len(arena) - 2)
    assert answer(host, beyond) == JobValueRead(7, -errno.ECANCELED)
    elsewhere = ReadJobValue(7, KV, 3, b"k", accelerator=9)
    assert answer(host, elsewhere) == JobValueRead(7, -errno.ECANCELED, accelerator=9)


def test_a_reset_leaves_no_value_in_an_arena(slow: Host) -> None:
    host = slow
    request(host, ReadJobValue(7, KV, 5, b"k"))
    host.rpu.controller.apu.reset(next_host=True)
    work(host)
    reset, done = sent(host)
    assert isinstance(reset, Reset)
    assert done == JobValueRead(7, -errno.ECANCELED)
    assert not any(host.rpu.controller.apu.buffers.arena(0)[:64])
    assert host.apu is not None
    host.apu.send(ResetDone(reset.tag))
    host.service()
    assert answer(host, ReadJobValue(7, KV, 5, b"k")).result == len(VALUE)


REQUEST = (
    *(st.just(7), st.sampled_from([0, 1, KV, MEMORY]), st.sampled_from([0, 3, 4, 5000, LONGEST])),
    *(st.binary(max_size=17) | st.just(b"k"), st.booleans(), st.just(0), st.just(0)),
    st.sampled_from([0, 1, PAGE - 4, PAGE, MIB - 4, MIB, (1 << 64) - 1]),
)
REQUESTS = st.builds(ReadJobValue, *REQUEST) | st.builds(ReadValue, *REQUEST, st.integers(0, 3))


@given(st.lists(REQUESTS, max_size=8))
def test_every_request_is_answered_and_changes_its_target_alone(
    requests: list[ReadValue | ReadJobValue],
) -> None:
    """The requests of one execution come together, which the APU would not let pass."""
    with running() as host:
        tag, before = begin(host), bytes(memory(host)[PAGE:START])
        assert host.apu is not None
        for message in requests:
            host.apu.send(replace(message, tag=tag))
        host.service()
        work(host)
        assert len(sent(host)) == len(requests)
        assert memory(host)[PAGE:START] == before
        assert not any(memory(host)[START + MIB :])


def test_a_job_waits_for_the_flash_that_it_reads() -> None:
    """Values and blocks, in the order in which it has read them."""
    took = []
    for reads in (0, 1):
        with running(settings=RpuSettings(time=with_core()), size=1 << 18) as host:
            host.now += 1.0
            assert host.apu is not None
            host.apu.send(JobBegan(0, 5))
            host.service()
            began = round(host.now * SECOND)
            for at in (1000, 3000) if reads else ():
                answer(host, ReadJobValue(9, KV, 5000, b"k", at=at))
            blocks = (Read(500, 1, 0, PAGE), Read(2000, 1, 8 * PAGE, PAGE))
            host.apu.send(JobCounted(0, 5, WORK, blocks))
            host.service()
            timed = job_time(host).job(0)
            assert timed is not None
            order = [(read.nsid, read.at) for read in timed.reads]
            assert order == sorted(order, key=itemgetter(1)) and len(order) == 2 + 2 * reads
            while not (found := sent(host)):
                assert host.deadline is not None
                host.now = host.deadline / SECOND
                host.service()
            assert isinstance(found[0], JobDue)
            took.append(round(host.now * SECOND) - began)
    assert took[1] > took[0] + 2 * PROFILE.read_ns[0]


@pytest.mark.parametrize("on_flash", [False, True])
def test_an_execution_waits_for_the_flash_that_it_reads(on_flash: bool) -> None:
    """Each request waits for the pages of the value, and for the entry of its key on flash."""
    time = replace(with_core(), index_on_flash=on_flash)
    took = []
    for reads in (0, 1, 2):
        with running(settings=RpuSettings(time=time), size=1 << 18) as host:
            host.now += 1.0
            tag, began = begin(host), round(host.now * SECOND)
            for _ in range(reads):
                answer(host, ReadValue(tag, KV, 5000, b"k", range=1, at=1000))
            assert host.apu is not None
            host.apu.send(Executed(tag, Outcome.RETURNED, work=WORK))
            host.service()
            while not host.reap(host.io[1]):
                assert host.deadline is not None
                host.now = host.deadline / SECOND
                host.service()
            took.append(round(host.now * SECOND) - began)
    assert took[0] == PRICE(WORK)
    least = PROFILE.read_ns[0] * (2 if on_flash else 1)
    assert took[1] > took[0] + least and took[2] > took[1] + least
