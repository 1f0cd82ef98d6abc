"""A host of a controller that takes faults, and what arms them."""

from collections.abc import Iterator

import pytest

from csd_spec.faults import Fault, FaultFlags, FaultKind
from potash_device.media.store import MemoryMedia
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import PAGE, Host, Queue

FLUSH, WRITE, READ, COMPARE, ZEROES, VERIFY = 0, 1, 2, 5, 8, 0xC
ABORT, IDENTIFY, GET_LOG = 8, 6, 2
CONTROL, FAULT_SEND, FAULT_RECEIVE = 0x91, 0xF1, 0xF2
READ_ERROR, WRITE_FAULT = 0x281, 0x280
SIZE = 256 * PAGE
NONE = FaultFlags(0)


@pytest.fixture
def host() -> Iterator[Host]:
    with Host({1: MemoryMedia.create(SIZE)}, RpuSettings(allow_faults=True)) as host:
        host.enable()
        host.create_io_queue(1)
        host.create_io_queue(2)
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.io[1]


def arm(host: Host, kind: FaultKind, flags: FaultFlags = NONE, **fields: int) -> int:
    return host.rpu.controller.faults.add(Fault(kind, flags, **fields))


def status(flags: FaultFlags = NONE, **fields: int) -> Fault:
    return Fault(FaultKind.STATUS, flags, **{"status": 0x006, **fields})


def on(host: Host, queue: Queue, opcode: int, lba: int = 0, blocks: int = 1) -> int:
    """The status of a command on some blocks of namespace 1."""
    return host.command(queue, opcode, nsid=1, cdws=(lba, 0, blocks - 1)).status


def reads(host: Host, queue: Queue, count: int) -> list[int]:
    return [on(host, queue, READ) for _ in range(count)]
