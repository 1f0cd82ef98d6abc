"""Commands that make no sense, by the thousand: each is answered, and nothing is left crooked.

The handlers run in this process, on a subsystem whose jobs end when the test says so.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec import chains, fields
from csd_spec.chains import JobStep
from csd_spec.descriptors import AcceleratorStatus, LogPage
from csd_spec.opcodes import AdminOpcode, GlobalOperation, IoOpcode, Operation
from nvme_spec.commands import GetLogPage
from nvme_spec.opcodes import AdminOpcode as NvmeAdmin
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.status import NvmeError
from potash_firmware.apu.commands import ADMIN, IO, Answer, Context, IfSound, Later, dispatch
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.lifecycle import Event, after
from potash_firmware.apu.model import Accelerator, Buffers, ByteRange, Grant, Subsystem
from potash_firmware.bpf import ProgramError, load_program
from potash_firmware.mailbox import SharedBuffers
from potash_firmware.mailbox.messages import NO_SLOT, Request
from support.apu import BUFFER, CONFIG, MEDIA, program
from support.bpf import exit_, mov

PAGES = MEDIA // 4096

ALLOWED = {*(0x001, 0x002, 0x00B, 0x00C, 0x080, 0x109), *range(0x7C0, 0x7C6)}
"""Every status that `docs/commands.md` has, and Invalid Log Page."""

IMAGES = [program(mov(0, 0), exit_), program(mov(0, 1), exit_, padding=100_000), b"\x7fELF", b""]

U32 = st.integers(0, (1 << 32) - 1)
ODD = st.sampled_from([0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
SMALL = st.integers(0, 70) | ODD
DWORD = SMALL | U32
ACCELERATOR = st.sampled_from([0] * 8 + [3, 1, 0xFFFF])
FIRMWARE = st.sampled_from([0] * 4 + [1, 16, 0xFFFF_FFFF])
OFFSET = st.sampled_from([0] * 4 + [1, 2, 0xFFFF_FFFF])
COUNT = st.sampled_from([0, 1, 2, 16, 64, 1024, BUFFER // 4, BUFFER // 4 + 1])
PAGE = st.integers(0, PAGES) | st.sampled_from(
    [PAGES - 1, PAGES, (1 << 32) + 1, (1 << 52), (1 << 64) - 1]
)
RANGES = [
    IoOpcode.LOCAL_INPUT,
    IoOpcode.LOCAL_OUTPUT,
    IoOpcode.APPEND_LOCAL_INPUT,
    IoOpcode.APPEND_LOCAL_OUTPUT,
    IoOpcode.GRANT_LOCAL_STORAGE,
]

NOTHING = st.just(b"")

Step = tuple[bool, int, int, fields.Cdws, bytes]
"""Admin or not, opcode, NSID, command dwords 10 to 15, and data."""


def command(admin: bool, opcodes: Any, cdws: Any, data: Any = NOTHING) -> st.SearchStrategy[Step]:
    nsid = st.sampled_from([1] * 12 + [2, 0, 0xFFFF_FFFF])
    return st.tuples(st.just(admin), opcodes, nsid, cdws, data)


def encoded(layout: Any, *values: Any) -> st.SearchStrategy[fields.Cdws]:
    return st.tuples(*values).map(lambda chosen: layout(*chosen).encode())


DATA = st.binary(max_size=64).map(lambda data: data + bytes(-len(data) % 4))
STEPS = st.one_of(
    command(True, st.integers(0, 255), st.tuples(*[DWORD] * 6)),
    command(False, st.integers(0, 255), st.tuples(*[DWORD] * 6), DATA),
    command(True, st.sampled_from(list(AdminOpcode)), st.tuples(*[DWORD] * 6)),
    command(False, st.sampled_from(list(IoOpcode)), st.tuples(*[DWORD] * 6), DATA),
    command(
        True,
        st.just(AdminOpcode.GLOBAL_CONTROL),
        encoded(
            fields.GlobalControl,
            st.sampled_from([GlobalOperation.ENABLE] * 7 + [GlobalOperation.DISABLE]),
        ),
    ),
    command(
        True,
        st.just(AdminOpcode.GET_STATUS),
        encoded(fields.GetStatus, COUNT, ACCELERATOR, st.booleans()),
    ),
    command(
        True,
        st.just(NvmeAdmin.GET_LOG_PAGE),
        st.tuples(SMALL, st.booleans(), ACCELERATOR).map(
            lambda chosen: GetLogPage(0xC0, chosen[0], rae=chosen[1], lsi=chosen[2]).encode()
        ),
    ),
    command(
        False,
        st.sampled_from([IoOpcode.SEND_DATA, IoOpcode.READ_DATA]),
        encoded(fields.DataTransfer, COUNT, ACCELERATOR, OFFSET),
        DATA,
    ),
    command(
        False,
        st.sampled_from([IoOpcode.SEND_FIRMWARE, IoOpcode.READ_FIRMWARE]),
        encoded(fields.FirmwareTransfer, COUNT, ACCELERATOR, FIRMWARE, OFFSET),
        DATA | st.integers(0, len(IMAGES) - 1).map(lambda which: IMAGES[which]),
    ),
    command(
        False,
        st.sampled_from(RANGES),
        encoded(
            fields.LocalStorage,
            PAGE,
            st.sampled_from([0, 1, 4, 16, 17, 0xFFFF]),
            ACCELERATOR,
            st.booleans(),
            st.booleans(),
        ),
    ),
    command(
        False,
        st.just(IoOpcode.CONTROL),
        encoded(
            fields.Control,
            st.sampled_from([*Operation, Operation.START, 5, 0xFFFF_FFFF]),
            ACCELERATOR,
            FIRMWARE,
        ),
        NOTHING | DATA,
    ),
    command(
        False,
        st.just(IoOpcode.CONTROL),
        encoded(fields.Control, st.just(Operation.START_CHAIN), ACCELERATOR, FIRMWARE),
        st.lists(FIRMWARE.map(JobStep), min_size=1, max_size=16).map(chains.encode),
    ),
)


START: list[Step] = [
    (
        True,
        AdminOpcode.GLOBAL_CONTROL,
        0,
        fields.GlobalControl(GlobalOperation.ENABLE).encode(),
        b"",
    ),
    (False, IoOpcode.SEND_FIRMWARE, 1, fields.FirmwareTransfer(1, 0, 0).encode(), IMAGES[0]),
    (False, IoOpcode.SEND_DATA, 1, fields.DataTransfer(1, 0).encode(), b"data"),
]
"""So that more than refusals can come."""


class NoJobs:
    """Jobs whose worker is gone as soon as it is to go, and that end by themselves never."""

    def __init__(self, subsystem: Subsystem) -> None:
        self.runners = {key: NoJob(item) for key, item in subsystem.accelerators.items()}


class NoJob:
    """The same for one accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    @property
    def idle(self) -> bool:
        return not self._accelerator.busy

    def start(self, *steps: object) -> None:
        self._fire(Event.START)

    def stop(self) -> None:
        self._interrupt(Event.STOP)

    def reset(self) -> None:
        self._interrupt(Event.RESET)

    def _interrupt(self, event: Event) -> None:
        self._fire(event)
        if not self.idle:
            self._fire(Event.WORKER_LOST)

    def _fire(self, event: Event) -> None:
        self._accelerator.state = after(self._accelerator.state, event)


