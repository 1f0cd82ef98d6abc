"""Compute namespaces of a whole device, through its socket: firmware, APU, workers, all
processes."""

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import potash.sdk
from csd_spec import chains
from csd_spec.chains import ChainRange, ChainStep, StepFlag
from csd_spec.opcodes import ChainOpcode
from nvme_spec.commands import Abort
from nvme_spec.computational import Execute
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.status import Status
from potash.sdk import CommandFailed, Device
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.errors import InvalidRequest
from potash.sdk.memory_namespace import Bytes, MemoryNamespace
from potash.sdk.transport import PendingCommand, Request
from potash.vm.drive import device_process
from potash_firmware.bpf.crc32c import crc32c
from potash_firmware.mailbox.device_programs import DeviceProgram
from support.compute_programs import ENDLESS, SUM, program
from support.processes import descendants, name

PAGE = 4096
MEMORY, COMPUTE = 2, 3
"""Namespace identifiers."""
FIRST = 12
"""A program index behind those of the device-defined programs."""


MEETING = program(
    """
    r0 = 7
    r3 = 1
    r3 = xchg_64(r1 + 8, r3)
    if r3 != 0 goto second
    first:
        r3 = 0
        r3 = atomic_fetch_add((u64 *)(r1 + 0), r3)
        if r3 == 0 goto first
        exit
    second:
        *(u64 *)(r1 + 0) = 1
        exit
    """
)
"""Ends when it runs a second time meanwhile. A plain load need not be made again in a loop."""

OUTSIDE = program(
    """
    r0 = *(u64 *)(r1 + 0x7ff8)
    exit
    """.replace("0x7ff8", "32760")
)
"""Reads behind a range of one page."""


class Drive:
    """A device, and its namespaces."""

    def __init__(self, device: Device, pid: int) -> None:
        self.device = device
        self.pid = pid
        self.memory = MemoryNamespace(device, MEMORY)
        self.compute = ComputeNamespace(device, COMPUTE)

    def load(self, image: bytes) -> None:
        """Have a program at index FIRST."""
        self.compute.load(FIRST, image)

    def begin(self, offset: int = 0) -> PendingCommand:
        """Execute the program on a range of one page, which is cleared first."""
        self.memory.fill(offset, PAGE)
        ranges = struct.pack("<IIQ16x", MEMORY, PAGE, offset)
        fields = Execute(FIRST, numr=1, dlen=len(ranges)).fields()
        request = Request(
            False,
            1,
            COMPUTE,
            data_out=ranges,
            cdw2=fields["cdw2"],
            cdw3=fields["cdw3"],
            cdw4=fields["mptr"],
        )
        return self.device.transport.submit(request, 30.0)

    def await_begun(self, offset: int = 0) -> None:
        """Wait until the program has written to its range."""
        limit = time.monotonic() + 30
        while not any(self.memory.read(offset, 8)):
            assert time.monotonic() < limit, "the program does not begin"

    def works(self) -> None:
        """A program that is loaded runs, on memory that holds what it held."""
        self.memory.write(8 * PAGE, struct.pack("<512Q", *range(512)))
        self.compute.load(FIRST + 1, SUM)
        ranges = [Bytes(MEMORY, 8 * PAGE, PAGE), Bytes(MEMORY, 9 * PAGE, PAGE)]
        assert self.compute.execute(FIRST + 1, ranges) == 512 * 511 // 2
        self.unload(FIRST + 1)

    def unload(self, index: int) -> None:
        self.compute.deactivate(index)
        self.compute.unload(index)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    path = tmp_path_factory.mktemp("device") / "s"
    options = ("--size", "64M", "--memory-namespace", "1M", "--compute-namespace")
    with device_process(path, *options) as process:
        yield path, process.pid


@pytest.fixture
def drive(served: tuple[Path, int]) -> Iterator[Drive]:
    path, pid = served
    with potash.sdk.open(f"vfio-user:{path}", timeout=30.0, queue_depth=4) as device:
        yield Drive(device, pid)


def status_of(pending: PendingCommand) -> tuple[int, bool]:
    with pytest.raises(CommandFailed) as caught:
        pending.result()
    return caught.value.status, caught.value.dnr


def test_a_program_is_loaded_executed_and_its_result_read_back(drive: Drive) -> None:
    numbers = [(index * 0x9E37_79B9_7F4A_7C15) % (1 << 64) for index in range(1024)]
    drive.memory.write(PAGE, struct.pack("<1024Q", *numbers))
    drive.load(SUM)
    rsid = drive.compute.create_ranges([Bytes(MEMORY, PAGE, 2 * PAGE), Bytes(MEMORY, 0, PAGE)])
    expected = sum(numbers) % (1 << 64)
    assert expected >> 32, "both dwords of the completion count"
    assert drive.compute.execute(FIRST, rsid) == expected
    assert drive.memory.read(0, 8) == struct.pack("<Q", expected)
    drive.compute.delete_ranges(rsid)
    drive.unload(FIRST)


