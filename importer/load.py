"""A path, bytes or ModelProto in; a parsed model out whose graph is sound: named, ordered, without cycles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from os.path import realpath
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from smelt.core.diag import SmeltError, invalid
from smelt.core.dim.expr import DividedByZero
from smelt.importer.domains import ML, MS
from smelt.importer.outline import outline
from smelt.importer.validity import check_definitions

Source: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"

MOST_MESSAGE = 2**31 - 1
"""Most bytes of a protobuf message; larger models store weights as external data."""

# What people hand over instead of ONNX: (offset, magic, what it is, what to do)
FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (
        0,
        b"PK\x03\x04",
        "a zip archive",
        "export a PyTorch file with torch.onnx.export, or unpack the archive",
    ),
    (0, b"version https://git-lfs", "a git-lfs pointer", "fetch the file itself with git lfs pull"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it with tf2onnx"),
    (4, b"ORTM", "an ONNX Runtime .ort file", "compile the .onnx file that it was made from"),
    (0, b"GGUF", "a GGUF model", "export the model to ONNX"),
    (0, b"\x89HDF", "an HDF5 file", "convert a Keras model with tf2onnx"),
    (0, b"\x1f\x8b", "gzip data", "unpack it"),
    (0, b"\x80\x02", "a Python pickle", "export it with torch.onnx.export"),
    (0, b"\x7fELF", "an executable", "pass the .onnx file"),
    (0, b"<", "markup text", "check what was downloaded"),
    (0, b"{", "JSON text", "pass the .onnx file"),
)


@dataclass(frozen=True)
class Loaded:
    """A parsed model, the folders of its external data, and a name for it. folders: that of the path, from
    which names of files count, and that of the file which it links to; none where it came as bytes."""

    model: onnx.ModelProto
    folders: tuple[Path, ...]
    name: str


def load(source: Source) -> Loaded:
    """Parse a model without reading external data. Raises SmeltError(kind='invalid') when it is no ONNX
    model."""
    if isinstance(source, onnx.ModelProto):
        return _sound(Loaded(source, (), source.graph.name or "model"))
    if isinstance(source, (bytes, bytearray, memoryview)):
        model = _parse(bytes(source), "the bytes")
        return _sound(Loaded(model, (), model.graph.name or "model"))
    path = Path(fspath(source))
    folders = (path.parent, Path(realpath(path)).parent)
    return _sound(Loaded(_parse(_read(path), f"'{path}'"), folders, path.stem))


def _read(path: Path) -> bytes:
    if not os.path.exists(path):
        raise invalid(f"'{path}' does not exist", hint="check the path of the model")
    if not os.path.isfile(path):
        raise invalid(f"'{path}' is not a file", hint="pass the .onnx file inside it")
    size = path.stat().st_size
    if size > MOST_MESSAGE:
        raise invalid(
            f"'{path}' has {size} bytes, more than the {MOST_MESSAGE} that a protobuf message may have",
            hint="save the model with external data (onnx.save(..., save_as_external_data=True))",
        )
    try:
        short = outline(path)
        return path.read_bytes() if short is None else short
    except OSError as e:
        raise invalid(f"'{path}' cannot be read: {e.strerror}", hint="check its permissions") from e


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise invalid(f"{what} is empty, wanted an ONNX model", hint="check that the download finished")
    if len(data) > MOST_MESSAGE:
        raise invalid(f"{what} has {len(data)} bytes, more than a protobuf message may have")
    for offset, magic, kind, hint in FOREIGN:
        if data[offset : offset + len(magic)] == magic:
            raise invalid(f"{what} is {kind}, wanted an ONNX model", hint=hint)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, ValueError) as e:
        raise invalid(
            f"{what} is not an ONNX model: the protobuf message is broken or cut short",
            hint="check that the file is complete",
        ) from e
    if not model.HasField("graph") or model.ir_version <= 0:
        missing = "ir_version" if model.HasField("graph") else "graph"
        raise invalid(
            f"{what} is not an ONNX model: its {missing} is missing",
            hint="check that the file is complete",
        )
    return model


def _texts(message: Message, depth: int = 0) -> None:
    """Raise SmeltError for a text field that is not UTF-8, which the parser returns as bytes."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for v in (value,) if isinstance(value, str | bytes | Message) else value:
            if field.type == field.TYPE_MESSAGE:
                _texts(v, depth + 1)
            elif not isinstance(v, str):
                raise invalid(
                    f"field '{field.name}' holds {bytes(v)[:20]!r}, which is not UTF-8",
                    hint="the file is damaged",
                )


