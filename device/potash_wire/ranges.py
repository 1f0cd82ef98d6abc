"""Checks of records that a user makes, by the annotations of their fields."""

from typing import Any, get_origin

from potash_wire.fields import Range
from potash_wire.layouts import hints_of, marks_of


def require_ranges(record: Any, error: type[Exception], prefix: str = "") -> None:
    """Raise `error` unless all numbers of a record, and of the named tuples and lists in it, are in
    the ranges of their annotations. Messages begin with `prefix`."""
    declared: Any = type(record)
    for name, hint in hints_of(declared).items():
        value = getattr(record, name)
        kind, marks = marks_of(hint)
        what = f"{prefix}{name}"
        if kind is bool and type(value) is not bool:
            raise error(f"{what} is {value!r:.40}; it must be true or false")
        if hasattr(kind, "_fields"):
            if not isinstance(value, kind):
                raise error(
                    f"{what} must be {len(kind._fields)} numbers: {', '.join(kind._fields)}"
                )
            require_ranges(value, error, f"{what}'s ")
        if Range not in marks:
            continue
        (least, most), several = marks[Range], get_origin(kind) is tuple
        if several and not isinstance(value, tuple):
            raise error(f"{what} is {value!r:.40}; it must be a list of whole numbers")
        if not several and isinstance(value, tuple):
            raise error(f"{what} is a list; it must be one whole number")
        for number in value if several else (value,):
            if type(number) is not int or not least <= number <= most:
                verb = "has" if several else "is"
                raise error(
                    f"{what} {verb} {number!r:.40}; it must be a whole number, {least} to {most}"
                )
