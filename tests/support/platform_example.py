"""The original platform's published example, as far as a device sees it.

Its program makes one call, `tflite_vta(imem, omem, 8, 4, 1024)`, and returns -1 when it is content;
its input is a model of 1024 bytes and the vectors below. The model here is one of ours that gives
the same outputs: with zero points 0, 0 and -17 the sum is round(3 left / 4 + right) - 17.
"""

from __future__ import annotations

import struct

from potash_firmware.tflite.writer import add_model
from support.bpf_elf import Name, elf, text

MODEL_LENGTH, INPUT_LENGTH, OUTPUT_LENGTH = 1024, 8, 4

LEFT, RIGHT = bytes.fromhex("05080203"), bytes.fromhex("02040202")

OUTPUT = bytes.fromhex("f5f9f3f3")
"""What TensorFlow Lite's reference kernels make of the published model: 5.75, 10, 3.5 and 4.25,
rounded, less 17."""

PLATFORM_OUTPUT = bytes.fromhex("f4f9f2f3")
"""The same with the rounding of the platform's last firmware."""


def model() -> bytes:
    made = add_model((1, len(LEFT)), scales=(0.375, 0.5, 0.5), zero_points=(0, 0, -17))
    return made.ljust(MODEL_LENGTH, b"\0")


def program() -> bytes:
    """Lengths built in, no arguments, and -1: the way published programs are.

    Instructions spelled out from RFC 9669: mov (b7h), call (85h) of helper 3, exit (95h). r1 and r2
    are the input and the output already.
    """

    def mov(register: int, value: int) -> bytes:
        return struct.pack("<BBhi", 0xB7, register, 0, value)

    call = struct.pack("<BBhi", 0x85, 0, 0, 3)
    leave = struct.pack("<BBhi", 0x95, 0, 0, 0)
    lengths = [mov(3, INPUT_LENGTH), mov(4, OUTPUT_LENGTH), mov(5, MODEL_LENGTH)]
    made = elf([text(*lengths, call, mov(0, -1), leave)], [Name("prog")])
    assert len(made) % 4 == 0  # the published host counts in dwords
    return made
