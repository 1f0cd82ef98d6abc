"""Checks that this machine has everything that Potash needs, with commands that install what is
missing.

Each check is a function that changes nothing. No check imports what it checks, as a broken package
could crash this process.
"""

import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, NamedTuple

from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.vm import cache, snapshot
from potash.vm import images as guest_images
from potash.vm import packages as debian
from potash.vm import qemu as machine
from potash.vm.defaults import MIRROR_VARIABLE
from potash.vm.qemu import Accelerator, Shape
from potash_firmware.confinement import missing as missing_confinement
from potash_firmware.extension_files import GROUP as EXTENSIONS
from potash_firmware.tflite import TFLITE_RUNTIME, runtime_package

GIBI, MEBI = 1 << 30, 1 << 20

OLDEST_PYTHON = (3, 11)

LEAST_MEMORY = 1 * GIBI
"""Bytes for a device, its accelerators' buffers and what compiles their code, without a guest."""
GUEST_MEMORY = 2 * GIBI
"""Bytes for the same and the demo's guest."""

CACHE_ROOM = 1 * GIBI
"""Bytes on disk of QEMU, the guest and its frozen state."""
USED_CACHE_ROOM = GIBI // 4
"""Bytes that are still wanted where those are there: images and states are made anew at times."""
TEMPORARY_ROOM = 64 * MEBI
"""Bytes of what is copied into a guest and out of it."""

LONGEST_SOCKET = 107
"""Bytes of a UNIX socket's path (unix(7))."""
SOCKET_BELOW = "/potash-12345678/drive"
"""The path of a device's socket below the folder for temporary files."""

PATHS = (
    (frozenset({"avx512f", "avx512vl", "avx512bw", "avx512_vnni"}), "AVX-512 VNNI", True),
    (frozenset({"avx2", "avx_vnni"}), "AVX-VNNI", True),
    (frozenset({"avx512f", "avx512vl", "avx512bw"}), "AVX-512", False),
    (frozenset({"avx2"}), "AVX2", False),
)
"""Instruction sets with which the tensor accelerator's simulator multiplies, best first: the
kernel's names (Documentation/arch/x86/cpuinfo.rst), and whether vpdpbusd is among them."""

IMPORT_LIMIT = 60.0
"""Seconds that an import may take: the first one reads some 100 MB."""

NEEDED = (
    ("NumPy", "numpy", "numpy"),
    ("numba", "numba", "numba"),
    ("LLVM", "llvmlite.binding", "llvmlite"),
    ("cffi", "cffi", "cffi"),
    ("LiteRT", "ai_edge_litert.interpreter", "ai-edge-litert"),
)
"""The name that is shown, the module that is imported, the distribution to install."""

LIBUBPF = (
    "git clone --recurse-submodules https://github.com/iovisor/ubpf"
    " && cmake -S ubpf -B ubpf/build -DBUILD_SHARED_LIBS=ON && cmake --build ubpf/build"
    " && export POTASH_LIBUBPF=$PWD/ubpf/build/lib/libubpf.so"
)
"""Commands that build libubpf, as no package has it."""

KVM_MEMORY = 512
"""MiB of the guest that is booted to try KVM."""


class Grade(StrEnum):
    """The result of a check."""

    GOOD = "good"
    LIMITED = "limited"
    """Potash works without it, less well or less fast."""
    MISSING = "missing"
    """Potash does not work, or its guest does not."""


class Finding(NamedTuple):
    """The result of a check, what it means, and the command that resolves it."""

    name: Annotated[str, "The check's name."]
    state: Annotated[Grade, "The result."]
    meaning: Annotated[str, "The finding, or the consequence of an absence."]
    remedy: Annotated[str, "The command that resolves it; empty if there is none."] = ""


class Report(NamedTuple):
    """A check of this machine for what Potash needs."""

    healthy: Annotated[bool, "True if nothing is missing."]
    findings: Annotated[Sequence[Finding], "One for each check."]


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    said = f"Python {'.'.join(map(str, version))}"
    if version >= OLDEST_PYTHON:
        return Finding("python", Grade.GOOD, said)
    said += " is too old: Potash needs 3.11 or later"
    return Finding("python", Grade.MISSING, said, "make PYTHON=python3.12 setup")


def memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Memory that is free for use, of the machine or of the container that this runs in."""
    available = _available(proc / "meminfo")
    if available is None:
        return Finding("memory", Grade.LIMITED, f"{proc / 'meminfo'} does not say how much is free")
    where = "free"
    limit = _number(cgroup / "memory.max")
    if limit is not None:
        left = max(limit - (_number(cgroup / "memory.current") or 0), 0)
        if left < available:
            available, where = left, "left to this container"
    said = f"{available / GIBI:.1f} GiB {where}"
    if available < LEAST_MEMORY:
        return Finding("memory", Grade.MISSING, f"{said}: a device with its programs wants 1 GiB")
    if available < GUEST_MEMORY:
        said += ": enough for a device, a guest beside it wants 2 GiB"
        return Finding("memory", Grade.LIMITED, said, "potash demo --embedded")
    return Finding("memory", Grade.GOOD, said)


def disk(folder: Path | None = None, temporary: Path | None = None) -> list[Finding]:
    """Disk space for the caches, and for temporary files."""
    folder = cache.folder() if folder is None else folder
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    wanted = USED_CACHE_ROOM if (folder / "snapshots").is_dir() else CACHE_ROOM
    return [
        _room("cache", folder, wanted, "XDG_CACHE_HOME"),
        _room("temporary files", temporary, TEMPORARY_ROOM, "TMPDIR"),
    ]


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    """The processor's instructions for multiplying small integers."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((set(line.split()[2:]) for line in lines if line.startswith("flags")), set())
    for features, name, vnni in PATHS:
        if features <= flags:
            said = f"{name} for the tensor accelerator"
            if vnni:
                return Finding("processor", Grade.GOOD, said)
            return Finding("processor", Grade.LIMITED, f"{said}; VNNI would be faster")
    said = "no AVX2: the tensor accelerator's simulator is several times slower"
    return Finding("processor", Grade.LIMITED, said)


def confinement(missing: Callable[[], Sequence[str]] = missing_confinement) -> Finding:
    """The kernel's means to confine the processes that run programs and models."""
    lacking = missing()
    if not lacking:
        return Finding("confinement", Grade.GOOD, "seccomp and Landlock for programs and models")
    return Finding("confinement", Grade.LIMITED, "; ".join(lacking))


def socket_folder(temporary: Path | None = None, user: int | None = None) -> Finding:
    """A folder for sockets that is accessible to this user alone, as anybody who reaches a socket
    can use it."""
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    user = os.geteuid() if user is None else user
    name = "socket folder"
    remedy = 'mkdir -m 700 -p ~/.potash-tmp && export TMPDIR="$HOME/.potash-tmp"'
    length = len(os.fsencode(f"{temporary}{SOCKET_BELOW}"))
    if length > LONGEST_SOCKET:
        said = f"{temporary} is too long for sockets in it: {length} bytes of {LONGEST_SOCKET}"
        return Finding(name, Grade.MISSING, said, remedy)
    try:
        with tempfile.TemporaryDirectory(prefix="potash-", dir=temporary) as made:
            mode = Path(made).stat().st_mode
        above = temporary.stat()
    except OSError as error:
        said = f"no folder can be made in {temporary}: {error.strerror}"
        return Finding(name, Grade.MISSING, said, remedy)
    if mode & 0o077:
        return Finding(name, Grade.MISSING, f"folders in {temporary} are open to others", remedy)
    others_write = above.st_mode & 0o022
    if (others_write and not above.st_mode & stat.S_ISVTX) or above.st_uid not in (0, user):
        said = f"others can put a folder of theirs in the place of one in {temporary}"
        return Finding(name, Grade.MISSING, said, remedy)
    return Finding(name, Grade.GOOD, f"private folders in {temporary}")


def _room(name: str, folder: Path, wanted: int, variable: str) -> Finding:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    remedy = f"export {variable}={shlex.quote('/a/larger/disk')}"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, Grade.MISSING, f"{existing} cannot be written to", remedy)
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(name, Grade.MISSING, f"{existing}: {error.strerror}", remedy)
    said = f"{free / GIBI:.1f} GiB free in {folder}"
    if free < wanted:
        return Finding(
            name, Grade.MISSING, f"{said}, and {wanted / GIBI:.2g} GiB are wanted", remedy
        )
    return Finding(name, Grade.GOOD, said)


