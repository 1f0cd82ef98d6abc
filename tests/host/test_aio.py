"""The SDK for asyncio: many commands in flight, cancellation, errors and closing, with a whole device
and with a kernel that the test plays."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from csd_spec.status import StatusId
from nvme_spec.opcodes import IoOpcode
from nvme_spec.status import Status
from potash import aio
from potash.sdk import CommandFailed, CommandTimeout, Device, DeviceGone, InvalidRequest, JobTimeout
from potash.sdk.ioctl import IoctlTransport
from potash.sdk.memory_namespace import Blocks, Bytes
from potash.sdk.transport import Completion
from potash.vm.drive import device_process
from support.compute_programs import ENDLESS, program

PAGE = 4096
MEMORY = 2
FIRSTS, HANGS = 12, 13
"""Program indexes."""
NUMBER = 0x0123_4567_89AB_CDEF
LIMIT = 120
"""Seconds that a test may take."""
FIRST = program("r0 = *(u64 *)(r1 + 0)\n exit")
"""Returns the first number of its input or its first range."""
HANGING_JOB = program("again:\n goto again")
OPTIONS = ("--size", "64M", "--memory-namespace", "1M", "--compute-namespace")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("device") / "s"
    with device_process(path, *OPTIONS):
        yield f"vfio-user:{path}"


def prepare(device: Device) -> None:
    """Load both programs, which a drive loses with its client, and put a number at the start of memory."""
    device.memory_namespace().write(0, struct.pack("<Q", NUMBER))
    compute = device.compute_namespace()
    compute.load(FIRSTS, FIRST)
    compute.load(HANGS, ENDLESS)


def areas(page: int) -> list[Bytes]:
    """The page of the number, and another for the output of an execution."""
    return [Bytes(MEMORY, 0, PAGE), Bytes(MEMORY, (1 + page % 4) * PAGE, PAGE)]


def run(
    target: str, work: Callable[[aio.AsyncDevice], Awaitable[None]], *, queue_depth: int = 64
) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            async with aio.open(target, queue_depth=queue_depth) as device:
                await device.call(prepare)
                await work(device)

    asyncio.run(main())


async def works(device: aio.AsyncDevice) -> None:
    """As many executions as there are workers end: none is occupied by another program."""
    compute = await device.compute_namespace()
    assert [await compute.execute(FIRSTS, areas(page)) for page in range(2)] == [NUMBER] * 2
    found = await asyncio.gather(*(compute.execute(FIRSTS, areas(page)) for page in range(8)))
    assert found == [NUMBER] * 8


@pytest.mark.parametrize(("count", "queue_depth"), [(500, 500), (50, 2)])
def test_executions_are_in_flight(target: str, count: int, queue_depth: int) -> None:
    async def work(device: aio.AsyncDevice) -> None:
        compute = await device.compute_namespace()
        pages = range(count)
        found = await asyncio.gather(*(compute.execute(FIRSTS, areas(page)) for page in pages))
        assert found == [NUMBER] * count

    run(target, work, queue_depth=queue_depth)


def test_reads_writes_copies_and_raw_commands_are_in_flight_together(target: str) -> None:
    async def work(device: aio.AsyncDevice) -> None:
        memory, namespace = await device.memory_namespace(), await device.namespace()
        block = len(await device.read(0, 1))

        async def through(number: int) -> None:
            """Write a page of blocks, copy it to memory, and read it everywhere."""
            lba, start = number * PAGE // block, (100 + number) * PAGE
            data = random.Random(number).randbytes(PAGE)
            await namespace.write(lba, data)
            assert await memory.copy(start, [Blocks(1, lba, PAGE // block)]) == PAGE
            assert await memory.read(start, PAGE) == await device.read(lba, PAGE // block) == data
            raw = await device.submit(
                IoOpcode.READ, cdw10=lba, cdw12=PAGE // block - 1, data_in_length=PAGE
            )
            assert raw.data == data

        await asyncio.gather(*(through(number) for number in range(50)))
        assert (await device.identify()).mn == await device.call(lambda sync: sync.identify().mn)

    run(target, work)


def test_tasks_are_cancelled_at_random_points(target: str) -> None:
    """What is not cancelled has its result; a program that hangs leaves its worker."""

    async def work(device: aio.AsyncDevice) -> None:
        compute, source = await device.compute_namespace(), random.Random(40)
        for _ in range(5):
            ending = [
                asyncio.create_task(compute.execute(FIRSTS, areas(page))) for page in range(60)
            ]
            reading = [asyncio.create_task(device.read(lba, 9)) for lba in range(20)]
            hanging = [asyncio.create_task(compute.execute(HANGS, areas(p)[1:])) for p in range(20)]
            tasks = [*ending, *reading, *hanging]
            source.shuffle(tasks)
            for task in tasks:
                if task in hanging or source.random() < 0.5:
                    await asyncio.sleep(source.choice((0, 0, 0.001)))
                    task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in hanging)
            assert all(task.cancelled() or task.result() == NUMBER for task in ending)
            assert all(task.cancelled() or len(task.result()) for task in reading)
            await works(device)

    run(target, work)


def test_errors_are_those_of_the_synchronous_methods(target: str) -> None:
    async def work(device: aio.AsyncDevice) -> None:
        compute = await device.compute_namespace()
        with pytest.raises(InvalidRequest, match="does not send data"):
            device.submit(IoOpcode.READ, data_out=b"data")
        with pytest.raises(InvalidRequest):
            await compute.execute(1 << 16, areas(0))
        results = await asyncio.gather(
            compute.execute(FIRSTS, [Bytes(MEMORY, 1 << 40, PAGE)]),
            device.read(1 << 40, 1),
            compute.execute(FIRSTS, areas(0)),
            return_exceptions=True,
        )
        assert results[2] == NUMBER
        for error in results[:2]:
            assert isinstance(error, CommandFailed) and error.dnr
        assert results[1].status == Status.LBA_OUT_OF_RANGE

    run(target, work)


def test_a_command_at_its_deadline_resets_the_controller(target: str) -> None:
    async def work(device: aio.AsyncDevice) -> None:
        compute = await device.compute_namespace()
        first, other = await asyncio.gather(
            compute.execute(HANGS, areas(0)[1:], timeout=0.1),
            compute.execute(HANGS, areas(1)[1:]),
            return_exceptions=True,
        )
        assert isinstance(first, CommandTimeout)
        assert isinstance(other, CommandFailed)
        assert other.status == Status.COMMAND_ABORTED_BY_HOST
        await works(device)

    run(target, work)


def test_a_job_whose_task_is_cancelled_is_stopped(target: str) -> None:
    async def work(device: aio.AsyncDevice) -> None:
        accelerator = await device.accelerator()
        job = asyncio.create_task(accelerator.run(HANGING_JOB, b"data"))
        while (await accelerator.status()).status != StatusId.RUNNING:
            await asyncio.sleep(0.01)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert (await accelerator.status()).status == StatusId.STOPPED
        with pytest.raises(JobTimeout):
            await accelerator.run(HANGING_JOB, b"data", timeout=0.1)
        result = await accelerator.run(FIRST, struct.pack("<Q", NUMBER))
        assert result.status.return_value == NUMBER

    run(target, work)


def test_a_status_is_not_older_than_the_start_of_a_job(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another thread has read the length of a status before, which is retained."""

    async def work(device: aio.AsyncDevice) -> None:
        accelerator = await device.accelerator()
        with pytest.raises(JobTimeout):
            await accelerator.run(HANGING_JOB, b"data", timeout=0.1)
        read_length, goes_on = threading.Event(), threading.Event()
        admin = Device.admin

        def waiting(self: Device, opcode: int, **given: Any) -> Completion:
            completion = admin(self, opcode, **given)
            if not read_length.is_set():
                read_length.set()
                goes_on.wait(LIMIT)
            return completion

        with monkeypatch.context() as patch:
            patch.setattr(Device, "admin", waiting)
            before = asyncio.create_task(accelerator.status())
            await asyncio.to_thread(read_length.wait)
            await accelerator.start()
            after = asyncio.create_task(accelerator.status())
            await asyncio.wait([after], timeout=0.2)
            goes_on.set()
            assert (await before).status == StatusId.STOPPED
            assert (await after).status == StatusId.RUNNING
        await accelerator.stop()

    run(target, work)


