"""Fault injection: faults as lines of text, sent to a device, listed, cleared.

    from potash.sdk import faults

    faults.add(device, "io read status=UNRECOVERED_READ_ERROR count=3")
    faults.add(device, "media write lba=100..199")
    print(faults.listed(device)[0].triggered)
    faults.clear(device)

A line is the fault's kind, and words for the rest:

    io OPCODE | admin OPCODE    status=NAME [dnr] | delay=TIME | lost
                                [queue=N] [nsid=N] [lba=FIRST..LAST | lba=FIRST+COUNT]
                                [controller=N]
    media read|write|any        [delay=TIME] [nsid=N] [lba=...]
    interrupt                   [vector=N] [controller=N]
    apu                         [at=now|start|job]
    zone reset|finish           [nsid=N] [lba=...]
    reachability
    flash program               [count=N]
    ana STATE                   [group=N] [controller=N] [at=TIME] [for=TIME]
                                [transition=TIME]

each but reachability, zone and flash with [count=N] [after=N]. A device that was not started with
`potash serve --allow-faults` refuses them: CommandFailed (Invalid Command Opcode). The commands are
an extension; `csd_spec.faults` has their layouts.
"""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import partial
from typing import TypeVar

import csd_spec.opcodes
import csd_spec.status
import nvme_spec.opcodes
from csd_spec.descriptors import DescriptorError
from csd_spec.faults import (
    ALL_FAULTS,
    ANY,
    FAULT_LIST_HEADER_SIZE,
    FAULT_SIZE,
    MOST_FAULTS,
    Fault,
    FaultFlags,
    FaultKind,
    FaultOperation,
    FaultReceive,
    FaultSend,
    decode_faults,
)
from csd_spec.opcodes import DWORD_SIZE, FaultOpcode
from nvme_spec.asymmetric_access import AccessState
from nvme_spec.key_value import KeyValueOpcode
from nvme_spec.status import Status
from potash.sdk.commands import Commands, encoded
from potash.sdk.errors import DeviceMisbehaved, InvalidRequest, restated

__all__ = ["Fault", "add", "clear", "describe", "listed", "parse", "read_table"]

_LIST_SIZE = FAULT_LIST_HEADER_SIZE + MOST_FAULTS * FAULT_SIZE

