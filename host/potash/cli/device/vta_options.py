"""Options, files and tables that the commands of `potash vta` share."""

from pathlib import Path

import click

from potash.cli.drive import common
from potash.cli.drive.common import Decorator, WritableFile
from potash.files import read_whole
from potash.sdk.errors import PotashError, restated
from potash.sdk.progress import Progress
from potash.units import Parsed, completing, parse_shape, quadword
from potash_device.vta.config import CORES, DRAM_BASE, Config, ConfigError
from potash_device.vta.encoding import INSTRUCTION_BYTES

MEGA = 1e6
GIGA = 1e9


def _config(text: str) -> Config:
    if text in CORES:
        return CORES[text]
    try:
        with restated(ConfigError, text):
            return Config.from_file(Path(text))
    except FileNotFoundError:
        raise PotashError(f"{text!r} is neither a core ({', '.join(CORES)}) nor a file") from None


CORE = Parsed("CORE", _config)

readable_file = common.READABLE
writable_file = WritableFile()

output_option = common.output_option("Output file (- for standard output).", required=True)
insns_option = click.option(
    "--insns",
    required=True,
    type=readable_file,
    help="Instruction stream, 16 bytes for each instruction (- for standard input).",
)


def config_option(default: Config | None, shown: str) -> Decorator:
    """`--vta-config`, a core."""
    return click.option(
        "--vta-config",
        "config",
        type=CORE,
        default=default,
        show_default=shown,
        shell_complete=completing(lambda: CORES),
        help="The core: platform, paper (the VTA paper's), or a vta_config.json with LOG_* keys.",
    )


vta_config_option = config_option(CORES["platform"], "platform")
base_option = click.option(
    "--base",
    type=Parsed("ADDRESS", quadword),
    default=DRAM_BASE,
    show_default=hex(DRAM_BASE),
    help="Physical address of the image's first byte.",
)
shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=Parsed("SHAPE", parse_shape),
    help="Shape of an input that the file leaves open, such as 1x224x224x3; once for each input.",
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
