"""Requests to a running device, at its control socket (`potash_firmware.control`)."""

import errno
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from nvme_spec.asymmetric_access import AccessState
from potash.sdk import VFIO_USER_SCHEME
from potash.sdk.errors import DeviceNotFound, PotashError
from potash.sdk.faults import ACCESS_STATES
from potash_device.saved import encode
from potash_firmware.control import LONGEST_ANSWER, SUFFIX, AccessChange
from potash_firmware.snapshot import AccessGroup

MICROSECONDS = 1e6

TIMEOUT = 5.0
"""Seconds in which a device that runs at all answers."""


def change_access(
    device: str | os.PathLike[str],
    state: str | AccessState,
    *,
    group: int = 1,
    transition: float = 0.0,
    timeout: float = TIMEOUT,
) -> None:
    """Change the state of a running device's access to an ANA group.

    Args:
        device: its socket, or its name in commands (vfio-user:SOCKET).
        state: "optimized", "non-optimized", "inaccessible" or "persistent-loss".
        group: the group's identifier, from 1.
        transition: seconds in the Change state before, at most 10.
        timeout: seconds in which the device has to answer.

    Raises DeviceNotFound, and PotashError for a device that refuses.
    """
    target = state if isinstance(state, AccessState) else ACCESS_STATES.get(state)
    if target is None or target is AccessState.CHANGE:
        raise PotashError(f"{state} is not an ANA state: {', '.join(ACCESS_STATES)}")
    _ask(device, encode(AccessChange(group, target, round(transition * MICROSECONDS))), timeout)


def access_groups(
    device: str | os.PathLike[str], *, timeout: float = TIMEOUT
) -> Sequence[AccessGroup]:
    """The access of a running device's controller to groups of namespaces. Raises DeviceNotFound,
    and PotashError for a device without groups."""
    return _ask(device, b"", timeout)


def _ask(device: str | os.PathLike[str], request: bytes, timeout: float) -> Sequence[AccessGroup]:
    served = os.fspath(device).removeprefix(VFIO_USER_SCHEME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        client.bind("")  # Linux chooses an abstract address for the answer
        try:
            client.connect(served + SUFFIX)
            client.send(request)
            answer = json.loads(client.recv(LONGEST_ANSWER))
        except TimeoutError:
            raise PotashError(f"{served}: the device does not answer") from None
        except OSError as error:
            if error.errno == errno.ENOENT and Path(served).exists():
                raise PotashError(
                    f"the device at {served} has no ANA groups; start it with --ana"
                ) from None
            raise DeviceNotFound(
                f"no device can be asked at {served}: {error.strerror or error}"
            ) from None
    if answer["error"]:
        raise PotashError(answer["error"])
    return cast(Sequence[AccessGroup], answer["groups"])
