"""Tables as text."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], align: str = "<>") -> list[str]:
    """Rows as lines, in columns of equal width.

    `align` has `<` for a column that is flush left and `>` for one that is flush right; its last
    character is also for all columns behind.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False)
        ).rstrip()
        for row in rows
    ]
