"""Records: named tuples, dataclasses and plain tuples, stored as their annotations say.

Everything is little endian. Fields follow each other without padding, unless `At` says otherwise;
bytes that no field names are zero, and are ignored when a record is decoded.

    class Extent(NamedTuple):
        nsid: U32
        first: Annotated[U64, At(8)]
        length: Annotated[U64, Range(1, 1 << 40)]

    extents = Record(Extent)
    extents.decode(extents.encode(Extent(1, 0, 512)))

A method `validate` of the record, if it has one, checks what ranges cannot say; it raises
ValueError.
"""

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from potash_wire.structures import Buffer, LayoutError

T = TypeVar("T")


class WireError(ValueError, struct.error):
    """A value does not fit in its field, or bytes are not what they should be."""


class Range(NamedTuple):
    """Least and greatest integer, or number of items."""

    least: int
    most: int


class Stored(NamedTuple):
    """How a field is stored, as `struct` writes it; a tuple has `items` of these."""

    code: str
    items: int = 0


class At(int):
    """The offset of a field."""


class Number(NamedTuple):
    """How and where the number of records in a tuple, or of bytes of a text, is stored.

    They follow at the end, in the order of the fields.
    """

    code: str
    offset: int | None = None


class Converted(NamedTuple):
    """A field's value is stored as another one of the type `stored`."""

    stored: Any
    store: Callable[[Any], Any]
    load: Callable[[Any], Any]
    """Raises ValueError for what `store` does not give."""


def pairs_of(read: Callable[[str], Any]) -> Converted:
    """A mapping that is stored as a text `name=value,…`; `read` makes a value of its text."""

    def load(text: str) -> dict[str, Any]:
        pairs = (item.partition("=") for item in filter(None, text.split(",")))
        return {name: read(value) for name, _, value in pairs}

    return Converted(str, lambda pairs: ",".join(f"{k}={v}" for k, v in pairs.items()), load)


MAY_FOLLOW = "may follow"
"""A record, or None: it follows at the end unless it is None."""
NOT_STORED = "not stored"
"""A field with a default."""

U8 = Annotated[int, Range(0, 0xFF), Stored("B")]
U16 = Annotated[int, Range(0, 0xFFFF), Stored("H")]
U32 = Annotated[int, Range(0, 0xFFFF_FFFF), Stored("I")]
U64 = Annotated[int, Range(0, (1 << 64) - 1), Stored("Q")]
I32 = Annotated[int, Range(-(1 << 31), (1 << 31) - 1), Stored("i")]
I64 = Annotated[int, Range(-(1 << 63), (1 << 63) - 1), Stored("q")]
BOOL = Annotated[bool, Stored("B")]
"""A byte, which is 0 or 1."""


class Record(Generic[T]):
    """How records of a type are stored, in at least `size` bytes, of which `first` is the first.

    The annotations are evaluated when the record is first used.
    """

    def __init__(self, kind: type[T], *, first: int | None = None, size: int = 0) -> None:
        self.kind = kind
        self._first = first
        self._least_size = size

    @cached_property
    def size(self) -> int:
        """Bytes of a record, without those that follow it."""
        return self._layout.form.size

    @property
    def largest(self) -> int:
        """Bytes of the largest record."""
        return self.size + self._layout.following

    def encode(self, record: T) -> bytes:
        """The bytes of a record. Raises WireError."""
        try:
            data: bytes = self._layout.pack(record)
        except (struct.error, ValueError) as error:
            raise WireError(f"{record} does not fit: {error}") from None
        return data

    def decode(self, data: Buffer) -> T:
        """The record in exactly these bytes. Raises WireError."""
        layout = self._layout
        try:
            if len(data) == layout.size:
                made: T = layout.make(_NOTHING, *layout.unpack(data))
            else:
                tail = _Tail(data, layout.size)
                made = layout.make(tail, *layout.form.unpack_from(data))
                tail.end()
            if layout.fits and not layout.fits(made):
                layout.refuse(made)
        except (struct.error, ValueError) as error:
            raise WireError(f"{len(data)} bytes are no {layout.name}: {error}") from None
        return made

    def decode_from(self, data: Buffer, offset: int = 0) -> T:
        """The record at `offset`; what is behind it is ignored. Raises WireError."""
        return self.decode(memoryview(data)[offset : offset + self.size])

    def decode_all(self, data: Buffer) -> Iterator[T]:
        """Records that follow each other. Raises struct.error, as WireError is, perhaps after some
        of them."""
        layout = self._layout
        if layout.plain:
            return map(layout.plain, layout.form.iter_unpack(data))
        return self._each(data)

    def _each(self, data: Buffer) -> Iterator[T]:
        layout = self._layout
        try:
            for values in layout.form.iter_unpack(data):
                made: T = layout.make(_NOTHING, *values)
                if layout.fits and not layout.fits(made):
                    layout.refuse(made)
                yield made
        except (struct.error, ValueError) as error:
            raise WireError(f"{len(data)} bytes are not all {layout.name}: {error}") from None

    @cached_property
    def _layout(self) -> "_Layout":
        return _Layout(self.kind, self._first, self._least_size)


