"""Windows of the client's memory: unmapping ranges, and bytes that are in several of them."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
from dataclasses import dataclass, field
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvfio_user import adjacent, windows
from pyvfio_user.memory import AccessFault, AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from support.vfio_user import mappings_of

PAGE = 4096


def _map(
    space: AddressSpace, address: int, size: int, fd: int, offset: int = 0, *, writable: bool = True
) -> None:
    space.map(address, size, fd=fd, offset=offset, readable=True, writable=writable)


def test_an_unmap_takes_all_windows_inside_it_and_cuts_none(
    space: AddressSpace, memory: SealedMemory
) -> None:
    """As VFIO type 1 version 2 does."""
    _map(space, 0x1000, 0x2000, memory.fd)
    _map(space, 0x4000, 0x1000, memory.fd)
    for address, size in [
        (0x1000, 0x1000), (0x2000, 0x1000), (0x2000, 0x3000), (0, 0x2000),  # which cut one
        (0x1000, 0), (0x1000, -1), (-0x1000, 0x8000), (0x1000, 1 << 64),
    ]:  # fmt: skip
        with pytest.raises(OSError) as caught:
            space.unmap(address, size)
        assert caught.value.errno == errno.EINVAL
    assert space.is_mapped(0, 0x1001) and not space.is_mapped(0, 0x1000)
    generation = space.generation
    for address, size in [(0, 0x1000), (0x3000, 0x1000), (0x5000, 1 << 40)]:  # where none is
        space.unmap(address, size)
    assert space.generation == generation
    space.view(0x1000, 1, write=False)
    space.unmap(0, (1 << 64) - 0x1000)
    for address in (0x1000, 0x4000):
        with pytest.raises(AccessFault):
            space.view(address, 1, write=False)
    _map(space, 0x1000, 0x4000, memory.fd)


UNIT = 1024
UNITS = 80


@dataclass
class _Model:
    """The plainest model of windows: the number and the offset in the file of each UNIT."""

    units: dict[int, tuple[int, int]] = field(default_factory=dict)

    def map(self, first: int, count: int, offset: int) -> bool:
        if any(first + at in self.units for at in range(count)):
            return False
        self.units |= {first + at: (first, offset + at) for at in range(count)}
        return True

    def unmap(self, first: int, count: int) -> bool:
        inside = {unit: one for unit, one in self.units.items() if first <= unit < first + count}
        left = {one[0] for unit, one in self.units.items() if unit not in inside}
        if any(number in left for number, _ in inside.values()):
            return False
        for unit in inside:
            del self.units[unit]
        return True


_NUMBERS = st.integers(0, UNITS // 2)
_COUNTS = st.sampled_from([1, 2, 3, 4, 4, 8, 12])


@settings(max_examples=100)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.booleans(), _NUMBERS, _COUNTS, _NUMBERS)),
    probes=st.lists(st.tuples(st.integers(0, 50 * UNIT), st.integers(1, 20 * UNIT)), max_size=10),
)
def test_windows_behave_as_the_plainest_model_does(
    steps: list[tuple[bool, bool, int, int, int]], probes: list[tuple[int, int]]
) -> None:
    space, model = AddressSpace(), _Model()
    with SealedMemory(UNITS * UNIT) as memory, mock.patch.object(windows, "MOST_IN_LIST", 4):
        for unit in range(UNITS):
            memory.view[unit * UNIT : (unit + 1) * UNIT] = bytes([unit]) * UNIT
        for mapping, in_pages, first, count, offset in steps:
            if in_pages:
                first, count, offset = (one // 4 * 4 for one in (first, count + 3, offset))
            try:
                if mapping:
                    _map(space, first * UNIT, count * UNIT, memory.fd, offset * UNIT)
                else:
                    space.unmap(first * UNIT, count * UNIT)
                done = True
            except OSError as error:
                assert error.errno == (errno.EEXIST if mapping else errno.EINVAL)
                done = False
            assert done is (
                model.map(first, count, offset) if mapping else model.unmap(first, count)
            )
        for address, size in probes:
            parts: list[memoryview] = []
            owners = set()
            at = address
            while at < address + size:
                number, offset = model.units.get(at // UNIT, (-1, 0))
                owners.add(number)
                stop = min(address + size, (at // UNIT + 1) * UNIT)
                parts.append(memory.view[offset * UNIT + at % UNIT :][: stop - at])
                at = stop
            if -1 in owners:
                for get in (space.view, space.views, space.mapped):
                    with pytest.raises(AccessFault):
                        get(address, size)
                continue
            expected = b"".join(parts)
            assert b"".join(space.views(address, size)) == expected
            if len(owners) == 1:
                assert space.view(address, size) == expected
            whole = space.mapped(address, size, write=True)
            if whole is None:
                with pytest.raises(AccessFault):
                    space.view(address, size)
                space.write([(address, expected[::-1])])
            else:
                whole[:] = expected[::-1]
            # Where the file is shown twice, the last write counts.
            assert b"".join(space.views(address, size)) == b"".join(parts)
            space.write([(address, expected)])


@pytest.mark.parametrize("write", [False, True])
def test_adjacent_windows_are_mapped_side_by_side(
    space: AddressSpace, memory: SealedMemory, write: bool
) -> None:
    """What a queue is in where a guest's IOMMU maps page by page."""
    order = [3, 9, 1, 4, 15, 0]
    for at, page in enumerate(order):
        _map(space, (0x100 + at) * PAGE, PAGE, memory.fd, page * PAGE)
    view = space.mapped(0x101 * PAGE, 4 * PAGE + 64, write=write)
    assert view is not None and view.readonly is not write
    assert bytes(view) == b"".join(bytes([page]) * PAGE for page in order[1:5]) + bytes(64)
    memory.view[PAGE] = 0xEE
    assert view[PAGE] == 0xEE
    if write:
        view[3 * PAGE] = 0xDD
        assert memory.view[15 * PAGE] == 0xDD
    again = space.mapped(0x101 * PAGE, 4 * PAGE + 64, write=write)
    assert again is not None and again.obj is view.obj
    # The memory goes with the last view, and no window shows it any more before.
    space.unmap(0x103 * PAGE, PAGE)
    with pytest.raises(AccessFault):
        space.mapped(0x101 * PAGE, 4 * PAGE + 64, write=write)
    _map(space, 0x103 * PAGE, PAGE, memory.fd, 7 * PAGE)
    other = space.mapped(0x101 * PAGE, 4 * PAGE + 64, write=write)
    assert other is not None and other[2 * PAGE] == 7 and view[2 * PAGE] == 4
    mapped = mappings_of(memory)
    del view, again
    gc.collect()
    assert mappings_of(memory) < mapped


