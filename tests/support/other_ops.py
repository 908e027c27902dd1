"""Models of one op each for which ONNX has no cases (com.microsoft, ai.onnx.ml), as strict cases:
each axis has a size of its own, with inputs at which they run."""

from __future__ import annotations

import collections
import importlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from op_forms import Form, feeds, onnx_model
from record_models import recorded

from smelt.conformance.cases import FormCase
from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

TESTS = Path(__file__).parents[1]
FORMS = (
    "contrib", "contrib_attention", "contrib_branch", "contrib_decode", "contrib_other", "contrib_quant",
    "contrib_sparse", "quant", "region",
)  # fmt: skip
"""tests/importer/test_NAME_forms.py: the forms of ops that ONNX has no cases of."""
SIZES = (4, 5, 8, 3)
"""Of all symbols of a model of ai.onnx.ml, until it runs."""
OF_EACH = 5
"""Models of an op of ai.onnx.ml."""


def forms() -> Iterator[tuple[str, Form]]:
    """Each form with its title."""
    folder = str(TESTS / "importer")
    sys.path.append(folder)
    try:
        for name in FORMS:
            yield from importlib.import_module(f"test_{name}_forms").FORMS.items()
    finally:
        sys.path.remove(folder)


@cache
def other_cases() -> tuple[FormCase, ...]:
    """All of them, in a fixed order. Takes seconds."""
    return (*_contrib(), *_classical())


def _contrib() -> Iterator[FormCase]:
    for number, (title, form) in enumerate(forms()):
        model = onnx_model(form, title, fresh=True)
        feed = feeds(form, title, 0)
        given = tuple(feed[v.name] for v in model.graph.input)
        yield FormCase(f"{number} {title}", "strict", (form.op,), model, ((given, ()),), 1e-3, 1e-5)


def _classical() -> Iterator[FormCase]:
    count: collections.Counter[str] = collections.Counter()
    for model in recorded(["families/test_ml.py"]):
        op = model.graph.node[0].op_type
        if count[op] == OF_EACH:
            continue
        feed = next((f for n in SIZES if (f := _feed(model, n)) and _runs(model, f)), None)
        if feed is not None:
            count[op] += 1
            name = f"{op} {count[op]}"
            yield FormCase(name, "strict", (op,), model, ((tuple(feed.values()), ()),), 1e-3, 1e-5)


def _feed(model: onnx.ModelProto, size: int) -> Mapping[str, Any]:
    """Arrays for the inputs; none where an input is no tensor of numbers."""
    rng, feed = np.random.default_rng(size), {}
    for v in model.graph.input:
        t = v.type.tensor_type
        if v.type.WhichOneof("value") != "tensor_type" or t.elem_type == onnx.TensorProto.STRING:
            return {}
        shape = [d.dim_value if d.HasField("dim_value") else size for d in t.shape.dim]
        feed[v.name] = rng.integers(0, 3, shape).astype(helper.tensor_dtype_to_np_dtype(t.elem_type))
    return feed


def _runs(model: onnx.ModelProto, feed: Mapping[str, Any]) -> bool:
    """Whether its sizes fit: by the ops' references, as compiling them all takes seconds."""
    try:
        run_module(import_model(model), feed, OPS)
    except (SmeltError, ValueError):  # NumPy's word for shapes that do not fit
        return False
    return True
