"""Lab 3: choose the superblock to collect. This is first in, first out."""

from potash.timing import Superblocks


class Mine:
    """The superblock that was filled longest ago, however much of it is still valid."""

    def victim(self, superblocks: Superblocks) -> int:
        return int(min(superblocks.candidates, key=superblocks.closed_at.__getitem__))