UNSAID = {MS: 1, ML: 5}
"""Versions of domains that ONNX Runtime treats as imported, so that some exporters omit the import."""


def opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Domain -> version; '' is the standard one, also when it is spelt 'ai.onnx'."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}


def _sound(loaded: Loaded) -> Loaded:
    model = loaded.model
    _texts(model)
    check_definitions(model)
    return loaded


# ---------------------------------------------------------------- the order of a graph


def label(node: onnx.NodeProto) -> str:
    """A node's name in messages: its own, else that of its first output, else that of its operator."""
    return node.name or next((o for o in node.output if o), "") or node.op_type


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        yield from a.graphs


def uses(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, including those that its subgraphs capture."""
    yield from (i for i in node.input if i)
    for g in subgraphs(node):
        yield from captures(g)


def captures(g: onnx.GraphProto) -> Iterator[str]:
    """The names that a subgraph takes from the graphs around it."""
    own = {v.name for v in g.input} | {t.name for t in g.initializer}
    own |= {t.values.name for t in g.sparse_initializer}
    own |= {o for n in g.node for o in n.output}
    for n in g.node:
        yield from (u for u in uses(n) if u not in own)
    yield from (o.name for o in g.output if o.name not in own)


def ordered(
    nodes: Iterable[onnx.NodeProto],
    given: Iterable[str],
    outer: Mapping[str, object] | frozenset[str] = frozenset(),
) -> list[onnx.NodeProto]:
    """The nodes in topological order, in the file's order where that is one.

    given: names of inputs and initialisers. outer: names visible from the graphs around.
    Raises SmeltError(kind='invalid') for names defined twice, undefined ones, and cycles.
    """
    nodes = list(nodes)
    known = set(given)
    maker: dict[str, int] = {}
    for i, n in enumerate(nodes):
        for o in n.output:
            if not o:
                continue
            if o in maker or o in known:
                first = label(nodes[maker[o]]) if o in maker else "an input or initializer"
                raise invalid(
                    f"value '{o}' is defined twice, here and by '{first}'",
                    node=label(n),
                    hint="each name may be defined once",
                )
            maker[o] = i
    needs = [sorted({maker[u] for u in uses(n) if u in maker}) for n in nodes]
    for n in nodes:
        for u in uses(n):
            if u not in maker and u not in known and u not in outer:
                raise invalid(
                    f"input '{u}' is not defined: no node, graph input or initializer has this name",
                    node=label(n),
                    hint="a weight may be missing from the file; export the model again",
                )
    return _sorted(nodes, needs)


def _sorted(nodes: list[onnx.NodeProto], needs: list[list[int]]) -> list[onnx.NodeProto]:
    if all(d < i for i, ds in enumerate(needs) for d in ds):
        return nodes
    import heapq

    left = [len(ds) for ds in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for i, ds in enumerate(needs):
        for d in ds:
            users[d].append(i)
    ready = [i for i, n in enumerate(left) if n == 0]
    order: list[onnx.NodeProto] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for u in users[i]:
            left[u] -= 1
            if left[u] == 0:
                heapq.heappush(ready, u)
    if len(order) != len(nodes):
        stuck = [label(nodes[i]) for i, n in enumerate(left) if n > 0]
        names = ", ".join(f"'{s}'" for s in stuck[:5]) + (", ..." if len(stuck) > 5 else "")
        raise invalid(
            f"the graph has a cycle through {names}", node=stuck[0], hint="ONNX graphs are acyclic; use Loop"
        )
    return order


def guard(e: Exception) -> SmeltError | None:
    """The SmeltError for an exception that malformed numbers or text of a model raise; None for a bug of
    smelt."""
    if isinstance(e, UnicodeDecodeError):
        return invalid("a name in the model is not valid UTF-8", hint="the file is damaged")
    if isinstance(e, RecursionError):
        return invalid("the model's graphs or functions are nested too deeply")
    if isinstance(e, DividedByZero):
        return invalid("a size or an attribute that others are divided by is 0")
    return None
