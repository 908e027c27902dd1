"""Hostile graphs, weights and files that no single field makes: cycles, names defined twice, recursion,
impossible shapes, external data elsewhere, files that are none. Each a case by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from file_fields import specimen
from file_judge import Expected
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Place: TypeAlias = "Callable[[Path], None]"
"""Puts what it is about at a path."""
F, I64, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
BAD = Expected(refused=True)
info, node = helper.make_tensor_value_info, helper.make_node


@dataclass(frozen=True)
class PlacedCase:
    """A case that puts files in a folder. klass: its own name."""

    name: str
    place: Place
    expected: Expected

    @property
    def klass(self) -> str:
        return self.name


def model(
    nodes: list[NodeProto],
    inputs: dict[str, Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    weights: tuple[TensorProto, ...] = (),
    opset: int = 18,
    **more: Any,
) -> ModelProto:
    """A model of f32 inputs (shape, or type and shape) and outputs."""
    given = {"x": ["N", 4]} if inputs is None else inputs
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, *(s if isinstance(s, tuple) else (F, s))) for n, s in given.items()],
        [info(o, F, None) for o in outputs],
        list(weights),
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10, **more)


def op(kind: str, inputs: str, outputs: str = "y", name: str = "bad", **attrs: Any) -> NodeProto:
    """A node of names with blanks between; '-' is an absent one."""
    lists = [[n.replace("-", "") for n in names.split()] for names in (inputs, outputs)]
    return node(kind, *lists, name=name, **attrs)


def tensor(name: str, dims: list[int], kind: int = F, **fields: Any) -> TensorProto:
    """A tensor whose fields need not agree."""
    return TensorProto(name=name, data_type=kind, dims=dims, **fields)


def outside(dims: list[int], **entries: str) -> TensorProto:
    """A weight w in another file."""
    t = TensorProto(name="w", data_type=F, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        t.external_data.add(key=key, value=value)
    return t


def _function(name: str, nodes: list[NodeProto], inputs: str = "a", outputs: str = "b") -> onnx.FunctionProto:
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs.split(), outputs.split(), nodes, sets)


def _graph(nodes: list[NodeProto], outputs: str, inputs: str = "") -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "s", [info(i, F, None) for i in inputs.split()], [info(o, F, None) for o in outputs.split()]
    )


def _graphs() -> dict[str, ModelProto]:
    """What no runtime could accept; the node 'bad' is to blame where there is one."""
    relu = op("Relu", "x", "y")
    one = numpy_helper.from_array(np.ones(1, np.float32), "w")
    branch = _graph([op("Relu", "x", "t", "in")], "t")
    two = _graph([op("Relu", "x", "t", "in"), op("Relu", "x", "u", "in2")], "t u")
    call = op("F", "x", domain="local")
    repeated = op("Softmax", "x", axis=1)
    repeated.attribute.append(repeated.attribute[0])
    stray = op("Softmax", "x", axis=1)
    stray.attribute[0].ref_attr_name = "axis"
    return {
        "a cycle": model(
            [op("Add", "x b", "a", "bad"), op("Relu", "a", "b", "n2"), op("Relu", "b", "y", "n3")]
        ),
        "a node that reads itself": model([op("Add", "x y", "y")]),
        "an undefined input": model([op("Add", "x nowhere")]),
        "a value made twice": model([op("Relu", "x", "y", "first"), op("Neg", "x", "y")]),
        "a node that makes a value twice": model([op("Split", "x", "y y", num_outputs=2)]),
        "a node that makes an input": model([op("Relu", "x", "x"), op("Relu", "x", "y", "other")]),
        "a node that makes a weight": model(
            [op("Relu", "x", "w"), op("Relu", "w", "y", "other")], weights=(one,)
        ),
        "an undefined output": model([relu], outputs=("y", "nowhere")),
        "outputs twice": model([relu], outputs=("y", "y")),
        "no outputs": model([relu], outputs=()),
        "weights twice": model([op("Add", "x w")], weights=(one, one)),
        "an attribute twice": model([repeated]),
        "an attribute of no function": model([stray]),
        "an unknown attribute": model([op("Relu", "x", nonsense=1)]),
        "an unknown op": model([op("Nonsense", "x")]),
        "an unknown domain": model([op("Relu", "x", domain="no.such")]),
        "an empty op": model([op("", "x")]),
        "functions twice": model([call], functions=[_function("F", [op("Relu", "a", "b")])] * 2),
        "a function that calls itself": model(
            [call], functions=[_function("F", [op("F", "a", "b", domain="local")])]
        ),
        "functions that call each other": model(
            [call],
            functions=[
                _function("F", [op("G", "a", "b", domain="local")]),
                _function("G", [op("F", "a", "b", domain="local")]),
            ],
        ),
        "a function without its output": model(
            [call], functions=[_function("F", [op("Relu", "a", "c", "in")])]
        ),
        "a function with an input twice": model(
            [call], functions=[_function("F", [op("Relu", "a", "b")], "a a")]
        ),
        "a function of fewer outputs": model(
            [op("F", "x", "y z", domain="local")],
            outputs=("y", "z"),
            functions=[_function("F", [op("Relu", "a", "b")])],
        ),
        "a function of fewer inputs": model(
            [op("F", "x x", domain="local")], functions=[_function("F", [op("Relu", "a", "b")])]
        ),
        "branches of other outputs": model(
            [op("If", "c", then_branch=branch, else_branch=two)], {"x": [2], "c": (B, [])}
        ),
        "branches of other ranks": model(
            [
                op(
                    "If",
                    "c",
                    then_branch=branch,
                    else_branch=_graph([op("ReduceSum", "x", "t", "in", keepdims=0)], "t"),
                )
            ],
            {"x": [2], "c": (B, [])},
        ),
        "a branch with inputs": model(
            [op("If", "c", then_branch=_graph([op("Relu", "x", "t", "in")], "t", "q"), else_branch=branch)],
            {"x": [2], "c": (B, [])},
        ),
        "a branch that reads what comes later": model(
            [
                op("If", "c", "b", then_branch=_graph([op("Relu", "y", "t", "in")], "t"), else_branch=branch),
                op("Relu", "b", "y", "n2"),
            ],
            {"x": [2], "c": (B, [])},
        ),
        "an empty branch": model(
            [op("If", "c", then_branch=onnx.GraphProto(), else_branch=branch)], {"x": [2], "c": (B, [])}
        ),
        "a loop of no state": model([op("Loop", "n", body=branch)], {"n": (I64, []), "x": [2]}),
        "a scan of no inputs": model([op("Scan", "x", body=branch, num_scan_inputs=7)]),
        "PRelu of a scalar with slope [1]": model([op("PRelu", "x w")], {"x": []}, weights=(one,)),
        "TopK with k = -1": model(
            [op("TopK", "x k", "y i")], weights=(tensor("k", [1], I64, int64_data=[-1]),)
        ),
        "a transposition of rank 3": model([op("Transpose", "x", perm=[0, 1, 2])]),
        "a transposition that is none": model([op("Transpose", "x", perm=[0, 0])]),
        "an axis beyond": model([op("Concat", "x x", axis=2)]),
        "a shape with two -1": model(
            [op("Reshape", "x s")], weights=(tensor("s", [2], I64, int64_data=[-1, -1]),)
        ),
        "an impossible shape": model(
            [op("Reshape", "x s")], {"x": [2, 3]}, weights=(tensor("s", [1], I64, int64_data=[7]),)
        ),
        "splits that do not add up": model(
            [op("Split", "x s", "y z", axis=1)], weights=(tensor("s", [2], I64, int64_data=[1, 1]),)
        ),
        "a step of 0": model(
            [op("Slice", "x a b b a")],
            weights=(tensor("a", [1], I64, int64_data=[0]), tensor("b", [1], I64, int64_data=[1])),
        ),
        "a range of delta 0": model(
            [op("Range", "a b a")],
            {},
            weights=(tensor("a", [], F, float_data=[0]), tensor("b", [], F, float_data=[1])),
        ),
        "a kernel of 0": model([op("MaxPool", "x", kernel_shape=[0])], {"x": [1, 1, 8]}),
        "strides of 0": model([op("MaxPool", "x", kernel_shape=[2], strides=[0])], {"x": [1, 1, 8]}),
        "groups of 0": model([op("Conv", "x w", group=0)], {"x": [1, 1, 8], "w": [1, 1, 3]}),
        "groups that divide nothing": model([op("Conv", "x w", group=3)], {"x": [1, 4, 8], "w": [6, 1, 3]}),
        "an equation of einsum": model([op("Einsum", "x x", equation="ij,->k->")]),
        "an index of einsum without an operand": model([op("Einsum", "x", equation="ij->ijk")]),
        "a product of other sizes": model([op("MatMul", "x w")], {"x": [2, 3], "w": [4, 5]}),
        "types that differ": model([op("Add", "x w")], weights=(tensor("w", [1], I64, int64_data=[1]),)),
        "a scale of 0": model(
            [op("Resize", "x - s")],
            {"x": [1, 1, 4, 4]},
            weights=(tensor("s", [4], F, float_data=[1, 1, 0, 1]),),
        ),
        "a scale of NaN": model(
            [op("Resize", "x - s")],
            {"x": [1, 1, 4, 4]},
            weights=(tensor("s", [4], F, float_data=[1, 1, float("nan"), 1]),),
        ),
        "a depth of -1": model(
            [op("OneHot", "w d v")],
            {},
            weights=(one, tensor("d", [], I64, int64_data=[-1]), tensor("v", [2], F, float_data=[0, 1])),
        ),
        "an input of rank 1,000": model([relu], {"x": [1] * 1000}),
        "a weight of rank 1,000": model(
            [op("Add", "x w")], weights=(tensor("w", [1] * 1000, float_data=[1.0]),)
        ),
        "a result of rank 1,000": model(
            [op("Reshape", "x s")], {"x": [1]}, weights=(tensor("s", [1000], I64, int64_data=[1] * 1000),)
        ),
        **{
            f"a weight of {d}": model([op("Add", "x w")], weights=(tensor("w", d),))
            for d in (
                [2**62],
                [2**62, 2**62],
                [2**62, 0],
                [0, 2**63 - 1, 2**63 - 1],
                [-1],
                [2**31, 2**31, 2**31, 0],
                [2**40],
            )
        },
        "a weight with too few elements": model(
            [op("Add", "x w")], weights=(tensor("w", [4], float_data=[1.0]),)
        ),
        "a weight with too many bytes": model(
            [op("Add", "x w")], weights=(tensor("w", [1], raw_data=b"12345678"),)
        ),
        "a weight in segments": model(
            [op("Add", "x w")],
            weights=(tensor("w", [2], raw_data=b"1234", segment=TensorProto.Segment(begin=0, end=1)),),
        ),
        "a weight of an unknown type": model(
            [op("Add", "x w")], weights=(tensor("w", [1], 999, raw_data=b"1234"),)
        ),
        "strings that are not UTF-8": model(
            [op("Identity", "w")], weights=(tensor("w", [1], TensorProto.STRING, string_data=[b"\xff\xfe"]),)
        ),
        "a size of 2^62": model([relu], {"x": [2**62, 4]}),
        "padding of 2^62": model(
            [op("Pad", "x p")], {"x": [1]}, weights=(tensor("p", [2], I64, int64_data=[0, 2**62]),)
        ),
        "opset 0": model([relu], opset=0),
        "opset -1": model([relu], opset=-1),
        "opset 10^9": model([relu], opset=10**9),
    }


def _weights() -> dict[str, tuple[TensorProto, bytes]]:
    """Weights in other files, and what w.bin holds."""
    full = b"\0" * 16
    own: dict[str, tuple[TensorProto, bytes]] = {
        f"{key} {value!r}": (outside([4], **{"location": "w.bin", key: value}), full)
        for key, values in (
            ("offset", ("-1", str(2**62), str(2**70), "1e3", "x", "17", " 4", "0x10", "९")),
            ("length", ("-1", "0", str(2**62), "8", "x", "99")),
            (
                "location",
                (
                    "",
                    "../w.bin",
                    "/etc/passwd",
                    "missing.bin",
                    "a\0b",
                    ".",
                    "/dev/zero",
                    "..\\w.bin",
                    "q" * 300,
                    "a/" * 3000,
                    "w.bin/",
                    "link.bin",
                    "loop.bin",
                    "pipe.bin",
                    "folder",
                    "secret.bin",
                ),
            ),
        )
        for value in values
    }
    own["no entries"] = outside([4]), full
    own["2^62 elements"] = outside([2**62], location="w.bin"), full
    own["2^40 elements"] = outside([2**40], location="w.bin", length=str(2**42)), full
    own["a file too short"] = outside([4], location="w.bin"), b"\0" * 15
    own["of strings"] = TensorProto(name="w", data_type=TensorProto.STRING, dims=[4]), full
    own["of strings"][0].data_location = TensorProto.EXTERNAL
    own["of strings"][0].external_data.add(key="location", value="w.bin")
    return own


def _with_weight(t: TensorProto, content: bytes) -> Place:
    def place(path: Path) -> None:
        path.write_bytes(model([op("Add", "x w")], {"x": ["N", 4]}, weights=(t,)).SerializeToString())
        (path.parent / "w.bin").write_bytes(content)
        (path.parent / "link.bin").symlink_to("/etc/passwd")
        (path.parent / "loop.bin").symlink_to("loop.bin")
        (path.parent / "folder").mkdir()
        os.mkfifo(path.parent / "pipe.bin")

    return place


def _holding(data: bytes) -> Place:
    def place(path: Path) -> None:
        path.write_bytes(data)

    return place


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _nested(number: int, depth: int, head: bytes = b"\x08\x0a") -> bytes:
    """Messages within messages in a field of a graph's first node: subgraphs of subgraphs."""
    body = b""
    for _ in range(depth):
        for field in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            body = bytes([field << 3 | 2]) + _varint(len(body)) + body
    return head + bytes([number << 3 | 2]) + _varint(len(body)) + body


