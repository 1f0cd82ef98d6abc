"""The drives of a fleet, as a TOML file describes them (docs/fleet.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from potash import options
from potash.configuration import Configuration, read_toml
from potash.sdk.errors import restated
from potash_firmware.extension_limits import is_file

MOST_DRIVES = 10_000
LARGEST_FILE = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TEXTS = ("name", "media", "size", "worker")
_KEYS = (*_TEXTS, "shared", "options", "extensions")


@dataclass(frozen=True)
class Drive:
    """A drive of a fleet.

    Attributes:
        name: the drive's name.
        media: path of its blocks, as the worker sees it; None for the worker's memory.
        size: bytes of a new drive, as text with a unit.
        worker: the only worker that can serve it: its name, or its host's address.
        shared: true if any worker can reach `media`.
        options: further options of `potash serve`.
        extensions: its extensions, each a file's name and text, or an installed one's name and "".
    """

    name: str
    media: str | None = None
    size: str | None = None
    worker: str | None = None
    shared: bool = False
    options: tuple[str, ...] = ()
    extensions: tuple[tuple[str, str], ...] = ()

    def configuration(self, folder: Path) -> Configuration:
        """Its configuration on the worker that serves it, where its extensions are written to a
        folder. Raises PotashError for an invalid one."""
        files = []
        for number, (name, text) in enumerate(self.extensions):
            path = folder / str(number) / name
            if text:
                path.parent.mkdir()
                path.write_text(text, encoding="utf-8")
            files.append(str(path) if text else name)
        keywords = {"media": self.media, "size": self.size, "extensions": files}
        return options.parse(self.options, keywords)


@dataclass(frozen=True)
class FleetFile:
    """Contents of a fleet's file; `scheduler` is the address of a Dask cluster."""

    drives: tuple[Drive, ...]
    scheduler: str | None = None


def read_fleet(path: Path) -> FleetFile:
    """Read a file. Relative paths in it begin at its folder. Raises PotashError."""
    found = read_toml(path, LARGEST_FILE)
    with restated(ValueError, path):
        return _fleet(found, path.absolute().parent)


def require_distinct(drives: Sequence[Drive]) -> None:
    """Raises ValueError for no drives, too many, or two of the same name or media."""
    if not 1 <= len(drives) <= MOST_DRIVES:
        raise ValueError(f"a fleet has 1 to {MOST_DRIVES} drives, not {len(drives)}")
    names = [drive.name for drive in drives]
    places = [(drive.worker, drive.media) for drive in drives if drive.media is not None]
    for what, values in (("name", names), ("media", places)):
        if len(set(values)) < len(values):
            raise ValueError(f"two drives have the same {what}; give each one of its own")


def _fleet(found: Mapping[str, Any], folder: Path) -> FleetFile:
    for key in found:
        if key in _KEYS:
            raise ValueError(f"a fleet has no {key!r}; it belongs in a [[drive]]")
    _require_known("a fleet", found, ("drive", "scheduler"))
    scheduler = found.get("scheduler")
    if scheduler is not None and (not isinstance(scheduler, str) or not scheduler):
        raise ValueError('scheduler must be a string, such as "tcp://127.0.0.1:8786"')
    tables = found.get("drive", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError("drives are [[drive]] tables")
    drives = tuple(_drive(table, folder) for table in tables)
    require_distinct(drives)
    for drive in drives:
        if scheduler is None and drive.media is None:
            raise ValueError(f"drive {drive.name} has no media; say in which file it is kept")
    return FleetFile(drives, scheduler)


def _drive(table: Mapping[str, Any], folder: Path) -> Drive:
    _require_known("a drive", table, _KEYS)
    for key in _TEXTS:
        if not isinstance(table.get(key), str | None) or table.get(key) == "":
            raise ValueError(f"{key} of a drive must be a string that is not empty")
    name = table.get("name", "")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid drive name; use letters, digits, dots and hyphens"
        )
    shared = table.get("shared", False)
    for key in ("options", "extensions"):
        texts = table.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{key} of drive {name} must be a list of strings")
    if shared is not True and shared is not False:
        raise ValueError(f"shared of drive {name} must be true or false")
    if shared and "worker" in table:
        raise ValueError(f"drive {name} is of one worker and shared; choose one of them")
    extensions = tuple(_extension(one, folder) for one in table.get("extensions", []))
    options = tuple(table.get("options", []))
    drive = Drive(**{**table, "options": options, "extensions": extensions})
    return drive if drive.media is None else replace(drive, media=str(folder / drive.media))


def _extension(source: str, folder: Path) -> tuple[str, str]:
    """An extension, which workers get as a text. Raises ValueError."""
    if not is_file(source):
        return source, ""
    try:
        return Path(source).name, (folder / source).read_text(encoding="utf-8") or "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the extension {source} cannot be read: {error}") from None


def _require_known(what: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{what} has no {key!r}; it has {', '.join(known)}")