@pytest.fixture(scope="module")
def buffers() -> Iterator[SharedBuffers]:
    with ExitStack() as stack:
        plans = {item.id: item.plan for item in CONFIG.accelerators}
        yield stack.enter_context(SharedBuffers.create(plans))


@given(steps=st.lists(STEPS, min_size=15, max_size=60))
def test_whatever_comes_is_answered_as_documented(
    buffers: SharedBuffers, steps: list[Step]
) -> None:
    subsystem = Subsystem.create(CONFIG, time.time)
    context = Context(CONFIG, subsystem, cast(Jobs, NoJobs(subsystem)), buffers)
    for step in START:
        answered(context, step)
    assert subsystem.accelerators[0].firmware == {0: IMAGES[0]}
    for step in steps:
        answered(context, step)
        check(subsystem)


def answered(context: Context, step: Step) -> None:
    """Have a command carried out as the service does, with a transfer slot that fits it."""
    admin, opcode, nsid, cdws, data = step
    direction = data_direction(opcode)
    length = 0
    if direction is DataDirection.HOST_TO_CONTROLLER:
        length = len(data)
        context.buffers.slot(0)[:length] = data
    elif direction is DataDirection.CONTROLLER_TO_HOST:
        length = cdws[0] % (64 * 1024) * 4
    request = Request(1, admin, opcode, nsid, cdws, 0 if length else NO_SLOT, length)
    before = context.subsystem.save()
    try:
        result = dispatch(context, request)
        if isinstance(result, IfSound):
            result.decided(verdict(result.image))
            result = Answer()
    except NvmeError as error:
        assert error.status in ALLOWED, error
        assert context.subsystem.save() == before, "what was refused has changed something"
        return
    assert opcode in (ADMIN if admin else IO)
    if isinstance(result, Later):
        assert all(item.idle for item in result.until)
        result.then()
    else:
        assert isinstance(result, Answer)
        assert 0 <= result.result < 1 << 32


