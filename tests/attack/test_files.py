"""Hostile files of fixed seeds, each class of damage once: refused in words, in bounded time, or compiled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attack_files import AnyCase, case, fields, ops, outcomes, placed

BATCH = 16
FOUND = frozenset(
    {
        "LinearAttention fewer queries: input 0 of names",
        "test_causal_conv_with_state_b1_c1_degenerate.dynamic: input 0 of 0 elements",
        "test_resize_downsample_sizes_cubic_antialias.dynamic: input 3 all 0",
        "MeanVarianceNormalization, mean alone: input 0 constant, as bool",
        "test_ai_onnx_ml_tree_ensemble_set_membership.static: tree_roots empty",
        "test_ConvTranspose2d_no_bias.static: pads all -1",
        "test_col2im_dilations.static: input 1 constant, all 1099511627776",
        "CausalConvWithState plain False: input 0 of rank 0",
        "DecoderMaskedMultiHeadAttention: other, bias, scores: input 1 of 0 elements",
        "test_gathernd_example_int32_batch_dim1.dynamic: batch_dims -2",
        "test_gathernd_example_float32.dynamic: input 1 constant, -9223372036854775808 at the end",
        "test_layer_normalization_2d_axis0.dynamic: input 2 twice as long",
        "test_lppool_1d_default.dynamic: p 0",
        "test_lrn.static: size 0",
        "test_maxunpool_export_with_output_shape.dynamic: input 2 a scalar",
        "test_maxunpool_export_with_output_shape.dynamic: input 2 empty",
        "test_maxpool_2d_same_lower.static: kernel_shape [1] 4611686018427387904",
        "test_resize_tf_crop_and_resize_axes_2_3.static: input 1 of rank + 1",
        "test_rotary_embedding.dynamic: rotary_embedding_dim 1",
        "test_rotary_embedding.dynamic: rotary_embedding_dim 3",
        "test_simple_rnn_defaults.dynamic: clip -1.0",
        "test_string_split_basic.static: delimiter b'zzzzzzzzzzzz'",
    }
)
"""What campaigns have found."""


def judge(cases: Sequence[AnyCase], code: bool) -> None:
    """No case may be a defect."""
    found = [f for k in range(0, len(cases), BATCH) for f in outcomes(cases[k : k + BATCH], code)]
    bad = [o.detail for _, o in found if o.failed]
    assert not bad, "\n\n".join([f"{len(bad)} of {len(cases)}", *bad[:10]])


@pytest.mark.parametrize("part", range(4))
def test_graphs_weights_and_files(part: int) -> None:
    judge(placed()[part::4], code=True)


@pytest.mark.parametrize("part", range(4))
def test_each_field_of_each_message(part: int) -> None:
    """A value of each field; machine code is made of a few of them."""
    own = fields()[: len({c.klass for c in fields()})]
    judge(own[part::32], code=True)
    judge([c for k, c in enumerate(own) if k % 4 == part and k % 32 != part], code=False)


def test_attributes_and_operands() -> None:
    """A sample of each op's; `make fuzz` takes more."""
    judge(ops()[:2100:18], code=False)


def test_found_before() -> None:
    found = [c for c in ops() if c.name in FOUND]
    assert len(found) == len(FOUND)
    judge(found, code=True)


def test_seeds_are_cases() -> None:
    assert len({f"{type(case(s))}{case(s).name}" for s in range(len(placed()) + 200)}) >= 300
