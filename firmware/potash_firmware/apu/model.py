"""The accelerator subsystem as its host configures and sees it, and what of it survives a restart.

`Subsystem.save` and `restore` convert the configuration to bytes and back. `StateArea` keeps these
bytes in shared memory, which outlives the APU.

Alkali CSD platform documentation, sections 4.2.1 (Get Log Page) and 4.3.1 (the Retain Asynchronous
Event flag).
"""

import json
import logging
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, NamedTuple, Self, TypedDict

from csd_spec.chains import MOST_STEPS
from csd_spec.descriptors import (
    AcceleratorStatus,
    CapabilityId,
    LogEntry,
    LogEntryType,
    LogPage,
    StatusDescriptor,
)
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE, QUERY_FIRMWARE
from csd_spec.status import StatusId
from potash_device.saved import LARGEST_NUMBER, decode
from potash_firmware.apu.config import AcceleratorConfig, Config, Limits
from potash_firmware.apu.lifecycle import STATUS, Event, JobState, is_busy
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.shared import Word, add, unshared_row
from potash_wire.records import BOOL, U32, U64, Range, Record

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds since the epoch."""


class Log:
    """The latest `capacity` entries; how many older ones were dropped is counted."""

    def __init__(self, capacity: int, text_limit: int, clock: Clock) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._text_limit = text_limit
        self._clock = clock
        self._lost = 0

    def add(self, kind: LogEntryType, text: str = "") -> None:
        """Add an entry with the present time; long text is cut."""
        if len(self._entries) == self._entries.maxlen:
            self._lost += 1
        now = int(self._clock() * 1000)
        self._entries.append(LogEntry(now, kind, text[: self._text_limit]))

    def clear(self) -> None:
        self._entries.clear()
        self._lost = 0

    def page(self) -> LogPage:
        """All entries, the oldest first."""
        return LogPage(tuple(self._entries), min(self._lost, 0xFFFF_FFFF))


class Snapshot:
    """The bytes that a read with the Retain flag has returned, until a read without it."""

    def __init__(self) -> None:
        self._held: bytes | None = None

    def read(self, current: Callable[[], bytes], *, retain: bool) -> bytes:
        """The bytes held, or else the current ones; `retain` holds them for the next read."""
        data = current() if self._held is None else self._held
        self._held = data if retain else None
        return data

    def release(self) -> None:
        self._held = None


class ByteRange(NamedTuple):
    """A part of a namespace's media, in bytes."""

    nsid: U32
    first: U64
    length: Annotated[U64, Range(1, (1 << 64) - 1)]


class Grant(NamedTuple):
    """Blocks of a namespace that a job may read by itself and, if `writable`, write."""

    nsid: U32
    first_lba: U64
    blocks: U64
    writable: BOOL


@dataclass(frozen=True, slots=True)
class Buffers:
    """The source of a job's input, and the destination of its output.

    `input_length` is the length of the input that the host has sent, None if it has not. Ranges, if
    there are any, replace the data that the host sends and reads. The program may also access the
    `granted` blocks.
    """

    input_length: int | None = None
    input_ranges: tuple[ByteRange, ...] = ()
    output_ranges: tuple[ByteRange, ...] = ()
    granted: tuple[Grant, ...] = ()

    @property
    def input_size(self) -> int:
        """Bytes that the next job is given."""
        return sum(item.length for item in self.input_ranges) or self.input_length or 0


@dataclass(slots=True)
class Outcome:
    """The last job's result: bytes consumed and produced, the program's 64-bit r0, and how many
    nanoseconds it took, where time is modelled.

    A chain has a number of `steps`, and how many of these have `ended` without a fault. Its result
    is the last of these, but for the bytes consumed, which are those of the first.
    """

    consumed: int = 0
    produced: int = 0
    return_value: int = 0
    modelled: int = 0
    steps: int = 0
    ended: int = 0


class Accelerator:
    """An accelerator: its configuration by the host, its state, its log."""

    def __init__(self, config: AcceleratorConfig, log: Log) -> None:
        self.config = config
        self.log = log
        self.status_snapshot = Snapshot()
        self.log_snapshot = Snapshot()
        self.state = JobState.IDLE
        self.row = unshared_row()
        """The accelerator's row of the shared counters."""
        self.staged: dict[int, bytearray] = {}
        """Firmware that has been sent in part, by its ID."""
        self.blank()

    def blank(self) -> None:
        """Reset everything except the log to its state after power-on."""
        self.firmware: dict[int, bytes] = {}
        self.active: int | None = None
        self.buffers = Buffers()
        self.outcome = Outcome()
        self.staged.clear()
        self.status_snapshot.release()
        self.log_snapshot.release()

    @property
    def busy(self) -> bool:
        """True while a job uses the accelerator and its buffers."""
        return is_busy(self.state)

    @property
    def output_capacity(self) -> int:
        """Bytes that the next job may produce."""
        ranges = self.buffers.output_ranges
        return sum(r.length for r in ranges) if ranges else self.config.output_size

    def status(self, meanings: Mapping[JobState, StatusId] = STATUS) -> AcceleratorStatus:
        """The data of Get Accelerator Status; `meanings` is STATUS or PLATFORM_STATUS."""
        active = KEEP_ACTIVE_FIRMWARE if self.active is None else self.active
        outcome = self.outcome
        return AcceleratorStatus(
            meanings[self.state],
            (
                StatusDescriptor(
                    CapabilityId.FIRMWARE,
                    active,
                    outcome.return_value,
                    outcome.modelled,
                    outcome.steps,
                    outcome.ended,
                ),
                StatusDescriptor(CapabilityId.INPUT_BUFFER, 0, outcome.consumed),
                StatusDescriptor(CapabilityId.OUTPUT_BUFFER, 0, outcome.produced),
            ),
        )


