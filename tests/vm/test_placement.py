"""Flexible data placement as Linux's tools see it (docs/placement.md)."""

from __future__ import annotations

import json
from typing import Any

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.docs import blocks, typed

UNIT = 1 << 20
BLOCKS = UNIT // 4096


def test_nvme_cli_places_data_and_reads_the_logs(images: GuestImages) -> None:
    with serving("--size", "64M", "--fdp", "3:1M") as socket, Guest(images, socket) as guest:
        guest.await_drive("/dev/nvme0n1")

        def sh(script: str) -> str:
            done = guest.capture(["sh", "-c", script])
            assert done.code == 0, (script, done)
            return done.stdout.decode()

        def fdp(arguments: str) -> Any:
            return json.loads(sh(f"nvme fdp {arguments} -o json"))

        def left() -> list[int]:
            found = fdp("status /dev/nvme0n1")["ruhss"]
            assert [(one["pid"], one["ruhid"]) for one in found] == [(0, 0), (1, 1), (2, 2)]
            return [one["ruamw"] for one in found]

        (configuration,) = fdp("configs /dev/nvme0 -e 1")["configs"]
        assert (configuration["nrg"], configuration["nruh"]) == (1, 3)
        assert configuration["runs"] == UNIT
        assert left() == [BLOCKS] * 3
        sh("nvme fdp set-events /dev/nvme0n1 -p 0 -t 0,1,2,3,128,129 -e")
        sh("head -c 8192 /dev/urandom > /tmp/data")
        write = "nvme write /dev/nvme0n1 -c 1 -z 8192 -d /tmp/data --dir-type=2"
        sh(f"{write} -s 8 --dir-spec=2 && {write} -s 16 --dir-spec=7")
        sh("dd if=/tmp/data of=/dev/nvme0n1 bs=4096 count=1 oflag=direct")
        sh("dd if=/dev/nvme0n1 bs=8192 skip=4 count=1 iflag=direct | cmp - /tmp/data")
        sh("nvme read /dev/nvme0n1 -s 8 -c 1 -z 8192 -d /tmp/back --dir-type=2 --dir-spec=2")
        sh("cmp /tmp/back /tmp/data")
        assert left() == [BLOCKS - 3, BLOCKS, BLOCKS - 2]
        statistics = fdp("stats /dev/nvme0 -e 1")
        assert (statistics["hbmw"], statistics["mbmw"]) == (5 * 4096, 5 * 4096)
        sh("nvme fdp update /dev/nvme0n1 -p 0")
        assert left() == [BLOCKS, BLOCKS, BLOCKS - 2]
        events = fdp("events /dev/nvme0 -e 1 -E")["events"]
        assert [one["type"] for one in events] == [3, 0]
        assert events[0]["pid"] == 7
        typed(guest, blocks("placement.md", "sh")[1])
        sh(
            "fio --name=verified --filename=/dev/ng0n1 --ioengine=io_uring_cmd --cmd_type=nvme"
            " --fdp=1 --fdp_pli=1,2 --rw=write --bs=4k --size=256k --verify=crc32c"
        )
