"""`potash serve --clock stepped`: modelled time passes only while the client waits.

The times are the same in every run; tests/firmware compare them with the model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from csd_spec.opcodes import ClockOpcode
from csd_spec.run_times import with_run_time
from csd_spec.status import StatusId
from csd_spec.traffic import CompletionKind, TimedCompletion
from nvme_spec.opcodes import IoOpcode
from nvme_spec.status import Status
from potash.sdk import CommandFailed, HostClock
from potash.sdk.memory_namespace import Bytes
from potash.testing.booting import BootedDevice, booted_device
from potash_device.cores import DEFAULT
from potash_firmware.mailbox.device_programs import DeviceProgram
from support.apu import program
from support.bpf import exit_, mov
from support.extended import written

PAGE = 4096
READ = int(IoOpcode.READ)
NOTHING = program(mov(0, 0), exit_)


@contextmanager
def stepped(clock: HostClock, depth: int = 1, **options: Any) -> Iterator[BootedDevice]:
    chosen: dict[str, Any] = {"size": "64M", "queue_depth": depth} | options
    with booted_device(time="modelled", clock="stepped", host_clock=clock, **chosen) as device:
        yield device


def reads(pause: float) -> list[TimedCompletion]:
    """Eight reads in flight, with pauses of this process in between."""
    clock = HostClock()
    with stepped(clock, depth=8) as device:
        device.write(0, bytes(8 * PAGE))
        device.flush()
        before, began = device.traffic(), clock.now
        pending = []
        for page in range(16):
            fields = {"cdw10": page % 8, "data_in_length": PAGE}
            pending.append(device.submit(IoOpcode.READ, **fields))  # type: ignore[arg-type]
            time.sleep(pause)
        assert [len(one.result().data) for one in pending] == [PAGE] * 16
        found = [*device.traffic(before).completions]
        assert [one.arrived for one in found].count(began) == 8
        assert max(one.completed for one in found) == clock.now
        return found


def test_reads_arrive_when_the_host_has_waited_however_slow_it_is() -> None:
    assert reads(0.0) == reads(0.01)


def test_what_the_host_computes_takes_time_and_drives_share_its_clock() -> None:
    clock = HostClock()
    with stepped(clock) as first, stepped(clock) as second:
        first.read(0, 1)
        clock.now += 10**9
        before, began = second.traffic(), clock.now
        second.read(0, 1)
        (read,) = second.traffic(before).completions
        assert began > 10**9
        assert (read.arrived, read.completed) == (began, clock.now)
        # What is in flight goes on while the host computes.
        pending = first.submit(IoOpcode.READ, data_in_length=PAGE)
        clock.now += 10**9
        after = clock.now
        second.read(0, 1)
        pending.result()
        assert clock.now < after + 10**6


def contention(reads: int = 0, **options: Any) -> tuple[list[TimedCompletion], int]:
    """Two jobs that begin together and read from the same flash: when they ended; and so many reads
    of the host, of which eight are in flight."""
    clock = HostClock()
    with stepped(clock, 8, accelerators=["1M:4K"] * 2, **options) as device:
        device.write(0, bytes(2 << 20))
        device.flush()
        accelerators = device.accelerators()
        for number, one in enumerate(accelerators):
            one.enable()
            one.send_firmware(NOTHING)
            one.use_local_input(256 * number, 256)
            one.select(0)
        before = device.traffic()
        for one in accelerators:
            one.start()
        pending = [
            device.submit(IoOpcode.READ, cdw10=8 * page, cdw12=7, data_in_length=8 * PAGE)
            for page in range(reads)
        ]
        for command in pending:
            command.result()
        assert [one.wait(60).status for one in accelerators] == [StatusId.DONE] * 2
        found = device.traffic(before).completions
        kept = [one for one in found if one.kind == CompletionKind.JOB or one.opcode == READ]
        return sorted(kept, key=lambda one: (one.kind, one.nsid, one.cid, one.arrived)), clock.now


def test_jobs_that_begin_together_contend_in_the_same_way_each_time() -> None:
    jobs, now = contention()
    assert jobs[0].arrived == jobs[1].arrived
    assert max(one.completed for one in jobs) == now
    assert contention() == (jobs, now)


def test_jobs_and_reads_share_the_link_in_the_same_way_each_time() -> None:
    found, now = contention(32, bandwidth_shares="host=2,accelerator1=3")
    assert len(found) == 34
    assert contention(32, bandwidth_shares="host=2,accelerator1=3") == (found, now)


def overlapping(count: int, **options: Any) -> list[list[int]]:
    """How long two jobs take that begin together and read 48 MiB each, and then the first one
    alone, so many times."""
    clock, pages, found = HostClock(), (48 << 20) // PAGE, []
    with stepped(clock, size="128M", accelerators=["64M:4K"] * 2, **options) as device:
        for at in range(96):
            device.write(256 * at, bytes(1 << 20))
        device.flush()
        accelerators = device.accelerators()
        for number, one in enumerate(accelerators):
            one.enable()
            one.send_firmware(NOTHING)
            one.use_local_input(pages * number, pages)
            one.select(0)
        for _ in range(count):
            before = device.traffic()
            for starting in (accelerators, accelerators[:1]):
                for one in starting:
                    one.start()
                assert {one.wait(60).status for one in starting} == {StatusId.DONE}
            jobs = [one for one in device.traffic(before).completions
                    if one.kind == CompletionKind.JOB]  # fmt: skip
            found.append([job.completed - job.arrived for job in sorted(jobs, key=lambda job: (
                job.arrived, job.nsid))])  # fmt: skip
    return found


def test_jobs_that_overlap_share_the_link_in_the_same_way_each_time() -> None:
    (first, second, alone), *others = overlapping(4, bandwidth_shares="host=1,jobs=1")
    assert all(other == [first, second, alone] for other in others)
    link = (48 << 20) / 7.0  # ns of the drive tlc
    assert [first, second] == pytest.approx([2 * link] * 2, rel=0.02)
    assert link < alone < 1.1 * link


LATEST = """
@scheduler
class Latest:
    def pick(self, ready, units, now):
        free = [unit for unit in units if unit.task is None]
        return ready[-1], free[0]
