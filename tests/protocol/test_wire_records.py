"""Records are stored as their annotations say, and nothing else is read or written."""

import pickle
import struct
from enum import IntEnum
from typing import Annotated, NamedTuple

import pytest

from potash_wire.packed import Packed
from potash_wire.records import (
    BOOL,
    I32,
    MAY_FOLLOW,
    NOT_STORED,
    REST,
    U8,
    U16,
    U32,
    U64,
    At,
    Number,
    Range,
    Record,
    Stored,
    WireError,
)
from potash_wire.structures import LayoutError


class Kind(IntEnum):
    READ = 1
    WRITE = 2


class Extent(NamedTuple):
    nsid: U32
    first: Annotated[U64, At(8)]
    length: Annotated[U64, Range(1, 1 << 40)]


class Everything(NamedTuple):
    number: Annotated[I32, At(4)]
    kind: Annotated[Kind, Stored("B"), At(1)]
    flag: BOOL
    words: Annotated[tuple[int, int], Stored("H", 2), Range(0, 9), At(8)]
    name: Annotated[bytes, Stored("4s")]
    extent: Extent
    pairs: Annotated[tuple[tuple[U8, U16], ...], Number("H", 40), Range(1, 2)]
    noted: Annotated[int, NOT_STORED] = 0
    text: Annotated[str, Number("B", 3), Range(0, 4)] = ""


class Optional(NamedTuple):
    number: U16
    extent: Annotated[Extent | None, MAY_FOLLOW] = None


RECORD = Record(Everything, prefix=7)
EXAMPLE = Everything(
    -2, Kind.WRITE, True, (3, 4), b"abcd", Extent(1, 2, 3), ((5, 6),), 99, "\u03bb"
)
BYTES = struct.pack(
    "<BBBBiHH4sI4xQQHBH2s", 7, 2, 1, 2, -2, 3, 4, b"abcd", 1, 2, 3, 1, 5, 6, b"\xce\xbb"
)


def test_a_record_is_stored_at_its_offsets() -> None:
    assert RECORD.encode(EXAMPLE) == BYTES
    assert RECORD.decode(BYTES) == EXAMPLE._replace(noted=0)
    assert (RECORD.size, RECORD.largest) == (42, 64)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 1 << 31},
        {"words": (0, 10)},
        {"extent": Extent(1, 2, 0)},
        {"pairs": ()},
        {"pairs": ((0, 0),) * 3},
        {"pairs": ((256, 0),)},
        {"text": "abcde"},
    ],
)
def test_what_does_not_fit_is_not_stored(wrong: dict[str, object]) -> None:
    with pytest.raises(WireError):
        RECORD.encode(EXAMPLE._replace(**wrong))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("at", "value"), [(1, 3), (2, 2), (8, 10), (32, 0), (40, 2), (40, 0), (3, 1), (46, 0xFF)]
)
def test_what_does_not_fit_is_not_read(at: int, value: int) -> None:
    with pytest.raises(WireError):
        RECORD.decode(BYTES[:at] + bytes([value]) + BYTES[at + 1 :])


def test_bytes_are_neither_missing_nor_left() -> None:
    for data in (BYTES[:-1], BYTES + b"\0", BYTES[:20], b""):
        with pytest.raises(ValueError):
            RECORD.decode(data)


def test_a_record_may_follow() -> None:
    record = Record(Optional)
    assert record.encode(Optional(1)) == b"\1\0"
    assert record.decode(b"\1\0") == Optional(1)
    whole = Optional(1, Extent(1, 2, 3))
    assert record.decode(record.encode(whole)) == whole
    with pytest.raises(WireError):
        record.decode(record.encode(whole) + bytes(24))


def test_records_follow_each_other() -> None:
    record = Record(Extent)
    data = record.encode(Extent(1, 2, 3)) + record.encode(Extent(4, 5, 6))
    assert list(record.decode_all(data)) == [Extent(1, 2, 3), Extent(4, 5, 6)]
    assert record.decode_from(data, record.size) == Extent(4, 5, 6)
    with pytest.raises(struct.error):
        list(record.decode_all(data[:-1]))


