"""Reservations: the registrants of each namespace, who holds a reservation, and what that denies to
the hosts of controllers.

A host is known by its identifier (feature 81h). One that has set none is another host for every
controller and after every reset, so its registrations end with a reset.

Registrations persist through power loss if the namespace's PTPL state says so: then the sidecar has
them before the command that changes them completes.

Source: NVM Express Base Specification 2.0, section 8.19 (Reservations)."""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, NamedTuple, Protocol

from nvme_spec.features import EXTENDED_HOST_IDENTIFIER_SIZE, HOST_IDENTIFIER_SIZE
from nvme_spec.reservations import NO_CONTROLLER, NotificationType, RegisterAction, ReservationType
from nvme_spec.status import NvmeError, Status
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_wire.records import U8, U32, U64, Range

REGISTRANT_LIMIT = 128
"""Registrants of all namespaces together, which the sidecar has room for.

Half of them are kept for the controllers, in equal shares: a host can change its identifier and
register as another one until there is no room, and only the other half is there to be used up.
"""

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

NOTHING: Denied = frozenset()
_WRITES: Denied = frozenset({Access.WRITE})
_ALL: Denied = frozenset({Access.READ, Access.WRITE})

DENIED: dict[ReservationType, tuple[Denied, Denied]] = {
    ReservationType.WRITE_EXCLUSIVE: (_WRITES, _WRITES),
    ReservationType.EXCLUSIVE_ACCESS: (_ALL, _ALL),
    ReservationType.WRITE_EXCLUSIVE_REGISTRANTS_ONLY: (NOTHING, _WRITES),
    ReservationType.EXCLUSIVE_ACCESS_REGISTRANTS_ONLY: (NOTHING, _ALL),
    ReservationType.WRITE_EXCLUSIVE_ALL_REGISTRANTS: (NOTHING, _WRITES),
    ReservationType.EXCLUSIVE_ACCESS_ALL_REGISTRANTS: (NOTHING, _ALL),
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
    registered_at: dict[Host, int] = field(default_factory=dict)
    """The controller at which each has registered."""
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
            return NOTHING
        registrant, other = DENIED[self.type]
        return registrant if host in self.registrants else other

    # Commands. Each gives the notifications that it causes, or raises NvmeError having changed
    # nothing.

    def register(
        self,
        host: Host,
        action: RegisterAction,
        crkey: int,
        nrkey: int,
        *,
        ignores_key: bool,
        controller: int,
    ) -> Notices:
        """Reservation Register (sections 8.19.3 and 8.19.4), at a controller."""
        key = self.registrants.get(host)
        if action is RegisterAction.REGISTER:
            if key not in (None, nrkey):
                raise conflict("the host is registered with another key")
        elif not ignores_key:
            self.require_key(host, crkey)
        notices: Notices = {}
        if action is RegisterAction.UNREGISTER:
            notices = self.unregister(host)
        else:
            self.registrants[host] = nrkey
            self.registered_at.setdefault(host, controller)
        self._count()
        return notices

    def acquire(self, host: Host, crkey: int, rtype: ReservationType) -> Notices:
        """Reservation Acquire with the action Acquire (section 8.19.5)."""
        self.require_key(host, crkey)
        if self.type is not None and not (self.holds(host) and self.type is rtype):
            raise conflict("a reservation is held on the namespace")
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
                raise conflict("no registrant has the key that is to be preempted")
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
        self.registered_at.clear()
        self._count()
        return notices

    def unregister(self, host: Host) -> Notices:
        """The host is no registrant any more; what it alone holds is released."""
        self.registrants.pop(host, None)
        self.registered_at.pop(host, None)
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
            raise conflict("the host is not a registrant")
        if key != crkey:
            raise conflict("the host is registered with another key")

    def _reserve(self, host: Host, rtype: ReservationType) -> None:
        self.type = rtype
        self.holder = None if rtype in _ALL_REGISTRANTS else host

    def _count(self) -> None:
        self.generation = self.generation + 1 & 0xFFFF_FFFF


class SavedRegistrant(NamedTuple):
    """A registrant: identifier, the controller at which it has registered, if that is known, and
    key."""

    identifier: Annotated[bytes, Range(HOST_IDENTIFIER_SIZE, EXTENDED_HOST_IDENTIFIER_SIZE)]
    controller: Annotated[int, Range(0, NO_CONTROLLER)]
    key: U64

    @property
    def host(self) -> Host:
        """The host, of which one without an identifier is known by its controller."""
        return Host(self.identifier, NO_CONTROLLER if any(self.identifier) else self.controller)


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


class Side(Protocol):
    """A controller, as far as the reservations of its drive know it."""

    identifier: int
    outstanding: Outstanding

    @property
    def host(self) -> Host: ...

    def update(self) -> None: ...

    def notify(self, nsid: int, what: NotificationType) -> None: ...


class Reservations(Part):
    """The reservations of one drive. `exists` says whether there is a namespace."""

    def __init__(self, sidecar: Sidecar, exists: Callable[[int], bool]) -> None:
        self._sidecar = sidecar
        self._exists = exists
        self._every: dict[int, Reservation] = {}
        self.hosts: list[Side] = []
        """The controllers' sides."""

    def __getitem__(self, nsid: int) -> Reservation:
        """The reservation of a namespace."""
        return self._every.get(nsid) or self._every.setdefault(nsid, Reservation())

    def items(self) -> Iterable[tuple[int, Reservation]]:
        return self._every.items()

    def has_room(self, controller: int) -> bool:
        """Another registrant can be added at a controller."""
        at = Counter(at for each in self._every.values() for at in each.registered_at.values())
        share = REGISTRANT_LIMIT // 2 // len(self.hosts)
        kept = sum(max(share - at[side.identifier], 0) for side in self.hosts)
        return at.total() < REGISTRANT_LIMIT and (
            at[controller] < share or at.total() + kept < REGISTRANT_LIMIT
        )

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
        tuple(
            SavedRegistrant(host.identifier, reservation.registered_at[host], key)
            for host, key in registrants
        ),
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
    registrants = {each.host: each.key for each in saved.registrants}
    registered_at = {each.host: each.controller for each in saved.registrants}
    found = Reservation(registrants, registered_at, None, None, saved.generation, saved.persists)
    rtype = ReservationType(saved.type) if saved.type and registrants else None
    if rtype in _ALL_REGISTRANTS:
        found.type = rtype
    elif rtype is not None and saved.holder is not None and saved.holder < len(registrants):
        found.type, found.holder = rtype, list(registrants)[saved.holder]
    return found


def conflict(detail: str) -> NvmeError:
    """The error of a command that conflicts with reservations or registrations."""
    return NvmeError(Status.RESERVATION_CONFLICT, detail)
