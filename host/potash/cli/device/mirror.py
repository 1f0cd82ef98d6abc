"""`--debian-mirror`, also of the doctor, which imports nothing that may be missing."""

import click

from potash.vm.packages import ENVIRONMENT, MIRROR_HELP

mirror_option = click.option(
    "--debian-mirror", metavar="ADDRESS", envvar=ENVIRONMENT, show_envvar=True, help=MIRROR_HELP
)
