"""The device-defined programs, against what plain Python computes of the same bytes."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from potash_firmware.apu import device_programs
from potash_firmware.apu.device_programs import RECORD_BYTES_AT_ONCE, Refused
from potash_firmware.apu.models import Models
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.tflite.writer import add_model
from support.checksums import crc32c_bitwise
from support.tflite import reference

MASK = (1 << 64) - 1
MODELS = Models({})
PAGE = 4096


def no_query(request: bytes | memoryview, file: memoryview, output: memoryview) -> int:
    raise AssertionError(request)


def run(
    program: DeviceProgram,
    *ranges: bytes | bytearray,
    parameters: tuple[int, int] = (0, 0),
    data: bytes = b"",
) -> tuple[int, list[bytes]]:
    """The result, and the ranges as they are then."""
    memory = [bytearray(one) for one in ranges]
    value = device_programs.run(
        program, [memoryview(one) for one in memory], parameters, data, MODELS.infer_vta, no_query
    )
    return value, [bytes(one) for one in memory]


def noise(length: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length)


def test_copy() -> None:
    source, target = noise(2 * PAGE), noise(3 * PAGE, 2)
    assert run(DeviceProgram.COPY, source, target) == (
        2 * PAGE,
        [source, source + target[2 * PAGE :]],
    )
    assert run(DeviceProgram.COPY, source, target, parameters=(5, 0)) == (
        5,
        [source, source[:5] + target[5:]],
    )


def test_fill() -> None:
    pattern, target = 0x1122_3344_5566_7788, noise(PAGE)
    repeated = struct.pack("<Q", pattern) * (PAGE // 8)
    assert run(DeviceProgram.FILL, target, parameters=(0, pattern)) == (PAGE, [repeated])
    expected = repeated[:21] + target[21:]
    assert run(DeviceProgram.FILL, target, parameters=(21, pattern)) == (21, [expected])


@pytest.mark.parametrize(("length", "seed"), [(0, 0), (9, 0), (100, 0xFFFF_FFFF)])
def test_crc32c(length: int, seed: int) -> None:
    data = b"123456789" + noise(PAGE - 9)
    counted = data[: length or len(data)]
    value, _ = run(DeviceProgram.CRC32C, data, parameters=(length, seed))
    assert value == crc32c_bitwise(counted, seed)
    if length == 9:
        assert value == 0xE306_9283  # the check value of the CRC's catalogue


@pytest.mark.parametrize("length", [0, 8, 800])
def test_sum_minimum_and_maximum(length: int) -> None:
    data = noise(PAGE)
    numbers = [number for (number,) in struct.iter_unpack("<Q", data[: length or PAGE])]
    for program, expected in (
        (DeviceProgram.SUM, sum(numbers) & MASK),
        (DeviceProgram.MINIMUM, min(numbers)),
        (DeviceProgram.MAXIMUM, max(numbers)),
    ):
        assert run(program, data, parameters=(length, 0)) == (expected, [data])


def grep(text: bytes, wanted: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if wanted in line]


@pytest.mark.parametrize(
    "text",
    [
        b"one two\nthree two two\n\nfour\ntwo",
        b"two",
        b"x" * 9000 + b"two" + b"y" * 9000 + b"\ntwo\n",
        b"twtwo\ntw\no\n" * 50,
        noise(4 * PAGE).replace(b"\x05", b"\n").replace(b"\x07", b"two"),
    ],
)
def test_grep(text: bytes) -> None:
    expected = grep(text, b"two")
    room = bytes(8 * PAGE)
    for data in (b"two", b""):
        ranges = [text + b"two not counted\n", room, b"two" + bytes(13)]
        parameters = (len(text), 0 if data else 3)
        count, after = run(DeviceProgram.GREP, *ranges, parameters=parameters, data=data)
        assert count == len(expected)
        lines = b"".join(line + b"\n" for line in expected)
        assert after[1] == lines + room[len(lines) :]


def test_grep_writes_the_lines_that_there_is_room_for() -> None:
    text = b"a1\na22\na3\nb\n"
    assert run(DeviceProgram.GREP, text, bytes(6), data=b"a") == (3, [text, b"a1\n\0\0\0"])
    assert run(DeviceProgram.GREP, text, bytes(7), data=b"a")[1][1] == b"a1\na22\n"
    assert run(DeviceProgram.GREP, text, bytes(7), data=b"nothing") == (0, [text, bytes(7)])


@pytest.mark.parametrize(("size", "place"), [(16, 4), (7, 3), (4, 0), (5000, 4990)])
def test_filter(size: int, place: int) -> None:
    count = RECORD_BYTES_AT_ONCE // size + 20  # two pieces
    data = noise(count * size)
    records = [data[at : at + size] for at in range(0, len(data), size)]
    low, high = 1 << 30, 3 << 30
    wanted = [
        one for one in records if low <= int.from_bytes(one[place : place + 4], "little") <= high
    ]
    parameters = size | place << 16 | count << 32, low | high << 32
    output = bytes(len(data))
    found, after = run(DeviceProgram.FILTER, data + b"rest", output, parameters=parameters)
    chosen = b"".join(wanted)
    assert (found, after[1]) == (len(wanted), chosen + output[len(chosen) :])
    small = bytes(2 * size + size // 2)
    found, after = run(DeviceProgram.FILTER, data, small, parameters=parameters)
    assert (found, after[1]) == (len(wanted), chosen[: 2 * size] + small[2 * size :])


def test_tflite_on_the_tensor_accelerator() -> None:
    model = add_model((1, 64), scales=(0.5, 0.25, 0.5))
    first, second = (np.frombuffer(noise(64, seed), np.int8) for seed in (1, 2))
    inputs, expected = first.tobytes() + second.tobytes(), reference(model, [first, second])
    ranges = [model + bytes(-len(model) % PAGE), inputs + bytes(PAGE), bytes(PAGE)]
    for parameters in ((0, 0), (len(model), 0)):
        length, after = run(DeviceProgram.TFLITE, *ranges, parameters=parameters)
        assert length == len(expected)
        assert after[2] == expected + bytes(PAGE - length)


Refusal = tuple[DeviceProgram, Sequence[int], tuple[int, int], str]
REFUSALS: list[Refusal] = [
    (DeviceProgram.COPY, [16], (0, 0), "2 ranges are needed"),
    (DeviceProgram.COPY, [16, 8], (0, 0), "no room for 16"),
    (DeviceProgram.COPY, [16, 32], (17, 0), "16 bytes, not 17"),
    (DeviceProgram.FILL, [], (0, 0), "1 ranges are needed"),
    (DeviceProgram.FILL, [16], (MASK, 0), "16 bytes, not"),
    (DeviceProgram.CRC32C, [16], (0, 1 << 32), "32 bits"),
    (DeviceProgram.SUM, [16], (12, 0), "whole number"),
    (DeviceProgram.MINIMUM, [16], (24, 0), "16 bytes, not 24"),
    (DeviceProgram.GREP, [16, 16], (0, 0), "3 ranges are needed"),
    (DeviceProgram.GREP, [16, 16, 16], (0, 0), "empty"),
    (DeviceProgram.GREP, [16, 16, 16], (0, 17), "range 2 has 16"),
    (DeviceProgram.FILTER, [16, 16], (0, 0), "no 32-bit field"),
    (DeviceProgram.FILTER, [16, 16], (8 | 5 << 16, 0), "no 32-bit field"),
    (DeviceProgram.FILTER, [16, 16], (8 | 3 << 32, 0), "16 bytes, not 24"),
    (DeviceProgram.TFLITE, [16, 16], (0, 0), "3 ranges are needed"),
    (DeviceProgram.QUERY, [16, 16], (0, 0), "3 ranges are needed"),
    (DeviceProgram.QUERY, [16, 16, 16], (0, 1), "the parameters of a query are 0"),
]


@pytest.mark.parametrize(("program", "sizes", "parameters", "reason"), REFUSALS)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    program: DeviceProgram, sizes: Sequence[int], parameters: tuple[int, int], reason: str
) -> None:
    memory = [bytearray(noise(size)) for size in sizes]
    before = [bytes(one) for one in memory]
    with pytest.raises(Refused, match=re.escape(reason)):
        device_programs.run(
            program,
            [memoryview(one) for one in memory],
            parameters,
            b"",
            MODELS.infer_vta,
            no_query,
        )
    assert memory == before


def test_text_with_a_newline_is_in_no_line() -> None:
    with pytest.raises(Refused, match="newline"):
        run(DeviceProgram.GREP, b"text", b"room", data=b"a\nb")


def test_sums_wrap() -> None:
    numbers = np.array([MASK, 2, 5, 0], np.uint64).tobytes()
    assert run(DeviceProgram.SUM, numbers)[0] == 6
