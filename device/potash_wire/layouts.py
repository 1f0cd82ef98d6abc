"""Compiles a record's annotations into the functions that encode and decode it."""

import struct
import sys
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from potash_wire.fields import MAY_FOLLOW, NOT_STORED, REST, At, Converted, Number, Range, Stored
from potash_wire.structures import Buffer, LayoutError


class Tail:
    """The tail of a record, up to `end`. Without a `count`, a field of it is all that is left.
    Raises ValueError for what is not there, or not as often as it is to be."""

    def __init__(self, data: Buffer, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self._end = end

    def _take(self, count: int | None, unit: int, name: str) -> Buffer:
        left = self._end - self.at
        size = left if count is None else count * unit
        if size > left:
            raise ValueError(f"{count} {name} are announced, and {left} bytes follow")
        self.at += size
        return self._data[self.at - size : self.at]

    def text(self, kind: type, count: int | None, limits: Range, name: str) -> Any:
        """The next bytes, or text."""
        found = bytes(self._take(count, 1, name))
        return _limited(found.decode() if kind is str else found, limits, name)

    def items(self, record: Any, count: int | None, limits: Range, name: str) -> Any:
        """The next records."""
        if record.is_fixed:
            found = [*record.decode_all(self._take(count, record.size, name))]
        else:
            found, data = [], memoryview(self._data)[: self._end]
            while self.at < self._end if count is None else len(found) < count:
                item, self.at = record.take(data, self.at)
                found.append(item)
        return _limited(tuple(found), limits, name)


def _limited(value: Any, limits: Range, name: str) -> Any:
    if not limits.least <= len(value) <= limits.most:
        raise ValueError(f"{limits.least} <= len({name}) <= {limits.most} is not so")
    return value


def _refuse(message: str) -> None:
    raise ValueError(message)


_SCOPE: dict[str, Any] = {
    "__name__": __name__,
    "new": tuple.__new__,
    "joined": lambda record, items: b"".join(map(record.encode, items)),
    "text": lambda value: (
        value.encode(errors="backslashreplace") if isinstance(value, str) else bytes(value)
    ),
    "refuse": _refuse,
}
"""Names of the compiled functions."""

_Item = tuple[int, str, str, str]
"""The offset of an item of the `struct`, its code, the expression of its value in a record `m`, and
its name (several, for an array) when a record is made."""


class Layout:
    """A type's annotations as a `struct` and compiled functions.

    With `general`, the layout for a tail of any length, that for a tail of `count` items.
    """

    def __init__(
        self,
        kind: Any,
        prefix: bytes,
        size: int,
        total: Number | None,
        record_of: Callable[[Any], Any],
        general: "Layout | None" = None,
        count: int = 0,
    ) -> None:
        self.name: str = getattr(kind, "__name__", str(kind))
        self.longest_tail = 0
        """Sizes in bytes; the expressions `_tails` give them."""
        self.unit = 0
        """The size of an item, of as many as `limits` say, where one field alone is the tail."""
        self.limits = Range(0, 0)
        self._items_of = ""
        self._general, self._count = general, count
        self._record_of = record_of
        self._tails: list[str] = []
        self._items: list[_Item] = []
        self.conditions: list[tuple[str, str, str]] = []
        """An expression that is true of a record `m`, one of the values that it is made of (either
        may be empty), and that of the message else."""
        self._scope = {**_SCOPE}
        self._start = self._end = 0
        """The first byte of the record whose fields are added, and the one after its last byte."""
        if prefix:
            self._add(0, f"{len(prefix)}s", repr(prefix))
        made = self._field(kind, "m") if Stored in marks_of(kind)[1] else self._record(kind, "m")
        if total:
            self._add(total.offset, total.code, "size + len(t)" if self._tails else "size")
        items = sorted(self._items)
        form, end = "<", 0
        for at, code, _, _ in items:
            if at < end:
                raise LayoutError(f"{self.name} has two fields at byte {at}")
            form += f"{at - end}x{code}"
            end = at + _size(code)
        if general:
            size = general.size + count * general.unit
        self.form = struct.Struct(f"{form}{max(0, size - end)}x")
        self.unpack = self.form.unpack
        self.size: int = self.form.size
        self.is_fixed = not self._tails
        names = ", ".join(([] if self.is_fixed else ["tail"]) + [names for *_, names in items])
        self._scope |= {"pack": self.form.pack, "size": self.size}
        packed = f"pack({', '.join(value for _, _, value, _ in items)})"
        if self._tails:
            packed = f"((t := {' + '.join(self._tails)}), {packed} + t)[1]"
        self.pack = self._function("m", packed, 0)
        self.make = self._function(names, made, 1)
        self.plain: Callable[[Any], Any] | None = None
        """Makes a record that has just the values of the `struct`, whatever they are."""
        values = (f", ({names},))", f"({names}, )")
        if self.is_fixed and not self.conditions and made.endswith(values):
            self.plain = partial(tuple.__new__, get_origin(kind) or kind)
        self.size_of: Callable[[Any], int] | None = None
        """The bytes of a record, where a layout may be compiled for just these."""
        if len(self._tails) != 1 or total:
            self.unit = 0
        if self.unit:
            self.size_of = self._function("m", f"{self.size} + {self.unit} * {self._items_of}")

    def _function(self, parameters: str, made: str, column: int | None = None) -> Any:
        """A function that gives the value of `made`, once all conditions of a column are true."""
        checks = [
            f"({one[column]} or refuse({one[2]}))"
            for one in self.conditions
            if column is not None and one[column]
        ]
        checked = f"{made} if {' and '.join(checks)} else None" if checks else made
        return eval(f"lambda {parameters}: {checked}", self._scope)

    def _require(self, condition: str, path: str, value: str) -> None:
        """Add a condition of a value: its expressions in a record `m`, and when one is made."""
        written, read = (condition.format(one) if one else "" for one in (path, value))
        message = f"{condition.format(path.replace('m.', ''))} is not so"
        self.conditions.append((written, read, repr(message)))

    def _add(self, offset: int | None, code: str, value: str, count: int = 0) -> str:
        """Add an item; the expression of its value when a record is made."""
        at = self._end if offset is None else self._start + offset
        name = f"v{len(self._items)}"
        names = "".join(f"{name}_{i}, " for i in range(count)) or name
        if count:
            code, value = f"{count}{code}", f"*{value}"
        self._items.append((at, code, value, names.rstrip(", ")))
        self._end = at + _size(code)
        return f"({names})" if count else name

    def _record(self, kind: Any, path: str) -> str:
        """Add a record's fields; the expression that makes it."""
        if get_origin(kind) is tuple:
            hints = enumerate(get_args(kind))
            return f"({''.join(self._field(hint, f'{path}[{i}]') + ', ' for i, hint in hints)})"
        start, found = self._start, hints_of(kind)
        values = {name: self._field(found[name], f"{path}.{name}") for name in kind.__match_args__}
        if record := getattr(kind, "RECORD", None):
            self._end = max(self._end, start + record.least_size)
        if issubclass(kind, tuple):
            defaults = kind._field_defaults
        else:
            # Without the module dataclasses, which takes longer to import than all of the SDK.
            declared = kind.__dataclass_fields__
            defaults = {name: field.default for name, field in declared.items()}
        fields = ", ".join(value or self._known(defaults[name]) for name, value in values.items())
        made = f"{self._known(kind)}({fields})"
        if issubclass(kind, tuple):
            made = f"new({self._known(kind)}, ({fields},))"
        if hasattr(kind, "validate"):
            self._require("{}.validate() is None", path, "")
            made = f"((r := {made}).validate() or r)"
        return made

    def _field(self, hint: Any, path: str) -> str:
        """Add a field; the expression of its value, empty where it is not stored."""
        base, by_kind = marks_of(hint)
        offset = by_kind.get(At)
        if NOT_STORED in by_kind:
            return ""
        if Converted in by_kind:
            stored, store, load = by_kind.pop(Converted)
            hint = Annotated[(stored, *by_kind.values())]
            return f"{self._known(load)}({self._field(hint, f'{self._known(store)}({path})')})"
        if by_kind.keys() & {MAY_FOLLOW, REST, Number}:
            return self._follow(base, path, by_kind)
        if Stored not in by_kind:
            start, self._start = self._start, self._end if offset is None else self._start + offset
            self._end = self._start
            made = self._record(base, path)
            self._start = start
            return made
        code, count = by_kind[Stored]
        value = self._add(offset, code, path, count)
        if Range in by_kind and by_kind[Range] != _range(code):
            least, most = by_kind[Range]
            checked = "min({0}) <= max({0})" if count else "{}"
            self._require(f"{least} <= {checked} <= {most}", path, value)
        if base is bool:
            self.conditions.append(("", f"{value} <= 1", repr(f"{path[2:]} <= 1 is not so")))
            return f"{value} == 1"
        return (
            f"{self._known(base)}({value})" if issubclass(get_origin(base) or base, Enum) else value
        )

    def _follow(self, base: Any, path: str, by_kind: dict[Any, Any]) -> str:
        """Add a field of the tail; the expression of its value."""
        kind = base if base in (str, bytes) else get_args(base)[0]
        is_text, is_optional = kind is base, MAY_FOLLOW in by_kind
        limits = by_kind.get(Range, Range(0, 1 if is_optional else sys.maxsize))
        items = f"(() if {path} is None else ({path},))" if is_optional else path
        count, size = f"len({items})", 1 if kind is bytes else 4
        if is_text:
            followed = f"text({path})"
        else:
            record = self._record_of(kind)
            followed, size = f"joined({self._known(record)}, {items})", record.size
        if kind is bytes or (not is_text and record.is_fixed):
            self.unit, self.limits, self._items_of = size, limits, count
        self.longest_tail += limits.most * size
        number = "None"
        if Number in by_kind:
            code, offset = by_kind[Number]
            end, value = self._end, f"len({followed})" if is_text else count
            number = self._add(offset, code, str(self._count) if self._general else value)
            self._end = self._end if offset is None else end
        if Range in by_kind:
            self._require(f"{limits.least} <= {{}} <= {limits.most}", count, "")
        if self._general:
            made = self._short(kind, path, is_optional)
            if number != "None":
                message = f"f'{{{number}}} {path[2:]} are announced, and another number follows'"
                self.conditions.append(("", f"{number} == {self._count}", message))
        else:
            self._tails.append(followed)
            what = kind.__name__ if is_text else self._known(record)
            method = "text" if is_text else "items"
            made = f"tail.{method}({what}, {number}, {self._known(limits)}, {path[2:]!r})"
        return f"next(iter({made}), None)" if is_optional else made

    def _short(self, kind: Any, path: str, is_optional: bool) -> str:
        """Add the items of a short tail; the expression of them all."""
        assert self._general
        start, end = self._start, self._end
        self._start = self._end = self._general.size
        made = self._add(None, f"{self._count}s", path) if kind is bytes else ""
        for i in range(0 if kind is bytes else self._count):
            self._start = self._end = self._general.size + i * self.unit
            made += self._field(kind, path if is_optional else f"{path}[{i}]") + ", "
        self._start, self._end = start, end
        return made if kind is bytes else f"({made})"

    def _known(self, value: Any) -> str:
        """The name of a type, a record or a default in the functions."""
        name = f"known_{len(self._scope)}"
        self._scope[name] = value
        return name


def marks_of(hint: Any) -> tuple[Any, dict[Any, Any]]:
    """The annotated type, and the annotations: each by its type, a `Mark` by itself."""
    base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return base, {mark if isinstance(mark, Enum) else type(mark): mark for mark in marks}


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _size(code: str) -> int:
    return struct.calcsize(f"<{code}")


def _range(code: str) -> Range:
    """The values of a number with the format `code`."""
    values = 1 << 8 * _size(code)
    return Range(-values // 2, values // 2 - 1) if code.islower() else Range(0, values - 1)
