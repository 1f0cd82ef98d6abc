"""The APU's configuration, its log, and the arithmetic of its ranges."""

import os
from dataclasses import replace
from typing import Any

import pytest

from csd_spec.descriptors import LogEntryType
from csd_spec.fields import LocalStorage
from nvme_spec.status import NvmeError
from potash_device.cores import CoreProfile
from potash_device.flash.profile import Rate
from potash_firmware import bpf
from potash_firmware.apu import blocks
from potash_firmware.apu.config import (
    AcceleratorConfig,
    Config,
    ConfigError,
    Limits,
    NamespaceConfig,
    RangeBlocks,
    RangeUnit,
    format_descriptors,
    parse_descriptors,
)
from potash_firmware.apu.model import ByteRange, Grant, Log, Snapshot
from potash_firmware.bpf.engine import Engine
from potash_firmware.log_components import LogSettings
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.datagrams import encode
from potash_firmware.mailbox.messages import Ping
from potash_firmware.mailbox.shared import seal

ONE = Config((AcceleratorConfig(0, 4096, 4096),))


@pytest.mark.parametrize(
    "config",
    [
        ONE,
        Config(
            (AcceleratorConfig(0, 1, 2), AcceleratorConfig(9, 3, 4)),
            (NamespaceConfig(1, 1 << 30, 512),),
            Limits(instructions=5, seconds=0.5),
            RangeBlocks(RangeUnit.LBA, zero_based=True),
            {"LOG_BATCH": 0, "LOG_BLOCK": 4},
            2,
            Engine.INTERPRETER,
            count_cycles=True,
            platform_status=True,
            log=LogSettings("debug", {"apu": "info", "rpu": "error"}, "json"),
            processor=CoreProfile(dispatch_ns=1, dram=Rate(2, 3)),
        ),
    ],
)
def test_a_configuration_reaches_another_process(config: Config) -> None:
    descriptor = config.share()
    assert Config.adopt(descriptor) == config
    with pytest.raises(PermissionError):
        os.write(descriptor, b"x")
    os.close(descriptor)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"limits": Limits(seconds=0)}, "seconds is 0"),
        ({"vta_threads": 0}, "vta_threads is 0"),
        ({"accelerators": ONE.accelerators * 2}, "two accelerators have one identifier"),
        ({"namespaces": (NamespaceConfig(1, 4096, 0),)}, "block_size is 0"),
    ],
)
def test_a_wrong_configuration_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(MailboxError, match=said):
        encode(replace(ONE, **changed))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        encode(ONE)[:-1],
        encode(ONE) + b"x",
        encode(ONE).replace(b"page", b"mile"),
        encode(ONE).replace(b"info", b"loud"),
        encode(Ping(1)),
    ],
)
def test_other_bytes_are_no_configuration(data: bytes) -> None:
    descriptor = seal("config", data)
    with pytest.raises(ConfigError):
        Config.adopt(descriptor)
    os.close(descriptor)


def test_descriptors_have_names() -> None:
    text = "mailbox=3,state=4,transfer=5,media1=6,arena0=7"
    named = {"mailbox": 3, "state": 4, "transfer": 5, "media1": 6, "arena0": 7}
    assert parse_descriptors(text) == named
    assert format_descriptors(named) == text


@pytest.mark.parametrize("text", ["mailbox", "mailbox=", "=3", "mailbox=-1", "a=1,a=2"])
def test_malformed_descriptors_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_descriptors(text)


@pytest.mark.parametrize("sizes", [(4096, 4096), (1, 5000), (64 << 20, 64 << 20)])
def test_the_arenas_plan_is_where_the_program_looks(sizes: tuple[int, int]) -> None:
    plan, layout = AcceleratorConfig(0, *sizes).plan, bpf.buffer_layout(*sizes)
    assert (plan.input_offset, plan.output_offset) == (layout.input_offset, layout.output_offset)
    assert plan.size >= layout.size


# Ranges

SPACES = {1: NamespaceConfig(1, 100 * 4096), 2: NamespaceConfig(2, 10 * 512, 512)}