def _sparse(path: Path) -> None:
    with path.open("wb") as f:
        f.truncate(1 << 40)


def _large(path: Path) -> None:
    """8 MB and more, which takes another way to the parser, cut short."""
    data = model(
        [op("Add", "x w")], weights=(tensor("w", [1 << 22], raw_data=bytes(1 << 24)),)
    ).SerializeToString()
    path.write_bytes(data[: len(data) - 1000])


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _forbidden(path: Path) -> None:
    path.write_bytes(b"\x08\x0a")
    path.chmod(0)


def _files() -> dict[str, Place]:
    sound = specimen().SerializeToString()
    cut = {f"cut at {k} of 24": _holding(sound[: len(sound) * k // 24]) for k in range(24)}
    noise = {
        f"noise of {n}": _holding(np.random.default_rng(n).integers(0, 256, n, np.uint8).tobytes())
        for n in (1, 2, 7, 100, 5000, 1 << 16)
    }
    odd = {
        "a zip archive": b"PK\x03\x04" + b"\0" * 100,
        "JSON": b'{"irVersion": 8}',
        "markup": b"<html></html>",
        "text": b"ir_version: 8\ngraph { node { op_type: 'Relu' } }",
        "zeros": bytes(1000),
        "ones": b"\xff" * 1000,
        "an unknown field": sound + b"\xfa\xff\xff\x7f\x03abc",
        "a group": sound + b"\xfb\x3f\xfc\x3f",
        "a field of 2^62 bytes": b"\x08\x0a\x3a" + _varint(2**62),
        "a group without an end": b"\x0b" * 1000,
        "a graph twice": sound + sound,
        "only a version": b"\x08\x0a",
        "a graph that is empty": b"\x08\x0a\x3a\x00",
        "a name that is not UTF-8": sound.replace(b"product", b"pr\xff\xfe\xfduct"[:7]),
        "an input that is not UTF-8": sound.replace(b"x4", b"x\xff"),
        "an attribute of a type out of range": sound.replace(
            b"perm@\x00@\x01\xa0\x01\x07", b"perm@\x00@\x01\xa0\x01\x63"
        ),
    }
    nested = {f"{d} graphs in graphs": _holding(_nested(7, d)) for d in (20, 33, 60, 1000, 20_000)}
    return {
        **cut,
        **noise,
        **nested,
        **{name: _holding(data) for name, data in odd.items()},
        "an empty file": _holding(b""),
        "a folder": lambda p: p.mkdir(),
        "nothing": lambda p: None,
        "a pipe": _fifo,
        "a device": lambda p: p.symlink_to("/dev/zero"),
        "another device": lambda p: p.symlink_to("/dev/full"),
        "a link to itself": lambda p: p.symlink_to(p.name),
        "a terabyte of nothing": _sparse,
        "a large file cut": _large,
        "a file without permission": _forbidden,
    }


HARMLESS = frozenset(
    {
        "an unknown field",
        "a group",
        "offset ' 4'",
        "a graph twice",
        "an attribute of a type out of range",
        "a file without permission",
        "location 'w.bin/'",
    }
)
"""What protobuf allows, what root may read, or what is as good as absent: it may compile."""


def placed_cases() -> list[PlacedCase]:
    """All of them, by name."""
    rows = [(f"graph: {n}", _holding(m.SerializeToString()), n) for n, m in _graphs().items()]
    rows += [(f"external data: {n}", _with_weight(t, data), n) for n, (t, data) in _weights().items()]
    rows += [(f"file: {n}", place, n) for n, place in _files().items()]
    return [PlacedCase(name, place, Expected() if n in HARMLESS else BAD) for name, place, n in rows]
