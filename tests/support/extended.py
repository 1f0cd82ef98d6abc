"""Drives with extensions, which a test writes."""

import textwrap
from pathlib import Path
from typing import Any

from potash_firmware import extensions
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import Host

HEAD = "from potash.extend import *\n"


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    """The path of a new file with an extension; its second line is the first one of `text`."""
    path = folder / name
    path.write_text(HEAD + textwrap.dedent(text))
    return str(path)


def extended(folder: Path, text: str, **settings: Any) -> Host:
    """A host of a drive with that extension. Raises ExtensionError."""
    loaded = extensions.load([written(folder, text)])
    return Host(settings=RpuSettings(extensions=loaded), **settings)
