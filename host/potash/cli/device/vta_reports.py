"""Types of the JSON reports of `potash vta`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from csd_spec.reporting import OPTIONAL, Count, Form, Positive
from potash.vta.layers import Timed
from potash_device.vta.config import ReportedConfig, ReportedCore
from potash_device.vta.timing.parameters import ReportedParameters


class Assembled(NamedTuple):
    """An assembled instruction stream."""

    output: Annotated[str, "The stream's file; - for standard output."]
    instructions: Annotated[Count, "Number of instructions."]


@dataclass(frozen=True)
class VtaInstruction:
    """An instruction of a stream."""

    index: Annotated[Count, "The instruction's number."]
    word: Annotated[str, Form(pattern="^0x[0-9a-f]{32}$"), "All 128 bits in hexadecimal."]
    text: Annotated[str, "The instruction in the syntax of `potash vta asm`."]
    remark: Annotated[str, "The module that executes it, and further notes."]


class VtaDisassembly(NamedTuple):
    """A disassembled instruction stream, which is written to --output."""

    instructions: Annotated[Sequence[VtaInstruction], "All instructions, in order."]


class Memory(NamedTuple):
    """A memory of the core."""

    id: Annotated[int, "Memory type in instructions."]
    element_shape: Annotated[Sequence[int], "Rows and columns of an element; none for a micro-op."]
    value_bits: Annotated[int, "Bits of a value in DRAM."]
    element_bytes: Annotated[int, "Size of an element in DRAM in bytes."]
    elements: Annotated[int, "Capacity in elements."]
    buffer_bytes: Annotated[
        int | None, OPTIONAL, "Size of the buffer in bytes, if it has one of its own."
    ]
    gbit_per_second: Annotated[
        float | None, OPTIONAL, "Bandwidth that keeps the core busy, in Gb/s."
    ]


class CoreInfo(NamedTuple):
    """Sizes, peak rate and bandwidths of a core."""

    core: ReportedCore
    config: ReportedConfig
    batch: Annotated[int, "Rows of an input element."]
    block_in: Annotated[int, "Input channels of an element."]
    block_out: Annotated[int, "Output channels of an element."]
    clock_hz: Annotated[float, "Clock rate in Hz."]
    operations_per_cycle: Annotated[int, "Multiplications and additions per cycle."]
    peak_gops: Annotated[float, "Peak rate in GOP/s."]
    memories: Annotated[
        Mapping[str, Memory],
        "Memories by name: UOP, WGT, INP, ACC, OUT, and ACC_8BIT (8-bit loads to ACC).",
    ]
    encoding: Annotated[
        Mapping[str, Mapping[str, tuple[int, int]]],
        "Lowest and highest bit of each field, for each kind of word.",
    ]


class Roofline(NamedTuple):
    """A roofline diagram."""

    output: Annotated[str, "The SVG file; - for standard output."]
    points: Annotated[Count, "Number of points: each layer with each number of virtual threads."]


class StreamRun(NamedTuple):
    """The result of an instruction stream."""

    output: Annotated[str, "File with the contents of DRAM afterwards; - for standard output."]
    bytes: Annotated[Count, "Size of DRAM in bytes."]
    base: Annotated[Count, "Physical address of its first byte."]
    instructions: Annotated[Count, "Number of instructions in the stream."]
    engine: Annotated[str, Form(enum=["auto", "fast", "readable"]), "The selected simulator."]
    order: Annotated[str, Form(enum=["tokens", "program"]), "The execution order."]


class ThreadsSummary(NamedTuple):
    """All layers, with a number of virtual threads."""

    virtual_threads: Annotated[Positive, "Number of virtual threads."]
    peak_utilisation: Annotated[float, "Utilisation of the best layer."]
    mean_utilisation: Annotated[float, "Mean utilisation of all layers."]
    mean_gops: Annotated[float, "Mean throughput of all layers in GOP/s."]
    paper_peak_utilisation: Annotated[
        float | None, "Peak utilisation measured in the VTA paper; null if it gives none."
    ]


class Times(NamedTuple):
    """Modelled execution times of instruction streams."""

    core: ReportedCore
    config: ReportedConfig
    parameters: ReportedParameters
    peak_gops: Annotated[float, "Peak rate in GOP/s."]
    streams: Annotated[
        Sequence[Annotated[Timed, Form(title="StreamTime")]],
        "One for each layer and number of virtual threads, or the stream of --insns.",
    ]
    threads: Annotated[
        Sequence[ThreadsSummary] | None, OPTIONAL, "A summary for each number of virtual threads."
    ]


class StreamTrace(NamedTuple):
    """A trace of an instruction stream."""

    output: Annotated[
        str, "The trace for ui.perfetto.dev, or an SVG picture; - for standard output."
    ]
    instructions: Annotated[Count, "Number of instructions in the stream."]
    cycles: Annotated[Count, "Duration in cycles."]
