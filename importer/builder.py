"""Emission of core ops: refs and attributes in; typed nodes, checks, folded constants and known sizes out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dim import ONE, Dim, TooLarge, Truth, large, to_dim
from smelt.core.dtype import Array, DType, bool_, f32, from_numpy, i32, i64
from smelt.core.ir.graph import Attr, Graph, Node, Ref, TensorType, Value, Weight
from smelt.core.ops.infer import LARGEST_SIZE, Definition, Engine
from smelt.core.ops.infer_node import infer_node
from smelt.core.ops.table import Arg, Attrs, Op
from smelt.core.subnormals import flushed
from smelt.importer import known as kn
from smelt.importer.coded import CODE_MOVES, decoded, encoded
from smelt.importer.derive import derived
from smelt.importer.elements import decided
from smelt.importer.families import core_op
from smelt.importer.known import Known

FOLD_LIMIT = 4096
"""Most elements of a constant that is folded here, because shapes may depend on it; the fold pass folds
larger ones."""

MOST_NODES = 1_000_000
"""Most operations that one model may become: nested loops with constant trip counts are unrolled."""


UNFOLDED = ("from_dims", "dequantize", "dequantize_blocks")
"""Ops that are not folded although their inputs are constants: a quantised weight may be used as it is."""


@dataclass
class ImportStore:
    """What all graphs of one module share during its import: names, weights, known sizes."""

    engine: Engine
    weights: dict[Ref, Weight] = field(default_factory=dict)
    types: dict[Ref, TensorType] = field(default_factory=dict)
    known: dict[Ref, Known] = field(default_factory=dict)
    origins: dict[Ref, str] = field(default_factory=dict)
    same: dict[tuple[str, tuple[int, ...], bytes], Ref] = field(default_factory=dict)
    producers: dict[Ref, Node] = field(default_factory=dict)
    compounds: dict[Ref, Any] = field(default_factory=dict)  # sequences and optionals (importer/sequences.py)
    values: int = 0
    made: int = 0  # nodes, those that were taken back included
    numbers: dict[str, int] = field(default_factory=dict)  # of the next weight of each name
    flush: bool = False  # subnormal numbers are 0 to what is folded

    def new_value(self) -> Ref:
        """The next value name."""
        self.values += 1
        return f"%v{self.values}"

    def weight_ref(self, name: str) -> Ref:
        """An unused weight name derived from the ONNX name."""
        base = re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("_.") or "w"
        base = f"@w{base}" if base[0].isdigit() else f"@{base}"
        ref, n = base, self.numbers.get(base, 1)
        while ref in self.weights:
            ref, n = f"{base}_{n}", n + 1
        self.numbers[base] = n
        return ref

    def add_weight(self, w: Weight) -> Ref:
        """Add a weight; its ref."""
        self.weights[w.name] = w
        self.types[w.name] = w.type
        self.origins[w.name] = w.origin
        return w.name

    def constant(self, array: Array, name: str = "const") -> Ref:
        """A weight that holds the array; equal small arrays share one."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.name, array.shape, array.tobytes()) if array.size <= FOLD_LIMIT else None
        if key is not None and key in self.same:
            return self.same[key]
        array.flags.writeable = False
        ref = self.add_weight(Weight(self.weight_ref(name), from_numpy(array.dtype), array.shape, data=array))
        if key is not None:
            self.same[key] = ref
        return ref


