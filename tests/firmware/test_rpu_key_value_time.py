"""Key value namespaces in modelled time: what commands ask of the flash, and when they complete."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware.ftl.drive import Drive as FtlDrive
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.key_value import (
    DELETE,
    EXIST,
    EXISTS,
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
        took(host, STORE, b"tail", PAGE + 1)
        assert timing.drive.counters.host - counters.host == 1 + 2 + 16 + 2
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


@pytest.mark.parametrize("on_flash", [False, True])
def test_counters_are_those_of_a_count_of_pages(on_flash: bool) -> None:
    """Random commands on a full namespace, whose pages the drive has to relocate."""
    chosen, model, pages = random.Random(3), dict[bytes, int](), 0
    with powered(index_on_flash=on_flash, blocks=15) as host:
        timing = timing_of(host)
        for _ in range(1000):
            key = b"%d" % chosen.randrange(90)
            size = chosen.choice((0, 100, PAGE, 3 * PAGE, 5 * PAGE))
            if chosen.random() < 0.15:
                pages += on_flash * (key in model)
                model.pop(key, None)
                assert command(host, DELETE, key).status == 0
                continue
            options = chosen.choice((0, 0, 0, MUST_NOT_EXIST))
            used = sum(-(-other // PAGE) for other in model.values())
            expected = 0
            if options and key in model:
                expected = EXISTS
            elif used + -(-size // PAGE) > PAGES:
                expected = FULL
            assert store(host, key, b"v" * size, options) == expected
            if not expected:
                model[key] = size
                pages += -(-size // PAGE) + on_flash
        counters = timing.drive.counters
        assert counters.host == pages
        namespace = host.rpu.controller.namespaces.values[0]
        assert namespace.pages is not None
        placed = namespace.pages.placed
        assert {key: len(of) for key, of in placed.items()} == {
            key: -(-size // PAGE) for key, size in model.items()
        }
        every = [page for of in placed.values() for page in of]
        assert len(set(every)) == len(every) and min(every) >= namespace.pages.index
        assert counters.relocated > 0
        buffered = PROFILE.buffer_bytes // PAGE
        assert 0 <= pages + counters.relocated - counters.programs <= buffered
        assert keys(host, size=65536) == sorted(model)


def test_the_flash_can_have_too_few_pages_for_small_values() -> None:
    """Whose bytes would have room in the namespace."""
    with powered() as host:
        for number in range(PAGES):
            assert store(host, b"%d" % number, b"v") == 0
        assert store(host, b"one more", b"v") == FULL
        assert store(host, b"1", b"w") == FULL  # which is written before the old one is trimmed
        assert command(host, DELETE, b"2").status == 0
        assert store(host, b"1", b"w") == 0
        assert retrieve(host, b"1") == b"w"
        assert host.command(host.admin, 0x80, nsid=KV).status == 0
        assert store(host, b"one more", b"v") == 0


def test_values_are_placed_again_after_a_power_cycle(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    with powered(path=tmp_path / "drive") as host:
        assert store(host, b"b", b"v" * 3 * PAGE) == store(host, b"a", b"v") == 0
    with powered(path=tmp_path / "drive") as host:
        namespace = host.rpu.controller.namespaces.values[0]
        assert namespace.pages is not None
        first = namespace.pages.index
        assert namespace.pages.placed == {b"a": [first], b"b": [first + 1, first + 2, first + 3]}
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
