"""A model's declared inputs and outputs in; the tensors that represent each of them at run time out.

A tensor is itself. A tensor of strings `x` is the bytes `x.chars` (importer/strings.py). A map is its
`x.keys` and `x.values`, a list of maps `x.scores`, a row for each of them. A sequence is the pair `x.values`
and `x.shapes` (importer/sequences.py says what they hold), one of strings `x.chars`, a row for each string,
and `x.shapes`.
An optional has a flag `x.given` in front; an optional tensor is `x.value` after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, TypeProto

from smelt.core.diag import SmeltError, invalid, unsupported
from smelt.core.dim import ZERO, to_dim
from smelt.core.dtype import DType, bool_, i64
from smelt.core.ir.graph import Ref
from smelt.importer import sequences as sq
from smelt.importer import strings
from smelt.importer.builder import GraphBuilder
from smelt.importer.load import Source, load
from smelt.importer.symbols import dim_text
from smelt.importer.weights import ONNX_OF, dtype_of


@dataclass(frozen=True)
class DeclaredPort:
    """An input or output as the file declares it.

    kind: 'tensor', 'strings', 'sequence', 'strings sequence', or one of these with 'optional' in front;
    'map', for an input, and 'maps', a list of them, for an output. element: the type of the tensors inside.
    parts: the names of the tensors that represent it. keys: of maps, where they are known; of a map '' for
    strings and 0 for integers.
    """

    name: str
    kind: str
    element: TypeProto.Tensor
    parts: tuple[str, ...]
    keys: tuple[int | str, ...] = ()

    @property
    def optional(self) -> bool:
        """Whether it may hold nothing."""
        return self.kind.startswith("optional")

    @property
    def sequence(self) -> bool:
        """Whether it is a list of tensors."""
        return self.kind.endswith("sequence")

    @property
    def strings(self) -> bool:
        """Whether its tensors hold strings."""
        return "strings" in self.kind

    def dims(self) -> list[int | str] | None:
        """The declared extents of a tensor inside; None when not even the rank is declared."""
        return [dim_text(d) for d in self.element.shape.dim] if self.element.HasField("shape") else None


_PARTS = {
    "tensor": ("",),
    "strings": (".chars",),
    "maps": (".scores",),
    "map": (".keys", ".values"),
    "sequence": (".values", ".shapes"),
    "strings sequence": (".chars", ".shapes"),
    "optional tensor": (".given", ".value"),
    "optional strings": (".given", ".chars"),
    "optional sequence": (".given", ".values", ".shapes"),
    "optional strings sequence": (".given", ".chars", ".shapes"),
}


def stands_for_more(tensor: str) -> bool:
    """Whether a tensor's name has a suffix of an input's or output's part."""
    return tensor.endswith(tuple(part for parts in _PARTS.values() for part in parts if part))


def port(v: onnx.ValueInfoProto, what: str) -> DeclaredPort:
    """The Port of a declared input or output. Raises SmeltError for types that smelt does not support."""
    t, kind = v.type, ""
    if t.WhichOneof("value") == "optional_type":
        t, kind = t.optional_type.elem_type, "optional "
    if t.WhichOneof("value") == "sequence_type":
        t, kind = t.sequence_type.elem_type, f"{kind}sequence"
    else:
        kind = f"{kind}tensor"
    found = t.WhichOneof("value")
    if found is None:
        raise invalid(f"{what} '{v.name}' has no type", hint="its export is incomplete; export it again")
    if found == "map_type" and kind == "sequence":
        scores = TypeProto.Tensor(elem_type=TensorProto.FLOAT)
        return DeclaredPort(v.name, "maps", scores, (f"{v.name}.scores",))
    if found == "map_type" and kind == "tensor" and what == "input":
        return _map_port(v.name, t.map_type)
    if found == "tensor_type" and t.tensor_type.elem_type == TensorProto.STRING:
        kind = kind.replace("tensor", "strings").replace("sequence", "strings sequence")
    if found != "tensor_type":
        holds = "is" if kind == "tensor" else f"is {'an' if kind[0] == 'o' else 'a'} {kind} that holds"
        raise unsupported(f"{what} '{v.name}' {holds} a {found.removesuffix('_type')}, not a tensor")
    return DeclaredPort(v.name, kind, t.tensor_type, tuple(v.name + p for p in _PARTS[kind]))


