"""Frames: their bytes, spelled out, and a stream cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash.vm.frames import LARGEST, Decoder, Frame, FrameError, Kind, encode

FRAMES = st.lists(
    st.builds(Frame, st.sampled_from(list(Kind)), st.integers(0, 0xFFFF), st.binary(max_size=300)),
    max_size=8,
)


def test_a_frame_is_kind_a_zero_channel_length_and_bytes_little_endian() -> None:
    assert encode(Kind.OUTPUT, 0x1234, b"abc") == bytes.fromhex("04 00 3412 03000000") + b"abc"


def test_the_largest_frame_passes_and_a_larger_one_is_no_frame() -> None:
    whole = b"\x04\x00\x01\x00" + LARGEST.to_bytes(4, "little") + bytes(LARGEST)
    assert list(Decoder().feed(whole)) == [Frame(4, 1, bytes(LARGEST))]
    with pytest.raises(FrameError, match="longer than any"):
        list(Decoder().feed(b"\x04\x00\x01\x00" + (LARGEST + 1).to_bytes(4, "little")))


@given(FRAMES, st.integers(1, 20))
def test_a_stream_cut_into_pieces_gives_the_same_frames(frames: list[Frame], piece: int) -> None:
    stream = b"".join(
        bytes([frame.kind, 0])
        + frame.channel.to_bytes(2, "little")
        + len(frame.data).to_bytes(4, "little")
        + frame.data
        for frame in frames
    )
    decoder = Decoder()
    found: list[Frame] = []
    for start in range(0, len(stream), piece):
        found += decoder.feed(stream[start : start + piece])
    assert found == frames


def test_frames_given_before_the_reader_stopped_are_not_given_again() -> None:
    decoder = Decoder()
    first, second = encode(Kind.OUTPUT, 1, b"a"), encode(Kind.OUTPUT, 2, b"b")
    for frame in decoder.feed(first + second):
        assert frame.channel == 1
        break
    assert [frame.channel for frame in decoder.feed(b"")] == [2]
