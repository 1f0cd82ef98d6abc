"""`potash trace`: what a device did, for a viewer."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from potash.cli.app import COMMANDS
from potash.cli.device import reports
from potash.cli.device.vta_options import readable_file
from potash.cli.drive.common import as_json, json_option, output_option, say
from potash.cli.progress import showing
from potash.files import STREAM
from potash.sdk.errors import PotashError, restated
from potash.signals import Handler, handling
from potash.tracing import recording
from potash_device.vta.timing.parameters import BUILDS, Parameters

SIGNALLED = 128
"""Added to a signal's number for the exit code of what it has ended, as shells do."""


@click.command(context_settings={"allow_interspersed_args": False})
@output_option("File for the trace; compressed if the name ends in .gz.", default="trace.json")
@click.option(
    "--read",
    "sources",
    type=readable_file,
    multiple=True,
    help="Convert a file of trace points of potash serve --trace instead of running a command; may "
    "be repeated.",
)
@click.option(
    "--build",
    type=click.Choice(list(BUILDS)),
    default="pynq",
    help="Build for which the tensor accelerator's time is modelled.",
)
@json_option(reports.Traced)
@click.argument("command", nargs=-1, metavar="[--] [COMMAND...]")
def trace(output: Path, sources: tuple[Path, ...], build: str, command: tuple[str, ...]) -> None:
    """Run COMMAND, and write a trace of its devices for ui.perfetto.dev.

    COMMAND is a command of potash (demo, guest, bench, serve, model run), or any program that
    starts devices with one of them. All layers are on one time axis: commands by queue, transfers,
    messages, jobs, programs and their helpers, models and their nodes; and the tensor accelerator's
    modules, in modelled time.

    The exit code is that of COMMAND.
    """
    if bool(sources) == bool(command):
        raise click.UsageError("give a command to run, such as demo, or lines to --read")
    if sources:
        try:
            _finish(sources, output, BUILDS[build])
        except recording.NothingRecorded:
            raise PotashError(
                f"{sources[0]} has no trace of a device; potash serve --trace FILE writes one"
            ) from None
        return
    with recording.folder_for_lines() as folder:
        code = _run(command)
        try:
            _finish(recording.lines_of(folder), output, BUILDS[build])
        except recording.NothingRecorded:
            if not code:  # otherwise the command has said why
                raise
    sys.exit(code)


def _finish(sources: Sequence[Path], output: Path, parameters: Parameters) -> None:
    with showing(steps=True) as progress:
        recorded = recording.write_trace(sources, output, progress, parameters)
    report = reports.Traced(str(output), *recorded)
    lost = f", {recorded.unreadable} lines cannot be read" if recorded.unreadable else ""
    line = f"{recorded.events} events are in {output}{lost}; ui.perfetto.dev shows them"
    say(report, [line], aside=output == STREAM or not as_json())


def _run(command: Sequence[str]) -> int:
    """Run it to its end, which an interrupt is for it to make; its exit code."""
    if command[0] in COMMANDS:
        command = [sys.executable, "-m", "potash.cli.main", *command]
    # At a terminal the child gets its own. Not ignored, as that is what the child would inherit.
    with handling({signal.SIGINT: lambda *_: None}):
        with restated(OSError, f"{command[0]} cannot be run"):
            child = subprocess.Popen(command)
        passing: dict[int, Handler] = {
            number: lambda one, _: child.send_signal(one)
            for number in (signal.SIGTERM, signal.SIGHUP)
        }
        with child, handling(passing):
            code = child.wait()
    return code if code >= 0 else SIGNALLED - code
