"""The client's memory: what may be mapped, what may be seen, and when it goes."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import tempfile

import pytest

from pyvfio_user.files import MAX_BYTES, MAX_FILES
from pyvfio_user.memory import AccessFault, AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from support.vfio_user import leaked, mappings_of, open_descriptors

PAGE = 4096


def _map(
    space: AddressSpace,
    address: int,
    size: int,
    fd: int | None,
    offset: int = 0,
    *,
    readable: bool = True,
    writable: bool = True,
) -> None:
    space.map(address, size, fd=fd, offset=offset, readable=readable, writable=writable)


def _refused(space: AddressSpace, *args: int | None, number: int, **rights: bool) -> None:
    """A map is refused with this errno and a reason, and has changed nothing."""
    before = space.generation
    with pytest.raises(OSError) as caught:
        _map(space, *args, **rights)  # type: ignore[arg-type]  # bad arguments are the point
    assert caught.value.errno == number
    assert caught.value.strerror
    assert space.generation == before


def test_a_view_is_read_only_unless_it_is_asked_for_to_write(
    space: AddressSpace, memory: SealedMemory
) -> None:
    _map(space, 0, memory.size, memory.fd)
    assert space.view(PAGE, 4) == bytes([1]) * 4
    assert all(view.readonly for view in (space.view(PAGE, 4), *space.views(PAGE, 4)))


def test_a_view_shows_the_client_s_bytes_both_ways(
    space: AddressSpace, memory: SealedMemory
) -> None:
    _map(space, 0x10_0000, 4 * PAGE, memory.fd, 2 * PAGE)
    assert bytes(space.view(0x10_0000, 2, write=False)) == b"\2\2"
    assert bytes(space.view(0x10_0000 + PAGE - 1, 2, write=False)) == b"\2\3"
    space.view(0x10_0000 + 10, 3, write=True)[:] = b"abc"
    assert bytes(memory.view[2 * PAGE + 9 : 2 * PAGE + 14]) == b"\2abc\2"
    memory.view[2 * PAGE] = 0xEE
    assert space.view(0x10_0000, 1, write=False)[0] == 0xEE


def test_a_view_for_reading_cannot_be_written(space: AddressSpace, memory: SealedMemory) -> None:
    _map(space, 0, PAGE, memory.fd)
    assert space.view(0, PAGE, write=False).readonly
    assert not space.view(0, PAGE, write=True).readonly


@pytest.mark.parametrize(
    ("address", "size"),
    [
        (0xFFF, 1),
        (0xFFF, 2),
        (0x3000, 1),
        (0x2FFF, 2),
        (0x1000, 0x2001),
        (0x1000, 0),
        (0x1000, -1),
        (-1, 1),
        (1 << 64, 1),
        ((1 << 64) - 1, 1),
    ],
)
@pytest.mark.parametrize("write", [False, True])
def test_a_view_outside_of_a_mapping_faults(
    space: AddressSpace, memory: SealedMemory, address: int, size: int, write: bool
) -> None:
    _map(space, 0x1000, 0x2000, memory.fd)
    space.view(0x1000, 1, write=write)
    with pytest.raises(AccessFault) as caught:
        space.view(address, size, write=write)
    assert (caught.value.address, caught.value.size) == (address, size)
    assert caught.value.errno == errno.EFAULT
    assert caught.value.reason in str(caught.value)


def test_a_view_never_straddles_mappings_and_views_do(
    space: AddressSpace, memory: SealedMemory
) -> None:
    _map(space, 0x1000, PAGE, memory.fd, 5 * PAGE)
    _map(space, 0x2000, PAGE, memory.fd, 1 * PAGE)
    with pytest.raises(AccessFault):
        space.view(0x1FFF, 2, write=False)
    pieces = space.views(0x1FFE, 4, write=False)
    assert [bytes(piece) for piece in pieces] == [b"\5\5", b"\1\1"]
    assert [len(piece) for piece in space.views(0x1000, 0x2000, write=True)] == [PAGE, PAGE]
    for address, size in [(0xFFF, 2), (0x2FFF, 2), (0x1000, 0)]:
        with pytest.raises(AccessFault):
            space.views(address, size, write=False)


def test_rights_are_kept(space: AddressSpace, memory: SealedMemory) -> None:
    _map(space, 0x1000, PAGE, memory.fd, writable=False)
    _map(space, 0x2000, PAGE, memory.fd, readable=False)
    assert space.view(0x1000, 1, write=False).readonly
    assert not space.view(0x2000, 1, write=True).readonly
    with pytest.raises(AccessFault, match="written"):
        space.view(0x1000, 1, write=True)
    with pytest.raises(AccessFault, match="read"):
        space.view(0x2000, 1, write=False)


def test_memory_without_a_file_is_known_and_refused(space: AddressSpace) -> None:
    """Windows onto ROM come without a descriptor, and read-only."""
    _map(space, 0xC0000, 0x20000, None, writable=False)
    for write in (False, True):
        with pytest.raises(AccessFault):
            space.view(0xC0000, 4, write=write)
    _refused(space, 0xC0000, 0x20000, None, number=errno.EEXIST)
    space.unmap(0xC0000, 0x20000)


@pytest.mark.parametrize(
    ("address", "size"),
    [(0x2000, 0x2000), (0x1000, 0x1001), (0x3FFF, 1), (0x3FFF, 0x1000), (0x1000, 0x8000)],
)
def test_an_overlapping_map_is_refused(
    space: AddressSpace, memory: SealedMemory, address: int, size: int
) -> None:
    _map(space, 0x2000, 0x2000, memory.fd)
    _refused(space, address, size, memory.fd, number=errno.EEXIST)
    _refused(space, address, size, None, number=errno.EEXIST)


def test_adjacent_maps_are_no_overlap(space: AddressSpace, memory: SealedMemory) -> None:
    _map(space, 0x2000, 0x1000, memory.fd)
    _map(space, 0x1000, 0x1000, memory.fd)
    _map(space, 0x3000, 0x1000, memory.fd)


def test_a_range_that_cannot_be_is_refused(space: AddressSpace, memory: SealedMemory) -> None:
    for address, size, offset in [
        (0, 0, 0),
        (0, -1, 0),
        (-PAGE, PAGE, 0),
        ((1 << 64) - PAGE, PAGE + 1, 0),
        (0, PAGE, -1),
        (0, PAGE, 16 * PAGE),
        (0, 2, 16 * PAGE - 1),
        (0, PAGE, (1 << 64) - PAGE),
    ]:
        _refused(space, address, size, memory.fd, offset, number=errno.EINVAL)
    _map(space, (1 << 64) - PAGE, PAGE, memory.fd)
    assert len(space.view((1 << 64) - PAGE, PAGE, write=True)) == PAGE


def test_memory_that_is_not_sealed_against_shrinking_is_refused(space: AddressSpace) -> None:
    allowing = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    fixed = os.memfd_create("unsealable")
    grow = os.memfd_create("grow", os.MFD_ALLOW_SEALING)
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as file:
        for fd in (allowing, fixed, grow, file.fileno()):
            os.ftruncate(fd, PAGE)
        fcntl.fcntl(grow, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        for fd in (allowing, fixed, grow, file.fileno(), reader):
            _refused(space, 0, PAGE, fd, number=errno.EINVAL)
        trusting = AddressSpace(trust_memory=True)
        for at, fd in enumerate((fixed, grow, file.fileno())):
            _map(trusting, at * PAGE, PAGE, fd)
            trusting.view(at * PAGE, 2, write=True)[:] = b"hi"
            assert os.pread(fd, 2, 0) == b"hi"
        _refused(trusting, 8 * PAGE, PAGE, reader, number=errno.EINVAL)
        _map(trusting, 8 * PAGE, PAGE, allowing)
        trusting.unmap_all()
    assert fcntl.fcntl(allowing, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SHRINK, "what can be is sealed"
    _map(space, 0, PAGE, allowing)
    for fd in (allowing, fixed, grow, reader, writer):
        os.close(fd)


def test_memory_in_huge_pages_is_refused(space: AddressSpace) -> None:
    """Nothing seals it against holes, and an access to one ends the process when no page is
    left."""
    try:
        fd = os.memfd_create("huge pages", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this kernel has no huge pages")
    try:
        os.ftruncate(fd, 1 << 21)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        _refused(space, 0, 1 << 21, fd, number=errno.EINVAL)
    finally:
        os.close(fd)


def test_a_file_that_may_only_be_read_is_mapped_so(space: AddressSpace) -> None:
    with SealedMemory(PAGE) as memory:
        readonly = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY)
        try:
            _refused(space, 0, PAGE, readonly, number=errno.EACCES)
            _map(space, 0, PAGE, readonly, writable=False)
            memory.view[:2] = b"hi"
            assert bytes(space.view(0, 2, write=False)) == b"hi"
            with pytest.raises(AccessFault):
                space.view(0, 1, write=True)
        finally:
            os.close(readonly)
        _map(space, PAGE, PAGE, memory.fd)
        space.view(PAGE, 2, write=True)[:] = b"HO"
        assert bytes(memory.view[:2]) == b"HO"


def test_a_file_that_has_grown_is_mapped_anew(space: AddressSpace) -> None:
    fd = os.memfd_create("growing", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    _map(space, 0, PAGE, fd)
    os.ftruncate(fd, 2 * PAGE)
    _map(space, PAGE, PAGE, fd, PAGE)
    os.pwrite(fd, b"new", PAGE)
    os.pwrite(fd, b"old", 0)
    os.close(fd)
    assert bytes(space.view(PAGE, 3, write=False)) == b"new"
    assert bytes(space.view(0, 3, write=False)) == b"old"


def test_unmap_all_closes_every_window(space: AddressSpace, memory: SealedMemory) -> None:
    for page in range(4):
        _map(space, page * PAGE, PAGE, memory.fd)
    space.view(0, 1, write=False)
    space.unmap_all()
    for page in range(4):
        with pytest.raises(AccessFault):
            space.view(page * PAGE, 1, write=False)
    _map(space, 0, 4 * PAGE, memory.fd)


def test_each_change_has_a_generation_that_no_other_client_shares(
    space: AddressSpace, memory: SealedMemory
) -> None:
    other = AddressSpace()
    seen = [space.generation, other.generation]
    _map(space, 0, PAGE, memory.fd)
    seen.append(space.generation)
    _map(other, 0, PAGE, memory.fd)
    seen.append(other.generation)
    space.unmap(0, PAGE)
    seen.append(space.generation)
    other.unmap_all()
    seen.append(other.generation)
    assert len(set(seen)) == len(seen)


def test_a_file_is_mapped_once_however_many_windows_it_has(
    space: AddressSpace, memory: SealedMemory
) -> None:
    before = mappings_of(memory)
    for page in range(16):
        _map(space, page * PAGE, PAGE, memory.fd, page * PAGE)
        space.unmap(page * PAGE, PAGE)
        _map(space, page * PAGE, PAGE, memory.fd, page * PAGE)
    duplicate = os.dup(memory.fd)
    _map(space, 16 * PAGE, PAGE, duplicate)
    os.close(duplicate)
    assert mappings_of(memory) == before + 1
    space.unmap_all()
    gc.collect()
    assert mappings_of(memory) == before


def test_a_view_outlives_its_mapping_and_then_gives_the_memory_back(
    space: AddressSpace, memory: SealedMemory
) -> None:
    before = mappings_of(memory)
    _map(space, 0, PAGE, memory.fd)
    view = space.view(0, PAGE, write=True)
    space.unmap_all()
    view[:3] = b"xyz"
    assert bytes(memory.view[:3]) == b"xyz"
    del view
    gc.collect()
    assert mappings_of(memory) == before


def test_the_number_of_files_is_bounded_and_the_unused_make_room(space: AddressSpace) -> None:
    files = [SealedMemory(PAGE) for _ in range(MAX_FILES + 1)]
    try:
        for number, file in enumerate(files[:MAX_FILES]):
            _map(space, number * PAGE, PAGE, file.fd)
        held = open_descriptors()
        _refused(space, 1 << 32, PAGE, files[-1].fd, number=errno.ENOSPC)
        space.unmap(0, PAGE)
        _map(space, 1 << 32, PAGE, files[-1].fd)
        assert not leaked(held)
        trusting = AddressSpace(trust_memory=True)
        for number, file in enumerate(files):
            _map(trusting, number * PAGE, PAGE, file.fd)
        trusting.unmap_all()
    finally:
        for file in files:
            file.close()


def test_a_file_that_grows_with_each_window_is_as_many_files(space: AddressSpace) -> None:
    """Each time it is mapped anew, which takes a descriptor and addresses of this process."""
    fd = os.memfd_create("growing", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    before = open_descriptors()
    try:
        for page in range(MAX_FILES):
            os.ftruncate(fd, (page + 1) * PAGE)
            _map(space, page * PAGE, PAGE, fd, page * PAGE)
        os.ftruncate(fd, (MAX_FILES + 1) * PAGE)
        _refused(space, 1 << 32, PAGE, fd, MAX_FILES * PAGE, number=errno.ENOSPC)
        assert len(leaked(before)) == MAX_FILES
        space.unmap(0, PAGE)
        assert len(leaked(before)) == MAX_FILES - 1
        _map(space, 1 << 32, PAGE, fd, MAX_FILES * PAGE)
        _map(space, 0, PAGE, fd)
        assert len(leaked(before)) == MAX_FILES
    finally:
        space.unmap_all()
        os.close(fd)
    assert not leaked(before)


def test_the_bytes_of_all_files_are_bounded(space: AddressSpace) -> None:
    with SealedMemory(MAX_BYTES // 2) as half, SealedMemory(MAX_BYTES // 2 + 1) as more:
        _map(space, 0, PAGE, half.fd)
        _refused(space, 1 << 32, PAGE, more.fd, number=errno.ENOSPC)
        space.unmap(0, PAGE)
        _map(space, 1 << 32, PAGE, more.fd)
        space.unmap_all()


def test_sealed_memory_cannot_change_its_size() -> None:
    with SealedMemory(PAGE) as memory:
        for size in (0, 2 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)
        assert len(memory.view) == memory.size == PAGE


def test_sealed_memory_leaves_nothing_open_even_under_a_view() -> None:
    before = open_descriptors()
    memory = SealedMemory(PAGE)
    view = memory.view[10:20]
    memory.close()
    memory.close()
    view[0] = 3
    del view, memory
    assert not leaked(before)


def test_a_file_that_is_too_large_for_the_process_is_refused(space: AddressSpace) -> None:
    fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 1 << 62)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        _refused(space, 0, 1 << 62, fd, number=errno.ENOSPC)
    finally:
        os.close(fd)


assert mmap.PAGESIZE == PAGE
