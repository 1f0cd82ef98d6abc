"""Varied parameters: knobs by name, and the cores of all combinations of their values.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", section 2.2 (the architecture's
template and its parameters).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import NamedTuple

from potash.sdk.errors import restated
from potash.units import parse_size
from potash_device.vta.config import Config, ConfigError
from potash_device.vta.timing.parameters import ParameterError, Parameters

MOST_CORES = 10_000
"""Cores of one sweep: more are a slip of the hand."""


class SpaceError(ValueError):
    """An impossible variation; the message gives the reason."""


class Core(NamedTuple):
    """A core that is tried: what was varied of it, and what came of that.

    `reason` says why there is no such core; there is one where it is empty.
    """

    varied: tuple[tuple[str, float], ...]
    config: Config
    parameters: Parameters
    reason: str = ""


class Knob(NamedTuple):
    """Something that can be varied: how a value is read, and the fields of `Config` that it
    sets."""

    read: Callable[[str], float]
    fields: Callable[[Config, float], Mapping[str, int]]


def _log2(value: float, what: str) -> int:
    log = math.log2(value) if value > 0 else math.nan
    if not log.is_integer():
        raise SpaceError(f"{what} {value:g} is not a power of two")
    return int(log)


def _number(text: str, *, whole: bool = True) -> float:
    try:
        return int(text, 0) if whole else float(text)
    except ValueError:
        raise SpaceError(f"{text!r} is not a {'whole ' if whole else ''}number") from None


def _bytes(text: str) -> float:
    with restated(ValueError, to=SpaceError):
        return parse_size(text)


def _factor(text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise SpaceError(f"{text!r} is not a factor; write 1/2 or 2") from None


def _buffers(base: Config, value: float) -> Mapping[str, int]:
    log = _log2(value, "a factor of")
    names = [f"log_{name}_buff_size" for name in ("inp", "wgt", "acc")]
    return {name: getattr(base, name) + log for name in names}


def _shape(*names: str, what: str = "") -> Callable[[Config, float], Mapping[str, int]]:
    what = what or names[0]
    return lambda _base, value: {f"log_{name}": _log2(value, f"{what} of") for name in names}


def _buffer(name: str) -> Callable[[Config, float], Mapping[str, int]]:
    return lambda _base, value: {f"log_{name}_buff_size": _log2(value, f"a {name} buffer of")}


KNOBS: Mapping[str, Knob] = {
    "block": Knob(_number, _shape("block_in", "block_out", what="a block")),
    "block_in": Knob(_number, _shape("block_in")),
    "block_out": Knob(_number, _shape("block_out")),
    "batch": Knob(_number, _shape("batch")),
    "buffers": Knob(_factor, _buffers),
    "uop": Knob(_bytes, _buffer("uop")),
    "inp": Knob(_bytes, _buffer("inp")),
    "wgt": Knob(_bytes, _buffer("wgt")),
    "acc": Knob(_bytes, _buffer("acc")),
}
"""Knobs of a core's configuration; further knobs are the timing model's parameters."""

PARAMETERS = tuple(field.name for field in fields(Parameters))

DEFAULT = ("block=8,16,32", "buffers=1/4,1/2,1", "bus_bytes=4,8,16")
"""Default variations: block size, buffers, bandwidth."""

Axis = tuple[str, tuple[float, ...]]


def axis(text: str) -> Axis:
    """`NAME=VALUE,VALUE`. Raises SpaceError."""
    name, equals, values = text.partition("=")
    if name not in KNOBS and name not in PARAMETERS:
        raise SpaceError(f"{name!r} is none of {', '.join([*KNOBS, *PARAMETERS])}")
    if not equals or not all(values.split(",")):
        raise SpaceError(f"{text!r} is not NAME=VALUE,VALUE")
    if name in KNOBS:
        found = [KNOBS[name].read(value) for value in values.split(",")]
    else:
        found = [_number(value, whole=name != "clock") for value in values.split(",")]
    return name, tuple(dict.fromkeys(found))


def cores(axes: Sequence[Axis], base: Config, parameters: Parameters) -> Iterator[Core]:
    """Every core that the axes span. Raises SpaceError, at once, for too many or a wrong value."""
    names = [name for name, _ in axes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SpaceError(f"{twice} is varied twice")
    if (count := math.prod(len(values) for _, values in axes)) > MOST_CORES:
        raise SpaceError(f"these are {count} cores, and {MOST_CORES} are the most")
    for name, values in axes:
        for value in values if name in KNOBS else ():
            KNOBS[name].fields(base, value)
    return (_core(dict(zip(names, values, strict=True)), base, parameters)
            for values in itertools.product(*(values for _, values in axes)))  # fmt: skip


def _core(varied: Mapping[str, float], base: Config, parameters: Parameters) -> Core:
    said = tuple(varied.items())
    try:
        changed: dict[str, int] = {}
        for name, value in varied.items():
            changed |= KNOBS[name].fields(base, value) if name in KNOBS else {}
        clock = {name: value for name, value in varied.items() if name not in KNOBS}
        timed = replace(parameters, **clock)  # type: ignore[arg-type]  # whole but for the clock
        return Core(said, replace(base, **changed), timed)
    except (ConfigError, ParameterError) as error:
        return Core(said, base, parameters, str(error))
