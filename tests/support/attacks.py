"""What code does that has got loose in a worker, as a helper that another package lends.

`ATTACK(which)` gives 0 where it got through, and the error's number where it was refused; it does
not come back where the worker was ended for it. It needs nothing of the tests, as workers import
it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from potash_firmware.bpf import AddedHelper

libc: Any = ctypes.CDLL(None, use_errno=True)

NUMBERS = {
    # x86-64 (syscall_64.tbl), aarch64 (unistd.h)
    "ptrace": (101, 117),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "setuid": (105, 146),
    "capset": (126, 91),
    "shmget": (29, 194),
    "clone": (56, 220),
    "execveat": (322, 281),
    "memfd_create": (319, 279),
    "open_by_handle_at": (304, 265),
    "finit_module": (313, 273),
    "pwrite64": (18, 68),
    "truncate": (76, 45),
    "setsid": (112, 157),
    "landlock_create_ruleset": (444, 444),
    "seccomp": (317, 277),
    "preadv2": (327, 286),
    "recvfrom": (45, 207),
    "mmap": (9, 222),
    "personality": (135, 92),
    "arch_prctl": (158, 158),  # x86 alone
}
SIGCHLD = 17


def raw(name: str, *arguments: int | bytes) -> None:
    number = NUMBERS[name][os.uname().machine == "aarch64"]
    _raise(libc.syscall(ctypes.c_long(number), *map(_word, arguments)))


def _word(value: int | bytes) -> Any:
    return ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)


def _raise(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _home() -> str:
    return os.path.expanduser("~")


def _reopen_for_writing() -> None:
    """Media, the arena and all else that is open, again and writable."""
    refused = OSError(errno.EBADF, "nothing is open")
    for number in range(3, 64):
        try:
            os.close(os.open(f"/proc/self/fd/{number}", os.O_RDWR))
            return
        except OSError as error:
            refused = error
    raise refused


def _write_read_only() -> None:
    """To whatever is open, as media are; what may be written is the channel's and memory's."""
    refused = OSError(errno.EBADF, "nothing is open")
    for number in range(3, 64):
        try:
            if os.lseek(number, 0, os.SEEK_CUR) == 0 and os.fstat(number).st_nlink:
                os.write(number, b"")
                return
        except OSError as error:
            refused = error
    raise refused


def _listen() -> None:
    with socket.socket() as made:
        made.bind(("0.0.0.0", 0))
        made.listen()


def _cache(name: str) -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or f"{_home()}/.cache", "potash", name)


def _poison() -> None:
    with open(os.path.join(_cache("bpf"), "0" * 64 + ".o"), "wb") as file:
        file.write(b"planted")


def _compatible() -> None:
    """A system call by the numbers of 32 bits: getpid with int 0x80."""
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "only x86 has it")
    code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


def _other_table() -> None:
    """A system call by the numbers of x32: getpid."""
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "only x86 has it")
    _raise(libc.syscall(ctypes.c_long(0x40000000 | 39)))


def _thread() -> None:
    """What is allowed: libraries have threads."""
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(1))
    thread.start()
    thread.join()
    if not done:
        raise OSError(errno.EAGAIN, "no thread")


def _map_shared() -> None:
    mmap.mmap(-1, 1 << 20)


def _dumpable() -> None:
    _raise(libc.prctl(4, 1, 0, 0, 0))


def _arch_prctl(option: int, argument: int) -> None:
    if os.uname().machine != "x86_64":
        raise OSError(errno.EPERM, "only x86 has it")
    raw("arch_prctl", option, argument)


def _ask_for_tiles() -> None:
    """The kernel's own answer comes back, where the processor has none."""
    try:
        _arch_prctl(0x1023, 18)
    except OSError as error:
        if os.uname().machine == "x86_64" and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _regain() -> None:
    _raise(libc.prctl(8, 1, 0, 0, 0))


def _raise_limit() -> None:
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))
    except ValueError:  # so Python calls it
        raise PermissionError(errno.EPERM, "a limit") from None


def _limit_of_parent() -> None:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))


def _read_terminal() -> None:
    os.read(2, 1)


def _read_terminal_at_its_position() -> None:
    word = (ctypes.c_uint64 * 3)()
    word[0], word[1] = ctypes.addressof(word) + 16, 1  # a struct iovec, and its byte
    raw("preadv2", 2, ctypes.addressof(word), 1, (1 << 64) - 1, (1 << 64) - 1, 0)


def _map_growing() -> None:
    """What grows downwards counts as a stack, and a limit of data does not count it."""
    readable, private, anonymous, growing = 3, 2, 0x20, 0x100
    raw("mmap", 0, 4096, readable, private | anonymous | growing, (1 << 64) - 1, 0)


def _secret() -> None:
    if "USERS_TOKEN" not in os.environ:
        raise OSError(errno.EACCES, "no secret")


def _hang_up() -> None:
    for number in range(3, 64):
        with suppress(OSError):
            os.close(number)
    time.sleep(60)


def _memory() -> None:
    held = bytearray(3 << 30)
    held[::4096] = b"x" * len(held[::4096])


