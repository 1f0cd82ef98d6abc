"""Runs of micro-ops: how far the ALU can go on at once.

Micro-ops are loaded once and executed many times. So it is found out when they are loaded for how
many of them, from each on, the destination goes on by one element, and the source with it, or not
at all, or anyhow, as an immediate lets it.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast.compiling import Number, compiled
from potash_device.vta.fast.layout import Geometry

ALONG, STILL, ANYHOW = range(3)
"""What the source does: the rows of the table."""
KINDS = 3


@compiled
def look_ahead(uop: Any, geometry: Geometry, begin: Number, end: Number, ahead: Any) -> None:
    """Fill the table in for the micro-ops from `begin` on, before `end`; none of its runs leads out
    of them, or from those before them into them."""
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    src_low = geometry.dst_bits
    for kind in range(KINDS):
        at = begin - 1
        while at >= 0 and ahead[kind, at] > begin - at:
            ahead[kind, at] = begin - at
            at -= 1
        if end > begin:
            ahead[kind, end - 1] = 1
    for at in range(end - 2, begin - 1, -1):
        word, following = np.int64(uop[at]), np.int64(uop[at + 1])
        goes = (following & dst_mask) - (word & dst_mask) == 1
        step = (following >> src_low & src_mask) - (word >> src_low & src_mask)
        ahead[ALONG, at] = 1 + ahead[ALONG, at + 1] if goes and step == 1 else 1
        ahead[STILL, at] = 1 + ahead[STILL, at + 1] if goes and step == 0 else 1
        ahead[ANYHOW, at] = 1 + ahead[ANYHOW, at + 1] if goes else 1


@compiled
def run_of(ahead: Any, begin: Number, end: Number) -> Number:
    """How long the equally long runs are that the micro-ops from `begin` on consist of, given one
    row of the table; 1 where they do not."""
    length = min(ahead[begin], end - begin)
    if length == 1 or (end - begin) % length:
        return 1
    for at in range(begin + length, end, length):
        if ahead[at] < length:
            return 1
    return length
