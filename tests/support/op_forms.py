"""Forms of an op as data (inputs with symbolic sizes, attributes); their agreement with ONNX Runtime out."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from oracle import plain_session

from smelt.compiler import compile_here
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.driver import Request
from smelt.importer import import_model
from smelt.session import load

Array: TypeAlias = "np.ndarray[Any, Any]"
Sizes: TypeAlias = "Mapping[str, int]"
Make: TypeAlias = "Callable[[np.random.Generator, tuple[int, ...], Sizes], Any]"

MS = "com.microsoft"
DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u4": ml_dtypes.uint4, "i4": ml_dtypes.int4, "bool": np.bool_, "f4e2m1": ml_dtypes.float4_e2m1fn,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
SIZES: tuple[Sizes, ...] = ({"B": 2, "S": 3, "T": 5, "P": 4}, {"B": 1, "S": 1, "T": 2, "P": 7})


@dataclass(frozen=True)
class In:
    """An input. dims: extents, numbers or symbols or sums of them, between blanks. fixed: an initialiser.
    make: its elements, else normal floats, and integers in low .. high - 1."""

    dims: str
    dtype: str = "f32"
    fixed: bool = False
    low: int | None = None
    high: int | None = None
    make: Make | None = None
    scale: float = 1.0

    def array(self, rng: np.random.Generator, sizes: Sizes) -> Array:
        """Its elements at these sizes."""
        shape = tuple(int(eval(d, {}, dict(sizes))) for d in self.dims.split())
        dtype = np.dtype(DTYPES[self.dtype])
        if self.make is not None:
            return np.asarray(self.make(rng, shape, sizes)).astype(dtype).reshape(shape)
        if self.dtype in ("f32", "f64", "f16", "bf16"):
            return np.asarray(rng.standard_normal(shape) * self.scale).astype(dtype)
        if self.dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        bits = 4 if self.dtype.endswith("4") else dtype.itemsize * 8
        signed = self.dtype[0] == "i"
        low = self.low if self.low is not None else (-(1 << (bits - 1)) if signed else 0)
        high = self.high if self.high is not None else low + (1 << min(bits, 16))
        return rng.integers(low, high, shape).astype(dtype)


def x(dims: str, dtype: str = "f32", **more: Any) -> In:
    """A run-time input."""
    return In(dims, dtype, **more)


def w(dims: str, dtype: str = "f32", **more: Any) -> In:
    """An initialiser."""
    return In(dims, dtype, fixed=True, **more)


def k(value: Any, dtype: str = "f32") -> In:
    """An initialiser of these elements."""
    array = np.asarray(value)
    return In(" ".join(map(str, array.shape)), dtype, True, make=lambda rng, shape, sizes: array)


@dataclass(frozen=True)
class Form:
    """One node. outputs: how many; skip: those left out; types: of the outputs, f32 by default. steps: how
    far integers may be apart. version: of the standard opset. wanted: the outputs, where ONNX Runtime has no
    kernel for the form."""

    op: str
    inputs: Sequence[In | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    skip: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    sizes: Sequence[Sizes] = SIZES
    atol: float = 2e-5
    rtol: float = 1e-4
    steps: int = 0
    domain: str = MS
    version: int = 17
    wanted: Callable[..., Sequence[Array]] | None = None


def form(op: str, *given: In | None, **more: Any) -> Form:
    """A form; names of Form's own fields go there, all others are attributes."""
    own = {name: more.pop(name) for name in list(more) if name in Form.__dataclass_fields__}
    return Form(op, given, more, **own)


