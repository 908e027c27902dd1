"""The cases of onnx.backend.test that need no download in; models and data in three forms out.

static: as shipped. dynamic: as exporters write dynamic models: extents of inputs are symbols, equal extents
share one, 1 stays 1, and operands that are constants in real models are initialisers. strict: every extent of
an input is a symbol of its own, every operand is a run-time input, and the file has no types of inner values.
In both, outputs keep their rank and their extents are unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import re
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, numpy_helper

from smelt.core.cache import cache_dir

Form: TypeAlias = Literal["static", "dynamic", "strict"]
DIGEST = 32
"""Bytes of a SHA-256 digest."""
FORMS: tuple[Form, ...] = ("static", "dynamic", "strict")
CaseValue: TypeAlias = Any
"""An array, a list of values (a sequence), or None (an empty optional)."""
DataSet: TypeAlias = tuple[tuple[CaseValue, ...], tuple[CaseValue, ...]]

FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")
OUTSIDE = re.compile(r"test_(image_decoder|adagrad|adam|momentum|gradient|nesterov)")
"""Operators without a case here: those of the training domain, and decoding of image files."""

# Operands that real models hold as constants, by op: positions of inputs.
CONSTANT_INPUTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "TopK", "Split", "Squeeze", "Unsqueeze", "CumSum"), (1,)),
    **dict.fromkeys(("CumProd", "OneHot", "SplitToSequence", "CenterCropPad", "AffineGrid", "Trilu"), (1,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), (1,)),
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "Clip", "Col2Im"), (1, 2, 3)),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), (1, 2, 3, 4, 5, 6, 7, 8)),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "LayerNormalization"), (1, 2)),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), (1, 2, 3, 7)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Dropout"), (1, 2)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    **dict.fromkeys(("PRelu", "RMSNormalization"), (1,)),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "BatchNormalization": (1, 2, 3, 4),
    "DeformConv": (1, 3),
    "Gemm": (1, 2),
    "Range": (0, 1, 2),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "DFT": (1, 2),
    "STFT": (1, 2, 3),
}


@dataclass(frozen=True)
class FormCase:
    """One case in one form. data: the data sets, whose arrays belong to the model's inputs by position."""

    name: str
    form: Form
    ops: tuple[str, ...]
    model: ModelProto
    data: tuple[DataSet, ...]
    rtol: float
    atol: float

    @property
    def id(self) -> str:
        """The key of the case, 'form:name'."""
        return f"{self.form}:{self.name}"


@dataclass(frozen=True)
class Shipped:
    """A case as ONNX ships it."""

    name: str
    ops: tuple[str, ...]
    model: ModelProto
    data: tuple[DataSet, ...]
    constants: frozenset[str]
    rtol: float
    atol: float


def bucket(text: str) -> int:
    """A hash from 0 to 99, the same on every machine, by which samples are chosen."""
    return zlib.crc32(text.encode()) % 100


@cache
def shipped() -> tuple[Shipped, ...]:
    """All cases that need no download, sorted by name. ONNX computes its node cases, which takes seconds, so
    this machine keeps them, by what they are made of."""
    kept = _kept_at()
    with contextlib.suppress(OSError):
        held = kept.read_bytes()
        digest, whole = held[:DIGEST], held[DIGEST:]
        if hashlib.sha256(whole).digest() == digest:  # what is damaged would be judged by
            found: tuple[Shipped, ...] = pickle.loads(whole)
            return found
    made = _computed()
    whole = pickle.dumps(made)
    with contextlib.suppress(OSError):  # a folder that takes no file costs the next process time, no more
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as own:
            new = Path(own) / "cases"
            new.write_bytes(hashlib.sha256(whole).digest() + whole)
            os.replace(new, kept)  # whole or not at all, whoever else computes them now
    return made


def _kept_at() -> Path:
    """The file for the cases that this code makes with this Python, ONNX and NumPy."""
    versions = f"{sys.version} {onnx.__version__} {np.__version__}"
    made_of = hashlib.sha256(versions.encode() + Path(__file__).read_bytes())
    return cache_dir() / "conformance" / f"{made_of.hexdigest()}.pickle"


