"""Samples as they travel: both ends lay them out alike, and refuse what can't be meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core import parts
from offbeat_core.samples import ALIGNED, STORAGE, Field, Layout, from_proto, to_proto

fields = st.lists(
    st.builds(
        Field,
        name=st.text("xyz", max_size=3),
        dtype=st.sampled_from(sorted(STORAGE)),
        shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
).map(tuple)


@given(fields=fields, count=st.integers(0, 5), data=st.data())
def test_each_field_is_found_where_the_other_end_has_put_it(fields, count, data):
    layout = Layout(fields, count)
    sent = np.zeros(layout.total_bytes, np.uint8)
    chance = np.random.default_rng(data.draw(st.integers(0, 9)))
    sent[:] = chance.integers(0, 2, sent.size)
    received = parts.Assembler(layout.total_bytes, dtype="|u1")
    for part in parts.cut(sent, 7):
        received.add(part)
    arrays = Layout(from_proto(to_proto(fields)), count).arrays(received.finish())
    for field, start, array in zip(fields, layout.starts, arrays, strict=False):
        assert start % ALIGNED == 0
        assert array.shape == (count, *field.shape)
        assert array.flags.aligned
        assert array.tobytes() == sent[start : start + count * field.sample_bytes].tobytes()


def test_fields_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="field 'x': dtype complex64"):
        Field("x", "complex64", ())
    with pytest.raises(ValueError, match="negative dimension"):
        Field("x", "float32", (3, -1))
    with pytest.raises(ValueError, match="0 fields"):
        Layout((), 1)
    with pytest.raises(ValueError, match=r"a sample of \d+ bytes"):
        Layout((Field("x", "float32", (2**20, 2**20)),), 1)
