"""The pages of modelled flash that the values of a namespace have."""

from potash_device.media.shapes import FLASH_PAGE, INDEX_ENTRY

Pages = list[int]


class ValuePages:
    """The pages of one namespace, by number: those of the index, then those of values."""

    def __init__(self, size: int) -> None:
        pages = size // FLASH_PAGE
        self.index = -(-pages // (FLASH_PAGE // INDEX_ENTRY + 1))
        """Pages of the index, from page 0 on."""
        self.placed: dict[bytes, Pages] = {}
        """The pages of each value."""
        self._end = pages
        self._fresh = self.index
        """The first page that no value has had yet."""
        self._freed: Pages = []

    def take(self, size: int) -> Pages | None:
        """Pages for a value of so many bytes; None if there are not enough."""
        count = -(-size // FLASH_PAGE)
        used = min(count, len(self._freed))
        if count - used > self._end - self._fresh:
            return None
        pages = [self._freed.pop() for _ in range(used)]
        pages += range(self._fresh, self._fresh + count - used)
        self._fresh += count - used
        return pages

    def release(self, pages: Pages) -> None:
        """No value has these pages any more."""
        self._freed += reversed(pages)
