"""A failing model and a test of failure in, the smallest model that still fails out, and its Python text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx
from fuzz_graph import Array, Found, element, reads
from onnx import helper, numpy_helper
from oracle import plain_session

Test = Callable[[Found], bool]


def shrink(found: Found, fails: Test, seconds: float) -> Found:
    """Fewer sizes, outputs and nodes, as long as `fails` says yes and there is time."""
    end = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for candidate in candidates(found):
            if time.monotonic() > end:
                return found
            if _size(candidate) < _size(found) and _valid(candidate) and fails(candidate):
                found, again = candidate, True
                break
    return found


def candidates(found: Found) -> Iterator[Found]:
    """Simpler models, boldest first."""
    outputs = [o.name for o in found.model.graph.output]
    if len(outputs) > 1:
        yield from (with_outputs(found, [o]) for o in outputs)
    if len(found.feeds) > 1:
        yield from (replace(found, feeds=(f,)) for f in found.feeds)
    nodes = list(found.model.graph.node)
    if nodes:
        for half in (len(nodes) // 2, len(nodes) * 3 // 4, len(nodes) // 4):
            yield cut(found, {o for n in nodes[:half] for o in n.output if o})
    for n in nodes:
        yield from (with_outputs(found, [o]) for o in n.output if o and [o] != outputs)
    for n in nodes:
        yield cut(found, {o for o in n.output if o})
    for n in nodes:
        yield from (bypass(found, n, i) for i in n.input if i)
    if len(outputs) > 1:
        yield from (with_outputs(found, [o for o in outputs if o != gone]) for gone in outputs)


def _size(found: Found) -> tuple[int, int, int]:
    return len(found.model.graph.node), len(found.model.graph.output), len(found.feeds)


def _valid(found: Found) -> bool:
    try:
        run = plain_session(found.model)
        for feed in found.feeds:
            run.run(None, feed)
    except Exception:
        return False
    return bool(found.model.graph.node)


# ---------------------------------------------------------------- edits


def _rebuilt(
    found: Found, nodes: list[onnx.NodeProto], outputs: list[str], more: dict[str, list[Array]] | None = None
) -> Found:
    """Only what the outputs need; `more`: values that become inputs, with their contents at every size."""
    more = more or {}
    needed = set(outputs)
    kept: list[onnx.NodeProto] = []
    for n in reversed(nodes):
        if needed & set(n.output):
            kept.insert(0, n)
            needed |= set(reads(n))
    old = found.model
    inputs = [i for i in old.graph.input if i.name in needed]
    inputs += [_input(n, arrays) for n, arrays in more.items() if n in needed]
    g = helper.make_graph(
        kept, "fuzz", inputs, [onnx.ValueInfoProto(name=o) for o in outputs],
        [c for c in old.graph.initializer if c.name in needed],
    )  # fmt: skip
    model = helper.make_model(g, opset_imports=list(old.opset_import))
    model.ir_version = old.ir_version
    _type_outputs(model)
    names = {i.name for i in inputs}
    feeds = []
    for k, feed in enumerate(found.feeds):
        whole = {**feed, **{n: a[k] for n, a in more.items()}}
        feeds.append({n: a for n, a in whole.items() if n in names})
    loose = found.loose | {n for n, a in more.items() if a[0].dtype.kind == "f"}
    return Found(model, tuple(feeds), loose & names)


def _input(name: str, arrays: list[Array]) -> onnx.ValueInfoProto:
    """Axes of one extent are static; others take names by their extents, equal ones the same."""
    dims: list[int | str] = []
    for extents in zip(*(a.shape for a in arrays), strict=True):
        same = len(set(extents)) == 1 and len(arrays) > 1
        dims.append(extents[0] if same or extents[0] == 1 else "d" + "_".join(map(str, extents)))
    return helper.make_tensor_value_info(name, element(arrays[0].dtype), dims)


def _type_outputs(model: onnx.ModelProto) -> None:
    """Outputs must say their dtype; inference knows it."""
    try:
        known = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
        inferred = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.output}
    except Exception:
        known = inferred = {}
    for o in model.graph.output:
        source = known.get(o.name) or inferred.get(o.name)
        if source is not None and source.type.tensor_type.elem_type:
            o.type.tensor_type.elem_type = source.type.tensor_type.elem_type
    inputs = {i.name: i for i in model.graph.input}
    for o in model.graph.output:
        if o.name in inputs:
            o.type.CopyFrom(inputs[o.name].type)


def with_outputs(found: Found, outputs: list[str]) -> Found:
    """Only these values as outputs."""
    return _rebuilt(found, list(found.model.graph.node), outputs)


def cut(found: Found, values: set[str]) -> Found:
    """These values come from outside."""
    nodes = [n for n in found.model.graph.node if not set(n.output) & values]
    outputs = [o.name for o in found.model.graph.output if o.name not in values]
    contents = _contents(found, sorted(values))
    if not outputs or contents is None:
        return Found(onnx.ModelProto(), ())
    return _rebuilt(found, nodes, outputs, contents)


def bypass(found: Found, node: onnx.NodeProto, by: str) -> Found:
    """One of a node's inputs in place of its first output."""
    nodes = []
    for n in found.model.graph.node:
        if list(n.output) == list(node.output):
            continue
        m = onnx.NodeProto()
        m.CopyFrom(n)
        for i, name in enumerate(m.input):
            if name in node.output:
                m.input[i] = by
        nodes.append(m)
    outputs = [o.name for o in found.model.graph.output if o.name not in node.output]
    return _rebuilt(found, nodes, outputs) if outputs else Found(onnx.ModelProto(), ())


