"""What an administrator does to a drive from Linux: namespaces made, formatted, tested,
sanitized."""

import json
from pathlib import Path
from typing import Any

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.vm import shell

MIB = 1 << 20

AWAIT = "for i in $(seq 200); do {condition} && exit 0; sleep 0.05; done; exit 1"


def nvme(guest: Guest, arguments: str) -> Any:
    return json.loads(shell(guest, f"nvme {arguments} -o json"))


def refused(guest: Guest, arguments: str) -> str:
    done = guest.capture(["sh", "-c", f"nvme {arguments}"])
    assert done.code != 0, done
    return (done.stdout + done.stderr).decode().lower()


def await_(guest: Guest, condition: str) -> None:
    shell(guest, AWAIT.format(condition=condition))


def listed(guest: Guest, arguments: str = "") -> list[int]:
    found = nvme(guest, f"list-ns /dev/nvme0 {arguments}")
    return [one["nsid"] for one in found["nsid_list"]]


def test_namespaces_come_change_and_go_under_linux(images: GuestImages, tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    folder.mkdir()
    options = ("--media", str(folder), "--namespace", "64M", "--capacity", "128M")
    with serving(*options) as socket, Guest(images, socket) as guest:
        guest.await_drive("/dev/nvme0n1")
        controller = nvme(guest, "id-ctrl /dev/nvme0")
        assert (controller["tnvmcap"], controller["unvmcap"]) == (128 * MIB, 64 * MIB)
        assert controller["nn"] == 64
        assert controller["oacs"] & 0b11010 == 0b11010

        # Formatted, with the kernel seeing the new block size at once.
        shell(
            guest, "head -c 4096 /dev/zero | tr '\\0' w | dd of=/dev/nvme0n1 bs=4096 oflag=direct"
        )
        shell(guest, "nvme format /dev/nvme0n1 --lbaf=0 --ses=1 --force")
        await_(guest, "[ $(blockdev --getss /dev/nvme0n1) = 512 ]")
        assert shell(guest, "blockdev --getsize64 /dev/nvme0n1").strip() == str(64 * MIB)
        assert shell(guest, "head -c 4096 /dev/nvme0n1 | tr -d '\\0' | wc -c").strip() == "0"
        namespace = nvme(guest, "id-ns /dev/nvme0n1")
        assert (namespace["nsze"], namespace["flbas"], namespace["nlbaf"]) == (131072, 0, 13)
        assert [one["ds"] for one in namespace["lbafs"]][:2] == [9, 12]
        assert "in use" in shell(guest, "nvme id-ns /dev/nvme0n1 -H")
        said = refused(guest, "format /dev/nvme0n1 --lbaf=0 --pi=1 --force")
        assert "invalid format" in said or "format" in said
        shell(guest, "nvme format /dev/nvme0n1 --lbaf=1 --force")
        await_(guest, "[ $(blockdev --getss /dev/nvme0n1) = 4096 ]")

        # Write-protected, which the kernel follows by itself, too.
        shell(guest, "nvme set-feature /dev/nvme0 -n 1 -f 0x84 --value=1")
        await_(guest, "[ $(cat /sys/block/nvme0n1/ro) = 1 ]")
        shell(guest, "! dd if=/dev/zero of=/dev/nvme0n1 bs=4096 count=1 oflag=direct")
        assert "write protected" in refused(guest, "write-zeroes /dev/nvme0 -n 1 -c 0")
        shell(guest, "nvme set-feature /dev/nvme0 -n 1 -f 0x84 --value=0")
        await_(guest, "[ $(cat /sys/block/nvme0n1/ro) = 0 ]")
        shell(guest, "dd if=/dev/zero of=/dev/nvme0n1 bs=4096 count=1 oflag=direct")

        # Made, attached, used, detached, deleted; the kernel follows by itself.
        made = shell(guest, "nvme create-ns /dev/nvme0 --nsze=65536 --ncap=65536 --flbas=0")
        assert "nsid:2" in made.replace(" ", "")
        assert (listed(guest), listed(guest, "--all")) == ([1], [1, 2])
        shell(guest, "nvme attach-ns /dev/nvme0 --namespace-id=2 --controllers=0")
        await_(guest, "grep -lx 2 /sys/block/nvme0n*/nsid")
        assert listed(guest) == [1, 2]
        name = shell(guest, "grep -lx 2 /sys/block/nvme0n*/nsid").split("/")[3]
        sizes = shell(guest, f"cd /dev; blockdev --getss {name}; blockdev --getsize64 {name}")
        assert sizes.split() == ["512", str(32 * MIB)]
        shell(guest, f"dd if=/dev/zero of=/dev/{name} bs=1M count=4 oflag=direct conv=fsync")
        said = refused(guest, "attach-ns /dev/nvme0 --namespace-id=2 --controllers=0")
        assert "already" in said
        assert "capacity" in refused(
            guest, "create-ns /dev/nvme0 --nsze=65537 --ncap=65537 --flbas=0"
        )
        controllers = nvme(guest, "list-ctrl /dev/nvme0 --namespace-id=2")
        assert [one["ctrl_id"] for one in controllers["ctrl_list"]] == [0]
        shell(guest, "nvme detach-ns /dev/nvme0 --namespace-id=2 --controllers=0")
        await_(guest, f"[ ! -e /sys/block/{name} ]")
        shell(guest, "nvme delete-ns /dev/nvme0 --namespace-id=2")
        assert listed(guest, "--all") == [1]
        assert not (folder / "namespace-2").exists()

        # Tested and sanitized.
        test = "nvme device-self-test /dev/nvme0 --wait"
        shell(guest, f"timeout 60 {test} --namespace-id=0xffffffff --self-test-code=1")
        tests = nvme(guest, "self-test-log /dev/nvme0")
        first = tests["List of Valid Reports"][0]
        assert (first["Self test result"], first["Self test code"]) == (0, 1), tests
        shell(guest, f"timeout 60 {test} --namespace-id=1 --self-test-code=2")
        tests = nvme(guest, "self-test-log /dev/nvme0")
        first = tests["List of Valid Reports"][0]
        assert (first["Self test result"], first["Self test code"]) == (0, 2), tests
        shell(
            guest, "head -c 4096 /dev/zero | tr '\\0' w | dd of=/dev/nvme0n1 bs=4096 oflag=direct"
        )
        shell(guest, "nvme sanitize /dev/nvme0 --sanact=2")
        await_(guest, "nvme sanitize-log /dev/nvme0 | grep -qi 'sstat.*0x.*1$'")
        log = nvme(guest, "sanitize-log /dev/nvme0")
        (log,) = log.values()
        assert (log["sprog"], log["cdw10_info"]) == (65535, 2), log
        shell(guest, "echo 3 > /proc/sys/vm/drop_caches")
        assert shell(guest, "head -c 4096 /dev/nvme0n1 | tr -d '\\0' | wc -c").strip() == "0"
        assert "invalid" in refused(guest, "sanitize /dev/nvme0 --sanact=4")
        shell(guest, "nvme sanitize-log /dev/nvme0; nvme self-test-log /dev/nvme0; nvme list")
