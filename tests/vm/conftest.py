"""One image for all tests that boot a guest, and one guest with a drive for several files; where
there can be none, they say why they are skipped."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from potash.cli.app import run_app
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.booted import booted
from support.extended import GUEST, written
from support.shared_guests import SHARED_GUESTS
from support.vm import WAITING, PotashGuest, fork_commands


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
def shared_guest(images: GuestImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with a drive of 64 MiB, which has an extension, and commands that are forked."""
    extend = ("--extend", written(tmp_path_factory.mktemp("extension"), GUEST))
    with (
        serving("--size", "64M", "--allow-faults", *extend) as socket,
        Guest(images, socket) as guest,
    ):
        fork_commands(guest, "acc", "fault", "fw", "run")
        yield guest


@pytest.fixture(scope="session")
def computational_guest(images: GuestImages) -> Iterator[Guest]:
    """As `shared_guest`, with a memory namespace of 4 MiB, that is in a BAR, a compute and a key
    value namespace."""
    options = (
        "--size", "64M", "--memory-namespace", "4M", "--memory-capacity", "8M", "--memory-bar",
        "--compute-namespace", "--kv-namespace", "4M",
    )  # fmt: skip
    with serving(*options) as socket, Guest(images, socket, namespaces=4) as guest:
        fork_commands(guest, "cp", "kv", "query", "slm")
        yield guest


CLEARED = "nvme io-passthru /dev/ng0n2 --opcode=4 --namespace-id=2 --cdw12=4194304"
"""Memory Fill."""


@pytest.fixture(scope="module")
def linux(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """The guest that `SHARED_GUESTS` has for a file's tests. The next file has a controller that
    was reset, zeros in memory, and nothing in the kernel's log."""
    name = SHARED_GUESTS[f"tests/vm/{request.path.name}"]
    guest: Guest = request.getfixturevalue(name)
    yield guest
    clear = f"{CLEARED} &&" if name == "computational_guest" else ""
    done = guest.capture(["sh", "-c", f"{clear} nvme reset /dev/nvme0 && dmesg -c"])
    assert done.code == 0, done
    assert b"unusual effects" not in done.stdout  # which Linux says of a command once


@pytest.fixture
def potash_guest(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[PotashGuest]:
    """Without a process of its own, which would cost each test half a second."""

    def run(*words: object) -> CompletedProcess[str]:
        command = ["guest", *map(str, words)]
        try:
            code = run_app(command)
        except SystemExit as end:  # with that of a command in the guest
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return CompletedProcess(command, code, out, err.removeprefix(WAITING))

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The file behind a drive of QEMU's own, of 16 MiB."""
    path = tmp_path / "blocks"
    with path.open("wb") as stream:
        stream.truncate(16 << 20)
    return path
