"""Lab 5: a campaign against a store. This one injects no fault."""

from collections.abc import Callable
from typing import Protocol

from potash.testing import BootedDevice


class Store(Protocol):
    """What is tested."""

    def save(self, record: bytes) -> None: ...

    def load(self) -> bytes: ...


def campaign(drive: BootedDevice, new: Callable[[BootedDevice], Store]) -> None:
    """Raise AssertionError, or let an error pass, where the stores that `new` makes are broken."""
    store = new(drive)
    store.save(b"as it was")
    assert store.load() == b"as it was"
