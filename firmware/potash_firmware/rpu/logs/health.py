"""What the firmware keeps for its log pages: errors, health, changed namespaces, bad blocks.

Source: NVM Express Base Specification 2.0, section 5.16.1.2 (Error Information), 5.16.1.3 (SMART /
Health Information) and 5.16.1.5 (Changed Namespace List); NVM Command Set Specification 1.0,
section 4.1.4.5 (LBA Status Information).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nvme_spec.identify import encode_namespace_list
from nvme_spec.logs import (
    CHANGED_NAMESPACE_LIST_OVERFLOW,
    CHANGED_NAMESPACE_LIST_SIZE,
    NO_COMMAND,
    NO_PARAMETER_ERROR_LOCATION,
    SMART_DATA_UNIT,
    CommandByte,
    CriticalWarning,
    ErrorLogEntry,
    LbaRangeDescriptor,
    LbaStatusAction,
    LbaStatusElement,
    LbaStatusLog,
    SmartLog,
    parameter_error_location,
)
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command

ERROR_LOG_ENTRIES = 64
"""Entries stored; ELPE in Identify Controller is one less, being 0's based."""

TEMPERATURE = 313
"""Kelvin: what a device without a sensor says of a comfortable room inside a machine."""

SPARE_THRESHOLD = 10
"""Per cent."""

MINUTE = 60.0
HOUR = 3600.0

SAMPLE = 1e-3
"""Seconds between two samples of how busy a working drive is."""

NSID_SIZE = 4
LBA_RANGE_LIMIT = 1 << 32
LBA_ESTIMATE_LIMIT = 0xFFFF_FFFE
"""The number beyond it says that nothing is known."""

COUNTER_LIMIT = 1 << 63
"""Of what is believed: more than any drive does in its life, and far below what a field holds."""


_LOCATIONS: dict[int, int] = {
    Status.INVALID_OPCODE: CommandByte.OPCODE,
    Status.COMMAND_ID_CONFLICT: CommandByte.CID,
    Status.INVALID_NAMESPACE: CommandByte.NSID,
    Status.INVALID_PRP_OFFSET: CommandByte.PRP1,
    Status.INVALID_QUEUE_IDENTIFIER: CommandByte.CDW10,
    Status.INVALID_QUEUE_SIZE: CommandByte.CDW10 + 2,
    Status.COMPLETION_QUEUE_INVALID: CommandByte.CDW11 + 2,
    Status.INVALID_INTERRUPT_VECTOR: CommandByte.CDW11 + 2,
    Status.INVALID_QUEUE_DELETION: CommandByte.CDW10,
    Status.INVALID_FIRMWARE_SLOT: CommandByte.CDW10,
    Status.INVALID_FORMAT: CommandByte.CDW10,
    Status.INVALID_LOG_PAGE: CommandByte.CDW10,
    Status.FEATURE_NOT_SAVEABLE: parameter_error_location(CommandByte.CDW10 + 3, 7),
    Status.FEATURE_NOT_CHANGEABLE: CommandByte.CDW10,
    Status.FEATURE_NOT_NAMESPACE_SPECIFIC: CommandByte.NSID,
}
"""The parameter that a status blames, where every command has it in the same place."""

_HOST_WANTED_IT = frozenset({Status.ABORT_REQUESTED, Status.SQ_DELETION_ABORTED})
"""Ways to end a command that are no error."""


