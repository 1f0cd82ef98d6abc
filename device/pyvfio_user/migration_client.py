"""What a client does to migrate a device: its states, its data, and the log of its writes.

Source: QEMU's `docs/interop/vfio-user.rst`, section "VFIO_USER_DEVICE_FEATURE" and those behind it.
"""

import errno
import struct
from collections.abc import Callable, Sequence

from pyvfio_user.migration import (
    DEVICE_STATE,
    FEATURE,
    LOGGING_CONTROL,
    LOGGING_RANGE,
    LOGGING_REPORT,
    MIGRATION_DATA,
    MIGRATION_FLAGS,
    Feature,
    FeatureFlags,
    MigrationFlags,
    State,
)
from pyvfio_user.protocol import Command, ProtocolError, head

PIECE = 1 << 16
"""Bytes of state in one message, for every server."""


class MigrationCommands:
    """The commands of one client: each raises VfioUserError, as the client's other ones do.

    `command` sends one and gives its reply's payload; `broken` makes the error of a server that
    does not speak the protocol.
    """

    def __init__(
        self, command: Callable[[Command, bytes], bytes], broken: Callable[[int, str], OSError]
    ) -> None:
        self._command = command
        self._broken = broken

    def flags(self) -> MigrationFlags:
        """Which states the device has; EINVAL where it cannot be migrated."""
        found = self._get(Feature.MIGRATION, MIGRATION_FLAGS.size)
        return MigrationFlags(self._unpack(MIGRATION_FLAGS, found)[0])

    def supports(self, feature: Feature, methods: FeatureFlags) -> bool:
        """Whether the device has a feature, and can GET or SET it, or both."""
        request = FEATURE.pack(FEATURE.size, feature | methods | FeatureFlags.PROBE)
        try:
            self._command(Command.DEVICE_FEATURE, request)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        return True

    @property
    def state(self) -> State:
        """The state that the device is in."""
        found = self._get(Feature.MIG_DEVICE_STATE, DEVICE_STATE.size)
        return State(self._unpack(DEVICE_STATE, found)[0])

    def enter(self, state: State) -> None:
        """Have the device in another state, however long it takes to get there."""
        self._set(Feature.MIG_DEVICE_STATE, DEVICE_STATE.pack(state, 0))

    def read(self, size: int = PIECE) -> bytes:
        """The next bytes of the state; fewer than `size` where these are the last."""
        request = MIGRATION_DATA.pack(MIGRATION_DATA.size + size, size)
        reply = self._command(Command.MIG_DATA_READ, request)
        _, present = self._unpack(MIGRATION_DATA, reply)
        data = reply[MIGRATION_DATA.size :]
        if not len(data) == present <= size:
            raise self._broken(errno.EPROTO, f"{len(data)} bytes of state come as {present}")
        return data

    def write(self, data: bytes) -> None:
        """The next bytes of a state."""
        size = MIGRATION_DATA.size + len(data)
        self._command(Command.MIG_DATA_WRITE, MIGRATION_DATA.pack(size, len(data)) + data)

    def save(self) -> bytes:
        """Stop the device, and read its whole state; it stays in STOP_COPY."""
        self.enter(State.STOP_COPY)
        pieces = [self.read()]
        while len(pieces[-1]) == PIECE:
            pieces.append(self.read())
        return b"".join(pieces)

    def load(self, state: bytes) -> None:
        """Have the device go on from a state that was saved."""
        self.enter(State.RESUMING)
        for at in range(0, len(state), PIECE):
            self.write(state[at : at + PIECE])
        self.enter(State.RUNNING)

    def start_log(self, page_size: int, ranges: Sequence[tuple[int, int]] = ()) -> int:
        """Have the device log which pages it writes, of ranges (address, length) or of all memory.

        Gives the size of a page that it takes.
        """
        control = LOGGING_CONTROL.pack(page_size, len(ranges), 0)
        data = control + b"".join(LOGGING_RANGE.pack(*one) for one in ranges)
        reply = self._set(Feature.DMA_LOGGING_START, data)
        return int(self._unpack(LOGGING_CONTROL, reply)[0])

    def stop_log(self) -> None:
        """Have the device log nothing any more."""
        self._set(Feature.DMA_LOGGING_STOP, b"")

    def written(self, address: int, length: int, page_size: int = 4096) -> list[int]:
        """The addresses of the pages of a range that were written since the last time."""
        size = -(-length // page_size // 64) * 8 + 8
        report = LOGGING_REPORT.pack(address, length, page_size)
        reply = self._get(Feature.DMA_LOGGING_REPORT, LOGGING_REPORT.size + size, report)
        bits = int.from_bytes(reply[LOGGING_REPORT.size :], "little")
        return [address + at * page_size for at in range(bits.bit_length()) if bits >> at & 1]

    def _unpack(self, form: struct.Struct, payload: bytes) -> tuple[int, ...]:
        try:
            return head(form, payload, "a reply")
        except ProtocolError as error:
            raise self._broken(errno.EPROTO, str(error)) from None

    def _get(self, feature: Feature, size: int, data: bytes = b"") -> bytes:
        """A feature's data, of up to `size` bytes."""
        request = FEATURE.pack(FEATURE.size + size, feature | FeatureFlags.GET) + data
        return self._command(Command.DEVICE_FEATURE, request)[FEATURE.size :]

    def _set(self, feature: Feature, data: bytes) -> bytes:
        request = FEATURE.pack(FEATURE.size + len(data), feature | FeatureFlags.SET) + data
        return self._command(Command.DEVICE_FEATURE, request)[FEATURE.size :]
