"""Sequences and optionals of a model in; the tensors that stand for them out, and back.

The IR has tensors only. A sequence is either `Listed`: its length is known, and each element is a tensor of
its own; or `Packed`: all elements flat one after another in one tensor, their shapes as the rows of a second
one. An optional is a `Maybe`: a flag and what may be inside. What crosses the border of a region or of the
model crosses it as its tensors (`leaves`) and is put together again after it (`assemble`), in an
`ElementForm` that both sides agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, Truth, dmax, product, to_dim
from smelt.core.dtype import DType, bool_, i64
from smelt.core.ir.graph import Ref, TensorType
from smelt.core.ops.infer import Engine
from smelt.importer import known as kn
from smelt.importer.builder import GraphBuilder, ImportStore

NO_RANK = -1
"""Stands after the extents of an element whose rank is below the widest one's, in the rows of shapes."""

CommonExtents: TypeAlias = "tuple[Dim | None, ...] | None"
"""What all elements have in common: per axis the extent, None where they differ; None: not even a rank."""


@dataclass(frozen=True)
class Listed:
    """A sequence whose length is known: a ref per element."""

    dtype: DType
    items: tuple[Ref, ...]

    def __str__(self) -> str:
        return f"a sequence of {len(self.items)} {self.dtype} tensors"


@dataclass(frozen=True)
class Packed:
    """A sequence whose length a run may know.

    values: [total], all elements in row-major order, one after the other. shapes: i64[length, width], a row
    per element, NO_RANK after the extents of an element with fewer axes.
    """

    dtype: DType
    values: Ref
    shapes: Ref
    dims: CommonExtents

    def __str__(self) -> str:
        return f"a sequence of {self.dtype} tensors"


@dataclass(frozen=True)
class Maybe:
    """An optional. given: a bool of rank 0. item: the tensor or sequence inside; '' for nothing."""

    given: Ref
    item: Ref

    def __str__(self) -> str:
        return "an optional"


@dataclass(frozen=True)
class Text:
    """A tensor of strings (importer/strings.py). chars: u8[*shape, width], UTF-8 with zeros after it."""

    chars: Ref
    legal: ClassVar[bool] = True  # ONNX lets ops take it for which there is no meaning here

    def __str__(self) -> str:
        return "a tensor of strings"


@dataclass(frozen=True)
class Texts:
    """A sequence of string tensors. order: a sequence of i64 tensors: the numbers of the strings in a table.
    table: u8[strings, width]."""

    order: Ref
    table: Ref
    legal: ClassVar[bool] = True

    def __str__(self) -> str:
        return "a sequence of tensors of strings"


@dataclass(frozen=True)
class Maps:
    """A list of maps, one for each row of values: [rows, keys]. Only a model's output can be one."""

    values: Ref
    keys: tuple[int | str, ...]

    def __str__(self) -> str:
        return "a list of maps"


@dataclass(frozen=True)
class Map:
    """One map. Only a model's input can be one. keys: [n], integers or strings; values: [n]."""

    keys: Ref
    values: Ref

    def __str__(self) -> str:
        return "a map"


Compound: TypeAlias = "Listed | Packed | Maybe | Text | Texts | Maps | Map"


def register(store: ImportStore, value: Compound) -> Ref:
    """A ref for a compound value."""
    ref = f"~{len(store.compounds) + 1}"
    store.compounds[ref] = value
    return ref


def compound_of(store: ImportStore, ref: Ref) -> Compound | None:
    """The compound that a ref stands for; None for a tensor."""
    found: Compound | None = store.compounds.get(ref)
    return found


# ---------------------------------------------------------------- forms


@dataclass(frozen=True)
class TensorForm:
    """One leaf: the tensor."""


@dataclass(frozen=True)
class TextForm:
    """One leaf: the characters."""


@dataclass(frozen=True)
class TextsForm:
    """The leaves of the order, and the table."""

    order: ElementForm


@dataclass(frozen=True)
class ListForm:
    """A leaf per element. dims: what they have in common, for whoever packs them."""

    dtype: DType
    ranks: tuple[int, ...]
    dims: CommonExtents = field(default=None, compare=False)


@dataclass(frozen=True)
class PackForm:
    """Two leaves: values and shapes. width: axes of the widest element, None: a run knows."""

    dtype: DType
    dims: CommonExtents
    width: int | None


