"""The small models that tests/support offers: a seed in, a module out, for each module that makes some.

What every small model is to be held to (every pass leaves it as it was) goes through SOURCES; a module of
tests/support that makes models and is not here fails tests/attack/test_passes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import decoder_models
import forests
import front_models
import numpy as np
import onnx
import op_nodes
import op_shipped
from flow_models import flow_model
from fuzz_draw import draw
from onnx import TensorProto
from op_ways import model_of
from qdq_models import Net
from record_models import recorded
from rule_forms import build, mutant

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.passes.rulebook import rulebook
from smelt.importer import import_model

Source = Callable[[int], Module | None]
FORMS = [(name, form) for name, r in rulebook().items() for form in r.forms]


def _form(seed: int) -> Module | None:
    """A rule's form or a mutant of one: the rules of the others meet it too."""
    _, form = FORMS[seed % len(FORMS)]
    try:
        return build(mutant(form, seed // len(FORMS)))
    except (SmeltError, ArithmeticError, LookupError, AssertionError, TypeError, ValueError):
        return None


def _fuzzed(seed: int) -> Module | None:
    found = draw(seed)
    return None if found is None else import_model(found.model)


def _flow(seed: int) -> Module:
    return import_model(flow_model(seed))


def _front(seed: int) -> Module:
    return import_model(front_models.small(13 + seed % 8))


def _node(seed: int) -> Module:
    """One node of an operator, over the types of its inputs."""
    names = op_nodes.operators()
    case = op_nodes.draw(np.random.default_rng(seed), names[seed % len(names)])
    return import_model(model_of([case], False))


def _shipped(seed: int) -> Module | None:
    """One node of an operator of which ONNX ships cases."""
    names = op_shipped.operators()
    case = op_shipped.draw(np.random.default_rng(seed), names[seed % len(names)])
    return None if case is None else import_model(model_of([case], False))


def _forest(seed: int) -> Module:
    rng = np.random.default_rng(seed)
    own = forests.nodes(rng, 1 + seed % 4, 1 + seed % 3, 4, forests.MODES[: 1 + seed % len(forests.MODES)])
    own |= forests.missing(rng, own) | forests.leaves(
        rng, own, "target", 2, ("all", "tree", "some")[seed % 3]
    )
    made = forests.model(
        "TreeEnsembleRegressor", {**own, "n_targets": 2}, (TensorProto.FLOAT,), features=4, opset=3
    )
    return import_model(made)


def _quantised(seed: int) -> Module:
    """Convolutions, pools and products of dequantised bytes."""
    rng, net = np.random.default_rng(seed), Net()
    x = net.qdq("x", 0.05, 120)
    kind = seed % 3
    if kind == 0:
        w = net.weight(rng.integers(-127, 128, (6, 4, 3, 3)).astype(np.int8), np.full(6, 0.02, np.float32),
                       np.zeros(6, np.int8))  # fmt: skip
        y = net.qdq(net.op("Relu", net.op("Conv", x, w, pads=[1] * 4)), 0.3, 0)
        return import_model(net.model(y, x=["n", 4, "h", "w"]))
    if kind == 1:
        return import_model(net.model(net.op("MaxPool", x, kernel_shape=[2, 2]), x=["n", 3, "h", "w"]))
    w = net.weight(
        rng.integers(-127, 128, (10, 6)).astype(np.int8), np.array(0.02, np.float32), np.array(3, np.int8)
    )
    return import_model(net.model(net.qdq(net.op("MatMul", x, w), 0.2, 128), x=["n", "m", 10]))


def _decoder(seed: int) -> Module:
    """A decoder of one layer."""
    forms = sorted(decoder_models.FORMS)
    return import_model(decoder_models.decoder(forms[seed % len(forms)], 1))


@cache
def _written(*files: str) -> tuple[onnx.ModelProto, ...]:
    return tuple(recorded(files))


def _from_tests(*files: str) -> Source:
    """Models that tests write by hand with a builder of tests/support."""

    def source(seed: int) -> Module:
        found = _written(*files)
        return import_model(found[seed % len(found)])

    return source


SOURCES: Mapping[str, Source] = {
    "rule_forms": _form,
    "fuzz_draw": _fuzzed,
    "flow_models": _flow,
    "front_models": _front,
    "op_nodes": _node,
    "op_shipped": _shipped,
    "forests": _forest,
    "qdq_models": _quantised,
    "decoder_models": _decoder,
    "sequence_models": _from_tests("importer/test_sequences.py", "importer/test_sequence_flow.py"),
    "text_models": _from_tests("smelt/test_flow_forms.py", "importer/test_undecided.py"),
    "onnx_models": _from_tests(
        "importer/test_control.py", "importer/test_indices.py", "importer/test_axes.py"
    ),
}
"""The module of tests/support -> its models."""
ELSEWHERE: Mapping[str, str] = {
    "sample_models": "whole networks, for which the interpreter is too slow: tests/test_models.py runs them",
    "state_models": "two decoders, of ops that other sources have: tests/smelt/test_state.py runs them",
    "entry_models": "a decoder and two encoders of ordinary ops: tests/smelt/test_entries.py runs them",
    "crossing_models": "one text, of ops that other sources have: tests/targets/test_crossings.py runs it",
    "record_models": "takes models out of tests, for the sources above",
}
"""What is named like a source and is none, and why."""