def verdict(image: bytes) -> str | None:
    """What the process that checks programs says of one."""
    try:
        load_program(image)
    except ProgramError as error:
        return str(error)
    return None


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a document, as a container and what names the part in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(items):
        yield value, key
        if isinstance(part, (dict, list)):
            yield from _parts(part)


VALUES: tuple[object, ...] = (
    0,
    1,
    15,
    16,
    4096,
    1 << 32,
    1 << 64,
    -1,
    0.5,
    None,
    True,
    "",
    "1",
    "RUNNING",
    [],
    {},
    [0],
)


def test_what_was_kept_may_be_anything() -> None:
    """It may have come with the state of another device: it is taken, or changes nothing."""
    for seed in range(400):
        _restore_changed(Random(seed), cut=seed % 8 == 0)


def _restore_changed(random: Random, *, cut: bool) -> None:
    subsystem = Subsystem.create(CONFIG, time.time)
    subsystem.enabled = True
    for item in subsystem.accelerators.values():
        item.firmware = {0: b"zero", 3: b"three"}
        item.active = 3
        item.buffers = Buffers(
            4096, (ByteRange(1, 0, 4096),), (ByteRange(1, 4096, 4096),), (Grant(1, 0, 1, True),)
        )
    _, text, *images = subsystem.save()
    document = json.loads(text)
    for _ in range(random.choice((1, 1, 3))):
        container, key = random.choice(list(_parts(document)))
        container[key] = random.choice(VALUES)
    text = json.dumps(document).encode()
    data = struct.pack("<I", len(text)) + text + b"".join(images)
    if cut:
        data = data[: random.randrange(len(data))]
    again = Subsystem.create(CONFIG, time.time)
    before = again.save()
    try:
        again.restore(data)
    except ValueError:
        assert again.save() == before
    for item in again.accelerators.values():
        held = item.buffers
        assert held.input_size <= item.config.input_size
        assert item.output_capacity <= item.config.output_size
        assert len(held.granted) <= CONFIG.limits.grants
        assert item.active is None or item.active in item.firmware
        assert AcceleratorStatus.decode(item.status().encode()) == item.status()
        assert not item.busy


def check(subsystem: Subsystem) -> None:
    """What holds whatever has been asked for."""
    for item in subsystem.accelerators.values():
        held = item.buffers
        for chosen, size in (
            (held.input_ranges, item.config.input_size),
            (held.output_ranges, item.config.output_size),
        ):
            assert sum(one.length for one in chosen) <= size
            assert all(one.nsid == 1 and one.length > 0 for one in chosen)
            assert all(0 <= one.first and one.first + one.length <= MEDIA for one in chosen)
            assert len(chosen) <= CONFIG.limits.ranges
        assert all(one.nsid == 1 and one.blocks > 0 for one in held.granted)
        assert all(one.first_lba + one.blocks <= PAGES for one in held.granted)
        assert len(held.granted) <= CONFIG.limits.grants
        assert all(key < CONFIG.limits.firmware_slots for key in item.firmware)
        assert item.active is None or item.active in item.firmware
        page = item.log.page()
        assert LogPage.decode(page.encode()) == page
        assert AcceleratorStatus.decode(item.status().encode()) == item.status()
    saved = b"".join(subsystem.save())
    again = Subsystem.create(CONFIG, time.time)
    again.restore(saved)
    if not again.interrupted:
        assert b"".join(again.save()) == saved