@dataclass(frozen=True)
class MaybeForm:
    """A leaf for the flag, unless it is known, and those of the item. types: of the item's leaves, for
    whoever has nothing inside and needs something in its place."""

    given: bool | None
    item: ElementForm | None
    types: tuple[TensorType, ...] = field(default=(), compare=False)


ElementForm: TypeAlias = "TensorForm | TextForm | TextsForm | ListForm | PackForm | MaybeForm"
TENSOR = TensorForm()


def form_of(b: GraphBuilder, ref: Ref) -> ElementForm:
    """The form that a value has."""
    match compound_of(b.store, ref):
        case None:
            return TENSOR
        case Listed(dtype, items):
            own = [b.type_of(r) for r in items]
            return ListForm(dtype, tuple(t.rank for t in own), common(b.engine, own))
        case Packed(dtype, _, shapes, dims):
            return PackForm(dtype, dims, b.type_of(shapes).shape[1].const_or_none)
        case Maybe(given, item):
            types = tuple(b.type_of(r) for r in leaves(b, item)) if item else ()
            return MaybeForm(flag_of(b, given), form_of(b, item) if item else None, types)
        case Text():
            return TextForm()
        case Texts(order):
            return TextsForm(form_of(b, order))
        case Maps() | Map() as found:
            raise b.engine.unsupported(f"{found} that leaves a subgraph")


def flag_of(b: GraphBuilder, ref: Ref) -> bool | None:
    """The value of a constant bool of one element; None for another one."""
    found = b.known_of(ref)
    if found is None or found.size != 1:
        return None
    e = found.reshape(-1)[0]
    return e if isinstance(e, bool) else None


def leaves(b: GraphBuilder, ref: Ref, form: ElementForm | None = None) -> list[Ref]:
    """The tensors that a value is made of, in the order of its form. form: one that does not know the flag of
    an optional, which the value may."""
    match compound_of(b.store, ref):
        case None:
            return [ref]
        case Listed(_, items):
            return list(items)
        case Packed(_, values, shapes):
            return [values, shapes]
        case Maybe(given, item):
            known = form.given if isinstance(form, MaybeForm) else flag_of(b, given)
            inner = form.item if isinstance(form, MaybeForm) else None
            return [*([given] if known is None else []), *(leaves(b, item, inner) if item else [])]
        case Text(chars):
            return [chars]
        case Texts(order, table):
            return [*leaves(b, order, form.order if isinstance(form, TextsForm) else None), table]
        case Maps(values) | Map(_, values):
            return [values]


def count(form: ElementForm) -> int:
    """How many leaves a form has."""
    match form:
        case TensorForm() | TextForm():
            return 1
        case TextsForm(order):
            return count(order) + 1
        case ListForm(_, ranks, _):
            return len(ranks)
        case PackForm():
            return 2
        case MaybeForm(given, item):
            return (given is None) + (count(item) if item else 0)


def assemble(b: GraphBuilder, form: ElementForm, refs: Sequence[Ref]) -> Ref:
    """The value of a form whose leaves are these refs."""
    match form:
        case TensorForm():
            return refs[0]
        case TextForm():
            return register(b.store, Text(refs[0]))
        case TextsForm(order):
            return register(b.store, Texts(assemble(b, order, refs[:-1]), refs[-1]))
        case ListForm(dtype):
            return register(b.store, Listed(dtype, tuple(refs)))
        case PackForm(dtype, dims):
            return register(b.store, Packed(dtype, refs[0], refs[1], dims))
        case MaybeForm(given, item):
            flag = refs[0] if given is None else b.constant(np.array(given))
            rest = refs[1:] if given is None else refs
            return register(b.store, Maybe(flag, assemble(b, item, rest) if item else ""))


def assembled(b: GraphBuilder, forms: Sequence[ElementForm], refs: Sequence[Ref]) -> list[Ref]:
    """The values of several forms, whose leaves stand one after the other."""
    rest: Iterator[Ref] = iter(refs)
    return [assemble(b, f, [next(rest) for _ in range(count(f))]) for f in forms]


