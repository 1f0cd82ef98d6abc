"""Programs of a compute namespace under the stock driver, by nvme-cli's passthrough commands
alone."""

from __future__ import annotations

import re
import struct

from potash.vm.guest import Guest
from support.compute_programs import SUM, program

PAGE = 4096
MEMORY, COMPUTE = 2, 3
"""Namespace identifiers."""
INDEX = 12


ENDLESS = program("again:\n goto again")


def nvme(guest: Guest, *argv: object, data: bytes = b"") -> tuple[int, str]:
    """The exit code of a command and what it says."""
    given = ("-w", "-i", "/dev/stdin", "-l", len(data)) if data else ()
    done = guest.capture(["nvme", *map(str, (*argv, *given))], data or None)
    return done.code, (done.stdout + done.stderr).decode()


def admin(guest: Guest, opcode: int, *cdws: int, data: bytes = b"") -> int:
    """Dword 0 of an admin command for the compute namespace."""
    words = [f"--cdw{10 + at}={word}" for at, word in enumerate(cdws)]
    argv = ("admin-passthru", "/dev/nvme0", "-O", opcode, "-n", COMPUTE, *words)
    code, said = nvme(guest, *argv, data=data)
    assert code == 0, said
    found = re.search(r"result: ?(?:0x)?([0-9a-f]+)", said)
    assert found is not None, said
    return int(found[1], 16)


def execute(guest: Guest, *fields: str, data: bytes = b"") -> tuple[int, str]:
    return nvme(guest, "io-passthru", "/dev/ng0n3", "-O", 1, "-n", COMPUTE, *fields, data=data)


def write_memory(guest: Guest, start: int, data: bytes) -> None:
    fields = (f"--cdw10={start}", f"--cdw12={len(data)}")
    code, said = nvme(guest, "io-passthru", "/dev/ng0n2", "-O", 5, "-n", MEMORY, *fields, data=data)
    assert code == 0, said


def read_memory(guest: Guest, start: int, length: int) -> bytes:
    argv = ["nvme", "io-passthru", "/dev/ng0n2", "-O", "2", "-n", "2", f"--cdw10={start}"]
    done = guest.capture([*argv, f"--cdw12={length}", "-r", "-b", "-l", str(length)])
    assert done.code == 0, done
    return done.stdout


def load(guest: Guest, image: bytes) -> None:
    admin(guest, 0x85, INDEX | 0xC0 << 16, len(image), 0, 0, len(image), 0, data=image)
    admin(guest, 0x88, INDEX | 1 << 16)


def unload(guest: Guest) -> None:
    admin(guest, 0x88, INDEX)
    admin(guest, 0x85, INDEX | 1 << 24)


def ranges(*listed: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<IIQ16x", 2, length, start) for start, length in listed)


def test_a_whole_flow(linux: Guest) -> None:
    numbers = [7919 * index for index in range(512)]
    write_memory(linux, PAGE, struct.pack("<512Q", *numbers))
    load(linux, SUM)
    rsid = admin(linux, 0x89, 0, 2, data=ranges((PAGE, PAGE), (0, PAGE)))
    code, said = execute(linux, f"--cdw2={INDEX | rsid << 16}")
    assert code == 0, said
    assert f"{sum(numbers):08x}" in said
    assert read_memory(linux, 0, 8) == struct.pack("<Q", sum(numbers))
    # Ranges in the command, without DLEN: Linux has no place for it.
    write_memory(linux, 0, bytes(8))
    inline = ranges((PAGE, PAGE), (0, PAGE))
    code, said = execute(linux, f"--cdw2={INDEX}", "--cdw3=2", data=inline)
    assert code == 0, said
    assert read_memory(linux, 0, 8) == struct.pack("<Q", sum(numbers))
    admin(linux, 0x89, 1 | rsid << 16)
    unload(linux)


def test_statuses_reach_the_host(linux: Guest) -> None:
    code, said = execute(linux, f"--cdw2={INDEX}")
    assert code != 0
    assert "18f" in said.lower(), said
    code, said = execute(linux, "--cdw2=0x50000")
    assert code != 0
    assert "18d" in said.lower(), said


def test_the_log_of_programs(linux: Guest) -> None:
    done = linux.capture(
        ["nvme", "get-log", "/dev/nvme0", "-i", "0x82", "-n", "3", "-l", "128", "--csi=4", "-b"]
    )
    assert done.code == 0, done
    assert done.stdout[64] & 7 == 6, "a device-defined program, activated"


def test_linux_aborts_a_program_that_takes_too_long(linux: Guest) -> None:
    load(linux, ENDLESS)
    fields = (f"--cdw2={INDEX}", "--timeout=500")
    code, said = execute(linux, *fields, "--cdw3=1", data=ranges((0, PAGE)))
    assert code != 0, said
    log = linux.capture(["dmesg"]).stdout.decode()
    assert re.search(r"I/O tag .* timeout, aborting", log), log[-2000:]
    assert "reset controller" not in log
    unload(linux)
    code, said = execute(linux, "--cdw2=0", "--cdw3=2", data=ranges((0, PAGE), (PAGE, PAGE)))
    assert code == 0, said