ATTACKS: dict[str, Callable[[], object]] = {
    "read a user's file": lambda: open("/etc/passwd", "rb").close(),
    "list a home": lambda: os.listdir(_home()),
    "read a parent's memory": lambda: os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY)),
    "read its own map": lambda: os.close(os.open("/proc/self/maps", os.O_RDONLY)),
    "write where it can read": lambda: os.close(os.open("/dev/null", os.O_WRONLY)),
    "make a file": lambda: os.close(os.open("/tmp/planted", os.O_RDONLY | os.O_CREAT)),
    "plant machine code": _poison,
    "list programs of others": lambda: os.listdir(_cache("bpf")),
    "list models of others": lambda: os.listdir(_cache("models")),
    "remove a file": lambda: os.unlink(__file__),
    "truncate a file": lambda: raw("truncate", __file__.encode(), 0),
    "open what is open for writing": _reopen_for_writing,
    "write to media": _write_read_only,
    "write at an offset": lambda: raw("pwrite64", 2, b"x", 0, 0),
    "open a device": lambda: os.close(os.open("/dev/zero", os.O_RDONLY)),
    "open by handle": lambda: raw("open_by_handle_at", 3, b"\0" * 64, 0),
    "make a socket": lambda: socket.socket(socket.AF_INET).close(),
    "make a local socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "make a pair of sockets": lambda: socket.socketpair(),
    "listen": _listen,
    "fork": lambda: os.fork() or os._exit(0),
    "make a process": lambda: raw("clone", SIGCHLD, 0, 0, 0, 0),
    "start a shell": lambda: os.execv("/bin/sh", ["sh", "-c", "true"]),
    "start a program by descriptor": lambda: raw("execveat", 3, b"", 0, 0, 0x1000),
    "trace its parent": lambda: raw("ptrace", 16, os.getppid(), 0, 0),
    "write its parent's memory": lambda: raw("process_vm_writev", os.getppid(), 0, 0, 0, 0, 0),
    "hold its parent": lambda: raw("pidfd_open", os.getppid(), 0),
    "take its parent's descriptor": lambda: raw("pidfd_getfd", 3, 0, 0),
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "signal all": lambda: os.kill(-1, 0),
    "leave its session": lambda: raw("setsid"),
    "make memory to share": lambda: raw("memfd_create", b"x", 0),
    "map memory to share": _map_shared,
    "get System V memory": lambda: raw("shmget", 0, 4096, 0o1600),
    "load BPF": lambda: raw("bpf", 0, 0, 0),
    "set up io_uring": lambda: raw("io_uring_setup", 1, 0),
    "open performance events": lambda: raw("perf_event_open", 0, 0, -1 & 0xFFFFFFFF, 0, 0),
    "handle page faults": lambda: raw("userfaultfd", 0),
    "add a key": lambda: raw("add_key", b"user", b"x", b"y", 1, 0),
    "load a module": lambda: raw("finit_module", 3, b"", 0),
    "mount": lambda: raw("mount", b"none", b"/tmp", b"tmpfs", 0, 0),
    "make namespaces": lambda: raw("unshare", 0x20000),
    "enter a namespace": lambda: raw("setns", 3, 0),
    "change the root": lambda: raw("chroot", b"/"),
    "change the user": lambda: raw("setuid", 0),
    "set capabilities": lambda: raw("capset", 0, 0),
    "keep capabilities": _regain,
    "be dumpable": _dumpable,
    "change personality": lambda: raw("personality", 0x0400000),
    "move its thread's memory": lambda: _arch_prctl(0x1002, 0),
    "ask for another component's registers": lambda: _arch_prctl(0x1023, 17),
    "learn what registers it may use": lambda: _arch_prctl(0x1022, 0),
    "raise a limit": _raise_limit,
    "limit its parent": _limit_of_parent,
    "read what is typed": _read_terminal,
    "read what is typed at its position": _read_terminal_at_its_position,
    "receive what is typed": lambda: raw("recvfrom", 2, 0, 0, 0, 0, 0),
    "duplicate a terminal": lambda: os.dup(2),
    "duplicate a terminal by fcntl": lambda: fcntl.fcntl(2, fcntl.F_DUPFD, 3),
    "map memory that grows": _map_growing,
    "learn a secret of its user's environment": _secret,
    "call as 32 bits": _compatible,
    "call as x32": _other_table,
}
"""What must not work, by what it is."""

ALLOWED: dict[str, Callable[[], object]] = {
    "start a thread": _thread,
    "ask for the registers of AMX": _ask_for_tiles,
    "read a library": lambda: open(os.__file__, "rb").close(),
}
"""What must."""

OTHER: dict[str, Callable[[], object]] = {
    "take memory": _memory,
    "abort": os.abort,
    "hang up and stay": _hang_up,
}

EVERYTHING = [*ATTACKS, *ALLOWED, *OTHER]


def _attack(_: object, which: int, *__: int) -> int:
    act = (ATTACKS | ALLOWED | OTHER)[EVERYTHING[which]]
    try:
        act()
    except OSError as error:
        return error.errno or 255
    return 0


ATTACK = AddedHelper(40, _attack)
