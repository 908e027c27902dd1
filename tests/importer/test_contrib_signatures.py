"""com.microsoft's signatures against the schemas of the ONNX Runtime that is here."""

from typing import Any

import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as runtime
import pytest

from smelt.importer.bindings import BINDINGS
from smelt.importer.contrib_signatures import contrib
from smelt.importer.domains import MS
from smelt.importer.signature import TYPES

NEWER = tuple(map(int, onnxruntime.__version__.split(".")[:2])) > (1, 31)
SCHEMAS: dict[tuple[str, str], Any] = {(s.domain, s.name): s for s in runtime.get_all_operator_schema()}


@pytest.mark.parametrize("op", sorted(op for domain, op in BINDINGS if domain == MS))
def test_a_signature_says_what_onnx_runtime_says(op: str) -> None:
    """Releases after 1.31, which the table was made of, may have added attributes, inputs and outputs."""
    theirs = SCHEMAS.get((MS, op)) or SCHEMAS["", op]
    ours = contrib(op)
    assert ours is not None
    added = {n for n, a in theirs.attributes.items() if n not in ours.attributes and not a.required}
    assert not added or NEWER
    assert {n: (TYPES[kind], must) for n, (kind, must) in ours.attributes.items()} == {
        n: (a.type.name, a.required) for n, a in theirs.attributes.items() if n not in added
    }
    inputs = list(theirs.inputs)[: len(ours.inputs)] if NEWER else list(theirs.inputs)
    assert [(p.name, p.types) for p in ours.inputs] == [(p.name, frozenset(p.types)) for p in inputs]
    assert [p.required for p in ours.inputs] == [p.option.name != "Optional" for p in inputs]
    assert [p.variable for p in ours.inputs if p.variable] == [
        p.typeStr.removeprefix("tensor(").removesuffix(")") for p in inputs if p.isHomogeneous
    ]
    counts = (min(ours.most, 2**31 - 1), ours.outputs)
    most = (theirs.max_input, theirs.max_output)
    assert counts == most or (NEWER and counts[0] <= most[0] and counts[1] <= most[1])
