"""Frames: what goes in comes out in any pieces, and nothing else comes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.core.diag import SmeltError
from smelt.devicefarm.frames import HEADER_BYTES, MAX_PAYLOAD, Decoder, Frame, FrameType, encode

FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameType),
    st.binary(max_size=300),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_round_trip_in_any_pieces(frames: list[Frame], sizes: list[int]) -> None:
    data = b"".join(map(encode, frames))
    decoder, found, at, turn = Decoder(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    decoder.finish()
    assert found == frames


@given(FRAMES, st.data())
def test_any_changed_byte_is_noticed(frame: Frame, data: st.DataObject) -> None:
    good = encode(frame)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    decoder = Decoder()
    with pytest.raises(SmeltError) as caught:
        list(decoder.feed(bytes(bad)))
        decoder.finish()
    assert caught.value.kind == "infra"


@given(FRAMES, st.data())
def test_truncated_stream_is_noticed(frame: Frame, data: st.DataObject) -> None:
    good = encode(frame)
    decoder = Decoder()
    cut = data.draw(st.integers(1, len(good) - 1))
    assert list(decoder.feed(good[:cut])) == []
    with pytest.raises(SmeltError, match="into a frame"):
        decoder.finish()


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_never_a_frame(data: bytes) -> None:
    if b"SMLT".startswith(data[:4]):
        assert list(Decoder().feed(data)) == []
        return
    with pytest.raises(SmeltError) as caught:
        list(Decoder().feed(data))
    assert caught.value.kind == "infra"


def test_the_longest_frame() -> None:
    frame = Frame(FrameType.DATA, bytes(MAX_PAYLOAD), 1)
    assert list(Decoder().feed(encode(frame))) == [frame]
    with pytest.raises(SmeltError, match="longer than the limit"):
        encode(Frame(FrameType.DATA, bytes(MAX_PAYLOAD + 1), 1))


def test_layout_is_the_documented_one() -> None:
    data = encode(Frame(FrameType.RUN, b"abc", job=0x0102030405060708, fence=9))
    assert data[:8] == b"SMLT\x03\x05\x00\x00"
    assert data[8:16] == bytes(range(8, 0, -1))
    assert data[16:24] == b"\x09" + bytes(7)
    assert data[24:28] == b"\x03\x00\x00\x00"
    assert data[HEADER_BYTES : HEADER_BYTES + 3] == b"abc"
    assert data[-4:] == (0x352441C2).to_bytes(4, "little")  # crc32 of 'abc'


def test_banner_is_quoted_in_the_error() -> None:
    with pytest.raises(SmeltError, match="Welcome"):
        list(Decoder().feed(b"Welcome to board 7"))
