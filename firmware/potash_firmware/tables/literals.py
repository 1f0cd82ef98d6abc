"""Values of a plan as Arrow's scalars, of the type that they are compared with."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from csd_spec.table_plans import Value, ValueType
from potash_firmware.tables.errors import Refused

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of a unit of Arrow's."""


def literal(term: Value, kind: Any, compared: bool = False) -> Any:
    """The scalar of a value that meets values of the type `kind`, if that is known. Raises Refused.

    A text that meets dates, times or decimals is read as one, and a number that meets decimals as a
    decimal. An integer that is `compared` takes the type of the integers that it meets.
    """
    value = term.value
    if value is None:
        return pa.scalar(None, kind)
    meant = term.type or _meant(value, kind)
    try:
        match meant:
            case ValueType.DATE:
                if len(str(value)) > 10 and term.type is None:
                    return _timestamp(str(value), pa.timestamp("s"))
                return pa.scalar(date.fromisoformat(str(value)))
            case ValueType.TIME:
                return _time(str(value), kind)
            case ValueType.TIMESTAMP:
                return _timestamp(str(value), kind)
            case ValueType.DURATION:
                return _duration(int(value), kind)
            case ValueType.DECIMAL:
                return _decimal(value)
            case ValueType.BINARY:
                return pa.scalar(bytes.fromhex(str(value)))
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
        raise Refused(f"{str(value)[:80]!r} is no {meant}") from None
    return _number_or_text(value, kind, compared)


def _meant(value: Any, kind: Any) -> ValueType | None:
    if kind is None or isinstance(value, bool):
        return None
    if pa.types.is_decimal(kind):
        return ValueType.DECIMAL
    if isinstance(value, str):
        if pa.types.is_date(kind):
            return ValueType.DATE
        if pa.types.is_time(kind):
            return ValueType.TIME
        if pa.types.is_timestamp(kind):
            return ValueType.TIMESTAMP
    return None


def _number_or_text(value: Any, kind: Any, compared: bool) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if kind is not None and pa.types.is_integer(kind) and (compared or kind == pa.uint64()):
            try:
                return pa.scalar(value, kind)
            except (pa.ArrowException, OverflowError):
                pass  # it is outside of the range of this type
        for each in (pa.int64(), pa.uint64()):
            try:
                return pa.scalar(value, each)
            except (pa.ArrowException, OverflowError):
                pass
        return _decimal(value)
    if isinstance(value, str) and kind is not None and _is_text(kind):
        return pa.scalar(value.encode() if pa.types.is_fixed_size_binary(kind) else value, kind)
    return pa.scalar(value)


def _is_text(kind: Any) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _decimal(value: Any) -> Any:
    number = Decimal(repr(value) if isinstance(value, float) else value)
    if not number.is_finite():
        return pa.scalar(float(number))
    return pa.scalar(number)


_MOMENT = re.compile(r"(.*\d\d:\d\d:\d\d)[.,](\d{1,9})(.*)")


def _split(text: str) -> tuple[str, int]:
    """A text without a fraction of seconds, and this in nanoseconds, which Python does not have."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return text, 0
    before, fraction, after = found.groups()
    return before + after, int(fraction.ljust(9, "0"))


def _timestamp(text: str, kind: Any) -> Any:
    whole, nanoseconds = _split(text)
    moment = datetime.fromisoformat(whole)
    zone = kind.tz if kind is not None and pa.types.is_timestamp(kind) else None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    elif zone is None:
        zone = "UTC"
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    number = (since.days * 86_400 + since.seconds) * 10**9 + nanoseconds
    unit = kind.unit if kind is not None and pa.types.is_timestamp(kind) else "us"
    return _scalar(number, unit, lambda unit: pa.timestamp(unit, zone))


def _time(text: str, kind: Any) -> Any:
    whole, nanoseconds = _split(text)
    moment = time.fromisoformat(whole)
    number = (moment.hour * 3600 + moment.minute * 60 + moment.second) * 10**9 + nanoseconds
    unit = kind.unit if kind is not None and pa.types.is_time(kind) else "us"
    return _scalar(
        number, unit, lambda unit: (pa.time32 if unit in ("s", "ms") else pa.time64)(unit)
    )


def _duration(number: int, kind: Any) -> Any:
    unit = kind.unit if kind is not None and pa.types.is_duration(kind) else "ns"
    return _scalar(number, unit, pa.duration)


def _scalar(number: int, unit: str, kind: Any) -> Any:
    """The scalar of a number of nanoseconds, in this unit or a finer one that has just this."""
    units = list(_UNITS)
    finer = units[units.index(unit) :]
    unit = next(each for each in finer if number % _UNITS[each] == 0)
    return pa.scalar(number // _UNITS[unit], kind(unit))
