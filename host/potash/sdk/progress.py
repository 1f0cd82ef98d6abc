"""How a long call tells that it goes on."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with what is being done, and with how much of it is: 0 to 1, or None where nobody knows."""


def silent(label: str, fraction: float | None) -> None:
    """Nobody wants to know."""