def test_records_with_fields_that_are_not_stored_follow_each_other() -> None:
    class Named(NamedTuple):
        number: U32
        name: Annotated[str, NOT_STORED] = ""

    assert list(Record(Named).decode_all(bytes((1, 0, 0, 0, 2, 0, 0, 0)))) == [Named(1), Named(2)]


def test_fields_cannot_overlap() -> None:
    class Overlapping(NamedTuple):
        first: U32
        second: Annotated[U8, At(3)]

    with pytest.raises(LayoutError):
        Record(Overlapping).encode(Overlapping(0, 0))


class Part(Packed, least_size=4):
    kind: U8
    number: Annotated[U8, Range(1, 9), At(2)] = 1


class Numbers(Packed, prefix=b"N", total=Number("H", 2)):
    numbers: Annotated[tuple[U16, ...], REST] = ()


class Whole(Packed, least_size=8, error=KeyError):
    parts: Annotated[tuple[Part, ...], Number("B", 4), Range(0, 40)]
    name: Annotated[bytes, Stored("2s")] = b"ab"


class Lists(Packed):
    lists: Annotated[tuple[Numbers, ...], Number("B")]
    rest: Annotated[bytes, REST] = b""


def test_a_packed_value_is_a_named_tuple() -> None:
    part = Part(3, number=4)
    assert (*part, repr(part)) == (3, 4, "Part(kind=3, number=4)")
    assert part._replace(kind=5) == Part(5, 4) != Part(5)
    assert pickle.loads(pickle.dumps(part)) == part and {part: 1}[Part(3, 4)] == 1
    with pytest.raises(AttributeError):
        part.kind = 1  # type: ignore[misc]  # wrong on purpose
    for given in ({}, {"kind": 1, "other": 2}):
        with pytest.raises(TypeError, match=r"Part\(\)"):
            Part(**given)
    assert part.encode() == b"\3\0\4\0"
    assert Part.decode_head(b"\3\0\4\0more") == part


@pytest.mark.parametrize("count", [0, 1, 2, 16, 17, 40])
def test_any_number_of_parts_follows(count: int) -> None:
    whole = Whole(tuple(Part(at, at % 9 + 1) for at in range(count)), b"xy")
    data = whole.encode()
    parts = b"".join(bytes([at, 0, at % 9 + 1, 0]) for at in range(count))
    assert data == b"xy\0\0" + bytes([count, 0, 0, 0]) + parts
    for decode in (Whole.decode, Whole.decode_head):
        assert decode(data) == whole
    assert Whole.decode_head(data + b"more") == whole
    wrong = [data[:-1], data + b"\0", data[:4] + bytes([count + 1]) + data[5:]]
    wrong += [data[:-2] + b"\x0a\0"] if count else []
    for other in wrong:
        with pytest.raises(KeyError):
            Whole.decode(other)


def test_a_total_length_is_stated() -> None:
    numbers = Numbers((1, 2, 0x304))
    assert numbers.encode() == b"N\0\x0a\0\1\0\2\0\4\3"
    assert Numbers.decode(numbers.encode() + b"padding") == numbers
    assert Numbers.decode(b"N\0\4\0") == Numbers()
    for wrong in (b"N\0\5\0\1", b"N\0\3\0", b"N\0\6\0\1", b"N"):
        with pytest.raises(WireError):
            Numbers.decode(wrong)
    lists = Lists((numbers, Numbers(), Numbers((7,))), b"rest")
    assert lists.encode() == b"\3" + b"".join(one.encode() for one in lists.lists) + b"rest"
    assert Lists.decode(lists.encode()) == lists
    with pytest.raises(WireError):
        Lists.decode(lists.encode()[:12])
    assert [*Numbers.decode_list(b"".join(one.encode() for one in lists.lists))] == [*lists.lists]


class Data(Packed):
    offset: U16
    data: Annotated[bytes, Number("B")]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 255])
def test_any_number_of_bytes_follows(count: int) -> None:
    data = Data(5, bytes(range(count)))
    encoded = data.encode()
    assert encoded == b"\5\0" + bytes([count]) + data.data
    assert Data.decode(encoded) == Data.decode_head(encoded + b"more") == data
    for wrong in (encoded + b"\0", encoded[:2] + bytes([count ^ 1]) + encoded[3:]):
        with pytest.raises(WireError):
            Data.decode(wrong)
