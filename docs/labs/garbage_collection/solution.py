"""Lab 3, solved: what is free, for what it costs, and how long it will stay so."""

from collections.abc import Sequence

from potash.extend import ftl
from potash.ftl import Block, PageMapped


@ftl
class Mine(PageMapped):
    """Cost and benefit: a superblock with few valid pages is cheap, and an old one is likely to be
    cold, so that what is won of it lasts (Rosenblum and Ousterhout 1992, section 3.6)."""

    def victim(self, blocks: Sequence[Block]) -> int:
        def worth(block: Block) -> float:
            valid = block.valid / self.size
            return (block.age + 1) * (1 - valid) / (1 + valid)

        return max(blocks, key=worth).number
