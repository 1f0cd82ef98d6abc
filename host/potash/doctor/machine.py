"""The machine itself: Python, memory, room on disks, the processor, a place for sockets."""

import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from potash.doctor.finding import Finding, State
from potash.vm import cache
from potash_firmware.confinement import missing as missing_confinement

GIBI, MEBI = 1 << 30, 1 << 20

OLDEST_PYTHON = (3, 11)

LEAST_MEMORY = 1 * GIBI
"""Bytes for a device, its accelerators' buffers and what compiles their code, without a guest."""
GUEST_MEMORY = 2 * GIBI
"""The same with the demo's guest."""

CACHE_ROOM = 1 * GIBI
"""Bytes on disk of QEMU, the guest and its frozen state."""
USED_CACHE_ROOM = GIBI // 4
"""Bytes that are still wanted where those are there: images and states are made anew at times."""
TEMPORARY_ROOM = 64 * MEBI
"""Bytes of what is copied into a guest and out of it."""

LONGEST_SOCKET = 107
"""Bytes of a UNIX socket's path (unix(7))."""
SOCKET_BELOW = "/potash-12345678/drive"
"""What a device's socket is called in the folder for temporary files."""

PATHS = (
    (frozenset({"avx512f", "avx512vl", "avx512bw", "avx512_vnni"}), "AVX-512 VNNI"),
    (frozenset({"avx2", "avx_vnni"}), "AVX-VNNI"),
    (frozenset({"avx512f", "avx512vl", "avx512bw"}), "AVX-512"),
    (frozenset({"avx2"}), "AVX2"),
)
"""What the tensor accelerator's simulator multiplies with, best first, by the kernel's names
(Documentation/arch/x86/cpuinfo.rst); the first two have vpdpbusd."""
VNNI = 2
"""So many of them have it."""


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The interpreter that runs this."""
    text = ".".join(map(str, version))
    if version >= OLDEST_PYTHON:
        return Finding("python", State.GOOD, f"Python {text}")
    return Finding(
        "python",
        State.MISSING,
        f"Python {text} is too old: Potash needs 3.11 or later",
        "make PYTHON=python3.12 setup",
    )


def memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Memory that is free for use, of the machine or of the container that this runs in."""
    available = _available(proc / "meminfo")
    if available is None:
        return Finding("memory", State.LIMITED, f"{proc / 'meminfo'} does not say how much is free")
    where = "free"
    limit = _number(cgroup / "memory.max")
    if limit is not None:
        left = max(limit - (_number(cgroup / "memory.current") or 0), 0)
        if left < available:
            available, where = left, "left to this container"
    said = f"{available / GIBI:.1f} GiB {where}"
    if available < LEAST_MEMORY:
        return Finding("memory", State.MISSING, f"{said}: a device with its programs wants 1 GiB")
    if available < GUEST_MEMORY:
        return Finding(
            "memory",
            State.LIMITED,
            f"{said}: enough for a device, a guest beside it wants 2 GiB",
            "potash demo --embedded",
        )
    return Finding("memory", State.GOOD, said)


def disk(folder: Path | None = None, temporary: Path | None = None) -> list[Finding]:
    """Room for the caches, and for what is temporary."""
    folder = cache.folder() if folder is None else folder
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    wanted = USED_CACHE_ROOM if (folder / "snapshots").is_dir() else CACHE_ROOM
    return [
        _room("cache", folder, wanted, "XDG_CACHE_HOME"),
        _room("temporary files", temporary, TEMPORARY_ROOM, "TMPDIR"),
    ]


def cpu(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str | None = None) -> Finding:
    """What the processor has for multiplying small integers."""
    machine = platform.machine() if machine is None else machine
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    flags: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = set(value.split())
            break
    for place, (features, name) in enumerate(PATHS):
        if features <= flags:
            others = ", ".join(other for needs, other in PATHS[place + 1 :] if needs <= flags)
            said = f"{name} for the tensor accelerator" + (f" (also {others})" if others else "")
            if place < VNNI:
                return Finding("processor", State.GOOD, said)
            return Finding("processor", State.LIMITED, f"{said}; VNNI would be faster")
    return Finding(
        "processor",
        State.LIMITED,
        f"{machine} without AVX2: the tensor accelerator's simulator is several times slower",
    )


def confinement(missing: Callable[[], Sequence[str]] = missing_confinement) -> Finding:
    """What the kernel has to confine the processes that run programs and models."""
    lacking = missing()
    if not lacking:
        return Finding("confinement", State.GOOD, "seccomp and Landlock for programs and models")
    return Finding("confinement", State.LIMITED, "; ".join(lacking))


def socket_folder(temporary: Path | None = None, user: int | None = None) -> Finding:
    """Whether sockets, which anybody who reaches them may use, can be this user's alone."""
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    user = os.geteuid() if user is None else user
    name, mend = (
        "socket folder",
        'mkdir -m 700 -p ~/.potash-tmp && export TMPDIR="$HOME/.potash-tmp"',
    )
    length = len(os.fsencode(f"{temporary}{SOCKET_BELOW}"))
    if length > LONGEST_SOCKET:
        said = f"{temporary} is too long for sockets in it: {length} bytes of {LONGEST_SOCKET}"
        return Finding(name, State.MISSING, said, mend)
    try:
        with tempfile.TemporaryDirectory(prefix="potash-", dir=temporary) as made:
            mode = Path(made).stat().st_mode
        above = temporary.stat()
    except OSError as error:
        said = f"no folder can be made in {temporary}: {error.strerror}"
        return Finding(name, State.MISSING, said, mend)
    if mode & 0o077:
        return Finding(name, State.MISSING, f"folders in {temporary} are open to others", mend)
    others_write = above.st_mode & 0o022
    if (others_write and not above.st_mode & stat.S_ISVTX) or above.st_uid not in (0, user):
        said = f"others can put a folder of theirs in the place of one in {temporary}"
        return Finding(name, State.MISSING, said, mend)
    return Finding(name, State.GOOD, f"private folders in {temporary}")


def _room(name: str, folder: Path, wanted: int, variable: str) -> Finding:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    mend = f"export {variable}={shlex.quote('/a/larger/disk')}"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, State.MISSING, f"{existing} cannot be written to", mend)
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(name, State.MISSING, f"{existing}: {error.strerror}", mend)
    said = f"{free / GIBI:.1f} GiB free in {folder}"
    if free < wanted:
        return Finding(name, State.MISSING, f"{said}, and {wanted / GIBI:.2g} GiB are wanted", mend)
    return Finding(name, State.GOOD, said)


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
