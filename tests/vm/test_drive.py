"""Our drive under the stock driver and the stock tools, in one guest that these tests share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from potash.vm.drive import device_process, serving
from potash.vm.errors import GuestError, GuestTimeout
from potash.vm.guest import DRIVE, Guest
from potash.vm.images import GuestImages
from support.vm import said

SIZE = 64 << 20
BLOCK = 4096
ADDRESS = "0000:01:00.0"
PCI = f"/sys/bus/pci/devices/{ADDRESS}"
BOUND = "/sys/bus/pci/drivers/nvme"
ADD = Path(__file__).parents[2] / "examples" / "add"


def nvme(guest: Guest, *arguments: str) -> Any:
    """nvme-cli's answer as it gives it to programs."""
    return json.loads(said(guest, "nvme", *arguments, "-o", "json"))


def sh(guest: Guest, script: str) -> str:
    return said(guest, "sh", "-c", script)


def write_and_read(guest: Guest, block: int) -> None:
    """Two blocks of their own through Write and Read commands, with nvme-cli."""
    data = os.urandom(2 * BLOCK)
    where = ["/dev/nvme0n1", f"--start-block={block}", "--block-count=1", f"-z{len(data)}"]
    said(guest, "nvme", "write", *where, "--data=/dev/stdin", stdin=data)
    done = guest.capture(["nvme", "read", *where, "--data=/tmp/read"])
    assert done.code == 0, done
    assert guest.capture(["cat", "/tmp/read"]).stdout == data


def test_list_shows_one_namespace_of_the_size_that_was_asked_for(linux: Guest) -> None:
    (device,) = nvme(linux, "list")["Devices"]
    assert device["DevicePath"] == "/dev/nvme0n1"
    assert (device["PhysicalSize"], device["SectorSize"]) == (SIZE, BLOCK)


def test_list_subsys_shows_a_live_path(linux: Guest) -> None:
    answer = nvme(linux, "list-subsys")
    (subsystem,) = (answer[0] if isinstance(answer, list) else answer)["Subsystems"]
    assert subsystem["Paths"][0]["State"] == "live"
    assert subsystem["NQN"].startswith("nqn.2014-08.")


def test_identify_agrees_with_itself(linux: Guest) -> None:
    controller = nvme(linux, "id-ctrl", "/dev/nvme0")
    assert (controller["sqes"], controller["cqes"]) == (0x66, 0x44)
    assert controller["nn"] >= 1 and controller["tnvmcap"] in (SIZE, str(SIZE))
    namespace = nvme(linux, "id-ns", "/dev/nvme0n1")
    assert namespace["nsze"] == SIZE // BLOCK
    assert namespace["lbafs"][namespace["flbas"] & 15]["ds"] == 12
    assert nvme(linux, "list-ns", "/dev/nvme0")["nsid_list"] == [{"nsid": 1}]


def test_the_smart_log_counts_what_is_written(linux: Guest) -> None:
    def counted() -> tuple[int, int]:
        log = nvme(linux, "smart-log", "/dev/nvme0")
        return int(log["host_write_commands"]), int(log["host_read_commands"])

    before = counted()
    write_and_read(linux, 100)
    after = counted()
    assert after[0] == before[0] + 1 and after[1] == before[1] + 1


def test_a_feature_that_is_set_stays_set(linux: Guest) -> None:
    said(linux, "nvme", "set-feature", "/dev/nvme0", "-f", "4", "-V", "0x151")
    assert "0x00000151" in said(linux, "nvme", "get-feature", "/dev/nvme0", "-f", "4")


def test_a_command_that_does_not_exist_says_so(linux: Guest) -> None:
    done = linux.capture(["nvme", "admin-passthru", "/dev/nvme0", "--opcode=0x7f"])
    assert done.code == 1 and b"Invalid Command Opcode" in done.stdout + done.stderr


