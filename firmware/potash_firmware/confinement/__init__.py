"""Confinement of processes before they read untrusted input.

A confined process keeps the descriptors that it has and its memory. It gains no privileges, has no
capabilities, can open files only for reading and only in given directories, creates no sockets and
no processes, reaches no other process, and has limits of memory, time and files that it cannot
raise. `missing` lists measures that the kernel does not support.

This uses prctl(2) and syscall(2) directly: libseccomp and its bindings are not in a wheel and not
on every system, and would only provide the numbers of about a hundred system calls.

Sources: prctl(2), seccomp(2), landlock(7), capabilities(7), getrlimit(2).
"""

import ctypes
import functools
import os
import resource
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from potash_firmware.confinement import landlock, seccomp
from potash_firmware.confinement.kernel import prctl, system_call
from potash_firmware.confinement.system_calls import rules

__all__ = ["Bounds", "be_undumpable", "confine", "libraries", "missing", "stay_readable"]

PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
"""More than there are: those that a kernel does not know cannot be dropped."""

_PROCESSES = 1 << 14
"""Half of the fewest identifiers that Linux has. All threads of the user count, so it is not less;
the kernel does not hold root to it."""

_RESERVED = 64 << 30
"""Bytes of addresses beside the memory that may be used: mappings that nothing can be written
to."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a confined process: bytes of private memory, seconds of processor time, bytes of a
    file that it writes to, descriptors; the folders and files that it may read, and folders whose
    files it may read but not list."""

    memory: int
    seconds: int
    file_size: int = 1 << 30
    open_files: int = 64
    readable: tuple[Path, ...] = ()
    unlisted: tuple[Path, ...] = ()


def missing() -> tuple[str, ...]:
    """A sentence for each part of confinement that this kernel lacks, with the consequence."""
    found = []
    if not seccomp.supported():
        found.append(
            "seccomp is missing: programs and models that break out of their machine could make "
            "any system call"
        )
    if not landlock.version():
        found.append(
            "Landlock is missing: programs and models that break out of their machine could read "
            "files of the user that runs the device"
        )
    return tuple(found)


def be_undumpable() -> None:
    """Leave no core, and let no other process of the same user trace this one or read its
    memory."""
    with suppress(OSError):
        prctl(PR_SET_DUMPABLE, 0)


def confine(bounds: Bounds) -> None:
    """Confine this process, which has one thread, for ever. Raises OSError where a kernel that can
    confine does not."""
    _limit(bounds)
    be_undumpable()
    _drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if (version := landlock.version()) > 0:
        landlock.restrict(bounds.readable, bounds.unlisted, version)
    machine = seccomp.machine()
    if machine is not None and seccomp.supported():
        seccomp.install(seccomp.assemble(rules(os.getpid()), machine))


@functools.cache
def libraries() -> tuple[Path, ...]:
    """Folders and files of Python's code, of what it loads, and about the processor."""
    own = {path for path in sysconfig.get_paths().values() if path}
    folders = [*own, *sys.path, *site.getsitepackages(), sys.prefix, sys.base_prefix]
    system = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
    named = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    machine = ("/etc/ld.so.cache", "/proc/cpuinfo", "/sys/devices/system/cpu", "/dev/null")
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    linked = [link for folder in packages for link in _links(folder)]
    return tuple(Path(one) for one in _distinct((*folders, *linked, *system, *named, *machine)))


def stay_readable(paths: Iterable[Path]) -> bool:
    """True if a confined process of this user can enter all these folders.

    Root enters the folders of other users by capabilities, which a confined process gives up.
    """
    user, groups = os.geteuid(), {os.getegid(), *os.getgroups()}
    real = [path.resolve() for path in paths if path.is_dir()]
    wanted = {folder: 0o1 for path in real for folder in path.parents} | dict.fromkeys(real, 0o5)
    for folder, bits in wanted.items():
        status = folder.stat()
        shift = 6 if status.st_uid == user else 3 if status.st_gid in groups else 0
        if status.st_mode >> shift & bits != bits:
            return False
    return True


def _links(folder: str) -> Iterator[str]:
    """Links in `folder`: some installers link a package to a folder that many share."""
    with suppress(OSError), os.scandir(folder) as entries:
        yield from [entry.path for entry in entries if entry.is_symlink()]


def _distinct(paths: Iterable[str]) -> Iterator[str]:
    return iter(dict.fromkeys(path for path in paths if os.path.isabs(path)))


def _limit(bounds: Bounds) -> None:
    # Private memory counts alone: an arena's reserved addresses cost nothing.
    limits = {
        resource.RLIMIT_DATA: bounds.memory,
        resource.RLIMIT_AS: bounds.memory + _RESERVED,
        resource.RLIMIT_CPU: bounds.seconds + 1,
        resource.RLIMIT_FSIZE: bounds.file_size,
        resource.RLIMIT_NOFILE: bounds.open_files,
        resource.RLIMIT_NPROC: _PROCESSES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        # Of two limits that are the same the kernel acts on the hard one, by a SIGKILL that says
        # nothing.
        soft = limit - 1 if kind == resource.RLIMIT_CPU else limit
        resource.setrlimit(kind, (soft, limit))


def _drop_capabilities() -> None:
    for number in range(_CAPABILITIES):
        with suppress(OSError):  # there is none such, or it may not even be dropped
            prctl(PR_CAPBSET_DROP, number)
    with suppress(OSError):
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    number_of_call = _CAPSET.get(os.uname().machine)
    if number_of_call is not None:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        with suppress(OSError):  # a container's own filter may forbid even this
            system_call(number_of_call, header, (ctypes.c_uint32 * 6)())