def _map_port(name: str, t: TypeProto.Map) -> DeclaredPort:
    """An input that is a map from integers or strings to numbers."""
    parts = tuple(name + p for p in _PARTS["map"])
    value = t.value_type.tensor_type
    if t.value_type.WhichOneof("value") != "tensor_type" or value.elem_type == TensorProto.STRING:
        raise unsupported(f"input '{name}' is a map whose values are no numbers")
    if t.key_type not in (TensorProto.INT64, TensorProto.STRING):
        raise unsupported(f"input '{name}' is a map whose keys are neither int64 nor strings")
    return DeclaredPort(name, "map", value, parts, ("",) if t.key_type == TensorProto.STRING else (0,))


def interface(
    source: Source, tensors: Iterable[str]
) -> tuple[tuple[DeclaredPort, ...], tuple[DeclaredPort, ...]]:
    """The inputs and outputs of a model that are not plain tensors. tensors: what the model's outputs became,
    which tells those that the file gives no type."""
    g = load(source).model.graph
    constants = {t.name for t in g.initializer} | {s.values.name for s in g.sparse_initializer}
    inputs = [port(v, "input") for v in g.input if v.name not in constants]
    parts = frozenset(tensors) - {v.name for v in g.output}
    outputs = [port(v, "output") if typed(v) else _port_of(v.name, parts) for v in g.output]
    made = {o: n for n in g.node for o in n.output}
    outputs = [replace(p, keys=map_keys(made[p.name].attribute)) if p.kind == "maps" else p for p in outputs]
    return tuple(p for p in inputs if p.kind != "tensor"), tuple(p for p in outputs if p.kind != "tensor")


def typed(v: onnx.ValueInfoProto) -> bool:
    """Whether the file gives an output a type."""
    return v.type.WhichOneof("value") is not None


def _port_of(name: str, tensors: frozenset[str]) -> DeclaredPort:
    """The port of an output without a type, by the tensors that are parts of outputs: the kind with the most
    parts among them; without any it is a tensor."""
    kinds = [k for k, parts in _PARTS.items() if all(name + p in tensors for p in parts)]
    kind = max(kinds, key=lambda k: len(_PARTS[k]), default="tensor")
    return DeclaredPort(name, kind, TypeProto.Tensor(), tuple(name + p for p in _PARTS[kind]))


def map_keys(attributes: Iterable[onnx.AttributeProto]) -> tuple[int | str, ...]:
    """The keys that a ZipMap gives its maps."""
    for a in attributes:
        if a.name == "classlabels_int64s" and a.ints:
            return tuple(int(k) for k in a.ints)
        if a.name == "classlabels_strings" and a.strings:
            return tuple(k.decode() for k in a.strings)
    return ()


# ---------------------------------------------------------------- inputs


def input_tensors(p: DeclaredPort) -> list[onnx.ValueInfoProto]:
    """The declarations of the tensors that represent an input."""
    dims = p.dims()
    found = []
    if p.kind == "map":
        key = (TensorProto.UINT8, ["", ""]) if p.keys == ("",) else (TensorProto.INT64, [""])
        return [
            onnx.helper.make_tensor_value_info(p.parts[0], *key),
            onnx.helper.make_tensor_value_info(p.parts[1], p.element.elem_type, [""]),
        ]
    if p.optional:
        found.append(onnx.helper.make_tensor_value_info(p.parts[0], TensorProto.BOOL, []))
    if p.sequence:
        width = "" if dims is None else len(dims)
        kind, rows = (TensorProto.UINT8, ["", ""]) if p.strings else (p.element.elem_type, [""])
        found += [
            onnx.helper.make_tensor_value_info(p.parts[-2], kind, rows),
            onnx.helper.make_tensor_value_info(p.parts[-1], TensorProto.INT64, ["", width]),
        ]
    elif p.strings and dims is not None:
        found.append(onnx.helper.make_tensor_value_info(p.parts[-1], TensorProto.UINT8, [*dims, ""]))
    else:
        own = onnx.ValueInfoProto(name=p.parts[-1])
        own.type.tensor_type.CopyFrom(p.element)
        found.append(own)
    return found


