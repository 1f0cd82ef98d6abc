"""The kernel's NVMe driver as a transport: passthrough commands by ioctl.

Works on a controller (`/dev/nvme0`) and on a namespace (`/dev/nvme0n1`), which takes Admin commands
just as well. Structures and numbers are those of Linux's `include/uapi/linux/nvme_ioctl.h`.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from potash.sdk.errors import (
    CommandFailed,
    CommandTimeout,
    DeviceGone,
    DeviceNotFound,
    InvalidRequest,
    PotashError,
)
from potash.sdk.transport import Completion, Ended, PendingCommand, Request

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

PASSTHRU_COMMAND = struct.Struct("<BBHIIIQQIIIIIIIIII")
"""`struct nvme_passthru_cmd`: opcode, flags, reserved, nsid, cdw2, cdw3, metadata, addr,
metadata_len, data_len, cdw10 to cdw15, timeout_ms, result."""
RESULT_OFFSET = PASSTHRU_COMMAND.size - 4

_READ_WRITE = 3
_IOCTL_TYPE = ord("N")


def _io(number: int) -> int:
    return _IOCTL_TYPE << 8 | number


def _iowr(number: int, size: int) -> int:
    return _READ_WRITE << 30 | size << 16 | _IOCTL_TYPE << 8 | number


NVME_IOCTL_ID = _io(0x40)
NVME_IOCTL_ADMIN_CMD = _iowr(0x41, PASSTHRU_COMMAND.size)
NVME_IOCTL_IO_CMD = _iowr(0x43, PASSTHRU_COMMAND.size)
NVME_IOCTL_RESET = _io(0x44)

MAX_TRANSFER = 256 * 1024
"""Bytes in one command. The kernel takes at most 127 segments, and memory of a process may need
one for each page, so this stays well below."""

STATUS_MASK = 0x7FF
DNR_BIT = 1 << 14
"""The kernel hands the status field over without its phase tag, so Do Not Retry is bit 14."""

GIVE = "give one such as /dev/nvme0n1"

Ioctl = Callable[[int, int, bytearray | int], int]


def _kernel_ioctl(fd: int, request: int, argument: bytearray | int) -> int:
    return fcntl.ioctl(fd, request, argument)


class IoctlTransport:
    """Passthrough commands on an open file descriptor, which it owns from now on."""

    max_transfer = MAX_TRANSFER
    reports_events = False
    """The kernel keeps all event requests for itself."""

    def __init__(
        self,
        fd: int,
        *,
        nsid: int | None = None,
        block_device: int | None = None,
        queue_depth: int = 1,
        ioctl: Ioctl = _kernel_ioctl,
    ) -> None:
        self.queue_depth = queue_depth
        self._threads: ThreadPoolExecutor | None = None
        if queue_depth > 1:
            # The ioctl blocks. The import takes a while, so who wants one command goes without.
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(queue_depth)
        self._fd = fd
        self.nsid = nsid
        self.block_device = block_device
        self._ioctl = ioctl

    def submit(self, request: Request, timeout: float) -> PendingCommand:
        """As `Transport.submit`; PotashError also when the kernel refuses the command.

        With a queue depth of 1 the command is carried out at once, else on one of that many
        threads; further ones wait for a thread.
        """
        data = array.array("B")
        data.frombytes(request.data_out or bytes(request.data_in_length))
        if self._threads is not None:
            return self._threads.submit(self._execute, request, data, timeout)
        try:
            return Ended(self._execute(request, data, timeout))
        except PotashError as error:
            return Ended(error)

    def _execute(self, request: Request, data: array.array[int], timeout: float) -> Completion:
        address, length = data.buffer_info()
        command = bytearray(
            PASSTHRU_COMMAND.pack(
                request.opcode,
                0,
                0,
                request.nsid,
                0,
                0,
                0,
                address if length else 0,
                0,
                length,
                *request.cdws,
                max(1, round(timeout * 1000)),
                0,
            )
        )
        number = NVME_IOCTL_ADMIN_CMD if request.admin else NVME_IOCTL_IO_CMD
        status = self._call(number, command)
        if status:
            raise CommandFailed(
                request.admin, request.opcode, status & STATUS_MASK, dnr=bool(status & DNR_BIT)
            )
        (result,) = struct.unpack_from("<I", command, RESULT_OFFSET)
        return Completion(result, data.tobytes() if request.data_in_length else b"")

    def await_event(self, timeout: float) -> int | None:
        raise InvalidRequest("the kernel's driver does not hand asynchronous events out")

    def reset(self) -> None:
        self._call(NVME_IOCTL_RESET, 0)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _call(self, number: int, argument: bytearray | int) -> int:
        if self._fd < 0:
            raise DeviceGone("the device is closed")
        try:
            return self._ioctl(self._fd, number, argument)
        except OSError as error:
            raise _translated(error) from error


def open_ioctl(path: str, ioctl: Ioctl = _kernel_ioctl, *, queue_depth: int = 1) -> IoctlTransport:
    """Open a controller or a namespace. Raises DeviceNotFound when it is neither."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        hint = f"; {GIVE}, or vfio-user:SOCKET where potash serve runs"
        if error.errno in (errno.EACCES, errno.EPERM):
            hint = "; run this as root"
        if error.errno == errno.ENXIO and stat.S_ISSOCK(os.stat(path).st_mode):
            hint = f"; it is a socket, which is named vfio-user:{path}"
        raise DeviceNotFound(f"cannot open {path or repr(path)}: {error.strerror}{hint}") from error
    try:
        nsid = _namespace_of(fd, path, ioctl)
        block_device = os.fstat(fd).st_rdev if nsid is not None else None
        return IoctlTransport(
            fd, nsid=nsid, block_device=block_device, queue_depth=queue_depth, ioctl=ioctl
        )
    except BaseException:
        os.close(fd)
        raise


def _namespace_of(fd: int, path: str, ioctl: Ioctl) -> int | None:
    """The namespace that `fd` is; None for a controller."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISCHR(mode):
        return None
    if not stat.S_ISBLK(mode):
        raise DeviceNotFound(f"{path} is not a device; {GIVE}")
    try:
        return ioctl(fd, NVME_IOCTL_ID, 0)
    except OSError as error:
        raise DeviceNotFound(f"{path} is not an NVMe device: {error.strerror}") from error


def _translated(error: OSError) -> PotashError:
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return DeviceGone("the device is gone")
    if error.errno in (errno.ETIMEDOUT, errno.ETIME):
        return CommandTimeout("the command did not complete in time")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PotashError("the kernel does not let you send this command; run this as root")
    if error.errno == errno.ENOTTY:
        return DeviceNotFound(f"this is not an NVMe device; {GIVE}")
    return PotashError(f"the kernel did not send the command: {error.strerror}")