def test_read_beyond_the_end_says_so(linux: Guest) -> None:
    where = [f"--start-block={SIZE // BLOCK}", "--block-count=0", f"-z{BLOCK}"]
    done = linux.capture(["nvme", "read", "/dev/nvme0n1", *where, "--data=/tmp/none"])
    assert done.code == 1 and b"LBA Out of Range" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "again",
    [
        "nvme reset /dev/nvme0",
        f"echo flr > {PCI}/reset_method && echo 1 > {PCI}/reset",
        f"echo 1 > {PCI}/remove && echo 1 > /sys/bus/pci/rescan",
        f"echo {ADDRESS} > {BOUND}/unbind && echo {ADDRESS} > {BOUND}/bind",
    ],
    ids=["reset", "flr", "remove-rescan", "unbind-bind"],
)
def test_the_drive_comes_back_with_its_data(linux: Guest, again: str) -> None:
    write_and_read(linux, 200)
    before = linux.capture(["cat", "/tmp/read"]).stdout
    sh(linux, again)
    await_paths(linux)
    linux.await_drive()
    where = ["--start-block=200", "--block-count=1", f"-z{2 * BLOCK}"]
    said(linux, "nvme", "read", "/dev/nvme0n1", *where, "--data=/tmp/again")
    assert linux.capture(["cat", "/tmp/again"]).stdout == before
    write_and_read(linux, 300)
    number_again(linux)


def await_paths(guest: Guest) -> None:
    """Wait until all of the drive's controllers are live."""
    live = "cat /sys/class/nvme/nvme?/state | grep -c live"
    sh(guest, f"until [ $({live}) = {1 + len(guest.more)} ]; do usleep 10000; done")


def number_again(guest: Guest) -> None:
    """Have Linux name the drive's controllers nvme0 and on: with others left, one that returns gets
    a new name, as the subsystem keeps its own."""
    if guest.more:
        functions = [f"0000:0{number + 1}:00.0" for number in range(1 + len(guest.more))]
        for function in functions:
            sh(guest, f"echo {function} > {BOUND}/unbind")
        for number, function in enumerate(functions):
            sh(guest, f"echo {function} > {BOUND}/bind")
            sh(
                guest,
                f"until grep -q live /sys/class/nvme/nvme{number}/state; do usleep 1000; done",
            )
        guest.await_drive()


def test_what_fio_writes_verifies(linux: Guest) -> None:
    """Many commands at a time, and then one at a time."""
    common = "--filename=/dev/nvme0n1 --direct=1 --bs=4k --rw=randwrite --size=4M"
    common += " --verify=crc32c --verify_fatal=1 --stonewall --output-format=json"
    jobs = "--name=many --iodepth=32 --ioengine=io_uring --name=one --ioengine=psync"
    report = json.loads(said(linux, "fio", *common.split(), *jobs.split()))
    assert [job["error"] for job in report["jobs"]] == [0, 0]
    for job in report["jobs"]:
        assert job["read"]["total_ios"] == job["write"]["total_ios"] == 1024


def await_writes(guest: Guest) -> None:
    """Wait until the drive has completed some more writes than now."""
    count = "awk '{print $5}' /sys/block/nvme0n1/stat"
    script = f"now=$({count}); until [ $({count}) -gt $((now + 20)) ]; do usleep 1000; done"
    assert guest.run(["sh", "-c", script], timeout=60.0) == 0


@contextlib.contextmanager
def verified_load(guest: Guest) -> Iterator[None]:
    """While the block lasts, writes that are read again and compared, again and again."""
    options = "--rw=randwrite --bs=4k --size=512k --iodepth=8 --ioengine=io_uring --direct=1"
    options += " --verify=crc32c --verify_fatal=1 --do_verify=1 --time_based --runtime=600"
    report = bytearray()
    load = guest.start(
        ["fio", "--name=load", f"--filename={DRIVE}", *options.split(), "--output-format=json"],
        stdout=report.extend,
    )
    await_writes(guest)
    yield
    await_writes(guest)
    load.signal(signal.SIGINT)
    assert load.wait(120.0) == 128  # "terminating on signal 2", in whatever it was doing
    (job,) = json.loads(report[report.index(b"{") :])["jobs"]
    assert job["error"] == 0
    assert min(job["write"]["total_ios"], job["read"]["total_ios"]) > 128, "it has compared some"


def test_resets_under_load_lose_nothing(linux: Guest) -> None:
    with verified_load(linux):
        for again in ("nvme reset /dev/nvme0", f"echo 1 > {PCI}/reset") * 2:
            await_writes(linux)
            sh(linux, again)
            assert said(linux, "cat", "/sys/class/nvme/nvme0/state") == "live\n"
    assert "I/O error" not in said(linux, "dmesg")


