"""A key value namespace under the stock driver: nvme-cli, a host in C, and the command line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from potash.vm.guest import Guest
from support.docs import blocks
from support.vm import built, shell

KV = "/dev/ng0n4"
STORE, RETRIEVE, LIST, DELETE, EXIST = 1, 2, 6, 0x10, 0x14
ABSENT = "0x4087"
"""The status with Do Not Retry, as nvme-cli has it."""


def passthrough(opcode: int, key: bytes, size: int = 0, options: str = "") -> str:
    """nvme-cli's command line of a command."""
    words = struct.unpack("<4I", key.ljust(16, b"\0"))
    dwords = dict(zip((2, 3, 14, 15), words, strict=True)) | {10: size, 11: len(key)}
    fields = " ".join(f"--cdw{at}={value}" for at, value in dwords.items())
    return f"nvme io-passthru {KV} -O {opcode} -n 4 {fields} {options}"


def test_nvme_cli_stores_lists_and_retrieves(linux: Guest) -> None:
    assert shell(linux, f"nvme get-ns-id {KV}").strip().endswith(":4")
    listed = json.loads(shell(linux, "nvme list-ns /dev/nvme0 --csi=1 -o json"))
    assert [one["nsid"] for one in listed["nsid_list"]] == [4]
    key = b"sixteen letters!"
    shell(linux, f"echo -n 0123456789 | {passthrough(STORE, key, 10, '-w -i /dev/stdin -l 10')}")
    assert shell(linux, f"{passthrough(RETRIEVE, key, 4, '-r -b -l 4')}") == "0123"
    said = shell(linux, f"{passthrough(RETRIEVE, key, 4, '-r -l 4')} 2>&1")
    assert "0x0000000a" in said
    keys = shell(linux, f"{passthrough(LIST, b'', 24, '-r -b -l 24')} | od -An -v -tx1 -w24")
    assert bytes.fromhex(keys) == struct.pack("<IH", 1, 16) + key + bytes(2)
    shell(linux, passthrough(EXIST, key))
    shell(linux, passthrough(DELETE, key))
    failed = shell(linux, f"{passthrough(EXIST, key)} 2>&1 || echo failed with $?")
    assert "failed with" in failed and ABSENT in failed


def test_the_program_in_c_of_the_page(linux: Guest, tmp_path: Path) -> None:
    built("kv", tmp_path)
    linux.copy_in(tmp_path, "/tmp/kv")
    script = blocks("kv.md", "sh")[2].partition("\n")[2].replace("ng0n2", "ng0n4")
    assert shell(linux, f"cd /tmp/kv\n{script}") == "hello\ngreeting\n"
    many = "for n in $(seq 100 150); do ./kv /dev/ng0n4 put key-$n < /dev/null; done"
    listed = shell(linux, f"cd /tmp/kv; {many}; ./kv /dev/ng0n4 list key-11")
    assert listed.split() == [f"key-{number}" for number in range(110, 151)]
    assert shell(linux, "cd /tmp/kv; ./kv /dev/ng0n4 get absent || echo $?") == "1\n"
    rates = shell(linux, "cd /tmp/kv; ./kv /dev/ng0n4 bench 100 8 | cut -d: -f1")
    assert rates.split() == ["store", "retrieve", "delete"]
    assert shell(linux, "cd /tmp/kv; ./kv /dev/ng0n4 get b99 || echo $?") == "1\n"


def test_the_command_line_in_a_guest(linux: Guest) -> None:
    shell(linux, f"head -c 200000 /dev/zero | tr '\\0' x | potash kv put {KV} long -")
    assert shell(linux, f"potash kv get {KV} long - | tr -d x | wc -c").strip() == "0"
    assert shell(linux, f"potash kv get {KV} long - | wc -c").strip() == "200000"
    shell(linux, f"potash kv delete {KV} long")
