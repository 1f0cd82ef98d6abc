"""What tests of compiled programs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from potash_device import cache
from potash_firmware.bpf.native import engine as native
from potash_firmware.bpf.native import runtime


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that has nothing of other tests in it, on disk and in this process."""
    runtime.load()  # or its file would be there too
    root = tmp_path / "cache"
    monkeypatch.setattr(cache, "folder", lambda of: root)
    native.load.cache_clear()
    yield root
    native.load.cache_clear()
