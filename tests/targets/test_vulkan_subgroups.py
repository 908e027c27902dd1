"""Reductions by lanes on the Vulkan device: by instructions of subgroups, and in the memory of groups."""

from __future__ import annotations

import numpy as np
import pytest
from device_trees import check_tree, in_step
from kernel_data import compare
from spirv_checks import valid
from vulkan_run import OnVulkan, library

from smelt.core.dtype import DTYPES
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.intrinsics import REDUCE_FN
from smelt.core.ir.kernel import Block, Kernel, walk
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.targets.grid.lane_trees import lane_tree
from smelt.targets.vulkan.emit import emit_parts
from smelt.targets.vulkan.features import TOGETHER
from smelt.targets.vulkan.machine import MACHINE
from smelt.targets.vulkan.subgroups import reduces

KNOWN = [(d.name, kind) for d in DTYPES.values() for kind in REDUCE_FN if reduces(kind, d)]


def reduced(dtype: str, kind: str, lanes: int = 32) -> Kernel:
    """Fewer lanes than the group has make parts of a row; the others have none."""
    op, halves, half = REDUCE_FN[kind], [], lanes // 2
    while half > 1:
        halves.append(f"lane l in {half} {{ p[l] {op}= p[l + {half}] }}")
        half //= 2
    return parse_kernel(f"""
kernel @reduced(n: dim in 0..*, x: {dtype}[n, {2 * lanes}]) -> (y: {dtype}[n, 64]) {{
  group i in n {{
    register acc: {dtype}[]
    serial turn in 2 {{
      block {{
        shared p: {dtype}[{lanes}]
        lane l in {lanes} {{ p[l] = {kind} j in 2 {{ x[i, 2*l + (j + turn) % 2] }} }}
        {" ".join(halves)}
        acc[] = {kind} j in 2 {{ p[j] }}
      }}
    }}
    lane l in 64 {{ y[i, l] = acc[] }}
  }}
}}""")


