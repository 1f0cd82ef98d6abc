"""Machines that boot from the drive: by UEFI firmware, by a BIOS, by U-Boot.

Run it with

    pytest -m slow tests/vm/test_boot_from_drive.py
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from potash.vm import packages
from potash.vm.drive import serving
from potash.vm.images import GuestImages
from potash.vm.packages import RELEASE, Closure, program_command
from potash.vm.qemu import Accelerator, Shape, bare_machine
from potash.vm.rootfs import Archive as Initrd
from support.guest_packages import unpacked

pytestmark = pytest.mark.slow

FIRMWARE = Closure(
    "firmware for booting",
    RELEASE,
    ("ovmf", "systemd-boot-efi", "u-boot-qemu", "dosfstools", "mtools"),
    ("./usr/share/doc", "./usr/share/man"),
)
SIZE = 64 << 20
LIMIT = 120

INIT = b"""#!/bin/busybox sh
busybox mount -t devtmpfs none /dev
busybox mount -t sysfs none /sys
cd /sys/block/nvme0n1
echo "Linux on $(busybox cat device/model) blocks of $(busybox cat queue/logical_block_size)"
busybox poweroff -f
"""
ENTRY = "title Linux\nlinux /linux.efi\ninitrd /initrd\noptions console=ttyS0 quiet\n"

# Reads the second sector by int 13h, and writes the text in it to the first serial port.
SECTOR = bytes.fromhex(
    "fa 31c0 8ed8 8ec0 8ed0 bc007c fb"  # a stack below 7C00h; DL is the drive
    "b80102 bb007e b90200 b600 cd13"  # AH=2, one sector to 7E00h
    "be007e ac 84c0 7406 baf803 ee ebf5 f4 ebfd"  # each byte, up to a zero, to port 3F8h
)


@pytest.fixture(scope="module")
def tree(images: GuestImages) -> Path:
    return unpacked(images, FIRMWARE)


def volume(place: Path, tree: Path, images: GuestImages, block_size: int) -> Path:
    """A FAT file system with Linux, an initial file system and a boot loader."""
    guest = images.cache.root / "trees" / packages.GUEST.key
    initrd = Initrd()
    for name in ("dev", "sys"):
        initrd.directory(name)
    initrd.device("dev/console", 5, 1, 0o600)
    initrd.copy(guest / "usr/bin/busybox", "bin/busybox", 0o755)
    initrd.file("init", INIT, 0o755)
    with (place / "initrd").open("wb") as file:
        initrd.write(file)
    (place / "linux.conf").write_text(ENTRY)
    (place / "loader.conf").write_text("timeout 0\n")
    (linux,) = (guest / "boot").glob("vmlinuz-*")
    loader = tree / "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
    disk = place / "disk"
    with disk.open("wb") as file:
        file.truncate(SIZE)

    def run(program: str, *arguments: str) -> None:
        command = [*program_command(tree, program), *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)

    run("usr/sbin/mkfs.vfat", "-S", str(block_size), str(disk))
    run("usr/bin/mmd", "-i", str(disk), "EFI", "EFI/BOOT", "loader", "loader/entries")
    for source, name in (
        (linux, "linux.efi"),
        (place / "initrd", "initrd"),
        (loader, "EFI/BOOT/BOOTX64.EFI"),
        (place / "loader.conf", "loader/loader.conf"),
        (place / "linux.conf", "loader/entries/linux.conf"),
    ):
        run("usr/bin/mcopy", "-i", str(disk), str(source), f"::{name}")
    return disk


def console(
    images: GuestImages, disk: Path, block_size: int, *options: str, until: str, typed: str = ""
) -> str:
    """What a machine with the drive says on its serial port, until it ends or says `until`."""
    machine = bare_machine(Accelerator.TCG, Shape(512, 1))
    if "-M" in options:
        machine = machine[2:]
    drive = ["--media", str(disk), "--namespace", f"{SIZE}:{block_size}"]
    with serving(*drive) as socket:
        device = {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(socket)}}
        command = [*images.qemu.command, *machine, *options, "-serial", "stdio"]
        command += ["-device", json.dumps({**device, "bootindex": 0})]
        said, deadline = b"", time.monotonic() + LIMIT
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                while until.encode() not in said and time.monotonic() < deadline:
                    some = os.read(process.stdout.fileno(), 4096)
                    said += some
                    if not some:
                        break
                    if typed and said.endswith(b"=> "):
                        process.stdin.write(typed.encode())
                        typed = ""
                    elif b"any key" in some:
                        process.stdin.write(b"\n")
                    process.stdin.flush()
            finally:
                process.kill()
    return said.decode(errors="replace")


@pytest.mark.parametrize("block_size", [512, 4096])
def test_uefi_firmware_boots_linux(
    images: GuestImages, tree: Path, tmp_path: Path, block_size: int
) -> None:
    disk = volume(tmp_path, tree, images, block_size)
    variables = tmp_path / "variables"
    variables.write_bytes((tree / "usr/share/OVMF/OVMF_VARS_4M.fd").read_bytes())
    code = f"file={tree / 'usr/share/OVMF/OVMF_CODE_4M.fd'}"
    flash = "if=pflash,format=raw"
    options = ["-drive", f"{flash},unit=0,readonly=on,{code}"]
    options += ["-drive", f"{flash},unit=1,file={variables}"]
    until = f"Linux on Potash computational storage blocks of {block_size}"
    said = " ".join(console(images, disk, block_size, *options, until=until).split())
    assert until in said, said[-2000:]


def test_a_bios_boots_from_blocks_of_512_bytes(images: GuestImages, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.write(SECTOR.ljust(510, b"\0") + b"\x55\xaa" + b"read by the BIOS\0")
        file.truncate(SIZE)
    assert console(images, disk, 512, until="BIOS").endswith("read by the BIOS")


def test_u_boot_reads_files(images: GuestImages, tree: Path, tmp_path: Path) -> None:
    """Debian's U-Boot for x86-64 is for QEMU's machine `pc`."""
    disk = volume(tmp_path, tree, images, 512)
    size = (tmp_path / "initrd").stat().st_size
    options = ["-M", "pc,memory-backend=ram"]
    options += ["-bios", str(tree / "usr/lib/u-boot/qemu-x86_64/u-boot.rom")]
    typed = "pci enum; nvme scan; fatload nvme 0 0x2000000 initrd\n"
    assert f"{size} bytes read" in console(
        images, disk, 512, *options, until="bytes read", typed=typed
    )
