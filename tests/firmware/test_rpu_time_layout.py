"""Which pages of the modelled drive namespaces have: all of their own, and as many as they want."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.rpu.timing.layout import Layout

PAGES = 40
STEPS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 15)), max_size=30)


def pages_of(layout: Layout, nsid: int) -> list[int]:
    found = layout.find(nsid, 0, layout.pages(nsid))
    return [page for first, count in found for page in range(first, first + count)]


@given(STEPS)
def test_namespaces_come_and_go(steps: list[tuple[int, int]]) -> None:
    layout, sizes = Layout(PAGES), dict[int, int]()
    for nsid, count in steps:
        if nsid in sizes:
            before = pages_of(layout, nsid)
            del sizes[nsid]
            gone = layout.remove(nsid)
            assert [at for first, n in gone for at in range(first, first + n)] == before
        elif sum(sizes.values()) + count <= PAGES:
            layout.place(nsid, count)
            sizes[nsid] = count
        else:
            with pytest.raises(ValueError, match=f"no room for {count} pages"):
                layout.place(nsid, count)
        every = [pages_of(layout, one) for one in sizes]
        assert list(map(len, every)) == list(sizes.values())
        used = sorted(page for pages in every for page in pages)
        assert len(set(used)) == len(used) and set(used) <= set(range(PAGES))
        again = Layout(PAGES, layout.pieces)
        assert [pages_of(again, one) for one in sizes] == every
        again.place(99, PAGES - len(used))
        assert not set(pages_of(again, 99)) & set(used)


def test_a_range_in_several_pieces_is_found_in_order() -> None:
    layout = Layout(12, [(1, 8, 3), (1, 2, 4)])
    assert list(layout.find(1, 0, 7)) == [(8, 3), (2, 4)]
    assert list(layout.find(1, 2, 2)) == [(10, 1), (2, 1)]
    assert list(layout.find(1, 4, 3)) == [(3, 3)]
    assert list(layout.find(1, 7, 0)) == []
    with pytest.raises(ValueError, match="ends before"):
        list(layout.find(1, 6, 2))
    with pytest.raises(ValueError, match="ends before"):
        list(layout.find(2, 0, 1))


@pytest.mark.parametrize(
    "pieces", [[(1, 0, 3), (2, 2, 1)], [(1, -1, 1)], [(1, 0, 0)], [(1, 11, 2)], [(1, 0, 1)] * 2]
)
def test_pieces_that_cannot_be_are_refused(pieces: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match="overlap, or leave the drive"):
        Layout(12, pieces)
