"""Lab 5: a program that keeps a record on a drive, and others that do it less well."""

from collections.abc import Callable
from functools import partial

from potash.sdk import CommandFailed, CommandTimeout, Device


class Store:
    """One record of a block, in the first of `PLACES` that takes it.

    A command that fails is tried again twice, unless the drive says Do Not Retry.
    """

    PLACES = (0, 8, 16)
    TRIES = 3

    def __init__(self, device: Device) -> None:
        self.device = device
        self.place = self.PLACES[0]

    def save(self, record: bytes) -> None:
        """Raises RuntimeError where no place takes the record."""
        block = record.ljust(self.device.block_size, b"\0")
        for place in self.PLACES:
            if self._tried(partial(self.device.write, place, block)):
                self.moved(place)
                return
        raise RuntimeError("the drive takes the record nowhere")

    def load(self) -> bytes:
        """Raises RuntimeError where the record cannot be read."""
        found: list[bytes] = []
        if not self._tried(lambda: found.append(self.device.read(self.place, 1))):
            return self.unreadable()
        return found[0].rstrip(b"\0")

    def moved(self, place: int) -> None:
        """The record is there now."""
        self.place = place

    def unreadable(self) -> bytes:
        """The record cannot be read."""
        raise RuntimeError("the record cannot be read")

    def again(self, error: CommandFailed | CommandTimeout) -> bool:
        """Whether it is worth another try."""
        return isinstance(error, CommandTimeout) or not error.dnr

    def _tried(self, action: Callable[[], None]) -> bool:
        for _ in range(self.TRIES):
            try:
                action()
                return True
            except (CommandFailed, CommandTimeout) as error:
                if not self.again(error):
                    return False
        return False


class Impatient(Store):
    """It tries once."""

    TRIES = 1


class Stubborn(Store):
    """It tries again what the drive says not to retry."""

    def again(self, error: CommandFailed | CommandTimeout) -> bool:
        return True


class Forgetful(Store):
    """It does not note that the record has moved."""

    def moved(self, place: int) -> None:
        pass


class Optimist(Store):
    """A record that cannot be read is an empty one."""

    def unreadable(self) -> bytes:
        return b""


class Anxious(Store):
    """A lost command is the end."""

    def again(self, error: CommandFailed | CommandTimeout) -> bool:
        return isinstance(error, CommandFailed) and super().again(error)


BROKEN = (Impatient, Stubborn, Forgetful, Optimist, Anxious)
