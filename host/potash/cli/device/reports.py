"""Types of the JSON reports of the commands for devices, programs and examples."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from csd_spec.reporting import OPTIONAL, Amount, Count, Form, Share
from potash.cli.drive.reports import ReturnValue
from potash_firmware.snapshot import AccessGroup


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


class AccessGroups(NamedTuple):
    """Asymmetric access of a running device's controller to its namespaces."""

    groups: Annotated[Sequence[AccessGroup], "All groups with attached namespaces."]


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
    name: Annotated[str, "The function's name in C."]
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

    equal: Annotated[bool, "True if the result is the expected one, bit for bit."]
    elements: Annotated[Count, "Number of elements of each vector."]
    seconds: Annotated[float, "Duration of the whole command in seconds."]
    a: Annotated[Vector, "The first vector."]
    b: Annotated[Vector, "The second vector."]
    output: Annotated[Vector, "The sum that the drive computed."]
    expected: Annotated[Vector, "The sum by TensorFlow Lite's reference kernels."]


class ExampleRun(NamedTuple):
    """The result of any other example."""

    example: Annotated[str, "The example's name."]
    equal: Annotated[bool, "True if the result is the expected one, byte for byte."]
    input: Annotated[Count, "Number of input bytes that the program processed."]
    output: Annotated[Count, "Number of output bytes."]
    moved_without: Annotated[
        Count, "Number of bytes that a host would read to compute the same itself."
    ]
    moved_with: Annotated[
        Count, "Number of bytes transferred between host and drive, including the program."
    ]
    job_seconds: Annotated[Amount, "Seconds from start to end of the job, by the drive's clock."]
    seconds: Annotated[float, "Duration of the whole command in seconds."]
    vta_cycles: Annotated[
        Count | None,
        OPTIONAL,
        "Modelled cycles of the tensor accelerator for all inferences of the program, if it runs a "
        "model.",
    ] = None
    vta_instructions: Annotated[
        Count | None, OPTIONAL, "Number of instructions of the tensor accelerator."
    ] = None
    vta_seconds: Annotated[Amount | None, OPTIONAL, "Duration of those cycles in seconds."] = None
    accuracy: Annotated[
        Share | None, OPTIONAL, "Share of the images that were classified correctly (`digits`)."
    ] = None
    images: Annotated[Count | None, OPTIONAL, "Number of images (`digits`)."] = None
    classes: Annotated[
        Sequence[int] | None,
        OPTIONAL,
        "The classes with the highest scores, the highest first (`resnet18`).",
    ] = None
    milliseconds: Annotated[
        Sequence[Count] | None, OPTIONAL, "The times at which the word was found (`wake-word`)."
    ] = None


class ExampleEntry(NamedTuple):
    """An example."""

    name: Annotated[str, "Name of the example's directory in `examples`."]
    title: Annotated[str, "Title of the example."]
    teaches: Annotated[str, "Topic of the example."]
    demo: Annotated[bool, "True if `potash demo` runs the example."]


class Examples(NamedTuple):
    """The examples."""

    examples: Annotated[Sequence[ExampleEntry], "All examples."]


class Traced(NamedTuple):
    """A recorded trace."""

    output: Annotated[str, "The trace file; - for standard output."]
    events: Annotated[Count, "Number of events."]
    devices: Annotated[Count, "Number of recorded devices."]
    unreadable: Annotated[
        Count, "Number of lines that were skipped because a killed process had not completed them."
    ]
