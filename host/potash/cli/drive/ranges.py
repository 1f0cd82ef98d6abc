"""Ranges of blocks and of memory as command lines name them."""

from collections.abc import Callable
from typing import TypeAlias

from potash.units import Parsed, parse_size

Range: TypeAlias = tuple[int | None, int, int]
"""A namespace's identifier if it is given, the first one and how many."""


def _range(name: str, number: Callable[[str], int]) -> Parsed[Range]:
    def parse(text: str) -> Range:
        *namespace, first, count = text.split(":") if ":" in text else ("", "", "")
        try:
            if len(namespace) > 1:
                raise ValueError
            nsid = int(namespace[0], 0) if namespace else None
            return nsid, number(first), number(count)
        except ValueError:
            raise ValueError(f"{text!r} is not {name}, numbers") from None

    return Parsed(name, parse)


def _bytes(text: str) -> int:
    return int(text, 0) if text.lower().startswith("0x") else parse_size(text)


BLOCKS = _range("[NSID:]LBA:COUNT", lambda text: int(text, 0))
"""Logical blocks: where they begin and how many."""
BYTES = _range("[NSID:]START:LENGTH", _bytes)
"""Bytes, whose numbers may have K, M or G behind them."""