class ErrorLog:
    """The newest errors, and how many there have been in the drive's life."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: deque[ErrorLogEntry] = deque(maxlen=ERROR_LOG_ENTRIES)

    def clear(self) -> None:
        """A controller reset removes the entries of commands, which nobody remembers any more.

        What was no command's stays: it may be why there was a reset.
        """
        lasting = [entry for entry in self._entries if entry.sqid == NO_COMMAND]
        self._entries.clear()
        self._entries.extend(lasting)

    def add(self, command: Command, error: NvmeError) -> None:
        """A command has ended with `error`."""
        if error.status in _HOST_WANTED_IT:
            return
        location = error.location
        if location is None:
            location = _LOCATIONS.get(error.status, NO_PARAMETER_ERROR_LOCATION)
        self._add(
            sqid=command.queue.qid,
            cid=command.entry.cid,
            status=error.status,
            dnr=int(error.dnr),
            parameter_error_location=location,
            lba=error.lba,
            nsid=command.entry.nsid,
        )

    def add_event(self, status: int) -> None:
        """Something failed that is no command's; `status` is the most applicable one."""
        self._add(
            sqid=NO_COMMAND,
            cid=NO_COMMAND,
            status=status,
            parameter_error_location=NO_PARAMETER_ERROR_LOCATION,
        )

    def _add(self, **fields: int) -> None:
        self.count += 1
        self._entries.appendleft(ErrorLogEntry(error_count=self.count, **fields))

    def encode(self) -> bytes:
        """The log page: the newest entry first, unused ones zero."""
        entries = b"".join(map(bytes, self._entries))
        return entries.ljust(ERROR_LOG_ENTRIES * ErrorLogEntry.SIZE, b"\0")


