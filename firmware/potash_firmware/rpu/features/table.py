"""The table of features: their defaults, and the values that they accept.

A feature is one dword, or a data structure, or both. Some have a value for each sensor, vector or
namespace: the row says so. A row's checks refuse what the device does not do.

Source: NVM Express Base Specification 2.0, section 5.27.1; NVM Command Set Specification 1.0,
section 4.1.3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nvme_spec import features
from nvme_spec.identify.capabilities import KEEP_ALIVE_UNIT, CommandSet
from nvme_spec.key_value import KeyValueConfiguration
from nvme_spec.logs import CriticalWarning
from nvme_spec.ocp import LATENCY_MONITOR_FEATURE, LatencyMonitorSettings
from nvme_spec.status import NvmeError, Status
from nvme_spec.words import Word

WARNING_TEMPERATURE = 343
CRITICAL_TEMPERATURE = 353
"""WCTEMP and CCTEMP, in Kelvin like all of these."""

LOWEST_THRESHOLD = 293
HIGHEST_THRESHOLD = CRITICAL_TEMPERATURE
"""MNTMT and MXTMT: what host controlled thermal management takes."""

ARBITRATION_BURST = 4
"""2**4 commands from a queue in one arbitration round (Arbitration, AB)."""

KEEP_ALIVE_GRANULARITY = 1
"""KAS: in units of 100 milliseconds."""

_KEEP_ALIVE_STEP = KEEP_ALIVE_GRANULARITY * KEEP_ALIVE_UNIT


@dataclass(frozen=True, slots=True)
class Limits:
    """Properties of the device that the checks use."""

    io_queue_pairs: int
    vectors: int
    io_queues_exist: Callable[[], bool]
    blocks: Callable[[int], int]
    """Logical blocks of a namespace; 0 where there is none."""
    knows_deallocated: Callable[[int], bool]
    """Returns True for a namespace that records deallocated blocks, so that reading one can be an
    error."""
    combinations: Callable[[], Sequence[frozenset[CommandSet]]] = lambda: (
        frozenset({CommandSet.NVM}),
    )
    """Command sets that can work at once."""
    in_use: Callable[[], set[CommandSet]] = set
    """Command sets of namespaces that are attached."""
    command_sets: Callable[[], Mapping[int, CommandSet]] = dict
    """The command set of each namespace."""


@dataclass(frozen=True, slots=True)
class Value:
    """A feature's value: its dword, and its data structure without zeroes at the end."""

    dword: int = 0
    data: bytes = b""


Check = Callable[[Value, int, Limits], None]
"""Raises NvmeError for a value that the device does not take in a namespace (or 0)."""


def _anything(value: Value, nsid: int, limits: Limits) -> None:
    """Every value is taken."""


