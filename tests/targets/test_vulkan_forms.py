"""The forms of a kernel for devices with numbers of 8 and 16 bits: each is right, and the best is taken."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device_trees import check_tree, in_step
from kernel_data import inputs
from scheduled_trees import TREES
from spirv_checks import valid
from vulkan_run import Failed, OnVulkan, Session, library

from smelt.core.dtype import DTYPES, DType, f16
from smelt.core.ir.text import parse_kernel
from smelt.targets.vulkan import features
from smelt.targets.vulkan.emit import Part, emit_parts
from smelt.targets.vulkan.features import FEATURES, SMALL_FORM, STORED_FORM, TOGETHER
from smelt.targets.vulkan.machine import MACHINE

WEAKER = {
    "small": "",
    "stored": "int8=0,int16=0,halves=0",
    "plain": "storage8=0,storage16=0,int8=0,int16=0,halves=0",
}
"""Devices that take each of the forms."""
NARROW = [d for d in DTYPES.values() if d.bits < 32]
SHARED = """
kernel @shared(n: dim in 1..*, x: {0}[n, 63]) -> (y: {0}[n, 63], z: {0}[n, 70]) {{
  group i in n {{
    shared t: {0}[63]
    lane j in 63 {{ t[j] = x[i, j] }}
    lane j in 63 {{ y[i, j] = t[62 - j] }}
    lane j in 70 {{ z[i, j] = (x[i, j - 3] if (0 <= j - 3 < 63)) }}
  }}
}}"""
ROUNDED = """
kernel @rounded(n: dim in 1..*, x: f32[n]) -> (y: {0}[n], z: f32[n]) {{
  group i in n {{
    shared t: {0}[1]
    lane j in 1 {{ t[0] = cast: {0}(x[i]) }}
    lane j in 1 {{ y[i] = cast: {0}(x[i]) z[i] = cast: f32(t[0]) }}
  }}
}}"""


@pytest.fixture(params=list(WEAKER))
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    library()  # skips where there is no device
    monkeypatch.setenv("SMELT_VULKAN_WEAK", WEAKER[request.param])
    monkeypatch.setenv("SMELT_VULKAN_TRUST", "halves")
    return request.param


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_elements_are_kept_bit_by_bit(dtype: DType, device: str) -> None:
    """Every number of the type, in memory and in what a group shares, from an odd place on."""
    kernel = parse_kernel(SHARED.format(dtype))
    every = np.arange(0, 1 << dtype.bits, dtype=np.uint16).astype(f"u{dtype.bytes}")
    x = np.resize(every % 2 if dtype.name == "bool" else every, (-(-len(every) // 63), 63)).view(dtype.numpy)
    if dtype.is_float:
        sizes = every & 0x7FFF  # which NaN is the device's
        bits = np.where(sizes > (0x7C00 if dtype == f16 else 0x7F80), np.uint16(0x3C00), every)
        x = np.resize(bits, x.shape).view(dtype.numpy)
    built = OnVulkan(kernel)
    for form in (*built.parts[0].better, built.parts[0]):
        valid(form.words)
    x = x.view(np.uint8).reshape(len(x), 63, -1)
    moved = np.pad(x, ((0, 0), (3, 4), (0, 0)))
    y, z = (got.view(np.uint8) for got in built([x.view(dtype.numpy)[..., 0]], {"n": len(x)}))
    np.testing.assert_array_equal(y.reshape(x.shape), x[:, ::-1])
    np.testing.assert_array_equal(z.reshape(moved.shape), moved)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_floats_are_rounded_to_the_nearest(name: str, device: str) -> None:
    """Between any two neighbours and at the middle, to the even one; beyond the largest, infinity."""
    dtype = DTYPES[name]
    ends = np.arange(0, 0x7C00 if dtype == f16 else 0x7F7F, 7, dtype=np.uint16)
    low, high = (e.view(dtype.numpy).astype(np.float64) for e in (ends, ends + np.uint16(1)))
    high = np.where(np.isfinite(high), high, 65536.0)
    middles = ((low + high) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(to)) for to in (-np.inf, np.inf)]
    x = np.concatenate([middles, *near, np.float32([65519.9, 65520, 1e30, np.inf])])
    x = x[(x == 0) | (x >= 2.0**-126)]  # of f32 subnormal numbers are as the device has them
    x = np.concatenate([x, -x])
    y, z = OnVulkan(parse_kernel(ROUNDED.format(dtype)))([x], {"n": len(x)})
    with np.errstate(over="ignore"):
        want = x.astype(dtype.numpy)
    np.testing.assert_array_equal(y.view(np.uint16), want.view(np.uint16))
    np.testing.assert_array_equal(z, want.astype(np.float32))


@pytest.mark.parametrize("name", ["masked", "halves"])
def test_trees(name: str, device: str) -> None:
    text, sizes = TREES[name]
    check_tree(OnVulkan, parse_kernel(text), sizes)


@pytest.mark.parametrize("name", ["halves-of-values", "tiles-decoded"])
def test_scheduled_kernels(name: str, device: str) -> None:
    check_tree(OnVulkan, *in_step(name, MACHINE))


def test_what_the_forms_are_and_what_they_share() -> None:
    def of(dtype: str) -> dict[frozenset[str], int]:
        (part,) = emit_parts([parse_kernel(SHARED.format(dtype))]).values()
        return {p.features: p.shared_bytes for p in (*part.better, part)}

    stored16, stored8, plain = frozenset({"storage16"}), frozenset({"storage8"}), frozenset[str]()
    assert of("f16") == {stored16 | {"halves"}: 126, stored16: 252, plain: 252}
    assert of("bf16") == of("u16") == {stored16 | {"int16"}: 126, stored16: 252, plain: 252}
    assert of("i8") == of("bool") == {stored8 | {"int8"}: 63, stored8: 252, plain: 252}
    assert of("f32") == {plain: 252} and of("i64") == {plain: 504}
    assert of("f64") == {frozenset({"float64"}): 504}
    assert SMALL_FORM | STORED_FORM | TOGETHER | {"float64"} == {*FEATURES}


def test_the_first_form_that_a_device_has_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they compute: a form multiplies by its number."""
    library()
    text = (
        "kernel @double(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {"
        "  group i in n { y[i] = x[i] * %s.0: f32 } }"
    )

    def form(number: int, *features: str) -> Part:
        (part,) = emit_parts([parse_kernel(text % number)]).values()
        return replace(part, features=frozenset(features))

    told: list[tuple[str, str] | None] = []

    def taken(weak: str, *better: Part, last: Part) -> float:
        monkeypatch.setenv("SMELT_VULKAN_WEAK", weak)
        session = Session([replace(last, better=better)], [2])
        x, y = session.allocate(4, np.float32([1]).tobytes()), session.allocate(4)
        got = np.zeros(1, np.float32)
        session.launch(0, [x, y], [0, 0], [1], 1)
        session.download(y, got)
        told.append(session.form(0))
        session.close()
        return float(got[0])

    best, some, plain = form(7, "int8", "storage16"), form(5, "storage16"), form(3)
    weakest = "int8=0,storage16=0,float64=0"
    assert taken(weakest, best, some, last=plain) == 3
    why = "for storage16+int8 the device lacks storage16+int8; for storage16 the device lacks storage16"
    assert told.pop() == ("", why)
    assert taken(weakest, last=plain) == 3
    assert told.pop() is None, "there is one form"
    with pytest.raises(Failed, match="lacks the feature shaderFloat64, which kernel 'k_double' needs"):
        taken(weakest, best, last=form(2, "float64"))
    wanted = 7 if _has("int8", monkeypatch) and _has("storage16", monkeypatch) else 3
    assert taken("", best, last=plain) == wanted
    if _has("storage16", monkeypatch):
        assert taken("int8=0", best, some, last=plain) == 5
        assert told.pop() == ("storage16", "for storage16+int8 the device lacks int8")
        refused = replace(some, words=some.words[:5])
        assert taken("", refused, last=plain) == 3
        asked, why = told.pop() or ("", "")
        assert not asked and re.fullmatch("the driver refused storage16 with code -[0-9]+", why)


