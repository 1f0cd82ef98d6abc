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


GUEST = """
scrubs = state("scrubs", default=int)
kept = bytearray()

@io_command(0xB0, name="Scrub", data="none")
def scrub(drive, command):
    for lba in command.range():
        yield drive.read(command.nsid, lba)
    scrubs.set(drive, scrubs(drive) + 1)
    return command.blocks

@admin_command(0xD0, name="Clear scrubs", data="none")
def clear(drive, command):
    scrubs.set(drive, 0)

@admin_command(0xD1, name="Put", data="write")
def put(drive, command):
    kept[:] = command.data

@admin_command(0xD2, name="Get backwards", data="read")
def get(drive, command):
    return kept[::-1]

@admin_command(0xD4, name="Fail", data="none")
def fail(drive, command):
    return 1 / 0

@admin_command(0xD8, name="Notify", data="none")
def notify(drive, command):
    drive.notify(0xCA)

@log_page(0xCA, name="Scrubs", size=8)
def page(drive):
    return scrubs(drive).to_bytes(8, "little")

@feature(0xD0, name="Locate light", saved=True)
def light(drive, value):
    if value > 2:
        raise NvmeError(Status.INVALID_FIELD, "off, on or blinking")
"""
"""The extension of the drive of guests that tests share. It observes no commands, which would slow
them down."""
