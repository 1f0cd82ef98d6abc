"""The features of a device for one client: its migration, and the log of what it writes.

Source: QEMU's `docs/interop/vfio-user.rst`, section "VFIO_USER_DEVICE_FEATURE".
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from pyvfio_user.device import Device, Waiting, failure_of, finish, wait_for
from pyvfio_user.memory import LOG_PAGE_SIZE, AddressSpace
from pyvfio_user.migration import (
    FEATURE_MASK,
    PATHS,
    DeviceState,
    Feature,
    FeatureFlags,
    FeatureMessage,
    LoggingControl,
    LoggingReport,
    Migration,
    MigrationData,
    MigrationFlags,
    MigrationStates,
    State,
)
from pyvfio_user.protocol import DEFAULT_MAX_TRANSFER, Buffer, ProtocolError

_FLAGS = int(FeatureFlags.GET | FeatureFlags.SET | FeatureFlags.PROBE)
_GET, _SET, _PROBE = map(int, FeatureFlags)
_WORD_BITS = 64
_SAVING = (State.STOP_COPY, State.PRE_COPY)


class DeviceFeatures:
    """The features of one client's device, which has none without a `migration`."""

    def __init__(self, device: Device, memory: AddressSpace) -> None:
        self._device = device
        self._memory = memory
        self._migration: Migration | None = getattr(device, "migration", None)
        self._changing: Future[None] | None = None
        """The change of the state that is in progress; a reset ends it."""
        self.state = State.RUNNING if self._migration is None else self._migration.initial

    def reset(self) -> None:
        """The device was reset: it is running, whatever it was asked before."""
        changing, self._changing = self._changing, None
        self.state = State.RUNNING
        if changing is not None:
            changing.cancel()

    def feature(self, payload: Buffer) -> Waiting:
        """Do what DEVICE_FEATURE asks. Raises ProtocolError and OSError."""
        argsz, flags, data = FeatureMessage.decode(payload)
        methods = _FEATURES.get(flags & FEATURE_MASK, {})
        request = flags & (_GET | _SET)
        if self._migration is None or not methods or flags & ~(FEATURE_MASK | _FLAGS):
            raise ProtocolError(f"the device has no feature for the flags {flags:#x}")
        if request & ~sum(methods):
            raise ProtocolError(f"feature {flags & FEATURE_MASK} cannot be used with {request:#x}")
        # The reply to a probe, or to what is set, is as long as the request.
        if flags & (_PROBE | _SET) and argsz < len(payload):
            raise ProtocolError(f"argsz is {argsz}, and the reply has {len(payload)} bytes")
        if flags & _PROBE:
            return bytes(payload)
        if request not in methods:
            raise ProtocolError("DEVICE_FEATURE gets, sets or probes")
        reply = methods[request](self, data, argsz - FeatureMessage.RECORD.size)
        found = reply if isinstance(reply, bytes) else (yield from reply)
        size = FeatureMessage.RECORD.size + len(found) if request == _GET else argsz
        return FeatureMessage(size, flags, found).encode()

    def read(self, payload: Buffer) -> bytes:
        """MIG_DATA_READ: the next bytes of the state. Raises ProtocolError and OSError."""
        migration = self._required
        argsz, size, _ = MigrationData.decode(payload)
        if not 0 < size <= DEFAULT_MAX_TRANSFER or argsz < MigrationData.RECORD.size + size:
            raise ProtocolError(f"{size} bytes of state cannot be read with an argsz of {argsz}")
        if self.state not in _SAVING:
            raise ProtocolError("there is no state to be read now")
        data = migration.read(size)
        return MigrationData(MigrationData.RECORD.size + len(data), len(data), data).encode()

    def write(self, payload: Buffer) -> bytes:
        """MIG_DATA_WRITE: take the next bytes of a state. Raises ProtocolError and OSError."""
        migration = self._required
        _, size, data = MigrationData.decode(payload)
        if len(data) != size:
            raise ProtocolError(f"{size} bytes of state come as {len(data)}")
        if self.state is not State.RESUMING or self._changing is not None:
            raise ProtocolError("no state can be written now")
        migration.write(data)
        return b""

    @property
    def _required(self) -> Migration:
        if self._migration is None:
            raise OSError(errno.ENOTSUP, "the device cannot be migrated")
        return self._migration

    # The features.

    def _flags(self, data: bytes, room: int) -> bytes:
        pre_copy = MigrationFlags.PRE_COPY if self._required.pre_copy else 0
        _require_room(MigrationStates.RECORD.size, room)
        return MigrationStates(MigrationFlags.STOP_COPY | pre_copy).encode()

    def _get_state(self, data: bytes, room: int) -> bytes:
        _require_room(DeviceState.RECORD.size, room)
        return DeviceState(self.state).encode()

    def _set_state(self, data: bytes, room: int) -> Waiting:
        target = DeviceState.decode_head(data).state
        path = () if target == self.state != State.ERROR else PATHS.get((self.state, target))
        if path is None or (State.PRE_COPY in path and not self._required.pre_copy):
            raise ProtocolError(f"no states lead from {self.state.name} to {target}")
        if self._changing is not None:
            raise OSError(errno.EBUSY, "the state is changing already")
        for after in path:
            try:
                for operation in wait_for(self._required.change(self.state, after)):
                    self._changing = Future()
                    operation.add_done_callback(partial(_pass_on, self._changing))
                    yield self._changing
            except OSError:
                if self.state is State.RESUMING:
                    self.state = State.ERROR
                raise
            finally:
                self._changing = None
            self.state = after
        return data

    def _start_logging(self, data: bytes, room: int) -> Waiting:
        control = LoggingControl.decode(data)
        _require_page(control.page_size)
        for address, length in control.ranges:
            _require_range(address, length)
        self._memory.start_logging()
        # All writes are logged, by views that are given out from now on; the report chooses.
        chosen = control._replace(page_size=max(control.page_size, LOG_PAGE_SIZE))
        yield from wait_for(self._device.memory_changed())
        return chosen.encode()

    def _stop_logging(self, data: bytes, room: int) -> bytes:
        self._memory.stop_logging()
        return data

    def _report(self, data: bytes, room: int) -> Waiting:
        address, length, page_size, _ = LoggingReport.decode(data)
        _require_range(address, length)
        _require_page(page_size)
        self._memory.require_logging()
        units = -(-length // page_size)
        size = -(-units // _WORD_BITS) * _WORD_BITS // 8
        _require_room(LoggingReport.RECORD.size + size, min(room, DEFAULT_MAX_TRANSFER))
        # What the device writes after this it writes by new views, which are logged again.
        yield from wait_for(self._device.memory_changed())
        bits = bytearray(size)
        for start in self._memory.take_written(address, length):
            stop = min(start + LOG_PAGE_SIZE, address + length)
            first = (max(start, address) - address) // page_size
            for unit in range(first, -(-(stop - address) // page_size)):
                bits[unit // 8] |= 1 << unit % 8
        return LoggingReport(address, length, page_size, bytes(bits)).encode()


_Method = Callable[[DeviceFeatures, bytes, int], bytes | Waiting]
"""Called with the data of the request and the maximum size of the reply's data, which it returns,
perhaps as a generator."""

_FEATURES: dict[int, dict[int, _Method]] = {
    Feature.MIGRATION: {_GET: DeviceFeatures._flags},
    Feature.MIG_DEVICE_STATE: {_GET: DeviceFeatures._get_state, _SET: DeviceFeatures._set_state},
    Feature.DMA_LOGGING_START: {_SET: DeviceFeatures._start_logging},
    Feature.DMA_LOGGING_STOP: {_SET: DeviceFeatures._stop_logging},
    Feature.DMA_LOGGING_REPORT: {_GET: DeviceFeatures._report},
}


def _pass_on(changing: Future[None], operation: Future[None]) -> None:
    """The device has ended an operation, perhaps after a reset has ended the change."""
    if not changing.done():
        finish(changing, failure_of(operation))


def _require_room(size: int, room: int) -> None:
    if size > room:
        raise ProtocolError(f"the reply has {size} bytes of data, and there is room for {room}")


def _require_page(size: int) -> None:
    if size.bit_count() != 1:
        raise ProtocolError(f"{size} is not the size of a page")


def _require_range(address: int, length: int) -> None:
    if not length or address + length > 1 << 64:
        raise ProtocolError(f"{length} bytes at {address:#x} are no range of addresses")
