"""The table of features: their defaults, and the values that they accept.

A feature is one dword, or a data structure, or both. Some have a value for each sensor, vector or
namespace: the row says so. A row's checks refuse what the device does not do.

Source: NVM Express Base Specification 2.0, section 5.27.1; NVM Command Set Specification 1.0,
section 4.1.3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nvme_spec.features import (
    ALL_TEMPERATURES,
    COMPOSITE_TEMPERATURE,
    EXTENDED_HOST_IDENTIFIER_SIZE,
    FIRST_VENDOR_RANGE_TYPE,
    HOST_IDENTIFIER_SIZE,
    MAX_LBA_RANGES,
    Arbitration,
    AsyncEventConfiguration,
    ErrorRecovery,
    FeatureCapabilities,
    FeatureId,
    HostBehavior,
    HostControlledThermalManagement,
    HostIdentifier,
    InterruptCoalescing,
    InterruptVectorConfiguration,
    IoCommandSetProfile,
    KeepAliveTimer,
    LbaRange,
    LbaRangeType,
    NamespaceWriteProtection,
    NumberOfQueues,
    PowerManagement,
    RangeType,
    SoftwareProgressMarker,
    TemperatureThreshold,
    ThresholdType,
    Timestamp,
    VolatileWriteCache,
    WriteAtomicityNormal,
    WriteProtectionState,
)
from nvme_spec.identify.capabilities import KEEP_ALIVE_UNIT, CommandSet
from nvme_spec.logs import CriticalWarning
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
    """What the checks need to know of the device."""

    io_queue_pairs: int
    vectors: int
    io_queues_exist: Callable[[], bool]
    blocks: Callable[[int], int]
    """Logical blocks of a namespace; 0 where there is none."""
    knows_deallocated: Callable[[int], bool]
    """Whether a namespace knows its deallocated blocks, so that reading one can be an error."""
    combinations: Callable[[], Sequence[frozenset[CommandSet]]] = lambda: (
        frozenset({CommandSet.NVM}),
    )
    """Command sets that can work at once."""
    in_use: Callable[[], set[CommandSet]] = set
    """Command sets of namespaces that are attached."""


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
    """One row. `word` is the layout of the dword; bits that it does not name are not stored.

    `selector` is the part of the dword that chooses which of several values is meant, and
    `check_selector` refuses a choice in a Get Features. `taken` and `given` are the bytes of data
    that move with a Set Features and a Get Features of that dword. What is `persistent` outlives
    resets and power cycles; what is `saveable` does so when the host asks for it. `takes` says for
    the documentation which values there are.
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
    saveable: bool = False
    persistent: bool = False
    takes: str = "any"
    placement: bool = False
    """Only a drive with flexible data placement has it, and keeps its value."""

    @property
    def mask(self) -> int:
        """The bits of the dword that mean something."""
        return sum(field.mask for field in self.word.FIELDS.values())

    @property
    def capabilities(self) -> FeatureCapabilities:
        """What Get Features says of it."""
        found = FeatureCapabilities.CHANGEABLE
        if self.saveable:
            found |= FeatureCapabilities.SAVEABLE
        if self.namespace_specific:
            found |= FeatureCapabilities.NAMESPACE_SPECIFIC
        return found


def _refuse(detail: str) -> NvmeError:
    return NvmeError(Status.INVALID_FIELD, detail=detail)


def _check_power(value: Value, nsid: int, limits: Limits) -> None:
    if PowerManagement(value.dword).ps:
        raise _refuse("there is one power state, 0")


def _check_ranges(value: Value, nsid: int, limits: Limits) -> None:
    count = LbaRangeType(value.dword).num_z + 1
    data = value.data.ljust(count * LbaRange.SIZE, b"\0")
    ranges = [LbaRange(data[at : at + LbaRange.SIZE]) for at in range(0, len(data), LbaRange.SIZE)]
    for one in ranges:
        if RangeType.PAGE_OR_SWAP_FILE < one.type < FIRST_VENDOR_RANGE_TYPE:
            raise _refuse(f"range type {one.type:#x} is reserved")
        if not one.nlb:
            raise _refuse("a range has no blocks")
        if one.slba + one.nlb > limits.blocks(nsid):
            raise NvmeError(
                Status.LBA_OUT_OF_RANGE,
                detail=f"a range leaves the {limits.blocks(nsid)} blocks",
                lba=max(one.slba, limits.blocks(nsid)),
            )
    ranges.sort(key=lambda one: one.slba)
    for before, one in pairwise(ranges):
        if before.slba + before.nlb > one.slba:
            raise NvmeError(Status.OVERLAPPING_RANGE, detail=f"two ranges have block {one.slba}")


