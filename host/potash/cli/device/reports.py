"""What the commands around a device report as JSON."""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, NotRequired, TypedDict

from potash.cli.device.vta_reports import ClockParameters, VtaConfig
from potash.cli.drive.reports import ReturnValue
from potash.schema import Amount, Count, Form, Positive, Share


class Built(NamedTuple):
    """A program that was compiled."""

    output: Annotated[str, "The object file."]
    compiler: Annotated[str, Form(enum=["clang", "ziglang"]), "The compiler."]
    cpu: Annotated[
        str, Form(enum=["v1", "v2", "v3", "v4"]), "The version of BPF's instruction set."
    ]
    entry: Annotated[
        str, "The entry function, or the number of the entry instruction if it has no name."
    ]
    functions: Annotated[Sequence[str], "Names of all functions."]
    instructions: Annotated[Count, "Number of instructions, of 8 bytes each."]
    data: Annotated[Count, "Size of the variables in bytes."]
    constants: Annotated[Count, "Size of the constants in bytes."]


class Executed(NamedTuple):
    """The result of a program that ran on this machine, without a drive."""

    output: Annotated[str | None, "The output file; null if none was requested."]
    produced: Annotated[Count, "Number of output bytes."]
    return_value: ReturnValue
    instructions: Annotated[Count, "Number of executed instructions."]
    printed: Annotated[Sequence[str], "Lines that the program printed."]


class Helper(NamedTuple):
    """A function that programs may call."""

    number: Annotated[int, Form(minimum=1, maximum=63), "The number by which programs call it."]
    name: Annotated[str, "Its name in C."]
    package: Annotated[str, "The package that provides it: `potash`, or another installed one."]


class Helpers(NamedTuple):
    """The functions that programs may call."""

    helpers: Annotated[
        Sequence[Helper], "All helpers: those of Potash, then those of other packages, by number."
    ]
    problems: Annotated[
        Sequence[str], "A sentence for each helper of another package that could not be loaded."
    ]


Vector = Sequence[Annotated[int, Form(minimum=-128, maximum=127)]]


class VectorsAdded(NamedTuple):
    """The result of the example `add`."""

    equal: Annotated[bool, "Whether the result is the expected one, bit for bit."]
    elements: Annotated[Count, "Number of elements of each vector."]
    seconds: Annotated[float, "Duration of the whole command in seconds."]
    a: Annotated[Vector, "The first vector."]
    b: Annotated[Vector, "The second vector."]
    output: Annotated[Vector, "The sum that the drive computed."]
    expected: Annotated[Vector, "The sum by TensorFlow Lite's reference kernels."]


class ExampleRun(TypedDict):
    """The result of any other example."""

    example: Annotated[str, "The example's name."]
    equal: Annotated[bool, "Whether the result is the expected one, byte for byte."]
    input: Annotated[Count, "Number of input bytes that the program processed."]
    output: Annotated[Count, "Number of output bytes."]
    moved_without: Annotated[
        Count, "Number of bytes that a host would read to compute the same itself."
    ]
    moved_with: Annotated[
        Count, "Number of bytes transferred between host and drive, including the program."
    ]
    job_seconds: Annotated[Amount, "Seconds from start to end of the job, by the drive's log."]
    seconds: Annotated[float, "Duration of the whole command in seconds."]
    vta_cycles: NotRequired[
        Annotated[
            Count,
            "Modelled cycles of the tensor accelerator for all inferences of the program, if it "
            "runs a model.",
        ]
    ]
    vta_instructions: NotRequired[
        Annotated[Count, "Number of instructions of the tensor accelerator."]
    ]
    vta_seconds: NotRequired[Annotated[Amount, "Duration of those cycles in seconds."]]
    accuracy: NotRequired[
        Annotated[Share, "Share of the images that were classified correctly (`digits`)."]
    ]
    images: NotRequired[Annotated[Count, "Number of images (`digits`)."]]
    classes: NotRequired[
        Annotated[
            Sequence[int], "The classes with the highest scores, the highest first (`resnet18`)."
        ]
    ]
    milliseconds: NotRequired[
        Annotated[Sequence[Count], "The times at which the word was found (`wake-word`)."]
    ]


class ExampleEntry(NamedTuple):
    """An example."""

    name: Annotated[str, "Name of its directory in `examples`."]
    title: Annotated[str, "A title."]
    teaches: Annotated[str, "What the example teaches."]
    demo: Annotated[bool, "Whether `potash demo` runs it."]


class Examples(NamedTuple):
    """The examples."""

    examples: Annotated[Sequence[ExampleEntry], "All examples."]


class Network(NamedTuple):
    """A network of a sweep."""

    name: Annotated[str, "The network's name."]
    layers: Annotated[
        Count, "Number of convolutions and matrix products, each counted as often as it occurs."
    ]
    shapes: Annotated[Count, "Number of different shapes among them."]
    operations: Annotated[Count, "Number of multiplications and additions, including padding."]
    left_out: Annotated[
        Mapping[str, Positive],
        "Operators that were omitted because no schedule supports them, with their number.",
    ]


class Point(NamedTuple):
    """A configuration on a network."""

    network: Annotated[str, "The network."]
    varied: Annotated[Mapping[str, float], "The varied parameters by name."]
    config: VtaConfig
    parameters: ClockParameters
    feasible: Annotated[
        bool, "Whether such a core is possible, and every layer has a schedule on it."
    ]
    reason: Annotated[str, "The reason if it is not feasible; otherwise empty."]
    sram_bytes: Annotated[
        Count | None, "Total size of all buffers in bytes; null if no such core is possible."
    ]
    multipliers: Annotated[Count | None, "Number of multipliers."]
    bus_bytes: Annotated[Count | None, "Bytes per cycle of a memory channel."]
    cycles: Annotated[
        Count | None, "Cycles of all layers, one after the other; null if it is not feasible."
    ]
    latency_seconds: Annotated[
        float | None, "Duration of these cycles in seconds, at the assumed clock rate."
    ]
    gops: Annotated[float | None, "Throughput of the network in GOP/s."]
    peak_gops: Annotated[float | None, "Peak rate of the core in GOP/s."]
    utilisation: Annotated[float | None, "`gops` as a share of `peak_gops`."]
    front: Annotated[
        bool,
        "Whether it is on the Pareto front: no other configuration is at least as good in "
        "latency and all costs, and better in one of them.",
    ]


class Swept(NamedTuple):
    """Configurations of the tensor accelerator on networks."""

    networks: Annotated[Sequence[Network], "The networks."]
    against: Annotated[
        Annotated[
            Sequence[Annotated[str, Form(enum=["sram", "multipliers", "bandwidth"])]],
            Form(minItems=1),
        ],
        "The costs that are compared with latency.",
    ]
    points: Annotated[Sequence[Point], "One for each configuration and network."]
    plot: Annotated[str | None, "The SVG file; null without --plot."]


class Traced(NamedTuple):
    """A recorded trace."""

    output: Annotated[str, "The trace file; - for standard output."]
    events: Annotated[Count, "Number of events."]
    devices: Annotated[Count, "Number of recorded devices."]
    unreadable: Annotated[
        Count, "Number of lines that were skipped because a killed process had not completed them."
    ]
