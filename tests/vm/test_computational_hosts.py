"""The command line and a host in C on memory and compute namespaces, under the stock driver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.programs.examples import Example, examples_folder
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages

SOURCE = examples_folder() / "c" / "execute.c"
LIMIT = 120


@pytest.fixture(scope="module")
def linux(images: GuestImages) -> Iterator[Guest]:
    options = ("--size", "64M", "--memory-namespace", "4M", "--compute-namespace")
    with serving(*options) as socket, Guest(images, socket, namespaces=3) as guest:
        yield guest


def shell(guest: Guest, script: str) -> str:
    done = guest.capture(["sh", "-ec", script], timeout=LIMIT)
    assert done.code == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_host_in_c_runs_a_program(linux: Guest, tmp_path: Path) -> None:
    example = Example.load("add")
    # Zig links against a list of glibc's symbols; all of musl, it would compile first, in 45 s.
    build = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu"]
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-o", str(tmp_path / "execute"), str(SOURCE)]
    subprocess.run([*build, *flags], check=True, timeout=LIMIT)
    (tmp_path / "program.o").write_bytes(example.program)
    (tmp_path / "input").write_bytes(example.input)
    linux.copy_in(tmp_path, "/tmp/c")
    first, second = (int.from_bytes(one, "little") for one in example.arguments)
    said = shell(
        linux,
        "cd /tmp/c; ./execute /dev/nvme0 /dev/ng0n2 /dev/ng0n3 program.o input output"
        f" {len(example.expected)} {second << 32 | first}",
    )
    assert said == "returned 0\n"
    linux.copy_out("/tmp/c/output", tmp_path / "output")
    assert (tmp_path / "output").read_bytes() == example.expected


def test_the_command_line_copies_a_file_and_runs_a_program_on_it(
    linux: Guest, tmp_path: Path
) -> None:
    """A file of a file system on the drive: its bytes do not come to the host before it runs."""
    example = Example.load("add")
    (tmp_path / "program.o").write_bytes(example.program)
    (tmp_path / "input").write_bytes(example.input)
    linux.copy_in(tmp_path, "/tmp/cli")
    first, second = (int.from_bytes(one, "little") for one in example.arguments)
    said = shell(
        linux,
        f"""
        mkfs.ext4 -q /dev/nvme0n1; mkdir -p /mnt; mount /dev/nvme0n1 /mnt
        cp /tmp/cli/input /mnt/input
        potash slm copy /dev/nvme0n1 --file /mnt/input --start 64K --json
        umount /mnt
        potash cp load /dev/nvme0 /tmp/cli/program.o --index 12 --identifier 0x77
        set=$(potash cp ranges create /dev/ng0n3 64K:4K 128K:4K)
        potash cp execute /dev/nvme0n1 --index 12 --ranges $set --param {second << 32 | first} --json
        potash slm read /dev/ng0n2 /tmp/cli/output --start 128K --length {len(example.expected)}
        potash cp list /dev/nvme0 --json
        """,
    )
    copied, executed, listed = map(json.loads, said.splitlines())
    assert copied == {"nsid": 2, "start": 65536, "length": len(example.input)}
    assert executed == {"nsid": 3, "index": 12, "return_value": 0}
    (loaded,) = [one for one in listed["programs"] if not one["built_in"]]
    assert loaded == {
        "index": 12, "built_in": False, "active": True, "type": 0xC0, "identifier": 0x77
    }  # fmt: skip
    linux.copy_out("/tmp/cli/output", tmp_path / "output")
    assert (tmp_path / "output").read_bytes() == example.expected
