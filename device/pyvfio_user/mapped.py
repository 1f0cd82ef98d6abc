"""A region that a device shares with its client, mapped: what both write there, both see.

Source: QEMU's `docs/interop/vfio-user.rst`, section "VFIO_USER_DEVICE_GET_REGION_INFO"."""

import mmap
import os
from collections.abc import Sequence
from typing import Self

from pyvfio_user.payloads import Area, RegionInfo
from pyvfio_user.protocol import ProtocolError, RegionFlags


class MappedRegion:
    """The `areas` of a region that the client can map, as `info` says, from the file `fd`.

    The descriptor stays the caller's. Raises ProtocolError for areas that are not in whole pages,
    in the region and in the file, and OSError where they cannot be mapped. A server that makes the
    file smaller later ends this process with SIGBUS.
    """

    def __init__(self, fd: int, info: RegionInfo, areas: Sequence[Area]) -> None:
        self.size = info.size
        """Bytes of the whole region."""
        self.areas = tuple(areas)
        self._mapped: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        protection = (mmap.PROT_READ if info.flags & RegionFlags.READ else 0) | (
            mmap.PROT_WRITE if info.flags & RegionFlags.WRITE else 0
        )
        try:
            for area in self.areas:
                _require(area, info, os.fstat(fd).st_size)
                self._mapped.append(
                    mmap.mmap(
                        fd, area.size, mmap.MAP_SHARED, protection, offset=info.offset + area.offset
                    )
                )
                self._views.append(memoryview(self._mapped[-1]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def view(self, offset: int, size: int) -> memoryview:
        """The `size` bytes at `offset` of the region. Raises ValueError where they are not all in
        one area."""
        for area, view in zip(self.areas, self._views, strict=True):
            if area.offset <= offset and offset + size <= area.offset + area.size and size > 0:
                return view[offset - area.offset : offset - area.offset + size]
        raise ValueError(f"{size} bytes at {offset:#x} are not in an area that is mapped")

    def close(self) -> None:
        """Give the memory up; it goes with the last view of it."""
        for view in self._views:
            view.release()
        for mapped in self._mapped:
            try:
                mapped.close()
            except BufferError:
                pass  # Somebody holds a slice: garbage collection unmaps behind the last.
        self._views.clear()
        self._mapped.clear()


def _require(area: Area, info: RegionInfo, file_size: int) -> None:
    """Refuse an area that cannot be mapped, or not without leaving the region or the file."""
    start = info.offset + area.offset
    if area.size <= 0 or start % mmap.PAGESIZE or area.size % mmap.PAGESIZE:
        raise ProtocolError(f"{area.size} bytes at {start:#x} of a file are not whole pages")
    if area.offset + area.size > info.size or start + area.size > file_size:
        raise ProtocolError(f"{area.size} bytes at {area.offset:#x} leave the region or its file")
