"""Flat vectors survive the wire, and a stream that is not whole is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat_core.parts import Assembler, StreamError, cut, messages


@given(elements=st.integers(0, 400), part_bytes=st.integers(1, 300))
def test_a_vector_comes_back_bit_for_bit_whatever_the_size_of_the_parts(elements, part_bytes):
    vector = np.random.default_rng(elements).standard_normal(elements).astype(np.float32)
    assembler = Assembler(vector.nbytes)
    for part in cut(vector, part_bytes):
        assembler.add(pb.Part.FromString(part.SerializeToString()))
    assert assembler.complete
    assert assembler.finish().tobytes() == vector.tobytes()


@given(elements=st.integers(0, 400), part_bytes=st.integers(1, 300))
def test_messages_carry_the_same_parts(elements, part_bytes):
    vector = np.arange(elements, dtype=np.float32)
    carried = [message.part for message in messages(vector, ps.ModelPart, part_bytes)]
    assert carried == list(cut(vector, part_bytes))


def test_a_view_with_gaps_is_sent_as_what_it_shows():
    vector = np.arange(20, dtype=np.float32)[::2]
    assembler = Assembler(vector.nbytes)
    for part in cut(vector):
        assembler.add(part)
    assert assembler.finish().tolist() == vector.tolist()


def test_a_stream_that_ends_early_is_refused_with_both_lengths():
    parts = list(cut(np.zeros(10, np.float32), 16))
    assembler = Assembler(40)
    assembler.add(parts[0])
    with pytest.raises(StreamError, match=r"byte 16 of 40"):
        assembler.finish()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([pb.Part(offset=8, data=b"12345678")], "starts at byte 8; 0 was expected"),
        ([pb.Part(offset=0, data=b"1" * 24)], "reach byte 24 of 16"),
        (
            [pb.Part(offset=0, data=b"1" * 8), pb.Part(offset=0, data=b"1" * 8)],
            "starts at byte 0; 8 was expected",
        ),
    ],
)
def test_parts_out_of_order_or_beyond_the_end_are_refused(parts, message):
    assembler = Assembler(16)
    with pytest.raises(StreamError, match=message):
        for part in parts:
            assembler.add(part)


def test_an_announced_size_beyond_the_limit_allocates_nothing():
    with pytest.raises(StreamError, match="more than the 100 expected"):
        Assembler(2**60, limit_bytes=100)
    with pytest.raises(StreamError, match="multiple of 4"):
        Assembler(6)
