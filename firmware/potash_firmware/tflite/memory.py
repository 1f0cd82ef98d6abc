"""Memory of tensors: those that are never needed together may share it."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from potash_firmware.vta_runtime import Buffer, Share


class Need(NamedTuple):
    """Bytes that are needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def places(needs: Sequence[Need], alignment: int) -> tuple[list[int], int]:
    """Where each begins, at a multiple of `alignment`, and how many bytes all of them take: the
    largest first, each at the lowest place that is free as long as it is needed."""
    found = [0] * len(needs)
    placed: list[tuple[int, int, Need]] = []
    for number in sorted(range(len(needs)), key=lambda at: -needs[at].size):
        its, begin = needs[number], 0
        for start, end, other in placed:
            if begin + its.size <= start:
                break
            if other.first <= its.last and its.first <= other.last:
                begin = max(begin, -(-end // alignment) * alignment)
        found[number] = begin
        placed.append((begin, begin + its.size, its))
        placed.sort(key=lambda one: one[0])
    return found, max((end for _, end, _ in placed), default=0)


def settle(
    steps: Iterable[Iterable[Buffer]], allocate: Callable[[int], Buffer], alignment: int
) -> None:
    """Give each `Share` among the buffers of some steps its place in one new buffer.

    Raises VtaMemoryError.
    """
    needs: dict[Share, Need] = {}
    for number, buffers in enumerate(steps):
        for its in buffers:
            if isinstance(its, Share):
                first = needs[its].first if its in needs else number
                needs[its] = Need(its.size, first, number)
    offsets, size = places(list(needs.values()), alignment)
    if needs:
        whole = allocate(size)
        for share, offset in zip(needs, offsets, strict=True):
            share.place(whole, offset)
