"""Options that give a device the state of another one, or keep its own."""

from pathlib import Path
from typing import NamedTuple

import click

from potash.cli.drive.common import together
from potash.sdk.errors import PotashError
from potash_firmware.boot import Device

_FILE = click.Path(dir_okay=False, path_type=Path)


class Moving(NamedTuple):
    """Whether a client brings the state of another device, and the files of states."""

    incoming: bool
    save: Path | None
    load: Path | None

    @property
    def waits(self) -> bool:
        """The device begins with a state, and not as when power comes."""
        return self.incoming or self.load is not None


moving_options = together(
    click.option(
        "--incoming",
        is_flag=True,
        help="Wait for a client that brings the state of another device, which hands its "
        "--media over.",
    ),
    click.option(
        "--save",
        type=_FILE,
        help="When interrupted, stop in the middle of what a client does, and write the state "
        "of the device to this file.",
    ),
    click.option(
        "--load",
        type=_FILE,
        help="Go on from a state that --save has written, with the same --media, once a client "
        "attaches that still has the memory of before.",
    ),
)


def load_state(device: Device, path: Path) -> None:
    """Raises PotashError."""
    try:
        device.load(path.read_bytes())
    except OSError as error:
        raise PotashError(f"the state in {path} cannot be loaded: {error.strerror}") from None


def save_state(device: Device, path: Path) -> None:
    """The file is there whole, or not at all. Raises PotashError."""
    new = path.with_name(path.name + ".new")
    try:
        state = device.save()
        new.touch(mode=0o600)
        new.write_bytes(state)
        new.rename(path)
    except OSError as error:
        raise PotashError(f"the state cannot be saved in {path}: {error.strerror}") from None
