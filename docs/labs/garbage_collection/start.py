"""Lab 3: choose the superblock to collect. This is first in, first out."""

from collections.abc import Sequence

from potash.extend import ftl
from potash.ftl import Block, PageMapped


@ftl
class Mine(PageMapped):
    """Collects the superblock that was filled longest ago, however much of it is still valid."""

    def victim(self, blocks: Sequence[Block]) -> int:
        return max(blocks, key=lambda block: block.age).number
