"""The SDK: open a device, use its blocks and its accelerators.

    import potash.sdk

    with potash.sdk.open("/dev/nvme0n1") as device:
        accelerator = device.accelerator()
        result = accelerator.run("program.o", b"data", args=[4], timeout=10)
        print(len(result.output), result.status.return_value, result.printed)

It also runs in guests, so it needs only the standard library.
"""

from potash.sdk.accelerator import INPUT_LENGTH, Accelerator, JobResult
from potash.sdk.commands import DEFAULT_TIMEOUT
from potash.sdk.device import Device
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
from potash.sdk.namespace import Namespace
from potash.sdk.targets import LocalStorage
from potash.sdk.transport import MAX_QUEUE_DEPTH, Completion, HostClock, PendingCommand

VFIO_USER_SCHEME = "vfio-user:"


def open(
    target: str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    queue_depth: int = 1,
    clock: HostClock | None = None,
) -> Device:
    """Open a device.

    Args:
        target: `/dev/nvme0n1` or `/dev/nvme0` (Linux's driver), or `vfio-user:SOCKET`.
        timeout: seconds that a command may take.
        queue_depth: commands that can be in flight at once, 1 to 1023. Over vfio-user each may
            use 1 MiB of memory; through Linux each is a thread.
        clock: the host's clock, for a drive of `potash serve --clock stepped` over vfio-user.

    Raises:
        DeviceNotFound: there is no such device, or it may not be opened.
        InvalidRequest: the queue cannot be that deep.
        DeviceGone, DeviceMisbehaved, CommandTimeout: over vfio-user, where the controller is
            enabled: it does not become ready.
    """
    if not 1 <= queue_depth <= MAX_QUEUE_DEPTH:
        raise InvalidRequest(f"a queue depth is 1 to {MAX_QUEUE_DEPTH}, not {queue_depth}")
    if target.startswith(VFIO_USER_SCHEME):
        from potash.sdk.vfio_user import open_vfio_user

        socket = target.removeprefix(VFIO_USER_SCHEME)
        transport = open_vfio_user(socket, timeout=timeout, queue_depth=queue_depth, clock=clock)
        device = Device(transport, timeout=timeout)
    else:
        from potash.sdk.ioctl import open_ioctl

        device = Device(open_ioctl(target, queue_depth=queue_depth), timeout=timeout)
    device.target = target
    return device


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
    "HostClock",
    "InvalidRequest",
    "JobFailed",
    "JobResult",
    "JobTimeout",
    "LocalStorage",
    "Namespace",
    "PendingCommand",
    "PotashError",
    "open",
]
