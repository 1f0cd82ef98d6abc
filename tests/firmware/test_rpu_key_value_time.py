"""Key value namespaces in modelled time: what commands ask of the flash, and when they complete."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware.ftl.drive import Drive as FtlDrive
from potash_firmware.ftl.requests import Op
from potash_firmware.rpu.namespaces.value_log import ValueLog
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from potash_firmware.rpu.timing.values import ValueTime
from support.drive_checks import greedy_amplification
from support.key_value import (
    DELETE,
    EXIST,
    EXISTS,
    FLUSH,
    FULL,
    KV,
    MUST_NOT_EXIST,
    RETRIEVE,
    STORE,
    command,
    keys,
    retrieve,
    store,
)
from support.modelled_time import PROFILE, timing_of
from support.nvme_host import DATA, PAGE, Host

KIB = 1 << 10
PAGES = 200
SHAPES = (NamespaceShape(64 * KIB), NamespaceShape.key_value(PAGES * PAGE, 64 * KIB))


@contextmanager
def powered(
    *, index_on_flash: bool = False, blocks: int = 20, path: Path | None = None
) -> Iterator[Host]:
    exists = path is not None and (path / "namespaces.toml").exists()
    with Drive.open(path, () if exists else SHAPES) as drive:
        time = TimeSettings(
            FtlDrive(replace(PROFILE, blocks=blocks)), index_on_flash=index_on_flash
        )
        with Host(settings=RpuSettings(time=time), drive=drive) as host:
            host.css = 6
            host.enable()
            host.create_io_queue()
            yield host


def took(host: Host, opcode: int, key: bytes, size: int = 0) -> int:
    """The modelled nanoseconds of a command, which succeeds."""
    began = round(host.now * 1e9)
    assert command(host, opcode, key, size).status == 0
    return round(host.now * 1e9) - began


def idle(host: Host) -> None:
    """Let the drive do what it has to do."""
    host.now += 1.0
    host.service()


def test_a_value_costs_what_its_pages_cost() -> None:
    with powered() as host:
        host.put(b"v" * 65536)
        timing = timing_of(host)
        profile, counters = timing.drive.profile, timing.drive.counters
        for pages in (1, 2, 16):
            before = timing.drive.counters.host
            took(host, STORE, b"k%d" % pages, pages * PAGE)
            assert timing.drive.counters.host - before == pages
        took(host, STORE, b"tail", PAGE + 1)  # of which a byte stays in the write buffer
        assert timing.drive.counters.host - counters.host == 1 + 2 + 16 + 1
        took(host, STORE, b"empty", 0)
        idle(host)
        host.command(host.io[1], 0, nsid=KV)
        idle(host)
        absent = took(host, EXIST, b"k1")
        # The test's host looks a microsecond later.
        assert absent == 1000 + (
            profile.submission_ns + profile.other_command_ns + profile.completion_ns
        )
        assert took(host, RETRIEVE, b"empty", PAGE) == absent
        single, all16 = took(host, RETRIEVE, b"k1", PAGE), took(host, RETRIEVE, b"k16", 65536)
        assert profile.read_ns[0] < single < all16 < 16 * single
        # Only the pages of the first bytes are read.
        assert took(host, RETRIEVE, b"k16", PAGE) < all16 / 2


def test_an_index_on_flash_is_read_and_written() -> None:
    with powered() as dram, powered(index_on_flash=True) as flash:
        for host in (dram, flash):
            host.put(b"v" * PAGE)
            assert store(host, b"k", b"v" * PAGE) == 0
            idle(host)
            host.command(host.io[1], 0, nsid=KV)
            idle(host)
        reads = [took(host, RETRIEVE, b"k", PAGE) for host in (dram, flash)]
        assert reads[1] > reads[0] + timing_of(flash).drive.profile.read_ns[0]
        written = [timing_of(host).drive.counters.host for host in (dram, flash)]
        assert written == [1, 2]
        assert [command(host, DELETE, b"k").status for host in (dram, flash)] == [0, 0]
        assert timing_of(flash).drive.counters.host == 3


class Flash:
    """Which pages of a namespace have been written and not trimmed since, by the requests that the
    modelled drive gets; a read of others fails."""

    def __init__(self, host: Host) -> None:
        timing = timing_of(host)
        self.charge = timing.charge
        self.pages: set[int] = set()
        self.writes = [0, 0]
        """Pages written, of the index and of values."""
        self.read: list[int] = []
        values = host.rpu.controller.namespaces.values[0]
        self.index = values.shape.value_pages[1]
        setattr(timing, "charge", self.request)  # noqa: B010

    def request(self, nsid: int, op: Op, offset: int, length: int, *rest: Any, **named: Any) -> int:
        pages = range(offset // PAGE, (offset + length) // PAGE)
        assert nsid == KV and offset % PAGE == length % PAGE == 0
        if op is Op.WRITE:
            self.pages |= {*pages}
            for page in pages:
                self.writes[page >= self.index] += 1
        elif op is Op.READ:
            values = [page for page in pages if page >= self.index]
            assert self.pages >= {*values}
            self.read += values
        else:
            assert op is Op.TRIM
            self.pages -= {*pages}
        return self.charge(nsid, op, offset, length, *rest, **named)


def value_time(host: Host) -> ValueTime:
    found = host.rpu.controller.value_time
    assert found is not None
    return found


def log_of(host: Host) -> ValueLog:
    found = host.rpu.controller.namespaces.values[0].log
    assert found is not None
    return found


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 50))]
)
@pytest.mark.parametrize(
    ("number", "sizes"),
    [(190, (0, 100, PAGE, 3 * PAGE, 5 * PAGE)), (350, (1, 700, 2049, 3000, 9000))],
)
@pytest.mark.parametrize("on_flash", [False, True])
def test_random_commands_on_a_full_namespace(
    on_flash: bool, number: int, sizes: tuple[int, ...], seed: int
) -> None:
    """Each live part of a value is on one page, which was written unless it is in memory, and the
    counters are those of the requests that the drive got."""
    chosen, model, stored = random.Random(seed), dict[bytes, int](), 0
    with powered(index_on_flash=on_flash, blocks=15) as host:
        timing, flash = timing_of(host), Flash(host)
        full = 0
        for _ in range(2000):
            key, size = b"%d" % chosen.randrange(number), chosen.choice(sizes)
            action = chosen.random()
            if action < 0.15:
                model.pop(key, None)
                assert command(host, DELETE, key).status == 0
            elif action < 0.18:
                assert command(host, FLUSH, b"").status == 0
                assert all(page in flash.pages for page in on_pages(host))
            elif action < 0.3 and key in model:
                flash.read.clear()
                assert command(host, RETRIEVE, key, 5 * PAGE).status == 0
                assert len(flash.read) <= -(-model[key] // PAGE)
            else:
                options = chosen.choice((0, 0, 0, MUST_NOT_EXIST))
                status = store(host, key, b"v" * size, options)
                used = sum(-(-other // PAGE) for other in model.values())
                if options and key in model:
                    assert status == EXISTS
                elif status == FULL:
                    full += 1
                    assert used + -(-size // PAGE) > PAGES or sum(model.values()) > PAGES * PAGE
                else:
                    assert status == 0
                    model[key] = size
                    stored += size
        found = log_of(host)
        assert {key: value.size for key, value in found.placed.items()} == model
        by_page = on_pages(host)
        assert sum(by_page.values()) == sum(model.values())
        assert max(by_page.values()) <= PAGE and min(by_page) >= flash.index
        assert {page for page in by_page if not found.is_open(page)} <= flash.pages
        assert {page for page in flash.pages if page >= flash.index} <= {*by_page}
        counted = value_time(host).counters
        assert (counted.index, counted.written) == (flash.writes[0] * PAGE, flash.writes[1] * PAGE)
        assert counted.stored == stored and counted.moved > 0 and full
        assert counted.write_amplification == pytest.approx(sum(flash.writes) * PAGE / stored)
        counters = timing.drive.counters
        assert counters.host == sum(flash.writes)
        buffered = PROFILE.buffer_bytes // PAGE
        assert 0 <= counters.programmed - counters.padding - counters.programs <= buffered
        assert keys(host, size=65536) == sorted(model)


def on_pages(host: Host) -> dict[int, int]:
    """The live bytes on each page, by the parts of all values."""
    found: dict[int, int] = {}
    for value in log_of(host).placed.values():
        assert len({*value.pages}) == len(value.pages) == -(-value.size // PAGE)
        for at, page in enumerate(value.pages):
            found[page] = found.get(page, 0) + min(PAGE, value.size - at * PAGE)
    return found


@pytest.mark.parametrize("size", [1, 100, 1000, 2048, 3000])
def test_small_values_share_pages(size: int) -> None:
    """A page is programmed when it is full; values that are stored again in the same order leave
    pages without any live part, so that none is ever moved."""
    each = PAGE // size
    with powered() as host:
        flash, rounds = Flash(host), 6
        for number in range(rounds * 100):
            assert store(host, b"%d" % (number % 100), bytes(size)) == 0
        pages, rest = divmod(rounds * 100, each)
        assert flash.writes == [0, pages - (rest == 0 and PAGE % size != 0)]
        counted = value_time(host).counters
        assert (counted.moved, counted.stored) == (0, rounds * 100 * size)
        if pages:
            assert counted.write_amplification == flash.writes[1] * PAGE / counted.stored
        assert keys(host, size=65536) == sorted(b"%d" % number for number in range(100))


def test_a_flush_programs_the_page_that_values_share() -> None:
    with powered() as host:
        flash = Flash(host)
        assert store(host, b"a", b"v" * 100) == store(host, b"b", b"v" * 100) == 0
        assert flash.writes == [0, 0]
        for _ in range(2):  # nothing has changed for the second one
            assert command(host, FLUSH, b"").status == 0
            assert flash.writes == [0, 1] and timing_of(host).drive.counters.programs == 1
        assert retrieve(host, b"a") == b"v" * 100 and flash.read == []
        assert store(host, b"c", b"v" * 100) == 0
        assert host.command(host.io[1], FLUSH, nsid=1).status == 0
        assert flash.writes == [0, 2] and len(flash.pages) == 1
        assert host.command(host.admin, 9, nsid=0, cdws=(6, 0)).status == 0  # no write cache
        assert store(host, b"d", b"v" * 100) == 0
        assert flash.writes == [0, 3] and timing_of(host).drive.counters.programs == 3


def test_the_flash_can_have_too_few_pages_for_values() -> None:
    """Of just more than half a page, whose bytes would have room in the namespace."""
    with powered() as host:
        for number in range(1000):
            if store(host, b"%d" % number, b"v" * 2049):
                break
        assert PAGES <= number < PAGES * PAGE // 2049
        assert store(host, b"1", b"w" * 2049) == FULL  # as the old one is there until it is stored
        for gone in range(2, 40):
            assert command(host, DELETE, b"%d" % gone).status == 0
        assert store(host, b"1", b"w" * 2049) == 0
        assert retrieve(host, b"1") == b"w" * 2049
        assert host.command(host.admin, 0x80, nsid=KV).status == 0
        for number in range(PAGES):
            assert store(host, b"%d" % number, b"v" * 2049) == 0


def test_a_namespace_gets_the_pages_that_are_left() -> None:
    """Beside others for which the drive was made, which need no spare pages."""
    shapes = (NamespaceShape(512 * KIB), NamespaceShape.key_value(16 * KIB))
    settings = RpuSettings(time=TimeSettings(FtlDrive(PROFILE)))
    with (
        Drive.open(None, shapes, capacity=1 << 20) as drive,
        Host(settings=settings, drive=drive) as host,
    ):
        host.css = 6
        host.enable()
        host.create_io_queue()
        host.put(struct.pack("<Q", 496 * KIB).ljust(PAGE, b"\0"))
        made = host.command(host.admin, 0x0D, cdws=(0, 1 << 24))
        assert (made.status, made.dw0) == (0, 3)
        host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
        assert host.command(host.admin, 0x15, nsid=3).status == 0
        host.put(b"v" * PAGE)
        stored = [command(host, STORE, b"%d" % n, PAGE, nsid=3).status for n in range(124)]
        assert stored[:90] == [0] * 90 and {*stored[90:]} <= {0, FULL}


def test_values_are_placed_again_after_a_power_cycle(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    with powered(path=tmp_path / "drive") as host:
        assert store(host, b"b", b"v" * 3 * PAGE) == store(host, b"a", b"v") == 0
    with powered(path=tmp_path / "drive") as host:
        first = log_of(host).index
        placed = {key: value.pages for key, value in log_of(host).placed.items()}
        assert placed == {b"a": [first], b"b": [first + 1, first + 2, first + 3]}
        assert timing_of(host).drive.counters.host == 4
        host.clear(DATA, PAGE)
        assert took(host, RETRIEVE, b"b", PAGE) > 0


def test_copied_values_have_been_read() -> None:
    memory = NamespaceShape.memory(1 << 20)
    with Drive.open(None, (*SHAPES, memory)) as drive:
        settings = RpuSettings(time=TimeSettings(FtlDrive(PROFILE)))
        with Host(settings=settings, drive=drive) as host:
            host.css = 6
            host.enable()
            queue = host.create_io_queue()
            for key in (b"a", b"b"):
                assert store(host, key, b"v" * PAGE) == 0
            idle(host)
            host.command(queue, 0, nsid=KV)
            idle(host)
            began, senses = host.now, timing_of(host).drive.counters.senses
            host.put(struct.pack("<IIBB6x16s", KV, 9, 0, 1, b""))
            done = host.command(queue, 0xA1, nsid=3, prp1=DATA, first=(2 * PAGE, 0))
            assert (done.status, done.dw0, done.dw1) == (0, 2, 2 * PAGE)
            assert timing_of(host).drive.counters.senses == senses + 2
            assert host.now - began > PROFILE.read_ns[0] / 1e9


def test_a_command_that_has_waited_for_its_key_is_none_of_a_formatted_namespace() -> None:
    with powered() as host:
        queue, size = host.io[1], 8 * PAGE
        for cid in (1, 2):  # the second one waits for the first
            words = struct.unpack("<4I", b"k".ljust(16, b"\0"))
            host.put(struct.pack("<8Q", *range(DATA + PAGE, DATA + 9 * PAGE, PAGE)), DATA - PAGE)
            host.place(
                queue, STORE, cid, nsid=KV, prp1=DATA, prp2=DATA - PAGE,
                first=words[:2], cdws=(size, 1, 0, 0, *words[2:]),
            )  # fmt: skip
        host.ring(queue)
        host.service()
        assert len(host.executor.waiting) == 1
        assert host.command(host.admin, 0x80, nsid=KV).status == 0
        found = {done.cid: done.status for done in host.reap(queue)}
        assert found == {1: 0, 2: 0x84}
        assert keys(host) == []
        assert store(host, b"k", b"v") == 0


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("each", [1, 4])
def test_a_log_is_cleaned_at_the_cost_of_the_closed_form(share: float, each: int) -> None:
    """Random values are stored again, of which a page has one or four."""
    chosen, size = random.Random(5), PAGE // each
    shape = NamespaceShape.key_value(2048 * PAGE)
    pages = shape.flash_size // PAGE
    values = ValueLog(shape, pages, 32)
    count = int(2048 * share * each)
    moved = stored = 0
    for step in range(12 * count):
        number = step if step < count else chosen.randrange(count)
        while not values.has_room(size):
            cleaned = values.clean()
            assert cleaned is not None
            moved += cleaned.size
        key = b"%d" % number
        old, values.placed[key] = values.placed.get(key), values.put(key, size)
        values.take_full()
        if old is not None:
            values.release(old)
        if step == 6 * count:
            moved = stored = 0
        stored += size
    segments = (pages - values.index) // values.segment
    # One is kept free, one is being filled.
    alpha = (segments - 1.5) * values.segment / (2048 * share)
    expected = greedy_amplification(alpha, values.segment * each)
    assert 1 + moved / stored == pytest.approx(expected, rel=0.03)