def received(b: GraphBuilder, p: DeclaredPort, refs: Sequence[Ref]) -> Ref:
    """The value of an input, assembled of the tensors that represent it; a run checks that they are
    consistent."""
    if p.kind == "tensor":
        return refs[0]
    if p.kind == "strings":
        return strings.made(b, refs[0])
    b.engine.at(p.name)
    if p.kind == "map":
        b.engine.same(f"keys and values of '{p.name}'", *(b.type_of(r).shape[0] for r in refs))
        b.flush_checks()
        return sq.register(b.store, sq.Map(strings.made(b, refs[0]) if p.keys == ("",) else refs[0], refs[1]))
    item = strings.made(b, refs[-1]) if p.strings and not p.sequence else refs[-1]
    if p.sequence:
        values = strings.numbers(b, b.type_of(refs[-2]).shape[:1]) if p.strings else refs[-2]
        own = sq.Packed(i64 if p.strings else _dtype(p, "input"), values, refs[-1], _known_dims(p))
        _checked(b, own)
        item = sq.register(b.store, own)
        item = sq.register(b.store, sq.Texts(item, refs[-2])) if p.strings else item
    b.flush_checks()
    return sq.register(b.store, sq.Maybe(refs[0], item)) if p.optional else item


def _dtype(p: DeclaredPort, what: str) -> DType:
    return dtype_of(p.element.elem_type, f"{what} '{p.name}'")


def _known_dims(p: DeclaredPort) -> sq.CommonExtents:
    """The extents common to all elements of a sequence: declared numbers; a named size may differ between
    elements."""
    dims = p.dims()
    return None if dims is None else tuple(to_dim(d) if isinstance(d, int) else None for d in dims)


def _checked(b: GraphBuilder, p: sq.Packed) -> None:
    """Emit checks that the rows of a sequence's shapes are shapes, as declared, and match the number of
    values."""
    least = 0 if p.dims is not None else sq.NO_RANK
    sq.refuse(b, b.emit("less", [p.shapes, b.scalar(least, p.shapes)]), "negative_extents")
    for axis, d in enumerate(p.dims or ()):
        if d is not None:
            other = b.emit("not_equal", [sq.column(b, p, axis), b.from_dims([d], ())])
            sq.refuse(b, other, f"elements_without_{d}_on_axis_{axis}")
    total, length = sq.total_of(b, p), sq.length_of(b, p)
    if p.dims is not None and all(d is not None for d in p.dims):
        claimed = sq.uniform_size(p) * length
    else:
        sizes = sq.sizes(b, p, ZERO, length)
        summed = b.emit("reduce_sum", [sizes], {"axes": (0,), "keepdims": False})
        claimed = sq.number(b, summed, "values_by_shapes")
    b.engine.same(f"values of sequence '{p.values[1:]}'", total, b.engine.simplify(claimed))


# ---------------------------------------------------------------- outputs


def made_port(b: GraphBuilder, name: str, ref: Ref) -> DeclaredPort:
    """The port of an output that the file gives no type: what its node makes. Raises SmeltError for an
    optional of which nothing is known but that it is empty."""
    kind, elem_type = _made(b, name, ref)
    return DeclaredPort(
        name, kind, TypeProto.Tensor(elem_type=elem_type), tuple(name + p for p in _PARTS[kind])
    )


