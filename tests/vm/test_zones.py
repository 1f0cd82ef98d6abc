"""A zoned namespace as Linux, nvme-cli and fio see it, and what is left of it after a kill
(docs/zones.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from potash.sdk import CommandFailed
from potash.testing import booted_device
from potash.vm.drive import device_process
from potash.vm.guest import Guest
from potash.vm.images import GuestImages

MIB = 1 << 20
ZONE = 4 * MIB // 4096
"""Blocks of a zone."""
NEW = ["--zoned-namespace", "64M:4M", "--zrwa", "64K:16K:2"]
RANDOM, KEPT, APPENDED = 12, 13, 15
"""Zones behind those of fio."""

FIO = f"""fio --name=job --filename=/dev/nvme0n1 --zonemode=zbd --direct=1 --rw=randwrite --bs=64k \
--size={12 * 4 * MIB} --io_size={8 * MIB} --verify=crc32c --max_open_zones=4"""


def test_linux_writes_zones_whose_flushed_blocks_outlive_a_kill(
    images: GuestImages, tmp_path: Path
) -> None:
    media = tmp_path / "drive"
    socket = tmp_path / "socket"
    with (
        device_process(socket, "--media", str(media), *NEW) as process,
        Guest(images, socket) as guest,
    ):
        data = in_guest(guest)
        process.kill()
        process.wait()
    with booted_device(media=media, options=NEW) as device:
        first = KEPT * ZONE
        assert device.read(first, len(data) // 4096) == data
        written = [bytes(4096), data[:4096], bytes(8192), data[4096:8192]]
        assert device.read(RANDOM * ZONE, 5) == b"".join(written)
        assert device.read(APPENDED * ZONE, 2) == data[:4096] + bytes(4096)
        with pytest.raises(CommandFailed, match="Zone Invalid Write"):
            device.write(first + len(data) // 4096 - 1, bytes(4096))
        device.write(first + len(data) // 4096, b"!" * 4096)


def in_guest(guest: Guest) -> bytes:
    """Use the drive; gives what has been flushed to zone `KEPT`."""
    guest.await_drive("/dev/nvme0n1")

    def sh(script: str) -> str:
        done = guest.capture(["sh", "-c", script])
        assert done.code == 0, (script, done)
        return done.stdout.decode()

    def zones() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            sh("nvme zns report-zones /dev/nvme0n1 -d 16 -o json")
        )["zone_list"]
        assert len(found) == 16
        return found

    queue = sh("cd /sys/block/nvme0n1/queue; cat zoned chunk_sectors nr_zones")
    assert queue.split() == ["host-managed", str(4 * MIB // 512), "16"]
    assert {one["state"] for one in zones()} == {"EMPTY"}
    sh(FIO)
    written = zones()[:12]
    assert sum(one["wp"] - one["slba"] for one in written if one["state"] != "FULL") > 0

    sh("head -c 65536 /dev/urandom > /tmp/data")
    sh(f"dd if=/tmp/data of=/dev/nvme0n1 bs=64k seek={KEPT * 64} oflag=direct conv=fsync")
    assert zones()[KEPT]["wp"] == KEPT * ZONE + 16

    # blkzone names zones by sectors of 512 bytes, and so does what it prints.
    fourth = f"--offset {4 * ZONE * 8} --count 1 /dev/nvme0n1"
    for action, state in (
        ("reset", "em"),
        ("open", "oe"),
        ("close", "cl"),
        ("finish", "fu"),
        ("reset", "em"),
    ):
        sh(f"blkzone {action} {fourth}")
        assert f"({state})" in sh(f"blkzone report {fourth}")

    area = RANDOM * ZONE
    assert json.loads(sh("nvme zns id-ns /dev/nvme0n1 -o json"))["zrwasz"] == 16
    sh(f"nvme zns open-zone /dev/nvme0n1 -s {area} --zrwaa")
    for lba, source in ((area + 1, 8), (area + 4, 4), (area + 1, 0)):  # one is written twice
        sh(f"dd if=/tmp/data of=/tmp/block bs=1k skip={source} count=4")
        sh(f"nvme write /dev/nvme0n1 -s {lba} -z 4096 -d /tmp/block")
    assert zones()[RANDOM]["wp"] == area
    sh(f"nvme zns zrwa-flush-zone /dev/nvme0n1 -l {area + 3}")
    assert zones()[RANDOM]["wp"] == area + 4

    last = f"/dev/nvme0n1 -s {APPENDED * ZONE}"
    sh(f"nvme zns zone-append {last} -z 4096 -d /tmp/data")
    assert zones()[APPENDED]["wp"] == APPENDED * ZONE + 1
    sh(f"nvme zns zone-mgmt-send {last} --zsa=2")
    assert zones()[APPENDED]["state"] == "FULL"
    sh(f"nvme zns reset-zone /dev/nvme0n1 -s {(APPENDED - 1) * ZONE}")
    sh("nvme flush /dev/nvme0n1")
    done = guest.capture(["cat", "/tmp/data"])
    assert done.code == 0
    return done.stdout
