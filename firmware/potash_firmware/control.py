"""The control socket of a running device's controller, by which its user changes and reads the
states of asymmetric namespace access.

A request is a datagram, empty to change nothing, and so is its answer. A client binds its socket to
get it, and is never waited for. Only the device's user can send to the socket.
"""

import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple, Self

from nvme_spec.asymmetric_access import AccessState
from potash_device.saved import decode
from potash_firmware.snapshot import AccessGroup
from potash_wire.records import U32, Range
from pyvfio_user.socket_path import bind, unlink

log = logging.getLogger(__name__)

SUFFIX = ".control"
"""Suffix of the control socket, after the path of the device's socket."""

LONGEST = 4096
"""Bytes of a request."""
LONGEST_ANSWER = 64 << 10

AT_ONCE = 8
"""Requests that are answered before the device goes on."""

MICROSECOND = 1e-6


class AccessChange(NamedTuple):
    """A request: the state of an ANA group changes; the transition takes microseconds."""

    group: U32
    state: Annotated[int, Range(AccessState.OPTIMIZED, AccessState.PERSISTENT_LOSS)]
    transition: U32 = 0


class ControlSocket:
    """Listens at `path` as long as the block lasts; the one who waits for it calls `answer`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __enter__(self) -> Self:
        """Raises OSError as `pyvfio_user.server.Server` does."""
        self._socket, self._identity = bind(self.path, socket.SOCK_DGRAM)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        unlink(self.path, self._identity)

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(
        self, change: Callable[[int, int, float], None], groups: Callable[[], Sequence[AccessGroup]]
    ) -> None:
        """Carry out the requests that have come, by `change`, which may raise ValueError, and give
        the `groups`."""
        for _ in range(AT_ONCE):
            try:
                data, client = self._socket.recvfrom(LONGEST)
            except OSError:
                return
            why = ""
            try:
                if data:
                    request = decode(AccessChange, data, LONGEST)
                    change(request.group, request.state, request.transition * MICROSECOND)
                    log.info("ANA group %d: %s", request.group, AccessState(request.state).name)
            except ValueError as error:
                why = str(error)
            if client:  # else it has no address
                answer = json.dumps({"error": why[:LONGEST], "groups": groups()}).encode()
                with suppress(OSError):  # it is gone, or does not read its answers
                    self._socket.sendto(answer, client)
