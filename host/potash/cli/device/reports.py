"""What the commands around a device report as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

from potash.cli.device.vta_reports import ClockParameters, VtaConfig
from potash.cli.drive.reports import ReturnValue
from potash.schema import Amount, Count, Form, Positive, Share


@dataclass(frozen=True)
class Built:
    """A program that was compiled."""

    output: Annotated[str, "The object file."]
    compiler: Annotated[str, Form(enum=["clang", "ziglang"]), "What compiled it."]
    cpu: Annotated[
        str, Form(enum=["v1", "v2", "v3", "v4"]), "The version of BPF's instruction set."
    ]
    entry: Annotated[
        str, "The function that it begins with, or the instruction's number where it has no name."
    ]
    functions: Annotated[Sequence[str], "All functions' names."]
    instructions: Annotated[Count, "How many it has, of 8 bytes."]
    data: Annotated[Count, "Bytes of variables."]
    constants: Annotated[Count, "Bytes of constants."]


@dataclass(frozen=True)
class Function:
    """A function of a program."""

    name: Annotated[str, "The function's name."]
    start: Annotated[Count, "Its first instruction's number."]


@dataclass(frozen=True)
class SourceLine:
    """The source line that it comes from; null where the one before goes on, or none is known."""

    file: Annotated[str, "The source file."]
    number: Annotated[Count, "The line."]
    column: Annotated[Count, "The column; 0 where it is not known."]
    text: Annotated[str, "What stands there."]


@dataclass(frozen=True)
class Instruction:
    """An instruction of a program."""

    pc: Annotated[Count, "The instruction's number."]
    code: Annotated[str, Form(pattern="^[0-9a-f]+$"), "Its bytes in hexadecimal."]
    text: Annotated[str, "In LLVM's notation."]
    function: Annotated[str | None, "The function that begins here."]
    label: Annotated[str | None, "What jumps to here call it."]
    source: SourceLine | None


@dataclass(frozen=True)
class Disassembly:
    """A program, instruction by instruction."""

    entry: Annotated[Count, "The number of the instruction that it begins with."]
    data: Annotated[Count, "Bytes of variables."]
    constants: Annotated[Count, "Bytes of constants."]
    functions: Annotated[Sequence[Function], "In the order in which they lie."]
    instructions: Annotated[Sequence[Instruction], "All of them."]


@dataclass(frozen=True)
class Executed:
    """A program that ran here, without a drive."""

    output: Annotated[str | None, "The file that has the output; null where none was asked for."]
    produced: Annotated[Count, "Bytes of output."]
    return_value: ReturnValue
    instructions: Annotated[Count, "How many were carried out."]
    printed: Annotated[Sequence[str], "Lines that it printed."]


@dataclass(frozen=True)
class Helper:
    """A function that programs may call."""

    number: Annotated[int, Form(minimum=1, maximum=63), "What a program calls it by."]
    name: Annotated[str, "What C calls it by."]
    package: Annotated[
        str, "Where it comes from: `potash`, or a package that is installed beside it."
    ]


@dataclass(frozen=True)
class Helpers:
    """The functions that programs may call."""

    helpers: Annotated[Sequence[Helper], "Potash's own, then those of other packages, by number."]
    problems: Annotated[
        Sequence[str], "Why helpers of other packages were left out, a sentence each."
    ]


Vector = Sequence[Annotated[int, Form(minimum=-128, maximum=127)]]


@dataclass(frozen=True)
class VectorsAdded:
    """What the example `add` did."""

    equal: Annotated[bool, "Whether the result is the expected one, bit for bit."]
    elements: Annotated[Count, "Of each vector."]
    seconds: Annotated[float, "From nothing to the result."]
    a: Annotated[Vector, "The first vector."]
    b: Annotated[Vector, "The second one."]
    output: Annotated[Vector, "What the drive made of them."]
    expected: Annotated[Vector, "What TensorFlow Lite's reference kernels make of them."]


class ExampleRun(TypedDict):
    """What another example did."""

    example: Annotated[str, "Its name."]
    equal: Annotated[bool, "Whether the result is the expected one, byte for byte."]
    input: Annotated[Count, "Bytes that the program looked at."]
    output: Annotated[Count, "Bytes that it found."]
    moved_without: Annotated[Count, "Bytes that a host would have to read without the device."]
    moved_with: Annotated[Count, "Bytes between host and drive with it, the program included."]
    job_seconds: Annotated[Amount, "From the job's start to its end by the drive's log."]
    seconds: Annotated[float, "From nothing to the result."]
    vta_cycles: NotRequired[
        Annotated[
            Count,
            "Cycles that the tensor accelerator takes for all of the program's inferences by its "
            "modelled clock, where it runs a model.",
        ]
    ]
    vta_instructions: NotRequired[
        Annotated[Count, "Instructions of the tensor accelerator in them."]
    ]
    vta_seconds: NotRequired[Annotated[Amount, "The time of those cycles."]]
    accuracy: NotRequired[
        Annotated[Share, "The share of the images that were taken for what they show, of `digits`."]
    ]
    images: NotRequired[Annotated[Count, "How many images there were, of `digits`."]]
    classes: NotRequired[
        Annotated[
            Sequence[int], "The classes with the highest scores, the highest first, of `resnet18`."
        ]
    ]


@dataclass(frozen=True)
class ExampleEntry:
    """An example."""

    name: Annotated[str, "Its folder below `examples`."]
    title: Annotated[str, "What it does."]
    teaches: Annotated[str, "What one learns of it."]
    demo: Annotated[bool, "Whether `potash demo` runs it."]


@dataclass(frozen=True)
class Examples:
    """The examples."""

    examples: Annotated[Sequence[ExampleEntry], "Every example that comes with Potash."]


@dataclass(frozen=True)
class Namespace:
    """A namespace of the drive."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    size: Annotated[Count, "Bytes."]
    block_size: Annotated[int, Form(enum=[512, 4096]), "Bytes of a block."]
    read_only: Annotated[bool, "Whether it cannot be written to."]