def test_a_device_is_closed_with_commands_and_methods_in_flight(target: str) -> None:
    async def main() -> None:
        async with aio.open(target, queue_depth=4) as device:
            await device.call(prepare)
            compute, accelerator = await device.compute_namespace(), await device.accelerator()
            tasks: list[asyncio.Task[object]] = [
                asyncio.create_task(compute.execute(HANGS, areas(page)[1:])) for page in range(8)
            ]
            tasks.append(asyncio.create_task(accelerator.run(HANGING_JOB, b"data")))
            tasks.append(asyncio.create_task(device.call(lambda sync: sync.read(0, 100_000))))
            await asyncio.sleep(0.1)
            tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = {type(result) for result in results}
        assert kinds <= {DeviceGone, asyncio.CancelledError, bytes}
        with pytest.raises(DeviceGone, match="closed"):
            await compute.execute(FIRSTS, areas(0))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before
    run(target, works)


def test_a_device_that_ends_is_noticed(tmp_path: Path) -> None:
    async def work(device: aio.AsyncDevice) -> None:
        compute = await device.compute_namespace()
        tasks = [asyncio.create_task(compute.execute(HANGS, areas(page)[1:])) for page in range(8)]
        tasks[0].cancel()
        process.kill()
        await asyncio.wait(tasks)
        assert all(task.cancelled() or isinstance(task.exception(), DeviceGone) for task in tasks)
        with pytest.raises(DeviceGone):
            await device.read(0, 1)

    with device_process(tmp_path / "s", *OPTIONS) as process:
        run(f"vfio-user:{tmp_path / 's'}", work)


