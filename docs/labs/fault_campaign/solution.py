"""Lab 5, solved: five faults, and for each what a good store does then."""

from collections.abc import Callable
from typing import Protocol

from potash.testing import BootedDevice


class Store(Protocol):
    """What is tested."""

    def save(self, record: bytes) -> None: ...

    def load(self) -> bytes: ...


def campaign(drive: BootedDevice, new: Callable[[BootedDevice], Store]) -> None:
    """Raise AssertionError, or let an error pass, where the stores that `new` makes are broken."""
    interrupted(drive, new(drive))
    not_to_be_retried(drive, new(drive))
    bad_blocks(drive, new(drive))
    unreadable(drive, new(drive))
    lost(drive, new(drive))


def interrupted(drive: BootedDevice, store: Store) -> None:
    """What may be tried again is, twice."""
    drive.add_fault("io write status=COMMAND_INTERRUPTED count=2")
    store.save(b"at the third try")
    drive.clear_faults()
    assert store.load() == b"at the third try"


def not_to_be_retried(drive: BootedDevice, store: Store) -> None:
    """What must not be tried again is not: the next place takes the record."""
    drive.add_fault("io write status=WRITE_FAULT dnr lba=0")
    store.save(b"elsewhere")
    assert [fault.triggered for fault in drive.faults()] == [1]
    drive.clear_faults()


def bad_blocks(drive: BootedDevice, store: Store) -> None:
    """A record that has moved is found."""
    store.save(b"old")
    drive.add_fault("media write lba=0..7")
    store.save(b"new")
    drive.clear_faults()
    assert store.load() == b"new"


def unreadable(drive: BootedDevice, store: Store) -> None:
    """A record that cannot be read is not taken for an empty one."""
    store.save(b"important")
    drive.add_fault("media read")
    try:
        found = store.load()
    except RuntimeError:
        return
    finally:
        drive.clear_faults()
    raise AssertionError(f"a record that cannot be read was {found!r}")


def lost(drive: BootedDevice, store: Store) -> None:
    """A command that never completes is sent again."""
    store.save(b"kept")
    drive.add_fault("io read lost count=1")
    assert store.load() == b"kept"
    drive.clear_faults()