@dataclass(frozen=True)
class Serving:
    """A device that listens; printed as soon as it does."""

    socket: Annotated[str, "Where it listens: a UNIX socket's absolute path."]
    media: Annotated[str | None, "The folder or file that the drive is kept in; null in memory."]
    size: Annotated[Count, "Bytes of all namespaces."]
    capacity: Annotated[Count, "Bytes that namespaces may have together."]
    namespaces: Annotated[Sequence[Namespace], "Those that are there."]
    qemu_device: Annotated[str, "The value of QEMU's -device option that plugs the drive in."]
    metrics: Annotated[
        str | None, "Where Prometheus finds the device's numbers: a URL; null without --metrics."
    ]


@dataclass(frozen=True)
class Network:
    """A network of a sweep."""

    name: Annotated[str, "The network."]
    layers: Annotated[
        Count, "Convolutions and matrix products that were timed, each as often as it occurs."
    ]
    shapes: Annotated[Count, "Different ones among them."]
    operations: Annotated[Count, "Multiplications and additions, padding included."]
    left_out: Annotated[
        Mapping[str, Positive],
        "Operators that the accelerator's schedules are not for, and how many there are.",
    ]


@dataclass(frozen=True)
class Point:
    """A configuration on a network."""

    network: Annotated[str, "The network."]
    varied: Annotated[Mapping[str, float], "What was varied, by name."]
    config: VtaConfig
    parameters: ClockParameters
    feasible: Annotated[bool, "Whether there is such a core, and a schedule on it for every layer."]
    reason: Annotated[str, "Why not; empty where there is."]
    sram_bytes: Annotated[Count | None, "Of all buffers; null where there is no such core."]
    multipliers: Annotated[Count | None, "At work in a cycle."]
    bus_bytes: Annotated[Count | None, "That a memory channel moves in a cycle."]
    cycles: Annotated[
        Count | None, "Of all layers, one after the other; null where it is not feasible."
    ]
    latency_seconds: Annotated[float | None, "The same at the assumed clock."]
    gops: Annotated[float | None, "GOP/s of the network."]
    peak_gops: Annotated[float | None, "Of the core."]
    utilisation: Annotated[float | None, "`gops` as a share of `peak_gops`."]
    front: Annotated[
        bool,
        "Whether no other configuration is at least as good in everything and better in something.",
    ]


@dataclass(frozen=True)
class Swept:
    """Configurations of the tensor accelerator on networks."""

    networks: Annotated[Sequence[Network], "What they were tried on."]
    against: Annotated[
        Annotated[
            Sequence[Annotated[str, Form(enum=["sram", "multipliers", "bandwidth"])]],
            Form(minItems=1),
        ],
        "What a configuration costs; the front is of latency and of these.",
    ]
    points: Annotated[Sequence[Point], "A configuration on a network."]
    plot: Annotated[str | None, "The picture that was drawn; null without --plot."]


@dataclass(frozen=True)
class Traced:
    """A trace that was written."""

    output: Annotated[str, "Where; - for standard output."]
    events: Annotated[Count, "In the trace."]
    devices: Annotated[Count, "That have run."]
    unreadable: Annotated[
        Count, "Lines that were left out, as a process that was killed had not written all of them."
    ]