def joined(
    engine: Engine, what: str, a: ElementForm, b: ElementForm, own: frozenset[str] = frozenset()
) -> ElementForm:
    """The form that both an `a` and a `b` can take. own: symbols that mean nothing outside."""
    if isinstance(a, MaybeForm) or isinstance(b, MaybeForm):
        return _joined_optionals(engine, what, _optional(a), _optional(b), own)
    if isinstance(a, TextsForm) and isinstance(b, TextsForm):
        return TextsForm(joined(engine, what, a.order, b.order, own))
    single = TensorForm | TextForm | TextsForm
    if isinstance(a, single) or isinstance(b, single):
        if a != b:
            raise engine.fail(f"{what} is a tensor on one side and something else on the other")
        return a
    if a.dtype != b.dtype:
        raise engine.fail(f"{what} is a sequence of {a.dtype} on one side and of {b.dtype} on the other")
    if isinstance(a, ListForm) and a == b:
        return a
    return _joined_packs(engine, _pack_form(a), _pack_form(b), own)


def packed_form(a: ElementForm) -> ElementForm:
    """The form with nothing said about lengths."""
    if isinstance(a, MaybeForm):
        return MaybeForm(a.given, packed_form(a.item) if a.item else None, ())
    if isinstance(a, TextsForm):
        return TextsForm(packed_form(a.order))
    return _pack_form(a) if isinstance(a, ListForm) else a


def _optional(a: ElementForm) -> MaybeForm:
    return a if isinstance(a, MaybeForm) else MaybeForm(True, a)


def _joined_optionals(
    engine: Engine, what: str, a: MaybeForm, b: MaybeForm, own: frozenset[str]
) -> MaybeForm:
    given = a.given if a.given == b.given else None
    if a.item is None or b.item is None:
        some = b if a.item is None else a
        return MaybeForm(given, some.item, some.types)
    return MaybeForm(given, joined(engine, what, a.item, b.item, own), a.types)


def _pack_form(a: ListForm | PackForm) -> PackForm:
    return a if isinstance(a, PackForm) else PackForm(a.dtype, a.dims, max(a.ranks, default=0))


def _joined_packs(engine: Engine, a: PackForm, b: PackForm, own: frozenset[str]) -> PackForm:
    width = None if a.width is None or b.width is None else max(a.width, b.width)
    for one, other in ((a, b), (b, a)):
        if one.dims is None and one.width == 0:  # a list of nothing says nothing
            return PackForm(other.dtype, hidden(other.dims, own), other.width)
    if a.dims is None or b.dims is None or len(a.dims) != len(b.dims):
        return PackForm(a.dtype, None, width)
    return PackForm(a.dtype, hidden(agreed(engine, a.dims, b.dims), own), width)


def hidden(dims: CommonExtents, own: frozenset[str]) -> CommonExtents:
    """The extents without those that speak of symbols which end with a region."""
    if dims is None:
        return None
    return tuple(d if d is not None and own.isdisjoint(d.symbols) else None for d in dims)


