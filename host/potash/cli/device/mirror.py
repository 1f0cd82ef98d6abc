"""`--debian-mirror`, also of the doctor, which imports nothing that may be missing."""

import click

from potash.vm.packages import ENVIRONMENT

mirror_option = click.option(
    "--debian-mirror",
    metavar="ADDRESS",
    envvar=ENVIRONMENT,
    show_envvar=True,
    help="Debian archive to install the guest from (default: the one that apt is configured with).",
)
