"""The command `potash`.

Each subcommand is a module that is imported only when it is called, so that what runs inside a
guest never pays for what runs outside. An error that a user can do something about is one
sentence and exit code 1; a wrong use of the command line is exit code 2.
"""

import importlib
import sys
from typing import NamedTuple

import click

from potash.sdk.errors import PotashError


class Entry(NamedTuple):
    """Where a subcommand lives, and what it says of itself in the list."""

    module: str
    help: str


COMMANDS = {
    "demo": Entry("potash.cli.device.demo", "Run the ADD example through every layer."),
    "guest": Entry("potash.cli.device.guest", "Start Linux with the drive in it."),
    "run": Entry("potash.cli.drive.run", "Run a program on a drive's accelerator."),
    "serve": Entry("potash.cli.device.serve", "Run a device for QEMU or another client."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in sorted(COMMANDS)])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="potash")
def potash(debug: bool) -> None:
    """A computational storage device in software: an NVMe drive that runs programs."""
    # Said before the subcommand or not at all: `main` looks for it there.


def main() -> None:
    """The console script's entry."""
    debug = sys.argv[1:2] == ["--debug"]
    try:
        potash(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except (PotashError, OSError) as error:
        if debug:
            raise
        click.echo(f"potash: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
