"""The accelerator subsystem as its host configures and sees it. No I/O, no processes.

What survives a restart of the APU is here too: `save` and `restore` make bytes of it and take them
back; where the bytes go is `state`'s.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from csd_spec.descriptors import (
    AcceleratorStatus,
    CapabilityId,
    LogEntryType,
    StatusDescriptor,
)
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE
from csd_spec.status import StatusId
from potash_firmware.apu.config import AcceleratorConfig, Config
from potash_firmware.apu.lifecycle import STATUS, State, is_busy
from potash_firmware.apu.log import Clock, Log, Snapshot
from potash_firmware.mailbox.counters import unshared_row


class ByteRange(NamedTuple):
    """A part of a namespace's media, in bytes."""

    nsid: int
    first: int
    length: int


class Grant(NamedTuple):
    """Blocks of a namespace that a job may read by itself and, if `writable`, write."""

    nsid: int
    first_lba: int
    blocks: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Buffers:
    """Where a job's input comes from and where its output goes.

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
    """What the last job did: bytes consumed and produced, and the program's 64-bit r0."""

    consumed: int = 0
    produced: int = 0
    return_value: int = 0


class Accelerator:
    """One accelerator: its configuration by the host, its state, its log."""

    def __init__(self, config: AcceleratorConfig, log: Log) -> None:
        self.config = config
        self.log = log
        self.status_snapshot = Snapshot()
        self.log_snapshot = Snapshot()
        self.state = State.IDLE
        self.row = unshared_row()
        """Where its numbers are kept for those who look on."""
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
        """Whether a job has the accelerator and its buffers."""
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
        """What Get Accelerator Status says; `meanings` is STATUS or PLATFORM_STATUS."""
        active = KEEP_ACTIVE_FIRMWARE if self.active is None else self.active
        outcome = self.outcome
        return AcceleratorStatus(
            meanings[self.state],
            (
                StatusDescriptor(CapabilityId.FIRMWARE, active, outcome.return_value),
                StatusDescriptor(CapabilityId.INPUT_BUFFER, 0, outcome.consumed),
                StatusDescriptor(CapabilityId.OUTPUT_BUFFER, 0, outcome.produced),
            ),
        )


_HEAD = struct.Struct("<I")


@dataclass
class Subsystem:
    """All accelerators and whether the host has enabled them."""

    accelerators: dict[int, Accelerator]
    enabled: bool = False
    interrupted: list[int] = field(default_factory=list)
    """Accelerators whose job did not live through the restart of the APU."""

    @classmethod
    def create(cls, config: Config, clock: Clock) -> Subsystem:
        """As after power-on."""
        limits = config.limits
        return cls(
            {
                item.id: Accelerator(item, Log(limits.log_entries, limits.log_text, clock))
                for item in config.accelerators
            }
        )

    def save(self) -> tuple[bytes, ...]:
        """What survives a restart: the head's length, the head as JSON, the firmware images.

        In pieces, so that finding out that nothing has changed does not copy the images.
        """
        images = [image for item in self.accelerators.values() for image in item.firmware.values()]
        head = {
            "enabled": self.enabled,
            "accelerators": {key: _save(item) for key, item in self.accelerators.items()},
        }
        text = json.dumps(head).encode()
        return (_HEAD.pack(len(text)), text, *images)

    def restore(self, data: bytes) -> None:
        """Take back what `save` made, its pieces joined; a job that was running then has failed."""
        (length,) = _HEAD.unpack_from(data)
        images = memoryview(data)[_HEAD.size + length :]
        head = json.loads(data[_HEAD.size : _HEAD.size + length])
        self.enabled = head["enabled"]
        for key, saved in head["accelerators"].items():
            item = self.accelerators[int(key)]
            images = _restore(item, saved, images)
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


def _restore(item: Accelerator, saved: dict[str, Any], images: memoryview) -> memoryview:
    """Fill one accelerator; returns the images that are left."""
    item.state = State[saved["state"]]
    item.active = saved["active"]
    item.outcome = Outcome(**saved["outcome"])
    item.buffers = replace(
        Buffers(saved["input_length"]),
        input_ranges=tuple(ByteRange(*r) for r in saved["input_ranges"]),
        output_ranges=tuple(ByteRange(*r) for r in saved["output_ranges"]),
        granted=tuple(Grant(*r) for r in saved["granted"]),
    )
    for key, length in saved["firmware"]:
        item.firmware[key] = bytes(images[:length])
        images = images[length:]
    return images