class Health:
    """Counters of the drive's life, as far as it is remembered.

    `waiting` says whether an I/O command is outstanding.
    """

    def __init__(self, clock: Callable[[], float], waiting: Callable[[], bool]) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.reads = 0
        self.writes = 0
        self.media_errors = 0
        self.power_cycles = 0
        self.unsafe_shutdowns = 0
        self.busy_seconds = 0.0
        self.temperature = TEMPERATURE
        self.warning_temperature_time = 0.0
        self.critical_temperature_time = 0.0
        self.thermal_transitions_1 = 0
        self.thermal_transitions_2 = 0
        self.thermal_time_1 = 0.0
        self.thermal_time_2 = 0.0
        self._clock = clock
        self._waiting = waiting
        self._started = clock()
        self._seconds_before = 0
        self._sampled = self._started
        self.waited = False
        """A command was waited for at the last sample, so that the next one is due when it ends."""
        self._commands = 0

    def count_read(self, size: int, commands: int = 1) -> None:
        """A host has read `size` bytes."""
        self.reads += commands
        self.bytes_read += size

    def count_write(self, size: int, commands: int = 1) -> None:
        """A host has written `size` bytes."""
        self.writes += commands
        self.bytes_written += size

    def sample(self) -> None:
        """Sample what has happened since the last time, `SAMPLE` seconds ago or longer.

        A time in which a command was waited for was a busy one. Commands that began and ended
        between two samples count for no more than the shortest such time: a drive that does nothing
        is not sampled.
        """
        now = self._clock()
        elapsed, commands = now - self._sampled, self.reads + self.writes
        busy = elapsed if self.waited else 0.0
        if commands != self._commands:
            busy = max(busy, min(elapsed, SAMPLE))
        self.busy_seconds += busy
        self._sampled, self._commands, self.waited = now, commands, self._waiting()

    @property
    def power_on_seconds(self) -> int:
        """For how long the drive has been on, all power cycles together."""
        return self._seconds_before + int(self._clock() - self._started)

    @property
    def power_on_hours(self) -> int:
        """The same in whole hours."""
        return int(self.power_on_seconds / HOUR)

    def state(self, errors: ErrorLog) -> dict[str, int]:
        """What is to be remembered."""
        counters = {name: int(getattr(self, name)) for name in _REMEMBERED}
        return {**counters, "power_on_seconds": self.power_on_seconds, "errors": errors.count}

    def restore(self, state: Any, errors: ErrorLog) -> None:
        """Go on from what was remembered; what is no counter there begins at zero."""
        if not isinstance(state, Mapping):
            return
        for name in _REMEMBERED:
            setattr(self, name, _counter(state, name))
        self._seconds_before = _counter(state, "power_on_seconds")
        errors.count = _counter(state, "errors")

    def log(self, errors: ErrorLog, warning: CriticalWarning) -> SmartLog:
        """The log page."""
        return SmartLog(
            critical_warning=warning,
            composite_temperature=self.temperature,
            available_spare=100,
            available_spare_threshold=SPARE_THRESHOLD,
            data_units_read=-(-self.bytes_read // SMART_DATA_UNIT),
            data_units_written=-(-self.bytes_written // SMART_DATA_UNIT),
            host_read_commands=self.reads,
            host_write_commands=self.writes,
            controller_busy_time=int(self.busy_seconds / MINUTE),
            power_cycles=self.power_cycles,
            power_on_hours=self.power_on_hours,
            unsafe_shutdowns=self.unsafe_shutdowns,
            media_errors=self.media_errors,
            error_log_entries=errors.count,
            warning_temperature_time=int(self.warning_temperature_time / MINUTE),
            critical_temperature_time=int(self.critical_temperature_time / MINUTE),
            thermal_transitions_1=self.thermal_transitions_1,
            thermal_transitions_2=self.thermal_transitions_2,
            thermal_time_1=int(self.thermal_time_1),
            thermal_time_2=int(self.thermal_time_2),
        )


class ChangedNamespaces:
    """The namespaces that have changed, come or gone since the host has read the log page."""

    def __init__(self) -> None:
        self._nsids: set[int] = set()

    def add(self, nsid: int) -> None:
        """Something of a namespace is not as it was."""
        self._nsids.add(nsid)

    def clear(self) -> None:
        """The host knows."""
        self._nsids.clear()

    def encode(self) -> bytes:
        """The log page; when the list is too short for them all, it says so, and names none."""
        overflow = len(self._nsids) > CHANGED_NAMESPACE_LIST_SIZE // NSID_SIZE
        return encode_namespace_list([CHANGED_NAMESPACE_LIST_OVERFLOW] if overflow else self._nsids)


Ranges = Sequence[tuple[int, int]]
"""First block and number of blocks of each, in ascending order."""


class LbaStatus:
    """The LBA Status Information log: which blocks of which namespaces cannot be read.

    A host that reads it in pieces gets pieces of one log: a new one is made for offset 0.
    """

    def __init__(self) -> None:
        self.generation = 0
        """Grows when there are blocks that the host has not read of."""
        self._known: set[tuple[int, int, int]] = set()
        self._log = b""

    def restore(self, generation: Any) -> None:
        """Go on from what was remembered, if it makes sense."""
        if isinstance(generation, int) and 0 <= generation <= 0xFFFF:
            self.generation = generation

    def read(self, bad: Mapping[int, Ranges], offset: int) -> bytes:
        """The log page, of the blocks that are `bad` in each namespace."""
        if offset == 0 or not self._log:
            found = {(nsid, *one) for nsid, ranges in bad.items() for one in ranges}
            if found - self._known:
                self.generation = self.generation + 1 & 0xFFFF
            self._known = found
            self._log = self._encode(bad)
        return self._log

    def _encode(self, bad: Mapping[int, Ranges]) -> bytes:
        elements = [_element(nsid, ranges) for nsid, ranges in sorted(bad.items()) if ranges]
        body = b"".join(elements)
        estimate = sum(count for ranges in bad.values() for _, count in ranges)
        header = LbaStatusLog(
            lslplen=LbaStatusLog.SIZE + len(body),
            nlslne=len(elements),
            estulb=min(estimate, LBA_ESTIMATE_LIMIT),
            lsgc=self.generation,
        )
        return bytes(header) + body


def _element(nsid: int, ranges: Ranges) -> bytes:
    """The bad blocks of one namespace; a range that is too long for a descriptor becomes more."""
    descriptors = [
        bytes(LbaRangeDescriptor(rslba=at, rnlb_z=min(first + count - at, LBA_RANGE_LIMIT) - 1))
        for first, count in ranges
        for at in range(first, first + count, LBA_RANGE_LIMIT)
    ]
    header = LbaStatusElement(neid=nsid, nlrd=len(descriptors), ratype=LbaStatusAction.TRACKED)
    return bytes(header) + b"".join(descriptors)


_REMEMBERED = (
    "bytes_read",
    "bytes_written",
    "reads",
    "writes",
    "media_errors",
    "power_cycles",
    "unsafe_shutdowns",
    "warning_temperature_time",
    "critical_temperature_time",
    "thermal_transitions_1",
    "thermal_transitions_2",
    "thermal_time_1",
    "thermal_time_2",
    "busy_seconds",
)


def _counter(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    return value if isinstance(value, int) and 0 <= value < COUNTER_LIMIT else 0
