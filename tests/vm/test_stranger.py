"""A host program that was not written for Potash gets its result from the drive."""

from __future__ import annotations

import struct
from pathlib import Path

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.bpf_elf import Name, elf, text

ADD = Path(__file__).parents[2] / "examples" / "add"
STRANGER = Path(__file__).with_name("stranger.py")
ELEMENTS = 1024


def published_program(input_length: int, output_length: int, model_length: int) -> bytes:
    """A program as the published one is: lengths built in, no arguments, and -1 when all is well.

    Instructions spelled out from RFC 9669: mov (b7h), call (85h) of helper 3, exit (95h).
    """

    def mov(register: int, value: int) -> bytes:
        return struct.pack("<BBhi", 0xB7, register, 0, value)

    call = struct.pack("<BBhi", 0x85, 0, 0, 3)
    leave = struct.pack("<BBhi", 0x95, 0, 0, 0)
    lengths = [mov(3, input_length), mov(4, output_length), mov(5, model_length)]
    return elf([text(*lengths, call, mov(0, -1), leave)], [Name("prog")])


def test_the_published_host_s_ioctls_give_the_right_output(
    images: GuestImages, tmp_path: Path
) -> None:
    data = (ADD / "input.bin").read_bytes()
    program = published_program(len(data), ELEMENTS, len(data) - 2 * ELEMENTS)
    assert len(program) % 4 == 0  # it counts in dwords
    (tmp_path / "program.o").write_bytes(program)
    # Smaller than what the host asks for, so the device clamps the range to the drive's end.
    with serving("--size", "8M", "--profile", "alkali") as socket, Guest(images, socket) as guest:
        guest.copy_in(STRANGER, "/share/stranger.py")
        guest.copy_in(tmp_path / "program.o", "/share/program.o")
        guest.copy_in(ADD / "input.bin", "/share/input.bin")
        files = ["/share/program.o", "/share/input.bin", "/tmp/output"]
        done = guest.capture(["python3", "/share/stranger.py", "/dev/nvme0n1", *files])
        assert done.code == 0, done
        said = done.stdout.split()
        assert said[0] == b"WDC0" and said[2] == b"0"
        output = guest.capture(["cat", "/tmp/output"]).stdout
        assert output[:ELEMENTS] == (ADD / "expected.bin").read_bytes()
        assert output[ELEMENTS:] == bytes(4096 - ELEMENTS)
        assert done.stderr == b""
