"""The accelerator subsystem as its host configures and sees it. No I/O, no processes.

What survives a restart of the APU is here too: `save` and `restore` make bytes of it and take them
back; where the bytes go is `state`'s.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple, Self, TypedDict

from csd_spec.descriptors import (
    AcceleratorStatus,
    CapabilityId,
    LogEntryType,
    StatusDescriptor,
)
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE
from csd_spec.status import StatusId
from potash_device.saved import decode
from potash_firmware.apu.config import AcceleratorConfig, Config, Limits
from potash_firmware.apu.lifecycle import STATUS, State, is_busy
from potash_firmware.apu.log import Clock, Log, Snapshot
from potash_firmware.mailbox.counters import unshared_row
from potash_wire.records import BOOL, U32, U64, Range


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
    """The source of a job's input and the target of its output.

    `input_length` is how much of the input buffer the host filled, None when it did not. Ranges,
    when there are any, take the place of what the host sends and reads. `granted` is what the
    program may reach besides.
    """

    input_length: int | None = None
    input_ranges: tuple[ByteRange, ...] = ()
    output_ranges: tuple[ByteRange, ...] = ()
    granted: tuple[Grant, ...] = ()


@dataclass(slots=True)
class Outcome:
    """The results of the last job: bytes consumed and produced, the program's 64-bit r0, and how
    many nanoseconds it took, where time is modelled."""

    consumed: int = 0
    produced: int = 0
    return_value: int = 0
    modelled: int = 0


class Accelerator:
    """An accelerator: its configuration by the host, its state, its log."""

    def __init__(self, config: AcceleratorConfig, log: Log) -> None:
        self.config = config
        self.log = log
        self.status_snapshot = Snapshot()
        self.log_snapshot = Snapshot()
        self.state = State.IDLE
        self.row = unshared_row()
        """The row of counters that other processes read."""
        self.staged: dict[int, bytearray] = {}
        """Firmware that has come in part, by its ID."""
        self.blank()

    def blank(self) -> None:
        """Everything as after power-on, but for the log."""
        self.firmware: dict[int, bytes] = {}
        self.active: int | None = None
        self.buffers = Buffers()
        self.outcome = Outcome()
        self.staged.clear()
        self.status_snapshot.release()
        self.log_snapshot.release()

    @property
    def busy(self) -> bool:
        """True while a job has the accelerator and its buffers."""
        return is_busy(self.state)

    @property
    def output_capacity(self) -> int:
        """Bytes that the next job may produce."""
        ranges = self.buffers.output_ranges
        return sum(r.length for r in ranges) if ranges else self.config.output_size

    @property
    def input_length(self) -> int:
        """Bytes that the next job is given."""
        ranges = self.buffers.input_ranges
        return sum(r.length for r in ranges) if ranges else self.buffers.input_length or 0

    def status(self, meanings: Mapping[State, StatusId] = STATUS) -> AcceleratorStatus:
        """The status in Get Accelerator Status; `meanings` is STATUS or PLATFORM_STATUS."""
        active = KEEP_ACTIVE_FIRMWARE if self.active is None else self.active
        outcome = self.outcome
        return AcceleratorStatus(
            meanings[self.state],
            (
                StatusDescriptor(
                    CapabilityId.FIRMWARE, active, outcome.return_value, outcome.modelled
                ),
                StatusDescriptor(CapabilityId.INPUT_BUFFER, 0, outcome.consumed),
                StatusDescriptor(CapabilityId.OUTPUT_BUFFER, 0, outcome.produced),
            ),
        )


_HEAD = struct.Struct("<I")
HEAD_LIMIT = 1 << 20
"""Bytes of JSON."""


class SavedOutcome(TypedDict, total=False):
    """An `Outcome`."""

    consumed: int
    produced: int
    return_value: int
    modelled: int


class SavedAccelerator(TypedDict):
    """An accelerator; of firmware the slot and the length of each image."""

    state: str
    active: int | None
    outcome: SavedOutcome
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
    """All accelerators and whether the host has enabled them."""

    accelerators: dict[int, Accelerator]
    limits: Limits
    enabled: bool = False
    interrupted: list[int] = field(default_factory=list)
    """Accelerators whose job did not live through the restart of the APU."""

    @classmethod
    def create(cls, config: Config, clock: Clock) -> Self:
        limits = config.limits
        return cls(
            {
                item.id: Accelerator(item, Log(limits.log_entries, limits.log_text, clock))
                for item in config.accelerators
            },
            limits,
        )

    def save(self) -> tuple[bytes, ...]:
        """The state that survives a restart: the head's length, the head as JSON, the firmware
        images.

        It is in pieces, so that a comparison with the saved state copies no images.
        """
        images = [image for item in self.accelerators.values() for image in item.firmware.values()]
        head = {
            "enabled": self.enabled,
            "accelerators": {key: _save(item) for key, item in self.accelerators.items()},
        }
        text = json.dumps(head).encode()
        return (_HEAD.pack(len(text)), text, *images)

    def restore(self, data: bytes) -> None:
        """Take back what `save` made, its pieces joined; a job that was running then has failed.

        It may have come with the state of another device, and so from anybody. Raises ValueError
        for what cannot be; nothing has changed then.
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
            restored[item], images = _restored(item, saved, images, self.limits)
        if images:
            raise ValueError("there are images of no accelerator")
        self.enabled = head["enabled"]
        for item, found in restored.items():
            item.state, item.active, item.outcome, item.buffers, item.firmware = found
            if item.busy:
                item.state = State.FAILED
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


_Saved = tuple[State, int | None, Outcome, Buffers, dict[int, bytes]]


def _restored(
    item: Accelerator, saved: SavedAccelerator, images: memoryview, limits: Limits
) -> tuple[_Saved, memoryview]:
    """An accelerator's saved state, and the images that remain. Raises ValueError.

    That ranges are in their namespaces is checked when a job starts, as those may have changed.
    """
    firmware: dict[int, bytes] = {}
    for key, length in saved["firmware"]:
        if not key < limits.firmware_slots or not length <= len(images):
            raise ValueError(f"there can be no firmware {key} of {length} bytes")
        firmware[key] = bytes(images[:length])
        images = images[length:]
    active, filled = saved["active"], saved["input_length"]
    if active is not None and active not in firmware:
        raise ValueError(f"there is no firmware {active}")
    if filled is not None and filled > item.config.input_size:
        raise ValueError(f"{filled} bytes are more than the input buffer has")
    buffers = Buffers(filled, saved["input_ranges"], saved["output_ranges"], saved["granted"])
    for ranges, size in (
        (buffers.input_ranges, item.config.input_size),
        (buffers.output_ranges, item.config.output_size),
    ):
        if len(ranges) > limits.ranges or sum(one.length for one in ranges) > size:
            raise ValueError("ranges are more than their buffer has room for")
    if len(buffers.granted) > limits.ranges:
        raise ValueError("too many blocks are granted")
    if saved["state"] not in State.__members__:
        raise ValueError(f"an accelerator cannot be {saved['state']}")
    outcome = Outcome(**saved["outcome"])
    return (State[saved["state"]], active, outcome, buffers, firmware), images