_OPCODES: dict[str, tuple[type[IntEnum], ...]] = {
    "io": (nvme_spec.opcodes.IoOpcode, csd_spec.opcodes.IoOpcode, KeyValueOpcode),
    "admin": (nvme_spec.opcodes.AdminOpcode, csd_spec.opcodes.AdminOpcode),
}
_ACCESSES = {
    "read": FaultFlags.READS,
    "write": FaultFlags.WRITES,
    "any": FaultFlags.READS | FaultFlags.WRITES,
}
_ADVICE = {"reset": FaultKind.RESET_RECOMMENDED, "finish": FaultKind.FINISH_RECOMMENDED}
_OPERATIONS = {"program": FaultKind.PROGRAM_FAILURE}
ACCESS_STATES = {
    state.name.lower().replace("_", "-"): state
    for state in AccessState
    if state is not AccessState.CHANGE
}
"""ANA states by the names that users give them."""
_MOMENTS = {"now": FaultFlags.AT_ONCE, "start": FaultFlags.AT_START, "job": FaultFlags(0)}
_STATUSES: tuple[type[IntEnum], ...] = (Status, csd_spec.status.VendorStatus)
_SECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""Microseconds of each unit."""

_HEADS = dict.fromkeys(("io", "admin", "media", "zone", "flash", "ana"), 2)
_HEADS |= dict.fromkeys(("interrupt", "apu", "reachability"), 1)
"""Words that name each kind of fault."""

_ONCE = (FaultKind.APU_DEATH, FaultKind.PROGRAM_FAILURE, FaultKind.ACCESS_STATE)
"""Kinds that are triggered once by default."""

_BARE = frozenset({"lost", "dnr"})
"""Words without a value."""

_MOST = (1 << 32) - 1

_Choice = TypeVar("_Choice", FaultFlags, FaultKind, AccessState)


def add(device: Commands, fault: Fault | str) -> int:
    """Inject a fault; returns the number by which it can be cleared. Raises InvalidRequest for a
    line that is not a fault, or a number that does not fit."""
    wanted = parse(fault) if isinstance(fault, str) else fault
    with restated(ValueError, to=InvalidRequest):
        data = wanted.encode()
    send = FaultSend(FaultOperation.ADD)
    return device.admin(FaultOpcode.FAULT_SEND, data_out=data, **encoded(send)).result


def listed(device: Commands) -> list[Fault]:
    """The device's faults in the order in which they were added, exhausted ones included. Raises
    DeviceMisbehaved."""
    size = min(_LIST_SIZE, device.max_transfer)
    layout = encoded(FaultReceive(size // DWORD_SIZE))
    completion = device.admin(FaultOpcode.FAULT_RECEIVE, data_in_length=size, **layout)
    with restated(DescriptorError, "the device's faults are unreadable", DeviceMisbehaved):
        return decode_faults(completion.data)


def clear(device: Commands, identifier: int = ALL_FAULTS) -> None:
    """Clear one fault, or all of them."""
    send = FaultSend(FaultOperation.CLEAR, identifier)
    device.admin(FaultOpcode.FAULT_SEND, **encoded(send))


# Text.


def parse(text: str) -> Fault:
    """The fault that a line of text describes. Raises InvalidRequest with what is wrong in it."""
    head: list[str] = []
    rest: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals and word not in _BARE:
            head.append(word)
            continue
        if key in rest:
            raise InvalidRequest(f"{text!r} says {key} twice")
        if equals and key in _BARE:
            raise InvalidRequest(f"{text!r} is not a fault: {key} has no value")
        rest[key] = value
    with restated(ValueError, f"{text!r} is not a fault", InvalidRequest):
        fault = _parse(head, rest)
        fault.encode()
        fault.check()
    if rest:
        raise InvalidRequest(f"{text!r} is not a fault: {' '.join(head)} has no {next(iter(rest))}")
    return fault


def read_table(table: Mapping[str, object]) -> list[Fault]:
    """The faults of a TOML document: [[fault]] tables with `on` and the words as keys. Raises
    InvalidRequest."""
    entries = table.get("fault", [])
    if set(table) - {"fault"} or not isinstance(entries, list):
        raise InvalidRequest("a file of faults has [[fault]] tables and nothing else")
    return [parse(_line(entry)) for entry in entries]


def describe(fault: Fault) -> str:
    """The line of text that describes a fault, as `parse` reads it."""
    words = [*_described(fault)]
    if fault.nsid:
        words.append(f"nsid={fault.nsid}")
    if fault.blocks:
        words.append(f"lba={fault.lba}..{fault.lba + fault.blocks - 1}")
    if fault.controller:
        words.append(f"controller={fault.controller - 1}")
    if fault.times != (1 if fault.kind in _ONCE else 0):
        words.append(f"count={fault.times}")
    if fault.after:
        words.append(f"after={fault.after}")
    return " ".join(words)


def _parse(head: list[str], rest: dict[str, str]) -> Fault:
    """Takes what it knows out of `rest`. Raises ValueError."""
    what = head[0] if head else ""
    if len(head) != _HEADS.get(what, -1):
        raise ValueError(
            "it begins with io OPCODE, admin OPCODE, media ACCESS, interrupt, apu, zone ACTION, "
            "ana STATE, reachability or flash program"
        )
    times = _number(rest, "count", 1 if what in ("apu", "flash", "ana") else 0)
    made = partial(Fault, times=times, after=_number(rest, "after", 0))
    match what:
        case "apu":
            return made(FaultKind.APU_DEATH, _chosen(_MOMENTS, rest.pop("at", "job"), "a moment"))
        case "reachability":
            return made(FaultKind.UNREACHABLE)
        case "flash":
            return made(_chosen(_OPERATIONS, head[1], "an operation that fails"))
        case "ana":
            return made(
                FaultKind.ACCESS_STATE,
                state=_chosen(ACCESS_STATES, head[1], "an ANA state"),
                group=_number(rest, "group", 1),
                controller=_controller(rest),
                delay=_time(rest, "at"),
                transition=_time(rest, "transition"),
                lasting=_time(rest, "for"),
            )
        case "interrupt":
            vector = _number(rest, "vector", ANY)
            return made(FaultKind.INTERRUPT, queue=vector, controller=_controller(rest))
    nsid = _number(rest, "nsid", 0)
    lba, blocks = _range(rest.pop("lba", None))
    placed = partial(made, nsid=nsid, lba=lba, blocks=blocks)
    if what == "zone":
        return placed(_chosen(_ADVICE, head[1], "an action"))
    if what == "media":
        delay = _time(rest)
        kind = FaultKind.MEDIA_DELAY if delay else FaultKind.MEDIA_ERROR
        return placed(kind, _chosen(_ACCESSES, head[1], "an access"), delay=delay)
    effects = {"status", "delay", "lost"} & set(rest)
    if len(effects) != 1:
        raise ValueError("a command gets one of status=, delay= and lost")
    flags = FaultFlags.ADMIN if what == "admin" else FaultFlags(0)
    if "status" in rest and rest.pop("dnr", None) is not None:
        flags |= FaultFlags.DNR
    status = _named(_STATUSES, rest.pop("status"), "status") if "status" in rest else 0
    delay = _time(rest)
    rest.pop("lost", None)
    opcode = ANY if head[1] == "any" else _named(_OPCODES[what], head[1], "opcode")
    queue, kind = _number(rest, "queue", ANY), FaultKind[effects.pop().upper()]
    controller = _controller(rest)
    return placed(kind, flags, opcode, queue, status=status, delay=delay, controller=controller)


def _controller(rest: dict[str, str]) -> int:
    """The controller's identifier and 1; 0 without one."""
    return _number(rest, "controller", -1) + 1


