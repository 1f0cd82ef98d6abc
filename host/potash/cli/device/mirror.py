"""`--debian-mirror`, also of the doctor, which imports nothing that may be missing."""

import click

from potash.vm.defaults import MIRROR_HELP, MIRROR_VARIABLE

mirror_option = click.option(
    "--debian-mirror", metavar="ADDRESS", envvar=MIRROR_VARIABLE, show_envvar=True, help=MIRROR_HELP
)
