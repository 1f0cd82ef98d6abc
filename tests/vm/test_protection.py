"""Metadata and protection information under Linux: its own checks, the drive's, and a lie."""

from pathlib import Path

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.docs import blocks, typed
from support.vm import shell

INTEGRITY = "/sys/block/nvme0n1/integrity"
COPY = """
dd if=/bin/busybox of=/dev/nvme0n1 bs=64k count=16 oflag=direct 2>/dev/null
dd if=/dev/nvme0n1 bs=4k count=256 iflag=direct 2>/dev/null | cmp -n 1048576 - /bin/busybox
"""
"""What is written in large requests is read in small ones."""
AWAIT = "for i in $(seq 200); do {} && exit 0; sleep 0.05; done; exit 1"


def formatted(guest: Guest, options: str, kind: str, block: int) -> None:
    """Format the namespace, and wait until the kernel has seen it."""
    shell(guest, f"nvme format /dev/nvme0n1 {options} --force")
    condition = (
        f'[ "$(cat {INTEGRITY}/format)" = {kind} ] && '
        f"[ $(blockdev --getss /dev/nvme0n1) = {block} ]"
    )
    shell(guest, AWAIT.format(condition))


def test_linux_and_the_drive_check_each_other(images: GuestImages, tmp_path: Path) -> None:
    media = tmp_path / "drive"
    fio = (
        "fio --name=t --filename=/dev/nvme0n1 --direct=1 --rw=randwrite --bs=4k --size=1M"
        " --verify=crc32c --do_verify=1 --output=/dev/null"
    )
    options = ("--media", str(media), "--namespace", "32M:4096+8:1")
    with serving(*options) as socket, Guest(images, socket) as guest:
        guest.await_drive("/dev/nvme0n1")
        assert shell(guest, f"cat {INTEGRITY}/format").strip() == "T10-DIF-TYPE1-CRC"
        assert shell(guest, f"cat {INTEGRITY}/device_is_integrity_capable").strip() == "1"
        shell(guest, fio)
        # What Linux has made is what the drive and nvme-cli find, and the other way round.
        shell(guest, "nvme verify /dev/nvme0n1 -s 0 -c 255 --prinfo=5 --ref-tag=0")
        shell(guest, "echo drive | nvme write /dev/nvme0n1 -s 9 -z 4096 --prinfo=8 --ref-tag=9")
        assert shell(guest, "dd if=/dev/nvme0n1 bs=4k skip=9 count=1 iflag=direct | head -c 5") == (
            "drive"
        )
        # Where Linux does not make and check it itself, it has the drive do that.
        shell(guest, f"for one in write_generate read_verify; do echo 0 > {INTEGRITY}/$one; done")
        shell(guest, fio)
        shell(guest, "nvme verify /dev/nvme0n1 -s 0 -c 255 --prinfo=5 --ref-tag=0")
        shell(guest, f"for one in write_generate read_verify; do echo 1 > {INTEGRITY}/$one; done")
        shell(guest, "dd if=/dev/nvme0n1 of=/dev/null bs=64k count=16 iflag=direct")
        # Other formats, by number, and back.
        formatted(guest, "--lbaf=8 --pi=1", "EXT-DIF-TYPE1-CRC64", 4096)
        shell(guest, COPY)
        formatted(guest, "--lbaf=2 --pi=3", "T10-DIF-TYPE3-CRC", 512)
        shell(guest, COPY)
        formatted(guest, "--lbaf=1", "none", 4096)
        shell(guest, COPY)
        formatted(guest, "--lbaf=5 --pi=1", "T10-DIF-TYPE1-CRC", 4096)
        typed(guest, blocks("protection.md", "sh")[2])
        shell(guest, "dd if=/bin/busybox of=/dev/nvme0n1 bs=64k count=16 oflag=direct")
        # A bit of the file turns under the running drive.
        with media.open("r+b") as file:
            file.seek(40 * 4096 + 5)
            (byte,) = file.read(1)
            file.seek(40 * 4096 + 5)
            file.write(bytes([byte ^ 1]))
        shell(guest, "dd if=/dev/nvme0n1 of=/dev/null bs=4k count=40 iflag=direct")
        shell(guest, "! dd if=/dev/nvme0n1 of=/dev/null bs=4k skip=40 count=1 iflag=direct")
        assert "Guard Check" in shell(guest, "nvme error-log /dev/nvme0 -e 1")
        shell(guest, "dd if=/dev/nvme0n1 of=/dev/null bs=4k skip=41 count=200 iflag=direct")
