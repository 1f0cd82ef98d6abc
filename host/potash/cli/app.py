"""The command `potash`.

Each subcommand is a module that is imported only when it is called, so that what runs inside a
guest never pays for what runs outside. An error that a user can do something about is one
sentence and exit code 1; a wrong use of the command line is exit code 2.
"""

import errno
import gc
import importlib
import sys
from collections.abc import Sequence

import click

from csd_spec.text import plain_lines
from potash import __version__

SECTIONS = {
    "Start a drive": {
        "demo": ("device", "Run an example through every layer."),
        "guest": ("device", "Boot Linux with the drive attached."),
        "serve": ("device", "Run a device for QEMU or another client."),
    },
    "Use a drive": {
        "run": ("drive", "Run a program on a drive's accelerator."),
        "query": ("drive", "Query a table that is stored on a drive."),
        "acc": ("drive", "Send single commands to a drive's accelerators."),
        "fw": ("drive", "Send programs to a drive's accelerators and read them."),
        "slm": ("drive", "Use a drive's memory namespaces."),
        "kv": ("drive", "Use a drive's key value namespaces."),
        "cp": ("drive", "Run programs on a drive's memory namespaces."),
        "fleet": ("device", "Use many drives as one, on a Dask cluster."),
        "fault": ("drive", "Inject faults into a drive and clear them."),
        "ana": ("device", "Change and show asymmetric namespace access."),
    },
    "Programs, models and the tensor accelerator": {
        "build": ("device", "Compile a program for an accelerator."),
        "bpf": ("device", "Disassemble, run and debug programs."),
        "model": ("device", "Create, inspect and run models."),
        "vta": ("device", "Use the tensor accelerator without a drive."),
        "sweep": ("device", "Compare configurations of the tensor accelerator."),
        "drive": ("device", "Model the time of a flash drive."),
    },
    "Observe and check": {
        "experiment": ("device", "Measure programs in the drive against the host."),
        "bench": ("device", "Measure the performance of the device."),
        "doctor": ("device", "Check whether this machine has what Potash needs."),
        "top": ("device", "Show the activity of a running device, live."),
        "trace": ("device", "Record all layers, for a trace viewer."),
    },
}
"""The subcommands, as the help groups them: the package of each one's module, which has its name,
and its line in the list."""

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported by name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # which knows imported commands alone
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=COMMANDS, ctx=ctx
            ) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        package, _ = COMMANDS[cmd_name]
        collects = gc.isenabled()
        gc.disable()  # what modules make stays; looking for garbage takes a tenth of the import
        try:
            command = getattr(importlib.import_module(f"potash.cli.{package}.{cmd_name}"), cmd_name)
        finally:
            if collects:
                gc.freeze()
                gc.enable()
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), help) for name, (_, help) in section.items()]
                )


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error (anywhere).")
@click.version_option(__version__, prog_name="potash")
def potash(debug: bool) -> None:
    """A computational storage device in software: an NVMe drive that runs programs."""


def run_app(arguments: Sequence[str]) -> int:
    """Carry out a command line; give its exit code. Raises KeyboardInterrupt."""
    options, given = list(arguments), []
    if "--" in options:  # what follows belongs to another command
        at = options.index("--")
        options, given = options[:at], options[at:]
    debug = "--debug" in options
    options = [option for option in options if option != "--debug"]
    try:
        potash(options + given, prog_name="potash", standalone_mode=False)
        if sys.stdout is not None:  # which it is where it was closed
            sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"potash: {plain_lines(_usage(error))}", err=True)
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        return 1
    except _known_errors() as error:
        if debug:
            raise
        click.echo(f"potash: {plain_lines(_sentence(error))}", err=True)
        return 1
    return 0


def _known_errors() -> tuple[type[Exception], ...]:
    """Errors that a user can act on; those of the SDK are imported by the code that raises them."""
    from potash.sdk.errors import PotashError

    return PotashError, OSError


def _usage(error: click.ClickException) -> str:
    """The error in a command line, and the help to look at."""
    if isinstance(error, click.exceptions.NoSuchCommand | click.NoSuchOption):
        said = error.message.removesuffix(".")
        if error.possibilities:
            if isinstance(error, click.NoSuchOption):
                word = error.option_name
            else:
                word = error.command_name
            said += f"; did you mean {' or '.join(_nearest(word, error.possibilities))}?"
    else:
        said = error.format_message().removesuffix(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        said += f" (see {error.ctx.command_path} --help)"
    return said


def _nearest(word: str, names: Sequence[str]) -> list[str]:
    """The names nearest to a word, none of them clearly less similar than the best."""
    from difflib import SequenceMatcher

    ratios = {name: SequenceMatcher(None, word, name).ratio() for name in names}
    return [name for name, ratio in ratios.items() if ratio > max(ratios.values()) - 0.1]


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return f"{error.strerror} where the output goes, or temporary files (TMPDIR)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