def _contents(found: Found, names: list[str]) -> dict[str, list[Array]] | None:
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    have = {o.name for o in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    try:
        run = plain_session(model)
        rows = [run.run(names, feed) for feed in found.feeds]
    except Exception:
        return None
    if not all(isinstance(a, np.ndarray) for r in rows for a in r):
        return None  # sequences
    return {n: [r[i] for r in rows] for i, n in enumerate(names)}


# ---------------------------------------------------------------- text


def script(found: Found) -> str:
    """The model and its feeds as a Python script with nothing but onnx and NumPy."""
    g = found.model.graph
    opset = found.model.opset_import[0].version
    lines = ["nodes = ["]
    for n in g.node:
        attributes = "".join(f", {a.name}={_attribute(a)}" for a in n.attribute)
        domain = f", domain={n.domain!r}" if n.domain else ""
        lines.append(f"    node({n.op_type!r}, {list(n.input)}, {list(n.output)}{domain}{attributes}),")
    lines += ["]", "inputs = {"]
    for i in g.input:
        dims = [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
        lines.append(f"    {i.name!r}: ({_dtype(i)!r}, {dims}),")
    lines += ["}", f"outputs = {{{', '.join(f'{o.name!r}: {_dtype(o)!r}' for o in g.output)}}}"]
    lines += ["constants = {"]
    lines += [f"    {c.name!r}: {_array(numpy_helper.to_array(c))}," for c in g.initializer]
    lines += ["}", f"opset = {opset}"]
    for feed in found.feeds:
        lines.append("feed = {" + ", ".join(f"{n!r}: {_array(a)}" for n, a in feed.items()) + "}")
    return "\n".join(lines) + "\n"


def _attribute(a: onnx.AttributeProto) -> str:
    v = helper.get_attribute_value(a)
    if isinstance(v, bytes):
        return repr(v.decode())
    if isinstance(v, onnx.GraphProto):
        return f"graph({onnx.printer.to_text(v)!r})"
    if isinstance(v, onnx.TensorProto):
        return f"tensor({_array(numpy_helper.to_array(v))})"
    return repr(list(v) if isinstance(v, (list, tuple)) else v)


def _dtype(v: onnx.ValueInfoProto) -> str:
    return str(helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type or 1))


def _array(a: Array) -> str:
    if a.size > 64:
        return f"random({str(a.dtype)!r}, {list(a.shape)})"
    return (
        f"array({np.array2string(a, separator=', ', threshold=100).replace(chr(10), '')}, {str(a.dtype)!r})"
        + (f".reshape({list(a.shape)})" if not a.size else "")
    )
