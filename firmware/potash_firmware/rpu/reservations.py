"""Reservations: the registrants of each namespace, who holds a reservation, and what that denies to
the hosts of controllers.

A host is known by its identifier (feature 81h). One that has set none is another host for every
controller and after every reset, so its registrations end with a reset.

Registrations persist through power loss if the namespace's PTPL state says so: then the sidecar has
them before the command that changes them completes.

Source: NVM Express Base Specification 2.0, section 8.19 (Reservations)."""

from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, NamedTuple

from nvme_spec.features import (
    EXTENDED_HOST_IDENTIFIER_SIZE,
    HOST_IDENTIFIER_SIZE,
    FeatureId,
    HostIdentifier,
    Select,
)
from nvme_spec.logs import AsyncEvent, AsyncEventType, IoCommandSetEvent, LogPage
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.reservations import (
    NO_CONTROLLER,
    RCSTS_HOLDS,
    ExtendedReservationStatus,
    NotificationType,
    RegisterAction,
    RegisteredController,
    RegisteredControllerExtended,
    ReservationNotificationLog,
    ReservationStatus,
    ReservationType,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.alerts import AsyncEvents
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_wire.records import U8, U32, U64, Range

REGISTRANT_LIMIT = 128
"""Registrants of all namespaces together, which the sidecar has room for."""

NOTIFICATION_LIMIT = 64
"""Notifications that a controller holds for its host."""

_ALL_REGISTRANTS = (
    ReservationType.WRITE_EXCLUSIVE_ALL_REGISTRANTS,
    ReservationType.EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
)
_SILENTLY_RELEASED = (ReservationType.WRITE_EXCLUSIVE, ReservationType.EXCLUSIVE_ACCESS)
"""Types of which no host is notified when they are released."""


class Access(Enum):
    """The access of a command to its namespace, as reservations see it: that of the read command
    group, of the write command group, or of all other commands (figure 433)."""

    READ = auto()
    WRITE = auto()
    OTHER = auto()


Denied = frozenset[Access]
"""The accesses that a reservation denies to a host."""

_NOTHING: Denied = frozenset()
_WRITES: Denied = frozenset({Access.WRITE})
_ALL: Denied = frozenset({Access.READ, Access.WRITE})

DENIED: dict[ReservationType, tuple[Denied, Denied]] = {
    ReservationType.WRITE_EXCLUSIVE: (_WRITES, _WRITES),
    ReservationType.EXCLUSIVE_ACCESS: (_ALL, _ALL),
    ReservationType.WRITE_EXCLUSIVE_REGISTRANTS_ONLY: (_NOTHING, _WRITES),
    ReservationType.EXCLUSIVE_ACCESS_REGISTRANTS_ONLY: (_NOTHING, _ALL),
    ReservationType.WRITE_EXCLUSIVE_ALL_REGISTRANTS: (_NOTHING, _WRITES),
    ReservationType.EXCLUSIVE_ACCESS_ALL_REGISTRANTS: (_NOTHING, _ALL),
}
"""The accesses that each type denies to registrants that do not hold the reservation, and to all
other hosts."""


class Host(NamedTuple):
    """A host: its identifier, of 8 or 16 bytes; `controller` is the only one of a host that has set
    none, or NO_CONTROLLER."""

    identifier: bytes
    controller: int = NO_CONTROLLER


Notices = dict[Host, NotificationType]
"""The hosts that are to be notified of something, whatever controllers they use."""


@dataclass(eq=False)
class Reservation:
    """The registrants of one namespace and the reservation that is held on it, if any."""

    registrants: dict[Host, int] = field(default_factory=dict)
    """The key of each."""
    type: ReservationType | None = None
    holder: Host | None = None
    """The host that holds it, unless all registrants do."""
    generation: int = 0
    persists: bool = False
    """The Persist Through Power Loss state."""

    def holds(self, host: Host) -> bool:
        """The host holds the reservation."""
        if self.type in _ALL_REGISTRANTS:
            return host in self.registrants
        return self.type is not None and host == self.holder

    def denied(self, host: Host) -> Denied:
        """The accesses that the reservation denies to a host."""
        if self.type is None or self.holds(host):
            return _NOTHING
        registrant, other = DENIED[self.type]
        return registrant if host in self.registrants else other

    # Commands. Each gives the notifications that it causes, or raises NvmeError having changed
    # nothing.

    def register(
        self, host: Host, action: RegisterAction, crkey: int, nrkey: int, *, ignores_key: bool
    ) -> Notices:
        """Reservation Register (sections 8.19.3 and 8.19.4)."""
        key = self.registrants.get(host)
        if action is RegisterAction.REGISTER:
            if key not in (None, nrkey):
                raise _conflict("the host is registered with another key")
        elif not ignores_key:
            self.require_key(host, crkey)
        notices: Notices = {}
        if action is RegisterAction.UNREGISTER:
            notices = self.unregister(host)
        else:
            self.registrants[host] = nrkey
        self._count()
        return notices

    def acquire(self, host: Host, crkey: int, rtype: ReservationType) -> Notices:
        """Reservation Acquire with the action Acquire (section 8.19.5)."""
        self.require_key(host, crkey)
        if self.type is not None and not (self.holds(host) and self.type is rtype):
            raise _conflict("a reservation is held on the namespace")
        self._reserve(host, rtype)
        return {}

    def preempt(self, host: Host, crkey: int, prkey: int, rtype: ReservationType) -> Notices:
        """Reservation Acquire with the action Preempt (section 8.19.7)."""
        self.require_key(host, crkey)
        matching = {other for other, key in self.registrants.items() if key == prkey}
        before = self.type
        if before in _ALL_REGISTRANTS:
            takes_over = prkey == 0
            if takes_over:
                matching = set(self.registrants)
            elif not matching:
                raise _conflict("no registrant has the key that is to be preempted")
        else:
            takes_over = self.holder in matching
            if before is not None and not takes_over and prkey == 0:
                raise NvmeError(Status.INVALID_FIELD, "the holder's key is not 0")
        if takes_over:
            matching.discard(host)
        for other in matching:
            self.unregister(other)
        notices: Notices = {}
        if takes_over:
            if before is not rtype:
                notices = self.others(host, NotificationType.RESERVATION_RELEASED)
            self._reserve(host, rtype)
        self._count()
        matching.discard(host)
        return notices | dict.fromkeys(matching, NotificationType.REGISTRATION_PREEMPTED)

    def release(self, host: Host, crkey: int, rtype: int) -> Notices:
        """Reservation Release with the action Release (section 8.19.6)."""
        self.require_key(host, crkey)
        if not self.holds(host):
            return {}
        if self.type != rtype:
            raise NvmeError(Status.INVALID_FIELD, "the reservation held has another type")
        notify = self.type not in _SILENTLY_RELEASED
        self.type = self.holder = None
        return self.others(host, NotificationType.RESERVATION_RELEASED) if notify else {}

    def clear(self, host: Host, crkey: int) -> Notices:
        """Reservation Release with the action Clear (section 8.19.8)."""
        self.require_key(host, crkey)
        notices = self.others(host, NotificationType.RESERVATION_PREEMPTED)
        self.type = self.holder = None
        self.registrants.clear()
        self._count()
        return notices

    def unregister(self, host: Host) -> Notices:
        """The host is no registrant any more; what it alone holds is released."""
        self.registrants.pop(host, None)
        all_hold = self.type in _ALL_REGISTRANTS
        if self.type is None or (self.registrants if all_hold else host != self.holder):
            return {}
        notify = not all_hold and self.type not in _SILENTLY_RELEASED
        self.type = self.holder = None
        return self.others(host, NotificationType.RESERVATION_RELEASED) if notify else {}

    def others(self, host: Host, what: NotificationType) -> Notices:
        """A notification for every registrant but one."""
        return {other: what for other in self.registrants if other != host}

    def require_key(self, host: Host, crkey: int) -> None:
        """Raise NvmeError unless the host is a registrant with that key."""
        key = self.registrants.get(host)
        if key is None:
            raise _conflict("the host is not a registrant")
        if key != crkey:
            raise _conflict("the host is registered with another key")

    def _reserve(self, host: Host, rtype: ReservationType) -> None:
        self.type = rtype
        self.holder = None if rtype in _ALL_REGISTRANTS else host

    def _count(self) -> None:
        self.generation = self.generation + 1 & 0xFFFF_FFFF


class SavedRegistrant(NamedTuple):
    """A registrant: identifier, controller of a host without one, and key."""

    identifier: Annotated[bytes, Range(HOST_IDENTIFIER_SIZE, EXTENDED_HOST_IDENTIFIER_SIZE)]
    controller: Annotated[int, Range(0, NO_CONTROLLER)]
    key: U64


class SavedReservation(NamedTuple):
    """A namespace's reservation; `holder` is the index of a registrant, if one holds it alone."""

    nsid: U32
    generation: U32
    persists: bool
    type: Annotated[int, Range(0, max(ReservationType))]
    holder: U8 | None
    registrants: tuple[SavedRegistrant, ...]


SECTION: Section[list[SavedReservation]] = Section("reservations", list[SavedReservation])
"""The sidecar's section: the reservations that persist through power loss."""


class Reservations(Part):
    """The reservations of one drive. `exists` says whether there is a namespace."""

    def __init__(self, sidecar: Sidecar, exists: Callable[[int], bool]) -> None:
        self._sidecar = sidecar
        self._exists = exists
        self._every: dict[int, Reservation] = {}
        self.hosts: list[HostReservations] = []
        """The controllers' sides."""

    def __getitem__(self, nsid: int) -> Reservation:
        """The reservation of a namespace."""
        return self._every.get(nsid) or self._every.setdefault(nsid, Reservation())

    def items(self) -> Iterable[tuple[int, Reservation]]:
        return self._every.items()

    @property
    def room(self) -> int:
        """The number of registrants that can be added."""
        return REGISTRANT_LIMIT - sum(len(each.registrants) for each in self._every.values())

    def changed(self, nsid: int, notices: Mapping[Host, NotificationType] | None = None) -> None:
        """A namespace's reservation has changed: let every controller act by it."""
        for side in self.hosts:
            side.update()
            what = (notices or {}).get(side.host)
            if what is not None:
                side.notify(nsid, what)

    def forget(self, nsid: int) -> None:
        """A namespace is gone, or a new one."""
        self._every.pop(nsid, None)
        self.changed(nsid)
        self.put()

    # What persists.

    def put(self) -> None:
        """Put what persists through power loss into the sidecar, for its next write."""
        lasting = (saved for saved in self.save(lasting=True) if saved.persists)
        self._sidecar.put(SECTION, [_listed(saved) for saved in lasting])

    def save(self, *, lasting: bool = False) -> tuple[SavedReservation, ...]:
        """Every reservation; of those that are `lasting`, without hosts that a reset ends."""
        return tuple(_saved(*item, lasting=lasting) for item in self._every.items())

    def restore(self, *, clean: bool | None = None) -> None:
        """Have what persisted, and nothing else."""
        saved: Sequence[SavedReservation] | None = self._sidecar.get(SECTION)
        self.load(saved or ())

    def load(self, saved: Iterable[SavedReservation]) -> None:
        """Have the reservations that were saved, of namespaces that there are."""
        self._every = {each.nsid: _loaded(each) for each in saved if self._exists(each.nsid)}
        for side in self.hosts:
            side.update()


def _saved(nsid: int, reservation: Reservation, *, lasting: bool) -> SavedReservation:
    registrants = [
        (host, key)
        for host, key in reservation.registrants.items()
        if not (lasting and host.controller != NO_CONTROLLER)
    ]
    hosts = [host for host, _ in registrants]
    holder, rtype = reservation.holder, reservation.type
    if (holder is not None and holder not in hosts) or not hosts:
        holder = rtype = None
    return SavedReservation(
        nsid,
        reservation.generation,
        reservation.persists,
        rtype or 0,
        None if holder is None else hosts.index(holder),
        tuple(SavedRegistrant(host.identifier, host.controller, key) for host, key in registrants),
    )


def _listed(saved: SavedReservation) -> list[object]:
    return [
        *saved[:-1],
        [
            [b64encode(identifier).decode(), controller, key]
            for identifier, controller, key in saved.registrants
        ],
    ]


def _loaded(saved: SavedReservation) -> Reservation:
    """The reservation, as far as it makes sense."""
    registrants = {Host(each.identifier, each.controller): each.key for each in saved.registrants}
    found = Reservation(registrants, None, None, saved.generation, saved.persists)
    rtype = ReservationType(saved.type) if saved.type and registrants else None
    if rtype in _ALL_REGISTRANTS:
        found.type = rtype
    elif rtype is not None and saved.holder is not None and saved.holder < len(registrants):
        found.type, found.holder = rtype, list(registrants)[saved.holder]
    return found


class Notification(NamedTuple):
    """A notification, with the number of its event."""

    number: U64
    type: Annotated[int, Range(1, max(NotificationType))]
    nsid: U32


class SavedNotifications(NamedTuple):
    """The notifications of a controller, and the number of the last event."""

    number: U64 = 0
    notifications: Annotated[tuple[Notification, ...], Range(0, NOTIFICATION_LIMIT)] = ()


NO_NOTIFICATIONS = SavedNotifications()


class HostReservations(Part):
    """The reservations as one controller and its host have them."""

    def __init__(
        self,
        reservations: Reservations,
        identifier: int,
        features: Features,
        events: AsyncEvents,
        outstanding: Outstanding,
    ) -> None:
        self.every = reservations
        self.identifier = identifier
        self.outstanding = outstanding
        self._features = features
        self._events = events
        self.restricted: dict[int, Denied] = {}
        """The accesses that reservations deny to the host, by namespace, without namespaces of
        which they deny none. It is looked at for every command."""
        self.notifications: deque[Notification] = deque()
        self._number = 0
        reservations.hosts.append(self)

    @property
    def host(self) -> Host:
        """The controller's host."""
        value = self._features.read(
            Select.CURRENT, FeatureId.HOST_IDENTIFIER, HostIdentifier(exhid=1).encode()
        )
        size = EXTENDED_HOST_IDENTIFIER_SIZE if value.dword else HOST_IDENTIFIER_SIZE
        identifier = value.data[:size]
        if any(identifier):
            return Host(identifier)
        return Host(bytes(HOST_IDENTIFIER_SIZE), self.identifier)

    def update(self) -> None:
        """Find again what is denied to the host."""
        host = self.host
        self.restricted = {
            nsid: denied
            for nsid, reservation in self.every.items()
            if (denied := reservation.denied(host))
        }

    def require(self, nsid: int, access: Access) -> None:
        """Raise NvmeError if a reservation denies an access to a namespace, or to any for the
        broadcast value."""
        restricted = self.restricted
        if nsid == BROADCAST_NSID:
            conflict = any(access in denied for denied in restricted.values())
        else:
            conflict = access in restricted.get(nsid, _NOTHING)
        if conflict:
            raise _conflict("another host holds a reservation on the namespace")

    def allows(self, nsid: int, access: Access) -> bool:
        """No reservation denies an access to a namespace."""
        return access not in self.restricted.get(nsid, _NOTHING)

    # The identifier.

    def require_identifier(self, identifier: bytes) -> None:
        """Raise NvmeError for an identifier of another size than those of registrants and of other
        controllers' hosts."""
        if any(identifier) and self._sizes(but=self) - {len(identifier)}:
            raise NvmeError(
                Status.HOST_IDENTIFIER_INCONSISTENT_FORMAT,
                "other hosts have identifiers of another size",
            )

    def _sizes(self, but: "HostReservations") -> set[int]:
        hosts = [side.host for side in self.every.hosts if side is not but]
        hosts += [host for _, reservation in self.every.items() for host in reservation.registrants]
        return {len(host.identifier) for host in hosts if host.controller == NO_CONTROLLER}

    # Reservation Report.

    def report(self, nsid: int, *, extended: bool) -> bytes:
        """The Reservation Status data structure of a namespace. Raises NvmeError where identifiers
        have another size than it."""
        reservation, host = self.every[nsid], self.host
        size = EXTENDED_HOST_IDENTIFIER_SIZE if extended else HOST_IDENTIFIER_SIZE
        longest = max((len(each.identifier) for each in reservation.registrants), default=0)
        chosen = host.controller == NO_CONTROLLER and len(host.identifier) != size
        if chosen or longest > size:
            raise NvmeError(
                Status.HOST_IDENTIFIER_INCONSISTENT_FORMAT, "host identifiers have another size"
            )
        header = ExtendedReservationStatus if extended else ReservationStatus
        listed = RegisteredControllerExtended if extended else RegisteredController
        found = [
            bytes(
                listed(
                    cntlid=controller,
                    rcsts=RCSTS_HOLDS if reservation.holds(registrant) else 0,
                    hostid=registrant.identifier.ljust(size, b"\0"),
                    rkey=key,
                )
            )
            for registrant, key in reservation.registrants.items()
            for controller in self._controllers(registrant)
        ]
        status = header(
            gen=reservation.generation,
            rtype=reservation.type or 0,
            regctl=len(found),
            ptpls=reservation.persists,
        )
        return bytes(status) + b"".join(found)

    def _controllers(self, host: Host) -> Iterator[int]:
        """The controllers of a host, or else what stands for none."""
        found = [side.identifier for side in self.every.hosts if side.host == host]
        yield from found or [NO_CONTROLLER]

    # Notifications.

    def notify(self, nsid: int, what: NotificationType) -> None:
        """Notify the host, unless it has masked that. One for which there is no room is counted by
        the newest."""
        mask = self._features.get(FeatureId.RESERVATION_NOTIFICATION_MASK, nsid=nsid)
        if mask & 1 << what:
            return
        self._number = self._number % ((1 << 64) - 1) + 1
        if len(self.notifications) < NOTIFICATION_LIMIT:
            self.notifications.append(Notification(self._number, what, nsid))
        else:
            self.notifications[-1] = self.notifications[-1]._replace(number=self._number)
        self._events.add(
            AsyncEvent(
                type=AsyncEventType.IO_COMMAND_SET,
                info=IoCommandSetEvent.RESERVATION_LOG_PAGE_AVAILABLE,
                log_page=LogPage.RESERVATION_NOTIFICATION,
            )
        )

    def save(self) -> SavedNotifications:
        """The notifications that the host has not read, and the number of the last event."""
        return SavedNotifications(self._number, tuple(self.notifications))

    def load(self, saved: SavedNotifications) -> None:
        """Go on from what was saved."""
        self._number = saved.number
        self.notifications = deque(saved.notifications)
        self.update()

    def log_page(self) -> bytes:
        """The oldest notification; zeroes if there is none."""
        if not self.notifications:
            return bytes(ReservationNotificationLog.SIZE)
        oldest = self.notifications[0]
        return bytes(
            ReservationNotificationLog(
                lpc=oldest.number,
                rnlpt=oldest.type,
                nalp=min(len(self.notifications) - 1, 0xFF),
                nsid=oldest.nsid,
            )
        )

    def log_was_read(self) -> None:
        """The host has the oldest notification."""
        if self.notifications:
            self.notifications.popleft()

    def reset(self, *, next_host: bool = False) -> None:
        """A host without an identifier is another one after a reset."""
        self.notifications.clear()
        self._number = 0
        gone = Host(bytes(HOST_IDENTIFIER_SIZE), self.identifier)
        for nsid, reservation in list(self.every.items()):
            if gone in reservation.registrants:
                self.every.changed(nsid, reservation.unregister(gone))
        self.update()


def _conflict(detail: str) -> NvmeError:
    return NvmeError(Status.RESERVATION_CONFLICT, detail)
