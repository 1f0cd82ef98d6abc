"""Tilings that were found, kept on disk.

In `$XDG_CACHE_HOME/potash/schedules` (`~/.cache/potash/schedules`), which only its owner can reach,
there is a folder for each version of the sources that tilings come from, and in it a file for each
question. What is read is checked like anybody's tiling; where nothing can be kept nothing is.
"""

import functools
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from potash_device.vta import timing

FORGET_AFTER = 30 * 24 * 3600.0
"""Seconds after which what another version found is removed."""


def recall(question: str) -> object:
    """The answer that was kept, or None."""
    folder = _folder(_base())
    if folder is None:
        return None
    try:
        kept = json.loads((folder / _name(question)).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(kept, dict) or kept.get("question") != question:
        return None
    found: object = kept.get("answer")
    return found


def keep(question: str, answer: object) -> None:
    """Keep an answer, which JSON can say."""
    folder = _folder(_base())
    if folder is None:
        return
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump({"question": question, "answer": answer}, file)
        # Others see the whole file or none.
        os.replace(file.name, folder / _name(question))
    except OSError:
        return


def _name(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:32] + ".json"


def _base() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    except RuntimeError:
        return None


@functools.cache
def _folder(base: Path | None) -> Path | None:
    """This version's folder; None where there is no place that is the user's alone."""
    if base is None:
        return None
    parent = base / "potash" / "schedules"
    folder = parent / _digest()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (_private(parent) and _private(folder)):
            return None
        os.utime(folder)
        for other in parent.iterdir():
            if other.stat().st_mtime < time.time() - FORGET_AFTER:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        return None
    return folder


def _private(folder: Path) -> bool:
    """Whether nobody else can put anything into `folder`; makes it so where it is ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return True


def _digest() -> str:
    """Names the sources that decide about a tiling."""
    seen = hashlib.sha256()
    clock = Path(timing.__file__).parent
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *sorted(clock.glob("*.py"))):
        seen.update(path.name.encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()[:16]