_HEAD = struct.Struct("<I")
HEAD_LIMIT = 1 << 20
"""Most bytes of JSON."""


class SavedAccelerator(TypedDict):
    """An accelerator; `outcome` is an `Outcome`, and `firmware` the slot and the length of each
    image."""

    state: str
    active: int | None
    outcome: dict[str, int]
    input_length: int | None
    input_ranges: tuple[ByteRange, ...]
    output_ranges: tuple[ByteRange, ...]
    granted: tuple[Grant, ...]
    firmware: tuple[tuple[int, int], ...]


class SavedSubsystem(TypedDict):
    """All accelerators, by their identifiers."""

    enabled: bool
    accelerators: dict[str, SavedAccelerator]


@dataclass
class Subsystem:
    """All accelerators of one controller, whose host has to enable them."""

    accelerators: dict[int, Accelerator]
    limits: Limits
    enabled: bool = False
    interrupted: list[int] = field(default_factory=list)
    """Accelerators whose job was lost with the previous APU."""

    @classmethod
    def create(cls, config: Config, clock: Clock, controller: int = 0) -> Self:
        limits = config.limits
        return cls(
            {
                item.id: Accelerator(item, Log(limits.log_entries, limits.log_text, clock))
                for item in config.accelerators
                if item.controller == controller
            },
            limits,
        )

    def save(self) -> tuple[bytes, ...]:
        """The state that survives a restart: the length of the JSON, the JSON, the firmware images.

        They are separate pieces, so that a comparison with those before does not copy the images.
        """
        images = [image for item in self.accelerators.values() for image in item.firmware.values()]
        head = {
            "enabled": self.enabled,
            "accelerators": {key: _save(item) for key, item in self.accelerators.items()},
        }
        text = json.dumps(head).encode()
        return (_HEAD.pack(len(text)), text, *images)

    def restore(self, data: bytes) -> None:
        """Restore the pieces of `save`, joined; a job that was running then has failed.

        They may come from another device, so they are not trusted. Raises ValueError for a state
        that cannot be; nothing has changed then.
        """
        if len(data) < _HEAD.size:
            raise ValueError("there is no head")
        (length,) = _HEAD.unpack_from(data)
        head: SavedSubsystem = decode(
            SavedSubsystem, memoryview(data)[_HEAD.size : _HEAD.size + length], HEAD_LIMIT
        )
        images = memoryview(data)[_HEAD.size + length :]
        restored = {}
        for key, item in self.accelerators.items():
            saved = head["accelerators"].get(str(key))
            if saved is None:
                raise ValueError(f"there is no accelerator {key}")
            restored[item], images = _restore(item, saved, images, self.limits)
        if images:
            raise ValueError("there are images of no accelerator")
        self.enabled = head["enabled"]
        for item, found in restored.items():
            item.state, item.active, item.outcome, item.buffers, item.firmware = found
            if item.busy:
                item.state = JobState.FAILED
                item.log.add(LogEntryType.PROCESS_LOST, "the application processor was restarted")
                self.interrupted.append(item.config.id)


def _save(item: Accelerator) -> dict[str, Any]:
    return {
        "state": item.state.name,
        "active": item.active,
        "outcome": asdict(item.outcome),
        "input_length": item.buffers.input_length,
        "input_ranges": item.buffers.input_ranges,
        "output_ranges": item.buffers.output_ranges,
        "granted": item.buffers.granted,
        "firmware": [(key, len(image)) for key, image in item.firmware.items()],
    }


_Saved = tuple[JobState, int | None, Outcome, Buffers, dict[int, bytes]]


