"""Four programs in a drive, and the same work on the host: docs/offload.md has the results.

A share of the data is selected: lines that have a text, nearest vectors, records, and for
compression pieces that repeat nothing.
"""

import struct
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

from csd_spec.descriptors import encode_arguments
from csd_spec.run_times import with_run_time
from potash.sdk import Device
from potash.sdk.memory_namespace import Blocks, Bytes

Point = Any
"""A `potash.experiment.point.Point` with attributes that `fill` adds."""
Columns = dict[str, int | str]

DECLARED = "fixed=5us,per_byte=0.125ns"
"""The run time of hardware for the work: 8 GB/s of both memory ranges, input and output."""
HOST_NS = {"grep": 0.25, "knn": 0.1, "filter": 0.1, "lz4": 1.3}
"""Nanoseconds in which the host's processor is assumed to work on a byte."""
ROOM = 1 << 14
"""Bytes that compression may add to the largest input, 4 MiB, and more."""
LINE, RECORD, DIMENSIONS, PIECE = 64, 128, 64, 64
TEXT = b"needle"
FIELD, RANGE = 20, 1 << 20
"""Where a record's field begins, and the end of its values."""


def fill(point: Point) -> None:
    """Prepare: write the data of each drive, and load the program."""
    point.query = point.random.randbytes(DIMENSIONS)
    image = point.files[f"{point['work']}.c"]
    if point["run_time"] == "declared":
        image = with_run_time(image, DECLARED)
    for drive in point.drives:
        drive.write(0, data(point["work"], point["bytes"], point["selectivity"], point.random))
        drive.flush()
        point.index = drive.compute_namespace().free_index()
        drive.compute_namespace().load(point.index, image)


def drive(point: Point) -> Columns:
    """Copy blocks to the drive's memory, execute the program there, and read its output."""
    outputs = point.each(lambda drive: execute(point, drive))
    return result(point, point["run_time"], outputs)


def execute(point: Point, drive: Device) -> bytes:
    memory, size = drive.memory_namespace(), point["bytes"]
    memory.copy(0, [Blocks(drive.nsid, 0, size // drive.block_size)])
    ranges = [Bytes(memory.nsid, 0, size), Bytes(memory.nsid, size, size + ROOM)]
    used = drive.compute_namespace().execute(
        point.index, ranges, data=encode_arguments(arguments(point))
    )
    return memory.read(size, used)


def host(point: Point) -> Columns:
    """The baseline: read all blocks, and do the work on the host."""
    blocks = point["bytes"] // point.drives[0].block_size
    read = point.each(lambda drive: drive.read(0, blocks))
    point.compute(sum(map(len, read)) * HOST_NS[point["work"]])
    found = [expected(point["work"], one, arguments(point)) for one in read]
    return result(point, "host", found)


def data(work: str, size: int, selectivity: float, source: Random) -> bytes:
    """The input, of which a share of `selectivity` is selected."""
    if work == "grep":
        chosen = (TEXT if source.random() < selectivity else b"hay" for _ in range(size // LINE))
        return b"".join(
            text.rjust(source.randrange(8, 48)).ljust(LINE - 1) + b"\n" for text in chosen
        )
    if work == "filter":
        keys = (source.randrange(RANGE) for _ in range(size // RECORD))
        return b"".join(struct.pack(f"<{FIELD}xI{RECORD - FIELD - 4}x", key) for key in keys)
    if work == "lz4":
        pieces = [source.randbytes(PIECE)]
        while len(pieces) < size // PIECE:
            new = source.random() < selectivity
            pieces.append(source.randbytes(PIECE) if new else source.choice(pieces[-500:]))
        return b"".join(pieces)
    return source.randbytes(size)


def arguments(point: Point) -> list[bytes]:
    """The program's arguments."""
    work, size, share = point["work"], point["bytes"], point["selectivity"]
    nearest = max(1, round(size // DIMENSIONS * share))
    numbers = {
        "grep": [size],
        "knn": [size // DIMENSIONS, nearest],
        "filter": [size // RECORD, FIELD, 0, round(RANGE * share) - 1],
        "lz4": [size],
    }
    texts = {"grep": [TEXT], "knn": [point.query]}.get(work, [])
    return [*(struct.pack("<I", number) for number in numbers[work]), *texts]


def expected(work: str, read: bytes, given: Sequence[bytes]) -> bytes:
    """The program's output by plain Python; for compression, the data."""
    numbers = [int.from_bytes(one, "little") for one in given]
    if work == "grep":
        found = [line + b"\n" for line in read.split(b"\n") if given[1] in line]
        return struct.pack("<Q", len(found)) + b"".join(found)
    if work == "filter":
        records = (read[at : at + RECORD] for at in range(0, len(read), RECORD))
        low, high = numbers[2:]
        return b"".join(
            one
            for one in records
            if low <= int.from_bytes(one[FIELD : FIELD + 4], "little") <= high
        )
    if work == "knn":
        keys = []
        for index in range(numbers[0]):
            vector = read[index * DIMENSIONS : (index + 1) * DIMENSIONS]
            distance = sum((a - b) ** 2 for a, b in zip(vector, given[2], strict=True))
            keys.append(distance << 32 | index)
        return struct.pack(f"<{numbers[1]}Q", *sorted(keys)[: numbers[1]])
    return read


def result(point: Point, where: str, outputs: list[bytes]) -> Columns:
    """The columns: the line in a picture, bytes of output, and an answer to compare."""
    answers: list[Any] = outputs
    if point["work"] == "knn":
        answers = [sorted(struct.unpack(f"<{len(one) // 8}Q", one)) for one in outputs]
    elif point["work"] == "lz4" and where != "host":
        answers = [decompressed(one) for one in outputs]
    return {
        "line": f"{point['work']}, {where}",
        "output": sum(map(len, outputs)),
        "answer": zlib.crc32(repr(answers).encode()),
    }


def decompressed(block: bytes) -> bytes:
    """The data of an LZ4 block."""
    out, at = bytearray(), 0

    def length(nibble: int) -> int:
        nonlocal at
        total = nibble
        while nibble == 15:
            total, at = total + block[at], at + 1
            if block[at - 1] < 255:
                break
        return total

    while at < len(block):
        token, at = block[at], at + 1
        count = length(token >> 4)
        out += block[at : at + count]
        at += count
        if at < len(block):
            offset, at = int.from_bytes(block[at : at + 2], "little"), at + 2
            for _ in range(length(token & 15) + 4):
                out.append(out[-offset])
    return bytes(out)
