"""What a user's program imports: open a device, talk to its blocks and its accelerators.

    import potash.sdk

    with potash.sdk.open("/dev/nvme0n1") as device:
        accelerator = device.accelerators()[0]
        result = accelerator.run("program.o", b"data", args=[4], timeout=10)
        print(len(result.output), result.status.return_value, result.printed)

It runs in a guest as well as beside the device, so it needs nothing but the standard library.
"""

from __future__ import annotations

from potash.sdk.accelerator import Accelerator
from potash.sdk.device import DEFAULT_TIMEOUT, Device
from potash.sdk.errors import (
    CommandFailed,
    CommandTimeout,
    DeviceGone,
    DeviceMisbehaved,
    DeviceNotFound,
    InvalidRequest,
    JobFailed,
    JobTimeout,
    PotashError,
)
from potash.sdk.files import FileSink, FileSource
from potash.sdk.job import INPUT_LENGTH, JobResult
from potash.sdk.places import LocalStorage
from potash.sdk.transport import Completion

VFIO_USER_SCHEME = "vfio-user:"


def open(target: str, *, timeout: float = DEFAULT_TIMEOUT) -> Device:
    """Open `/dev/nvme0n1` or `/dev/nvme0` (the kernel's driver) or `vfio-user:SOCKET` (ours).

    `timeout` is the seconds that a command may take. Raises DeviceNotFound.
    """
    if target.startswith(VFIO_USER_SCHEME):
        from potash.sdk.vfio_user import open_vfio_user

        transport = open_vfio_user(target.removeprefix(VFIO_USER_SCHEME), timeout=timeout)
        return Device(transport, timeout=timeout)
    from potash.sdk.ioctl import open_ioctl

    return Device(open_ioctl(target), timeout=timeout)


__all__ = [
    "INPUT_LENGTH",
    "Accelerator",
    "CommandFailed",
    "CommandTimeout",
    "Completion",
    "Device",
    "DeviceGone",
    "DeviceMisbehaved",
    "DeviceNotFound",
    "FileSink",
    "FileSource",
    "InvalidRequest",
    "JobFailed",
    "JobResult",
    "JobTimeout",
    "LocalStorage",
    "PotashError",
    "open",
]
