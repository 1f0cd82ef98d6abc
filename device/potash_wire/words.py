"""The fields of commands, in their dwords, each of which has a name.

class GetFeatures(CommandDwords):
    fid: int = bits(10, 0, 7)
    select: int = bits(10, 8, 10, default=0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

from potash_wire.packed import Value, compiled
from potash_wire.structures import Word, WordField, field

__all__ = ["Cdws", "CommandDwords", "Word", "WordField", "bits", "field", "put"]


def put(value: int, low: int, width: int) -> int:
    """`value` in a field of `width` bits from bit `low`. Raises ValueError when it does not fit."""
    if not 0 <= value < 1 << width:
        raise ValueError(f"{value:#x} does not fit in bits {low + width - 1}:{low}")
    return int(value) << low


Cdws = tuple[int, int, int, int, int, int]
"""Command dwords 10 to 15."""

_REQUIRED = object()
_DWORD = 0xFFFF_FFFF


def _refuse(name: str, value: int, width: int) -> None:
    raise ValueError(f"{name}: {value} does not fit in {width} bits")


class _Bits(NamedTuple):
    start: int
    width: int
    default: Any

    @property
    def dwords(self) -> range:
        """The dwords that contain bits of the field."""
        return range(self.start // 32, -(-(self.start + self.width) // 32))


def bits(dword: int, low: int, high: int | None = None, *, default: Any = _REQUIRED) -> Any:
    """A field: bits `high`:`low` of command dword `dword` (and, beyond bit 31, of those after it),
    or the one bit `low`. One whose default is a bool is a bool."""
    return _Bits(32 * dword + low, (high or low) - low + 1, default)


@dataclass_transform(frozen_default=True, field_specifiers=(bits,))
class Dwords(Value):
    """The fields of one command, which a subclass declares."""

    if TYPE_CHECKING:
        _bits: ClassVar[dict[str, _Bits]]
        _functions: ClassVar[tuple[Callable[..., Any], Callable[..., Any]] | None]
        """Encodes and decodes, once it is compiled."""

    def __init_subclass__(cls) -> None:
        cls._bits = {name: one for name, one in vars(cls).items() if isinstance(one, _Bits)}
        for name, one in cls._bits.items():
            if one.default is _REQUIRED:
                delattr(cls, name)
            else:
                setattr(cls, name, one.default)
        super().__init_subclass__()
        cls._functions = None

    @classmethod
    def _stored(cls) -> dict[int, str]:
        """The expressions of the dwords that have fields, given these."""
        made: dict[int, str] = {}
        for name, one in cls._bits.items():
            for dword in one.dwords:
                shift = one.start - 32 * dword
                part = f"({name} {'<<' if shift >= 0 else '>>'} {abs(shift)})"
                part += f" & {_DWORD}" if len(one.dwords) > 1 else ""
                made[dword] = f"{made[dword]} | {part}" if dword in made else part
        return made

    @classmethod
    def _encoder(cls, made: str) -> Callable[..., Any]:
        """A function of the fields that gives an expression; ValueError for what does not fit."""
        fits = " and ".join(
            f"(0 <= {name} < {1 << one.width} or refuse({name!r}, {name}, {one.width}))"
            for name, one in cls._bits.items()
        )
        return compiled(", ".join(cls._bits), f"{made} if {fits} else 0", refuse=_refuse)

    @classmethod
    def _decoder(cls, dwords: Mapping[int, str]) -> Callable[[Sequence[int]], Self]:
        """A function that makes a command of `d`, given the expressions of its dwords."""
        values = []
        for one in cls._bits.values():
            value = " | ".join(
                f"{dwords[at]} << {32 * i}" if i else dwords[at] for i, at in enumerate(one.dwords)
            )
            low = one.start % 32
            if isinstance(one.default, bool):
                value = f"{value} & {1 << low} != 0"
            elif low + one.width < 32 * len(one.dwords):
                value = f"({value}) >> {low} & {(1 << one.width) - 1}"
            elif low:
                value = f"({value}) >> {low}"
            values.append(value)
        return compiled("d", f"new(cls, ({', '.join(values)},))", new=tuple.__new__, cls=cls)


class CommandDwords(Dwords):
    """Fields in command dwords 10 to 15; equal only to those of the same command."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def encode(self) -> Cdws:
        """The six dwords. Raises ValueError for what does not fit."""
        cdws: Cdws = (self._functions or self._compile())[0](*self)
        return cdws

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        """The fields of six dwords; reserved bits are ignored."""
        return (cls._functions or cls._compile())[1](cdws)  # type: ignore[no-any-return]

    @classmethod
    def _compile(cls) -> tuple[Callable[..., Any], Callable[..., Any]]:
        stored = cls._stored()
        made = ", ".join(stored.get(dword, "0") for dword in range(10, 16))
        cls._functions = (
            cls._encoder(f"({made})"),
            cls._decoder({10 + i: f"d[{i}]" for i in range(6)}),
        )
        return cls._functions
