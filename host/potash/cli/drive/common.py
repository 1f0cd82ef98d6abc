"""Arguments, devices and reports that the commands for a drive share."""

import contextlib
import importlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

import potash.sdk
from csd_spec.run_times import RunTimeError, with_run_time
from csd_spec.text import plain
from nvme_spec.queues import BROADCAST_NSID
from potash.files import STREAM, replacing, require_writable
from potash.schema import encode
from potash.sdk import VFIO_USER_SCHEME, Device
from potash.sdk.accelerator import Argument
from potash.sdk.accelerator_commands import argument_bytes
from potash.sdk.errors import PotashError, restated
from potash.sdk.targets import Range
from potash.units import Parsed, parse_size

ACCELERATOR_LIMIT = 0xFFFF
FIRMWARE_LIMIT = 15


def program_argument(text: str, others: str = "hex:BYTES") -> Argument:
    """One argument of a program: a 32-bit number, or hex:BYTES. Raises ValueError."""
    try:
        if text.startswith("hex:"):
            return bytes.fromhex(text.removeprefix("hex:"))
        return argument_bytes(int(text, 0))
    except ValueError:
        raise ValueError(f"{text!r} is neither a 32-bit number nor {others}") from None


def firmware_id(text: str) -> int:
    """An ID of firmware. Raises ValueError."""
    if text.isdecimal() and int(text) <= FIRMWARE_LIMIT:
        return int(text)
    raise ValueError(f"{text!r} is not a firmware ID from 0 to {FIRMWARE_LIMIT}")


def _pages(text: str) -> Range:
    page, _, count = text.partition(":")
    try:
        return Range(int(page, 0), int(count, 0))
    except ValueError:
        raise ValueError(f"{text!r} is not PAGE:COUNT, two numbers") from None


def positive(text: str, what: str) -> float:
    """A finite number above 0. Raises ValueError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{text!r} is not a number of {what} above 0")
    return number


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
READABLE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
"""A file, or - for standard input."""
ARGUMENT = Parsed("VALUE", program_argument)
PAGES = Parsed("PAGE:COUNT", _pages)
NSID = click.IntRange(1, BROADCAST_NSID - 1)
SECONDS = Parsed("SECONDS", lambda text: positive(text, "seconds"))


class WritableFile(click.Path):
    """A file that a command writes at its end; where none can be is refused at its beginning."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, allow_dash=True, path_type=Path)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        require_writable(path)
        return path


Decorator = Callable[[Callable[..., None]], Callable[..., None]]
T = TypeVar("T")
A = TypeVar("A")
Steps: TypeAlias = tuple[tuple[T, list[A]], ...]
"""Steps of a chain after the first one: a program, and its arguments."""


def then_option(what: str, parse: Callable[[str], T], argument: Callable[[str], A]) -> Decorator:
    """`--then` for the steps of a chain, which `parse` and `argument` make of their words."""

    def step(text: str) -> tuple[T, list[A]]:
        words = shlex.split(text)
        if not words:
            raise ValueError("a step is empty")
        return parse(words[0]), [argument(word) for word in words[1:]]

    return click.option(
        "--then",
        "steps",
        type=Parsed("STEP", step),
        multiple=True,
        help=f"{what} and its arguments, separated by spaces, which runs next, on the output of "
        "the one before, without a transfer to the host; may be repeated.",
    )


