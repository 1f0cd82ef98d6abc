"""Telemetry: the state of the firmware at one moment, for debugging.

A host can request a capture. The firmware makes one when it fails, and keeps that until the host
has read it, also over power cycles.

Source: NVM Express Base Specification 2.0, section 5.16.1.8, 5.16.1.9 and 8.24."""

import base64
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

from nvme_spec.logs import TELEMETRY_BLOCK_SIZE, LogPage, TelemetryHeader
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section, fits
from potash_device.settings import MOST_CONTROLLERS
from potash_firmware.rpu.part import Part

log = logging.getLogger(__name__)

BLOCK_LIMIT = 128
"""Blocks of a capture; an area that does not fit is cut."""

KEPT_LIMIT = 12 << 10
"""Bytes, compressed, of a capture that is worth a place in the sidecar."""

REASON_SIZE = 128


class SavedCapture(NamedTuple):
    """A capture: compressed data in base 64, where each area ends, and why."""

    packed: str
    last_blocks: tuple[int, int, int]
    reason: str


class SavedTelemetry(TypedDict, total=False):
    """The generations, and what the firmware has captured itself."""

    host: Annotated[int, fits(TelemetryHeader.host_generation)]
    controller: Annotated[int, fits(TelemetryHeader.controller_generation)]
    capture: SavedCapture | None


SECTIONS: list[Section[SavedTelemetry]] = [
    Section(f"telemetry {number}" if number else "telemetry", SavedTelemetry)
    for number in range(MOST_CONTROLLERS)
]
"""The sidecar's section of each controller."""

Areas = Sequence[Mapping[str, object]]
"""The contents of each of the three data areas."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Captured data: the blocks behind the header, the end of each area, and the reason."""

    data: bytes = b""
    last_blocks: tuple[int, int, int] = (0, 0, 0)
    reason: bytes = b""


NOTHING = Capture()


@dataclass(eq=False, repr=False)
class Telemetry(Part):
    """The telemetry logs of one controller, which no host of another one may read."""

    sidecar: Sidecar
    controller: int = 0
    """Its identifier. The sidecar has room for a capture of the first one only."""
    changes: int = 0

    def __post_init__(self) -> None:
        self._host = self._controller = NOTHING
        self._host_generation = self._controller_generation = 0

    def restore(self, *, clean: bool | None = None) -> None:
        section = self.sidecar.get(SECTIONS[self.controller])
        if section is None:
            return
        self._host_generation = section.get("host", 0)
        self._controller_generation = section.get("controller", 0)
        self._controller = _unpacked(section.get("capture"))

    def create(self, areas: Areas) -> None:
        """A host wants the state of now."""
        self._host = self._capture("the host", areas)
        self._host_generation = self._host_generation + 1 & 0xFF
        self._keep()

    def reset(self, *, next_host: bool = False) -> None:
        if next_host:
            self._host = NOTHING

    def capture(self, reason: str, areas: Areas) -> bool:
        """Something has gone wrong. False while an earlier capture has not been read."""
        if self.available:
            return False
        self._controller = self._capture(reason, areas)
        self._controller_generation = self._controller_generation + 1 & 0xFF
        self._keep()
        return True

    @property
    def available(self) -> bool:
        return self._controller is not NOTHING

    def release(self) -> None:
        """The host has read what the firmware had captured."""
        if self.available:
            self._controller = NOTHING
            self._keep()

    def header(self, lid: LogPage) -> TelemetryHeader:
        """The first block of one of the two logs."""
        host = lid is LogPage.TELEMETRY_HOST
        capture = self._host if host else self._controller
        area1, area2, area3 = capture.last_blocks
        return TelemetryHeader(
            lid=lid,
            last_block_1=area1,
            last_block_2=area2,
            last_block_3=area3,
            host_generation=self._host_generation if host else 0,
            controller_available=self.available,
            controller_generation=self._controller_generation,
            reason=capture.reason,
        )

    def encode(self, lid: LogPage) -> bytes:
        capture = self._host if lid is LogPage.TELEMETRY_HOST else self._controller
        return bytes(self.header(lid)) + capture.data

    def _capture(self, reason: str, areas: Areas) -> Capture:
        data, last_blocks = b"", []
        for area in areas:
            data += _block_aligned(json.dumps(area, default=str).encode() + b"\n")
            data = data[: BLOCK_LIMIT * TELEMETRY_BLOCK_SIZE]
            last_blocks.append(len(data) // TELEMETRY_BLOCK_SIZE)
        area1, area2, area3 = last_blocks
        text = reason.encode("ascii", "replace")[:REASON_SIZE]
        return Capture(data, (area1, area2, area3), text)

    def _keep(self) -> None:
        self.changes += 1
        self.sidecar.put(
            SECTIONS[self.controller],
            {
                "host": self._host_generation,
                "controller": self._controller_generation,
                "capture": None if self.controller else _packed(self._controller),
            },
        )


def _block_aligned(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // TELEMETRY_BLOCK_SIZE) * TELEMETRY_BLOCK_SIZE, b"\0")


def _packed(capture: Capture) -> SavedCapture | None:
    packed = zlib.compress(capture.data)
    if capture is NOTHING or len(packed) > KEPT_LIMIT:
        return None
    encoded = base64.b64encode(packed).decode()
    return SavedCapture(encoded, capture.last_blocks, capture.reason.decode())


def _unpacked(stored: SavedCapture | None) -> Capture:
    if stored is None:
        return NOTHING
    area1, area2, area3 = stored.last_blocks
    limit = BLOCK_LIMIT * TELEMETRY_BLOCK_SIZE
    with suppress(ValueError, zlib.error):
        data = zlib.decompressobj().decompress(base64.b64decode(stored.packed), limit)
        reason = stored.reason.encode("ascii")
        if (
            0 < area1 <= area2 <= area3 == len(data) / TELEMETRY_BLOCK_SIZE
            and len(reason) <= REASON_SIZE
        ):
            return Capture(data, stored.last_blocks, reason)
    log.warning("the telemetry that was captured is damaged")
    return NOTHING
