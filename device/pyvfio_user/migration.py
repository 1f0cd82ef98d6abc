"""Migration: the states of a device whose state a client reads, and gives to another server.

A device offers it by an attribute `migration`; `DeviceFeatures` is what DEVICE_FEATURE does for one
client. What the device writes to the client's memory is logged by `AddressSpace`.

Source: QEMU's `docs/interop/vfio-user.rst`, sections "VFIO_USER_DEVICE_FEATURE" and
"VFIO_USER_MIG_DATA_READ"; Linux, `include/uapi/linux/vfio.h`, `enum vfio_device_mig_state`.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from enum import IntEnum, IntFlag
from functools import partial
from typing import Annotated, NamedTuple, Protocol

from potash_wire.records import REST, U32, U64, Number
from pyvfio_user.device import Device, Pending
from pyvfio_user.memory import LOG_PAGE_SIZE, AddressSpace
from pyvfio_user.protocol import DEFAULT_MAX_TRANSFER, Buffer, ProtocolError, Structure


class State(IntEnum):
    """`VFIO_DEVICE_STATE_*`; those of peer-to-peer DMA are not used in vfio-user."""

    ERROR = 0
    STOP = 1
    RUNNING = 2
    STOP_COPY = 3
    RESUMING = 4
    PRE_COPY = 6


_STOP, _RUNNING, _STOP_COPY = State.STOP, State.RUNNING, State.STOP_COPY
_RESUMING, _PRE_COPY = State.RESUMING, State.PRE_COPY

PATHS: dict[tuple[int, int], tuple[State, ...]] = {
    (_RUNNING, _STOP): (_STOP,),
    (_RUNNING, _STOP_COPY): (_STOP, _STOP_COPY),
    (_RUNNING, _RESUMING): (_STOP, _RESUMING),
    (_RUNNING, _PRE_COPY): (_PRE_COPY,),
    (_STOP, _RUNNING): (_RUNNING,),
    (_STOP, _STOP_COPY): (_STOP_COPY,),
    (_STOP, _RESUMING): (_RESUMING,),
    (_STOP, _PRE_COPY): (_RUNNING, _PRE_COPY),
    (_STOP_COPY, _STOP): (_STOP,),
    (_STOP_COPY, _RUNNING): (_STOP, _RUNNING),
    (_STOP_COPY, _RESUMING): (_STOP, _RESUMING),
    (_RESUMING, _STOP): (_STOP,),
    (_RESUMING, _RUNNING): (_STOP, _RUNNING),
    (_RESUMING, _STOP_COPY): (_STOP, _STOP_COPY),
    (_RESUMING, _PRE_COPY): (_STOP, _RUNNING, _PRE_COPY),
    (_PRE_COPY, _RUNNING): (_RUNNING,),
    (_PRE_COPY, _STOP_COPY): (_STOP_COPY,),
    (_PRE_COPY, _STOP): (_RUNNING, _STOP),
    (_PRE_COPY, _RESUMING): (_RUNNING, _STOP, _RESUMING),
}
"""The states that a device enters, one after the other, to get from one to another: the shortest
way, in which no state is passed through that saves. What is missing is an error."""

_SAVING = (_STOP_COPY, _PRE_COPY)


class Migration(Protocol):
    """The interface of a device that can be migrated.

    A reset ends whatever is going on: the device is RUNNING after it. Callbacks may raise OSError,
    and the device is then in the state of before.
    """

    @property
    def initial(self) -> State:
        """The state of the device when a client attaches: RUNNING, or STOP if the device waits
        for a client to go on."""

    @property
    def pre_copy(self) -> bool:
        """True if there is a state PRE_COPY, in which a running device returns data already."""

    def change(self, before: State, after: State) -> Pending | None:
        """Go from a state to the next one of its path.

        To STOP from RUNNING: neither state, media nor memory change from now on; the device may
        take its time for that (`Pending`), but not longer than a client waits: QEMU takes a reply
        that comes after 5 s for the end of the connection. To STOP from RESUMING: take the state
        that was written, all of which has come; where that raises OSError, the state is ERROR.
        """

    def read(self, size: int) -> bytes:
        """The next bytes of the state, up to `size`; fewer only where these are the last."""

    def write(self, data: bytes) -> None:
        """Take the next bytes of a state."""


class Feature(IntEnum):
    """`VFIO_DEVICE_FEATURE_*`: bits 15:0 of the flags of DEVICE_FEATURE."""

    MIGRATION = 1
    MIG_DEVICE_STATE = 2
    DMA_LOGGING_START = 6
    DMA_LOGGING_STOP = 7
    DMA_LOGGING_REPORT = 8


FEATURE_MASK = 0xFFFF


class FeatureFlags(IntFlag):
    """Operations on a feature."""

    GET = 1 << 16
    SET = 1 << 17
    PROBE = 1 << 18


class MigrationFlags(IntFlag):
    """States of a device besides RUNNING and ERROR (`VFIO_MIGRATION_*`)."""

    STOP_COPY = 1
    P2P = 2
    PRE_COPY = 4


class FeatureMessage(Structure):
    """DEVICE_FEATURE, request and reply."""

    argsz: U32
    flags: U32
    data: Annotated[bytes, REST] = b""


class DeviceState(Structure):
    """Data of MIG_DEVICE_STATE, with a descriptor that is not used in vfio-user."""

    state: U32
    fd: U32 = 0


class MigrationStates(Structure):
    """Data of MIGRATION: `MigrationFlags`."""

    flags: U64


class LoggingControl(Structure, least_size=16):
    """Data of DMA_LOGGING_START; each range is an address and a length."""

    page_size: U64
    ranges: Annotated[tuple[tuple[U64, U64], ...], Number("I")]


class LoggingReport(Structure):
    """Data of DMA_LOGGING_REPORT; only a reply has the bitmap."""

    address: U64
    length: U64
    page_size: U64
    bitmap: Annotated[bytes, REST] = b""


class MigrationData(Structure):
    """MIG_DATA_READ and MIG_DATA_WRITE, of which a request to read and a reply to a write have no
    data."""

    argsz: U32
    size: U32
    data: Annotated[bytes, REST] = b""


_FLAGS = int(FeatureFlags.GET | FeatureFlags.SET | FeatureFlags.PROBE)
_GET, _SET, _PROBE = map(int, FeatureFlags)
_WORD_BITS = 64


class Later(NamedTuple):
    """A reply that waits for `pending`, and what makes its payload where that is a success."""

    pending: Pending
    payload: Callable[[], bytes]


def done(pending: Pending | None, payload: Callable[[], bytes]) -> bytes | Later:
    """The payload of a reply, now or when the device has finished."""
    return payload() if pending is None else Later(pending, payload)


class DeviceFeatures:
    """The features of one client's device, which has none without a `migration`."""

    def __init__(self, device: Device, memory: AddressSpace) -> None:
        self._device = device
        self._memory = memory
        self._migration: Migration | None = getattr(device, "migration", None)
        self._changing: Pending | None = None
        self.state = State.RUNNING if self._migration is None else self._migration.initial

    def reset(self) -> None:
        """The device was reset: it is running, whatever it was asked before."""
        changing, self._changing = self._changing, None
        self.state = State.RUNNING
        if changing is not None:
            changing.finish(errno.ECANCELED)

    def feature(self, payload: Buffer) -> bytes | Later:
        """Do what DEVICE_FEATURE asks. Raises ProtocolError and OSError."""
        argsz, flags, data = FeatureMessage.decode(payload)
        methods = _FEATURES.get(flags & FEATURE_MASK, {})
        wanted = flags & (_GET | _SET)
        if self._migration is None or not methods or flags & ~(FEATURE_MASK | _FLAGS):
            raise ProtocolError(f"the device has no feature for the flags {flags:#x}")
        if wanted & ~sum(methods):
            raise ProtocolError(f"feature {flags & FEATURE_MASK} cannot be used with {wanted:#x}")
        # The reply to a probe, or to what is set, is as long as the request.
        if flags & (_PROBE | _SET) and argsz < len(payload):
            raise ProtocolError(f"argsz is {argsz}, and the reply has {len(payload)} bytes")
        if flags & _PROBE:
            return bytes(payload)
        if wanted not in methods:
            raise ProtocolError("DEVICE_FEATURE gets, sets or probes")
        pending, answer = methods[wanted](self, data, argsz - FeatureMessage.RECORD.size)

        def reply() -> bytes:
            found = answer()
            size = FeatureMessage.RECORD.size + len(found) if wanted == _GET else argsz
            return FeatureMessage(size, flags, found).encode()

        return done(pending, reply)

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

    def _flags(self, data: bytes, room: int) -> _Answer:
        pre_copy = MigrationFlags.PRE_COPY if self._required.pre_copy else 0
        _require_room(MigrationStates.RECORD.size, room)
        return None, MigrationStates(MigrationFlags.STOP_COPY | pre_copy).encode

    def _get_state(self, data: bytes, room: int) -> _Answer:
        _require_room(DeviceState.RECORD.size, room)
        return None, DeviceState(self.state).encode

    def _set_state(self, data: bytes, room: int) -> _Answer:
        wanted = DeviceState.decode_head(data).state
        path = () if wanted == self.state != State.ERROR else PATHS.get((self.state, wanted))
        if path is None or (State.PRE_COPY in path and not self._required.pre_copy):
            raise ProtocolError(f"no states lead from {self.state.name} to {wanted}")
        if self._changing is not None:
            raise OSError(errno.EBUSY, "the state is changing already")
        whole = self._changing = Pending()
        self._advance(whole, deque(path))
        return whole, lambda: data

    def _advance(self, whole: Pending, path: deque[State]) -> None:
        """Enter the states of `path`; go on with them when the device has entered the first."""
        while path and self._changing is whole:
            after = path.popleft()
            try:
                pending = self._required.change(self.state, after)
            except OSError as error:
                self._arrive(whole, path, after, error.errno or errno.EIO)
                return
            if pending is not None:
                pending.then(partial(self._arrive, whole, path, after))
                return
            self.state = after
        if self._changing is whole:
            self._changing = None
            whole.finish()

    def _arrive(self, whole: Pending, path: deque[State], after: State, failure: int) -> None:
        """The device has entered the state `after`, or has failed to."""
        if self._changing is not whole:
            return  # a reset has come first
        if failure:
            if self.state is State.RESUMING:
                self.state = State.ERROR
            self._changing = None
            whole.finish(failure)
        else:
            self.state = after
            self._advance(whole, path)

    def _start_logging(self, data: bytes, room: int) -> _Answer:
        control = LoggingControl.decode(data)
        _require_page(control.page_size)
        for address, length in control.ranges:
            _require_range(address, length)
        self._memory.start_logging()
        # All writes are logged, by views that are given out from now on; the report chooses.
        chosen = control._replace(page_size=max(control.page_size, LOG_PAGE_SIZE))
        return self._device.memory_changed(), chosen.encode

    def _stop_logging(self, data: bytes, room: int) -> _Answer:
        self._memory.stop_logging()
        return None, lambda: data

    def _report(self, data: bytes, room: int) -> _Answer:
        address, length, page_size, _ = LoggingReport.decode(data)
        _require_range(address, length)
        _require_page(page_size)
        self._memory.require_logging()
        units = -(-length // page_size)
        size = -(-units // _WORD_BITS) * _WORD_BITS // 8
        _require_room(LoggingReport.RECORD.size + size, min(room, DEFAULT_MAX_TRANSFER))

        def bitmap() -> bytes:
            bits = bytearray(size)
            for start in self._memory.take_written(address, length):
                end = min(start + LOG_PAGE_SIZE, address + length)
                first = (max(start, address) - address) // page_size
                for unit in range(first, -(-(end - address) // page_size)):
                    bits[unit // 8] |= 1 << unit % 8
            return LoggingReport(address, length, page_size, bytes(bits)).encode()

        # What the device writes after this it writes by new views, which are logged again.
        return self._device.memory_changed(), bitmap


_Answer = tuple[Pending | None, Callable[[], bytes]]
"""The operation to wait for, and a function that then returns the data of the reply."""
_Method = Callable[[DeviceFeatures, bytes, int], _Answer]
"""Called with the data of the request and the maximum size of the reply's data."""

_FEATURES: dict[int, dict[int, _Method]] = {
    Feature.MIGRATION: {_GET: DeviceFeatures._flags},
    Feature.MIG_DEVICE_STATE: {_GET: DeviceFeatures._get_state, _SET: DeviceFeatures._set_state},
    Feature.DMA_LOGGING_START: {_SET: DeviceFeatures._start_logging},
    Feature.DMA_LOGGING_STOP: {_SET: DeviceFeatures._stop_logging},
    Feature.DMA_LOGGING_REPORT: {_GET: DeviceFeatures._report},
}


def _require_room(size: int, room: int) -> None:
    if size > room:
        raise ProtocolError(f"the reply has {size} bytes of data, and there is room for {room}")


def _require_page(size: int) -> None:
    if size.bit_count() != 1:
        raise ProtocolError(f"{size} is not the size of a page")


def _require_range(address: int, length: int) -> None:
    if not length or address + length > 1 << 64:
        raise ProtocolError(f"{length} bytes at {address:#x} are no range of addresses")