def test_what_is_not_a_program_is_refused_when_it_is_activated(drive: Drive) -> None:
    drive.compute.load(FIRST, os.urandom(512), activate=False)
    with pytest.raises(CommandFailed) as caught:
        drive.compute.activate(FIRST)
    assert (caught.value.status, caught.value.dnr) == (Status.INVALID_PROGRAM_DATA, True)
    drive.compute.unload(FIRST)
    drive.works()


def test_a_program_that_leaves_its_ranges_ends_alone(drive: Drive) -> None:
    drive.load(OUTSIDE)
    assert status_of(drive.begin()) == (Status.INTERNAL_ERROR, True)
    drive.works()
    drive.unload(FIRST)


def test_a_chain_hands_the_output_of_a_step_to_the_next(drive: Drive) -> None:
    """A program filters records, and the next one adds up what is left."""
    records = struct.pack("<512Q", *range(512))
    drive.memory.write(PAGE, records)
    drive.memory.fill(0, PAGE)
    drive.load(SUM)
    given, kept = ChainRange(MEMORY, PAGE, PAGE), ChainRange(MEMORY, PAGE, 0)
    least_to_largest = 500 | 510 << 32
    for index in (DeviceProgram.FILTER, DeviceProgram.COPY, DeviceProgram.CRC32C):
        drive.compute.activate(index)
    steps = [
        ChainStep(DeviceProgram.FILTER, 0, 8, least_to_largest, (given, kept)),
        ChainStep(FIRST, ranges=(kept,)),
    ]
    assert drive.compute.execute_chain(steps) == sum(range(500, 511))
    steps = [
        ChainStep(DeviceProgram.COPY, 0, 1001, 0, (given, kept)),
        ChainStep(DeviceProgram.CRC32C, StepFlag.PREVIOUS, 7, 0, (kept,)),
    ]
    assert drive.compute.execute_chain(steps) == crc32c(records[:1001])
    drive.unload(FIRST)


def test_a_chain_ends_with_the_step_that_fails(drive: Drive) -> None:
    drive.load(OUTSIDE)
    drive.memory.fill(0, PAGE)
    area = ChainRange(MEMORY, PAGE, 0)
    drive.compute.activate(DeviceProgram.FILL)
    steps = [
        ChainStep(DeviceProgram.FILL, 0, 8, 1, (area,)),
        ChainStep(FIRST, ranges=(area,)),
        ChainStep(DeviceProgram.FILL, 0, 8, 2, (area,)),
    ]
    with pytest.raises(CommandFailed) as caught:
        drive.compute.execute_chain(steps)
    assert (caught.value.status, caught.value.result) == (Status.INTERNAL_ERROR, 1)
    assert drive.memory.read(0, 8) == struct.pack("<Q", 1), "the third step has not begun"
    with pytest.raises(InvalidRequest, match="does not fit"):
        drive.compute.execute_chain([ChainStep(FIRST)] * 17)
    drive.unload(FIRST)
    drive.works()


def kill_workers(drive: Drive) -> None:
    for pid in descendants(drive.pid):
        with suppress(ProcessLookupError):
            if name(pid) == "potash-engine":
                os.kill(pid, signal.SIGKILL)


def abort(drive: Drive) -> None:
    queue = drive.device.transport.controller._queues[1]  # type: ignore[attr-defined]  # its identifiers
    (cid,) = queue.in_flight
    request = Request(True, AdminOpcode.ABORT, cdws=Abort(1, cid).encode())
    assert drive.device.transport.submit(request, 30.0).result().result == 0


