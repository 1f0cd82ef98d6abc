"""Reservations of a namespace that hosts share.

NVM Express Base Specification 2.0, sections 7.2 to 7.5 and 8.19.
"""

from typing import NamedTuple

from nvme_spec.commands import SetFeatures
from nvme_spec.features import (
    EXTENDED_HOST_IDENTIFIER_SIZE,
    HOST_IDENTIFIER_SIZE,
    FeatureId,
    HostIdentifier,
)
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from nvme_spec.reservations import (
    NO_CONTROLLER,
    RCSTS_HOLDS,
    AcquireAction,
    AcquireKeys,
    ExtendedReservationStatus,
    PersistenceChange,
    RegisterAction,
    RegisteredController,
    RegisteredControllerExtended,
    RegisterKeys,
    ReleaseAction,
    ReleaseKey,
    ReservationAcquire,
    ReservationRegister,
    ReservationRelease,
    ReservationReport,
    ReservationStatus,
    ReservationType,
)
from nvme_spec.status import Status
from potash.sdk.commands import AnyNamespace, Commands, Layout, encoded
from potash.sdk.errors import CommandFailed, InvalidRequest

REPORT_SIZE = 4096
"""Bytes of a report that are requested before its size is known."""

_LARGEST_KEY = (1 << 64) - 1


class Registrant(NamedTuple):
    """A host that is registered with a namespace."""

    host: bytes
    """Its identifier."""
    key: int
    holds: bool
    """It holds the reservation."""
    controllers: tuple[int, ...]
    """The identifiers of its controllers."""


class Report(NamedTuple):
    """The registrants of a namespace and the reservation that is held on it."""

    generation: int
    type: ReservationType | None
    persists: bool
    """Both persist through power loss."""
    registrants: tuple[Registrant, ...]


class Reservations(AnyNamespace):
    """The reservations of one namespace of blocks, zones or keys, for the host of the controller.

    Each method raises what `Device`'s do: CommandFailed (Reservation Conflict) where another host
    prevents it, or for a wrong key. Keys have 64 bits; `key` is the host's own.
    """

    def register(self, key: int, *, persist: bool | None = None) -> None:
        """Register the host; `persist` sets whether registrations and reservations persist through
        power loss."""
        self._register(RegisterAction.REGISTER, 0, key, persist)

    def replace(self, key: int | None, new: int) -> None:
        """Replace the host's key; None ignores which one it has, and if it has any."""
        self._register(RegisterAction.REPLACE, key, new)

    def unregister(self, key: int | None) -> None:
        """End the registration, and what the host alone holds; None ignores the host's key."""
        self._register(RegisterAction.UNREGISTER, key)

    def acquire(self, key: int, type: ReservationType) -> None:
        """Hold a reservation."""
        self._acquire(AcquireAction.ACQUIRE, key, 0, type)

    def preempt(self, key: int, other: int, type: ReservationType, *, abort: bool = False) -> None:
        """Unregister the hosts whose key is `other`, and take the reservation over if one of them
        holds it; with `abort`, their commands on the namespace are aborted. If all registrants hold
        it, 0 preempts all others."""
        action = AcquireAction.PREEMPT_AND_ABORT if abort else AcquireAction.PREEMPT
        self._acquire(action, key, other, type)

    def release(self, key: int, type: ReservationType) -> None:
        """Release the reservation, if the host holds it."""
        self._release(ReleaseAction.RELEASE, key, type)

    def clear(self, key: int) -> None:
        """Release the reservation, whoever holds it, and unregister all hosts."""
        self._release(ReleaseAction.CLEAR, key)

    def report(self) -> Report:
        """The current state."""
        try:
            return self._report(extended=True)
        except CommandFailed as error:
            if error.status != Status.HOST_IDENTIFIER_INCONSISTENT_FORMAT:
                raise
            return self._report(extended=False)

    def _register(
        self, action: RegisterAction, key: int | None, new: int = 0, persist: bool | None = None
    ) -> None:
        change = PersistenceChange.NONE
        if persist is not None:
            change = PersistenceChange.SET if persist else PersistenceChange.CLEAR
        layout = ReservationRegister(rrega=action, iekey=key is None, cptpl=change)
        keys = RegisterKeys(_checked(key or 0), _checked(new))
        self._send(IoOpcode.RESERVATION_REGISTER, layout, keys.encode())

    def _acquire(self, action: AcquireAction, key: int, other: int, type: ReservationType) -> None:
        layout = ReservationAcquire(racqa=action, rtype=ReservationType(type))
        keys = AcquireKeys(_checked(key), _checked(other))
        self._send(IoOpcode.RESERVATION_ACQUIRE, layout, keys.encode())

    def _release(self, action: ReleaseAction, key: int, type: int = 0) -> None:
        layout = ReservationRelease(rrela=action, rtype=type)
        self._send(IoOpcode.RESERVATION_RELEASE, layout, ReleaseKey(_checked(key)).encode())

    def _send(self, opcode: IoOpcode, layout: Layout, data: bytes) -> None:
        self._submit(opcode, layout, data_out=data).result()

    def _report(self, *, extended: bool) -> Report:
        header = ExtendedReservationStatus if extended else ReservationStatus
        listed = RegisteredControllerExtended if extended else RegisteredController
        size = REPORT_SIZE
        while True:
            layout = ReservationReport(numd_z=size // 4 - 1, eds=extended)
            pending = self._submit(IoOpcode.RESERVATION_REPORT, layout, data_in_length=size)
            data = pending.result().data
            status = header(data[: header.SIZE])
            end = header.SIZE + listed.SIZE * status.regctl
            if end <= size:
                break
            size = -(-end // REPORT_SIZE) * REPORT_SIZE
        found: dict[tuple[bytes, int], Registrant] = {}
        for at in range(header.SIZE, end, listed.SIZE):
            item = listed(data[at : at + listed.SIZE])
            own = () if item.cntlid == NO_CONTROLLER else (item.cntlid,)
            # A host is listed for each of its controllers, of which one without an identifier has
            # one.
            key = item.hostid, 0 if any(item.hostid) else at
            controllers = found[key].controllers if key in found else ()
            holds = bool(item.rcsts & RCSTS_HOLDS)
            found[key] = Registrant(item.hostid, item.rkey, holds, (*controllers, *own))
        rtype = ReservationType(status.rtype) if status.rtype else None
        return Report(status.gen, rtype, bool(status.ptpls), tuple(found.values()))


def set_host_identifier(device: Commands, identifier: bytes) -> None:
    """Set the controller's host identifier. Raises InvalidRequest for one of another size than 8
    and 16 bytes."""
    if len(identifier) not in (HOST_IDENTIFIER_SIZE, EXTENDED_HOST_IDENTIFIER_SIZE):
        raise InvalidRequest(f"a host identifier has 8 or 16 bytes, not {len(identifier)}")
    word = HostIdentifier(exhid=len(identifier) == EXTENDED_HOST_IDENTIFIER_SIZE)
    layout = SetFeatures(FeatureId.HOST_IDENTIFIER, value=word.encode())
    device.admin(AdminOpcode.SET_FEATURES, data_out=identifier, **encoded(layout))


def _checked(key: int) -> int:
    if not 0 <= key <= _LARGEST_KEY:
        raise InvalidRequest(f"a reservation key has 64 bits, which {key} does not fit in")
    return key