_Item = tuple[int, str, str, str]
"""The offset of an item of the `struct`, its code, the expression of its value in a record `m`, and
its name (several, for an array) when a record is made."""


class _Layout:
    """What follows from the annotations of a type: the `struct`, and compiled functions."""

    def __init__(self, kind: Any, first: int | None, size: int) -> None:
        self.name: str = getattr(kind, "__name__", str(kind))
        self.following = 0
        """Bytes that follow, at most; the expressions `_tails` give them."""
        self._tails: list[str] = []
        self._items: list[_Item] = []
        self._conditions: list[str] = []
        self._scope: dict[str, Any] = {
            "__name__": __name__,
            "boolean": _boolean,
            "joined": _joined,
            "text": _text,
        }
        self._start = self._end = 0
        """Of the record whose fields are added: its first byte, and the one behind the last."""
        if first is not None:
            self._add(0, "B", str(first))
        made = self._record(kind, "m")
        if hasattr(kind, "validate"):
            self._conditions.append("m.validate() is None")
        items = sorted(self._items)
        form, end = "<", 0
        for at, code, _, _ in items:
            if at < end:
                raise LayoutError(f"{self.name} has two fields at byte {at}")
            form += f"{at - end}x{code}"
            end = at + _size(code)
        self.form = struct.Struct(f"{form}{max(0, size - end)}x")
        names = "".join(f", {names}" for *_, names in items)
        self.make = self._function(f"tail{names}", made)
        all_stored = len(items) == len(getattr(kind, "_fields", ()))
        is_plain = made.endswith(f"({names[2:]})") and all_stored and not self._conditions
        self.plain = kind._make if is_plain else None
        """Makes a named tuple that has just the values of the `struct`, whatever they are."""
        self.unpack, self.size = self.form.unpack, self.form.size
        self._scope |= {"pack": self.form.pack, "refuse": self.refuse}
        packed = " + ".join([f"pack({', '.join(value for _, _, value, _ in items)})", *self._tails])
        condition = " and ".join(self._conditions)
        self.fits = self._function("m", condition) if condition else None
        self.pack = self._function("m", f"{packed} if {condition or True} else refuse(m)")

    def refuse(self, record: Any) -> None:
        """Raise ValueError for a record whose values are not all in their ranges."""
        wrong = (one for one in self._conditions if not self._function("m", one)(record))
        raise ValueError(f"{next(wrong).replace('m.', '')} is not so")

    def _function(self, parameters: str, expression: str) -> Callable[..., Any]:
        made: Callable[..., Any] = eval(f"lambda {parameters}: {expression}", self._scope)
        return made

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
        found = get_type_hints(kind, include_extras=True)
        values = [
            (name, self._field(found[name], f"{path}.{name}")) for name in kind.__match_args__
        ]
        # By position as far as possible, which is quicker.
        named = next((i for i, (_, value) in enumerate(values) if not value), len(values))
        arguments = [value for _, value in values[:named]]
        arguments += [f"{name}={value}" for name, value in values[named:] if value]
        return f"{self._known(kind)}({', '.join(arguments)})"

    def _field(self, hint: Any, path: str) -> str:
        """Add a field; the expression of its value, empty where it is not stored."""
        base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        by_kind = {type(mark): mark for mark in marks}
        offset = by_kind.get(At)
        if NOT_STORED in marks:
            return ""
        if Converted in by_kind:
            stored, store, load = by_kind.pop(Converted)
            hint = Annotated[(stored, *by_kind.values())]
            return f"{self._known(load)}({self._field(hint, f'{self._known(store)}({path})')})"
        if MAY_FOLLOW in marks or Number in by_kind:
            return self._tail(base, path, by_kind)
        if Stored not in by_kind:
            start, self._start = self._start, self._end if offset is None else self._start + offset
            self._end = self._start
            made = self._record(base, path)
            self._start = start
            return made
        code, count = by_kind[Stored]
        value = self._add(offset, code, path, count)
        if Range in by_kind:
            limits = by_kind[Range]
            if limits != _range(code):
                values = f"min({path}) <= max({path})" if count else path
                self._conditions.append(f"{limits.least} <= {values} <= {limits.most}")
        if base is bool:
            return f"boolean({value})"
        return (
            f"{self._known(base)}({value})" if issubclass(get_origin(base) or base, Enum) else value
        )

    def _tail(self, base: Any, path: str, by_kind: dict[type, Any]) -> str:
        """Add a field that follows the others; the expression of its value."""
        least, most = by_kind.get(Range, (0, 1))
        if base is str:
            record, size, followed = "None", 4, f"text({path})"
        else:
            items: Record[Any] = Record(get_args(base)[0])
            record, size = self._known(items), items.size
            followed = f"joined({record}, {path})"
        self._tails.append(f"({followed} if {path} else b'')")
        self.following += most * size
        if Number not in by_kind:
            return f"tail.optional({record})"
        self._conditions.append(f"{least} <= len({path}) <= {most}")
        code, offset = by_kind[Number]
        end = self._end
        count = self._add(offset, code, f"len({followed if base is str else path})")
        self._end = self._end if offset is None else end
        return f"tail.take({count}, {record}, {path[2:]!r})"

    def _known(self, kind: Any) -> str:
        """The name of a type, or a record, in the functions."""
        name = f"known_{len(self._scope)}"
        self._scope[name] = kind
        return name