"""
LENGTHS = (1 << 20, 1 << 19, 1 << 18, 1 << 17)
"""Bytes of executions, which take a quarter of a nanosecond each."""
TIMES = [DEFAULT.dispatch_ns + length // 4 for length in LENGTHS]


def executions(units: int, scheduler: str, **options: Any) -> list[int]:
    """The ends of executions that come together."""
    clock = HostClock()
    compute_options = {"compute_namespaces": 1, "compute_units": units, "scheduler": scheduler}
    with stepped(clock, 8, memory_namespaces=["1M"], **compute_options, **options) as device:
        compute = device.compute_namespace()
        compute.activate(DeviceProgram.CRC32C)
        ranges = compute.create_ranges([Bytes(device.memory_namespace().nsid, 0, 1 << 20)])
        before, began = device.traffic(), clock.now
        pending = [
            compute.submit(DeviceProgram.CRC32C, ranges, parameters=(length, 0))
            for length in LENGTHS
        ]
        for one in pending:
            one.result()
        found = device.traffic(before).completions
        return [one.completed - began for one in sorted(found, key=lambda one: one.cid)]


URGENT = """
from potash.extend import device_program

def work(ranges, parameters, data):
    return 0

for urgency in (1, 2):
    device_program(name=f"of {urgency}", run_time=f"fixed=100us,priority={urgency}")(work)
"""


def test_an_extension_s_more_urgent_program_takes_the_unit(tmp_path: Path) -> None:
    clock = HostClock()
    options = {"compute_namespaces": 1, "compute_units": 1, "scheduler": "priority"}
    with stepped(clock, 8, extensions=[written(tmp_path, URGENT)], **options) as device:
        compute, before = device.compute_namespace(), device.traffic()
        less = compute.submit(len(DeviceProgram))
        clock.now += 40_000
        compute.submit(len(DeviceProgram) + 1).result()
        less.result()
        ends = [one.completed - one.arrived for one in device.traffic(before).completions]
        assert ends == [100_000, 200_000]


def test_units_and_their_scheduler_decide_when_executions_end(tmp_path: Path) -> None:
    assert executions(1, "fifo") == [sum(TIMES[: count + 1]) for count in range(4)]
    first, second, third, fourth = TIMES
    assert second + third < first
    extended = executions(1, "Latest", extensions=[written(tmp_path, LATEST)])
    assert extended == [first, sum(TIMES), first + fourth + third, first + fourth]
    # The first takes longer than the second and the third together, so one unit has all others.
    assert executions(2, "fifo") == [first, second, second + third, second + third + fourth]


def test_executions_on_two_units_share_dram() -> None:
    dispatch = DEFAULT.dispatch_ns
    first, second, third, fourth = (length // 4 for length in LENGTHS)
    found = executions(2, "fifo", bandwidth_shares="jobs=1")
    ends = [0, dispatch + 2 * second, 0, 0]
    ends[2] = ends[1] + dispatch + 2 * third
    left = first - second - dispatch - third - dispatch
    ends[0] = ends[2] + dispatch + 2 * left
    ends[3] = ends[0] + fourth - left
    assert found == ends


def test_a_program_declares_its_time_and_its_priority() -> None:
    clock, fixed = HostClock(), 100_000
    options = {"compute_namespaces": 1, "memory_namespaces": ["1M"], "scheduler": "priority"}
    with stepped(clock, 8, accelerators=["1M:4K"], **options) as device:
        compute = device.compute_namespace()
        first = compute.free_index()
        for priority in range(3):
            image = with_run_time(NOTHING, f"fixed=100us,priority={priority}")
            compute.load(first + priority, image)
        before, began = device.traffic(), clock.now
        for one in [compute.submit(first + priority) for priority in (1, 0, 2, 1)]:
            one.result()
        found = device.traffic(before).completions
        ends = [one.completed - began for one in sorted(found, key=lambda one: one.cid)]
        assert ends == [2 * fixed, 4 * fixed, fixed, 3 * fixed], "the third stops the first"
        accelerator = device.accelerators()[0]
        accelerator.enable()
        result = accelerator.run(with_run_time(NOTHING, "fixed=1ms"), bytes(PAGE))
        assert result.status.modelled == 10**6


def test_other_drives_refuse_to_advance_their_clock() -> None:
    with booted_device(time="modelled") as device, pytest.raises(CommandFailed) as refused:
        device.admin(ClockOpcode.ADVANCE)
    assert refused.value.status == Status.INVALID_OPCODE
