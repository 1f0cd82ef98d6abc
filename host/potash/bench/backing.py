"""What lies behind drives that are compared: equal files in memory, all written once."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from potash.sdk.errors import PotashError

FOLDER = Path("/dev/shm")
"""A file system in memory: what is compared are the devices, not a disk."""
SIZE = 64 << 20
"""Bytes of each drive."""


@contextlib.contextmanager
def filled(*names: str) -> Iterator[Path]:
    """A folder with these files in it, for as long as the block lasts.

    Raises:
        PotashError: there is no room for them.
    """
    with contextlib.ExitStack() as stack:
        try:
            named = tempfile.TemporaryDirectory(prefix="potash-bench-", dir=FOLDER)
            folder = Path(stack.enter_context(named))
            content = os.urandom(1 << 20) * (SIZE >> 20)
            for name in names:
                (folder / name).write_bytes(content)
        except OSError as error:
            raise PotashError(f"the drives have no room in {FOLDER}: {error.strerror}") from None
        yield folder