@pytest.mark.parametrize(
    ("counting", "nsid", "start", "count", "expected"),
    [
        (RangeBlocks(), 1, 3, 2, ByteRange(1, 3 * 4096, 2 * 4096)),
        (RangeBlocks(), 1, 99, 4, ByteRange(1, 99 * 4096, 4 * 4096)),
        (RangeBlocks(zero_based=True), 1, 3, 2, ByteRange(1, 3 * 4096, 3 * 4096)),
        (RangeBlocks(zero_based=True), 1, 3, 0, ByteRange(1, 3 * 4096, 4096)),
        (RangeBlocks(RangeUnit.LBA), 2, 3, 2, ByteRange(2, 3 * 512, 2 * 512)),
        (RangeBlocks(), 2, 0, 1, ByteRange(2, 0, 4096)),
    ],
)
def test_ranges_count_as_configured(
    counting: RangeBlocks, nsid: int, start: int, count: int, expected: ByteRange
) -> None:
    assert blocks.resolve(LocalStorage(start, count, 0), nsid, SPACES, counting) == expected


@pytest.mark.parametrize(
    ("nsid", "start", "count", "status"),
    [(3, 0, 1, 0x00B), (0xFFFF_FFFF, 0, 1, 0x00B), (1, 0, 0, 0x002), (1, 100, 1, 0x080)],
)
def test_a_range_of_nothing_is_an_error(nsid: int, start: int, count: int, status: int) -> None:
    with pytest.raises(NvmeError) as caught:
        blocks.resolve(LocalStorage(start, count, 0), nsid, SPACES, RangeBlocks())
    assert caught.value.status == status


@pytest.mark.parametrize(
    "item", [ByteRange(1, 99 * 4096, 4096), Grant(1, 99, 1, True), Grant(2, 9, 1, False)]
)
def test_a_range_is_there_as_long_as_its_namespace_is_what_it_was(item: ByteRange | Grant) -> None:
    assert blocks.missing(item, SPACES) is None
    assert blocks.missing(item, {}) == f"namespace {item.nsid} is not there any more"
    smaller = {nsid: replace(one, size=one.block_size) for nsid, one in SPACES.items()}
    assert blocks.missing(item, smaller)


def test_a_range_does_not_begin_inside_a_block() -> None:
    larger = {2: NamespaceConfig(2, 10 * 4096)}
    assert blocks.missing(ByteRange(2, 512, 512), larger)
    assert blocks.missing(ByteRange(2, 4096, 512), larger) is None


def test_output_fills_its_ranges_in_order_in_whole_blocks() -> None:
    chosen = (ByteRange(2, 0, 1024), ByteRange(1, 4096, 8192))
    cases = {
        0: (),
        1: (ByteRange(2, 0, 512),),
        1024: (ByteRange(2, 0, 1024),),
        1025: (ByteRange(2, 0, 1024), ByteRange(1, 4096, 4096)),
        9216: chosen,
    }
    for size, expected in cases.items():
        assert blocks.first_bytes(chosen, size, SPACES) == expected


# Log


def test_the_log_keeps_the_latest_and_counts_what_it_lost() -> None:
    log = Log(capacity=2, text_limit=5, clock=lambda: 12.3456)
    for text in ("first", "second", "third"):
        log.add(LogEntryType.PROGRAM_OUTPUT, text)
    page = log.page()
    assert [(entry.timestamp, entry.text) for entry in page.entries] == [
        (12345, "secon"),
        (12345, "third"),
    ]
    assert page.lost == 1


def test_a_snapshot_holds_still_until_it_is_read_without_retaining() -> None:
    snapshot = Snapshot()
    seen = [
        snapshot.read(lambda value=value: value, retain=retain)  # type: ignore[misc]  # the loop's
        for value, retain in ((b"1", False), (b"2", True), (b"3", True), (b"4", False))
    ]
    assert seen == [b"1", b"2", b"2", b"2"]
    assert snapshot.read(lambda: b"5", retain=True) == b"5"
    snapshot.release()
    assert snapshot.read(lambda: b"6", retain=True) == b"6"