class GraphBuilder:
    """Builds one graph or region. Implements the `Builder` protocol of the op table.

    Values whose elements are all known as sizes are not computed: they have a ref, and become a weight or a
    `from_dims` node only where a node really reads them.
    """

    def __init__(self, store: ImportStore, parent: GraphBuilder | None = None) -> None:
        self.store = store
        self.engine = store.engine
        self.parent = parent
        self.names: dict[str, Ref] = {}
        self.declared: dict[str, int] = {}  # ranks that the file gives to values
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.rounds: list[Ref] = []  # of the loops whose body is built here, outer first
        self._virtual: set[Ref] = set() if parent is None else parent._virtual
        self._real: dict[Ref, Ref] = {}
        self._bound: dict[Ref, Known] = {}  # elements bound at run time, here: a region's end with it
        self._sizes: dict[Dim, Dim] = {}  # large formulas that have a name here

    # ------------------------------------------------------------ names

    def lookup(self, name: str) -> Ref | None:
        """The ref of an ONNX name in this graph or an enclosing one; None where its node was refused."""
        b: GraphBuilder | None = self
        while b is not None:
            if name in b.names:
                return b.names[name]
            b = b.parent
        return None

    def add_input(self, ref: Ref, t: TensorType, origin: str) -> Ref:
        """A parameter of the graph."""
        self.inputs.append(Value(ref, t, origin))
        self.store.types[ref] = t
        self.store.origins[ref] = origin
        return ref

    @contextmanager
    def in_round(self, k: Ref) -> Iterator[None]:
        """Inside the block, emitted nodes belong to round k of a loop (an i64 scalar)."""
        self.rounds.append(k)
        try:
            yield
        finally:
            self.rounds.pop()

    def rounds_around(self) -> list[Ref]:
        """The round counters of all enclosing loops, outermost first."""
        outer = [] if self.parent is None else self.parent.rounds_around()
        return outer + self.rounds

    def draw(self) -> Dim:
        """A fresh symbol with a random value, drawn each time that the graph reaches this place."""
        d = self.engine.fresh("draw", 0, to_dim(2**62 - 1))
        self.append("bind", (), {"symbol": str(d), "draw": True}, ())
        return d

    # ------------------------------------------------------------ what is known of a ref

    def type_of(self, ref: Ref) -> TensorType:
        """The type of a ref, with all equalities that are known so far. Raises SmeltError for a sequence or
        an optional."""
        if ref in self.store.compounds:
            found = self.store.compounds[ref]
            refuse = self.engine.unsupported if getattr(found, "legal", False) else self.engine.fail
            raise refuse(f"found {found} where a tensor of numbers is wanted")
        return self.engine.simplify_type(self.store.types[ref])

    def known_of(self, ref: Ref) -> Known | None:
        """The elements of a ref where they are known; an array of Nones when it is small but unknown."""
        found = self._bound_here(ref)
        if found is None:
            found = self.store.known.get(ref)
            if found is not None and self.store.types[ref].dtype == bool_:
                found = decided(self.engine, found)
        if found is None:
            w = self.store.weights.get(ref)
            if (
                w is None
                or w.dtype.coded
                or w.type.rank > 8
                or w.bytes > kn.MOST_KNOWN * w.dtype.bytes
                or (w.dtype.bits == 16 and w.dtype.is_float)
            ):
                return None if w is not None else kn.unknown(self.type_of(ref))
            found = self.store.known[ref] = kn.from_array(w.array())
        return found

    def suppose(self, ref: Ref, elements: Known) -> None:
        """Assume these elements of a run-time value in this graph and the regions inside."""
        self._bound[ref] = elements

    def forget(self, count: int) -> None:
        """Remove all but the first `count` nodes."""
        gone = {v.name for n in self.nodes[count:] for v in n.outputs}
        sizes = {s for n in self.nodes[count:] for s in n.bound}
        del self.nodes[count:]
        self._real = {k: v for k, v in self._real.items() if v not in gone}
        self._bound = {
            k: v
            for k, v in self._bound.items()
            if not any(isinstance(e, Dim) and not sizes.isdisjoint(e.symbols) for e in v.reshape(-1))
        }
        self._sizes = {d: s for d, s in self._sizes.items() if sizes.isdisjoint(s.symbols)}

    def _bound_here(self, ref: Ref) -> Known | None:
        b: GraphBuilder | None = self
        while b is not None:
            if ref in b._bound:
                return b._bound[ref]
            b = b.parent
        return None

    def constant_of(self, ref: Ref) -> Array | None:
        """The array of a ref that is a constant; None when it is not one."""
        if ref in self.store.weights:
            return self.store.weights[ref].array()
        found = self.store.known.get(ref)
        return None if found is None else kn.to_array(found, self.store.types[ref].dtype)

    def producer(self, ref: Ref) -> Node | None:
        """The node that makes a ref; None for inputs, weights, and known sizes."""
        return self.store.producers.get(ref)

    def arg(self, ref: Ref) -> Arg | None:
        """The argument of a type rule for a ref; None for an absent one."""
        if not ref:
            return None
        found = self.store.known.get(ref)
        t = self.type_of(ref)
        value = None
        if found is not None and t.rank <= 1 and all(isinstance(e, Dim) for e in found.reshape(-1)):
            value = tuple(found.reshape(-1))
        return Arg(t, value)

    # ------------------------------------------------------------ emission

    def constant(self, array: Array) -> Ref:
        """A weight holding the array."""
        return self.store.constant(np.asarray(array))

    def scalar(self, value: float | int | bool, like: Ref) -> Ref:
        """A rank-0 constant of the dtype of `like`. Raises SmeltError for a number that it cannot
        represent."""
        dtype = self.type_of(like).dtype
        try:
            if not dtype.is_float and value != int(value):
                raise ValueError
            return self.constant(np.array(value, dtype.numpy))
        except (OverflowError, ValueError):
            raise self.engine.fail(f"{value} does not fit {dtype}") from None

    def emit(self, op: str, inputs: Sequence[Ref], attrs: Attrs | None = None) -> Ref:
        """One op with one output; its ref."""
        (ref,) = self.emit_many(op, inputs, attrs)
        return ref

    def emit_many(self, op: str, inputs: Sequence[Ref], attrs: Attrs | None = None) -> tuple[Ref, ...]:
        """One op; the refs of its outputs. Folds it when all inputs are small constants."""
        row = core_op(op)
        if row is None:
            raise self.engine.unsupported(f"op '{op}' is not in the op table")
        clean: dict[str, Attr] = {} if attrs is None else dict(attrs)
        inputs = _trimmed(inputs)
        if row.broadcasts is not None and len(inputs) > 1:
            inputs = self.aligned(inputs, row.broadcasts)
        if op not in CODE_MOVES:
            for r in inputs:
                if r and self.type_of(r).dtype.coded:
                    raise self.engine.unsupported(f"'{op}' of {self.type_of(r).dtype} elements")
        types = infer_node(row, [self.arg(r) for r in inputs], clean, self.engine)
        self.flush_checks()
        arrays = self._foldable(inputs, types)
        if arrays is not None and row.pure and op not in UNFOLDED and _settled(tuple(clean.values())):
            with np.errstate(all="ignore"), flushed(self.store.flush):
                results = row.ref(arrays, clean, types)
            return tuple(self.constant(np.asarray(r)) for r in results)
        found = self._carried(row, inputs, clean, types)
        if found is not None:
            found = self._named(found)
        if found is not None and not types[0].dtype.is_float and kn.complete(found):
            return (self.sized(found, types[0]),)
        refs = self.append(op, inputs, clean, types)
        if any(large(d) for t in types for d in t.shape):
            refs = tuple(self._renamed(r, t) for r, t in zip(refs, types, strict=True))
        if found is not None:
            self.store.known[refs[0]] = found
        return refs

    # ------------------------------------------------------------ large formulas

    def size(self, d: Dim, low: int = 0) -> Dim:
        """d itself, or, where its formula is large, a symbol that is bound to it here at run time. low: a
        lower bound that its terms do not imply."""
        if not large(d):
            return d
        b: GraphBuilder | None = self
        while b is not None:
            if d in b._sizes:
                return b._sizes[d]
            b = b.parent
        own, high = self.engine.facts.interval(d)
        top = to_dim(high) if high is not None and low <= high < 2**63 else None
        name = self.engine.fresh("size", min(max(low if own is None else own, low), 2**63 - 1), top)
        self.append("bind", (), {"symbol": str(name), "value": d}, ())
        self._sizes[d] = name
        return name

    def _renamed(self, ref: Ref, t: TensorType) -> Ref:
        """The tensor with a symbol in place of each large extent."""
        shape = tuple(map(self.size, t.shape))
        if shape == t.shape:
            return ref
        return self.append("reshape", (ref,), {"shape": shape}, [TensorType(t.dtype, shape)])[0]

    def _named(self, found: Known) -> Known | None:
        """The elements with a symbol in place of each large one; None where one exceeds 64 bits."""
        flat = found.reshape(-1)
        if not any(_unwieldy(e) for e in flat):
            return found
        named = [self._element(e) if _unwieldy(e) else e for e in flat]
        return kn.full(found.shape, named) if any(e is not None for e in named) else None

    def _element(self, e: kn.Element) -> kn.Element:
        parts = [e] if isinstance(e, Dim) else [e.num, e.den] if isinstance(e, kn.Ratio) else []
        if not parts or any(_wraps(d) for d in parts):
            return None
        parts = [self.size(d, -(2**63)) for d in parts]
        return parts[0] if isinstance(e, Dim) else kn.Ratio(*parts)

    def _valued(
        self, row: Op, inputs: Sequence[Ref], attrs: Attrs, types: Sequence[TensorType]
    ) -> Known | None:
        """The elements of the op's only output by the row's own rule for them."""
        assert row.value is not None
        if not types[0].dtype.is_int or kn.unknown(types[0]) is None:
            return None
        (found,) = row.value(self.engine, [self.arg(r) for r in inputs], attrs)
        if found is None:
            return None
        shape = [d.const for d in types[0].shape]
        if len(found) != math.prod(shape):
            what = f"the value rule of '{row.name}' gives {len(found)} elements for {types[0]}"
            raise SmeltError(what, kind="internal", node=self.engine.node, hint="its plug-in is wrong")
        return kn.full(shape, [self.engine.simplify(to_dim(d)) for d in found])

    def _carried(
        self, row: Op, inputs: Sequence[Ref], attrs: Attrs, types: Sequence[TensorType]
    ) -> Known | None:
        """The known elements of the op's only output."""
        if len(types) != 1 or not row.pure:
            return None
        try:
            if row.value is not None:
                return self._valued(row, inputs, attrs, types)
            found = self._derived(row, inputs, attrs, types[0])
        except TooLarge:
            return None  # a run computes the elements
        return found if _tells(found) or (found is not None and not found.size) else None

    def _derived(
        self, row: Op, inputs: Sequence[Ref], attrs: Attrs, out: TensorType
    ) -> Known | None:
        """The elements of the op's only output by its formula. Constants are read last, since most are
        operands next to unknown values."""
        values = [self.known_of(r) for r in inputs if r and r not in self.store.weights]
        if any(v is None for v in values) or (values and not any(_tells(v) for v in values)):
            return None
        operands = [self.known_of(r) if r else None for r in inputs]
        if any(r and v is None for r, v in zip(inputs, operands, strict=True)):
            return None
        given = [self.type_of(r) if r else None for r in inputs]
        return derived(self.engine, row, operands, given, attrs, out)

    def aligned(self, inputs: Sequence[Ref], skip: int = 0) -> tuple[Ref, ...]:
        """The inputs of a NumPy broadcast; one with an extent that may be 1 at run time is broadcast by a
        node of its own. skip: trailing axes that are not broadcast."""
        types = [self.type_of(r) if r else None for r in inputs]
        shapes = [() if t is None else t.shape[: max(t.rank - skip, 0)] for t in types]
        rank = max(map(len, shapes))
        wide: list[Dim] = []
        for axis in range(rank):
            extents = [s[axis - rank + len(s)] for s in shapes if axis >= rank - len(s)]
            first = next((d for d in extents if d != ONE), ONE)
            if all(d in (first, ONE) for d in extents):
                wide.append(first)
            else:
                wide.append(self.engine.join(f"axis {axis} of the broadcast result", extents))
        found = []
        for r, t, s in zip(inputs, types, shapes, strict=True):
            own = wide[rank - len(s) :]
            if t is None or not self._stretches(s, wide):
                found.append(r if t is None else self._as_known(r, own))
                continue
            shape = [ONE if d == ONE else w for d, w in zip(s, own, strict=True)]
            found.append(self.broadcast_to(r, (*shape, *t.shape[len(s) :])))
        return tuple(found)

    def _as_known(self, ref: Ref, wide: Sequence[Dim]) -> Ref:
        """The tensor reshaped so that leading extents that are known to be 1, where `wide` is not, are the
        number 1: a reader of the type alone does not know it."""
        t, stored = self.type_of(ref), self.store.types[ref].shape
        hidden = (ONE == d != w and s != ONE for d, w, s in zip(t.shape, wide, stored, strict=False))
        if not any(hidden):
            return ref
        return self.append("reshape", (ref,), {"shape": t.shape}, [t])[0]

    def _stretches(self, shape: Sequence[Dim], wide: Sequence[Dim]) -> bool:
        pairs = zip(shape, wide[len(wide) - len(shape) :], strict=True)
        return any(d not in (w, ONE) and self.engine.prove_eq(d, w) is not Truth.YES for d, w in pairs)

    def append(
        self,
        op: str,
        inputs: Sequence[Ref],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType],
        regions: tuple[Graph, ...] = (),
    ) -> tuple[Ref, ...]:
        """Append a node with the given output types; the refs of its outputs."""
        self.store.made += 1
        if self.store.made > MOST_NODES:
            raise self.engine.unsupported(
                f"the model is more than {MOST_NODES} operations, written out",
                "loops and functions that are repeated less often",
            )
        outputs = tuple(Value(self.store.new_value(), t) for t in types)
        for v in outputs:
            self.store.types[v.name] = v.type
        real = tuple(self.real(r) for r in inputs)
        node = Node(op, real, outputs, MappingProxyType(dict(attrs)), regions, self.engine_node())
        self.nodes.append(node)
        self.store.producers.update((v.name, node) for v in outputs)
        return tuple(v.name for v in outputs)

    def engine_node(self) -> str:
        """The ONNX node being translated: origin of what is emitted."""
        return self.engine.node

    def flush_checks(self) -> None:
        """Emit the checks that the engine has recorded."""
        for c in self.engine.take_checks():
            if isinstance(c, Definition):
                self.append("bind", (), {"symbol": c.symbol, "value": c.value}, ())
                continue
            attrs: dict[str, Attr] = {
                "left": c.left,
                "relation": c.relation,
                "right": c.right,
                "text": c.text,
            }
            self.nodes.append(Node("check", (), (), MappingProxyType(attrs), (), self.engine_node()))

    def sized(self, found: Known, t: TensorType) -> Ref:
        """A value with known elements, which is computed only where a node reads it."""
        array = kn.to_array(found, t.dtype)
        if array is not None:
            return self.constant(array)
        ref = self.store.new_value()
        self.store.types[ref] = t
        self.store.known[ref] = found
        self._virtual.add(ref)
        return ref

    def from_dims(self, values: Sequence[Dim], shape: Sequence[int]) -> Ref:
        """An i64 tensor of sizes. Raises SmeltError(kind='invalid') for a constant that it cannot hold."""
        beyond = [d for d in values if d.is_const and _wraps(d)]
        if beyond:
            raise self.engine.fail(f"a size comes to {beyond[0]}, more than 64 bits hold")
        t = TensorType(i64, tuple(to_dim(n) for n in shape))
        return self.sized(kn.full(shape, list(values)), t)

    def real(self, ref: Ref) -> Ref:
        """A ref that a node may read: known sizes become a `from_dims` node here."""
        assert ref not in self.store.compounds, ref
        if ref not in self._virtual:
            return ref
        b: GraphBuilder | None = self
        while b is not None:
            if ref in b._real:
                return b._real[ref]
            b = b.parent
        self._real[ref] = made = self._materialise(self.store.known[ref], self.store.types[ref])
        self.store.origins[made] = self.store.origins.get(ref, "")
        return made

    def _materialise(self, found: Known, t: TensorType) -> Ref:
        assert t.dtype in (i64, i32), t
        flat = found.reshape(-1)
        values: list[Dim] = [e for e in flat if isinstance(e, Dim)]
        assert len(values) == flat.size
        shape = (to_dim(len(values)),) if t.rank else ()
        attrs: dict[str, Attr] = {"values": tuple(values), "shape": shape, "dtype": t.dtype}
        (ref,) = self.append("from_dims", (), attrs, [TensorType(t.dtype, shape)])
        if t.rank > 1:
            (ref,) = self.append("reshape", (ref,), {"shape": t.shape}, [t])
        return ref

    def _foldable(self, inputs: Sequence[Ref], types: Sequence[TensorType]) -> list[Array | None] | None:
        total = 0
        for r in inputs:
            if not r:
                continue
            w = self.store.weights.get(r)
            if w is None:
                return None
            total += w.bytes // w.dtype.bytes
        for t in types:
            if not all(d.is_const for d in t.shape):
                return None
            total += int(np.prod([d.const for d in t.shape], dtype=np.int64))
        if not inputs or total > FOLD_LIMIT:
            return None
        return [self.store.weights[r].array() if r else None for r in inputs]

    # ------------------------------------------------------------ values as sizes

    def dims_of(
        self, ref: Ref, what: str, low: int = 0, high: Dim | None = None, special: bool = False
    ) -> tuple[Dim, ...]:
        """The elements of an integer tensor as sizes of at least `low`. One that is unknown until run time is
        bound to a fresh symbol in low..high; a run refuses a value outside. special: allow constants below
        `low`, which have a meaning of their own."""
        t = self.type_of(ref)
        if not t.dtype.is_int:
            raise self.engine.fail(f"{what} has element type {t.dtype}, wanted an integer type")
        if t.rank > 1 or not all(d.is_const for d in t.shape):
            names = sorted({s for d in t.shape for s in d.symbols})
            fixes = t.rank == 1 and len(names) == 1 and self.engine.is_input_size(t.shape[0])
            raise self.engine.unsupported(
                f"{what} has shape [{', '.join(map(str, t.shape))}], whose length is not static",
                f"fixing the size: --dim {names[0]}=N, or dims={{'{names[0]}': N}}" if fixes else None,
            )
        count = t.shape[0].const if t.rank else 1
        if count > FOLD_LIMIT:
            raise self.engine.unsupported(f"{what} has {count} elements")
        w = self.store.weights.get(ref)
        found = kn.from_array(w.array()) if w is not None else self.known_of(ref)
        elements = [None] * count if found is None else list(found.reshape(-1))
        for e in elements if not special else ():
            if isinstance(e, Dim) and e.is_const and e.const < low:
                raise self.engine.fail(f"{what}: found {e.const}, wanted {low} or more")
        return tuple(
            self.engine.simplify(e) if isinstance(e, Dim) else self.bind(ref, i, what, low, high)
            for i, e in enumerate(elements)
        )

    def bind(self, ref: Ref, index: int, what: str, low: int = 0, high: Dim | None = None) -> Dim:
        """A fresh symbol for one element (flat index) of a run-time integer tensor."""
        base = re.sub(r"\W+", "_", what.split("'")[0]).strip("_") or "n"
        d = self.engine.fresh(base, low, high)
        top = LARGEST_SIZE if high is None else self.engine.simplify(high)
        attrs: dict[str, Attr] = {
            "symbol": str(next(iter(d.symbols))),
            "index": index,
            "low": to_dim(low),
            "high": top,
        }
        self.append("bind", (ref,), attrs, ())
        found = self.known_of(ref)
        if found is not None:
            self._bound[ref] = found.copy()
            self._bound[ref].reshape(-1)[index] = d
        return d

    def ints_of(self, ref: Ref, what: str) -> tuple[int, ...]:
        """The elements of an integer tensor that must be constants (axes). Unsupported when they are not."""
        t = self.type_of(ref)
        array = np.zeros(0) if any(d == to_dim(0) for d in t.shape) else self.constant_of(ref)
        if array is None:
            raise self.engine.unsupported(f"{what} is computed at run time", try_="a constant")
        if not t.dtype.is_int:
            raise self.engine.fail(f"{what} has element type {t.dtype}, wanted an integer type")
        return tuple(int(v) for v in array.reshape(-1))

    def int_of(self, ref: Ref, what: str) -> int:
        """The one element of an integer tensor that must be a constant."""
        found = self.ints_of(ref, what)
        if len(found) != 1:
            raise self.engine.fail(f"{what} has {len(found)} elements, wanted 1")
        return found[0]

    # ------------------------------------------------------------ shorthands of bindings

    def reshape(self, x: Ref, shape: Sequence[Dim | int]) -> Ref:
        """x with another shape of as many elements."""
        dims = tuple(self.engine.simplify(to_dim(d)) for d in shape)
        return x if dims == self.type_of(x).shape else self.emit("reshape", [x], {"shape": dims})

    def transpose(self, x: Ref, perm: Sequence[int]) -> Ref:
        """x with its axes in another order."""
        perm = tuple(int(p) for p in perm)
        return x if perm == tuple(range(len(perm))) else self.emit("transpose", [x], {"perm": perm})

    def cast(self, x: Ref, dtype: DType) -> Ref:
        """x as another element type."""
        own = self.type_of(x).dtype
        if own == dtype:
            return x
        if dtype.coded:
            return encoded(self, x, dtype)
        if own.coded:
            x = decoded(self, x)
        return x if own.coded and dtype == f32 else self.emit("cast", [x], {"to": dtype})

    def broadcast_to(self, x: Ref, shape: Sequence[Dim | int]) -> Ref:
        """x repeated to a larger shape."""
        dims = tuple(self.engine.simplify(to_dim(d)) for d in shape)
        if any(d.is_const and d.const < 0 for d in dims):
            raise self.engine.fail(f"a shape of {', '.join(map(str, dims))} has a negative size")
        own = self.type_of(x)
        if dims == own.shape:
            return x
        return self.emit("broadcast_to", [self._as_known(x, dims[len(dims) - own.rank :])], {"shape": dims})

    def slice_axis(self, x: Ref, axis: int, start: Dim | int, end: Dim | int, step: int = 1) -> Ref:
        """x[start:end:step] along one axis. A positive step wants 0 <= start <= end <= extent; that is
        proved, refuted with an error or checked at run time."""
        shape = self.type_of(x).shape
        start, end = self.engine.simplify(to_dim(start)), self.engine.simplify(to_dim(end))
        if step > 0:
            for low, high in ((to_dim(0), start), (start, end), (end, shape[axis])):
                self.engine.at_most(f"axis {axis}, read from {start} to {end}", low, high)
        if step == 1 and start == to_dim(0) and end == shape[axis]:
            return x
        starts, ends, steps = [to_dim(0)] * len(shape), list(shape), [1] * len(shape)
        starts[axis], ends[axis], steps[axis] = start, end, step
        return self.emit("slice", [x], {"starts": tuple(starts), "ends": tuple(ends), "steps": tuple(steps)})

    def compare_dims(self, a: Dim, b: Dim) -> bool | None:
        """Whether a == b; None when it is not known."""
        t = self.engine.prove_eq(a, b)
        return None if t is Truth.UNKNOWN else t is Truth.YES


def _trimmed(inputs: Sequence[Ref]) -> tuple[Ref, ...]:
    """The inputs without trailing absent ones."""
    n = len(inputs)
    while n and not inputs[n - 1]:
        n -= 1
    return tuple(inputs[:n])


def _settled(attr: Attr) -> bool:
    """Whether every size in an attribute is constant."""
    if isinstance(attr, tuple):
        return all(_settled(a) for a in attr)
    return not isinstance(attr, Dim) or attr.is_const


def _tells(known: Known | None) -> bool:
    """Whether some element is known."""
    return known is not None and any(e is not None for e in known.reshape(-1))


def _wraps(d: Dim) -> bool:
    """Whether a number in d exceeds 64 bits: the tensor's element would have wrapped around."""
    return any(abs(k) >= 2**63 for _, k in d.sorted_items())


def _unwieldy(e: kn.Element) -> bool:
    """Whether an element's formula is large, or exceeds 64 bits."""
    if isinstance(e, Dim):
        return large(e) or _wraps(e)
    if isinstance(e, kn.Ratio):
        return _unwieldy(e.num) or _unwieldy(e.den)
    return isinstance(e, kn.Equality) and (_unwieldy(e.a) or _unwieldy(e.b))