def _available(meminfo: Path) -> int | None:
    """MemAvailable in bytes (proc(5))."""
    try:
        lines: Mapping[str, str] = dict(
            line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line
        )
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _number(path: Path) -> int | None:
    """A control group's number; None where there is no such file, or no limit ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def packages(needed: Sequence[tuple[str, str, str]] = NEEDED) -> list[Finding]:
    """Packages that Potash needs."""
    script = (
        "import importlib, sys; module = importlib.import_module(sys.argv[1]);"
        "from importlib.metadata import version; print(version(sys.argv[2]))"
    )
    found = []
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda one: _separately(script, *one[1:]), needed)
        for (name, _, distribution), (works, said) in zip(needed, results, strict=True):
            if works:
                found.append(Finding(name, Grade.GOOD, f"{distribution} {said}"))
                continue
            pip = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall {distribution}"
            found.append(Finding(name, Grade.MISSING, f"cannot be imported: {said}", pip))
    return found


def extensions() -> list[Finding]:
    """Extensions of installed packages."""
    script = (
        "import sys; from potash_firmware.extension_files import load;"
        "print('; '.join(map(str, load(sys.argv[1:]).listed)))"
    )
    found = []
    for name in sorted(entry_points(group=EXTENSIONS).names):
        works, said = _separately(script, name)
        grade = Grade.GOOD if works else Grade.LIMITED
        found.append(Finding(f"extension {name}", grade, said or "nothing"))
    return found


def _separately(script: str, *arguments: str) -> tuple[bool, str]:
    """True if a script works in a process of its own; and the last line of its output."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IMPORT_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"it has not ended after {IMPORT_LIMIT:g} seconds"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode and not lines:
        return False, f"it ended with {done.returncode}"
    return not done.returncode, lines[-1] if lines else ""


def runtime() -> Finding:
    """The package that runs models."""
    package = runtime_package()
    said = f"{package.replace('_', '-')} runs models"
    if package == TFLITE_RUNTIME:
        return Finding("models", Grade.GOOD, said)
    if importlib.util.find_spec(TFLITE_RUNTIME) is None:
        said += "; on Python 3.11, pip install 'potash[tflite-runtime]' replaces it"
        return Finding("models", Grade.GOOD, said)
    said += ", as the installed tflite-runtime needs an older NumPy"
    remedy = f"{shlex.quote(sys.executable)} -m pip install 'potash[tflite-runtime]'"
    return Finding("models", Grade.LIMITED, said, remedy)


def queries() -> Finding:
    """The package with which a drive queries tables."""
    works, said = _separately("import pyarrow.acero as _, pyarrow; print(pyarrow.__version__)")
    if works:
        return Finding("queries", Grade.GOOD, f"pyarrow {said} queries tables on the drive")
    remedy = f"{shlex.quote(sys.executable)} -m pip install 'potash[columns]'"
    return Finding("queries", Grade.LIMITED, f"a drive queries no tables: {said}", remedy)


def libubpf() -> Finding:
    """The library of the engine `ubpf`."""
    _, lacking = _separately(
        "from potash_firmware.bpf import ubpf; print(ubpf.unavailable() or '')"
    )
    if not lacking:
        return Finding("libubpf", Grade.GOOD, "--engine ubpf can run programs")
    return Finding("libubpf", Grade.LIMITED, f"no --engine ubpf: {lacking}", LIBUBPF)


def compiler() -> Finding:
    """The compiler of `potash build`."""
    try:
        from potash.programs.compiler import find_compiler

        found = find_compiler()
    except PotashError:
        said = "neither clang nor ziglang: programs run, but none can be built"
        remedy = f"{shlex.quote(sys.executable)} -m pip install 'potash[ziglang]'"
        return Finding("compiler", Grade.LIMITED, said, remedy)
    except ImportError as error:
        return Finding("compiler", Grade.LIMITED, f"not looked for: {error}")
    return Finding("compiler", Grade.GOOD, f"{found.name} builds programs for the drive")


def qemu(mirror: str | None = None, root: Path | None = None) -> Finding:
    """The QEMU in which a guest would run."""
    name, client = "QEMU", machine.CLIENT
    own = shutil.which(machine.PROGRAM)
    beside = "no QEMU on PATH" if own is None else f"{own} is too old or lacks {client}"
    found = machine.installed()
    if found is not None:
        return Finding(name, Grade.GOOD, f"{own}: {found.version}, with {client}")
    tree = _tree(debian.QEMU, root)
    if tree is not None:
        try:
            found = machine.unpacked(tree)
        except PotashError as error:
            return Finding(
                name, Grade.MISSING, f"the downloaded one: {error}", "potash guest --refresh"
            )
        return Finding(name, Grade.GOOD, f"the downloaded one: {found.version}, with {client}")
    return _to_download(name, f"{beside}, so it", mirror, "potash guest -- true")


