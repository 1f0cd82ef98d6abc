"""Schedulers of compute units by their names: `fifo`, `rr:50us`, `priority`, or
`group:12,namespace3=2`, or that of an extension's class."""

import re
from collections.abc import Mapping

from potash_device.units import HOST, MOST_UNITS, Fifo, Grouped, Priority, RoundRobin, UnitScheduler
from potash_firmware.extension_registry import RegisteredClass

_UNITS = {"ns": 1, "us": 1000, "ms": 1_000_000}
_MEMBER = rf"(?:[0-9]{{1,3}}|{HOST}|namespace[1-9][0-9]{{0,8}})"
_LONGEST = 10**9
FORMS = (
    "fifo, rr:TIME (as in rr:50us), priority, group:MEMBER,…=UNITS;… (as in group:12,13=2, or"
    " group:namespace3=2;host=1)"
)


class SchedulerError(ValueError):
    """There is no such scheduler, or it does not go with the units; one sentence."""


def named(text: str, units: int, registered: Mapping[str, RegisteredClass]) -> UnitScheduler:
    """A scheduler for so many units; `registered` are those of extensions.

    Raises SchedulerError.
    """
    name, _, described = text.partition(":")
    if text == "fifo":
        return Fifo()
    if text == "priority":
        return Priority()
    if name == "rr":
        return RoundRobin(_slice(described))
    if name == "group":
        return _grouped(described, units)
    if text not in registered:
        others = "".join(f", {name}" for name in registered)
        raise SchedulerError(f"there is no scheduler {text!r:.60}; there are {FORMS}{others}")
    return _made(registered[text])


def _slice(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})(ns|us|ms)", text)
    ns = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < ns <= _LONGEST:
        raise SchedulerError(
            f"rr:{text:.60} has no slice of time from 1ns to 1000ms, as in rr:50us"
        )
    return ns


def _grouped(text: str, units: int) -> Grouped:
    reserved = []
    members: set[int | str] = set()
    for part in text.split(";"):
        found = re.fullmatch(rf"({_MEMBER}(?:,{_MEMBER})*)=([1-9][0-9]?)", part)
        if found is None:
            raise SchedulerError(
                f"group:{text:.60} does not say who has how many units, as in group:12,13=2 or"
                " group:namespace3=2;host=1"
            )
        names = found[1].split(",")
        group = frozenset(int(name) if name.isdecimal() else name for name in names)
        if twice := members & group:
            raise SchedulerError(f"{min(map(str, twice))} is in two groups")
        members |= group
        reserved.append((group, int(found[2])))
    if sum(number for _, number in reserved) >= units:
        raise SchedulerError(
            f"group:{text:.60} leaves no unit for others; raise --compute-units"
            f" (now {units}, at most {MOST_UNITS})"
        )
    return Grouped(reserved)


def _made(registered: RegisteredClass) -> UnitScheduler:
    """An object of an extension's class, which has the methods of `Fifo` that it lacks."""
    made = registered.made
    try:
        scheduler: UnitScheduler = type(made.__name__, (made, Fifo), {})()
    except Exception as error:  # noqa: BLE001 - it is a user's code
        raise SchedulerError(f"{registered} cannot be made: {error}") from None
    time = scheduler.slice
    if time is not None and (type(time) is not int or not 0 < time <= _LONGEST):
        raise SchedulerError(f"{registered} has a slice of {time!r:.40}, and not of 1 to 10^9 ns")
    return scheduler
