"""The manifest says exactly which tensors travel, and names what differs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.v1 import common_pb2 as pb
from offbeat_core.manifest import Manifest, TensorSpec

specs = st.lists(
    st.builds(
        TensorSpec,
        st.text(st.characters(codec="ascii", exclude_characters="\n\t"), min_size=1, max_size=6),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from(["float32", "bfloat16"]),
    ),
    max_size=6,
    unique_by=lambda spec: spec.name,
)


@given(specs)
def test_a_manifest_comes_back_from_the_wire_with_its_digest(tensors):
    manifest = Manifest(tuple(tensors[::2]), tuple(tensors[1::2]))
    back = Manifest.from_proto(pb.Manifest.FromString(manifest.to_proto().SerializeToString()))
    assert back == manifest
    assert back.digest == manifest.digest
    assert manifest.difference(back) == ""


@given(specs)
def test_the_slices_tile_the_flat_vector(tensors):
    manifest = Manifest(tuple(tensors))
    covered = np.zeros(manifest.elements, int)
    for where in manifest.slices.values():
        covered[where] += 1
    assert (covered == 1).all()
    for name, where in manifest.slices.items():
        if where.stop > where.start:
            assert manifest.tensor_at(where.start) == name
            assert manifest.tensor_at(where.stop - 1) == name


@pytest.mark.parametrize(
    "other",
    [
        Manifest((TensorSpec("w", (3, 2)), TensorSpec("b", (3,)))),
        Manifest((TensorSpec("w", (2, 3), "float16"), TensorSpec("b", (3,)))),
        Manifest((TensorSpec("b", (3,)), TensorSpec("w", (2, 3)))),
        Manifest((TensorSpec("w", (2, 3)),)),
        Manifest((TensorSpec("w", (2, 3)),), (TensorSpec("b", (3,)),)),
    ],
)
def test_another_shape_dtype_order_count_or_kind_is_another_manifest_and_is_named(other):
    manifest = Manifest((TensorSpec("w", (2, 3)), TensorSpec("b", (3,))))
    assert other.digest != manifest.digest
    assert manifest.difference(other)


def test_a_scalar_has_one_element_and_an_empty_tensor_none():
    manifest = Manifest((TensorSpec("scale", ()), TensorSpec("nothing", (0, 3))))
    assert manifest.total_bytes == 4


def test_manifests_from_strangers_are_checked():
    with pytest.raises(ValueError, match="'w' comes twice"):
        Manifest.from_proto(
            pb.Manifest(trainable=[pb.TensorSpec(name="w")], buffers=[pb.TensorSpec(name="w")])
        )
    with pytest.raises(ValueError, match="negative dimension"):
        Manifest.from_proto(pb.Manifest(trainable=[pb.TensorSpec(name="w", shape=[-1])]))