def _size(code: str) -> int:
    return struct.calcsize(f"<{code}")


def _range(code: str) -> Range:
    """What a number that is stored so can be."""
    values = 1 << 8 * _size(code)
    return Range(-values // 2, values // 2 - 1) if code.islower() else Range(0, values - 1)


def _boolean(value: int) -> bool:
    if value > 1:
        raise ValueError(f"{value} is neither true nor false")
    return bool(value)


def _joined(record: Record[Any], items: Any) -> bytes:
    return b"".join(map(record.encode, items if type(items) is tuple else (items,)))


def _text(value: str) -> bytes:
    return value.encode(errors="backslashreplace")


class _Tail:
    """What follows a record's own bytes."""

    def __init__(self, data: Buffer, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, count: int, record: Record[Any] | None, name: str) -> Any:
        """The next records, or without one a text of so many bytes. Raises ValueError."""
        data = self._data[self._at : self._at + count * (record.size if record else 1)]
        if len(data) != count * (record.size if record else 1):
            raise ValueError(f"{count} {name} are announced, and {len(data)} bytes follow")
        self._at += len(data)
        return tuple(record.decode_all(data)) if record else bytes(data).decode()

    def optional(self, record: Record[Any]) -> Any:
        """The next record, None at the end. Raises ValueError."""
        return None if self._at == len(self._data) else self.take(1, record, "record")[0]

    def end(self) -> None:
        """Raise ValueError for bytes that are left."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes are left")


class _Nothing(_Tail):
    """No bytes, which is quicker to find."""

    def take(self, count: int, record: Record[Any] | None, name: str) -> Any:
        return super().take(count, record, name) if count else () if record else ""

    def optional(self, record: Record[Any]) -> Any:
        return None


_NOTHING = _Nothing(b"", 0)
