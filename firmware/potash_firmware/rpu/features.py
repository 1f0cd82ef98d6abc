"""The features that a host gets and sets, as a table.

A value is one dword. Some features have a value for each sensor or vector: the row says which part
of the dword chooses. A row's check refuses what the device does not do and may answer with a dword
of its own; what it lets through is stored until the next controller reset, which brings back what a
host has saved.

Source: NVM Express Base Specification 2.0, section 5.15 (Get Features) and 5.27 (Set Features).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvme_spec.features import (
    ErrorRecovery,
    FeatureCapabilities,
    FeatureId,
    InterruptVectorConfiguration,
    NumberOfQueues,
    PowerManagement,
    TemperatureThreshold,
    ThresholdType,
    VolatileWriteCache,
)
from nvme_spec.logs import CriticalWarning
from nvme_spec.status import NvmeError, Status

log = logging.getLogger(__name__)

ARBITRATION_BURST = 4
"""2**4 commands from a queue before the next one's turn (Arbitration, AB)."""

WARNING_TEMPERATURE = 343
CRITICAL_TEMPERATURE = 353
"""Kelvin."""

_ALL_SENSORS = 0xF


@dataclass(frozen=True, slots=True)
class Limits:
    """What the checks need to know of the device."""

    io_queue_pairs: int
    vectors: int
    io_queues_exist: Callable[[], bool]


Key = tuple[int, int, int]
"""What a value is kept by: feature, the part of the dword that chooses, namespace or 0."""

Check = Callable[[int, Limits], None]
"""Raises NvmeError for a value that the device does not take."""


def _anything(value: int, limits: Limits) -> None:
    """Every value is taken."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One row: what a feature holds at first, and what it takes."""

    default: Callable[[int], int] = lambda selector: 0
    check: Check = _anything
    selector_mask: int = 0
    """The part of CDW11 that chooses which of several values is meant."""
    namespace_specific: bool = False
    saveable: bool = False


def _refuse(detail: str) -> NvmeError:
    return NvmeError(Status.INVALID_FIELD, detail=detail)


def _check_power(value: int, limits: Limits) -> None:
    if PowerManagement(value).ps:
        raise _refuse("there is one power state, 0")


def _check_threshold(value: int, limits: Limits) -> None:
    word = TemperatureThreshold(value)
    if word.tmpsel not in (0, _ALL_SENSORS) or word.thsel > ThresholdType.UNDER:
        raise _refuse("there is one temperature, the composite one")


def _threshold_default(selector: int) -> int:
    if TemperatureThreshold(selector).thsel == ThresholdType.OVER:
        return WARNING_TEMPERATURE
    return 0


def _check_queues(value: int, limits: Limits) -> None:
    wanted = NumberOfQueues(value)
    if 0xFFFF in (wanted.nsq_z, wanted.ncq_z):
        raise _refuse("65536 queues are more than the identifiers allow")
    if limits.io_queues_exist():
        raise NvmeError(
            Status.COMMAND_SEQUENCE_ERROR, detail="the number of queues is set before any is made"
        )


def _check_vector(value: int, limits: Limits) -> None:
    if InterruptVectorConfiguration(value).iv >= limits.vectors:
        raise _refuse(f"there are {limits.vectors} interrupt vectors")


FEATURES: dict[int, Feature] = {
    FeatureId.ARBITRATION: Feature(default=lambda selector: ARBITRATION_BURST, saveable=True),
    FeatureId.POWER_MANAGEMENT: Feature(check=_check_power),
    FeatureId.TEMPERATURE_THRESHOLD: Feature(
        default=_threshold_default,
        check=_check_threshold,
        selector_mask=TemperatureThreshold.thsel.mask,
        saveable=True,
    ),
    FeatureId.ERROR_RECOVERY: Feature(namespace_specific=True, saveable=True),
    FeatureId.VOLATILE_WRITE_CACHE: Feature(default=lambda selector: 1, saveable=True),
    FeatureId.NUMBER_OF_QUEUES: Feature(check=_check_queues),
    FeatureId.INTERRUPT_COALESCING: Feature(saveable=True),
    FeatureId.INTERRUPT_VECTOR_CONFIGURATION: Feature(
        default=lambda selector: selector,
        check=_check_vector,
        selector_mask=InterruptVectorConfiguration.iv.mask,
    ),
    FeatureId.WRITE_ATOMICITY_NORMAL: Feature(saveable=True),
    FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION: Feature(
        default=lambda selector: sum(CriticalWarning), saveable=True
    ),
}


