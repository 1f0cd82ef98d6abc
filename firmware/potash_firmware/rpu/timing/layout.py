"""The logical pages of a modelled drive, and which of them each namespace has."""

from collections.abc import Collection, Iterator

from potash_firmware.ftl.interface import Piece


class Layout:
    """Pages of a drive, given to namespaces in as few pieces as possible; they have `pieces` of
    them already. Raises ValueError for pieces that overlap, or are not there."""

    def __init__(self, pages: int, pieces: Collection[Piece] = ()) -> None:
        self._free: list[tuple[int, int]] = []
        """First page and number, in ascending order, never two that touch."""
        self.placed: dict[int, list[tuple[int, int]]] = {}
        """The pieces of each namespace, in the order of its bytes."""
        end = 0
        for _, first, count in sorted(pieces, key=lambda piece: piece[1]):
            if first < end or count < 1 or first + count > pages:
                raise ValueError("pieces of namespaces overlap, or leave the drive")
            if first > end:
                self._free.append((end, first - end))
            end = first + count
        if end < pages:
            self._free.append((end, pages - end))
        for nsid, first, count in pieces:
            self.placed.setdefault(nsid, []).append((first, count))

    @property
    def free(self) -> int:
        """Pages that no namespace has."""
        return sum(count for _, count in self._free)

    @property
    def pieces(self) -> list[Piece]:
        return [(nsid, *piece) for nsid, pieces in self.placed.items() for piece in pieces]

    def place(self, nsid: int, pages: int) -> None:
        """Give a namespace its pages. Raises ValueError where so many are not free."""
        if pages > self.free:
            raise ValueError(
                f"the modelled drive has no room for {pages} pages of namespace {nsid}"
            )
        whole = next((run for run in self._free if run[1] >= pages), None)
        pieces: list[tuple[int, int]] = []
        while pages:
            first, count = whole or self._free[0]
            taken = min(count, pages)
            at = self._free.index((first, count))
            self._free[at : at + 1] = [(first + taken, count - taken)] if count > taken else []
            pieces.append((first, taken))
            pages -= taken
        self.placed[nsid] = pieces

    def remove(self, nsid: int) -> list[tuple[int, int]]:
        """Take a namespace's pages, which are given."""
        pieces = self.placed.pop(nsid)
        joined: list[tuple[int, int]] = []
        for first, count in sorted((*self._free, *pieces)):
            if joined and sum(joined[-1]) == first:
                joined[-1] = (joined[-1][0], joined[-1][1] + count)
            else:
                joined.append((first, count))
        self._free = joined
        return pieces

    def pages(self, nsid: int) -> int:
        """Number of pages of a namespace; 0 for one that does not exist."""
        return sum(count for _, count in self.placed.get(nsid, ()))

    def owner(self, page: int) -> tuple[int, int]:
        """The namespace of a page of the drive, and the number of the page in it. Raises ValueError
        for a page that no namespace has."""
        for nsid, pieces in self.placed.items():
            before = 0
            for first, count in pieces:
                if first <= page < first + count:
                    return nsid, before + page - first
                before += count
        raise ValueError(f"no namespace has the page {page}")

    def find(self, nsid: int, first: int, count: int) -> Iterator[tuple[int, int]]:
        """The drive's pages for pages of a namespace. Raises ValueError for pages that it does not
        have."""
        for start, length in self.placed.get(nsid, ()):
            if first < length and count:
                taken = min(count, length - first)
                yield start + first, taken
                count -= taken
            first = max(0, first - length)
        if count:
            raise ValueError(f"namespace {nsid} ends before these pages")
