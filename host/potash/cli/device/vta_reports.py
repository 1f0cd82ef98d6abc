"""What `potash vta` reports as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

from potash.schema import Count, Form, Positive, Share

VtaConfig = Annotated[
    Mapping[str, int], "What the core is built as, by the keys of vta_config.json."
]
ClockParameters = Annotated[
    Mapping[str, float], "The clock's parameters by name; cycles, but for `clock`, in Hz."
]


@dataclass(frozen=True)
class Assembled:
    """A stream that was made from text."""

    output: Annotated[str, "The file that has it; - for standard output."]
    instructions: Annotated[Count, "In it."]


@dataclass(frozen=True)
class VtaInstruction:
    """An instruction of a stream."""

    index: Annotated[Count, "The instruction's number."]
    word: Annotated[str, Form(pattern="^0x[0-9a-f]{32}$"), "All its bits, in hexadecimal."]
    text: Annotated[str, "As `potash vta asm` reads it."]
    remark: Annotated[str, "Which module carries it out, and what else is worth saying."]


@dataclass(frozen=True)
class VtaDisassembly:
    """A stream as text; the output itself, which goes to --out."""

    instructions: Annotated[Sequence[VtaInstruction], "In the order of the stream."]


class Memory(TypedDict):
    """A memory of the core."""

    id: Annotated[int, "Its number in instructions."]
    element_shape: Annotated[Sequence[int], "Rows and columns of an element; none for a micro-op."]
    value_bits: Annotated[int, "Of one value in DRAM."]
    element_bytes: Annotated[int, "In DRAM."]
    elements: Annotated[int, "That it holds."]
    buffer_bytes: NotRequired[Annotated[int, "Of the buffer, where it is one."]]
    gbit_per_second: NotRequired[Annotated[float, "That keep the core busy."]]


@dataclass(frozen=True)
class CoreInfo:
    """A core's sizes, peak and bandwidths."""

    config: VtaConfig
    batch: Annotated[int, "Rows of an input element."]
    block_in: Annotated[int, "Input channels of an element."]
    block_out: Annotated[int, "Output channels of an element."]
    clock_hz: Annotated[float, "Cycles a second."]
    operations_per_cycle: Annotated[int, "Multiplications and additions."]
    peak_gops: Annotated[float, "Peak GOP/s."]
    memories: Annotated[
        Mapping[str, Memory],
        "By name: UOP, WGT, INP, ACC, OUT, and ACC_8BIT, which is a way into ACC.",
    ]
    encoding: Annotated[
        Mapping[str, Mapping[str, tuple[int, int]]],
        "For each kind of word, the lowest and the highest bit of each field.",
    ]


@dataclass(frozen=True)
class Roofline:
    """A picture that was drawn."""

    output: Annotated[str, "The SVG file; - for standard output."]
    points: Annotated[Count, "Layers and numbers of virtual threads in it."]


@dataclass(frozen=True)
class StreamRun:
    """A stream that ran."""

    output: Annotated[str, "The file that has the DRAM afterwards; - for standard output."]
    bytes: Annotated[Count, "Of DRAM."]
    base: Annotated[Count, "The physical address that it begins at."]
    instructions: Annotated[Count, "In the stream."]
    engine: Annotated[
        str, Form(enum=["auto", "fast", "readable"]), "Which simulator was asked for."
    ]
    order: Annotated[str, Form(enum=["tokens", "program"]), "In which order instructions ran."]


@dataclass(frozen=True)
class ModuleTime:
    """One of the core's modules."""

    busy: Annotated[Count, "Cycles at work."]
    work: Annotated[Mapping[str, Count], "The same by kind of work."]
    waits: Annotated[Mapping[str, Count], "Cycles that it waits, by what for."]
    done: Annotated[Count, "Cycles after its last instruction."]


class StreamTime(TypedDict):
    """A stream on the clock."""

    name: Annotated[str, "The layer, or the stream's file."]
    virtual_threads: NotRequired[
        Annotated[Positive, "One, or two of which one loads while the other computes."]
    ]
    gops: NotRequired[Annotated[float, "GOP/s of the layer."]]
    instructions: Annotated[Count, "In the stream."]
    cycles: Annotated[Count, "That it takes."]
    seconds: Annotated[float, "The same at the assumed clock."]
    gemm_gops: Annotated[float, "GOP/s of the multiplier, empty channels included."]
    utilisation: Annotated[Share, "Cycles in which the multiplier works, as a share."]
    operations_per_byte: Annotated[float, "On the busier memory channel."]
    read_bytes: Annotated[Count, "From DRAM."]
    written_bytes: Annotated[Count, "To DRAM."]
    fetch_waits: Annotated[Count, "Cycles in which the fetch of instructions stands still."]
    modules: Annotated[Mapping[str, ModuleTime], "By name: LOAD, COMPUTE, STORE."]


@dataclass(frozen=True)
class ThreadsSummary:
    """All layers, with a number of virtual threads."""

    virtual_threads: Annotated[Positive, "How many."]
    peak_utilisation: Annotated[float, "The best layer's."]
    mean_utilisation: Annotated[float, "Of all layers."]
    mean_gops: Annotated[float, "Of all layers."]
    paper_peak_utilisation: Annotated[
        float | None, "What the VTA paper measured; null where it says nothing."
    ]


class Times(TypedDict):
    """How long streams take on the modelled clock."""

    config: VtaConfig
    parameters: ClockParameters
    peak_gops: Annotated[float, "Peak GOP/s."]
    streams: Annotated[
        Sequence[StreamTime], "Each layer with each number of virtual threads, or the one stream."
    ]
    threads: NotRequired[
        Annotated[Sequence[ThreadsSummary], "A summary for each number of virtual threads."]
    ]


@dataclass(frozen=True)
class StreamTrace:
    """A stream's trace that was written."""

    output: Annotated[
        str, "The trace for ui.perfetto.dev, or an SVG picture; - for standard output."
    ]
    instructions: Annotated[Count, "In the stream."]
    cycles: Annotated[Count, "That it takes."]