def _computed() -> tuple[Shipped, ...]:
    """The cases, by ONNX's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        random.seed(0)
        np.random.seed(0)
        found = [t for kind in ("node", *FOLDERS) for t in load_model_tests(kind=kind)]
    tests = {t.name: t for t in found if not OUTSIDE.match(t.name)}
    models = {name: _model(t) for name, t in tests.items()}
    rows = []
    for name in sorted(tests):
        base = name.split("_expanded")[0]
        owner = models.get(base, models[name])
        rows.append(
            Shipped(
                name,
                _ops(owner),
                models[name],
                tuple(_data(tests[name])),
                frozenset(_constants(owner)),
                tests[name].rtol,
                tests[name].atol,
            )
        )
    return tuple(rows)


def in_form(s: Shipped, form: Form) -> FormCase:
    """One case in one form."""
    model, data = s.model, s.data
    if form != "static":
        model = ModelProto()
        model.CopyFrom(s.model)
        if form == "dynamic":
            data = _fixed(model, data, s.constants)
        _free(model, form)
    return FormCase(s.name, form, s.ops, model, data, s.rtol, s.atol)


# ---------------------------------------------------------------- what ships


def _model(t: Any) -> ModelProto:
    model = ModelProto()
    if t.model is not None:
        model.CopyFrom(t.model)
    else:
        model.ParseFromString((Path(t.model_dir) / "model.onnx").read_bytes())
    return model


def _data(t: Any) -> Iterator[DataSet]:
    if t.data_sets is not None:
        for inputs, outputs in t.data_sets:
            yield tuple(map(_value, inputs)), tuple(map(_value, outputs))
        return
    model = _model(t)
    for folder in sorted(Path(t.model_dir).glob("test_data_set_*")):
        yield (
            _files(folder, "input", [i.type for i in model.graph.input]),
            _files(folder, "output", [o.type for o in model.graph.output]),
        )


def _files(folder: Path, kind: str, types: Sequence[onnx.TypeProto]) -> tuple[CaseValue, ...]:
    values = []
    for k in range(len(list(folder.glob(f"{kind}_*.pb")))):
        raw = (folder / f"{kind}_{k}.pb").read_bytes()
        protos: dict[str, Any] = {"sequence_type": SequenceProto, "optional_type": OptionalProto}
        made = protos.get(types[k].WhichOneof("value") or "", TensorProto)()
        made.ParseFromString(raw)
        values.append(_value(made))
    return tuple(values)


def _value(v: Any) -> CaseValue:
    if isinstance(v, TensorProto):
        return numpy_helper.to_array(v)
    if isinstance(v, SequenceProto):
        return numpy_helper.to_list(v)
    if isinstance(v, OptionalProto):
        return numpy_helper.to_optional(v)
    if v is None or isinstance(v, list):
        return v
    return np.asarray(v)


def _ops(m: ModelProto) -> tuple[str, ...]:
    """The ops that a case tests: those of its graph, without constants."""
    names = {(f"{n.domain}." if n.domain not in ("", "ai.onnx") else "") + n.op_type for n in m.graph.node}
    return tuple(sorted(names - {"Constant"} or names))


def _constants(m: ModelProto) -> Iterator[str]:
    """Names of the inputs that are constants in real models."""
    uses: dict[str, list[bool]] = {}
    for n in m.graph.node:
        for k, name in enumerate(n.input):
            uses.setdefault(name, []).append(k in CONSTANT_INPUTS.get(n.op_type, ()))
    yield from (v.name for v in m.graph.input if all(uses.get(v.name, [False])))


# ---------------------------------------------------------------- forms


def _fixed(m: ModelProto, data: tuple[DataSet, ...], constants: frozenset[str]) -> tuple[DataSet, ...]:
    """Turn inputs into initialisers; the data sets without these inputs."""
    names = [v.name for v in m.graph.input]
    firm = []
    for k, name in enumerate(names):
        values = [inputs[k] for inputs, _ in data if k < len(inputs)]
        if name in constants and values and all(_same(v, values[0]) for v in values):
            m.graph.initializer.append(numpy_helper.from_array(values[0], name))
            firm.append(k)
    for k in reversed(firm):
        del m.graph.input[k]
    return tuple(
        (tuple(v for k, v in enumerate(inputs) if k not in firm), outputs) for inputs, outputs in data
    )


def _same(a: CaseValue, b: CaseValue) -> bool:
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and a.shape == b.shape
        and a.dtype == b.dtype
        and a.tobytes() == b.tobytes()
    )


def _free(m: ModelProto, form: Form) -> None:
    """Replace extents by symbols, and remove the declared types of inner values."""
    weights = {t.name for t in m.graph.initializer}
    del m.graph.value_info[:]
    for v in m.graph.output:
        for t in _tensors(v.type):
            for d in t.shape.dim:
                d.Clear()
    for v in m.graph.input:
        if v.name in weights:
            continue
        for t in _tensors(v.type):
            for axis, d in enumerate(t.shape.dim):
                if form == "strict":
                    d.dim_param = f"{v.name}_{axis}"
                elif d.HasField("dim_value") and d.dim_value != 1:
                    d.dim_param = f"d{d.dim_value}"


def _tensors(t: onnx.TypeProto) -> Iterator[Any]:
    kind = t.WhichOneof("value")
    if kind == "tensor_type":
        yield t.tensor_type
    elif kind == "sequence_type":
        yield from _tensors(t.sequence_type.elem_type)
    elif kind == "optional_type":
        yield from _tensors(t.optional_type.elem_type)
