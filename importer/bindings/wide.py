"""A binding in; one that computes some element types in wider ones, without intermediate rounding, out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.core.dtype import DTYPES, DType, bf16, bool_, f16, f32, f64, i32
from smelt.core.ir.graph import Ref
from smelt.importer.call import Build, Call, Results

HALVES: Mapping[DType, DType] = {f16: f32, bf16: f32}
TRUNCATED: Mapping[DType, DType] = {d: f64 for d in DTYPES.values() if d.is_int}
"""Integers in ops on real numbers: the result is truncated to an integer."""
TRUTHS: Mapping[DType, DType] = {bool_: i32}
"""Sums of bools mean `any`."""


def wide(dtype: DType) -> DType:
    """The type that statistics and scores of this type are computed in."""
    return HALVES.get(dtype, dtype)


def widened(build: Build, wide: Mapping[DType, DType] = HALVES, like: int = 0) -> Build:
    """The binding with the inputs of input `like`'s type as the wider one; results of it are cast back."""

    def computed(c: Call) -> Results:
        dtype = c.type(like).dtype
        to = wide.get(dtype)
        if to is None:
            return build(c)

        def cast(ref: Ref, source: DType, target: DType) -> Ref:
            return c.cast(ref, target) if ref and c.builder.type_of(ref).dtype == source else ref

        results = build(replace(c, inputs=tuple(cast(r, dtype, to) for r in c.inputs)))
        if isinstance(results, str):
            return cast(results, to, dtype)
        return [cast(r, to, dtype) for r in results]

    return computed