def _has(feature: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the device has a feature: a kernel that needs it opens."""
    monkeypatch.setenv("SMELT_VULKAN_WEAK", "")
    (part,) = emit_parts([parse_kernel(SHARED.format("f32"))]).values()
    try:
        Session([replace(part, features=frozenset({feature}))], [3]).close()
    except Failed:
        return False
    return True


def test_inputs_of_odd_length_end_where_memory_does(device: str) -> None:
    """The last element of an odd number, and an empty tensor."""
    text = "kernel @same(n: dim in 0..*, x: i8[n]) -> (y: i8[n]) { group i in n { y[i] = x[i] } }"
    kernel = parse_kernel(text)
    built = OnVulkan(kernel)
    for n in (0, 1, 3, 5):
        (x,) = inputs(kernel, {"n": n})
        np.testing.assert_array_equal(built([x], {"n": n})[0], x)


def test_the_driver_has_the_same_bits() -> None:
    """Its names are those of FEATURES, and its bits in their order."""
    header = (Path(features.__file__).parent / "vulkan_features.h").read_text("utf-8")
    (bits,) = re.findall(r"enum \{ (FLOAT64 = .*?) \};", header)
    known = {name.lower(): int(bit) for name, bit in (pair.split(" = ") for pair in bits.split(", "))}
    assert known == {name: 1 << n for n, name in enumerate(FEATURES)}
    assert re.findall(r'\{[A-Z0-9]+, +"(\w+)", "', header) == [*FEATURES]
