"""`potash ana`: the asymmetric namespace access of a running device."""

import click

from potash import control
from potash.cli.device import reports
from potash.cli.drive.common import json_option, say
from potash.sdk.faults import ACCESS_STATES
from potash.units import Real


@click.group()
def ana() -> None:
    """Change and show asymmetric namespace access (ANA).

    DEVICE is a socket of potash serve (or vfio-user:SOCKET), of a drive with --ana or several
    controllers: the controller at that socket. A guest or another client may be attached to it.
    """


@ana.command(name="set")
@click.argument("device")
@click.argument("state", type=click.Choice(sorted(ACCESS_STATES)))
@click.option("--group", type=click.IntRange(1), default=1, help="ANA group.")
@click.option(
    "--transition",
    type=Real(0, 10),
    default=0.0,
    help="Seconds in the Change state before, in guest time.",
)
def set_(device: str, state: str, group: int, transition: float) -> None:
    """Change the state of a group of namespaces."""
    control.change_access(device, state, group=group, transition=transition)


@ana.command()
@click.argument("device")
@json_option(reports.AccessGroups)
def show(device: str) -> None:
    """Show the groups, their states and their namespaces."""
    groups = control.access_groups(device)
    lines = [
        f"group {group['group']}: {group['state']} (namespaces "
        f"{', '.join(map(str, group['namespaces']))}; {group['changes']} changes)"
        for group in groups
    ]
    say(reports.AccessGroups(groups), lines or ["no ANA groups"])