def _no_data(dword: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the table. `word` is the layout of the dword; bits that it does not name are not
    stored.

    `selector` is the part of the dword that chooses which of several values is meant, and
    `check_selector` refuses a choice in a Get Features. `taken` and `given` are the bytes of data
    that move with a Set Features and a Get Features of that dword. What is `persistent` outlives
    resets and power cycles; what is `saveable` does so when the host asks for it.
    """

    word: type[Word] = Word
    default: Callable[[int], int] = lambda dword: 0
    default_data: Callable[[int, Limits], bytes] = lambda nsid, limits: b""
    check: Check = _anything
    selector: int = 0
    check_selector: Check = _anything
    rounded: Callable[[int], int] = lambda dword: dword
    taken: Callable[[int], int] = _no_data
    given: Callable[[int], int] = _no_data
    namespace_specific: bool = False
    command_sets: frozenset[CommandSet] = frozenset({CommandSet.NVM, CommandSet.ZONED})
    """Command sets of the namespaces that have a value, of a namespace specific feature."""
    saveable: bool = False
    persistent: bool = False
    placement: bool = False
    """Only a drive with flexible data placement has it, and keeps its value."""
    of_controller: bool = False
    """Each controller has values of its own, also of a namespace."""
    of_drive: bool = False
    """Its scope is the whole drive, with one value for all controllers."""
    values: str = "any"
    """The values that it takes, for the page of supported features."""

    @property
    def shared(self) -> bool:
        """Its scope is larger than one controller."""
        of_namespace = self.namespace_specific and not self.of_controller
        return of_namespace or self.placement or self.of_drive

    @property
    def mask(self) -> int:
        """The bits of the dword that mean something."""
        return sum(field.mask for field in self.word.FIELDS.values())

    @property
    def capabilities(self) -> features.FeatureCapabilities:
        """The capabilities of the feature in Get Features."""
        found = features.FeatureCapabilities.CHANGEABLE
        if self.saveable:
            found |= features.FeatureCapabilities.SAVEABLE
        if self.namespace_specific:
            found |= features.FeatureCapabilities.NAMESPACE_SPECIFIC
        return found


def refuse(detail: str) -> NvmeError:
    """The error of a value that the device does not take."""
    return NvmeError(Status.INVALID_FIELD, detail=detail)


def _check_power(value: Value, nsid: int, limits: Limits) -> None:
    if features.PowerManagement(value.dword).ps:
        raise refuse("there is one power state, 0")


def _check_monitor(value: Value, nsid: int, limits: Limits) -> None:
    settings = LatencyMonitorSettings(value.data.ljust(LatencyMonitorSettings.SIZE, b"\0"))
    if list(settings.thresholds) != sorted(settings.thresholds):
        raise refuse("a threshold is below the one before it")
    if settings.debug_triggers:
        raise refuse("there is no debug log")


def _check_ranges(value: Value, nsid: int, limits: Limits) -> None:
    count = features.LbaRangeType(value.dword).num_z + 1
    data = value.data.ljust(count * features.LbaRange.SIZE, b"\0")
    ranges = [
        features.LbaRange(data[at : at + features.LbaRange.SIZE])
        for at in range(0, len(data), features.LbaRange.SIZE)
    ]
    for lba_range in ranges:
        if features.RangeType.PAGE_OR_SWAP_FILE < lba_range.type < features.FIRST_VENDOR_RANGE_TYPE:
            raise refuse(f"range type {lba_range.type:#x} is reserved")
        if not lba_range.nlb:
            raise refuse("a range has no blocks")
        if lba_range.slba + lba_range.nlb > limits.blocks(nsid):
            raise NvmeError(
                Status.LBA_OUT_OF_RANGE,
                detail=f"a range leaves the {limits.blocks(nsid)} blocks",
                lba=max(lba_range.slba, limits.blocks(nsid)),
            )
    ranges.sort(key=lambda lba_range: lba_range.slba)
    for before, after in pairwise(ranges):
        if before.slba + before.nlb > after.slba:
            raise NvmeError(Status.OVERLAPPING_RANGE, detail=f"two ranges have block {after.slba}")


def _check_threshold(value: Value, nsid: int, limits: Limits) -> None:
    _check_thermometer(value.dword, (features.COMPOSITE_TEMPERATURE, features.ALL_TEMPERATURES))


def _check_threshold_asked(value: Value, nsid: int, limits: Limits) -> None:
    _check_thermometer(value.dword, (features.COMPOSITE_TEMPERATURE,))


def _check_thermometer(dword: int, selectable: tuple[int, ...]) -> None:
    word = features.TemperatureThreshold(dword)
    if word.tmpsel not in selectable or word.thsel > features.ThresholdType.UNDER:
        raise refuse("there is one temperature, the composite one")


def _default_threshold(dword: int) -> int:
    if features.TemperatureThreshold(dword).thsel == features.ThresholdType.OVER:
        return WARNING_TEMPERATURE
    return features.TemperatureThreshold(thsel=features.ThresholdType.UNDER).encode()


def _only_one_thermometer(dword: int) -> int:
    return (
        features.TemperatureThreshold(dword).update(tmpsel=features.COMPOSITE_TEMPERATURE).encode()
    )


def _check_error_recovery(value: Value, nsid: int, limits: Limits) -> None:
    if features.ErrorRecovery(value.dword).dulbe and not limits.knows_deallocated(nsid):
        raise refuse("reading a deallocated block is no error here")


def _check_queues(value: Value, nsid: int, limits: Limits) -> None:
    asked = features.NumberOfQueues(value.dword)
    if 0xFFFF in (asked.nsq_z, asked.ncq_z):
        raise refuse("65536 queues are more than the identifiers allow")
    if limits.io_queues_exist():
        raise NvmeError(
            Status.COMMAND_SEQUENCE_ERROR, detail="the number of queues is set before any is made"
        )


def _check_vector(value: Value, nsid: int, limits: Limits) -> None:
    if features.InterruptVectorConfiguration(value.dword).iv >= limits.vectors:
        raise refuse(f"there are {limits.vectors} interrupt vectors")


def _whole_steps(dword: int) -> int:
    """KATO is rounded up to the granularity that KAS states (section 5.27.1.12)."""
    steps = -(-dword // _KEEP_ALIVE_STEP)
    return min(steps, features.KeepAliveTimer.kato.mask // _KEEP_ALIVE_STEP) * _KEEP_ALIVE_STEP


def _check_thermal_management(value: Value, nsid: int, limits: Limits) -> None:
    word = features.HostControlledThermalManagement(value.dword)
    given = [temperature for temperature in (word.tmt1, word.tmt2) if temperature]
    if not all(LOWEST_THRESHOLD <= temperature <= HIGHEST_THRESHOLD for temperature in given):
        raise refuse(f"thresholds are {LOWEST_THRESHOLD} to {HIGHEST_THRESHOLD} Kelvin")
    if len(given) == 2 and word.tmt1 >= word.tmt2:
        raise refuse("the first threshold is not below the second one")


def _check_behavior(value: Value, nsid: int, limits: Limits) -> None:
    behavior = features.HostBehavior(value.data.ljust(features.HostBehavior.SIZE, b"\0"))
    if max(behavior.acre, behavior.etdas, behavior.lbafee) > 1:
        raise refuse("a behavior is neither enabled nor disabled")


def _check_write_protection(value: Value, nsid: int, limits: Limits) -> None:
    if (
        features.NamespaceWriteProtection(value.dword).wps
        > features.WriteProtectionState.WRITE_PROTECT
    ):
        raise refuse("a namespace is write-protected or not; there are no other states")


def _check_combination(value: Value, nsid: int, limits: Limits) -> None:
    index, combinations = features.IoCommandSetProfile(value.dword).iocsci, limits.combinations()
    if index >= len(combinations) or not limits.in_use() <= combinations[index]:
        raise NvmeError(
            Status.IO_COMMAND_SET_COMBINATION_REJECTED,
            detail=f"no combination of command sets {index} has those of the attached namespaces",
        )


def _host_identifier_size(dword: int) -> int:
    extended = features.HostIdentifier(dword).exhid
    return features.EXTENDED_HOST_IDENTIFIER_SIZE if extended else features.HOST_IDENTIFIER_SIZE


_DURABLE = frozenset({CommandSet.NVM, CommandSet.ZONED, CommandSet.KEY_VALUE})
"""Command sets of namespaces whose contents are durable."""

FEATURES: dict[int, Feature] = {
    features.FeatureId.ARBITRATION: Feature(
        features.Arbitration, default=lambda dword: ARBITRATION_BURST, saveable=True
    ),
    features.FeatureId.POWER_MANAGEMENT: Feature(
        features.PowerManagement, check=_check_power, values="power state 0"
    ),
    features.FeatureId.LBA_RANGE_TYPE: Feature(
        features.LbaRangeType,
        default_data=lambda nsid, limits: bytes(
            features.LbaRange(type=features.RangeType.GENERAL_PURPOSE, nlb=limits.blocks(nsid))
        ),
        check=_check_ranges,
        taken=lambda dword: (features.LbaRangeType(dword).num_z + 1) * features.LbaRange.SIZE,
        given=lambda dword: features.MAX_LBA_RANGES * features.LbaRange.SIZE,
        namespace_specific=True,
        persistent=True,
        values="ranges inside the namespace that do not overlap",
    ),
    features.FeatureId.TEMPERATURE_THRESHOLD: Feature(
        features.TemperatureThreshold,
        default=_default_threshold,
        check=_check_threshold,
        selector=features.TemperatureThreshold.thsel.mask,
        check_selector=_check_threshold_asked,
        rounded=_only_one_thermometer,
        saveable=True,
        values="the composite temperature, over and under",
    ),
    features.FeatureId.ERROR_RECOVERY: Feature(
        features.ErrorRecovery,
        check=_check_error_recovery,
        namespace_specific=True,
        saveable=True,
        values="any TLER; DULBE where the namespace supports it",
    ),
    features.FeatureId.VOLATILE_WRITE_CACHE: Feature(
        features.VolatileWriteCache, default=lambda dword: 1, saveable=True
    ),
    features.FeatureId.NUMBER_OF_QUEUES: Feature(
        features.NumberOfQueues,
        check=_check_queues,
        values="only before an I/O queue is created; all available queues are granted",
    ),
    features.FeatureId.INTERRUPT_COALESCING: Feature(features.InterruptCoalescing, saveable=True),
    features.FeatureId.INTERRUPT_VECTOR_CONFIGURATION: Feature(
        features.InterruptVectorConfiguration,
        default=lambda dword: features.InterruptVectorConfiguration(dword).iv,
        check=_check_vector,
        selector=features.InterruptVectorConfiguration.iv.mask,
        check_selector=_check_vector,
        values="any existing vector",
    ),
    features.FeatureId.WRITE_ATOMICITY_NORMAL: Feature(
        features.WriteAtomicityNormal, saveable=True
    ),
    # Notices that the device never has are no error to ask for: they just do not come.
    features.FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION: Feature(
        features.AsyncEventConfiguration,
        default=lambda dword: sum(CriticalWarning),
        saveable=True,
        values="any; unsupported events are never reported",
    ),
    features.FeatureId.TIMESTAMP: Feature(
        taken=lambda dword: features.Timestamp.SIZE,
        given=lambda dword: features.Timestamp.SIZE,
        values="any; counts from that value, and from 0 after a reset",
    ),
    features.FeatureId.KEEP_ALIVE_TIMER: Feature(
        features.KeepAliveTimer, rounded=_whole_steps, values="any, rounded up to 100 ms"
    ),
    features.FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT: Feature(
        features.HostControlledThermalManagement,
        check=_check_thermal_management,
        saveable=True,
        values=f"{LOWEST_THRESHOLD} K to {HIGHEST_THRESHOLD} K, the first below the second",
    ),
    features.FeatureId.HOST_BEHAVIOR_SUPPORT: Feature(
        check=_check_behavior,
        taken=lambda dword: features.HostBehavior.SIZE,
        given=lambda dword: features.HostBehavior.SIZE,
        values="0 or 1 for each bit",
    ),
    features.FeatureId.IO_COMMAND_SET_PROFILE: Feature(
        features.IoCommandSetProfile,
        check=_check_combination,
        persistent=True,
        values="a combination of CNS 1Ch with the command sets of all attached namespaces",
    ),
    features.FeatureId.SOFTWARE_PROGRESS_MARKER: Feature(
        features.SoftwareProgressMarker, persistent=True
    ),
    features.FeatureId.HOST_IDENTIFIER: Feature(
        features.HostIdentifier,
        taken=_host_identifier_size,
        given=_host_identifier_size,
        values="64 or 128 bits, as many as those of other hosts and of registrants",
    ),
    features.FeatureId.RESERVATION_NOTIFICATION_MASK: Feature(
        features.ReservationNotificationMask,
        namespace_specific=True,
        of_controller=True,
        command_sets=_DURABLE,
    ),
    features.FeatureId.RESERVATION_PERSISTENCE: Feature(
        features.ReservationPersistence,
        namespace_specific=True,
        command_sets=_DURABLE,
        persistent=True,
    ),
    features.FeatureId.FLEXIBLE_DATA_PLACEMENT: Feature(
        placement=True, persistent=True, values="no other than it has: enabled, configuration 0"
    ),
    features.FeatureId.FDP_EVENTS: Feature(
        placement=True,
        persistent=True,
        namespace_specific=True,
        values="each of the six, for each placement handle; 0 and 3 occur",
    ),
    features.FeatureId.KEY_VALUE_CONFIGURATION: Feature(
        KeyValueConfiguration,
        namespace_specific=True,
        command_sets=frozenset({CommandSet.KEY_VALUE}),
        persistent=True,
    ),
    features.FeatureId.NAMESPACE_WRITE_PROTECTION: Feature(
        features.NamespaceWriteProtection,
        check=_check_write_protection,
        namespace_specific=True,
        command_sets=_DURABLE,
        persistent=True,
        values="No Write Protect and Write Protect",
    ),
}
"""Every feature that the device has."""

OCP_FEATURES: dict[int, Feature] = {
    LATENCY_MONITOR_FEATURE: Feature(
        taken=lambda dword: LatencyMonitorSettings.SIZE,
        given=lambda dword: LatencyMonitorSettings.SIZE,
        check=_check_monitor,
        saveable=True,
        of_drive=True,
        values="thresholds that do not fall; no debug log",
    ),
}
"""Features of a drive with the log pages of the Open Compute Project, as well."""
