"""The drawings of the documentation: the components, and the messages of one job.

The pictures of `docs/vta-tutorial.md` are drawn by its own commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from potash.vta.svg import Picture

ROW = 54
INK, PALE = "#222222", "#666666"
HOST, DEVICE, FIRMWARE = "#dbe9f6", "#e5e5e5", "#fce6cf"


class Box(NamedTuple):
    """A component: a row of the picture, and the first and last of the eight columns it covers."""

    row: int
    first: int
    end: int
    colour: str
    name: str
    words: str


COMPONENTS = (
    Box(0, 0, 4, HOST, "program in the guest", "ioctl on /dev/nvme0n1, or nvme-cli"),
    Box(0, 4, 8, HOST, "program on the host", "potash.sdk with its user-space driver"),
    Box(
        1,
        0,
        4,
        HOST,
        "Linux's nvme driver, stock QEMU",
        "vfio-user client, guest memory in a memfd",
    ),
    Box(1, 4, 8, HOST, "pyvfio_user.Client", "DMA memory in sealed memfds, eventfds"),
    Box(3, 0, 8, DEVICE, "pyvfio_user", "vfio-user server: UNIX socket, shared memory"),
    Box(4, 0, 2, DEVICE, "pcie", "config space, MSI-X"),
    Box(4, 2, 6, DEVICE, "controller", "registers, doorbells, queues, DMA, interrupts"),
    Box(4, 6, 8, DEVICE, "media", "blocks, flash, sidecar"),
    Box(
        5,
        0,
        8,
        FIRMWARE,
        "rpu",
        "one dispatch table: admin, I/O, accelerator commands; logs, features",
    ),
    Box(6, 0, 8, FIRMWARE, "mailbox", "messages, and transfer slots in shared memory"),
    Box(7, 0, 2, FIRMWARE, "apu", "accelerators, jobs"),
    Box(7, 2, 4, FIRMWARE, "bpf", "machine, helpers"),
    Box(7, 4, 6, FIRMWARE, "tflite", "models, the delegate"),
    Box(7, 6, 8, FIRMWARE, "vta_runtime", "kernels, schedules"),
    Box(
        8,
        0,
        8,
        DEVICE,
        "vta",
        "fetch, load, compute, store: readable and fast (vpdpbusd) simulators, timing model",
    ),
)
BETWEEN = "vfio-user: register accesses as messages; queues and data in shared memory"

COMPUTATIONAL = (
    Box(0, 0, 3, HOST, "nvme0n1", "file system, read, write"),
    Box(0, 3, 5, HOST, "ng0n2", "Memory Read, Write, Fill"),
    Box(0, 5, 8, HOST, "ng0n3, nvme0", "Load Program, Execute, …"),
    Box(2, 0, 3, DEVICE, "NVM namespace (CSI 0)", "logical blocks, on media"),
    Box(2, 3, 5, DEVICE, "memory namespace (CSI 3)", "bytes, one memfd"),
    Box(2, 5, 8, FIRMWARE, "compute namespace (CSI 4)", "programs, memory range sets"),
    Box(4, 0, 3, FIRMWARE, "Memory Copy, Copy", "blocks to memory and back"),
    Box(4, 3, 8, FIRMWARE, "worker: one Execute", "the program sees the ranges of its command"),
)
"""Two namespaces of data and one of programs; what moves between them."""

LANES = (
    ("host program", HOST),
    ("driver", HOST),
    ("controller", DEVICE),
    ("rpu", FIRMWARE),
    ("apu", FIRMWARE),
    ("worker", FIRMWARE),
    ("vta", DEVICE),
)


class Step(NamedTuple):
    """A message from one lane to another, or what a lane does where both are the same."""

    start: int
    end: int
    words: str


JOB = (
    Step(0, 1, "ioctl: 91h, start"),
    Step(1, 2, "entry, doorbell"),
    Step(2, 3, "host-write FIFO"),
    Step(3, 3, "dispatch table: opcode to handler"),
    Step(3, 4, "Request and a slot"),
    Step(4, 4, "checks buffers, firmware, arguments"),
    Step(4, 3, "Reply"),
    Step(3, 2, "completion"),
    Step(2, 1, "MSI-X, by eventfd"),
    Step(1, 0, "the job runs"),
    Step(4, 5, "Run"),
    Step(5, 5, "native code; tflite_vta"),
    Step(5, 5, "delegate: VTA stream"),
    Step(5, 6, "INSNS, CONTROL"),
    Step(6, 6, "GEMM: vpdpbusd"),
    Step(6, 5, "OUT in shared DRAM"),
    Step(5, 4, "Returned"),
    Step(4, 3, "WriteBack, JobEnded"),
    Step(3, 1, "asynchronous event"),
    Step(0, 1, "Get Status, Read Data"),
)


def architecture() -> bytes:
    """The components in layers, as `docs/design.md` describes them."""
    width, row, left = 860, ROW, 20
    picture = Picture(width, 9 * row + 30, "The components of Potash")
    column = _boxes(picture, COMPONENTS, width, left)
    between = 15 + 2 * row + (row - 8) / 2
    picture.text(width / 2, between + 4, BETWEEN, text_anchor="middle", fill=PALE)
    for x in (left + 2 * column, left + 6 * column):
        picture.line((x, between - 30), (x, between - 12), stroke=PALE)
        picture.line((x, between + 12), (x, between + 30), stroke=PALE)
    return bytes(picture)


def computational() -> bytes:
    """Namespaces of three command sets, as `docs/computational.md` describes them."""
    width, left = 860, 20
    picture = Picture(width, 5 * ROW + 30, "Memory and compute namespaces")
    column = _boxes(picture, COMPUTATIONAL, width, left)
    for above in (1, 3):
        y = 15 + above * ROW - 8
        for x in (1.5, 4, 6.5):
            picture.line((left + x * column, y + 2), (left + x * column, y + ROW - 2), stroke=PALE)
    return bytes(picture)


def _boxes(picture: Picture, boxes: Sequence[Box], width: int, left: int) -> float:
    """Draw boxes; the width of a column."""
    column = (width - 2 * left) / 8
    for box in boxes:
        x, y = left + box.first * column, 15 + box.row * ROW
        wide = (box.end - box.first) * column - 6
        picture.add(
            "rect", x=x, y=y, width=wide, height=ROW - 8, rx=5, fill=box.colour, stroke=PALE
        )
        middle = x + wide / 2
        picture.text(middle, y + 19, box.name, text_anchor="middle", font_weight="bold", fill=INK)
        picture.text(middle, y + 36, box.words, text_anchor="middle", fill=INK)
    return column


def job() -> bytes:
    """The messages between the components during one job, from top to bottom."""
    width, top, step = 980, 60, 27
    height = top + len(JOB) * step + 20
    picture = Picture(width, height, "The messages of one job")
    lanes = [70 + at * (width - 140) / (len(LANES) - 1) for at in range(len(LANES))]
    for (name, colour), x in zip(LANES, lanes, strict=True):
        picture.line((x, top - 12), (x, height - 10), stroke="#bbbbbb", stroke_dasharray="3 3")
        picture.add("rect", x=x - 55, y=16, width=110, height=28, rx=5, fill=colour, stroke=PALE)
        picture.text(x, 34, name, text_anchor="middle", font_weight="bold", fill=INK)
    for at, (start, end, words) in enumerate(JOB):
        y = top + at * step + 12
        if start == end:
            picture.add("circle", cx=lanes[start], cy=y, r=4, fill=INK)
            before = start == len(LANES) - 1
            x = lanes[start] - 10 if before else lanes[start] + 10
            picture.text(x, y + 4, words, text_anchor="end" if before else "start", fill=INK)
            continue
        first, last = lanes[start], lanes[end]
        towards = 1 if last > first else -1
        picture.line((first, y), (last - 6 * towards, y), stroke=INK)
        tip = f"{last:.1f},{y} {last - 8 * towards:.1f},{y - 4} {last - 8 * towards:.1f},{y + 4}"
        picture.add("polygon", points=tip, fill=INK)
        picture.text((first + last) / 2, y - 4, words, text_anchor="middle", fill=INK)
    return bytes(picture)
