"""A drive for the tests of several files, as each takes its time to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm.drive import device_process


@pytest.fixture(scope="session")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a drive of 64 MiB with one accelerator, and without options. Tests leave it as they found
    it, but for the contents of its blocks."""
    path = tmp_path_factory.mktemp("device") / "s"
    with device_process(path, "--size", "64M"):
        yield path


@pytest.fixture(scope="session")
def drive(socket: Path) -> str:
    """Its name on a command line."""
    return f"vfio-user:{socket}"