class Features:
    """The values of one controller's features."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._values: dict[Key, int] = {}
        self._saved: dict[Key, int] = {}
        self.version = 0
        """Changes with every value, for those that act on them."""
        self.own_coalescing: Callable[[], int] = lambda: 0
        """What Interrupt Coalescing reads as while the host has set nothing."""

    def reset(self) -> None:
        """Back to what was saved, or else to the defaults."""
        self._values = dict(self._saved)
        self.version += 1

    def saved_values(self) -> list[list[int]]:
        """What is to outlive a power cycle, for `restore`."""
        return [[*key, value] for key, value in self._saved.items()]

    def restore(self, saved: Any) -> None:
        """Take what `saved_values` gave before a power cycle, without what makes no sense."""
        for entry in saved if isinstance(saved, list) else ():
            match entry:
                case [int(fid), int(), int(nsid), int(value)] if 0 <= value < 1 << 32:
                    try:
                        self._keep(fid, value, nsid)
                    except NvmeError as error:
                        log.warning("a saved feature is left out: %s", error)
        self.reset()

    def get(self, fid: int, value: int = 0, nsid: int = 0) -> int:
        """The current value; `value` is CDW11, which may choose one. Raises NvmeError."""
        feature = _row(fid)
        if fid == FeatureId.NUMBER_OF_QUEUES:
            return self.granted_queues
        if feature.selector_mask:
            feature.check(value, self._limits)
        key = self._key(fid, feature, value, nsid)
        if fid == FeatureId.INTERRUPT_COALESCING and key not in self._values:
            return self.own_coalescing()
        return self._values.get(key, feature.default(value))

    def saved(self, fid: int, value: int = 0, nsid: int = 0) -> int:
        """The value after a reset: what was saved, or else the default. Raises NvmeError."""
        return self._saved.get(self._key(fid, _row(fid), value, nsid), self.default(fid, value))

    def default(self, fid: int, value: int = 0) -> int:
        """The value that a feature has when none was ever saved. Raises NvmeError."""
        if fid == FeatureId.NUMBER_OF_QUEUES:
            return self.granted_queues
        return _row(fid).default(value)

    def capabilities(self, fid: int) -> FeatureCapabilities:
        """What can be done with a feature. Raises NvmeError."""
        capabilities = FeatureCapabilities.CHANGEABLE
        if _row(fid).namespace_specific:
            capabilities |= FeatureCapabilities.NAMESPACE_SPECIFIC
        if _row(fid).saveable:
            capabilities |= FeatureCapabilities.SAVEABLE
        return capabilities

    def set(self, fid: int, value: int, nsid: int = 0, *, save: bool = False) -> int:
        """Store a value, and give dword 0 of the completion. Raises NvmeError."""
        feature = _row(fid)
        if save:
            self._keep(fid, value, nsid)
        feature.check(value, self._limits)
        if fid == FeatureId.NUMBER_OF_QUEUES:
            return self.granted_queues
        self._values[self._key(fid, feature, value, nsid)] = value
        self.version += 1
        return 0

    def _keep(self, fid: int, value: int, nsid: int) -> None:
        """Have a value come back with every reset. Raises NvmeError."""
        feature = _row(fid)
        if not feature.saveable:
            raise NvmeError(
                Status.FEATURE_NOT_SAVEABLE, detail=f"feature {fid:#x} outlives no power cycle"
            )
        feature.check(value, self._limits)
        self._saved[self._key(fid, feature, value, nsid)] = value

    def chosen(self, fid: int) -> int | None:
        """What the host has set; None where it has left the device its own way."""
        return self._values.get((fid, 0, 0))

    @property
    def granted_queues(self) -> int:
        """Dword 0 of Number of Queues: all that there are, however many were asked for."""
        pairs = self._limits.io_queue_pairs
        return NumberOfQueues(nsq_z=pairs - 1, ncq_z=pairs - 1).encode()

    @property
    def write_through(self) -> bool:
        """The host has switched the volatile write cache off: every write is to be durable."""
        return not VolatileWriteCache(self.get(FeatureId.VOLATILE_WRITE_CACHE)).wce

    def dulbe(self, nsid: int) -> bool:
        """The host wants an error where it reads a deallocated block of this namespace."""
        return bool(ErrorRecovery(self.get(FeatureId.ERROR_RECOVERY, nsid=nsid)).dulbe)

    @staticmethod
    def _key(fid: int, feature: Feature, value: int, nsid: int) -> Key:
        return (fid, value & feature.selector_mask, nsid if feature.namespace_specific else 0)


def _row(fid: int) -> Feature:
    feature = FEATURES.get(fid)
    if feature is None:
        raise NvmeError(Status.INVALID_FIELD, detail=f"there is no feature {fid:#x}")
    return feature