INTERRUPTED = """
import asyncio, sys
import potash
from potash.sdk.memory_namespace import Bytes

async def main():
    async with potash.aio.open(sys.argv[1]) as device:
        await device.call(lambda sync: sync.compute_namespace().load(13, bytes.fromhex(sys.argv[3])))
        compute, accelerator = await device.compute_namespace(), await device.accelerator()
        hanging = (compute.execute(13, [Bytes(2, 0, 4096)]) for _ in range(6))
        job = accelerator.run(bytes.fromhex(sys.argv[2]), b"data")
        print("runs", flush=True)
        await asyncio.gather(job, *hanging)

asyncio.run(main())
"""


def test_ctrl_c_leaves_nothing_in_the_drive(target: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, target, HANGING_JOB.hex(), ENDLESS.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        time.sleep(0.2)  # at any point of it
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
    assert said.endswith(b"KeyboardInterrupt\n")
    assert (process.returncode, b"never retrieved" in said) == (-signal.SIGINT, False)

    async def work(device: aio.AsyncDevice) -> None:
        assert (await (await device.accelerator()).status()).status != StatusId.RUNNING
        await works(device)

    run(target, work)


@asynccontextmanager
async def kernel_driver(
    monkeypatch: pytest.MonkeyPatch, ioctl: Callable[[int, int, bytearray | int], int]
) -> AsyncIterator[aio.AsyncDevice]:
    """A device whose kernel is played."""
    fd = os.open("/dev/null", os.O_RDWR)
    transport = IoctlTransport(fd, nsid=1, queue_depth=4, ioctl=ioctl)
    monkeypatch.setattr("potash.sdk.open", lambda *_, **__: Device(transport))
    async with aio.open("/dev/nvme0n1") as device:
        yield device


def test_linux_s_commands_are_in_flight_and_end_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux cannot abort a command: its task ends at once, and closing waits for it."""
    all_begun, go_on = threading.Barrier(4), threading.Event()
    ended: list[int] = []

    def ioctl(fd: int, number: int, argument: bytearray | int) -> int:
        assert isinstance(argument, bytearray)
        all_begun.wait(LIMIT)
        (cdw10,) = struct.unpack_from("<I", argument, 40)
        if cdw10 == 3:
            assert go_on.wait(LIMIT)
        ended.append(cdw10)
        return 0x371 if cdw10 == 2 else 0

    async def main() -> None:
        async with kernel_driver(monkeypatch, ioctl) as device:
            tasks = [device.submit(IoOpcode.FLUSH, cdw10=number) for number in range(4)]
            await asyncio.wait(tasks[:3])
            assert isinstance(tasks[2].exception(), CommandFailed)
            tasks[3].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[3]
            assert sorted(ended) == [0, 1, 2]
            go_on.set()
        assert sorted(ended) == [0, 1, 2, 3]

    asyncio.run(main())


def test_an_open_that_is_cancelled_leaves_the_device_free(target: str) -> None:
    async def main() -> None:
        opening = aio.open(target)
        task = asyncio.create_task(opening.__aenter__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    run(target, works)
