"""Sizes as people write them."""

import re

import click

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType[int]):
    """Bytes, or a number with K, M, G or T behind it, each 1024 of the one before."""

    name = "SIZE"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)([KMGT]?)(iB|B)?", value.strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is no size; write 512M or 1G", param, ctx)
        return int(match[1]) * _UNITS[match[2].upper()]


def human(size: int) -> str:
    """A size in the largest unit that divides it."""
    for unit in "TGMK":
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit}iB"
    return f"{size} bytes"
