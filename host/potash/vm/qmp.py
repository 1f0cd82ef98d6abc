"""QEMU's own control protocol, as far as a guest's life needs it.

QEMU Machine Protocol Specification (docs/interop/qmp-spec.rst): one JSON object a line; a greeting,
then commands answered by "return" or "error", with events in between.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from potash.vm.errors import GuestError, GuestTimeout

LIMIT = 30.0
"""Seconds that a command may take; QEMU's main loop answers at once unless something is wrong."""

EVENTS = 256
"""How many events are kept for somebody who asks later."""


class Qmp:
    """A client on a connected socket, which it does not own."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)

    def negotiate(self) -> None:
        """Leave the negotiation mode that every connection starts in."""
        greeting = self._receive(time.monotonic() + LIMIT)
        if "QMP" not in greeting:
            raise GuestError("QEMU's monitor does not greet as it should")
        self.execute("qmp_capabilities")

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, limit: float = LIMIT
    ) -> Any:
        """Run a command and return what it returns.

        Args:
            arguments: its arguments, as in QEMU's QMP reference.
            limit: seconds to wait for the answer.

        Raises:
            GuestError: QEMU refused the command, has ended, or does not answer in time.
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
            self._events.append(answer)

    def await_event(self, name: str, data: Mapping[str, Any], limit: float = LIMIT) -> None:
        """Wait for an event, or find that it has come since this was last asked.

        Args:
            name: the event's.
            data: members of its data that it must have.

        Raises:
            GuestTimeout: it does not come within `limit` seconds.
        """
        deadline = time.monotonic() + limit
        while True:
            while self._events:
                event = self._events.popleft()
                known = event.get("data", {})
                if event.get("event") == name and data.items() <= known.items():
                    return
            self._events.append(self._receive(deadline))

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
