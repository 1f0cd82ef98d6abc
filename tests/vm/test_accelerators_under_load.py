"""Two accelerators that never rest, under a stock driver that has a drive to use."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from csd_spec.status import StatusId
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.apu import program
from support.bpf import exit_, insn, mov

ACCELERATORS = 2

ONCE = program(mov(0, 0), exit_)
FOREVER = program(mov(0, 0), insn(0x05, offset=-1), exit_)

HOST = """
    import json, sys
    import potash.sdk
    with potash.sdk.open("/dev/nvme0n1") as device:
        accelerators = device.accelerators()
        if sys.argv[1] == "start":
            accelerators[0].enable()
            for one in accelerators:
                one.send_firmware(open(sys.argv[2], "rb").read())
                one.write_input(b"data")
                one.start(0)
        look = lambda: [one.status().status for one in accelerators]
        print(json.dumps(look()), flush=True)
        if sys.argv[1:] == ["start", "/tmp/forever.o", "until told"]:
            open("/tmp/told").read()
            print(json.dumps(look()))
            for one in accelerators:
                one.stop()
                print(json.dumps(look()))
"""


LISTEN = """
    import socket
    import potash.sdk
    from socket import AF_NETLINK, SOCK_DGRAM
    NETLINK_KOBJECT_UEVENT = 15
    with (
        socket.socket(AF_NETLINK, SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as events,
        potash.sdk.open("/dev/nvme0n1") as device,
    ):
        events.bind((0, 1))
        events.settimeout(30)
        accelerator = device.accelerators()[1]
        accelerator.enable()
        accelerator.send_firmware(open("/tmp/once.o", "rb").read())
        accelerator.write_input(b"data")
        accelerator.start(0)
        while b"NVME_AEN" not in (event := events.recv(65536)):
            pass
        assert accelerator.status().status == 2
        accelerator.log()
        print(event.replace(bytes(1), b"\\n").decode())
"""

IN_FLIGHT = """
    import os, threading
    import potash
    with potash.sdk.open("/dev/nvme0n1", queue_depth=8) as device:
        size = device.block_size
        content = os.urandom(40 * size)
        device.write(8, content)
        reads = [device.submit(0x02, cdw10=8 + n, data_in_length=size) for n in range(40)]
        assert b"".join(one.result().data for one in reads) == content
        assert device.read(8, 40) == content
        # A thread for each that was in flight beside others, at most.
        print(2 < threading.active_count() <= 9, device.smart_log().host_read_commands >= 41)
"""


@pytest.fixture(scope="module")
def linux(images: GuestImages) -> Iterator[Guest]:
    options = ["--size", "64M", *["--accelerator=1M:64K"] * ACCELERATORS]
    with serving(*options) as socket, Guest(images, socket) as guest:
        for name, content in (
            ("forever.o", FOREVER),
            ("once.o", ONCE),
            ("host.py", textwrap.dedent(HOST).encode()),
            ("listen.py", textwrap.dedent(LISTEN).encode()),
            ("in_flight.py", textwrap.dedent(IN_FLIGHT).encode()),
        ):
            assert guest.capture(["sh", "-c", f"cat > /tmp/{name}"], content).code == 0
        assert guest.run(["mkfifo", "/tmp/told"]) == 0
        yield guest


def said(guest: Guest, *argv: str) -> str:
    """What a command that must succeed says."""
    done = guest.capture(argv)
    assert done.code == 0, (argv, done)
    return done.stdout.decode()


def states(guest: Guest, *what: str) -> Any:
    """The accelerators' states after something has been done with them."""
    return json.loads(said(guest, "python3", "/tmp/host.py", *what))


LOAD = "fio --name=load --filename=/dev/nvme0n1 --rw=randrw --bs=4k --size=1M --direct=1"
LOAD += " --ioengine=io_uring --iodepth=8 --verify=crc32c --verify_fatal=1 --output-format=json"


def complaints(guest: Guest) -> str:
    """What the kernel has said of errors and timeouts of the drive."""
    return said(guest, "sh", "-c", "dmesg | grep -iE 'nvme.*(error|timeout|abort)|I/O error' || :")


def test_jobs_that_never_end_hold_up_no_input_or_output(linux: Guest) -> None:
    heard = bytearray()
    # One program, as an emulated processor that shares ours with the jobs takes long to start it.
    argv = ["python3", "/tmp/host.py", "start", "/tmp/forever.o", "until told"]
    owner = linux.start(argv, stdout=heard.extend)
    while b"\n" not in heard and owner.code is None:
        linux.channel.step(None)
    report = json.loads(said(linux, *LOAD.split()))
    assert report["jobs"][0]["error"] == 0
    said(linux, "sh", "-c", "echo > /tmp/told")
    assert owner.wait(120.0) == 0
    stopped, running = [StatusId.STOPPED], [StatusId.RUNNING]
    assert [json.loads(line) for line in heard.splitlines()] == [
        running * ACCELERATORS,
        *(stopped * n + running * (ACCELERATORS - n) for n in range(ACCELERATORS + 1)),
    ]
    assert complaints(linux) == ""


def test_a_controller_reset_ends_the_jobs_under_load(linux: Guest) -> None:
    assert states(linux, "start", "/tmp/forever.o") == [StatusId.RUNNING] * ACCELERATORS
    load = linux.start(["sh", "-c", f"{LOAD} --loops=3"])
    said(linux, "nvme", "reset", "/dev/nvme0")
    assert states(linux, "look") == [StatusId.IDLE] * ACCELERATORS
    assert load.wait(120.0) == 0
    assert complaints(linux) == ""


def test_the_end_of_a_job_is_an_event_that_reaches_programs(linux: Guest) -> None:
    """Without polling: the kernel tells of the controller's asynchronous event."""
    for _ in range(2):  # reading the log page, as the program does, lets the next event come
        event = said(linux, "python3", "/tmp/listen.py")
        assert "NVME_AEN=0xc00007" in event.split(), event


def test_commands_of_one_program_are_in_flight_together(linux: Guest) -> None:
    assert said(linux, "python3", "/tmp/in_flight.py") == "True True\n"
