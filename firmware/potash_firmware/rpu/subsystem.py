"""An NVM subsystem: what its controllers share.

Source: NVM Express Base Specification 2.0, section 1.5 (NVM subsystem) and 3.1.
"""

from typing import Generic, TypeVar

Member = TypeVar("Member")
"""The type of its controllers, which this module does not import: they know it."""


class Subsystem(Generic[Member]):
    """The controllers of one NVM subsystem."""

    def __init__(self) -> None:
        self.controllers: list[Member] = []
        """All controllers; the index of each is its identifier."""