@pytest.mark.parametrize("ended", range(3))
@pytest.mark.parametrize(
    ("end", "status"),
    [(kill_workers, Status.INTERNAL_ERROR), (abort, Status.ABORT_REQUESTED)],
)
def test_a_chain_ends_with_the_step_that_is_ended(
    drive: Drive, end: Callable[[Drive], None], status: Status, ended: int
) -> None:
    drive.load(ENDLESS)
    drive.memory.fill(0, PAGE)
    drive.compute.activate(DeviceProgram.FILL)
    area = ChainRange(MEMORY, PAGE, 0)
    steps = [ChainStep(DeviceProgram.FILL, 0, 8, 2, (ChainRange(MEMORY, PAGE, PAGE),))] * 3
    steps[ended] = ChainStep(FIRST, ranges=(area,))
    data = chains.encode(steps)
    request = Request(
        False, ChainOpcode.EXECUTE_CHAIN, COMPUTE, (len(data) // 4, 0, 0, 0, 0, 0), data_out=data
    )
    pending = drive.device.transport.submit(request, 60.0)
    drive.await_begun()
    end(drive)
    with pytest.raises(CommandFailed) as caught:
        pending.result()
    assert (caught.value.status, caught.value.dnr) == (status, False)
    assert caught.value.result == ended
    steps[ended] = steps[ended - 1]
    drive.compute.execute_chain(steps)
    drive.unload(FIRST)


def test_two_executions_run_at_once(drive: Drive) -> None:
    drive.load(MEETING)
    first = drive.begin()
    ranges = struct.pack("<IIQ16x", MEMORY, PAGE, 0)
    second = drive.device.transport.submit(
        Request(False, 1, COMPUTE, data_out=ranges, cdw2=FIRST, cdw3=1, cdw4=32), 30.0
    )
    assert (first.result().result, second.result().result) == (7, 7)
    drive.unload(FIRST)


def test_a_running_program_is_aborted(drive: Drive) -> None:
    drive.load(ENDLESS)
    pending = drive.begin()
    drive.await_begun()
    abort(drive)
    assert status_of(pending) == (Status.ABORT_REQUESTED, False)
    drive.works()
    drive.unload(FIRST)


def test_a_reset_stops_programs_and_keeps_them(drive: Drive) -> None:
    drive.load(ENDLESS)
    drive.memory.write(4 * PAGE, b"kept")
    pending = drive.begin()
    drive.await_begun()
    drive.device.reset()
    with pytest.raises(CommandFailed):
        pending.result()
    assert drive.memory.read(4 * PAGE, 4) == b"kept"
    assert [one.index for one in drive.compute.programs() if not one.built_in] == [FIRST]
    drive.unload(FIRST)
    drive.works()


def test_the_loss_of_the_apu_loses_no_program(drive: Drive) -> None:
    drive.load(ENDLESS)
    drive.compute.load(FIRST + 2, SUM)
    rsid = drive.compute.create_ranges([Bytes(MEMORY, 0, PAGE), Bytes(MEMORY, PAGE, PAGE)])
    drive.memory.fill(0, PAGE)
    drive.memory.write(8, struct.pack("<Q", 41))
    pending = drive.begin(2 * PAGE)
    drive.await_begun(2 * PAGE)
    (apu,) = (pid for pid in descendants(drive.pid) if name(pid) == "potash-apu")
    os.kill(apu, signal.SIGKILL)
    assert status_of(pending) == (Status.INTERNAL_ERROR, False)
    limit = time.monotonic() + 30
    while True:  # until the next APU is there
        try:
            assert drive.compute.execute(FIRST + 2, rsid) == 41
        except CommandFailed as error:
            assert (error.status, error.dnr) == (Status.INTERNAL_ERROR, False)
            assert time.monotonic() < limit
        else:
            break
    drive.compute.delete_ranges(rsid)
    drive.unload(FIRST + 2)
    drive.unload(FIRST)
    drive.works()


def test_namespaces_go_while_a_program_uses_them(drive: Drive) -> None:
    """First the memory that it runs on, then the compute namespace; both are made anew."""

    def manage(opcode: int, nsid: int, sel: int, csi: int = 0, data: bytes = b"") -> int:
        cdws = (sel, csi << 24, 0, 0, 0, 0)
        request = Request(True, opcode, nsid, cdws, data_out=data.ljust(PAGE, b"\0"))
        return drive.device.transport.submit(request, 30.0).result().result

    ended = {MEMORY: Status.INVALID_MEMORY_NAMESPACE, COMPUTE: Status.INVALID_NAMESPACE}
    for nsid, csi in ((MEMORY, 3), (COMPUTE, 4)):
        drive.load(ENDLESS)
        pending = drive.begin()
        drive.await_begun()
        manage(AdminOpcode.NAMESPACE_MANAGEMENT, nsid, 1)
        assert status_of(pending) == (ended[nsid], True)
        size = struct.pack("<QQ", 1 << 20, 1 << 20)
        assert manage(AdminOpcode.NAMESPACE_MANAGEMENT, 0, 0, csi, size) == nsid
        manage(AdminOpcode.NAMESPACE_ATTACHMENT, nsid, 0, data=struct.pack("<HH", 1, 0))
        if nsid == MEMORY:
            assert drive.memory.read(0, 8) == bytes(8)
            drive.unload(FIRST)
        else:
            assert all(one.built_in for one in drive.compute.programs())
    drive.works()


def test_the_next_client_finds_nothing_of_the_last_one(served: tuple[Path, int]) -> None:
    path, pid = served
    with potash.sdk.open(f"vfio-user:{path}", timeout=30.0) as device:
        drive = Drive(device, pid)
        drive.load(SUM)
        drive.memory.write(0, b"secret..")
        drive.compute.create_ranges([Bytes(MEMORY, 0, PAGE)])
    with potash.sdk.open(f"vfio-user:{path}", timeout=30.0) as device:
        drive = Drive(device, pid)
        assert all(one.built_in for one in drive.compute.programs())
        assert drive.compute.range_sets() == {}
        assert drive.memory.read(0, 8) == bytes(8)
        drive.works()
