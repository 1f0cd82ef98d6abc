"""Bad blocks of flash: those that a die has from the factory, and when others fail or wear out.

A die uses good blocks in the place of its bad ones, so each group of dies has as many superblocks
as the die with the most bad blocks has good ones.
"""

import math
from functools import cache
from random import Random


@cache
def most_bad(blocks: int, dies: int, share: int, seed: int) -> int:
    """The bad blocks of the die that has the most, where each block is bad with a probability of so
    many thousandths."""
    draws = (Random(seed << 16 | die) for die in range(dies))
    return max(sum(draw.random() * 1000 < share for _ in range(blocks)) for draw in draws)


def blocks_for(good: int, dies: int, share: int, seed: int) -> int:
    """The least number of blocks with which each die has so many good ones."""
    blocks = good
    while blocks - most_bad(blocks, dies, share, seed) < good:
        blocks += good - blocks + most_bad(blocks, dies, share, seed)
    return blocks


def endurance(superblocks: int, cycles: int, spread: int, seed: int) -> list[int]:
    """The erases with which each superblock is worn out: `cycles`, and up to so many thousandths of
    them more or less."""
    if not spread:
        return [cycles] * superblocks
    draw = Random(seed)
    each = (draw.randint(-spread, spread) for _ in range(superblocks))
    return [max(1, cycles + cycles * part // 1000) for part in each]


def failures(superblocks: int, rate: int, seed: int) -> list[float]:
    """The programs that each superblock has in its life before one fails, where a program fails
    with a probability of so many millionths."""
    if not rate:
        return [math.inf] * superblocks
    draw, succeeds = Random(~seed), max(1 - rate / 1_000_000, math.ulp(0))
    return [math.log(1 - draw.random()) // math.log(succeeds) for _ in range(superblocks)]
