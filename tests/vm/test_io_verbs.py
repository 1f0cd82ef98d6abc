"""The NVM command set under the stock driver and the stock tools: what each verb says and does."""

from __future__ import annotations

import json
import os
from typing import Any

from potash.vm.guest import Guest
from support.vm import said

SIZE = 64 << 20
BLOCK = 4096
DISK = "/dev/nvme0n1"


def refused(guest: Guest, status: str, *argv: str, stdin: bytes | None = None) -> None:
    """A command that must fail, and says so with the specification's words."""
    done = guest.capture(argv, stdin)
    assert done.code != 0, (argv, done)
    assert status in (done.stdout + done.stderr).decode().replace("\n", " "), (argv, done)


def blocks(first: int, count: int = 1) -> list[str]:
    return [f"--start-block={first}", f"--block-count={count - 1}"]


def put(guest: Guest, first: int, data: bytes) -> None:
    size = f"--data-size={len(data)}"
    where = blocks(first, len(data) // BLOCK)
    said(guest, "nvme", "write", DISK, *where, size, "--data=/dev/stdin", stdin=data)


def get(guest: Guest, first: int, count: int = 1) -> bytes:
    size = f"--data-size={count * BLOCK}"
    said(guest, "rm", "-f", "/tmp/got")  # nvme-cli would leave what is longer than its data
    said(guest, "nvme", "read", DISK, *blocks(first, count), size, "--data=/tmp/got")
    return guest.capture(["cat", "/tmp/got"]).stdout


def test_write_zeroes(linux: Guest) -> None:
    for option in ([], ["--deac"], ["--force-unit-access"]):
        put(linux, 10, b"x" * (3 * BLOCK))
        said(linux, "nvme", "write-zeroes", DISK, *blocks(11), *option)
        assert get(linux, 10, 3) == b"x" * BLOCK + bytes(BLOCK) + b"x" * BLOCK
    refused(linux, "LBA Out of Range", "nvme", "write-zeroes", DISK, *blocks(SIZE // BLOCK))


def test_write_uncorrectable_and_what_reads_it(linux: Guest) -> None:
    data = ["--data-size=4096", "--data=/tmp/none"]
    said(linux, "nvme", "write-uncor", DISK, *blocks(20, 2))
    refused(linux, "Unrecovered Read Error", "nvme", "read", DISK, *blocks(21), *data)
    refused(linux, "Unrecovered Read Error", "nvme", "verify", DISK, *blocks(20, 4))
    listed = ["--namespace-id=1", "--start-lba=0", "--max-dw=64", "--action=17", "--range-len=0"]
    status = said(linux, "nvme", "get-lba-status", DISK, *listed)
    assert "DSLBA: 0x00000000000014, NLB: 0x000002" in status, status
    put(linux, 20, b"y" * (2 * BLOCK))
    assert get(linux, 20, 2) == b"y" * (2 * BLOCK)


def test_compare_and_verify(linux: Guest) -> None:
    put(linux, 30, b"a" * BLOCK)
    data = ["--data-size=4096", "--data=/dev/stdin"]
    said(linux, "nvme", "compare", DISK, *blocks(30), *data, stdin=b"a" * BLOCK)
    different = b"a" * (BLOCK - 1) + b"b"
    refused(linux, "Compare Failure", "nvme", "compare", DISK, *blocks(30), *data, stdin=different)
    said(linux, "nvme", "verify", DISK, *blocks(0, 1000))


def test_dataset_management(linux: Guest) -> None:
    put(linux, 40, b"z" * (4 * BLOCK))
    ranges = ["--ad", "--slbs=41,43", "--blocks=1,1"]
    said(linux, "nvme", "dsm", DISK, "--namespace-id=1", *ranges)
    assert get(linux, 40, 4) == (b"z" * BLOCK + bytes(BLOCK)) * 2
    outside = ["--ad", f"--slbs={SIZE // BLOCK}", "--blocks=1"]
    refused(linux, "LBA Out of Range", "nvme", "dsm", DISK, "--namespace-id=1", *outside)


def test_copy(linux: Guest) -> None:
    content = os.urandom(4 * BLOCK)
    put(linux, 50, content)
    said(linux, "nvme", "copy", DISK, "--sdlba=60", "--slbs=52,50", "--blocks=1,1")
    assert get(linux, 60, 4) == content[2 * BLOCK :] + content[: 2 * BLOCK]
    refused(
        linux, "Command Size Limit Exceeded",
        "nvme", "copy", DISK, "--sdlba=60", "--slbs=0", "--blocks=128",
    )  # fmt: skip


def test_linux_uses_what_identify_offers(linux: Guest) -> None:
    """The driver takes discard and Write Zeroes from ONCS, and sizes from the namespace."""
    queue = "/sys/block/nvme0n1/queue"
    for name in ("discard_max_bytes", "write_zeroes_max_bytes"):
        assert int(said(linux, "cat", f"{queue}/{name}")) > 0
    assert int(said(linux, "cat", f"{queue}/discard_granularity")) == BLOCK


def test_blkdiscard(linux: Guest) -> None:
    put(linux, 100, b"d" * (8 * BLOCK))
    said(linux, "blkdiscard", "-o", str(102 * BLOCK), "-l", str(4 * BLOCK), DISK)
    assert get(linux, 100, 8) == b"d" * (2 * BLOCK) + bytes(4 * BLOCK) + b"d" * (2 * BLOCK)


ZERO_OUT = """
import fcntl, os, struct, sys
BLKZEROOUT = 0x127F
disk = os.open("/dev/nvme0n1", os.O_RDWR)
fcntl.ioctl(disk, BLKZEROOUT, struct.pack("QQ", int(sys.argv[1]), int(sys.argv[2])))
"""


def test_blkdiscard_z(linux: Guest) -> None:
    """What `blkdiscard -z` of util-linux asks the kernel for; busybox's has no such option."""
    put(linux, 110, b"d" * (4 * BLOCK))
    said(linux, "python3", "-c", ZERO_OUT, str(111 * BLOCK), str(2 * BLOCK))
    found = get(linux, 110, 4)
    assert [set(found[n * BLOCK : (n + 1) * BLOCK]) for n in range(4)] == [{100}, {0}, {0}, {100}]


def test_a_file_system_is_made_used_trimmed_and_checked(linux: Guest) -> None:
    script = """set -e
mkfs.ext4 -q -E discard,lazy_itable_init=0 /dev/nvme0n1
mkdir -p /mnt/disk
mount /dev/nvme0n1 /mnt/disk
dd if=/dev/urandom of=/mnt/disk/kept bs=1M count=8 2> /dev/null
dd if=/dev/urandom of=/mnt/disk/gone bs=1M count=16 2> /dev/null
md5sum /mnt/disk/kept > /tmp/sum
sync
rm /mnt/disk/gone
fstrim /mnt/disk
echo 3 > /proc/sys/vm/drop_caches
md5sum -c /tmp/sum
umount /mnt/disk
fsck.ext4 -fn /dev/nvme0n1 2>&1
"""
    done = linux.capture(["sh", "-c", script], timeout=120.0)
    assert done.code == 0, done
    assert b"kept: OK" in done.stdout
    assert "I/O error" not in said(linux, "dmesg")


def test_what_fio_writes_beside_trims_verifies(linux: Guest) -> None:
    def job(name: str, *options: str) -> list[str]:
        return [f"--name={name}", *options]

    argv = [
        "fio", f"--filename={DISK}", "--direct=1", "--ioengine=io_uring", "--output-format=json",
        *job("verified", "--rw=randwrite", "--bs=4k", "--size=2M", "--iodepth=16",
             "--verify=crc32c", "--verify_fatal=1"),
        *job("trimmed", "--rw=randtrim", "--bs=16k", "--offset=32M", "--size=2M", "--iodepth=4"),
    ]  # fmt: skip
    report: dict[str, Any] = json.loads(said(linux, *argv))
    assert [one["error"] for one in report["jobs"]] == [0, 0]
    assert report["jobs"][0]["read"]["total_ios"] == 512
