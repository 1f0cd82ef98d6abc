"""One image for all tests that boot a guest, and one guest with a drive for several files; where
there can be none, they say why they are skipped."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from potash.cli.app import run_app
from potash.control import change_access
from potash.vm.drive import device_process
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.booted import booted
from support.extended import GUEST, written
from support.shared_guests import SHARED_GUESTS
from support.vm import WAITING, PotashGuest, await_access, fork_commands, shell


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


@contextlib.contextmanager
def shared_guest(images: GuestImages, folder: Path, paths: int) -> Iterator[Guest]:
    """A guest with a drive of 64 MiB, which has an extension, and commands that are forked."""
    options = ("--size", "64M", "--allow-faults", "--extend", written(folder, GUEST))
    with driven(images, folder, options, paths) as guest:
        fork_commands(guest, "acc", "fault", "fw", "run")
        yield guest


@contextlib.contextmanager
def computational_guest(images: GuestImages, folder: Path, paths: int) -> Iterator[Guest]:
    """As `shared_guest`, with a memory namespace of 4 MiB, a compute and a key value namespace. The
    memory is in a BAR, if the drive has one controller."""
    options = [
        "--size", "64M", "--memory-namespace", "4M", "--memory-capacity", "8M",
        "--compute-namespace", "--kv-namespace", "4M",
    ]  # fmt: skip
    if paths == 1:
        options.append("--memory-bar")
    with driven(images, folder, options, paths, namespaces=4) as guest:
        fork_commands(guest, "cp", "kv", "query", "slm")
        yield guest


@contextlib.contextmanager
def driven(
    images: GuestImages, folder: Path, options: Sequence[str], paths: int, namespaces: int = 1
) -> Iterator[Guest]:
    """A guest with a drive that has `paths` controllers, which Linux uses in turn."""
    sockets = [folder / f"drive{number}" for number in range(paths)]
    with (
        device_process(sockets[0], *options, more=sockets[1:]),
        Guest(images, sockets[0], more=sockets[1:], namespaces=namespaces) as guest,
    ):
        shell(guest, "echo round-robin | tee /sys/class/nvme-subsystem/*/iopolicy")
        yield guest


@pytest.fixture(scope="session")
def shared_guests(
    images: GuestImages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, int], Guest]]:
    """The guest of a name in `SHARED_GUESTS` whose drive has a number of controllers."""
    kinds = {"shared_guest": shared_guest, "computational_guest": computational_guest}
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(name: str, paths: int) -> Guest:
            folder = tmp_path_factory.mktemp("drive")
            return stack.enter_context(kinds[name](images, folder, paths))

        yield started


CLEARED = "nvme io-passthru /dev/ng0n2 --opcode=4 --namespace-id=2 --cdw12=4194304"
"""Memory Fill."""


@pytest.fixture(
    scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one", "two"]
)
def linux(
    request: pytest.FixtureRequest, shared_guests: Callable[[str, int], Guest]
) -> Iterator[Guest]:
    """The guest that `SHARED_GUESTS` has for a file's tests, whose drive has one controller, and in
    slow tests two. The next file has a controller that was reset, zeros in memory, and nothing in
    the kernel's log."""
    name = SHARED_GUESTS[f"tests/vm/{request.path.name}"]
    guest = shared_guests(name, request.param)
    yield guest
    clear = f"{CLEARED} &&" if name == "computational_guest" else ""
    done = guest.capture(["sh", "-c", f"{clear} nvme reset /dev/nvme0 && dmesg -c"])
    assert done.code == 0, done
    assert b"unusual effects" not in done.stdout  # which Linux says of a command once


@pytest.fixture
def accelerator_path(linux: Guest) -> Iterator[None]:
    """Linux uses the controller that has the accelerators, if the drive has two."""

    def change(state: str) -> None:
        for socket in linux.more:
            change_access(socket, state)
            await_access(linux, "optimized", state)

    change("non-optimized")
    yield
    change("optimized")


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
