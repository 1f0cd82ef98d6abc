"""`potash acc`: the accelerator commands, one by one.

Alkali CSD platform documentation, section 4.3.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import click

import potash.sdk
from csd_spec.descriptors import AcceleratorStatus, LogEntry
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE
from csd_spec.text import plain_lines
from potash.cli.drive import common, reports
from potash.cli.progress import showing
from potash.files import STREAM
from potash.sdk import Accelerator, CommandFailed, Device
from potash.sdk.errors import DeviceNotFound, PotashError
from potash.sdk.targets import Range
from potash.units import Size, human

PROMPT = "acc> "
rae_option = click.option(
    "--rae", is_flag=True, help="Retain the snapshot and its event for the next read."
)
ranges_arguments = common.together(
    click.argument("device"),
    click.argument("ranges", metavar="PAGE:COUNT...", type=common.PAGES, nargs=-1, required=True),
    common.accelerator_option,
    common.namespace_option("the pages'"),
    click.option(
        "--append", is_flag=True, help="Add to the earlier ranges instead of replacing them."
    ),
)


@click.group()
def acc() -> None:
    """Send single commands to a drive's accelerators.

    DEVICE is /dev/nvme0n1, vfio-user:SOCKET or the socket's path.

    Over vfio-user, each command is a new host, for which the accelerators are as after power-on:
    disabled, without programs and jobs. Use "potash acc shell" for several commands of one host.
    """


@acc.command()
@click.argument("device")
@common.json_option(reports.Accelerators)
def identify(device: str) -> None:
    """List the accelerators and their buffers."""
    with common.opened(device) as drive:
        found = drive.accelerators()
    lines = [
        f"accelerator {one.id}: {human(one.input_size)} of input, {human(one.output_size)} of"
        f" output, {'takes' if one.takes_firmware else 'takes no'} firmware"
        for one in found
    ]
    common.say(reports.Accelerators(found), lines or ["there are no accelerators"])


@acc.command()
@click.argument("device")
@common.accelerator_option
@rae_option
@common.json_option(reports.Status)
def status(device: str, accelerator: int | None, rae: bool) -> None:
    """Show the status of an accelerator and its current or last job."""
    with common.accelerator_of(device, accelerator) as one:
        _say_status(one, one.status(retain=rae))


@acc.command()
@click.argument("device")
@common.accelerator_option
@rae_option
@common.json_option(reports.Log)
def log(device: str, accelerator: int | None, rae: bool) -> None:
    """Show the log: start and end of jobs, output of programs, errors."""
    with common.accelerator_of(device, accelerator) as one:
        page = one.log(retain=rae)
    lost = [f"{page.lost} older entries are lost"] if page.lost else []
    lines = [f"{_time(entry)}  {entry.name}: {entry.text}" for entry in page.entries]
    common.say(reports.Log(one.id, page), lost + lines)


@acc.command()
@click.argument("device")
@common.input_file
@common.accelerator_option
@common.offset_option
@common.json_option(reports.InputWritten)
def write(device: str, input: Path, accelerator: int | None, offset: int) -> None:
    """Send INPUT (- for standard input) to the input buffer."""
    data = common.read_input(input)
    with common.accelerator_of(device, accelerator) as one, showing() as progress:
        one.write_input(data, offset=offset, progress=progress)
    common.say(
        reports.InputWritten(one.id, offset, len(data)), [f"{len(data)} bytes in the input buffer"]
    )


@acc.command()
@click.argument("device")
@common.output_file
@common.accelerator_option
@click.option("--data-len", type=Size(), help="Number of bytes (default: the last job's output).")
@common.offset_option
@common.json_option(reports.OutputRead)
def read(
    device: str, output: Path, accelerator: int | None, data_len: int | None, offset: int
) -> None:
    """Read the output buffer into OUTPUT (- for standard output)."""
    with common.accelerator_of(device, accelerator) as one, showing() as progress:
        data = one.read_output(data_len, offset=offset, progress=progress)
    common.write_output(output, data)
    report = reports.OutputRead(one.id, offset, len(data), str(output))
    common.say(report, [f"{len(data)} bytes"], aside=output == STREAM)


@contextmanager
def _in_namespace(one: Accelerator, nsid: int | None) -> Iterator[None]:
    """Explain the failure of a command if the namespace does not exist."""
    try:
        yield
    except CommandFailed:
        if nsid is None or nsid in (there := one.device.active_namespaces()):
            raise
        listed = ", ".join(map(str, there)) or "none"
        raise DeviceNotFound(
            f"the device has no namespace {nsid}; those that it has: {listed}"
        ) from None


def _local_storage(name: str, help: str, use: Callable[..., None]) -> None:
    @acc.command(
        name,
        help=f"{help}\n\nThe ranges form one buffer. PAGE is the first and COUNT the number of "
        "pages. A page has 4096 bytes, whatever the block size.",
    )
    @ranges_arguments
    def command(
        device: str,
        ranges: Sequence[Range],
        accelerator: int | None,
        nsid: int | None,
        append: bool,
    ) -> None:
        with common.accelerator_of(device, accelerator) as one, _in_namespace(one, nsid):
            for index, (page, pages) in enumerate(ranges):
                use(one, page, pages, nsid, append=append or index > 0)


_local_storage(
    "input", "Use pages of the drive as the input of the next job.", Accelerator.use_local_input
)
_local_storage(
    "output", "Use pages of the drive as the output of the next job.", Accelerator.use_local_output
)


@acc.command()
@ranges_arguments
@click.option("--writable", is_flag=True, help="Let programs also write them.")
def grant(
    device: str,
    ranges: Sequence[Range],
    accelerator: int | None,
    nsid: int | None,
    append: bool,
    writable: bool,
) -> None:
    """Grant programs access to pages of the drive.

    PAGE is the first and COUNT the number of pages. A page has 4096 bytes, whatever the block size.
    """
    with common.accelerator_of(device, accelerator) as one, _in_namespace(one, nsid):
        for index, (page, pages) in enumerate(ranges):
            first = index == 0 and not append
            one.grant(page, pages, nsid, writable=writable, replace=first)


@acc.command()
@click.argument("device")
@click.argument("firmware", type=click.IntRange(0, common.FIRMWARE_LIMIT))
@common.accelerator_option
def select(device: str, firmware: int, accelerator: int | None) -> None:
    """Make the firmware with this ID the active one."""
    with common.accelerator_of(device, accelerator) as one:
        one.select(firmware)


@acc.command()
@click.argument("device")
@common.accelerator_option
@click.option(
    "--firmware",
    type=click.IntRange(0, common.FIRMWARE_LIMIT),
    help="Make this firmware the active one first.",
)
@common.arguments_option
@common.then_option("A firmware ID", common.firmware_id, common.program_argument)
@click.option("--wait", is_flag=True, help="Wait for the end of the job, and show its result.")
@common.timeout_option
@common.json_option(reports.Status)
def start(
    device: str,
    accelerator: int | None,
    firmware: int | None,
    arguments: tuple[Any, ...],
    steps: common.Steps[int, Any],
    wait: bool,
    timeout: float | None,
) -> None:
    """Start a job with the active firmware, or a chain of several."""
    if not wait and (common.as_json() or timeout is not None):
        raise click.UsageError("--timeout and --json go with --wait")
    with common.accelerator_of(device, accelerator) as started:
        first = KEEP_ACTIVE_FIRMWARE if firmware is None else firmware
        if steps:
            started.start_chain([(first, arguments), *steps])
        else:
            started.start(first, arguments)
        if wait:
            _wait(started, timeout)


@acc.command()
@click.argument("device")
@common.accelerator_option
@common.timeout_option
@common.json_option(reports.Status)
def wait(device: str, accelerator: int | None, timeout: float | None) -> None:
    """Wait for the end of the job, and show its result."""
    with common.accelerator_of(device, accelerator) as one:
        _wait(one, timeout)


def _simple(
    name: str,
    help: str,
    act: Callable[[Accelerator], None],
    option: Callable[..., Any] = common.accelerator_option,
) -> None:
    @acc.command(name, help=help)
    @click.argument("device")
    @option
    def command(device: str, accelerator: int | None = None) -> None:
        with common.accelerator_of(device, accelerator) as one:
            act(one)


for _name, _help, _act in (
    ("enable", "Enable the accelerator subsystem with all accelerators.", Accelerator.enable),
    ("disable", "Disable the accelerator subsystem and stop all jobs.", Accelerator.disable),
):
    _simple(_name, _help, _act, lambda command: command)
_simple("stop", "Stop the job; keep programs and buffers.", Accelerator.stop)
_simple("reset", "End the job; discard programs and buffers.", Accelerator.reset)


@acc.command()
@click.argument("device")
@click.argument("script", type=click.File(), default="-")
def shell(device: str, script: Any) -> None:
    """Execute the lines of a script as one host.

    SCRIPT is a file; the default is standard input. A line is a command of "potash acc", without
    these two words and without DEVICE, or a command of "potash fw", "slm", "kv", "cp" or "fault",
    which begins with that name. # begins a comment. The first command that fails ends the script.
    """
    from potash.cli.drive.cp import cp
    from potash.cli.drive.fault import fault
    from potash.cli.drive.fw import fw
    from potash.cli.drive.kv import kv
    from potash.cli.drive.slm import slm

    groups = {"acc": acc, "fw": fw, "slm": slm, "kv": kv, "cp": cp, "fault": fault}
    _run_lines(device, script, groups)


def _wait(one: Accelerator, timeout: float | None) -> None:
    with showing() as progress:
        ended = one.wait(timeout, progress=progress)
    _say_status(one, ended)


def _say_status(one: Accelerator, found: AcceleratorStatus) -> None:
    lines = [
        f"accelerator {one.id}: {found.name}",
        f"  firmware: {'none' if found.firmware is None else found.firmware}",
        f"  returned: {common.returned(found.return_value)}",
        f"  consumed: {found.consumed} bytes",
        f"  produced: {found.produced} bytes",
    ]
    if found.modelled:
        lines.append(f"  modelled: {found.modelled / 1e6:.3f} ms")
    common.say(reports.Status(one.id, found), lines)


def _time(entry: LogEntry) -> str:
    """An entry's time as this machine's clock would show it."""
    try:
        return datetime.fromtimestamp(entry.timestamp / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{entry.timestamp} ms"


def _run_lines(device: str, lines: TextIO, groups: Mapping[str, click.Group]) -> None:
    """Carry them out, one after the other.

    A line may begin with the name of its group, the first of `groups` being meant by the others.

    Raises click's errors and PotashError for a line that fails, unless somebody types them.
    """
    typed = lines is sys.stdin and lines.isatty()
    with potash.sdk.open(common.device_name(device)) as opened:
        _prompt(typed)
        for line in lines:
            try:
                _run_line(device, line, groups, opened)
            except (click.ClickException, PotashError, OSError) as error:
                if not typed:
                    raise
                said = error.format_message() if isinstance(error, click.ClickException) else error
                click.echo(f"potash: {plain_lines(str(said))}", err=True)
            _prompt(typed)


def _prompt(typed: bool) -> None:
    if typed:
        click.echo(PROMPT, nl=False, err=True)


def _run_line(device: str, line: str, groups: Mapping[str, click.Group], opened: Device) -> None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise click.UsageError(f"{line.strip()}: {str(error).lower()}") from None
    if not words:
        return
    named = groups[words.pop(0)] if words[0] in groups else next(iter(groups.values()))
    command: click.Command | None = named
    while isinstance(command, click.Group):
        name, words = words[0] if words else "", words[1:]
        command = command.commands.get(name)
    if command is None or name == "shell":
        raise click.UsageError(f"there is no command {line.strip()!r} here")
    command.main([device, *words], name, standalone_mode=False, obj=opened)
