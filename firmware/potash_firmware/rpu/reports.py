"""A drive's reports to its hosts: logs and events, the critical warnings, and what causes them.

Some are of the whole drive, the others of one controller.

Source: NVM Express Base Specification 2.0, section 5.2 and 5.16.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nvme_spec import features
from nvme_spec.logs import CriticalWarning, NoticeEvent, SmartLog
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode
from potash_device.storage import Storage
from potash_firmware.rpu.logs.alerts import Alerts, AsyncEvents
from potash_firmware.rpu.logs.errors import ErrorLog
from potash_firmware.rpu.logs.health import SPARE_THRESHOLD, Health
from potash_firmware.rpu.logs.namespaces import ChangedNamespaces, LbaStatus
from potash_firmware.rpu.logs.persistent_events import PersistentEvents, ReportingContext
from potash_firmware.rpu.namespaces.inventory import Inventory, Namespaces
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part

if TYPE_CHECKING:  # it takes NumPy, as in the times
    from potash_firmware.rpu.timing.modelled import ModelledTime


class DriveReports:
    """The logs and events of a drive; `timing` is the modelled time, where there is one, and
    `outstanding` are the waiting commands of each controller."""

    def __init__(
        self,
        storage: Storage,
        inventory: Inventory,
        outstanding: Sequence[Outstanding],
        timing: ModelledTime | None,
        clock: Callable[[], float],
    ) -> None:
        self._inventory = inventory
        self._timing = timing
        self.controllers: list[Reports] = []
        """The reports of each controller, in the order of their identifiers."""
        self.health = Health(storage.sidecar, clock, outstanding)
        self.persistent_events = PersistentEvents(
            storage.sidecar, clock, lambda: self.controllers[0].timestamp()
        )
        self.lba_status = LbaStatus(storage.sidecar)
        if timing is not None:
            timing.on_retired = self.warned

    def critical_warning(self) -> CriticalWarning:
        """The critical warnings about the media."""
        warning = CriticalWarning(0)
        media = [namespace.media for namespace in self._inventory.stored.values()]
        if any(each.lost is not None for each in media):
            warning |= CriticalWarning.RELIABILITY_DEGRADED
        if media and not any(each.writable or each.protected for each in media):
            warning |= CriticalWarning.READ_ONLY
        if self._timing is not None:
            wear = self._timing.drive.wear
            if wear.available_spare < SPARE_THRESHOLD:
                warning |= CriticalWarning.SPARE_BELOW_THRESHOLD
            if wear.worn:
                warning |= CriticalWarning.READ_ONLY
        return warning

    def smart_log(self, warning: CriticalWarning) -> SmartLog:
        if self._timing is None:
            return self.health.log(warning)
        wear = self._timing.drive.wear
        return self.health.log(warning, wear.available_spare, wear.percentage_used)

    def warned(self) -> None:
        """Critical warnings may have changed."""
        for each in self.controllers:
            each.alerts.health()

    def namespace_changed(self, nsid: int, controllers: Iterable[int] | None = None) -> None:
        """A namespace has come, gone, or changed: note it for the hosts of these controllers, or
        of those that it is attached to, and notify them."""
        if controllers is None:
            namespace = self._inventory.every.get(nsid)
            controllers = () if namespace is None else self._inventory.attached_to(namespace)
        for number in controllers:
            self.controllers[number].namespace_changed(nsid)

    def notice(self, what: NoticeEvent) -> None:
        """Notify every host."""
        for each in self.controllers:
            each.alerts.notice(what)

    def vendor(self, info: int, log_page: int) -> None:
        """Give every host a vendor specific event."""
        for each in self.controllers:
            each.alerts.vendor(info, log_page)

    def zones_changed(self) -> None:
        """Notify the hosts of the zones that they have not read of."""
        for each in self.controllers:
            each.zones_changed()
        for namespace in self._inventory.zoned:
            namespace.zones.changes.new = False

    def media_failed(self) -> None:
        self.health.media_errors += 1
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.MEDIA_AND_DATA_INTEGRITY))

    def media_lost(self) -> None:
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.CRITICAL_WARNING))
        self.warned()
        for namespace in self._inventory.zoned:
            if namespace.media.lost is not None:
                namespace.lost()
        self.zones_changed()


class Reports:
    """The logs and events of one controller, beside those of its `drive`."""

    def __init__(self, drive: DriveReports, namespaces: Namespaces) -> None:
        self._drive = drive
        drive.controllers.append(self)
        self._namespaces = namespaces
        self._features = namespaces.features
        self.health, self.persistent_events = drive.health, drive.persistent_events
        self.lba_status = drive.lba_status
        self.timestamp = self._features.timestamp_value
        self.events = AsyncEvents()
        self.errors = ErrorLog(drive.health)
        self.context = ReportingContext(drive.persistent_events)
        """The reporting context of the persistent event log."""
        self.changed_namespaces = ChangedNamespaces()
        self.alerts = Alerts(self.events, self.errors, self._features, self.critical_warning)
        self.parts: tuple[Part, ...] = (self.errors, self.events, self.alerts, self.context)

    def critical_warning(self) -> CriticalWarning:
        """The critical warnings about the media and the temperature."""
        warning = self._drive.critical_warning()
        if (
            not self._threshold(features.ThresholdType.UNDER)
            < self.health.temperature
            < self._threshold(features.ThresholdType.OVER)
        ):
            warning |= CriticalWarning.TEMPERATURE
        return warning

    def smart_log(self) -> SmartLog:
        return self._drive.smart_log(self.critical_warning())

    def namespace_changed(self, nsid: int) -> None:
        """A namespace has come, gone, or changed: note it for the host, and notify it."""
        self.changed_namespaces.add(nsid)
        self.alerts.notice(NoticeEvent.NAMESPACE_ATTRIBUTE_CHANGED)

    def zones_changed(self) -> None:
        """Notify the host of the zones that it has not read of."""
        for namespace in self._namespaces.zoned:
            unread = namespace.zones.changes.unread(self._namespaces.number)
            if unread and namespace.nsid in self._namespaces.attached:
                self.alerts.notice(NoticeEvent.ZONE_DESCRIPTOR_CHANGED, namespace.nsid)

    def _threshold(self, kind: features.ThresholdType) -> int:
        choice = features.TemperatureThreshold(thsel=kind).encode()
        return features.TemperatureThreshold(
            self._features.get(features.FeatureId.TEMPERATURE_THRESHOLD, choice)
        ).tmpth
