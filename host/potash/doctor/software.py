"""What is installed beside Potash: Python packages, a compiler, QEMU, the guest's Linux, KVM."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from potash.doctor.finding import Finding, State
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.vm import images as guest_images
from potash.vm import packages as debian
from potash.vm import qemu as machine
from potash.vm import snapshot, sources
from potash.vm.cache import Cache, folder
from potash.vm.qemu import Accelerator

IMPORT_LIMIT = 60.0
"""Seconds that an import may take: the first one reads some 100 MB."""

NEEDED = (
    ("NumPy", "numpy", "numpy"),
    ("numba", "numba", "numba"),
    ("LLVM", "llvmlite.binding", "llvmlite"),
    ("cffi", "cffi", "cffi"),
    ("LiteRT", "ai_edge_litert.interpreter", "ai-edge-litert"),
)
"""What it is called here, the module that is imported, the distribution to install."""

KVM_MEMORY = 512
"""MiB of the guest that is booted to try KVM."""


def packages(needed: Sequence[tuple[str, str, str]] = NEEDED) -> list[Finding]:
    """Whether what Potash is built upon can be imported, each in a process of its own."""
    script = (
        "import importlib, sys; module = importlib.import_module(sys.argv[1]);"
        "from importlib.metadata import version; print(version(sys.argv[2]))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, module, distribution],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _, module, distribution in needed
    ]
    found = []
    try:
        for process, (name, module, distribution) in zip(running, needed, strict=True):
            pip = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall {distribution}"
            try:
                said, wrong = process.communicate(timeout=IMPORT_LIMIT)
            except subprocess.TimeoutExpired:
                meaning = f"{module} is not imported after {IMPORT_LIMIT:g} seconds"
                found.append(Finding(name, State.MISSING, meaning, pip))
                continue
            if process.returncode == 0:
                found.append(Finding(name, State.GOOD, f"{distribution} {said.strip()}"))
                continue
            last = (wrong.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
            found.append(Finding(name, State.MISSING, f"cannot be imported: {last}", pip))
    finally:
        for process in running:
            with process:
                process.kill()
    return found


def compiler() -> Finding:
    """What `potash build` compiles with."""
    try:
        from potash.programs.compiler import find_compiler

        found = find_compiler()
    except PotashError:
        return Finding(
            "compiler",
            State.LIMITED,
            "neither clang nor ziglang: programs run, but none can be built",
            f"{shlex.quote(sys.executable)} -m pip install 'potash[ziglang]'",
        )
    except ImportError as error:
        return Finding("compiler", State.LIMITED, f"not looked for: {error}")
    return Finding("compiler", State.GOOD, f"{found.name} builds programs for the drive")


def qemu(mirror: str | None = None, root: Path | None = None) -> Finding:
    """Which QEMU a guest would run in."""
    name, client = "QEMU", machine.CLIENT
    own = shutil.which(machine.PROGRAM)
    beside = "no QEMU on PATH" if own is None else f"{own} is too old or lacks {client}"
    found = machine.installed()
    if found is not None:
        return Finding(name, State.GOOD, f"{own}: {found.version}, with {client}")
    tree = _tree(debian.QEMU, root)
    if tree is not None:
        try:
            found = machine.unpacked(tree)
        except PotashError as error:
            return Finding(
                name, State.MISSING, f"the downloaded one: {error}", "potash guest --refresh"
            )
        return Finding(name, State.GOOD, f"the downloaded one: {found.version}, with {client}")
    return _to_download(name, f"{beside}, so it", mirror, "potash guest -- true")


def guest(mirror: str | None = None, root: Path | None = None) -> Finding:
    """Whether there is a Linux for guests."""
    tree = _tree(debian.GUEST, root)
    if tree is None:
        return _to_download("guest", "Linux for guests", mirror, "potash guest -- true")
    return Finding("guest", State.GOOD, f"{_kernel(tree)}, unpacked in {tree}")


def kvm(
    progress: Progress,
    *,
    boot: bool = True,
    device: Path = snapshot.KVM,
    root: Path | None = None,
) -> Finding:
    """Whether KVM is of use: a `/dev/kvm` may open, and a guest show no life under it."""
    name = "KVM"
    emulated = "guests run on an emulated processor"
    if not device.exists():
        return Finding(
            name,
            State.LIMITED,
            f"not usable: {device} is missing; {emulated}",
            "sudo modprobe kvm_amd || sudo modprobe kvm_intel",
        )
    if not os.access(device, os.R_OK | os.W_OK):
        return Finding(
            name,
            State.LIMITED,
            f"not usable: {device} may not be opened by this user; {emulated}",
            'sudo usermod -aG kvm "$USER"  # and log in again',
        )
    if not boot:
        return Finding(name, State.LIMITED, f"{device} opens; no guest was booted to try it")
    if _tree(debian.GUEST, root) is None or (
        machine.installed() is None and _tree(debian.QEMU, root) is None
    ):
        return Finding(
            name,
            State.LIMITED,
            f"{device} opens; there is no guest to try it",
            "potash guest -- true",
        )
    try:
        found = guest_images.prepare(progress)
        progress("booting a guest under KVM", None)
        seconds = snapshot.boot(found, snapshot.Shape(KVM_MEMORY, 1), Accelerator.KVM)
    except PotashError as error:
        why = str(getattr(error, "reason", error)).splitlines()[0]
        return Finding(name, State.LIMITED, f"not usable: {why}; {emulated}")
    return Finding(name, State.GOOD, f"a guest boots in {seconds:.1f} s")


def _tree(closure: debian.Closure, root: Path | None) -> Path | None:
    """Where a closure is unpacked, if it is."""
    tree = Cache(folder() if root is None else root).root / "trees" / closure.key
    return tree if tree.is_dir() else None


def _kernel(tree: Path) -> str:
    found = sorted((tree / "boot").glob("vmlinuz-*"))
    return f"Linux {found[-1].name.removeprefix('vmlinuz-')}" if found else "no kernel"


def _to_download(name: str, what: str, mirror: str | None, command: str) -> Finding:
    """Whether what is missing can be downloaded when it is needed."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        meaning = "a guest needs a Linux host with an x86-64 processor"
        return Finding(name, State.MISSING, meaning, "potash demo --embedded")
    lacking = [tool for tool in debian.TOOLS if shutil.which(tool) is None]
    if lacking:
        return Finding(
            name,
            State.MISSING,
            f"{what} would be downloaded with {', '.join(debian.TOOLS)}, and "
            f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not there",
            "sudo apt-get install apt dpkg tar",
        )
    try:
        sources.mirror(mirror)
    except PotashError as error:
        return Finding(
            name, State.MISSING, f"{what} cannot be downloaded: {error}",
            f"export {sources.ENVIRONMENT}=ADDRESS",
        )  # fmt: skip
    return Finding(
        name,
        State.GOOD,
        f"{what} is downloaded from the Debian archive at the first start",
        command,
    )
