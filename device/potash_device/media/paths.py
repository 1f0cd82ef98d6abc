"""Paths of the files of a drive: in its directory, or beside its one file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ASIDE = ("sidecar", "flash", "time.npz", "extensions.json")


@dataclass(frozen=True)
class DrivePaths:
    """The paths of one drive's files; `folder` says that they are in a directory of its own."""

    folder: bool
    namespace: Callable[[int], Path]
    metadata: Callable[[int], Path]
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
                *parts,
            )
        parts = (path.with_name(f"{path.name}.{part}") for part in ("toml", *ASIDE))
        aside = path.with_name(f"{path.name}.metadata")
        return cls(False, lambda nsid: path, lambda nsid: aside, *parts)