@pytest.mark.parametrize("taken", [False, True], ids=["by nobody", "by another thread"])
def test_a_remap_that_fails_unmaps_nothing_of_others(
    space: AddressSpace, memory: SealedMemory, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """mremap(2) may fail when the addresses are unmapped already; who has them then keeps them."""
    holes: list[int] = []

    def fail(_: int, __: int, size: int, ___: int, target: int) -> int:
        libc.munmap(ctypes.c_void_p(target), ctypes.c_size_t(size))
        if taken:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
            adjacent._mmap(target, size, mmap.PROT_READ, flags, -1, 0)
        holes.append(target)
        ctypes.set_errno(errno.ENOMEM)
        return ctypes.c_size_t(-1).value  # MAP_FAILED

    def is_mapped(address: int) -> bool:
        return bool(libc.msync(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 1) == 0)

    libc, kept = ctypes.CDLL(None), list[mmap.mmap]()
    monkeypatch.setattr(adjacent, "_mremap", fail)
    monkeypatch.setattr(adjacent, "_never_unmapped", kept)
    _map(space, 0, PAGE, memory.fd)
    _map(space, PAGE, PAGE, memory.fd, 3 * PAGE)
    spans = space._spans(0, 2 * PAGE)
    with pytest.raises(OSError, match="memory") as caught:
        adjacent.mapped_side_by_side(spans)
    assert is_mapped(holes[0])  # while the exception keeps the mapping
    del caught
    gc.collect()
    assert is_mapped(holes[0]) is taken
    assert len(kept) == taken
    assert space.mapped(0, 2 * PAGE) is None
    assert b"".join(space.views(0, 2 * PAGE)) == bytes(PAGE) + b"\3" * PAGE


def test_huge_pages_are_not_mapped_side_by_side(
    memory: SealedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mremap(2) would map whole ones; without them, a file that only looks so."""
    trusting = AddressSpace(trust_memory=True)
    with monkeypatch.context() as patch:
        patch.setattr("pyvfio_user.files.mmap.PAGESIZE", 2 * PAGE)
        for at, page in enumerate([3, 9]):
            _map(trusting, at * PAGE, PAGE, memory.fd, page * PAGE)
    assert trusting.mapped(0, 2 * PAGE) is None
    assert "huge pages" in trusting.unmapped_because
    assert b"".join(trusting.views(0, 2 * PAGE)) == b"\3" * PAGE + b"\x09" * PAGE
    trusting.unmap_all()


def test_rights_are_kept_over_several_windows(space: AddressSpace, memory: SealedMemory) -> None:
    _map(space, 0, PAGE, memory.fd)
    _map(space, PAGE, PAGE, memory.fd, 3 * PAGE, writable=False)
    view = space.mapped(0, 2 * PAGE)
    assert view is not None and view.readonly
    with pytest.raises(AccessFault, match="written"):
        space.mapped(0, 2 * PAGE, write=True)
    with pytest.raises(AccessFault, match="written"):
        space.write([(PAGE - 1, b"ab")])


def test_writes_to_adjacent_windows_are_logged(space: AddressSpace, memory: SealedMemory) -> None:
    for page in range(4):
        _map(space, page * PAGE, PAGE, memory.fd, (3 - page) * PAGE)
    space.start_logging()
    for _ in range(2):
        assert space.mapped(0, 2 * PAGE, write=True) is not None
        assert space.take_written(0, 4 * PAGE) == [0, PAGE]
    space.write([(2 * PAGE - 1, b"ab")])
    assert space.take_written(0, 4 * PAGE) == [PAGE, 2 * PAGE]