def test_bus_mastering_that_pauses_loses_no_interrupt(linux: Guest) -> None:
    """As blktests' block/011 does: what was lost, Linux would find after 30 seconds."""
    write = f"dd of={PCI}/config bs=1 seek=4 conv=notrunc status=none"
    with verified_load(linux):
        for _ in range(3):
            await_writes(linux)
            sh(linux, f"printf '\\002' | {write}; usleep 100000; printf '\\006' | {write}")
    assert "timeout" not in said(linux, "dmesg")


@pytest.mark.usefixtures("accelerator_path")
def test_the_host_application_gets_the_sum_from_the_drive(linux: Guest) -> None:
    linux.copy_in(ADD, "/share/add")
    run = ("potash", "run", "/dev/nvme0n1", "/share/add/program.o", "/share/add/input.bin")
    for where in ((), ("--lba", "0"), ("--lba", "16:64")):
        said(linux, *run, "/tmp/sum", "--arg", "520", "--arg", "1024", *where)
        assert linux.capture(["cat", "/tmp/sum"]).stdout == (ADD / "expected.bin").read_bytes()
        sh(linux, "rm /tmp/sum")


def test_firmware_lands_in_the_flash_beside_the_media_and_qemu_s_drive_beside_ours(
    images: GuestImages, tmp_path: Path, blocks: Path
) -> None:
    media = tmp_path / "drive"
    flash = tmp_path / "drive.flash"
    with (
        serving("--media", str(media), "--size", str(SIZE)) as socket,
        Guest(images, socket) as guest,
    ):
        assert [one["error_count"] for one in nvme(guest, "error-log", "/dev/nvme0")["errors"]] == (
            [0] * 64
        ), "Linux makes no errors"
        for size, options in ((1 << 20, ["--xfer=131072"]), (300 * 4096, []), (10000, [])):
            image = os.urandom(size)
            (tmp_path / "image").write_bytes(image)
            guest.copy_in(tmp_path / "image", "/tmp/image")
            said(guest, "nvme", "fw-download", "/dev/nvme0", "--fw=/tmp/image", *options)
            said(guest, "nvme", "fw-commit", "/dev/nvme0")
            assert image in flash.read_bytes()
        assert nvme(guest, "fw-log", "/dev/nvme0")

        guest.plug_file(blocks, name="other")
        guest.await_drive("/dev/nvme1n1")
        assert {device["SectorSize"] for device in nvme(guest, "list")["Devices"]} == {BLOCK}
        sh(guest, "dd if=/dev/urandom of=/tmp/some bs=4096 count=64 2>/dev/null")
        for drive in ("/dev/nvme0n1", "/dev/nvme1n1"):
            sh(guest, f"dd if=/tmp/some of={drive} bs=4096 oflag=direct 2>/dev/null")
        sh(guest, "cmp -n 262144 /dev/nvme0n1 /dev/nvme1n1")


def test_its_registers_can_be_read_in_the_guest(linux: Guest) -> None:
    registers = nvme(linux, "show-regs", "/dev/nvme0")
    assert registers["vs"] == 0x20000
    assert registers["cap"] & 0xFFFF == 4095
    assert registers["csts"] == 1


def test_a_device_that_dies_leaves_a_guest_that_lives(images: GuestImages, tmp_path: Path) -> None:
    lived, socket = False, tmp_path / "s"
    try:
        with (
            device_process(socket, "--size", str(SIZE)) as process,
            Guest(images, socket) as guest,
        ):
            process.kill()
            # The kernel gives a command a minute before it gives up; nobody else waits for it.
            asking = guest.start(["nvme", "id-ctrl", "/dev/nvme0"])
            assert guest.capture(["echo", "on"]).stdout == b"on\n"
            assert asking.code is None
            lived = True
    except GuestTimeout:
        # Leaving asks the guest to write what it holds, for which a kernel may want the dead drive.
        assert lived
    except GuestError as error:
        if "error_setv: Assertion" not in str(error):
            raise
        pytest.skip(
            "QEMU 11.1 sometimes ends itself when a device is gone: its assertion, not ours"
        )


def test_the_kernel_found_nothing_to_complain_about(linux: Guest) -> None:
    complaints = sh(linux, "dmesg -r | grep '^<[0-3]>' | grep -i nvme || true")
    assert complaints == ""
