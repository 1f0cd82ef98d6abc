"""A guest with an IOMMU, for which QEMU maps and unmaps the drive's memory page by page.

The slow tests also have the guest's own vfio-pci, whose modules Potash's guests are without, from
Debian's package:

    pytest -m slow tests/vm/test_iommu.py
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm.channel import Channel
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from potash.vm.machine import Machine
from potash.vm.qemu import CLIENT, Accelerator, Shape, machine_arguments
from support.guest_packages import unpacked

IOMMU = "intel-iommu,intremap=on,caching-mode=on"
FUNCTION = "0000:01:00.0"
BOOT_LIMIT = 120.0

WAIT = "until [ -b /dev/nvme0n1 ]; do usleep 10000; done"
FIO = [
    "fio", "--filename=/dev/nvme0n1", "--direct=1", "--ioengine=io_uring", "--verify=crc32c",
    "--verify_fatal=1", "--verify_state_save=0", "--name=job", "--iodepth=16",
]  # fmt: skip
SMALL = ["--rw=randrw", "--bs=4k", "--size=1M"]
ODD = ["--rw=randwrite", "--bsrange=4k-384k", "--size=3M", "--offset=8M"]
COMPLAINTS = "dmesg | grep -iE 'nvme.*(timeout|abort|error|not created)|DMAR.*fault' || true"

MODULES = (
    "virt/lib/irqbypass", "drivers/vfio/vfio", "drivers/vfio/vfio_iommu_type1",
    "drivers/vfio/pci/vfio-pci-core", "drivers/vfio/pci/vfio-pci",
)  # fmt: skip
"""In the order in which they are loaded."""
TO_VFIO = """
echo {function} > /sys/bus/pci/devices/{function}/driver/unbind
echo vfio-pci > /sys/bus/pci/devices/{function}/driver_override
echo {function} > /sys/bus/pci/drivers_probe
"""
BACK = (
    """
echo {function} > /sys/bus/pci/devices/{function}/driver/unbind
echo > /sys/bus/pci/devices/{function}/driver_override
echo {function} > /sys/bus/pci/drivers_probe
"""
    + WAIT
)


class Remapped(Guest):
    """A guest with an IOMMU, booted with the drive in its slot; it may boot again."""

    def __init__(self, images: GuestImages, drive: Path, parameters: str, cpus: int = 1) -> None:
        super().__init__(images)
        options = machine_arguments(images.kernel, images.initrd, Accelerator.TCG, Shape(512, cpus))
        options.remove("-no-reboot")
        options[options.index("-append") + 1] += f" intel_iommu=on {parameters}"
        options[options.index("-M") + 1] += ",kernel-irqchip=split"
        at = options.index("-device")  # before all other devices
        client = {"driver": CLIENT, "bus": "rp0", "socket": {"type": "unix", "path": str(drive)}}
        self.options = [
            *options[:at],
            "-device",
            IOMMU,
            *options[at:],
            "-device",
            json.dumps(client),
        ]

    def _resume(self, stack: contextlib.ExitStack) -> Machine:
        machine = stack.enter_context(Machine(self.images.qemu, self.options))
        self.greet(machine)
        return machine

    def greet(self, machine: Machine) -> None:
        self.channel = Channel(machine.control, BOOT_LIMIT, machine.seconds)
        self.channel.greet(BOOT_LIMIT)

    def reboot(self) -> None:
        boots = self.boots
        self.start(["reboot", "-f"])
        until = time.monotonic() + BOOT_LIMIT
        while self.boots == boots:  # the agent of before would answer, too
            assert time.monotonic() < until, self.machine.console()
            time.sleep(0.05)
        self.greet(self.machine)

    @property
    def boots(self) -> int:
        return self.machine.console(1000).count(" is up")

    def said(self, *argv: str) -> str:
        done = self.capture(argv, timeout=120.0)
        assert done.code == 0, (argv, done)
        return done.stdout.decode()

    def check(self) -> None:
        """The drive stores what it is given, and nobody complains."""
        self.said("sh", "-c", WAIT)
        self.said(*FIO, *SMALL)
        self.said(*FIO, *ODD)
        self.said("nvme", "reset", "/dev/nvme0")
        self.said(*FIO, *SMALL, "--verify_only")
        assert self.said("sh", "-c", COMPLAINTS) == ""
        assert "unmap" not in self.machine.console()
        assert "map(" not in self.machine.console()


@contextlib.contextmanager
def remapped(images: GuestImages, parameters: str = "", cpus: int = 1) -> Iterator[Remapped]:
    with serving("--size", "64M") as drive, Remapped(images, drive, parameters, cpus) as guest:
        yield guest


def domain(guest: Remapped) -> str:
    return guest.said("cat", f"/sys/bus/pci/devices/{FUNCTION}/iommu_group/type").strip()


def test_a_guest_with_an_iommu_uses_the_drive_and_boots_again(images: GuestImages) -> None:
    with remapped(images) as guest:
        assert domain(guest) == "DMA"
        guest.said("sh", "-c", WAIT)
        guest.said(*FIO, *ODD)
        guest.reboot()
        guest.said("sh", "-c", WAIT)
        guest.said(*FIO, *ODD, "--verify_only")
        guest.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "expected"),
    [("iommu=pt", "identity"), ("iommu.strict=1", "DMA"), ("iommu.strict=0", "DMA")],
)
def test_each_way_to_map(images: GuestImages, parameters: str, expected: str) -> None:
    with remapped(images, parameters, cpus=2) as guest:
        assert domain(guest) == expected
        for _ in range(2):
            guest.check()
            load = guest.start([*FIO, *SMALL, "--loops=1000", "--time_based", "--runtime=10"])
            for _ in range(5):
                guest.said("nvme", "reset", "/dev/nvme0")
            assert load.wait(120.0) == 0
            guest.reboot()


@pytest.fixture
def modules(images: GuestImages) -> list[Path]:
    """Modules of the very kernel that the guest has."""
    tree = unpacked(images)
    return [next(tree.glob(f"usr/lib/modules/*/kernel/{name}.ko.xz")) for name in MODULES]


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["iommu.strict=1", "iommu=pt"])
def test_the_guest_s_vfio_has_the_drive_and_gives_it_back(
    images: GuestImages, modules: list[Path], parameters: str
) -> None:
    with remapped(images, parameters) as guest:
        release = guest.said("uname", "-r").strip()
        if release != modules[0].relative_to(modules[0].parents[4]).parts[0]:
            pytest.skip(f"the archive has no modules of Linux {release} any more")
        for module in modules:
            guest.copy_in(module, f"/tmp/{module.name}")
            guest.said("sh", "-c", f"unxz /tmp/{module.name} && insmod /tmp/{module.stem}")
        for name in ("bar_driver.py", "vfio_driver.py"):
            guest.copy_in(Path(__file__).with_name(name), f"/share/vm/{name}")
        guest.check()
        for _ in range(2):
            guest.said("sh", "-ec", TO_VFIO.format(function=FUNCTION))
            said = guest.said("sh", "-c", f"cd /share && python3 -m vm.vfio_driver {FUNCTION} 64")
            assert said == "written and read\n"
            guest.said("sh", "-ec", BACK.format(function=FUNCTION))
            guest.check()