@pytest.fixture(params=["", "subgroups=0"])
def weak(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    library()  # skips where there is no device
    monkeypatch.setenv("SMELT_VULKAN_WEAK", request.param)
    return str(request.param)


@pytest.mark.parametrize(("dtype", "kind"), KNOWN)
def test_each_kind(dtype: str, kind: str, weak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each type, with what is special of floats in some rows; a row of a kind alone, too."""
    kernel, d, rng = reduced(dtype, kind), DTYPES[dtype], np.random.default_rng(5)
    if d.is_float:
        x = rng.uniform(0.5, 1.5, (8, 64)).astype(d.numpy) * rng.choice([-1, 1], (8, 64)).astype(d.numpy)
        special = (np.nan, np.inf, -np.inf, -np.nan)
        for row, value in enumerate(special if kind in ("max", "min") else special[:3]):
            x[row, 7 * row + 3] = value
    elif d.name == "bool":
        x = np.repeat([[True], [False], [True]], 64, 1)
        x[0, 50], x[1, 9] = False, True
    else:
        x = rng.integers(*d.limits, (8, 64), dtype=d.numpy, endpoint=True)
    with monkeypatch.context() as strong:
        strong.setenv("SMELT_VULKAN_WEAK", "")
        built = OnVulkan(kernel)  # skips where there are no doubles
    if weak:
        built = OnVulkan(kernel)
    part = built.parts[0]
    forms = (*part.better, part)
    assert forms[0].features > TOGETHER or forms[0].features == TOGETHER | part.features
    assert not part.features & TOGETHER
    for form in forms:
        valid(form.words)
    with np.errstate(all="ignore"):
        (want,) = run_kernel(kernel, {"n": len(x)}, [x])
        (got,) = built([x], {"n": len(x)})
    compare([got], [want])
    assert not built([x[:0]], {"n": 0})[0].size


@pytest.mark.parametrize("lanes", [2, 4, 64])
def test_any_number_of_lanes(lanes: int, weak: str) -> None:
    """There may be more subgroups than lanes that reduce: each has room for what it has made."""
    kernel = reduced("f32", "sum", lanes)
    (part,) = emit_parts([kernel]).values()
    assert [p.shared_bytes for p in (*part.better, part)] == [4 * 64 + 4, 4 * lanes + 4]
    check_tree(OnVulkan, kernel, [{"n": 3}])


def test_a_group_that_has_no_room_for_the_subgroups_keeps_its_tree() -> None:
    """Its memory is full but for the parts of two lanes."""
    text = print_kernel(reduced("f32", "sum", 2))
    full = MACHINE.shared_bytes // 4 - 2 - 1
    more = f"shared full: f32[{full}]\n    lane l in 64 {{ full[l] = x[i, 0] }}\n"
    kernel = parse_kernel(text.replace("register acc: f32[]", f"register acc: f32[]\n    {more}"))
    (part,) = emit_parts([kernel]).values()
    assert not part.better and part.shared_bytes == MACHINE.shared_bytes


@pytest.mark.parametrize("name", ["sum-of-all", "max-of-all", "softmax", "softmax-of-one"])
def test_scheduled_kernels(name: str, weak: str) -> None:
    built = check_tree(OnVulkan, *in_step(name, MACHINE))
    forms = [built.session.form(i) for i in range(len(built.parts))]
    told = [f for f in forms if f is not None and "subgroups" in f[0] + f[1]]
    assert told and all(("subgroups" in asks) == ("lacks subgroups" not in why) for asks, why in told)
    if weak:
        assert not any("subgroups" in asks for asks, _ in told)


def test_what_instructions_do_not_reduce_is_left_to_the_groups_memory() -> None:
    for dtype, kind in (("i64", "sum"), ("u64", "max"), ("f64", "max")):
        (part,) = emit_parts([reduced(dtype, kind)]).values()
        assert not any(p.features & TOGETHER for p in (*part.better, part)), (dtype, kind)


def trees(kernel: Kernel) -> int:
    return sum(isinstance(s, Block) and lane_tree(s) is not None for s in walk(kernel.body))


def test_what_is_a_tree_and_what_is_not() -> None:
    kernel = reduced("f32", "sum", 8)
    assert trees(kernel) == 1
    text = kernel_text(8)
    assert trees(parse_kernel(text)) == 1
    for old, new in (
        ("p[l] add= p[l + 2]", "p[l] max= p[l + 2]"),  # another operation
        ("p[l] add= p[l + 2]", "p[l] add= p[l + 3]"),  # other parts
        ("p[l] add= p[l + 2]", "p[l] add= p[l + 2] p[l] add= p[l + 2]"),
        ("lane l in 4 { p[l] add= p[l + 4] }", ""),  # a step is missing
        ("p[l] = x[i, l]", "p[l] = x[i, l] p[l] add= x[i, l]"),  # parts are written twice
        ("p[l] = x[i, l]", "p[7 - l] = x[i, l]"),  # somebody else's
        ("p[l] = x[i, l]", "p[l] = x[i, l] if (0 <= l < 7)"),
        ("acc[] = sum j in 2 { p[j] }", "acc[] = sum j in 2 { p[1 - j] }"),
        ("acc[] = sum j in 2 { p[j] }", "acc[] = sum j in 3 { p[j] }"),
        ("acc[] = sum j in 2 { p[j] }", "acc[] add= sum j in 2 { p[j] }"),
        ("acc[] = sum j in 2 { p[j] }", "acc[] = max j in 2 { p[j] }"),
        ("acc[] = sum j in 2 { p[j] }", "acc[] = p[0] + p[1]"),
        ("lane l in 8", "serial l in 8"),
    ):
        assert old in text
        assert trees(parse_kernel(text.replace(old, new))) == 0, new


def kernel_text(lanes: int) -> str:
    return f"""
kernel @reduced(n: dim in 0..*, x: f32[n, {lanes}]) -> (y: f32[n]) {{
  group i in n {{
    register acc: f32[]
    block {{
      shared p: f32[8]
      lane l in 8 {{ p[l] = x[i, l] }}
      lane l in 4 {{ p[l] add= p[l + 4] }}
      lane l in 2 {{ p[l] add= p[l + 2] }}
      acc[] = sum j in 2 {{ p[j] }}
    }}
    y[i] = acc[]
  }}
}}"""
