"""Named tuples that know how they are stored."""

from collections import _tuplegetter  # type: ignore[attr-defined]  # as named tuples have them
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from potash_wire.records import Record, WireError
from potash_wire.structures import Buffer

if TYPE_CHECKING:
    _Tuple = object  # a field may be called `index` or `count`, as methods of a tuple are
else:
    _Tuple = tuple


def compiled(parameters: str, expression: str, **scope: Any) -> Callable[..., Any]:
    """A function of parameters that gives an expression's value; `scope` are its other names."""
    return eval(f"lambda {parameters}: {expression}", {"__name__": __name__, **scope})  # type: ignore[no-any-return]


class Value(_Tuple):
    """A named tuple. Its subclasses are made in a sixth of the time that those of `NamedTuple` are
    made in, for which every program that imports a specification would wait."""

    if TYPE_CHECKING:  # else these would be fields
        _fields: ClassVar[tuple[str, ...]]
        _field_defaults: ClassVar[dict[str, Any]]

        def __eq__(self, other: object) -> bool: ...
        def __hash__(self) -> int: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __getitem__(self, index: Any) -> Any: ...
    else:
        _fields, _field_defaults = (), {}

    def __init_subclass__(cls) -> None:
        names = [*cls.__annotations__]
        own = {name: vars(cls)[name] for name in names if name in vars(cls)}
        cls._field_defaults = {**cls._field_defaults, **own}
        cls._fields = cls.__match_args__ = (*cls._fields, *names)  # type: ignore[attr-defined, misc]
        for index, name in enumerate(cls._fields):
            setattr(cls, name, _tuplegetter(index, None))

    def __new__(cls, *values: Any, **named: Any) -> Self:
        defaults = {f"_{name}": value for name, value in cls._field_defaults.items()}
        parameters = (f"{name}=_{name}" if f"_{name}" in defaults else name for name in cls._fields)
        made = f"_new(_cls, ({', '.join(cls._fields)},))"
        new = compiled(f"_cls, {', '.join(parameters)}", made, _new=tuple.__new__, **defaults)
        new.__qualname__ = cls.__name__  # for its TypeErrors
        cls.__new__ = new  # type: ignore[method-assign]  # compiled when it is first used
        return new(cls, *values, **named)  # type: ignore[no-any-return]

    _make = classmethod(tuple.__new__)  # type: ignore[var-annotated]

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**self._asdict(), **changes})

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({fields})"


@dataclass_transform(frozen_default=True)
class Packed(Value):
    """A named tuple whose annotations say how it is stored; `RECORD` is what does it.

    A subclass's options are those of `Record`; it inherits the error.
    """

    if TYPE_CHECKING:
        RECORD: ClassVar[Record[Any]]
        _error: ClassVar[type[Exception]]
    else:
        _error = WireError

    def __init_subclass__(cls, error: type[Exception] | None = None, **options: Any) -> None:
        super().__init_subclass__()
        cls._error = error or cls._error
        cls.RECORD = Record(cls, error=cls._error, **options)
        if cls._fields and getattr(cls.decode, "__func__", 0) is vars(Packed)["decode"].__func__:
            cls.decode = cls.RECORD.decode  # type: ignore[method-assign]  # one call less

    def encode(self) -> bytes:
        """The bytes. Raises the class's error for what does not fit."""
        return self.RECORD.encode(self)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """The value in exactly these bytes. Raises the class's error."""
        return cls.RECORD.decode(data)  # type: ignore[no-any-return]

    @classmethod
    def decode_head(cls, data: Buffer) -> Self:
        """The value at the beginning of the bytes. Raises the class's error."""
        return cls.RECORD.decode_from(data)  # type: ignore[no-any-return]

    @classmethod
    def decode_list(cls, data: Buffer) -> Iterator[Self]:
        """Values one after another. Raises the class's error, perhaps after some of them."""
        return cls.RECORD.decode_all(data)