def together(*options: Decorator) -> Decorator:
    """Options and arguments that several commands have, in the order in which help has them."""

    def give(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return give


class JsonOption(click.Option):
    """`--json`, which knows the type of the report."""

    def __init__(self, *args: Any, report: Any, **kwargs: Any) -> None:
        super().__init__(*args, expose_value=False, callback=_keep, **kwargs)
        self.report = report


def _keep(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[__name__] = value


def json_option(report: Any, help: str = "Report as JSON.") -> Decorator:
    """Give a command `--json`, for a report of this type or union of types (`potash.schema`)."""
    return click.option("--json", "as_json", cls=JsonOption, report=report, is_flag=True, help=help)


def as_json() -> bool:
    """True if the running command has to report as JSON."""
    return bool(click.get_current_context().meta.get(__name__))


def namespace_option(which: str) -> Decorator:
    """`--namespace-id`, of which namespace."""
    said = f"Identifier of {which} namespace (default: the first)."
    return click.option("-n", "--namespace-id", "nsid", type=NSID, help=said)


accelerator_option: Decorator = click.option(
    "--accelerator",
    type=click.IntRange(0, ACCELERATOR_LIMIT),
    help="ID of the accelerator (default: the first).",
)
firmware_option: Decorator = click.option(
    "--firmware", type=click.IntRange(0, FIRMWARE_LIMIT), default=0, help="The firmware's ID."
)
offset_option: Decorator = click.option(
    "--offset", type=click.IntRange(0), default=0, help="Offset of the first byte, a multiple of 4."
)
arguments_option: Decorator = click.option(
    "--arg",
    "arguments",
    type=ARGUMENT,
    multiple=True,
    help="An argument of the program: a 32-bit number, or hex:BYTES; may be repeated.",
)
job_timeout_option: Decorator = click.option(
    "--timeout", type=SECONDS, help="Stop a job after this time (default: never)."
)
timeout_option: Decorator = click.option(
    "--timeout", type=SECONDS, help="Maximum time to wait (default: no limit)."
)
input_file: Decorator = click.argument("input", type=READABLE)
output_file: Decorator = click.argument("output", type=WritableFile())


def output_option(help: str, **settings: Any) -> Decorator:
    """`--output`, a file that a command writes at its end."""
    return click.option("-o", "--output", type=WritableFile(), help=help, **settings)


def device_name(text: str) -> str:
    """DEVICE as the SDK takes it: a path that is a socket stands for `vfio-user:SOCKET`."""
    is_socket = not text.startswith(VFIO_USER_SCHEME) and Path(text).is_socket()
    return f"{VFIO_USER_SCHEME}{text}" if is_socket else text


@contextlib.contextmanager
def opened(name: str) -> Iterator[Device]:
    """A device for one command: the one that is open for several, else one that is closed then."""
    shared = click.get_current_context().find_object(Device)
    if shared is not None:
        yield shared
        return
    with potash.sdk.open(device_name(name)) as device:
        yield device


def opening(
    part: Callable[[Device, int | None], T],
) -> Callable[[str, int | None], contextlib.AbstractContextManager[T]]:
    """Make a context manager that opens a device as `opened` does, and gives a part of it."""

    @contextlib.contextmanager
    def opened_part(name: str, identifier: int | None) -> Iterator[T]:
        with opened(name) as device:
            yield part(device, identifier)

    return opened_part


accelerator_of = opening(Device.accelerator)


def read_input(path: Path) -> bytes:
    """The contents of a file, or of standard input."""
    return sys.stdin.buffer.read() if path == STREAM else path.read_bytes()


def write_output(path: Path, data: bytes) -> None:
    """Into a file, or to standard output. Raises PotashError where the file cannot be written."""
    with replacing(path) as file:
        file.write(data)


def say(
    report: object, lines: Iterable[str], *, aside: bool = False, indent: int | None = None
) -> None:
    """A command's report, as JSON or in words; `aside` where standard output has its output."""
    for line in [encode(report, indent)] if as_json() else map(plain, lines):
        click.echo(line, err=aside)


def returned(value: int) -> str:
    """A program's return value, also as the int of a C function."""
    signed = f" ({value - (1 << 32)} as int)" if 1 << 31 <= value < 1 << 32 else ""
    return f"{value}{signed}"


SOURCE_SUFFIX = ".c"

program_file = click.argument("program", type=FILE)
run_time_option = click.option(
    "--runtime",
    metavar="KEY=TIME,…",
    help="The program's run time for the model of the drive, such as fixed=20us,per_byte=0.25ns,"
    " and its priority (docs/time.md).",
)


def program_of(path: Path, run_time: str | None = None) -> bytes:
    """The object file, which declares a run time if one is given. Raises PotashError where it has
    to be built and cannot be, or cannot declare that."""
    image = _built(path)
    if run_time is None:
        return image
    with restated(RunTimeError, f"--runtime {run_time}"):
        return with_run_time(image, run_time)


def _built(path: Path) -> bytes:
    if path.suffix != SOURCE_SUFFIX:
        return path.read_bytes()
    try:
        # By name: what builds programs is heavy, and not there in a guest.
        building = importlib.import_module("potash.programs.compiler")
    except ModuleNotFoundError:
        raise PotashError(
            f"there is no compiler here for {path}; build it outside with potash build, and give"
            " the object file"
        ) from None
    image: bytes = building.compiled(path)
    return image


NamedRange: TypeAlias = tuple[int | None, int, int]
"""A namespace's identifier if it is given, the first one and how many."""


def _range(name: str, number: Callable[[str], int]) -> Parsed[NamedRange]:
    def parse(text: str) -> NamedRange:
        *namespace, first, count = text.split(":") if ":" in text else ("", "", "")
        try:
            if len(namespace) > 1:
                raise ValueError
            nsid = int(namespace[0], 0) if namespace else None
            return nsid, number(first), number(count)
        except ValueError:
            raise ValueError(f"{text!r} is not {name}, numbers") from None

    return Parsed(name, parse)


def _bytes(text: str) -> int:
    return int(text, 0) if text.lower().startswith("0x") else parse_size(text)


BLOCKS = _range("[NSID:]LBA:COUNT", lambda text: int(text, 0))
"""Logical blocks: where they begin and how many."""
BYTES = _range("[NSID:]START:LENGTH", _bytes)
"""Bytes, whose numbers may have K, M or G behind them."""


def _peer_bytes(text: str) -> tuple[int, int]:
    place, _, length = text.rpartition(":")
    drive, colon, start = place.partition(":")
    try:
        if colon:
            return _bar_address(drive) + _bytes(start), _bytes(length)
        return int(place, 0), _bytes(length)
    except ValueError:
        raise ValueError(f"{text!r} is not /dev/nvme1:START:LENGTH, or ADDRESS:LENGTH") from None
    except OSError as error:
        raise ValueError(f"{drive}: {error.strerror}; name a drive like /dev/nvme1") from None


def _bar_address(drive: str) -> int:
    """The address of BAR 4 of a drive, as Linux lists its resources. Raises OSError."""
    resources = Path("/sys/class/nvme", Path(drive).name, "device/resource").read_text()
    return int(resources.splitlines()[4].split()[0], 0)


PEER_BYTES = Parsed("DRIVE:START:LENGTH", _peer_bytes)
"""Bytes of the memory in another drive's BAR: address and length."""
