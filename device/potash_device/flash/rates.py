"""Rates and limits of modelled hardware, which a drive needs also without a modelled drive."""

from collections.abc import Collection
from typing import Annotated, NamedTuple

from potash_wire.records import U64, Range

NAMES = ("tlc", "qlc", "z-nand", "xl-flash", "970-pro", "femu", "zns")
"""The built-in drives of `profiles`."""

PAGE = 4096
"""Bytes of a logical page."""
ENTRIES = PAGE // 4
"""Logical pages that a translation page maps, 4 bytes each."""

LARGEST = 1 << 31
"""No number is greater, sizes in bytes excepted, and no operation takes more ns, so that 64 bits
hold whatever follows."""


class ProfileError(ValueError):
    """A drive that cannot be built so; a sentence."""


def require_known(refusal: str, table: Collection[str], known: Collection[str]) -> None:
    """Raises ProfileError, which begins with `refusal`, for a key that is not known."""
    for key in table:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, 1)
            raise ProfileError(f"{refusal} {key}" + (f"; did you mean {near[0]}?" if near else ""))


def thousandths(text: str) -> int:
    """The value of a percentage like "5%" or "2.5%". Raises ProfileError."""
    try:
        found = float(text.removesuffix("%")) * 10
    except ValueError:
        found = -1.0
    if not text.endswith("%") or not 0 <= found <= LARGEST or found != int(found):
        raise ProfileError(f"{text!r:.40} is not a percentage like 5% or 2.5%")
    return int(found)


class Rate(NamedTuple):
    """`bytes` take `ns`; other lengths are in proportion, rounded up."""

    bytes: Annotated[U64, Range(1, LARGEST)]
    ns: Annotated[U64, Range(0, LARGEST)]
