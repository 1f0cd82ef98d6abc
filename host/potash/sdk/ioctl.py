"""The kernel's NVMe driver as a transport: passthrough commands by ioctl.

Works on a controller (`/dev/nvme0`) and on a namespace (`/dev/nvme0n1`, or `/dev/ng0n2` for one
that has no blocks), which takes Admin commands just as well. I/O commands to another namespace go
through its own device. Structures and numbers are those of Linux's
`include/uapi/linux/nvme_ioctl.h`.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from potash.sdk import errors
from potash.sdk.transport import Completion, Ended, PendingCommand, Request

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

PASSTHRU_COMMAND = struct.Struct("<BBHIIIQQIIIIIIIII4xQ")
"""`struct nvme_passthru_cmd64`: opcode, flags, reserved, nsid, cdw2, cdw3, metadata, addr,
metadata_len, data_len, cdw10 to cdw15, timeout_ms, reserved, result."""
RESULT_OFFSET = PASSTHRU_COMMAND.size - 8

_READ_WRITE = 3
_IOCTL_TYPE = ord("N")


def _io(number: int) -> int:
    return _IOCTL_TYPE << 8 | number


def _iowr(number: int, size: int) -> int:
    return _READ_WRITE << 30 | size << 16 | _IOCTL_TYPE << 8 | number


NVME_IOCTL_ID = _io(0x40)
NVME_IOCTL_RESET = _io(0x44)
NVME_IOCTL_ADMIN64_CMD = _iowr(0x47, PASSTHRU_COMMAND.size)
NVME_IOCTL_IO64_CMD = _iowr(0x48, PASSTHRU_COMMAND.size)

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
    carries_cdw4 = False
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
        namespaces: Callable[[int], int | None] = lambda nsid: None,
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
        self._open_namespace = namespaces
        self._namespaces: dict[int, int] = {}

    def submit(self, request: Request, timeout: float) -> PendingCommand:
        """Implement `Transport.submit`; PotashError also if the kernel refuses the command.

        With a queue depth of 1 the command is carried out at once, else on one of that many
        threads; further ones wait for a thread.
        """
        data = array.array("B")
        data.frombytes(request.data_out or bytes(request.data_in_length))
        fd = self._fd if request.admin else self._namespace(request.nsid)
        if self._threads is not None:
            return self._threads.submit(self._execute, fd, request, data, timeout)
        try:
            return Ended(self._execute(fd, request, data, timeout))
        except errors.PotashError as error:
            return Ended(error)

    def _execute(
        self, fd: int, request: Request, data: array.array[int], timeout: float
    ) -> Completion:
        address, length = data.buffer_info()
        command = bytearray(
            PASSTHRU_COMMAND.pack(
                request.opcode,
                0,
                0,
                request.nsid,
                request.cdw2,
                request.cdw3,
                0,
                address if length else 0,
                0,
                length,
                *request.cdws,
                max(1, round(timeout * 1000)),
                0,
            )
        )
        number = NVME_IOCTL_ADMIN64_CMD if request.admin else NVME_IOCTL_IO64_CMD
        status = self._call(fd, number, command)
        (result,) = struct.unpack_from("<Q", command, RESULT_OFFSET)
        if status:
            raise errors.CommandFailed(
                request.admin,
                request.opcode,
                status & STATUS_MASK,
                dnr=bool(status & DNR_BIT),
                csi=request.csi,
                result=result,
            )
        return Completion(result, data.tobytes() if request.data_in_length else b"")

    def await_event(self, timeout: float) -> int | None:
        raise errors.InvalidRequest("the kernel's driver does not hand asynchronous events out")

    def reset(self) -> None:
        self._call(self._fd, NVME_IOCTL_RESET, 0)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            for one in (fd, *self._namespaces.values()):
                os.close(one)

    def _namespace(self, nsid: int) -> int:
        """Descriptor for I/O commands to a namespace; Linux accepts them only at its own device."""
        if nsid == self.nsid or self._fd < 0:
            return self._fd
        if nsid not in self._namespaces and (found := self._open_namespace(nsid)) is not None:
            self._namespaces[nsid] = found
        return self._namespaces.get(nsid, self._fd)

    def _call(self, fd: int, number: int, argument: bytearray | int) -> int:
        if self._fd < 0:
            raise errors.DeviceGone("the device is closed")
        try:
            return self._ioctl(fd, number, argument)
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
        raise errors.DeviceNotFound(
            f"cannot open {path or repr(path)}: {error.strerror}{hint}"
        ) from error
    try:
        nsid = _namespace_of(fd, path, ioctl)
        is_block = stat.S_ISBLK(os.fstat(fd).st_mode)
        block_device = os.fstat(fd).st_rdev
        return IoctlTransport(
            fd,
            nsid=nsid,
            block_device=block_device if is_block else None,
            queue_depth=queue_depth,
            ioctl=ioctl,
            namespaces=lambda wanted: _sibling(path, wanted, ioctl),
        )
    except BaseException:
        os.close(fd)
        raise


def _namespace_of(fd: int, path: str, ioctl: Ioctl) -> int | None:
    """The namespace that `fd` is; None for a controller."""
    mode = os.fstat(fd).st_mode
    if not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
        raise errors.DeviceNotFound(f"{path} is not a device; {GIVE}")
    try:
        return ioctl(fd, NVME_IOCTL_ID, 0)
    except OSError as error:
        if stat.S_ISCHR(mode):
            return None  # a controller, which takes no such request
        raise errors.DeviceNotFound(f"{path} is not an NVMe device: {error.strerror}") from error


def _sibling(path: str, nsid: int, ioctl: Ioctl) -> int | None:
    """Open the device of another namespace of the same drive; None where there is none."""
    folder, name = os.path.split(os.path.realpath(path))
    number = re.match(r"(?:nvme|ng)(\d+)", name)
    if number is None:
        return None
    for other in sorted(Path(folder).glob(f"ng{number[1]}n*")):
        fd = os.open(other, os.O_RDWR | os.O_CLOEXEC)
        try:
            if ioctl(fd, NVME_IOCTL_ID, 0) == nsid:
                return fd
        except OSError:
            pass  # It has been deleted meanwhile.
        os.close(fd)
    return None


def _translated(error: OSError) -> errors.PotashError:
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return errors.DeviceGone("the device is gone")
    if error.errno in (errno.ETIMEDOUT, errno.ETIME):
        return errors.CommandTimeout("the command did not complete in time")
    if error.errno in (errno.EACCES, errno.EPERM):
        return errors.PotashError("the kernel does not let you send this command; run this as root")
    if error.errno == errno.ENOTTY:
        return errors.DeviceNotFound(f"this is not an NVMe device; {GIVE}")
    return errors.PotashError(f"the kernel did not send the command: {error.strerror}")
