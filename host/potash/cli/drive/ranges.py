"""Ranges of blocks and of memory as command lines name them."""

from __future__ import annotations

import click

from potash.units import parse_size


class _Range(click.ParamType[tuple[int | None, int, int]]):
    """[NSID:]FIRST:COUNT; without a namespace's identifier it is None."""

    def convert(
        self,
        value: str | tuple[int | None, int, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int | None, int, int]:
        if isinstance(value, tuple):
            return value
        *namespace, first, count = value.split(":") if ":" in value else ("", "", "")
        try:
            if len(namespace) > 1:
                raise ValueError
            nsid = int(namespace[0], 0) if namespace else None
            return nsid, self.number(first), self.number(count)
        except ValueError:
            self.fail(f"{value!r} is not {self.name}, numbers", param, ctx)

    def number(self, text: str) -> int:
        raise NotImplementedError


class BlockRange(_Range):
    """Logical blocks: where they begin and how many."""

    name = "[NSID:]LBA:COUNT"

    def number(self, text: str) -> int:
        return int(text, 0)


class ByteRange(_Range):
    """Bytes, whose numbers may have K, M or G behind them."""

    name = "[NSID:]START:LENGTH"

    def number(self, text: str) -> int:
        return int(text, 0) if text.lower().startswith("0x") else parse_size(text)