def guest(mirror: str | None = None, root: Path | None = None) -> Finding:
    """The Linux for guests."""
    tree = _tree(debian.GUEST, root)
    if tree is None:
        return _to_download("guest", "Linux for guests", mirror, "potash guest -- true")
    found = sorted((tree / "boot").glob("vmlinuz-*"))
    kernel = f"Linux {found[-1].name.removeprefix('vmlinuz-')}" if found else "no kernel"
    return Finding("guest", Grade.GOOD, f"{kernel}, unpacked in {tree}")


def kvm(
    progress: Progress, *, boot: bool = True, device: Path = snapshot.KVM, root: Path | None = None
) -> Finding:
    """KVM, tried by booting a guest: a `/dev/kvm` that opens may be useless."""

    def limited(said: str, remedy: str = "") -> Finding:
        return Finding("KVM", Grade.LIMITED, said, remedy)

    emulated = "guests run on an emulated processor"
    if not device.exists():
        remedy = "sudo modprobe kvm_amd || sudo modprobe kvm_intel"
        return limited(f"not usable: {device} is missing; {emulated}", remedy)
    if not os.access(device, os.R_OK | os.W_OK):
        remedy = _kvm_access(device)
        return limited(f"not usable: {device} may not be opened by this user; {emulated}", remedy)
    if not boot:
        return limited(f"{device} opens; no guest was booted to try it")
    if _tree(debian.GUEST, root) is None or (
        machine.installed() is None and _tree(debian.QEMU, root) is None
    ):
        return limited(f"{device} opens; there is no guest to try it", "potash guest -- true")
    try:
        found = guest_images.prepare(progress)
        progress("booting a guest under KVM", None)
        seconds = snapshot.boot(found, Shape(KVM_MEMORY, 1), Accelerator.KVM)
    except PotashError as error:
        why = str(getattr(error, "reason", error)).splitlines()[0]
        return limited(f"not usable: {why}; {emulated}")
    return Finding("KVM", Grade.GOOD, f"a guest boots in {seconds:.1f} s")


def _kvm_access(device: Path) -> str:
    """The command that lets this user open the device: by its group, where that may open it."""
    found = device.stat()
    if found.st_gid == 0 or found.st_mode & 0o060 != 0o060:
        return f'sudo setfacl -m "u:$USER:rw" {device}'
    try:
        group, new = device.group(), ""
    except KeyError:  # as in a container, whose groups are not the machine's
        group = f"kvm{found.st_gid}"
        new = f"sudo groupadd -g {found.st_gid} {group} && "
    return f'{new}sudo usermod -aG {group} "$USER"  # and log in again'


def _tree(closure: debian.Closure, root: Path | None) -> Path | None:
    tree = cache.Cache(cache.folder() if root is None else root).root / "trees" / closure.key
    return tree if tree.is_dir() else None


def _to_download(name: str, what: str, mirror: str | None, command: str) -> Finding:
    """A missing part that is downloaded when it is needed, if that is possible."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        meaning = "a guest needs a Linux host with an x86-64 processor"
        return Finding(name, Grade.MISSING, meaning, "potash demo --embedded")
    lacking = [tool for tool in debian.TOOLS if shutil.which(tool) is None]
    if lacking:
        tools = f"{', '.join(debian.TOOLS)}, and {', '.join(lacking)}"
        verb = "is" if len(lacking) == 1 else "are"
        said = f"{what} would be downloaded with {tools} {verb} not there"
        return Finding(name, Grade.MISSING, said, "sudo apt-get install apt dpkg tar")
    try:
        debian.mirror(mirror)
    except PotashError as error:
        said = f"{what} cannot be downloaded: {error}"
        return Finding(name, Grade.MISSING, said, f"export {MIRROR_VARIABLE}=ADDRESS")
    said = f"{what} is downloaded from the Debian archive at the first start"
    return Finding(name, Grade.GOOD, said, command)
