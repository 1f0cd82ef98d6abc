"""Five programs in drives and on a host that share a link, by selectivity and speed of the link."""

from collections.abc import Callable

from potash.experiment import Point
from potash.models.layers import Layers
from potash.sdk import Device
from potash.sdk.memory_namespace import Blocks, Bytes
from potash.sdk.progress import silent
from potash.sdk.transport import PendingCommand

PROGRAMS = {"aggregate": 3, "grep": 6, "scan": 7, "infer": 8, "compress": 10}
"""Device-defined programs; `compress.py` has the last."""
HOST_NS = {"aggregate": 0.1, "grep": 0.25, "scan": 0.1, "infer": 0.7, "compress": 6.0}
"""Nanoseconds in which the host is assumed to work on a byte."""
TEXT, RECORD = b"needle", 64
SLOT, MODEL = 5 << 17, 1 << 14
"""Bytes of a buffer in the drive's memory, and of the place for the network before the buffers."""
Arrivals = list[tuple[float, int]]  # when data left a drive, and how many bytes


def shape(point: Point) -> tuple[int, int]:
    """Bytes of a piece of the data, such as a picture, and number of pieces on each drive."""
    return (37 * 4096, 8) if point["work"] == "infer" else (1 << 19, 16)


def fill(point: Point) -> None:
    """Prepare: write records, of which a share is selected, or cannot be compressed."""
    (size, count), random = shape(point), point.random

    def record(chosen: bool) -> bytes:
        if point["work"] == "scan":
            return bytes([not chosen]).ljust(RECORD, b"\0")
        if point["work"] == "grep":
            return (TEXT if chosen else b"hay").rjust(RECORD - 1) + b"\n"
        return random.randbytes(RECORD) if chosen else bytes(RECORD)

    share = float(point["selectivity"])
    data = b"".join(record(random.random() < share) for _ in range(size * count // RECORD))
    (drive,) = point.drives
    drive.write(0, data)
    drive.flush()
    if point["work"] == "infer":
        drive.memory_namespace().write(0, network())


def network() -> bytes:
    """A convolution of a picture with 224x224 pixels, 15 MOP, and its 16 means."""
    layers = Layers("picture", 0, silent)
    picture = layers.input(layers.random.pictures(2, 224, 3), 1 / 64, 0)
    return layers.finish(layers.mean(layers.conv2d(picture, 16, 7, stride=4))).ljust(MODEL, b"\0")


def measured(point: Point) -> dict[str, float]:
    """The time on the host and that in the drives."""
    host = elapsed(point, on_host, HOST_NS[str(point["work"])])
    drive = elapsed(point, in_drive, 0.0)
    return {"speedup": host / drive, "host_ms": host / 1e6, "drive_ms": drive / 1e6}


def published(point: Point) -> dict[str, float]:
    """Riedel, Gibson and Faloutsos (VLDB 1998): the slowest stage decides."""
    (size, _), drive, drives = shape(point), point.drives[0], int(point["shelf"])
    blocks, began = size // drive.block_size, point.now
    drive.read(0, blocks)
    read, began = point.now - began, point.now
    drive.memory_namespace().copy(source(0), [Blocks(drive.nsid, 0, blocks)])
    copied, began = point.now - began, point.now
    sent = answer(point, start(point, drive, 0))
    host_ns, link_ns = HOST_NS[str(point["work"])], 1 / float(point["link"])
    host = max(read, drives * size * link_ns, drives * size * host_ns)
    return {"speedup": host / max(copied, point.now - began, drives * sent * link_ns)}


def elapsed(point: Point, work: Callable[[Point, Device], Arrivals], host_ns: float) -> float:
    """The time until the host has worked on what all drives have sent, each of which sends the same
    at the same times."""
    began = point.now
    link = processor = 0.0
    for at, size in sorted(work(point, point.drives[0]) * int(point["shelf"])):
        link = max(link, at) + size / float(point["link"])
        processor = max(processor, link) + size * host_ns
    point.compute(max(0.0, processor - point.now))
    return point.now - began


def on_host(point: Point, drive: Device) -> Arrivals:
    """Read everything."""
    (size, count), arrivals = shape(point), []
    blocks = size // drive.block_size
    for number in range(count):
        drive.read(number * blocks, blocks)
        arrivals.append((float(point.now), size))
    return arrivals


def in_drive(point: Point, drive: Device) -> Arrivals:
    """Copy a piece to memory while the program works on the one before; only answers leave."""
    (size, count), arrivals = shape(point), []
    blocks, memory = size // drive.block_size, drive.memory_namespace()
    running: list[PendingCommand] = []
    for number in range(count + 1):
        if number < count:
            memory.copy(source(number), [Blocks(drive.nsid, number * blocks, blocks)])
        lengths = [answer(point, one) for one in running]
        running = [start(point, drive, number)] if number < count else []
        for length in lengths:
            memory.read(source(number - 1) + 2 * SLOT, length)
            arrivals.append((float(point.now), length))
    return arrivals


def source(number: int) -> int:
    """Where a piece is in the drive's memory; its output is two buffers further on."""
    return MODEL + number % 2 * SLOT


def start(point: Point, drive: Device, number: int) -> PendingCommand:
    """Begin the program on a piece."""
    work, (size, _), nsid = str(point["work"]), shape(point), drive.memory_namespace().nsid
    ranges = [Bytes(nsid, source(number), size), Bytes(nsid, source(number) + 2 * SLOT, SLOT)]
    if work == "infer":
        ranges.insert(0, Bytes(nsid, 0, MODEL))
    text = TEXT if work == "grep" else b""
    parameters = (RECORD | size // RECORD << 32, 0) if work == "scan" else (0, 0)
    return drive.compute_namespace().submit(
        PROGRAMS[work], ranges, parameters=parameters, data=text
    )


def answer(point: Point, running: PendingCommand) -> int:
    """Wait for a program; the bytes of its output."""
    result, work = running.result().result, str(point["work"])
    return {"aggregate": 8, "scan": result * RECORD, "grep": result * RECORD}.get(work, result)