def _check_threshold(value: Value, nsid: int, limits: Limits) -> None:
    _check_thermometer(value.dword, (COMPOSITE_TEMPERATURE, ALL_TEMPERATURES))


def _check_threshold_asked(value: Value, nsid: int, limits: Limits) -> None:
    _check_thermometer(value.dword, (COMPOSITE_TEMPERATURE,))


def _check_thermometer(dword: int, selectable: tuple[int, ...]) -> None:
    word = TemperatureThreshold(dword)
    if word.tmpsel not in selectable or word.thsel > ThresholdType.UNDER:
        raise _refuse("there is one temperature, the composite one")


def _default_threshold(dword: int) -> int:
    if TemperatureThreshold(dword).thsel == ThresholdType.OVER:
        return WARNING_TEMPERATURE
    return TemperatureThreshold(thsel=ThresholdType.UNDER).encode()


def _only_one_thermometer(dword: int) -> int:
    return TemperatureThreshold(dword).update(tmpsel=COMPOSITE_TEMPERATURE).encode()


def _check_error_recovery(value: Value, nsid: int, limits: Limits) -> None:
    if ErrorRecovery(value.dword).dulbe and not limits.knows_deallocated(nsid):
        raise _refuse("reading a deallocated block is no error here")


def _check_queues(value: Value, nsid: int, limits: Limits) -> None:
    wanted = NumberOfQueues(value.dword)
    if 0xFFFF in (wanted.nsq_z, wanted.ncq_z):
        raise _refuse("65536 queues are more than the identifiers allow")
    if limits.io_queues_exist():
        raise NvmeError(
            Status.COMMAND_SEQUENCE_ERROR, detail="the number of queues is set before any is made"
        )


def _check_vector(value: Value, nsid: int, limits: Limits) -> None:
    if InterruptVectorConfiguration(value.dword).iv >= limits.vectors:
        raise _refuse(f"there are {limits.vectors} interrupt vectors")


