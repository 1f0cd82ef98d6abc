"""Migration: the states of a device whose state a client reads, and gives to another server.

A device offers it by an attribute `migration`; `device_features` answers a client's messages. What
the device writes to the client's memory is logged by `AddressSpace`.

Source: QEMU's `docs/interop/vfio-user.rst`, sections "VFIO_USER_DEVICE_FEATURE" and
"VFIO_USER_MIG_DATA_READ"; Linux, `include/uapi/linux/vfio.h`, `enum vfio_device_mig_state`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Annotated, Protocol

from potash_wire.records import REST, U32, U64, Number
from pyvfio_user.protocol import Structure

if TYPE_CHECKING:
    from pyvfio_user.device import Operation


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

    def change(self, before: State, after: State) -> Operation | None:
        """Go from a state to the next one of its path.

        To STOP from RUNNING: neither state, media nor memory change from now on; the device may
        take its time for that (a future), but not longer than a client waits: QEMU takes a reply
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
