"""The system call allow list of confined processes, with restrictions of arguments.

The numbers are those of Linux's tables for the two machines (arch/x86/entry/syscalls/syscall_64.tbl
and scripts/syscall.tbl); None where a machine has no such call.
"""

import errno
import mmap
import os
from collections.abc import Mapping
from typing import NamedTuple

NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "recvmsg": (47, 212),
    "sendto": (44, 206),
    "madvise": (28, 233),
    "futex": (202, 98),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "preadv2": (327, 286),
    "close": (3, 57),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "brk": (12, 214),
    "clock_gettime": (228, 113),
    "ioctl": (16, 29),
    "openat": (257, 56),
    "open": (2, None),
    "stat": (4, None),
    "lstat": (6, None),
    "access": (21, None),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "statx": (332, 291),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "fadvise64": (221, 223),
    "readv": (19, 65),
    "writev": (20, 66),
    "sendmsg": (46, 211),
    "recvfrom": (45, 207),
    "getsockopt": (55, 209),
    "getsockname": (51, 204),
    "shutdown": (48, 210),
    "poll": (7, None),
    "ppoll": (271, 73),
    "dup": (32, 23),
    "fcntl": (72, 25),
    "mincore": (27, 232),
    "membarrier": (324, 283),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrandom": (318, 278),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getpriority": (140, 141),
    "getrlimit": (97, 163),
    "prlimit64": (302, 261),
    "prctl": (157, 167),
    "clone": (56, 220),
    "clone3": (435, 435),
    "rseq": (334, 293),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "tgkill": (234, 131),
    "exit": (60, 93),
    "exit_group": (231, 94),
    # What libraries try and do without.
    "openat2": (437, 437),
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "utimensat": (280, 88),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "memfd_create": (319, 279),
    "pipe2": (293, 59),
    "socket": (41, 198),
    "connect": (42, 203),
    "sched_setaffinity": (203, 122),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "mlock": (149, 228),
    "mbind": (237, 235),
    "get_mempolicy": (239, 236),
    "set_mempolicy": (238, 237),
    "arch_prctl": (158, None),
    "pkey_alloc": (330, 289),
}
"""Numbers of calls for x86-64 and for aarch64. Those that jobs call most are first: a filter
compares in this order."""


class Masked(NamedTuple):
    """Allowed while `mask` leaves `value` of the low 32 bits of an argument."""

    argument: int
    mask: int
    value: int


class OneOf(NamedTuple):
    """Allowed while the low 32 bits of an argument are one of these."""

    argument: int
    values: tuple[int, ...]


class Other(NamedTuple):
    """Allowed unless `mask` leaves one of these of the low 32 bits of an argument."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


class Null(NamedTuple):
    """Allowed while an argument, a pointer, is null."""

    argument: int


Condition = Masked | OneOf | Other | Null


class Rule(NamedTuple):
    """A call is allowed when all conditions hold, and fails with `error` otherwise."""

    conditions: tuple[Condition, ...] = ()
    error: int = errno.EPERM


ALLOWED = Rule()
REFUSED = Rule((OneOf(0, ()),))
MISSING = Rule((OneOf(0, ()),), errno.ENOSYS)
"""The rule of a call that the kernel seems to lack: the C library then uses an older one."""

_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
_CLONE_THREAD = 0x10000
_CLONE_NAMESPACES = 0x7E020000 | 0x80
"""CLONE_NEW… of sched.h."""
_PRCTL = (15, 16, 3, 0x53564D41)
"""Names of threads and of memory, and whether it is dumpable (linux/prctl.h)."""
_FCNTL = (0, 1, 2, 3, 1030, 1034)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC, F_GET_SEALS."""
_SHARED_ANONYMOUS = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
_GROWS_DOWN = 0x100
"""MAP_GROWSDOWN of linux/mman.h."""
_NOT_STANDARD = Other(0, (0, 1, 2))
"""Standard error may be a terminal, which somebody types into. A duplicate of it would be another
number."""
_READING = ("read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg", "dup")

_ASK_FOR_COMPONENT, _TILES = 0x1023, 18
"""ARCH_REQ_XCOMP_PERM of asm/prctl.h, and XFEATURE_XTILEDATA."""

_REFUSED = (
    *("creat", "mkdir", "mkdirat", "unlink", "unlinkat", "rename", "renameat", "renameat2"),
    *("utimensat", "ftruncate", "fallocate", "memfd_create", "pipe2", "socket", "connect"),
    *("sched_setaffinity", "setpriority", "setrlimit", "mlock"),
    *("mbind", "get_mempolicy", "set_mempolicy"),
)


def rules(pid: int) -> Mapping[str, Rule]:
    """The calls that the process `pid` may make; any other one ends it."""
    conditional = {
        **dict.fromkeys(_READING, Rule((_NOT_STANDARD,))),
        # Files are opened to be read.
        "open": Rule((Masked(1, _WRITING, 0),)),
        "openat": Rule((Masked(2, _WRITING, 0),)),
        "openat2": MISSING,
        # A terminal or not is all that Python asks.
        "ioctl": Rule((OneOf(0, ()),), errno.ENOTTY),
        "fcntl": Rule((_NOT_STANDARD, OneOf(1, _FCNTL))),
        # Not memory that a limit of private memory does not count: shared, or growing as a stack.
        "mmap": Rule(
            (Other(3, (_SHARED_ANONYMOUS,), _SHARED_ANONYMOUS), Masked(3, _GROWS_DOWN, 0))
        ),
        # Threads, which have the filter too, and no processes.
        "clone": Rule((Masked(0, _CLONE_THREAD | _CLONE_NAMESPACES, _CLONE_THREAD),)),
        "clone3": MISSING,
        "rseq": ALLOWED,
        "pkey_alloc": MISSING,
        "prctl": Rule((OneOf(0, _PRCTL),)),
        # The registers of AMX are for those who ask. Segment bases and CPUID stay as they are.
        "arch_prctl": Rule((OneOf(0, (_ASK_FOR_COMPONENT,)), OneOf(1, (_TILES,)))),
        "prlimit64": Rule((OneOf(0, (0, pid)), Null(2))),
        # It may end itself, as abort(3) does.
        "tgkill": Rule((OneOf(0, (pid,)),)),
    }
    return {
        name: conditional.get(name, REFUSED if name in _REFUSED else ALLOWED) for name in NUMBERS
    }
