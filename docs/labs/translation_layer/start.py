"""Lab 7: a translation layer. This one writes each page where it belongs, which flash cannot do."""

from typing import Any


class Mine:
    """The drive. `flash` has `blocks`, `units` of a block and `pages` of a unit, `program`, `read`
    and `erase`; what it has outlives a power failure, and this object does not."""

    def __init__(self, flash: Any) -> None:
        self.flash = flash

    def read(self, page: int) -> bytes:
        """The data of a page, b"" where there are none."""
        contents = self.flash.read(*divmod(page // self.flash.pages, self.flash.units))
        data: bytes = dict(contents or []).get(page, b"")
        return data

    def write(self, page: int, data: bytes) -> None:
        """Take data; they may stay in memory until `flush`."""
        place = divmod(page // self.flash.pages, self.flash.units)
        self.flash.program(*place, [(page, data)])

    def flush(self) -> None:
        """Have everything on flash that was written."""