def _made(b: GraphBuilder, name: str, ref: Ref) -> tuple[str, int]:
    match sq.compound_of(b.store, ref):
        case sq.Listed(dtype) | sq.Packed(dtype):
            return "sequence", ONNX_OF[dtype]
        case sq.Text():
            return "strings", TensorProto.STRING
        case sq.Texts():
            return "strings sequence", TensorProto.STRING
        case sq.Maps():
            return "maps", TensorProto.FLOAT
        case sq.Maybe(_, item) if item:
            kind, elem_type = _made(b, name, item)
            return f"optional {kind}", elem_type
        case None:
            return "tensor", ONNX_OF[b.type_of(ref).dtype]
        case found:
            raise invalid(f"output '{name}' has no type, its node makes {found}", hint="declare its type")


def returned(b: GraphBuilder, p: DeclaredPort, ref: Ref) -> list[Ref]:
    """The tensors that represent an output."""
    b.engine.at(p.name)
    found = sq.compound_of(b.store, ref)
    if p.kind == "tensor":
        if isinstance(found, sq.Maybe) and found.item in b.store.types:
            return [sq.inside(b, found)]
        if found is not None:
            raise _other(p, str(found))
        return [ref]
    if p.kind == "maps":
        if not isinstance(found, sq.Maps):
            raise _other(p, "a tensor" if found is None else str(found))
        return [found.values]
    if p.kind == "strings":
        chars = strings.chars_of(b, ref)
        if chars is None:
            raise _other(p, "a tensor of numbers" if found is None else str(found))
        b.flush_checks()
        return [chars]
    maybe = found if isinstance(found, sq.Maybe) else sq.Maybe(b.constant(np.array(True)), ref)
    item = sq.inside(b, maybe) if not p.optional else maybe.item or _nothing(b, p)
    inner = sq.compound_of(b.store, item)
    if p.strings:
        parts = _texts(b, p, item)
        b.flush_checks()
        return [b.cast(b.reshape(maybe.given, ()), bool_), *parts] if p.optional else parts
    if p.sequence != isinstance(inner, sq.Listed | sq.Packed):
        raise _other(p, "a tensor" if inner is None else str(inner))
    if isinstance(inner, sq.Listed | sq.Packed):
        if inner.dtype != _dtype(p, "output"):
            raise _other(p, str(inner))
        own = sq.packed(b, inner)
        parts = [own.values, own.shapes]
    else:
        parts = [item]
    b.flush_checks()
    return [b.cast(b.reshape(maybe.given, ()), bool_), *parts] if p.optional else parts


def _texts(b: GraphBuilder, p: DeclaredPort, item: Ref) -> list[Ref]:
    """The tensors that represent strings, or a sequence of strings."""
    inner = sq.compound_of(b.store, item)
    if isinstance(inner, sq.Texts) and p.sequence:
        own = sq.packed(b, sq.compound_of(b.store, inner.order))
        return [b.emit("gather", [inner.table, own.values], {"axis": 0}), own.shapes]
    if isinstance(inner, sq.Text) and not p.sequence:
        return [inner.chars]
    raise _other(p, "a tensor of numbers" if inner is None else str(inner))


def _nothing(b: GraphBuilder, p: DeclaredPort) -> Ref:
    """The placeholders after the flag of an optional that is always empty."""
    if p.strings:
        shape = [] if p.sequence else [d if isinstance(d, int) else 0 for d in p.dims() or ()]
        none = b.constant(np.zeros([*shape, 1] if not p.sequence else [0, 1], np.uint8))
        if not p.sequence:
            return strings.made(b, none)
        return sq.register(b.store, sq.Texts(sq.register(b.store, sq.Listed(i64, ())), none))
    dtype = _dtype(p, "output")
    if p.sequence:
        return sq.register(b.store, sq.Listed(dtype, ()))
    return b.constant(np.zeros([d if isinstance(d, int) else 0 for d in p.dims() or ()], dtype.numpy))


def _other(p: DeclaredPort, found: str) -> SmeltError:
    names = {v: k.lower() for k, v in TensorProto.DataType.items()}
    inner = names.get(p.element.elem_type, f"element type {p.element.elem_type}")
    return invalid(
        f"output '{p.name}' is declared as {p.kind} of {inner}, its node makes {found}",
        hint="the file's types are stale; export it again",
    )