def _restore(
    item: Accelerator, saved: SavedAccelerator, images: memoryview, limits: Limits
) -> tuple[_Saved, memoryview]:
    """The state of one accelerator, and the remaining images. Raises ValueError.

    Ranges are checked against their namespaces when a job starts, as these may change until then.
    """
    firmware: dict[int, bytes] = {}
    for key, length in saved["firmware"]:
        if not key < limits.firmware_slots or not length <= len(images):
            raise ValueError(f"there can be no firmware {key} of {length} bytes")
        firmware[key] = bytes(images[:length])
        images = images[length:]
    active, filled = saved["active"], saved["input_length"]
    if active is not None and active not in (*firmware, QUERY_FIRMWARE):
        raise ValueError(f"there is no firmware {active}")
    if filled is not None and filled > item.config.input_size:
        raise ValueError(f"{filled} bytes are more than the input buffer has")
    buffers = Buffers(filled, saved["input_ranges"], saved["output_ranges"], saved["granted"])
    for ranges, size in (
        (buffers.input_ranges, item.config.input_size),
        (buffers.output_ranges, item.config.output_size),
    ):
        if len(ranges) > limits.ranges or sum(item.length for item in ranges) > size:
            raise ValueError("ranges are more than their buffer has room for")
    if len(buffers.granted) > limits.grants:
        raise ValueError("too many blocks are granted")
    if saved["state"] not in JobState.__members__:
        raise ValueError(f"an accelerator cannot be {saved['state']}")
    names = saved["outcome"].keys() & {field.name for field in fields(Outcome)}
    outcome = Outcome(**{name: saved["outcome"][name] for name in names})
    if not outcome.ended <= outcome.steps <= MOST_STEPS:
        raise ValueError(f"{outcome.ended} of {outcome.steps} steps cannot have ended")
    return (JobState[saved["state"]], active, outcome, buffers, firmware), images


class _RecordHead(NamedTuple):
    magic: U32
    checksum: U32
    """CRC-32 of the rest of the head, and of the data."""
    sequence: U64
    length: U64


_RECORD_HEAD = Record(_RecordHead)
MAGIC = int.from_bytes(b"PAPU", "little")


class StateArea:
    """Two records in `memory`, which stays the caller's.

    A record is written over the older one, so a process that is killed while it writes leaves the
    other one complete; the checksum shows which is.
    """

    def __init__(self, memory: memoryview) -> None:
        half = len(memory) // 2
        self._halves = (memory[:half], memory[half : 2 * half])
        self._sequence = 0

    @property
    def capacity(self) -> int:
        """Most bytes of a record's data."""
        return len(self._halves[0]) - _RECORD_HEAD.size

    def load(self) -> bytes | None:
        """The newest complete record, None when there is none."""
        records = [record for half in self._halves if (record := _read(half)) is not None]
        if not records:
            return None
        self._sequence, data = max(records)
        return data

    def store(self, data: bytes) -> None:
        """Replace the older record. Raises MailboxError when the data does not fit."""
        if len(data) > self.capacity:
            raise MailboxError(f"a state of {len(data)} bytes does not fit in {self.capacity}")
        sequence, size = self._sequence + 1, _RECORD_HEAD.size
        if sequence > LARGEST_NUMBER:  # only a forged record can have such a number
            sequence = 1
            self._halves[0][:size] = bytes(size)
        half = self._halves[sequence % 2]
        half[size : size + len(data)] = data
        half[:size] = _head(sequence, data)
        self._sequence = sequence


def _head(sequence: int, data: bytes) -> bytes:
    head = _RecordHead(MAGIC, 0, sequence, len(data))
    checksum = zlib.crc32(data, zlib.crc32(_RECORD_HEAD.encode(head)[8:]))
    return _RECORD_HEAD.encode(head._replace(checksum=checksum))


def _read(half: memoryview) -> tuple[int, bytes] | None:
    size = _RECORD_HEAD.size
    head = _RECORD_HEAD.decode_from(half)
    if head.magic != MAGIC or head.length > len(half) - size or head.sequence > LARGEST_NUMBER:
        return None
    data = bytes(half[size : size + head.length])
    return (head.sequence, data) if _head(head.sequence, data) == half[:size] else None


RESULTS = {JobState.DONE: (Word.DONE, "ended"), JobState.FAILED: (Word.FAILED, "failed")}
"""The counter of jobs that end in a state, and the word for the log; others are stopped."""


def count_event(accelerator: Accelerator, event: Event) -> None:
    """Count what has led to the accelerator's state, in its row of the shared counters."""
    row = accelerator.row
    row[Word.STATE] = STATUS[accelerator.state]
    if event is Event.START:
        row[Word.BEGAN] = time.monotonic_ns()
        add(row, Word.STARTED, 1)
        log.debug("accelerator %d: a job begins", accelerator.config.id)
    elif row[Word.BEGAN] and not accelerator.busy:
        _count_end(accelerator)


def count_restart(accelerator: Accelerator) -> None:
    """Count a job that has failed as the APU was restarted."""
    accelerator.row[Word.STATE] = STATUS[accelerator.state]
    if accelerator.row[Word.BEGAN]:
        _count_end(accelerator)


def _count_end(accelerator: Accelerator) -> None:
    row = accelerator.row
    took = time.monotonic_ns() - row[Word.BEGAN]
    add(row, Word.BUSY, took)
    row[Word.BEGAN] = 0
    result, word = RESULTS.get(accelerator.state, (Word.STOPPED, "been stopped"))
    add(row, result, 1)
    identifier, seconds = accelerator.config.id, took / 1e9
    logged = {"accelerator": identifier, "result": result.name.lower(), "seconds": seconds}
    log.log(
        logging.DEBUG if result is Word.DONE else logging.INFO,
        "accelerator %d: a job has %s after %.3f s",
        identifier,
        word,
        seconds,
        extra={"known": logged},
    )
