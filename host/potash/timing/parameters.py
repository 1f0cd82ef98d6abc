"""Numbers of a profile that are fitted to measurements."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from potash_device.flash.profile import PAGE, Profile, Rate

MIB = 1 << 20


class Number(NamedTuple):
    """A number of a profile: nanoseconds, bytes, or of a rate the nanoseconds of a MiB. A drive
    with one below `low` does not have it: no write buffer, no suspension."""

    name: str
    get: Callable[[Profile], float]
    set: Callable[[Profile, float], Profile]
    low: float = 0
    high: float = 1e9


def _field(name: str, low: float = 0) -> Number:
    def put(profile: Profile, value: float) -> Profile:
        changed: dict[str, Any] = {name: round(value)}
        return replace(profile, **changed)

    return Number(name, lambda profile: float(getattr(profile, name)), put, low)


def _rate(name: str) -> Number:
    def get(profile: Profile) -> float:
        rate: Rate = getattr(profile, name)
        return rate.ns * MIB / rate.bytes

    def put(profile: Profile, value: float) -> Profile:
        changed: dict[str, Any] = {name: Rate(MIB, round(value))}
        return replace(profile, **changed)

    return Number(name, get, put, MIB / 64, MIB * 64)


def program_time(profile: Profile) -> float:
    """The mean tPROG in nanoseconds."""
    return sum(profile.program_ns) / len(profile.program_ns)


def with_program_time(profile: Profile, mean: float) -> Profile:
    """The profile with another mean tPROG in nanoseconds, and the same ratios."""
    part = mean / program_time(profile)
    times = tuple(max(1, round(time * part)) for time in profile.program_ns)
    return replace(profile, program_ns=times)


def least_buffer(profile: Profile) -> int:
    """Bytes of the smallest write buffer that the drive can have."""
    return profile.streams * profile.unit_pages * PAGE


def programming(profile: Profile) -> int:
    """Bytes that are programmed at a time: by all dies, or as many as the write buffer holds."""
    dies = profile.total_dies * profile.unit_pages * PAGE
    return min(dies, profile.buffer_bytes) if profile.buffer_bytes else dies


def with_buffer(profile: Profile, size: float) -> Profile:
    """The profile with a write buffer of another size, and the tPROG with which the drive programs
    as fast as before."""
    changed = replace(profile, buffer_bytes=max(least_buffer(profile), round(size)))
    part = programming(changed) / programming(profile)
    return with_program_time(changed, program_time(profile) * part)


_FIRMWARE_READS = _field("completion_ns"), _field("read_command_ns"), _field("read_page_ns")
_LINK = _rate("link")
BUS = _rate("bus")
BUFFER = Number("buffer_bytes", lambda profile: profile.buffer_bytes, with_buffer, 1)
FIRMWARE = *_FIRMWARE_READS, _field("write_command_ns"), _field("write_page_ns"), _LINK
"""Numbers that requests show which take no flash."""
READS = *_FIRMWARE_READS, _LINK, BUS
"""Numbers that reads show; tR follows from them."""
WRITES = (
    Number("program_ns", program_time, with_program_time, 1000),
    _field("suspend_ns"),
)
"""Numbers that writes show for which flash is programmed."""
ALL = *FIRMWARE, BUS, *WRITES
