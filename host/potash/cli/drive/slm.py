"""`potash slm`: the bytes of a drive's memory namespaces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.opcodes import PAGE_SIZE
from csd_spec.reporting import Count, Form
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MEMORY_GRANULARITY
from potash.cli.drive import common
from potash.cli.drive.common import BLOCKS, BYTES, NamedRange
from potash.cli.progress import showing
from potash.sdk import Device
from potash.sdk.memory_namespace import Blocks, Bytes, MemoryNamespace, PeerBytes, Source
from potash.units import Size, human


class Memories(NamedTuple):
    """The memory namespaces of a drive."""

    namespaces: Annotated[
        Sequence[
            Annotated[MemoryNamespace, Form(title="Memory", description="A memory namespace.")]
        ],
        "All memory namespaces by ascending identifier.",
    ]


class Moved(NamedTuple):
    """Data transferred to or from a memory namespace."""

    nsid: Annotated[Count, "The namespace's identifier."]
    start: Annotated[Count, "Offset of the first byte in the namespace."]
    length: Annotated[Count, "Number of bytes."]


memory_option = common.namespace_option("the memory")
start_option = click.option(
    "--offset", "start", type=Size(0), default=0, help="Offset of the first byte in the namespace."
)
length_option = click.option(
    "--data-len", "length", type=Size(0), required=True, help="Number of bytes."
)
_memory = common.opening(Device.memory_namespace)


@click.group()
def slm() -> None:
    """Read, write, fill and copy to a drive's memory namespaces (Subsystem Local Memory).

    DEVICE is /dev/nvme0n1 or /dev/nvme0, vfio-user:SOCKET or the socket's path. Offsets and
    lengths are multiples of 4. Memory is cleared when a host disconnects, and over vfio-user each
    command is a separate host: use "potash acc shell" for several commands.
    """


@slm.command(name="list")
@click.argument("device")
@common.json_option(Memories)
def list_(device: str) -> None:
    """Show the memory namespaces and their sizes."""
    with common.opened(device) as one:
        one.memory_namespace()  # which says what to do where there is none
        found = [one.memory_namespace(nsid) for nsid in one.active_namespaces(CommandSet.MEMORY)]
        lines = [f"namespace {item.nsid}: {human(item.size)}" for item in found]
        common.say(Memories(found), lines)


@slm.command()
@click.argument("device")
@common.output_file
@memory_option
@start_option
@length_option
def read(device: str, output: Path, nsid: int | None, start: int, length: int) -> None:
    """Read bytes of a memory namespace into a file.

    OUTPUT is the file (- for standard output).
    """
    with _memory(device, nsid) as memory, showing() as progress:
        data = memory.read(start, length, progress=progress)
    common.write_output(output, data)


@slm.command()
@click.argument("device")
@common.input_file
@memory_option
@start_option
@common.json_option(Moved)
def write(device: str, input: Path, nsid: int | None, start: int) -> None:
    """Write a file to a memory namespace.

    INPUT is the file (- for standard input). It is padded with zeroes to a multiple of 4 bytes.
    """
    data = common.read_input(input)
    data += bytes(-len(data) % MEMORY_GRANULARITY)
    with _memory(device, nsid) as memory, showing() as progress:
        memory.write(start, data, progress=progress)
        _say_moved(memory, start, len(data), "written")


@slm.command()
@click.argument("device")
@memory_option
@start_option
@length_option
@common.json_option(Moved)
def fill(device: str, nsid: int | None, start: int, length: int) -> None:
    """Fill bytes of a memory namespace with zeroes."""
    with _memory(device, nsid) as memory:
        memory.fill(start, length)
        _say_moved(memory, start, length, "filled")


@slm.command()
@click.argument("device")
@memory_option
@start_option
@click.option("--blocks", type=BLOCKS, multiple=True, help="Logical blocks; may be repeated.")
@click.option(
    "--memory", type=BYTES, multiple=True, help="Bytes of a memory namespace; may be repeated."
)
@click.option(
    "--peer",
    "peers",
    type=common.PEER_BYTES,
    multiple=True,
    help="Memory in the BAR of another drive of the guest; may be repeated.",
)
@click.option(
    "--file",
    "files",
    type=common.FILE,
    multiple=True,
    help="A file on a file system of the drive (in a guest); may be repeated.",
)
@common.json_option(Moved)
def copy(
    device: str,
    nsid: int | None,
    start: int,
    blocks: Sequence[NamedRange],
    memory: Sequence[NamedRange],
    peers: Sequence[tuple[int, int]],
    files: Sequence[Path],
) -> None:
    """Copy blocks, files or memory to a memory namespace.

    The data stay within the drives. The copies follow each other: blocks, then memory, then memory
    of other drives, then files. Each file begins at a multiple of 4096 bytes.
    """
    if not (blocks or memory or peers or files):
        raise click.UsageError("give a source: --blocks, --memory, --peer or --file")
    with _memory(device, nsid) as to, showing() as progress:
        own = to.device.nsid if blocks else 0
        sources: list[Source] = [
            *(Blocks(one or own, lba, count) for one, lba, count in blocks),
            *(Bytes(one or to.nsid, first, length) for one, first, length in memory),
            *(PeerBytes(address, length) for address, length in peers),
        ]
        end = start + to.copy(start, sources, progress=progress)
        for path in files:
            end += -end % PAGE_SIZE if end > start else 0
            end += to.copy_file(end, path, progress=progress)
        _say_moved(to, start, end - start, "copied")


def _say_moved(memory: MemoryNamespace, start: int, length: int, how: str) -> None:
    line = f"{how}: {length} bytes of namespace {memory.nsid} from byte {start}"
    common.say(Moved(memory.nsid, start, length), [line])
