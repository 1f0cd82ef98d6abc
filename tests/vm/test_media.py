"""A drive of two namespaces in a folder, as Linux sees it: block sizes, health, what is
read-only."""

import json
from pathlib import Path
from typing import Any

import potash.sdk
from nvme_spec.features import FeatureId
from nvme_spec.opcodes import AdminOpcode
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.vm import shell

MIB = 1 << 20


def nvme(guest: Guest, *arguments: str) -> Any:
    done = guest.capture(["nvme", *arguments, "-o", "json"])
    assert done.code == 0, done
    return json.loads(done.stdout)


def drives(guest: Guest) -> dict[int, str]:
    """The block devices' names by namespace: the kernel numbers them as its scan finds them."""
    guest.await_drive("/dev/nvme0n2")
    said = shell(guest, "for d in /sys/block/nvme0n*; do echo $(cat $d/nsid) ${d##*/}; done")
    return {int(line.split()[0]): line.split()[1] for line in said.splitlines()}


def test_two_namespaces_of_different_blocks_stay_in_their_folder(
    images: GuestImages, tmp_path: Path
) -> None:
    """Written and set by a host without Linux."""
    folder = tmp_path / "drive"
    new = ("--media", str(folder), "--namespace", "64M", "--namespace", "32M:512")
    with serving(*new) as socket, potash.sdk.open(f"vfio-user:{socket}") as device:
        device.namespace(2).write(3, b"w" * 512)
        device.admin(AdminOpcode.SET_FEATURES, cdw10=1 << 31 | FeatureId.VOLATILE_WRITE_CACHE)
    assert (folder / "namespace-2").read_bytes()[3 * 512 :][:513] == b"w" * 512 + b"\0"
    (folder / "namespace-2").chmod(0o444)
    with serving("--media", str(folder)) as socket, Guest(images, socket) as guest:
        name = drives(guest)
        for nsid, size, block, read_only in ((1, 64 * MIB, 4096, 0), (2, 32 * MIB, 512, 1)):
            disk = f"/dev/{name[nsid]}"
            said = shell(guest, f"for one in size64 ss ro; do blockdev --get$one {disk}; done")
            assert said.split() == [str(size), str(block), str(read_only)]
        read = f"dd if=/dev/{name[2]} bs=512 skip=3 count=1 status=none"
        assert shell(guest, read) == "w" * 512
        said = shell(guest, "nvme get-feature /dev/nvme0 --feature-id=0x06 --sel=2")
        assert "0x06" in said.lower() and said.strip().endswith(("0", "00000000"))
        smart = nvme(guest, "smart-log", "/dev/nvme0")
        assert (smart["power_cycles"], smart["unsafe_shutdowns"]) in ((2, 0), ("2", "0"))
        assert int(smart["media_errors"]) == 0