def _described(fault: Fault) -> Iterable[str]:
    match fault.kind:
        case FaultKind.APU_DEATH:
            yield "apu"
            known = fault.flags & (FaultFlags.AT_ONCE | FaultFlags.AT_START)
            yield f"at={next(name for name, flags in _MOMENTS.items() if flags == known)}"
        case FaultKind.UNREACHABLE:
            yield "reachability"
        case FaultKind.PROGRAM_FAILURE:
            yield "flash program"
        case FaultKind.RESET_RECOMMENDED | FaultKind.FINISH_RECOMMENDED:
            yield "zone"
            yield next(name for name, kind in _ADVICE.items() if kind is fault.kind)
        case FaultKind.ACCESS_STATE:
            yield "ana"
            yield next(name for name, state in ACCESS_STATES.items() if state == fault.state)
            if fault.group != 1:
                yield f"group={fault.group}"
            times = {"at": fault.delay, "transition": fault.transition, "for": fault.lasting}
            for word, time in times.items():
                if time:
                    yield f"{word}={_duration(time)}"
        case FaultKind.INTERRUPT:
            yield "interrupt"
            if fault.queue != ANY:
                yield f"vector={fault.queue}"
        case FaultKind.MEDIA_ERROR | FaultKind.MEDIA_DELAY:
            known = fault.flags & _ACCESSES["any"]
            yield "media"
            yield next(name for name, flags in _ACCESSES.items() if flags == known)
            if fault.delay:
                yield f"delay={_duration(fault.delay)}"
        case _:
            what = "admin" if fault.admin else "io"
            yield what
            yield "any" if fault.opcode == ANY else _name(_OPCODES[what], fault.opcode).lower()
            if fault.kind is FaultKind.STATUS:
                yield f"status={_name(_STATUSES, fault.status)}"
                if FaultFlags.DNR in fault.flags:
                    yield "dnr"
            elif fault.kind is FaultKind.DELAY:
                yield f"delay={_duration(fault.delay)}"
            else:
                yield "lost"
            if fault.queue != ANY:
                yield f"queue={fault.queue}"


def _line(entry: object) -> str:
    """The words of one table of a TOML file."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("on"), str):
        raise InvalidRequest('a [[fault]] says what it is about: on = "io read"')
    words = [entry["on"]]
    for key, value in entry.items():
        if key == "on" or value is False:
            continue
        if not isinstance(value, str | int):
            raise InvalidRequest(f"{key} of a [[fault]] is {value!r}, and not text or a number")
        words.append(key if value is True else f"{key}={value}")
    return " ".join(words)


def _named(names: Iterable[type[IntEnum]], text: str, what: str) -> int:
    """The number of a name of the standard's, or of a literal number."""
    wanted = text.upper().replace("-", "_")
    for kind in names:
        if wanted in kind.__members__:
            return int(kind[wanted])
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"there is no {what} {text}") from None


def _name(names: Iterable[type[IntEnum]], number: int) -> str:
    for kind in names:
        if number in kind.__members__.values():
            return kind(number).name
    return f"{number:#x}"


def _chosen(choices: Mapping[str, _Choice], text: str, what: str) -> _Choice:
    if text not in choices:
        raise ValueError(f"{text} is not {what}: {', '.join(choices)}")
    return choices[text]


def _number(rest: dict[str, str], key: str, otherwise: int) -> int:
    text = rest.pop(key, None)
    if text is None:
        return otherwise
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"{key}={text} is not a number") from None


def _range(text: str | None) -> tuple[int, int]:
    """First block and number of blocks of FIRST..LAST, FIRST+COUNT or FIRST."""
    if text is None:
        return 0, 0
    found = re.fullmatch(r"(\w+)(?:(\.\.|\+)(\w+))?", text)
    try:
        if found is None:
            raise ValueError
        first = int(found[1], 0)
        last = first if found[3] is None else int(found[3], 0)
    except ValueError:
        raise ValueError(f"lba={text} is not FIRST..LAST or FIRST+COUNT") from None
    blocks = last if found[2] == "+" else last - first + 1
    if blocks < 1:
        raise ValueError(f"lba={text} has no block in it")
    return first, blocks


def _time(rest: dict[str, str], key: str = "delay") -> int:
    """Microseconds of a time; 0 without one."""
    text = rest.pop(key, None)
    if text is None:
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    delay = round(float(found[1]) * _SECONDS[found[2]]) if found else 0
    if not 0 < delay <= _MOST:
        raise ValueError(f"{key}={text} is not a time of at most an hour, like 50ms")
    return delay


def _duration(microseconds: int) -> str:
    unit = next(name for name in ("s", "ms", "us") if microseconds % _SECONDS[name] == 0)
    return f"{microseconds // _SECONDS[unit]}{unit}"