def _whole_steps(dword: int) -> int:
    """KATO is rounded up to the granularity that KAS states (section 5.27.1.12)."""
    steps = -(-dword // _KEEP_ALIVE_STEP)
    return min(steps, KeepAliveTimer.kato.mask // _KEEP_ALIVE_STEP) * _KEEP_ALIVE_STEP


def _check_thermal_management(value: Value, nsid: int, limits: Limits) -> None:
    word = HostControlledThermalManagement(value.dword)
    given = [one for one in (word.tmt1, word.tmt2) if one]
    if not all(LOWEST_THRESHOLD <= one <= HIGHEST_THRESHOLD for one in given):
        raise _refuse(f"thresholds are {LOWEST_THRESHOLD} to {HIGHEST_THRESHOLD} Kelvin")
    if len(given) == 2 and word.tmt1 >= word.tmt2:
        raise _refuse("the first threshold is not below the second one")


def _check_behavior(value: Value, nsid: int, limits: Limits) -> None:
    behavior = HostBehavior(value.data.ljust(HostBehavior.SIZE, b"\0"))
    if max(behavior.acre, behavior.etdas, behavior.lbafee) > 1:
        raise _refuse("a behavior is neither enabled nor disabled")


def _check_write_protection(value: Value, nsid: int, limits: Limits) -> None:
    if NamespaceWriteProtection(value.dword).wps > WriteProtectionState.WRITE_PROTECT:
        raise _refuse("a namespace is write-protected or not; there are no other states")


def _check_combination(value: Value, nsid: int, limits: Limits) -> None:
    index, known = IoCommandSetProfile(value.dword).iocsci, limits.combinations()
    if index >= len(known) or not limits.in_use() <= known[index]:
        raise NvmeError(
            Status.IO_COMMAND_SET_COMBINATION_REJECTED,
            detail=f"no combination of command sets {index} has those of the attached namespaces",
        )


def _host_identifier_size(dword: int) -> int:
    extended = HostIdentifier(dword).exhid
    return EXTENDED_HOST_IDENTIFIER_SIZE if extended else HOST_IDENTIFIER_SIZE


FEATURES: dict[int, Feature] = {
    FeatureId.ARBITRATION: Feature(
        Arbitration, default=lambda dword: ARBITRATION_BURST, saveable=True
    ),
    FeatureId.POWER_MANAGEMENT: Feature(
        PowerManagement,
        check=_check_power,
        takes="power state 0",
    ),
    FeatureId.LBA_RANGE_TYPE: Feature(
        LbaRangeType,
        default_data=lambda nsid, limits: bytes(
            LbaRange(type=RangeType.GENERAL_PURPOSE, nlb=limits.blocks(nsid))
        ),
        check=_check_ranges,
        taken=lambda dword: (LbaRangeType(dword).num_z + 1) * LbaRange.SIZE,
        given=lambda dword: MAX_LBA_RANGES * LbaRange.SIZE,
        namespace_specific=True,
        persistent=True,
        takes="ranges inside the namespace that do not overlap",
    ),
    FeatureId.TEMPERATURE_THRESHOLD: Feature(
        TemperatureThreshold,
        default=_default_threshold,
        check=_check_threshold,
        selector=TemperatureThreshold.thsel.mask,
        check_selector=_check_threshold_asked,
        rounded=_only_one_thermometer,
        saveable=True,
        takes="the composite temperature, over and under",
    ),
    FeatureId.ERROR_RECOVERY: Feature(
        ErrorRecovery,
        check=_check_error_recovery,
        namespace_specific=True,
        saveable=True,
        takes="any TLER; DULBE where the namespace supports it",
    ),
    FeatureId.VOLATILE_WRITE_CACHE: Feature(
        VolatileWriteCache, default=lambda dword: 1, saveable=True
    ),
    FeatureId.NUMBER_OF_QUEUES: Feature(
        NumberOfQueues,
        check=_check_queues,
        takes="only before an I/O queue is created; all available queues are granted",
    ),
    FeatureId.INTERRUPT_COALESCING: Feature(InterruptCoalescing, saveable=True),
    FeatureId.INTERRUPT_VECTOR_CONFIGURATION: Feature(
        InterruptVectorConfiguration,
        default=lambda dword: InterruptVectorConfiguration(dword).iv,
        check=_check_vector,
        selector=InterruptVectorConfiguration.iv.mask,
        check_selector=_check_vector,
        takes="any existing vector",
    ),
    FeatureId.WRITE_ATOMICITY_NORMAL: Feature(WriteAtomicityNormal, saveable=True),
    # Notices that the device never has are no error to ask for: they just do not come.
    FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION: Feature(
        AsyncEventConfiguration,
        default=lambda dword: sum(CriticalWarning),
        saveable=True,
        takes="any; unsupported events are never reported",
    ),
    FeatureId.TIMESTAMP: Feature(
        taken=lambda dword: Timestamp.SIZE,
        given=lambda dword: Timestamp.SIZE,
        takes="any; counts from that value, and from 0 after a reset",
    ),
    FeatureId.KEEP_ALIVE_TIMER: Feature(
        KeepAliveTimer,
        rounded=_whole_steps,
        takes="any, rounded up to 100 ms",
    ),
    FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT: Feature(
        HostControlledThermalManagement,
        check=_check_thermal_management,
        saveable=True,
        takes=f"{LOWEST_THRESHOLD} K to {HIGHEST_THRESHOLD} K, the first below the second",
    ),
    FeatureId.HOST_BEHAVIOR_SUPPORT: Feature(
        check=_check_behavior,
        taken=lambda dword: HostBehavior.SIZE,
        given=lambda dword: HostBehavior.SIZE,
        takes="0 or 1 for each bit",
    ),
    FeatureId.IO_COMMAND_SET_PROFILE: Feature(
        IoCommandSetProfile,
        check=_check_combination,
        persistent=True,
        takes="a combination of CNS 1Ch with the command sets of all attached namespaces",
    ),
    FeatureId.SOFTWARE_PROGRESS_MARKER: Feature(SoftwareProgressMarker, persistent=True),
    FeatureId.HOST_IDENTIFIER: Feature(
        HostIdentifier,
        taken=_host_identifier_size,
        given=_host_identifier_size,
        takes="64 or 128 bits",
    ),
    FeatureId.FLEXIBLE_DATA_PLACEMENT: Feature(
        placement=True, persistent=True, takes="no other than it has: enabled, configuration 0"
    ),
    FeatureId.FDP_EVENTS: Feature(
        placement=True,
        persistent=True,
        namespace_specific=True,
        takes="events 0 and 3, for each placement handle",
    ),
    FeatureId.NAMESPACE_WRITE_PROTECTION: Feature(
        NamespaceWriteProtection,
        check=_check_write_protection,
        namespace_specific=True,
        persistent=True,
        takes="No Write Protect and Write Protect",
    ),
}
"""Every feature that the device has."""


def row(fid: int) -> Feature:
    """The feature's row. Raises NvmeError when there is none."""
    feature = FEATURES.get(fid)
    if feature is None:
        raise _refuse(f"there is no feature {fid:#x}")
    return feature
