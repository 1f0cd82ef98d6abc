"""What the commands of `potash vta` have in common: options, files and tables."""

from __future__ import annotations

import math
from pathlib import Path

import click

from potash.files import read_whole
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash_device.vta.config import Config, ConfigError
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.simulator import DRAM_BASE

MEGA = 1e6
GIGA = 1e9


class Address(click.ParamType[int]):
    """A physical address, hexadecimal with 0x before it."""

    name = "ADDRESS"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            address = int(value, 0)
        except ValueError:
            address = -1
        if not 0 <= address < 1 << 64:
            self.fail(f"{value!r} is no physical address; write 0x1000", param, ctx)
        return address


class Megahertz(click.ParamType[float]):
    """A clock that ticks."""

    name = "MHZ"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            clock = float(value)
        except ValueError:
            clock = math.nan
        if not (clock > 0 and math.isfinite(clock)):
            self.fail(f"{value!r} is no number of megahertz above 0", param, ctx)
        return clock


class ConfigFile(click.ParamType[Config]):
    """A `vta_config.json` file."""

    name = "FILE"

    def convert(
        self, value: str | Config, param: click.Parameter | None, ctx: click.Context | None
    ) -> Config:
        if isinstance(value, Config):
            return value
        try:
            return Config.from_file(Path(value))
        except ConfigError as error:
            raise PotashError(f"{value}: {error}") from None


readable_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
writable_file = click.Path(dir_okay=False, allow_dash=True, path_type=Path)

vta_config_option = click.option(
    "--vta-config",
    "config",
    type=ConfigFile(),
    default=Config.default(),
    show_default="the platform's core",
    help="What the core is built as: LOG_* keys in JSON.",
)
base_option = click.option(
    "--base",
    type=Address(),
    default=DRAM_BASE,
    show_default=hex(DRAM_BASE),
    help="Physical address of the image's first byte.",
)


def read_stream(path: Path, progress: Progress) -> bytes:
    """A file's instructions. Raises PotashError."""
    stream = bytes(read_whole(path, progress))
    if not stream or len(stream) % INSTRUCTION_BYTES:
        raise PotashError(
            f"{path} has {len(stream)} bytes; a stream has {INSTRUCTION_BYTES} for each of its "
            "instructions, and one at least"
        )
    return stream
