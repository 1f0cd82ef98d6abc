"""One image for all tests that boot a guest, and one guest with a drive for several files; where
there can be none, they say why they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.booted import booted
from support.vm import fork_commands


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


@pytest.fixture(scope="session")
def shared_guest(images: GuestImages) -> Iterator[Guest]:
    """A guest with a drive of 64 MiB, and commands that are forked."""
    with serving("--size", "64M") as socket, Guest(images, socket) as guest:
        fork_commands(guest)
        yield guest


@pytest.fixture(scope="module")
def linux(shared_guest: Guest) -> Iterator[Guest]:
    """That guest for the tests of a file; the next file has a controller that was reset, and
    nothing in the kernel's log. `conftest.SHARED_GUEST` lists the files."""
    yield shared_guest
    done = shared_guest.capture(["sh", "-c", "nvme reset /dev/nvme0 && dmesg -c > /dev/null"])
    assert done.code == 0, done


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The file behind a drive of QEMU's own, of 16 MiB."""
    path = tmp_path / "blocks"
    with path.open("wb") as stream:
        stream.truncate(16 << 20)
    return path
