"""Reservations as one controller and its host have them: what is denied, reports, notifications.

Source: NVM Express Base Specification 2.0, sections 7.5 (Reservation Report), 5.16.1 (Reservation
Notification log page) and 8.19.
"""

from collections import deque
from collections.abc import Iterator
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
    RegisteredController,
    RegisteredControllerExtended,
    ReservationNotificationLog,
    ReservationStatus,
)
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.logs.alerts import AsyncEvents
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.reservations import NOTHING, Access, Denied, Host, Reservations, conflict
from potash_wire.records import U32, U64, Range

NOTIFICATION_LIMIT = 64
"""Notifications that a controller holds for its host."""


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
        namespaces: Namespaces,
        events: AsyncEvents,
        outstanding: Outstanding,
    ) -> None:
        self.every = reservations
        self.identifier = identifier
        self.outstanding = outstanding
        self._namespaces = namespaces
        self._features = namespaces.features
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
            refused = any(access in denied for denied in restricted.values())
        else:
            refused = access in restricted.get(nsid, NOTHING)
        if refused:
            raise conflict("another host holds a reservation on the namespace")

    def allows(self, nsid: int, access: Access) -> bool:
        """No reservation denies an access to a namespace."""
        return access not in self.restricted.get(nsid, NOTHING)

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
        """Notify the host of an attached namespace, unless it has masked that. One for which there
        is no room is counted by the newest."""
        if nsid not in self._namespaces.attached:
            return
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
        self._events.deliver()  # the host may be served next only when something happens

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
