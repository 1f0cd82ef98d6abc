"""A drive's reports to its host: logs and events, the critical warnings, and what causes them.

Source: NVM Express Base Specification 2.0, section 5.2 and 5.16.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nvme_spec import features
from nvme_spec.logs import CriticalWarning, NoticeEvent, SmartLog
from nvme_spec.persistent_events import HardwareError, HardwareErrorCode
from potash_device.board import Board
from potash_firmware.rpu.logs.alerts import Alerts, AsyncEvents
from potash_firmware.rpu.logs.errors import ErrorLog
from potash_firmware.rpu.logs.health import SPARE_THRESHOLD, Health
from potash_firmware.rpu.logs.namespaces import ChangedNamespaces, LbaStatus
from potash_firmware.rpu.logs.persistent_events import PersistentEvents
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.part import Part

if TYPE_CHECKING:  # it takes NumPy, as in the times
    from potash_firmware.rpu.timing.modelled import ModelledTime


class Reports:
    """The logs and events of one controller; `timing` is the modelled time, where there is one."""

    def __init__(
        self,
        board: Board,
        namespaces: Namespaces,
        outstanding: Outstanding,
        timing: ModelledTime | None,
        clock: Callable[[], float],
    ) -> None:
        self._namespaces = namespaces
        self._features = namespaces.features
        self._timing = timing
        self.events = AsyncEvents()
        self.errors = ErrorLog()
        self.health = Health(board.sidecar, self.errors, clock, outstanding)
        self.persistent_events = PersistentEvents(
            board.sidecar, clock, self._features.timestamp_value
        )
        self.changed_namespaces = ChangedNamespaces()
        self.lba_status = LbaStatus(board.sidecar)
        self.alerts = Alerts(self.events, self.errors, self._features, self.critical_warning)
        if timing is not None:
            timing.on_retired = self.alerts.health
        self.parts: tuple[Part, ...] = (
            self.errors,
            self.health,
            self.events,
            self.alerts,
            self.persistent_events,
            self.lba_status,
        )

    def critical_warning(self) -> CriticalWarning:
        """The critical warnings about the media and the temperature."""
        warning = CriticalWarning(0)
        if (
            not self._threshold(features.ThresholdType.UNDER)
            < self.health.temperature
            < self._threshold(features.ThresholdType.OVER)
        ):
            warning |= CriticalWarning.TEMPERATURE
        media = [namespace.media for namespace in self._namespaces.stored.values()]
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

    def smart_log(self) -> SmartLog:
        warning = self.critical_warning()
        if self._timing is None:
            return self.health.log(warning)
        wear = self._timing.drive.wear
        return self.health.log(warning, wear.available_spare, wear.percentage_used)

    def namespace_changed(self, nsid: int) -> None:
        """A namespace has come, gone, or changed: note it for the host, and notify it."""
        self.changed_namespaces.add(nsid)
        self.alerts.notice(NoticeEvent.NAMESPACE_ATTRIBUTE_CHANGED)

    def zones_changed(self) -> None:
        """Notify the host of the zones that it has not read of."""
        for namespace in self._namespaces.zoned:
            if namespace.zones.changed and namespace.nsid in self._namespaces.attached:
                self.alerts.notice(NoticeEvent.ZONE_DESCRIPTOR_CHANGED, namespace.nsid)

    def media_failed(self) -> None:
        self.health.media_errors += 1
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.MEDIA_AND_DATA_INTEGRITY))

    def media_lost(self) -> None:
        self.persistent_events.add(HardwareError(code=HardwareErrorCode.CRITICAL_WARNING))
        self.alerts.health()
        for namespace in self._namespaces.zoned:
            if namespace.media.lost is not None:
                namespace.lost()
        self.zones_changed()

    def _threshold(self, kind: features.ThresholdType) -> int:
        choice = features.TemperatureThreshold(thsel=kind).encode()
        return features.TemperatureThreshold(
            self._features.get(features.FeatureId.TEMPERATURE_THRESHOLD, choice)
        ).tmpth
