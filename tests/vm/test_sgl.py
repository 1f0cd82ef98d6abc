"""Two processors, a queue for each, and data that the stock driver describes by SGLs."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.vm import said

CPUS = 2
SIZE = 64 << 20
THRESHOLD = "/sys/module/nvme/parameters/sgl_threshold"
"""The driver uses SGLs where the segments of an I/O have at least so many bytes on average."""

BLOCK, LAST_SEGMENT = 0x00, 0x30


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace"


@pytest.fixture(scope="module")
def linux(images: GuestImages, trace: Path) -> Iterator[Guest]:
    with (
        serving("--size", str(SIZE), "--trace", str(trace)) as socket,
        Guest(images, socket, 768, CPUS) as guest,
    ):
        yield guest


def verified(guest: Guest, *options: str) -> None:
    """What a fio job with these options writes is read back as it was."""
    argv = ["fio", "--output-format=json", "--filename=/dev/nvme0n1", "--direct=1"]
    argv += ["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--name=job", *options]
    output = said(guest, *argv)
    report = json.loads(output[output.index("{") :])  # warnings may come before it
    assert all(job["error"] == 0 for job in report["jobs"])


def fetched(trace: Path, start: int) -> list[dict[str, Any]]:
    """The I/O commands that the device has fetched since the trace was `start` bytes long."""
    with trace.open() as lines:
        lines.seek(start)
        points = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one for one in points if one["point"] == "rpu.fetch" and one["qid"]]


def descriptors(commands: list[dict[str, Any]]) -> Counter[int]:
    """How often each kind of SGL descriptor was a command's own."""
    return Counter(one["prp2"] >> 56 for one in commands if one["flags"] >> 6)


def test_large_requests_verify(linux: Guest, trace: Path) -> None:
    before = trace.stat().st_size
    linux.run(["sh", "-c", f"echo 512 > {THRESHOLD}"])
    whole = ("--bs=128k", "--size=8M", "--iodepth=8", "--ioengine=io_uring")
    odd = ("--name=odd", "--stonewall", "--bs=12k", "--size=3M", "--offset=8M")
    verified(linux, *whole, *odd, "--iodepth=8", "--ioengine=io_uring")
    assert set(descriptors(fetched(trace, before))) <= {BLOCK, LAST_SEGMENT}


SCATTERED = """
import mmap, os
area = mmap.mmap(-1, 2 * 4096)
pages = [memoryview(area)[at : at + 4096] for at in (0, 4096)]
area[:] = data = os.urandom(2 * 4096)
drive = os.open("/dev/nvme0n1", os.O_RDWR | os.O_DIRECT)
assert os.pwritev(drive, pages * 16, 0) == 32 * 4096
area[:] = bytes(2 * 4096)
assert os.preadv(drive, pages * 16, 0) == 32 * 4096
assert area[:] == data
whole = mmap.mmap(-1, 32 * 4096)
assert os.preadv(drive, [whole], 0) == 32 * 4096
assert whole[:] == data * 16
"""
"""Two pages in turn. Where different pages lie in memory is the kernel's to choose, and those of a
request may follow each other, in one piece; behind the second page the first cannot."""


def test_a_scattered_request_comes_as_a_list(linux: Guest, trace: Path) -> None:
    linux.run(["sh", "-c", f"echo 512 > {THRESHOLD}"])
    before = trace.stat().st_size
    said(linux, "python3", "-c", SCATTERED)
    kinds = descriptors(fetched(trace, before))
    assert set(kinds) <= {BLOCK, LAST_SEGMENT}
    assert kinds[LAST_SEGMENT] > 0, kinds


def test_a_command_passed_through_may_bring_a_list(linux: Guest, trace: Path) -> None:
    linux.run(["sh", "-c", f"echo 512 > {THRESHOLD}"])
    before = trace.stat().st_size
    data = os.urandom(128 << 10)
    fields = ["--namespace-id=1", "--cdw10=64", "--cdw12=31", f"--data-len={len(data)}"]
    device = "/dev/nvme0n1"
    said(linux, "sh", "-c", "cat > /tmp/data", stdin=data)
    writing = ["--opcode=1", "--write", "--input-file=/tmp/data"]
    said(linux, "nvme", "io-passthru", device, *writing, *fields)
    done = linux.capture(["nvme", "io-passthru", device, "--opcode=2", *fields, "--read", "-b"])
    assert done.stdout == data
    assert sum(descriptors(fetched(trace, before)).values()) == 2


def test_every_processor_uses_a_queue_of_its_own(linux: Guest, trace: Path) -> None:
    queues = said(linux, "ls", "/sys/block/nvme0n1/mq").split()
    assert queues == [str(number) for number in range(CPUS)]
    before = trace.stat().st_size
    verified(
        linux,
        *("--bs=4k", "--ioengine=io_uring", "--iodepth=8", f"--numjobs={CPUS}"),
        *("--cpus_allowed=0-1", "--cpus_allowed_policy=split"),
        *("--size=1M", "--offset_increment=1M", "--group_reporting"),
    )
    used = Counter(one["qid"] for one in fetched(trace, before))
    assert set(used) == set(range(1, CPUS + 1)), used
    assert min(used.values()) >= 100, used
    script = "grep 'nvme0q[1-2]' /proc/interrupts | awk '{print $2 + $3}'"
    interrupts = said(linux, "sh", "-c", script).split()
    assert len(interrupts) == CPUS and all(int(one) > 0 for one in interrupts)


def test_the_kernel_found_nothing_to_complain_about(linux: Guest) -> None:
    complaints = said(linux, "sh", "-c", "dmesg -r | grep '^<[0-3]>' | grep -i nvme || true")
    assert complaints == ""
