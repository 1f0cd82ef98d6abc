"""Reports of a long call's progress."""

from collections.abc import Callable

Progress = Callable[[str, float | None], None]
"""Called with what is being done, and how much of it is: 0 to 1, or None if unknown."""


def silent(label: str, fraction: float | None) -> None:
    """A `Progress` that reports nothing."""
