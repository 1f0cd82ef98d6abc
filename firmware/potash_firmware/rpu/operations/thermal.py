"""The temperature, its thresholds, and host controlled thermal management.

The composite temperature is constant, but thresholds are real: a host that sets one below it is
notified. Host controlled thermal management counts transitions, and does not throttle.

Source: NVM Express Base Specification 2.0, section 5.27.1.3, 5.16.1.3 and 8.15.5."""

from collections.abc import Callable
from dataclasses import dataclass

from nvme_spec.features import FeatureId, HostControlledThermalManagement
from potash_firmware.rpu.features.table import CRITICAL_TEMPERATURE, WARNING_TEMPERATURE
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.logs.health import Health
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.part import Part


@dataclass(eq=False, repr=False)
class Thermal(Part):
    """Follows `health.temperature`, and counts in `health` for how long it was too high."""

    health: Health
    clock: Callable[[], float]
    inventory: Inventory
    """Its views have the thresholds that the hosts have set."""
    _level: int = 0

    def __post_init__(self) -> None:
        self._since = self.clock()

    def restore(self, *, clean: bool | None = None) -> None:
        self.update()

    def update(self) -> None:
        """Update the counters.

        To be called before they are read, and when the thresholds have changed.
        """
        now = self.clock()
        passed, self._since = now - self._since, now
        health = self.health
        if self._level == 1:
            health.thermal_time_1 += passed
        elif self._level == 2:
            health.thermal_time_2 += passed
        if health.temperature >= CRITICAL_TEMPERATURE:
            health.critical_temperature_time += passed
        elif health.temperature >= WARNING_TEMPERATURE:
            health.warning_temperature_time += passed
        self._enter(self._wanted_level())

    def changed(self, temperature: int) -> None:
        """The thermometer shows another temperature."""
        self.update()
        self.health.temperature = temperature
        self._enter(self._wanted_level())

    def _wanted_level(self) -> int:
        return max(self._level_of(view.features) for view in self.inventory.views)

    def _level_of(self, features: Features) -> int:
        temperature = self.health.temperature
        thresholds = HostControlledThermalManagement(
            features.get(FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT)
        )
        if 0 < thresholds.tmt2 <= temperature:
            return 2
        return 1 if 0 < thresholds.tmt1 <= temperature else 0

    def _enter(self, level: int) -> None:
        if level == self._level:
            return
        self._level = level
        if level == 1:
            self.health.thermal_transitions_1 += 1
        elif level == 2:
            self.health.thermal_transitions_2 += 1
