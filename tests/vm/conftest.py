"""One image for all tests that boot a guest; where it cannot be had, they say why they are
skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.booted import booted


@pytest.fixture(scope="session")
def images() -> GuestImages:
    found = booted()
    if isinstance(found, str):
        pytest.skip(f"no guest can be built here: {found}")
    return found


@pytest.fixture(scope="session")
def guest(images: GuestImages) -> Iterator[Guest]:
    """A guest without a drive that tests share; they leave it as they found it."""
    with Guest(images) as guest:
        yield guest


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The file behind a drive of QEMU's own, of 16 MiB."""
    path = tmp_path / "blocks"
    with path.open("wb") as stream:
        stream.truncate(16 << 20)
    return path
