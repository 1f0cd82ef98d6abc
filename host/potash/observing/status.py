"""Asking a running device for a snapshot: `potash_firmware.snapshot` says what is in it."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from potash.sdk import VFIO_USER_SCHEME
from potash.sdk.errors import DeviceNotFound, PotashError

if TYPE_CHECKING:
    from potash_firmware.snapshot import Snapshot

SUFFIX = ".status"
"""Suffix of the status socket, after the path of the device's socket."""

LARGEST = 16 << 20
"""Bytes that are believed to be a snapshot."""

TIMEOUT = 5.0
"""Seconds in which a device that runs at all answers."""

RETRY = 0.01
"""Seconds between two attempts to connect while the listener's queue is full."""


def status_socket(device: str) -> Path:
    """The status socket of a device, by its own socket or its name in commands."""
    return Path(device.removeprefix(VFIO_USER_SCHEME) + SUFFIX)


@contextmanager
def also_at(device: str, first: str) -> Iterator[None]:
    """Have the status socket of a device's first socket at another one of its sockets, too."""
    place, made = status_socket(device), False
    with suppress(OSError):  # without it, the device works, too
        if place.is_symlink() or place.is_socket():  # of a killed device
            place.unlink()
        place.symlink_to(status_socket(first))
        made = True
    try:
        yield
    finally:
        if made:
            place.unlink(missing_ok=True)


def running() -> list[Path]:
    """The status sockets of devices that other commands of this user have started."""
    import tempfile

    found = Path(tempfile.gettempdir()).glob(f"potash-*/*{SUFFIX}")
    own = (place for place in found if _is_own(place) and not place.is_symlink())
    return sorted(place for place in own if _listens(place))


def _is_own(place: Path) -> bool:
    """True if this user owns the folder, which nobody else can arrange."""
    try:
        return place.parent.lstat().st_uid == os.geteuid()
    except OSError:  # it has gone meanwhile
        return False


def _listens(place: Path) -> bool:
    """True if a device listens there; a killed one leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(place))
        except BlockingIOError:  # others wait to be accepted
            return True
        except OSError:
            return False
    return True


def _require_trusted(client: socket.socket, place: Path) -> None:
    """Raise PotashError unless the device is this user's, or root's.

    Root may look at everybody's. unix(7), SO_PEERCRED: process, user and group of who listens.
    """
    _, user, _ = array("I", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user not in (os.geteuid(), 0) and os.geteuid():
        raise PotashError(f"{place}: the device there is that of another user ({user})")


def _connect(client: socket.socket, place: Path, until: float) -> None:
    """Connect, also where others wait to be accepted, which a socket with a timeout does not."""
    while True:
        client.settimeout(max(0.001, until - time.monotonic()))
        try:
            client.connect(str(place))
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(RETRY)


def ask(place: Path, timeout: float = TIMEOUT) -> Snapshot:
    """A snapshot from the status socket `place`. Raises DeviceNotFound, PotashError."""
    data = b""
    until = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            _connect(client, place, until)
            _require_trusted(client, place)
            while len(data) < LARGEST and (piece := client.recv(1 << 16)):
                data += piece
                client.settimeout(max(0.001, until - time.monotonic()))
        except TimeoutError:
            raise PotashError(f"{place}: the device does not answer") from None
        except OSError as error:
            served = str(place).removesuffix(SUFFIX)
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED):
                raise DeviceNotFound(
                    f"no device listens at {served}; start one with: potash serve --socket {served}"
                ) from None
            raise DeviceNotFound(
                f"{place}: no device can be asked there: {error.strerror or error}"
            ) from None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise PotashError(f"{place}: what is there says nothing of a device") from None
    if not isinstance(found, dict) or "version" not in found:
        raise PotashError(f"{place}: what is there says nothing of a device")
    return cast("Snapshot", found)
