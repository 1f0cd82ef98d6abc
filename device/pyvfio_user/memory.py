"""The client's memory, as the device may use it: one table of mappings, and views into them.

A file is mapped once and whole, however many windows into it a client opens, because virtual
machines unmap and map their memory in pieces while they boot. A device drops its views when it is
told that memory has changed; garbage collection unmaps a file after the last view, so that none can
dangle.

A file must be a memfd of ordinary pages, sealed against shrinking: cutting an unsealed one short,
or punching a hole into huge pages, would end this process with SIGBUS. (With `trust_memory`, any
file will do.) What comes without such a
file is reached by messages, if the client answers them: its views are copies, fetched when they are
made, and what a device has written to one is the client's only after `store`.

Source: QEMU's `docs/interop/vfio-user.rst`, sections "VFIO_USER_DMA_MAP" and "VFIO_USER_DMA_UNMAP".
"""

import errno
import itertools
from collections.abc import Iterable, Sequence

from pyvfio_user.dma_messages import DmaMessages, TransferError
from pyvfio_user.files import Files
from pyvfio_user.protocol import DEFAULT_MAX_DMA_MAPS, Buffer
from pyvfio_user.windows import Window, Windows

ADDRESS_LIMIT = 1 << 64
MAX_MAPPINGS = DEFAULT_MAX_DMA_MAPS
"""Windows at a time, where the server sets no other limit."""

LOG_PAGE_SIZE = 4096
"""Bytes of a page of the log of writes."""

MAX_PIECES = 1024
"""Windows that one access may cross."""
MAX_COPY = 1 << 26
"""Bytes that are copied at once where they are reached by messages."""
MAX_JOINED = 256
"""Ranges over several windows that stay mapped side by side; the queues of 64 pairs are half."""

_generations = itertools.count(1)


class AccessFault(OSError):
    """`size` bytes at `address` of the client's memory cannot be used (EFAULT)."""

    def __init__(self, address: int, size: int, reason: str) -> None:
        super().__init__(errno.EFAULT, f"{size} bytes at {address:#x}: {reason}")
        self.address = address
        self.size = size
        self.reason = reason

    def __str__(self) -> str:
        return str(self.strerror)


def _misfit(address: int, size: int) -> AccessFault:
    reason = "they cross the end of a mapping" if size > 0 else "this is no size"
    return AccessFault(address, size, reason)


_NOWHERE = Window(0, 0, None, None, None, 0, False, False)


class _Staged(bytearray):
    """Bytes that are to be written to the client's memory at `address`, once they are all there."""

    address = 0


