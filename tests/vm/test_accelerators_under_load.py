"""Two accelerators that never rest, under a stock driver that has a drive to use."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from csd_spec.status import StatusId
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.apu import program
from support.bpf import exit_, insn, mov
from support.vm import said

ACCELERATORS = 2

ONCE = program(mov(0, 0), exit_)
FOREVER = program(mov(0, 0), insn(0x05, offset=-1), exit_)

HOST = """
import json, os, sys, threading
import potash.sdk
from socket import AF_NETLINK, SOCK_DGRAM, socket

NETLINK_KOBJECT_UEVENT = 15

def states(device):
    return [one.status().status for one in device.accelerators()]

def start(device, program, *accelerators):
    device.accelerator().enable()
    for one in accelerators or device.accelerators():
        one.send_firmware(program)
        one.write_input(b"data")
        one.start(0)
    return states(device)

def stop(device, number):
    device.accelerators()[number].stop()
    return states(device)

def listen(device, program):
    accelerator = device.accelerators()[1]
    with socket(AF_NETLINK, SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as events:
        events.bind((0, 1))
        events.settimeout(30)
        start(device, program, accelerator)
        while b"NVME_AEN" not in (event := events.recv(65536)):
            pass
    assert accelerator.status().status == 2
    accelerator.log()
    return event.decode().split(chr(0))

def in_flight(device):
    size = device.block_size
    content = os.urandom(40 * size)
    device.write(8, content)
    reads = [device.submit(0x02, cdw10=8 + n, data_in_length=size) for n in range(40)]
    assert b"".join(one.result().data for one in reads) == content
    assert device.read(8, 40) == content
    # A thread for each that was in flight beside others, at most.
    return 2 < threading.active_count() <= 9, device.smart_log().host_read_commands >= 41

for line in sys.stdin:
    what, *given = json.loads(line)
    given = [bytes.fromhex(one) if isinstance(one, str) else one for one in given]
    with potash.sdk.open("/dev/nvme0n1", queue_depth=8) as device:
        print(json.dumps(globals()[what](device, *given)), flush=True)
"""


class Host:
    """A program of the guest's that uses the accelerators: one, as an emulated processor, which
    shares ours with the jobs, takes long to start it."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._said = bytearray()
        self._asking, theirs = socket.socketpair()
        argv = ["python3", "-s", "-c", HOST]
        self._program = guest.start(argv, stdin=theirs, stdout=self._said.extend)

    def __call__(self, what: str, given: bytes | int | None = None) -> Any:
        """Have it call a function, and give what that returns."""
        self._said.clear()
        value = given.hex() if isinstance(given, bytes) else given
        words = [what] if given is None else [what, value]
        self._asking.sendall(f"{json.dumps(words)}\n".encode())
        while b"\n" not in self._said:
            assert self._program.code is None, what
            self._guest.channel.step(None)
        return json.loads(self._said)


@pytest.fixture(scope="module")
def linux(images: GuestImages) -> Iterator[Guest]:
    options = ["--size", "64M", *["--accelerator=1M:64K"] * ACCELERATORS]
    with serving(*options) as path, Guest(images, path) as guest:
        yield guest


@pytest.fixture(scope="module")
def host(linux: Guest) -> Host:
    return Host(linux)


LOAD = "fio --name=load --filename=/dev/nvme0n1 --rw=randrw --bs=4k --size=1M --direct=1"
LOAD += " --ioengine=io_uring --iodepth=8 --verify=crc32c --verify_fatal=1 --output-format=json"


def complaints(guest: Guest) -> str:
    """What the kernel has said of errors and timeouts of the drive."""
    return said(guest, "sh", "-c", "dmesg | grep -iE 'nvme.*(error|timeout|abort)|I/O error' || :")


def test_jobs_that_never_end_hold_up_no_input_or_output(linux: Guest, host: Host) -> None:
    stopped, running = [StatusId.STOPPED], [StatusId.RUNNING]
    assert host("start", FOREVER) == running * ACCELERATORS
    report = json.loads(said(linux, *LOAD.split()))
    assert report["jobs"][0]["error"] == 0
    assert host("states") == running * ACCELERATORS
    for number in range(ACCELERATORS):
        done = number + 1
        assert host("stop", number) == stopped * done + running * (ACCELERATORS - done)
    assert complaints(linux) == ""


def test_a_controller_reset_ends_the_jobs_under_load(linux: Guest, host: Host) -> None:
    assert host("start", FOREVER) == [StatusId.RUNNING] * ACCELERATORS
    load = linux.start(["sh", "-c", f"{LOAD} --loops=3"])
    said(linux, "nvme", "reset", "/dev/nvme0")
    assert host("states") == [StatusId.IDLE] * ACCELERATORS
    assert load.wait(120.0) == 0
    assert complaints(linux) == ""


def test_the_end_of_a_job_is_an_event_that_reaches_programs(host: Host) -> None:
    """Without polling: the kernel tells of the controller's asynchronous event."""
    for _ in range(2):  # reading the log page, as the program does, lets the next event come
        assert "NVME_AEN=0xc00007" in host("listen", ONCE)


def test_commands_of_one_program_are_in_flight_together(host: Host) -> None:
    assert host("in_flight") == [True, True]
