"""Drives with extensions, which a test writes."""

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from potash_firmware import extension_files
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import Host

HEAD = "from potash.extend import *\n"


def written(folder: Path, text: str, name: str = "mine.py") -> str:
    """The path of a new file with an extension; its second line is the first one of `text`."""
    path = folder / name
    path.write_text(HEAD + textwrap.dedent(text))
    return str(path)


def settings(folder: Path, text: str, others: RpuSettings | None = None) -> RpuSettings:
    """The settings of a drive with that extension. Raises ExtensionError."""
    loaded = extension_files.load([written(folder, text)])
    return replace(others or RpuSettings(), extensions=loaded)


def extended(folder: Path, text: str, **others: Any) -> Host:
    """A host of a drive with that extension. Raises ExtensionError."""
    return Host(settings=settings(folder, text), **others)
