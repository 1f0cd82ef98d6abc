"""A model of zones with random write areas, by what TP 4076 and the Zoned Namespace Command Set
Specification 1.1 say of a host's view of them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from support.zones import (
    BOUNDARY,
    CLOSE,
    CLOSED,
    EMPTY,
    EXPLICIT,
    FINISH,
    FULL,
    IMPLICIT,
    INVALID_OPERATION,
    INVALID_TRANSITION,
    INVALID_WRITE,
    IS_FULL,
    NO_AREA_LEFT,
    OPEN,
    RESET,
)


class Areas(NamedTuple):
    """Blocks of a zone that can be written, of an area and of what is committed at once; and the
    zones that can have an area."""

    capacity: int
    size: int
    granularity: int
    most: int


@dataclass
class ModelZone:
    state: int = EMPTY
    pointer: int = 0
    area: bool = False
    blocks: dict[int, int] = field(default_factory=dict)
    """The first byte of each block that is written, by its number in the zone."""

    def ended(self, state: int, pointer: int) -> None:
        self.state, self.pointer, self.area = state, pointer, False

    def power_cycled(self) -> None:
        """An open zone is closed if something in it is written, else empty."""
        if self.state in (IMPLICIT, EXPLICIT):
            if self.blocks or self.pointer:
                self.state = CLOSED
            else:
                self.ended(EMPTY, 0)


class ModelZones:
    """Each method answers with the status of a command; zones have few enough open at once."""

    def __init__(self, count: int, areas: Areas) -> None:
        self.areas, self.every = areas, [ModelZone() for _ in range(count)]

    def write(self, number: int, first: int, count: int, fill: int) -> int:
        zone, areas = self.every[number], self.areas
        if zone.state == FULL:
            return IS_FULL
        if zone.area:
            in_reach = range(zone.pointer, zone.pointer + 2 * areas.size)
            if first not in in_reach or first + count - 1 not in in_reach:
                return INVALID_WRITE
        elif first != zone.pointer:
            return INVALID_WRITE
        if first + count > areas.capacity:
            return BOUNDARY
        self._opened(zone)
        zone.blocks |= dict.fromkeys(range(first, first + count), fill)
        if zone.area:
            while first + count > zone.pointer + areas.size:
                zone.pointer += areas.granularity
        else:
            zone.pointer += count
            if zone.pointer == areas.capacity:
                zone.ended(FULL, 0)
        return 0

    def append(self, number: int, count: int, fill: int) -> int:
        zone = self.every[number]
        if zone.area:
            return INVALID_OPERATION
        return self.write(number, zone.pointer, count, fill)

    def commit(self, number: int, last: int) -> int:
        zone, areas = self.every[number], self.areas
        ends = range(zone.pointer + areas.granularity, areas.capacity + 1, areas.granularity)
        if not zone.area or last + 1 not in ends or last >= zone.pointer + areas.size:
            return INVALID_OPERATION
        self._opened(zone)
        zone.pointer = last + 1
        if zone.pointer == areas.capacity:
            zone.ended(FULL, 0)
        return 0

    def send(self, action: int, number: int, with_area: bool) -> int:
        zone = self.every[number]
        if action == CLOSE:
            if zone.state not in (IMPLICIT, EXPLICIT, CLOSED):
                return INVALID_TRANSITION
            zone.state = CLOSED
        elif action == RESET:
            self.every[number] = ModelZone()
        elif action == FINISH:
            zone.ended(FULL, 0)
        else:
            assert action == OPEN
            if zone.state == FULL:
                return INVALID_TRANSITION
            if with_area:
                if zone.state != EMPTY:
                    return INVALID_OPERATION
                if sum(other.area for other in self.every) == self.areas.most:
                    return NO_AREA_LEFT
                zone.area = True
            zone.state = EXPLICIT
        return 0

    def _opened(self, zone: ModelZone) -> None:
        if zone.state != EXPLICIT:
            zone.state = IMPLICIT
