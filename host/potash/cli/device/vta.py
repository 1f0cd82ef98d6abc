"""`potash vta`: the tensor accelerator by itself, without a drive around it."""

from pathlib import Path

import click

from potash.cli.device import vta_options
from potash.cli.device import vta_reports as reports
from potash.cli.device.vta_clock import roofline, time, trace
from potash.cli.drive.common import as_json, json_option, output_option, positive, say
from potash.cli.progress import showing
from potash.files import STREAM, read_whole, replacing, write_whole
from potash.schema import encode
from potash.sdk.errors import PotashError, restated
from potash.tables import columns
from potash.units import Parsed, human
from potash_device.vta import assembly, figures
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.encoding import INSTRUCTION_BYTES, Field
from potash_device.vta.engines import DEFAULT_ENGINE, ENGINES
from potash_device.vta.simulator import STEP_LIMIT
from potash_device.vta.stream import Order, StreamError


@click.group()
def vta() -> None:
    """Use the tensor accelerator without a drive."""


for command in (time, roofline, trace):
    vta.add_command(command)


@vta.command()
@vta_options.insns_option
@click.option(
    "--dram", required=True, type=vta_options.readable_file, help="File with the contents of DRAM."
)
@output_option("File for the contents of DRAM afterwards; may be the same file.", required=True)
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default=DEFAULT_ENGINE,
    help="Engine that executes the stream; all give the same result.",
)
@vta_options.base_option
@vta_options.vta_config_option
@click.option(
    "--order",
    type=click.Choice([order.value for order in Order]),
    default=Order.TOKENS.value,
    help="Execution order: by tokens, or program order without tokens.",
)
@click.option(
    "--step-limit",
    type=click.IntRange(0),
    default=STEP_LIMIT,
    help="Maximum number of micro-ops that a stream may execute.",
)
@json_option(reports.StreamRun)
def run(
    insns: Path,
    dram: Path,
    output: Path,
    engine: str,
    base: int,
    config: Config,
    order: str,
    step_limit: int,
) -> None:
    """Run an instruction stream on an image of DRAM.

    The stream is not part of the image. A stream that cannot be executed is refused with the number
    of the instruction, from 0, and the reason; nothing is written then.
    """
    if insns == dram == STREAM:
        raise click.UsageError("--insns and --dram cannot both be standard input")
    with showing(steps=True) as progress:
        stream, image = vta_options.read_stream(insns, progress), read_whole(dram, progress)
        if not image:
            raise PotashError(f"{dram} is empty; DRAM has at least one byte")
        with replacing(output) as file:
            core = Core(
                config,
                memoryview(image),
                base,
                step_limit=step_limit,
                engine=engine,
                order=Order(order),
            )
            with restated(StreamError, insns):
                core.execute(stream)
            write_whole(file, image, output, progress)
    count = len(stream) // INSTRUCTION_BYTES
    line = f"{count} instructions ran on {len(image)} bytes of DRAM, which are in {output}"
    report = reports.StreamRun(str(output), len(image), base, count, engine, order)
    say(report, [line], aside=output == STREAM)


@vta.command()
@click.argument("insns", type=vta_options.readable_file)
@output_option("File for the text (- for standard output).", default=STREAM)
@click.option(
    "--dram",
    type=vta_options.readable_file,
    help="Also show the micro-ops that it loads from this image of DRAM.",
)
@vta_options.base_option
@vta_options.vta_config_option
@json_option(reports.VtaDisassembly)
def disasm(insns: Path, output: Path, dram: Path | None, base: int, config: Config) -> None:
    """Show an instruction stream as text.

    `potash vta asm` reads the text. A line has the fields that are not zero. A comment gives the
    module that executes the instruction, and the addresses in DRAM; or the reason why no core
    executes it.
    """
    with showing(steps=True) as progress:
        stream = vta_options.read_stream(insns, progress)
        image = None if dram is None else memoryview(read_whole(dram, progress))
    with replacing(output) as file:
        if as_json():
            # The bits as text: they may be more than a double holds.
            described = [
                reports.VtaInstruction(
                    index,
                    f"{word:#034x}",
                    assembly.disassemble(word, config),
                    assembly.remark(word, config),
                )
                for index, word in enumerate(assembly.words(stream))
            ]
            file.write(encode(reports.VtaDisassembly(described)).encode() + b"\n")
        else:
            for line in assembly.listing(stream, config, dram=image, base=base):
                file.write(f"{line}\n".encode())