def steps_of(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Scales of quantised tensors."""
    return rng.uniform(0.005, 0.02, shape)


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


def weights(form: Form, name: str) -> dict[int, Array]:
    """The initialisers, by the index of their input."""
    rng = np.random.default_rng(_seed(name))
    return {i: a.array(rng, {}) for i, a in enumerate(form.inputs) if a is not None and a.fixed}


def onnx_model(form: Form, name: str, fresh: bool = False, sizes: Sizes | None = None) -> onnx.ModelProto:
    """A model of the one node. fresh: every extent that is not a number has a symbol of its own. sizes: every
    extent is a number."""
    held = weights(form, name)
    names = ["" if a is None else f"x{i}" for i, a in enumerate(form.inputs)]
    results = ["" if j in form.skip else f"y{j}" for j in range(form.outputs)]
    inputs = []
    for i, a in enumerate(form.inputs):
        if a is None or a.fixed:
            continue
        dims: list[int | str | None] = [int(d) if d.isdigit() else d for d in a.dims.split()]
        if fresh:
            dims = [d if isinstance(d, int) else None for d in dims]
        if sizes is not None:
            dims = [d if isinstance(d, int) else int(eval(d, {}, dict(sizes))) for d in dims]
        inputs.append(helper.make_tensor_value_info(names[i], _onnx(a.dtype), dims))
    kinds = [form.types[j] if j < len(form.types) else "f32" for j in range(form.outputs)]
    made = [
        helper.make_tensor_value_info(n, _onnx(t), None) for n, t in zip(results, kinds, strict=True) if n
    ]
    node = helper.make_node(form.op, names, results, name=form.op, domain=form.domain, **form.attrs)
    initial = [_tensor(names[i], form.inputs[i], array) for i, array in held.items()]
    g = helper.make_graph([node], "g", inputs, made, initial)
    sets = [helper.make_opsetid("", form.version), helper.make_opsetid(MS, 1)]
    return helper.make_model(g, opset_imports=sets, ir_version=10)


def _onnx(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype])))


def _tensor(name: str, a: In | None, array: Array) -> onnx.TensorProto:
    assert a is not None
    return numpy_helper.from_array(np.asarray(array), name)


def feeds(form: Form, name: str, at: int) -> dict[str, Array]:
    """The run-time inputs at size number `at`."""
    rng = np.random.default_rng([_seed(name), at])
    given = enumerate(form.inputs)
    return {f"x{i}": a.array(rng, form.sizes[at]) for i, a in given if a is not None and not a.fixed}


def reference(form: Form, name: str) -> list[list[Array]]:
    """The outputs at each size, by ONNX Runtime or by the form's own formula."""
    if form.wanted is not None:
        held = weights(form, name)
        found = []
        for at in range(len(form.sizes)):
            own = feeds(form, name, at)
            given = [None if a is None else own.get(f"x{i}", held.get(i)) for i, a in enumerate(form.inputs)]
            found.append(list(form.wanted(*given)))
        return found
    model = onnx_model(form, name, fresh=True).SerializeToString()
    session = plain_session(model)
    return [session.run(None, feeds(form, name, at)) for at in range(len(form.sizes))]


def check(form: Form, name: str, fresh: bool = False, native: bool = False) -> None:
    """Import once, run at every size, compare. native: compiled code, not the interpreter."""
    model = onnx_model(form, name, fresh)
    run = _compiled(model) if native else _interpreted(model)
    for at, wanted in enumerate(reference(form, name)):
        found = run(feeds(form, name, at))
        assert len(found) == len(wanted)
        for y, want in zip(found, wanted, strict=True):
            _close(form, y, want)


def check_static(form: Form, name: str) -> None:
    """The same of a model whose sizes are numbers, at the first of them."""
    run = _interpreted(onnx_model(form, name, sizes=form.sizes[0]))
    for y, want in zip(run(feeds(form, name, 0)), reference(form, name)[0], strict=True):
        _close(form, y, want)


def _close(form: Form, y: Array, want: Array) -> None:
    assert y.shape == want.shape and y.dtype == want.dtype, (y.shape, y.dtype, want.shape, want.dtype)
    if form.steps and want.dtype.kind in "iu":
        assert np.abs(y.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= form.steps
    elif want.dtype.kind == "f" or want.dtype == ml_dtypes.bfloat16:
        wide = [np.asarray(a).astype(np.float64) for a in (y, want)]
        np.testing.assert_allclose(*wide, atol=form.atol, rtol=form.rtol)
    else:
        np.testing.assert_array_equal(y, want)


def _interpreted(model: onnx.ModelProto) -> Callable[[dict[str, Array]], Sequence[Array]]:
    module = import_model(model)
    verify(module)
    return lambda given: run_module(module, given, OPS)


def _compiled(model: onnx.ModelProto) -> Callable[[dict[str, Array]], Sequence[Array]]:
    with tempfile.TemporaryDirectory(prefix="smelt-form-") as folder:
        source = Path(folder) / "model.onnx"
        source.write_bytes(model.SerializeToString())
        bundle = compile_here(Request(str(source), "host", output=str(Path(folder) / "out"), runner=False))
        session = load(bundle, threads=1)
    return lambda given: session.run(None, given)


def form_tests(
    forms: Mapping[str, Form], fresh: int = 2, native: int = 12
) -> tuple[Callable[..., None], ...]:
    """Tests of every form by the interpreter, with sizes as symbols and as numbers, and of fixed samples: one
    in `fresh` where each size has a name of its own, one in `native` compiled, half of which make a table."""

    def test_form(name: str) -> None:
        check(forms[name], name)
        check_static(forms[name], name)

    def test_form_of_unrelated_sizes(name: str) -> None:
        check(forms[name], name, fresh=True)

    @pytest.mark.table(2)
    def test_compiled_form(name: str) -> None:
        check(forms[name], name, native=True)

    tests = ((test_form, 1), (test_form_of_unrelated_sizes, fresh), (test_compiled_form, native))
    return tuple(
        pytest.mark.parametrize("name", [n for n in forms if _seed(n) % one_in == 0])(test)
        for test, one_in in tests
    )