class AddressSpace:
    """The DMA addresses that one client has mapped. Not for several threads.

    With `messages`, windows that cannot be mapped are reached by them. With `trust_memory`, any
    file can be mapped, and a client that makes it smaller ends this process with SIGBUS.
    """

    def __init__(
        self,
        max_mappings: int = MAX_MAPPINGS,
        messages: DmaMessages | None = None,
        *,
        trust_memory: bool = False,
    ) -> None:
        self._max_mappings = max_mappings
        self._messages = messages
        self.remote = 0
        """Windows that can only be written by messages."""
        self.unmapped_because = ""
        """The reason why the last of these cannot be mapped."""
        self.copies = 0
        """Views that were copies, made since there is a client."""
        self._windows = Windows()
        self._joined: dict[tuple[int, int], memoryview] = {}
        """Adjacent windows that are mapped side by side, by their first address and their end."""
        self._files = Files(trust=trust_memory)
        self._last = _NOWHERE
        self._written: set[int] | None = None
        """Numbers of the pages that may have been written, while that is logged."""
        self.generation = next(_generations)
        """Changes with every map and unmap, and is never the same for two clients."""

    def map(
        self,
        address: int,
        size: int,
        *,
        fd: int | None,
        offset: int,
        readable: bool,
        writable: bool,
    ) -> Window:
        """Open a window of `size` bytes at `address` onto the file `fd` from `offset` on.

        The descriptor stays the caller's. A window without one is reached by messages, and so is
        one of a file that it leaves, or that is no memfd of ordinary pages, is not sealed against
        shrinking or may not be mapped so; every access to what is not `readable` or `writable` is
        refused. Raises OSError: EEXIST where the window overlaps another one, ENOSPC for too many
        windows, files or bytes of files, EINVAL for a range that wraps, and where there are no
        messages EINVAL, EACCES or EPERM for a file that cannot be used. Nothing has changed then.
        """
        if size <= 0 or min(address, offset) < 0 or max(address, offset) + size > ADDRESS_LIMIT:
            raise OSError(errno.EINVAL, f"{size} bytes at {address:#x} are no range of addresses")
        if self._windows.within(address, address + size):
            raise OSError(
                errno.EEXIST, f"some of the {size} bytes at {address:#x} are mapped already"
            )
        if len(self._windows) >= self._max_mappings:
            raise OSError(errno.ENOSPC, f"{self._max_mappings} windows are mapped already")
        source = target = content = None
        reason = "it came without a file descriptor"
        if fd is not None:
            try:
                content = self._files.content(fd, offset + size, writable=writable)
            except OSError as error:
                if not self._has_messages or error.errno == errno.ENOSPC:
                    raise
                reason = str(error.strerror)
        if content is not None:
            content.windows += 1
            window = content.view[offset : offset + size]
            source = window.toreadonly() if readable else None
            target = window if writable else None
        elif writable and self._has_messages:
            self.unmapped_because = reason
            self.remote += 1
        end = address + size
        mapping = Window(address, end, source, target, content, offset, readable, writable)
        self._windows.add(mapping)
        self._changed()
        return mapping

    def unmap(self, address: int, size: int) -> None:
        """Close all windows inside a range, of which there may be none, as VFIO type 1 version 2.
        Raises OSError with EINVAL, having closed none, where the range would cut a window in two,
        is empty or wraps. Source: Linux, `include/uapi/linux/vfio.h`, VFIO_IOMMU_UNMAP_DMA."""
        end = address + size
        if size <= 0 or address < 0 or end > ADDRESS_LIMIT:
            raise OSError(errno.EINVAL, f"{size} bytes at {address:#x} are no range of addresses")
        windows = self._windows.within(address, end)
        if windows and (windows[0].start < address or windows[-1].end > end):
            raise OSError(errno.EINVAL, f"{size} bytes at {address:#x} cut a window in two")
        for window in windows:
            self._windows.remove(window)
            content = window.content
            if content is not None:
                self._files.closed(content)
            elif window.writable and self._has_messages:
                self.remote -= 1
        for first, last in [one for one in self._joined if one[0] < end and address < one[1]]:
            del self._joined[first, last]
        if windows:
            self._changed()

    def close(self, window: Window) -> None:
        """Close a window that `map` has opened, if it is still open."""
        if self._windows.at(window.start) is window:
            self.unmap(window.start, window.end - window.start)

    def is_mapped(self, address: int, size: int) -> bool:
        """True if views may be held of any of these bytes."""
        return any(one.content is not None for one in self._windows.within(address, address + size))

    def unmap_all(self) -> None:
        """Close every window, and forget the files behind them."""
        self._windows = Windows()
        self._joined.clear()
        self.remote = 0
        self._files.clear()
        self._changed()

    def _changed(self) -> None:
        self._last = _NOWHERE
        self.generation = next(_generations)

    @property
    def _has_messages(self) -> bool:
        return self._messages is not None and self._messages.possible

    @property
    def interrupted(self) -> bool:
        """Every transfer by messages is refused until the client's next command is handled."""
        return self._messages is not None and self._messages.interrupted

    def view(self, address: int, size: int, *, write: bool = False) -> memoryview:
        """The `size` bytes at `address`, all in one window; read-only unless for `write`.

        They are the client's own, or a copy where they are reached by messages: then zeroes for
        `write`, see `store`. Raises AccessFault where they are not one window's, may not be used
        so, or the client does not give them.
        """
        mapping = self._last
        if not mapping.start <= address < mapping.end:
            mapping = self._last = self._find(address, size)
        content = mapping.target if write else mapping.source
        if content is None:
            self._require_messages(mapping, address, size, write=write)
            copy = self._copy(address, size)
            if not write:
                self._fetch([(address, copy)])
                copy = copy.toreadonly()
            return copy
        begin = address - mapping.start
        if size <= 0 or address + size > mapping.end:
            raise _misfit(address, size)
        if write and self._written is not None:
            self._log(address, size)
        return content[begin : begin + size]

    def mapped(self, address: int, size: int, *, write: bool = False) -> memoryview | None:
        """A view of bytes in any number of windows; None instead of a copy.

        Such bytes are read by `views` and written by `write`.
        """
        window = self._find(address, size)
        if 0 < size <= window.end - address:
            spans = [(window, address, size)]
        else:
            spans = self._spans(address, size)
        for window, at, count in spans:
            if (window.target if write else window.source) is None:
                self._require_messages(window, at, count, write=write)
        if any(window.content is None for window, _, _ in spans):
            return None
        if len(spans) == 1:
            return self.view(address, size, write=write)
        joined = self._joined.get((address, address + size))
        if joined is None:
            # It needs ctypes, which clients, who import this module too, are to be spared.
            from pyvfio_user.adjacent import mapped_side_by_side

            try:
                joined = mapped_side_by_side(spans)
            except OSError as error:
                self.unmapped_because = str(error.strerror)
                return None
            if len(self._joined) >= MAX_JOINED:
                self._joined.clear()
            self._joined[address, address + size] = joined
        if write and self._written is not None:
            self._log(address, size)
        return joined if write else joined.toreadonly()

    def store(self, views: Iterable[memoryview], size: int | None = None) -> None:
        """Have the client's memory hold what was written to `views`, or the first `size` bytes.

        `views` are as they were got for writing, each whole. Those of mapped memory need no more.
        Raises AccessFault where the client does not take it.
        """
        pieces: list[tuple[int, Buffer]] = []
        for view in views:
            if size is not None:
                view = view[:size]
                size -= len(view)
            staged = view.obj
            if isinstance(staged, _Staged) and len(view):
                pieces.append((staged.address, view))
        if pieces:
            self.write(pieces)

    def write(self, pieces: Sequence[tuple[int, Buffer]]) -> None:
        """Write bytes to addresses, in this order; by messages what is not mapped. Raises
        AccessFault."""
        unsent: list[tuple[int, Buffer]] = []
        for address, data in pieces:
            for window, at, count in self._spans(address, len(data)):
                piece = memoryview(data)[at - address : at - address + count]
                if window.target is None:
                    self._require_messages(window, at, count, write=True)
                    unsent.append((at, piece))
                else:
                    self._send(unsent)
                    unsent = []
                    self.view(at, count, write=True)[:] = piece
        self._send(unsent)

    def _send(self, pieces: Sequence[tuple[int, Buffer]]) -> None:
        if not pieces:
            return
        assert self._messages is not None
        if self._written is not None:
            for address, data in pieces:
                self._log(address, len(data))
        try:
            self._messages.write(pieces)
        except TransferError as error:
            raise AccessFault(pieces[0][0], len(pieces[0][1]), str(error)) from None

    def _fetch(self, wanted: Sequence[tuple[int, memoryview]]) -> None:
        assert self._messages is not None
        try:
            self._messages.read(wanted)
        except TransferError as error:
            raise AccessFault(wanted[0][0], len(wanted[0][1]), str(error)) from None

    def _copy(self, address: int, size: int) -> memoryview:
        staged = _Staged(size)
        staged.address = address
        self.copies += 1
        return memoryview(staged)

    def _require_messages(self, mapping: Window, address: int, size: int, *, write: bool) -> None:
        """Refuse what cannot be had by messages."""
        allowed = mapping.writable if write else mapping.readable
        if mapping.content is not None or not allowed:
            raise AccessFault(
                address, size, f"this memory may not be {'written' if write else 'read'}"
            )
        if not self._has_messages:
            raise AccessFault(address, size, "this memory came without a file, and is not mapped")
        if size <= 0 or address + size > mapping.end or size > MAX_COPY:
            raise _misfit(address, size)

    def views(self, address: int, size: int, *, write: bool = False) -> list[memoryview]:
        """The `size` bytes at `address` in order, split where adjacent windows meet. Raises
        AccessFault where some are not mapped, or may not be used so, or are in more windows than
        anybody has use for."""
        if self.remote and not write:
            return self._fetched(((address, size),))
        window = self._last
        if not window.start <= address < window.end:
            window = self._last = self._find(address, size)
        if address + size <= window.end:
            content = window.target if write else window.source
            if content is None or size <= 0 or (write and self._written is not None):
                return [self.view(address, size, write=write)]
            # As `view`, whose call would take 5 % of the time of a command for 4 KiB.
            return [content[address - window.start : address - window.start + size]]
        pieces: list[memoryview] = []
        for window, at, count in self._spans(address, size):
            self._last = window
            pieces.append(self.view(at, count, write=write))
        return pieces

    def _spans(self, address: int, size: int) -> list[tuple[Window, int, int]]:
        """The windows that `size` bytes are in, in order, each with the address and the number of
        its bytes among them. Raises AccessFault as `views` does."""
        if size <= 0:
            raise _misfit(address, size)
        end = address + size
        spans: list[tuple[Window, int, int]] = []
        for window in self._windows.within(address, end):
            if window.start > address:
                break
            if len(spans) == MAX_PIECES:
                raise AccessFault(address, size, f"they are in more than {MAX_PIECES} mappings")
            stop = min(end, window.end)
            spans.append((window, address, stop - address))
            address = stop
        if address < end:
            raise AccessFault(address, end - address, "nothing is mapped there")
        return spans

    def views_of(
        self, ranges: Iterable[tuple[int, int]], *, write: bool = False
    ) -> list[memoryview]:
        """The bytes of several ranges, each an address and a size, one behind the other. Raises
        AccessFault as `views` does for one of them."""
        if self.remote and not write:
            return self._fetched(ranges)
        found: list[memoryview] = []
        start = end = 0
        content: memoryview | None = None
        for address, size in ranges:
            if content is not None and start <= address and 0 < size <= end - address:
                found.append(content[address - start : address - start + size])
                if write and self._written is not None:
                    self._log(address, size)
                continue
            found += self.views(address, size, write=write)
            start, end = self._last.start, self._last.end
            content = self._last.target if write else self._last.source
        return found

    # The log of writes: a view for writing counts as written when it is given out.

    def start_logging(self) -> None:
        """Log the pages of all views for writing that are given out from now on, beside those that
        are logged already."""
        if self._written is None:
            self._written = set()

    def stop_logging(self) -> None:
        """Log nothing any more, and forget the log."""
        self._written = None

    def require_logging(self) -> None:
        """Raise OSError with EINVAL where nothing is logged."""
        if self._written is None:
            raise OSError(errno.EINVAL, "writes are not logged")

    def take_written(self, address: int, size: int) -> list[int]:
        """The addresses of the logged pages with bytes in a range.

        Those that are wholly in it are logged no longer. Views that were given out before have to
        be dropped first. Raises OSError as `require_logging`.
        """
        self.require_logging()
        assert self._written is not None
        end = address + size
        first, last = address // LOG_PAGE_SIZE, (end - 1) // LOG_PAGE_SIZE
        found = {page for page in self._written if first <= page <= last}
        whole = range(-(-address // LOG_PAGE_SIZE), end // LOG_PAGE_SIZE)
        self._written -= {page for page in found if page in whole}
        return [page * LOG_PAGE_SIZE for page in sorted(found)]

    def _log(self, address: int, size: int) -> None:
        assert self._written is not None
        last = (address + size - 1) // LOG_PAGE_SIZE
        self._written.update(range(address // LOG_PAGE_SIZE, last + 1))

    def _fetched(self, ranges: Iterable[tuple[int, int]]) -> list[memoryview]:
        """The views of `views_of` for reading; all that has to be copied is fetched together."""
        found: list[memoryview] = []
        wanted: list[tuple[int, memoryview]] = []
        for address, size in ranges:
            for window, at, count in self._spans(address, size):
                if window.source is not None:
                    self._last = window
                    found.append(self.view(at, count))
                else:
                    self._require_messages(window, at, count, write=False)
                    copy = self._copy(at, count)
                    wanted.append((at, copy))
                    found.append(copy.toreadonly())
        if wanted:
            self._fetch(wanted)
        return found

    def _find(self, address: int, size: int) -> Window:
        window = self._windows.at(address)
        if window is None:
            raise AccessFault(address, size, "nothing is mapped there")
        return window
