"""Memory namespaces under the stock driver: what Linux finds, and plain passthrough commands."""

from __future__ import annotations

import json
import struct

from potash.vm.guest import Guest

MIB = 1 << 20
BLOCKS, MEMORY, COMPUTE = 1, 2, 3
COPY, READ, FILL, WRITE = 1, 2, 4, 5


def sh(guest: Guest, script: str, given: bytes | None = None) -> str:
    done = guest.capture(["sh", "-c", script], given)
    assert done.code == 0, (script, done)
    return done.stdout.decode()


def io(guest: Guest, nsid: int, opcode: int, fields: str, data: bytes | None = None) -> str:
    given = f"-w -i /dev/stdin -l {len(data)}" if data else ""
    return sh(
        guest, f"nvme io-passthru /dev/ng0n{nsid} -O {opcode} -n {nsid} {fields} {given} 2>&1", data
    )


def write(guest: Guest, start: int, data: bytes) -> None:
    io(guest, MEMORY, WRITE, f"--cdw10={start} --cdw12={len(data)}", data)


def read(guest: Guest, start: int, length: int) -> bytes:
    script = f"nvme io-passthru /dev/ng0n{MEMORY} -O {READ} -n {MEMORY} --cdw10={start}"
    done = guest.capture(["sh", "-c", f"{script} --cdw12={length} -r -b -l {length}"])
    assert done.code == 0, done
    return done.stdout


def test_linux_attaches_every_namespace_without_a_complaint(linux: Guest) -> None:
    script = "nvme reset /dev/nvme0; until [ $(dmesg | grep -c csi) -ge 3 ]; do usleep 10000; done"
    said = sh(linux, f"{script}; dmesg | grep nvme").splitlines()
    about = [line for line in said if "nsid" in line]
    # Linux says so at every scan.
    assert {line.split("nvme nvme0: ")[1] for line in about} == {
        f"block device for nsid {nsid} not supported (csi {csi})"
        for nsid, csi in ((2, 3), (3, 4), (4, 1))
    }
    wrong = ("error", "invalid", "unusual", "fail", "ignor", "unknown")
    assert not [line for line in said if any(word in line.lower() for word in wrong)]
    for nsid in (BLOCKS, MEMORY, COMPUTE):
        assert sh(linux, f"nvme get-ns-id /dev/ng0n{nsid}").strip().endswith(f":{nsid}")
    assert sh(linux, "ls /dev/nvme0n*").split() == ["/dev/nvme0n1"]


def test_what_nvme_cli_finds(linux: Guest) -> None:
    listed = json.loads(sh(linux, "nvme list-ns /dev/nvme0 --csi=3 -o json"))
    assert [one["nsid"] for one in listed["nsid_list"]] == [MEMORY]
    assert "Combination[0]:1b" in sh(linux, "nvme id-iocs /dev/nvme0")
    assert "csi     : 0x4" in sh(linux, f"nvme ns-descs /dev/nvme0 -n {COMPUTE}")
    said = sh(
        linux,
        f"nvme admin-passthru /dev/nvme0 -O 6 -n {MEMORY} --cdw10=5 --cdw11=0x03000000 -l 4096 -r -b"
        " | head -c 16 | od -An -tu8",
    )
    assert said.split() == [str(4 * MIB)] * 2
    log = "nvme get-log /dev/nvme0 -b"
    said = sh(linux, f"{log} -i 5 -l 4096 --csi=3 | od -An -tx4 -v -w4 -j1024 -N24")
    assert said.split() == ["00000001", "00000003", "00000001", "00000000", "00000003", "00000003"]
    said = sh(linux, f"{log} -i 0x1a -l 64 | od -An -tu4 -v -j16")
    assert said.split() == ["1", "4", *["0"] * 6, "1", "2", "3", "4"]


def test_bytes_blocks_and_back(linux: Guest) -> None:
    write(linux, 8, b"abcdefgh" * 512)
    assert read(linux, 4, 4104) == bytes(4) + b"abcdefgh" * 512 + bytes(4)
    io(linux, MEMORY, FILL, "--cdw10=12 --cdw12=4")
    assert read(linux, 8, 8) == b"abcd" + bytes(4)
    # Blocks of the drive to memory: format 2h, two blocks from LBA 3 on.
    sh(
        linux,
        "yes potash | head -c 8192 | dd of=/dev/nvme0n1 bs=4096 seek=3 oflag=direct conv=fsync",
    )
    blocks = struct.pack("<I4xQH4xH8x", BLOCKS, 3, 1, 0)
    io(linux, MEMORY, COPY, f"--cdw2=8192 --cdw10={MIB} --cdw12={2 << 8}", blocks)
    assert read(linux, MIB, 8192) == (b"potash\n" * 2000)[:8192]
    # Memory to memory: format 4h, two ranges.
    ranges = struct.pack("<I4xQI2xH8x", MEMORY, MIB, 8, 0) + struct.pack(
        "<I4xQI2xH8x", MEMORY, 8, 4, 0
    )
    io(linux, MEMORY, COPY, f"--cdw2=12 --cdw10={2 * MIB} --cdw12={4 << 8 | 1}", ranges)
    assert read(linux, 2 * MIB, 16) == b"potash\npabcd" + bytes(4)
    # Memory to blocks: Copy of the NVM command set, format 4h.
    io(
        linux,
        BLOCKS,
        0x19,
        f"--cdw10=9 --cdw12={4 << 8}",
        struct.pack("<I4xQI2xH8x", MEMORY, MIB, 4096, 0),
    )
    assert sh(linux, "dd if=/dev/nvme0n1 bs=4096 skip=9 count=1 iflag=direct | head -c 7") == (
        "potash\n"
    )


def test_a_namespace_is_made_and_deleted(linux: Guest) -> None:
    made = sh(linux, f"nvme create-ns /dev/nvme0 --csi=3 --nsze={MIB} --ncap={MIB} --flbas=0")
    assert "nsid:5" in made.replace(" ", "")
    sh(linux, "nvme attach-ns /dev/nvme0 -n 5 -c 0")
    sh(linux, "until [ -c /dev/ng0n5 ]; do usleep 10000; done")
    io(linux, 5, WRITE, "--cdw10=0 --cdw12=8", b"12345678")
    sh(linux, "nvme delete-ns /dev/nvme0 -n 5")
    listed = json.loads(sh(linux, "nvme list-ns /dev/nvme0 --all -o json"))
    assert [one["nsid"] for one in listed["nsid_list"]] == [1, 2, 3, 4]
