"""How Linux handles injected faults of a drive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from re import search

import pytest

from csd_spec.faults import decode_faults
from csd_spec.opcodes import FaultOpcode
from potash.sdk.faults import parse
from potash.vm.guest import Captured, Guest
from potash.vm.images import GuestImages
from support.docs import ROOT, SOURCES
from support.vm import each

TIMEOUT = "tee /sys/block/nvme*/queue/io_timeout"
"""Sets after how many milliseconds Linux wants to know what has become of a command. Paths have
disks of their own."""


@pytest.fixture
def faulty(linux: Guest) -> Iterator[Guest]:
    assert linux.run(["sh", "-c", f"dmesg -c > /dev/null; echo 400 | {TIMEOUT}"]) == 0
    yield linux
    assert linux.run(["sh", "-c", f"echo 30000 | {TIMEOUT}"]) == 0
    passthru(linux, FaultOpcode.FAULT_SEND, "--cdw12=1")


def passthru(guest: Guest, opcode: int, *words: str, stdin: bytes | None = None) -> bytes:
    """One of our commands by nvme-cli, which an emulated processor starts faster than Python."""
    argv = ["nvme", "admin-passthru", "/dev/nvme0", f"--opcode={opcode:#x}", *words]
    done = guest.capture(argv, stdin)
    assert done.code == 0, done
    return done.stdout


def add(guest: Guest, fault: str) -> None:
    data = parse(fault).encode()
    words = ["--cdw10=16", "--write", "--data-len=64", "--input-file=/dev/stdin"]
    passthru(guest, FaultOpcode.FAULT_SEND, *words, stdin=data)


def triggered(guest: Guest) -> list[int]:
    words = ["--cdw10=256", "--read", "--data-len=1024", "--raw-binary"]
    page = passthru(guest, FaultOpcode.FAULT_RECEIVE, *words)
    return [fault.triggered for fault in decode_faults(page)]


def read(guest: Guest, block: int = 0) -> Captured:
    words = ["if=/dev/nvme0n1", "of=/dev/null", "bs=4096", f"skip={block}", "count=1"]
    return guest.capture(["dd", *words, "iflag=direct"])


def kernel(guest: Guest) -> str:
    return guest.capture(["dmesg"]).stdout.decode()


def test_an_error_of_the_media_reaches_the_program(faulty: Guest) -> None:
    add(faulty, "media read lba=100..107")
    assert read(faulty, 99).code == 0
    failed = read(faulty, 107)
    assert failed.code == 1
    assert b"No data available" in failed.stderr, "ENODATA is what Linux has for the media"
    # The kernel counts in sectors of 512 bytes.
    disk = "nvme0c[01]n1" if faulty.more else "nvme0n1"
    assert search(f"critical medium error, dev {disk}, sector {107 * 8}", kernel(faulty))
    assert triggered(faulty) == [1], "Do Not Retry was set"
    log = faulty.capture(["nvme", "error-log", "/dev/nvme0", "-e", "1", "-o", "json"])
    assert json.loads(log.stdout)["errors"][0]["lba"] == 107


def test_a_status_of_the_path_is_tried_again_until_it_succeeds(faulty: Guest) -> None:
    add(faulty, "io read status=INTERNAL_PATH_ERROR count=3")
    assert read(faulty).code == 0
    assert triggered(faulty) == [3]
    add(faulty, "io read status=INTERNAL_PATH_ERROR dnr count=1")
    assert read(faulty).code == 1
    assert triggered(faulty) == [3, 1]


def test_an_interrupt_that_is_dropped_is_made_up_for_by_looking(faulty: Guest) -> None:
    add(faulty, "interrupt vector=1 count=1")
    assert read(faulty).code == 0
    assert triggered(faulty) == [1]
    assert "completion polled" in kernel(faulty)


def test_a_command_that_is_lost_comes_again_after_a_reset(faulty: Guest) -> None:
    add(faulty, "io read lost count=1")
    assert read(faulty).code == 0
    assert triggered(faulty) == [1], "it is the device's, and has outlived the reset"
    said = kernel(faulty)
    assert "timeout, aborting" in said
    assert "timeout, reset controller" in said


def test_the_command_works_in_the_guest(faulty: Guest) -> None:
    added, read, listed = each(
        faulty,
        ("potash", "fault", "add", "/dev/nvme0", "io", "read", "delay=20ms", "count=2"),
        ("dd", "if=/dev/nvme0n1", "of=/dev/null", "bs=4096", "count=1", "iflag=direct"),
        ("potash", "fault", "list", "/dev/nvme0n1", "--json"),
    )
    assert (added.code, read.code, listed.code) == (0, 0, 0), (added, read, listed)
    assert added.stderr == listed.stderr == b""
    assert added.stdout.endswith(b": io read delay=20ms count=2\n")
    (fault,) = json.loads(listed.stdout)["faults"]
    assert (fault["triggered"], fault["spent"]) == (1, False)


def test_a_slow_answer_is_only_slow(faulty: Guest) -> None:
    add(faulty, "io read delay=50ms count=1")
    assert read(faulty).code == 0
    assert triggered(faulty) == [1]
    assert "timeout" not in kernel(faulty)


def test_the_example_s_guest_passes(images: GuestImages) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "examples/faults", "-k", "linux"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
