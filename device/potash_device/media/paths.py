"""Paths of the files of a drive: in its directory, or beside its one file."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from potash_device.media.errors import MediaError
from potash_device.media.shapes import DriveError

ASIDE = ("sidecar", "flash", "time.npz", "extensions.json")


@dataclass(frozen=True)
class DrivePaths:
    """The paths of one drive's files; `folder` says that they are in a directory of its own."""

    folder: bool
    namespace: Callable[[int], Path]
    metadata: Callable[[int], Path]
    values: Callable[[int], Path]
    list: Path
    sidecar: Path
    flash: Path
    time: Path
    extensions: Path

    @classmethod
    def of(cls, path: Path) -> "DrivePaths":
        if path.is_dir():
            parts = (path / part for part in ("namespaces.toml", *ASIDE))
            return cls(
                True,
                lambda nsid: path / f"namespace-{nsid}",
                lambda nsid: path / f"namespace-{nsid}.metadata",
                lambda nsid: path / f"namespace-{nsid}.values",
                *parts,
            )
        parts = (path.with_name(f"{path.name}.{part}") for part in ("toml", *ASIDE))
        aside = path.with_name(f"{path.name}.metadata")
        return cls(
            False,
            lambda nsid: path,
            lambda nsid: aside,
            lambda nsid: path.with_name(f"{path.name}.values-{nsid}"),
            *parts,
        )


def present(paths: DrivePaths) -> list[int]:
    """The namespaces of a folder that remembers nothing: those from the first without a gap."""
    found: list[int] = []
    while paths.folder and paths.namespace(len(found) + 1).exists():
        found.append(len(found) + 1)
    return found


def make_folder(path: Path) -> None:
    """Make the folder of a drive. Raises DriveError."""
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        raise DriveError(f"cannot make the folder {path}: {error.strerror}") from None


def remove(path: Path, *, keep: bool) -> None:
    """Have no blocks at `path`; the user's own file is kept, empty. Raises MediaError."""
    try:
        if keep and path.exists():
            os.truncate(path, 0)
        elif not keep:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise MediaError(error.errno, f"cannot empty {path}: {error.strerror}") from None