@vta.command()
@click.argument("text", type=vta_options.readable_file)
@vta_options.output_option
@vta_options.vta_config_option
@json_option(reports.Assembled)
def asm(text: Path, output: Path, config: Config) -> None:
    """Assemble the text of an instruction stream.

    The text has the form that `potash vta disasm` shows.
    """
    with showing(steps=True) as progress:
        read = read_whole(text, progress)
    try:
        stream = assembly.assemble(read.decode().splitlines(), config)
    except UnicodeDecodeError:
        raise PotashError(
            f"{text} is not text; for a binary stream, use `potash vta disasm`"
        ) from None
    except assembly.AssemblyError as error:
        raise PotashError(f"{text}: {error}") from None
    with replacing(output) as file:
        file.write(stream)
    count = len(stream) // INSTRUCTION_BYTES
    lines = [] if output == STREAM else [f"{count} instructions are in {output}"]
    say(reports.Assembled(str(output), count), lines, aside=output == STREAM)


@vta.command()
@vta_options.vta_config_option
@click.option(
    "--clock",
    type=Parsed("MHZ", lambda text: positive(text, "megahertz")),
    default=figures.CLOCK / vta_options.MEGA,
    help="Clock rate in MHz.",
)
@click.option(
    "--encoding", is_flag=True, help="Also show the positions of all fields of instructions."
)
@json_option(reports.CoreInfo)
def info(config: Config, clock: float, encoding: bool) -> None:
    """Show the properties of a core: sizes, peak rate and bandwidths.

    The bandwidth of a buffer is the one that keeps the core busy: one element per cycle.
    Accumulators are written as fast as they are read.
    """
    clock *= vta_options.MEGA
    report = reports.CoreInfo(
        core=config.name,
        config=config.to_mapping(),
        batch=config.batch,
        block_in=config.block_in,
        block_out=config.block_out,
        clock_hz=clock,
        operations_per_cycle=figures.operations_per_cycle(config),
        peak_gops=figures.peak_throughput(config, clock) / vta_options.GIGA,
        memories={memory.name: _memory(config, memory, clock) for memory in MemoryId},
        encoding={
            layout.kind: {field.name: (field.low, field.high) for field in layout.fields}
            for layout in config.layouts
        },
    )
    say(report, [*_shown(report), *(_shown_encoding(config) if encoding else ())])


def _memory(config: Config, memory: MemoryId, clock: float) -> reports.Memory:
    elements, size = config.depth(memory), config.element_bytes(memory)
    buffer = memory in figures.BUFFERS
    return reports.Memory(
        id=int(memory),
        element_shape=config.element_shape(memory),
        value_bits=config.value_bits(memory),
        element_bytes=size,
        elements=elements,
        buffer_bytes=elements * size if buffer else None,
        gbit_per_second=figures.bandwidth(config, memory, clock) / vta_options.GIGA
        if buffer
        else None,
    )


def _shown(core: reports.CoreInfo) -> list[str]:
    rows = [("memory", "element", "bits", "bytes", "elements", "buffer", "Gb/s")]
    rows += [
        (
            memory.name,
            "x".join(map(str, one.element_shape)) or "micro-op",
            str(one.value_bits),
            str(one.element_bytes),
            str(one.elements),
            human(one.buffer_bytes or 0),
            f"{one.gbit_per_second or 0:.1f}",
        )
        for memory in figures.BUFFERS
        if (one := core.memories[memory.name])
    ]
    line = (
        f"{core.core}: "
        * (core.core is not None)
        + f"{core.batch}x{core.block_in} times {core.block_in}x{core.block_out}: "
        f"{core.operations_per_cycle} operations a cycle, "
        f"{core.peak_gops:.1f} GOP/s at {core.clock_hz / vta_options.MEGA:g} MHz"
    )
    return [line, "", *columns(rows)]


def _shown_encoding(config: Config) -> list[str]:
    lines = []
    for layout in config.layouts:
        lines += ["", layout.kind.replace("_", "-")]
        lines += columns([(f"  {field.name}", _place(field)) for field in layout.fields])
    return lines


def _place(field: Field) -> str:
    if field.width == 0:
        return "-"
    return str(field.low) if field.width == 1 else f"{field.low}-{field.high}"