def agreed(engine: Engine, a: CommonExtents, b: CommonExtents) -> CommonExtents:
    """What two kinds of elements have in common."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(
        d if d is not None and e is not None and engine.prove_eq(d, e) is Truth.YES else None
        for d, e in zip(a, b, strict=True)
    )


# ---------------------------------------------------------------- from form to form


def in_form(b: GraphBuilder, ref: Ref, form: ElementForm, own: frozenset[str] = frozenset()) -> Ref:
    """The value in a wider form. own: symbols that mean nothing where the form comes from."""
    if isinstance(form, MaybeForm):
        return _as_maybe(b, ref, form, own)
    found = compound_of(b.store, ref)
    if isinstance(found, Maybe):
        return in_form(b, inside(b, found), form, own)
    if isinstance(form, TextsForm):
        assert isinstance(found, Texts), found
        return register(b.store, Texts(in_form(b, found.order, form.order, own), found.table))
    if isinstance(form, PackForm):
        return register(b.store, widened(b, packed(b, found), form))
    return ref


def inside(b: GraphBuilder, m: Maybe) -> Ref:
    """What an optional holds; an error, at run time where need be, when it is empty."""
    known = flag_of(b, m.given)
    if known is False or not m.item:
        raise b.engine.fail("the optional is empty, and its element is asked for")
    if known is None:
        b.bind(b.cast(b.reshape(m.given, ()), i64), 0, "elements_in_optional", 1, ONE)
    return m.item


def _as_maybe(b: GraphBuilder, ref: Ref, form: MaybeForm, own: frozenset[str]) -> Ref:
    found = compound_of(b.store, ref)
    m = found if isinstance(found, Maybe) else Maybe(b.constant(np.array(True)), ref)
    if form.item is None:
        return register(b.store, m)
    if m.item:
        item = in_form(b, m.item, form.item, own)
    else:
        item = assemble(b, form.item, [_nothing(b, t, own) for t in form.types])
    given = b.cast(b.reshape(m.given, ()), bool_)
    return register(b.store, Maybe(given, item))


def _nothing(b: GraphBuilder, t: TensorType, own: frozenset[str]) -> Ref:
    shape = [d if own.isdisjoint(d.symbols) else ZERO for d in t.shape]
    return b.broadcast_to(b.constant(np.zeros((), t.dtype.numpy)), shape)


def widened(b: GraphBuilder, p: Packed, form: PackForm) -> Packed:
    """Shapes as wide as the form says, and the extents that it knows."""
    width = b.type_of(p.shapes).shape[1]
    shapes = p.shapes
    if form.width is not None and width.is_const and width.const < form.width:
        shapes = padded_rows(b, shapes, to_dim(form.width))
    return Packed(p.dtype, p.values, shapes, form.dims)


def padded_rows(b: GraphBuilder, shapes: Ref, width: Dim) -> Ref:
    """Rows of shapes with NO_RANK up to a width that is at least theirs."""
    length, own = b.type_of(shapes).shape
    if own == width:
        return shapes
    rest = b.broadcast_to(b.constant(np.array(NO_RANK, np.int64)), (length, width - own))
    return b.emit("concat", [shapes, rest], {"axis": 1})


def packed(b: GraphBuilder, value: Compound | None) -> Packed:
    """A sequence in the packed form."""
    assert isinstance(value, Listed | Packed), value
    if isinstance(value, Packed):
        return value
    types = [b.type_of(r) for r in value.items]
    width = max((t.rank for t in types), default=0)
    flat = [b.reshape(r, (product(t.shape),)) for r, t in zip(value.items, types, strict=True)]
    empty = b.constant(np.zeros(0, value.dtype.numpy))
    values = empty if not flat else flat[0] if len(flat) == 1 else b.emit("concat", flat, {"axis": 0})
    rows: list[Dim] = [d for t in types for d in (*t.shape, *[to_dim(NO_RANK)] * (width - t.rank))]
    shapes = b.sized(kn.full((len(types), width), rows), TensorType(i64, (to_dim(len(types)), to_dim(width))))
    return Packed(value.dtype, values, shapes, common(b.engine, types))


def common(engine: Engine, types: Sequence[TensorType]) -> CommonExtents:
    """What tensors have in common; None when there are none."""
    dims: CommonExtents = types[0].shape if types else None
    for t in types[1:]:
        dims = agreed(engine, dims, t.shape)
    return dims


# ---------------------------------------------------------------- parts of a packed sequence


def number(b: GraphBuilder, ref: Ref, what: str, low: int = 0, high: Dim | None = None) -> Dim:
    """An integer scalar as a size: the one that is known, else a symbol bound in low..high at run time."""
    ref = b.cast(b.reshape(ref, ()), i64)
    found = b.known_of(ref)
    e = None if found is None else found.reshape(-1)[0]
    if not isinstance(e, Dim):
        return b.bind(ref, 0, what, low, high)
    d = b.engine.simplify(e)
    b.engine.at_most(what, to_dim(low), d)
    if high is not None:
        b.engine.at_most(what, d, high)
    return d


def length_of(b: GraphBuilder, value: Listed | Packed) -> Dim:
    """How many elements a sequence has."""
    if isinstance(value, Listed):
        return to_dim(len(value.items))
    return b.type_of(value.shapes).shape[0]


def total_of(b: GraphBuilder, p: Packed) -> Dim:
    """How many values all elements have together."""
    return b.type_of(p.values).shape[0]


def row(b: GraphBuilder, p: Packed, k: Dim) -> Ref:
    """i64[width]: the extents of element k."""
    return b.reshape(b.slice_axis(p.shapes, 0, k, k + 1), b.type_of(p.shapes).shape[1:])


def sizes(b: GraphBuilder, p: Packed, first: Dim, last: Dim) -> Ref:
    """i64[last - first]: how many values each of these elements has."""
    rows = b.slice_axis(p.shapes, 0, first, last)
    if p.dims is None:
        short = b.emit("less", [rows, b.scalar(0, rows)])
        rows = b.emit("where", [short, b.scalar(1, rows), rows])
    return b.emit("reduce_prod", [rows], {"axes": (1,), "keepdims": False})


def offset(b: GraphBuilder, p: Packed, k: Dim) -> Dim:
    """Where element k starts in the values; k may be the length."""
    if k == ZERO:
        return ZERO
    if k == length_of(b, p):
        return total_of(b, p)
    if p.dims is not None and all(d is not None for d in p.dims):
        return b.engine.simplify(k * uniform_size(p))
    before = b.emit("reduce_sum", [sizes(b, p, ZERO, k)], {"axes": (0,), "keepdims": False})
    return number(b, before, "offset", 0, total_of(b, p))


def size_of(b: GraphBuilder, p: Packed, k: Dim, start: Dim) -> Dim:
    """How many values element k has, which starts there."""
    if p.dims is not None and all(d is not None for d in p.dims):
        return uniform_size(p)
    return number(b, b.reshape(sizes(b, p, k, k + 1), ()), "size", 0, total_of(b, p) - start)


def extents(b: GraphBuilder, p: Packed, k: Dim, dims: CommonExtents) -> tuple[Dim, ...]:
    """The shape of element k, which has an axis for each of `dims`."""
    assert dims is not None
    if all(d is not None for d in dims):
        return tuple(d for d in dims if d is not None)
    own = row(b, p, k)
    found = b.known_of(own)
    shape = []
    for axis, d in enumerate(dims):
        e = None if found is None else found[axis]
        if d is not None:
            shape.append(d)
        elif isinstance(e, Dim):
            shape.append(b.engine.simplify(e))
        else:
            shape.append(b.bind(own, axis, "extent"))
    return tuple(shape)


def element(b: GraphBuilder, p: Packed, k: Dim, rank: Callable[[], int]) -> Ref:
    """Element k, which is there. rank: asked for when the elements do not share one."""
    dims = p.dims if p.dims is not None else _of_rank(b, p, k, rank())
    shape = extents(b, p, k, dims)
    start = offset(b, p, k)
    size = b.engine.simplify(product(shape))
    b.engine.at_most("values of the element", start + size, total_of(b, p))
    return b.reshape(b.slice_axis(p.values, 0, start, start + size), shape)


def _of_rank(b: GraphBuilder, p: Packed, k: Dim, rank: int) -> CommonExtents:
    """Nothing but the rank, which a run must find to be so."""
    width = b.type_of(p.shapes).shape[1]
    b.engine.at_most("axes of the element", to_dim(rank), width)
    own = row(b, p, k)
    beyond = b.slice_axis(own, 0, rank, width)
    refuse(b, b.emit("greater_equal", [beyond, b.scalar(0, beyond)]), "axes_beyond_the_declared_rank")
    return (None,) * rank


def uniform_size(p: Packed) -> Dim:
    """How many values each element has, where all have the same known extents."""
    assert p.dims is not None
    return product(d for d in p.dims if d is not None)


def column(b: GraphBuilder, p: Packed, axis: int) -> Ref:
    """i64[length]: the extents of an axis."""
    return b.reshape(b.slice_axis(p.shapes, 1, axis, axis + 1), (length_of(b, p),))


def refuse(b: GraphBuilder, wrong: Ref, what: str) -> None:
    """A run-time error that counts them if elements of a bool tensor are true."""
    axes = tuple(range(b.type_of(wrong).rank))
    found = b.emit("reduce_sum", [b.cast(wrong, i64)], {"axes": axes, "keepdims": False})
    number(b, found, what, 0, ZERO)


def table(b: GraphBuilder, p: Packed, shape: Sequence[Dim]) -> Ref:
    """[length, *shape]: all elements as one tensor, where all have that shape."""
    length = length_of(b, p)
    b.engine.same("values of the sequence", total_of(b, p), b.engine.simplify(length * product(shape)))
    return b.reshape(p.values, (length, *shape))


def joined_width(b: GraphBuilder, p: Packed, rank: int) -> Dim:
    """Columns that rows of shapes need for one more element."""
    return b.engine.simplify(dmax(b.type_of(p.shapes).shape[1], rank))
