"""QEMU's own control protocol, as far as a guest's life needs it.

QEMU Machine Protocol Specification (docs/interop/qmp-spec.rst): one JSON object a line; a greeting,
then commands answered by "return" or "error", with events in between, which are passed over.
"""

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from potash.vm.errors import GuestError, GuestTimeout

LIMIT = 30.0
"""Seconds that a command may take; QEMU's main loop answers at once unless something is wrong."""


class Qmp:
    """A client on a connected socket, which it does not own."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = bytearray()

    def negotiate(self) -> None:
        """Leave the negotiation mode that every connection starts in."""
        greeting = self._receive(time.monotonic() + LIMIT)
        if "QMP" not in greeting:
            raise GuestError("QEMU's monitor does not greet as it should")
        self.execute("qmp_capabilities")

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, limit: float = LIMIT
    ) -> Any:
        """Run a command of QEMU's QMP reference and return what it returns.

        Raises GuestError where QEMU refuses it, has ended, or does not answer in `limit` seconds.
        """
        request = json.dumps({"execute": command, "arguments": dict(arguments or {})}) + "\n"
        deadline = time.monotonic() + limit
        try:
            self._stream.sendall(request.encode())
        except OSError as error:
            raise GuestError("QEMU has ended") from error
        while True:
            answer = self._receive(deadline)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise GuestError(f"QEMU refuses {command}: {answer['error'].get('desc')}")

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise GuestTimeout("QEMU does not answer")
            self._stream.settimeout(left)
            try:
                data = self._stream.recv(1 << 16)
            except TimeoutError as error:
                raise GuestTimeout("QEMU does not answer") from error
            except OSError as error:
                raise GuestError("QEMU has ended") from error
            if not data:
                raise GuestError("QEMU has ended")
            self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = rest
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise GuestError("QEMU's monitor says something that is no object")
        return answer
