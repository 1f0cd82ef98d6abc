"""How structures and words are declared, decoded and encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvme_spec import layout
from nvme_spec.layout import (
    LayoutError,
    Structure,
    bits,
    nested,
    raw,
    table,
    text,
    u8,
    u16,
    u32,
    uint,
    uints,
)
from nvme_spec.words import Word, field


class Inner(Structure):
    SIZE = 4
    low = bits(0, 2, 0, 3)
    high = bits(0, 2, 12, 15)
    tail = u16(2)


class Outer(Structure):
    SIZE = 32
    first = u8(0)
    three = uint(1, 3)
    name = text(4, 6)
    blob = raw(10, 2)
    inner = nested(12, Inner)
    rows = table(16, Inner, 2)
    words = uints(24, 2, 3)


def test_a_new_structure_is_all_zeroes() -> None:
    assert bytes(Outer()) == bytes(32)
    assert len(Outer()) == 32


def test_fields_are_little_endian_at_their_offsets() -> None:
    outer = Outer(first=0x11, three=0x443322, name="ab", blob=b"\xfe", words=(1, 0x0203))
    outer.inner = Inner(low=5, high=6, tail=0x0708)
    assert bytes(outer) == (
        bytes.fromhex("11 22 33 44")
        + b"ab    "
        + bytes.fromhex("fe 00 05 60 08 07")
        + bytes(8)
        + bytes.fromhex("01 00 03 02 00 00")
        + bytes(2)
    )


def test_a_decode_reads_what_an_encode_wrote() -> None:
    data = bytes(range(32))
    outer = Outer(data)
    assert outer.three == 0x030201
    assert outer.rows[1].tail == 0x1716
    assert outer.words == (0x1918, 0x1B1A, 0x1D1C)
    assert bytes(outer) == data


@given(st.binary(min_size=32, max_size=32))
def test_bytes_that_no_field_names_survive(data: bytes) -> None:
    outer = Outer(data)
    outer.first = 0
    assert bytes(outer) == b"\0" + data[1:]


def test_a_structure_does_not_share_the_buffer_it_decodes() -> None:
    buffer = bytearray(32)
    outer = Outer(buffer)
    buffer[0] = 9
    assert outer.first == 0


def test_setting_bits_leaves_their_neighbours() -> None:
    inner = Inner(b"\xff\xff\0\0")
    inner.low = 0
    assert bytes(inner) == b"\xf0\xff\0\0"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_buffer_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Outer(bytes(size))


def test_a_value_that_does_not_fit_changes_nothing() -> None:
    outer = Outer(first=7, name="abc")
    for name, value in [
        ("first", 256),
        ("first", -1),
        ("three", 1 << 24),
        ("name", "too long"),
        ("name", "é"),
        ("blob", b"123"),
        ("words", (1, 2, 3, 4)),
        ("words", (1 << 16,)),
        ("rows", (Inner(), Inner(), Inner())),
    ]:
        with pytest.raises(ValueError):
            setattr(outer, name, value)
    inner = Inner(tail=1)
    with pytest.raises(ValueError):
        inner.low = 16
    assert bytes(outer) == b"\7\0\0\0abc   " + bytes(22)
    assert bytes(inner) == b"\0\0\1\0"


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="no field 'nothing'"):
        Outer(nothing=1)


def test_text_is_padded_with_spaces_or_with_nuls() -> None:
    class Names(Structure):
        SIZE = 8
        spaced = text(0, 4)
        terminated = text(4, 4, pad=b"\0")

    names = Names(spaced="a", terminated="b")
    assert bytes(names) == b"a   b\0\0\0"
    assert (names.spaced, names.terminated) == ("a", "b")


def test_a_structure_lists_its_fields() -> None:
    assert [name for name, _ in Inner()] == ["low", "high", "tail"]
    assert repr(Inner(tail=3)) == "Inner(tail=3)"
    assert Inner(tail=3) == Inner(b"\0\0\3\0") != Inner()


def test_a_declaration_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(LayoutError, match="ends after"):
        type("TooShort", (Structure,), {"SIZE": 3, "value": u32(0)})
    with pytest.raises(LayoutError, match="overlaps"):
        type("Overlap", (Structure,), {"SIZE": 8, "one": u32(0), "two": u16(2)})
    with pytest.raises(LayoutError, match="overlaps"):
        type("Overlap", (Structure,), {"SIZE": 1, "one": bits(0, 1, 0, 3), "two": bits(0, 1, 3, 4)})
    with pytest.raises(LayoutError, match="not in"):
        bits(0, 1, 0, 8)
    with pytest.raises(LayoutError):
        layout.raw(0, 0)


class Control(Word):
    WIDTH = 2
    en = field(0)
    mps = field(7, 10)


def test_a_words_fields_are_its_bits() -> None:
    assert Control(en=1, mps=5).encode() == 0x0281
    assert (Control(0x0281).en, Control(0x0281).mps) == (1, 5)
    assert int(Control.decode(0x0281)) == 0x0281
    assert repr(Control(mps=5)) == "Control(mps=0x5)"


def test_an_update_makes_another_word_and_keeps_unnamed_bits() -> None:
    word = Control(0xF001)
    assert word.update(en=0, mps=0xF).encode() == 0xF780
    assert word.encode() == 0xF001
    assert word == Control(0xF001) != Control(0xF000)
    assert hash(word) == hash(Control(0xF001))


def test_a_word_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="2 bytes"):
        Control(0x1_0000)
    with pytest.raises(ValueError, match="bits 10:7"):
        Control(mps=16)
    with pytest.raises(TypeError, match="no field"):
        Control(css=1)


def test_a_word_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(LayoutError, match="overlaps"):
        type("Overlap", (Word,), {"one": field(0, 3), "two": field(3)})
    with pytest.raises(LayoutError, match="not in"):
        type("TooWide", (Word,), {"WIDTH": 2, "one": field(16)})
    with pytest.raises(LayoutError):
        field(3, 2)
