"""A module and input arrays in, output arrays out: the NumPy oracle for graph passes, at any stage.

Ops run by the references of the op table (which is handed in: the table lies a floor above), calls of
kernels by the kernel interpreter. Symbols get their values from the inputs' shapes, from `bind` nodes and
from results whose size depends on data. Every result is held against its declared type, so a wrong type
is found at the node that has it.
"""

from __future__ import annotations

import hashlib
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from smelt.core.diag import Kind, SmeltError
from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import Attr, Graph, Module, Node, Ref, Symbol, TensorType, Value
from smelt.core.ir.interp_kernel import run_kernel

Watch: TypeAlias = Callable[[Node, Value, Array], Array | None]
Values: TypeAlias = MutableMapping[Ref, Array]


class HasRef(Protocol):
    """What is needed of an op table's row."""

    @property
    def ref(
        self,
    ) -> Callable[
        [Sequence[Array | None], Mapping[str, Attr], Sequence[TensorType]], Sequence[Array]
    ]: ...


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a run may take: rounds of a loop, elements of a tensor. Data may ask for any number of both."""

    rounds: int
    elements: int


def run_module(
    module: Module,
    feeds: Mapping[str, Array],
    ops: Mapping[str, HasRef],
    *,
    watch: Watch | None = None,
    libraries: Mapping[str, Callable[..., Sequence[Array]]] | None = None,
    limits: RunLimits | None = None,
) -> tuple[Array, ...]:
    """The outputs of the main graph, in order.

    feeds: arrays by ONNX input name (a value's origin, or its name without '%'). watch: called with each
    node, value and array as they are made (regions included); an array that it returns goes on in the place
    of that one. libraries: meanings of call_library.
    Raises SmeltError: kind 'shape' for inputs that do not fit, 'invalid' for what is beyond the limits,
    'internal' when a result breaks its type.
    """
    run = _Run(module, ops, watch, libraries or {}, limits)
    g = module.main
    env: dict[str, int] = {}
    values: Values = {}
    for v in g.inputs:
        name = v.origin or v.name[1:]
        if name not in feeds:
            raise SmeltError(f"input '{name}' is missing", kind="shape")
        values[v.name] = np.asarray(feeds[name])
    run.bind_inputs(g.inputs, values, env)
    with np.errstate(all="ignore"):
        return run.graph(g, values, env)


class _Run:
    """One run of a module."""

    def __init__(
        self,
        module: Module,
        ops: Mapping[str, HasRef],
        watch: Watch | None,
        libraries: Mapping[str, Callable[..., Sequence[Array]]],
        limits: RunLimits | None,
    ) -> None:
        self.module = module
        self.ops = ops
        self.watch = watch
        self.libraries = libraries
        self.limits = limits
        self.symbols = {s.name: s for s in module.symbols}
        self.weights: dict[Ref, Array] = {}
        self.drawn: dict[str, int] = {}

    # -- symbols

    def bind_inputs(self, inputs: Iterable[Value], values: Values, env: dict[str, int]) -> None:
        """Symbols from the shapes of the main graph's inputs."""
        inputs = list(inputs)
        for v in inputs:
            array, name = values[v.name], v.origin or v.name[1:]
            if array.dtype != v.type.dtype.numpy:
                message = f"input '{name}' is {array.dtype}, expected {v.type.dtype}"
                raise SmeltError(message, kind="shape")
            if array.ndim != v.type.rank:
                message = f"input '{name}' has rank {array.ndim}, expected {v.type.rank}"
                raise SmeltError(message, kind="shape")
        axes = [
            (f"input '{v.origin or v.name[1:]}' axis {axis}", d, n)
            for v in inputs
            for axis, (d, n) in enumerate(zip(v.type.shape, values[v.name].shape, strict=True))
        ]
        self.solve(axes, env, "shape")

    def solve(
        self, axes: Sequence[tuple[str, Dim, int]], env: dict[str, int], kind: Kind
    ) -> None:
        """env grows by the symbols that `Dim == number` gives; an error where it cannot hold."""
        todo = list(axes)
        while todo:
            rest = []
            for what, d, n in todo:
                unknown = d.symbols - env.keys()
                if not unknown:
                    self.compare(what, d, d.evaluate(env), n, kind)
                elif not self.solve_one(what, d, n, unknown, env, kind):
                    rest.append((what, d, n))
            if len(rest) == len(todo):
                what, d, n = rest[0]
                raise SmeltError(f"{what}: cannot find {sorted(d.symbols)} from {d} == {n}", kind=kind)
            todo = rest

    def solve_one(
        self, what: str, d: Dim, n: int, unknown: frozenset[str], env: dict[str, int], kind: Kind
    ) -> bool:
        if len(unknown) != 1:
            return False
        (name,) = unknown
        known = {k: env[k] for k in d.symbols if k in env}
        split = d.substitute(known).linear(name)
        if split is None or split[0].const_or_none is None or split[1].const_or_none is None:
            return False
        value, rest = divmod(n - split[1].const, split[0].const)
        if rest:
            raise SmeltError(f"{what}: expected {d}, got {n}", kind=kind)
        self.check_range(what, name, value, kind)
        env[name] = value
        return True

    def check_range(self, what: str, name: str, value: int, kind: Kind) -> None:
        s = self.symbols.get(name, Symbol(name))
        if value < s.low or (s.high is not None and value > s.high) or value % s.divisor:
            high = "*" if s.high is None else s.high
            divisor = f", a multiple of {s.divisor}" if s.divisor > 1 else ""
            message = f"{what}: expected {name} in {s.low}..{high}{divisor}, got {value}"
            raise SmeltError(message, kind=kind)

    def compare(self, what: str, d: Dim, wanted: int, found: int, kind: Kind) -> None:
        if wanted != found:
            name = str(d) if d.is_const else f"{d} = {wanted}"
            raise SmeltError(f"{what}: expected {name}, got {found}", kind=kind)

    # -- graphs

    def graph(self, g: Graph, values: Values, env: dict[str, int]) -> tuple[Array, ...]:
        """The outputs of a graph whose inputs stand in `values`; env is extended in place."""
        for n in g.nodes:
            for v, array in zip(n.outputs, self.node(n, values, env), strict=True):
                array = np.asarray(array)
                self.fits(n, v, array, env)
                other = self.watch(n, v, array) if self.watch else None
                values[v.name] = array if other is None else other
        return tuple(self.value(r, values) for r in g.outputs)

    def value(self, ref: Ref, values: Values) -> Array:
        if not ref.startswith("@"):
            return values[ref]
        if ref not in self.weights:
            self.weights[ref] = np.asarray(self.module.weights[ref].array())
        return self.weights[ref]

    def fits(self, n: Node, v: Value, array: Array, env: dict[str, int]) -> None:
        """An internal error when a result has not its declared type; binds symbols it decides."""
        where = f"node '{n.origin or n.op}': {n.op} gives {v.name}"
        if array.dtype != v.type.dtype.numpy:
            raise SmeltError(f"{where} as {array.dtype}, expected {v.type.dtype}", kind="internal")
        if array.ndim != v.type.rank:
            shape = list(array.shape)
            raise SmeltError(f"{where} of shape {shape}, expected {v.type}", kind="internal")
        axes = [
            (f"{where}, axis {axis}", d, k)
            for axis, (d, k) in enumerate(zip(v.type.shape, array.shape, strict=True))
        ]
        self.solve(axes, env, "internal")

    def small(self, n: Node, env: dict[str, int], most: int) -> None:
        """Refuse a node whose results have too many elements; not those whose sizes it decides itself."""
        for v in n.outputs:
            sizes = [k for d in v.type.shape if (k := _known(d, env).const_or_none) is not None]
            if len(sizes) == v.type.rank and math.prod(sizes) > most:
                raise SmeltError(f"{v.name} has {math.prod(sizes)} elements, at most {most} are made here")

    def node(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        if self.limits:
            self.small(n, env, self.limits.elements)
        special = _STRUCTURAL.get(n.op)
        if special is not None:
            return special(self, n, values, env)
        if n.op not in self.ops:
            raise SmeltError(f"op '{n.op}' is not in the op table", kind="internal", node=n.origin)
        inputs = [self.value(r, values) if r else None for r in n.inputs]
        attrs = {k: _evaluated(a, env) for k, a in n.attrs.items()}
        types = [TensorType(v.type.dtype, tuple(_known(d, env) for d in v.type.shape)) for v in n.outputs]
        return self.ops[n.op].ref(inputs, attrs, types)

    # -- structural ops

    def call_kernel(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        kernel = self.module.kernels[n.attrs["kernel"]]  # type: ignore[index]
        dims = [d.evaluate(env) for d in n.attr("dims", ())]
        known = dict(zip((d.name for d in kernel.dims), dims, strict=True))
        inputs = [
            (x if b.layout is None else b.layout.apply(x)).reshape([d.evaluate(known) for d in b.shape])
            for r, b in zip(n.inputs, kernel.inputs, strict=True)
            for x in (np.asarray(self.value(r, values)),)
        ]
        found = run_kernel(kernel, dims, inputs)
        shapes = [[d.evaluate(env) for d in v.type.shape] for v in n.outputs]
        return [y.reshape(s) for y, s in zip(found, shapes, strict=True)]

    def call_library(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        name = str(n.attrs["library"])
        if name not in self.libraries:
            raise SmeltError(f"no meaning for library function '{name}'", kind="unsupported", node=n.origin)
        return self.libraries[name](*(self.value(r, values) for r in n.inputs))

    def transfer(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        return (np.asarray(self.value(n.inputs[0], values)),)

    def fused(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        (region,) = n.regions
        inner: Values = ChainMap({}, values)
        for v, r in zip(region.inputs, n.inputs, strict=True):
            inner[v.name] = self.value(r, values)
        return self.graph(region, inner, env)

    def check(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        left, right = (n.attrs[k].evaluate(env) for k in ("left", "right"))  # type: ignore[union-attr]
        if not RELATIONS[str(n.attrs["relation"])](left, right):
            text = n.attr("text", "a check failed")
            message = f"{text}: {left} {n.attrs['relation']} {right} does not hold"
            raise SmeltError(message, kind="shape", node=n.origin or None)
        return ()

    def draw(self, symbol: str) -> int:
        """Another number each time, the same ones for the same module: by the symbol and how often it was
        drawn, so that passes that move a draw change nothing."""
        self.drawn[symbol] = self.drawn.get(symbol, 0) + 1
        text = f"{symbol} {self.drawn[symbol]}".encode()
        s = self.symbols[symbol]
        return s.low + int.from_bytes(hashlib.sha256(text).digest()[:8]) % ((s.high or 0) - s.low + 1)

    def bind(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        if n.attr("draw", False):
            env[str(n.attrs["symbol"])] = self.draw(str(n.attrs["symbol"]))
            return ()
        if not n.inputs:
            env[str(n.attrs["symbol"])] = to_dim(n.attrs["value"]).evaluate(env)  # type: ignore[arg-type]
            return ()
        value = int(self.value(n.inputs[0], values).ravel()[int(n.attr("index", 0))])
        low, high = (to_dim(n.attrs[k]).evaluate(env) for k in ("low", "high"))  # type: ignore[arg-type]
        if not low <= value <= high:
            message = f"size '{n.attrs['symbol']}' is {value}, expected {low}..{high}"
            raise SmeltError(message, kind="shape", node=n.origin or None)
        env[str(n.attrs["symbol"])] = value
        return ()

    def if_(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        taken = n.regions[0 if bool(self.value(n.inputs[0], values).reshape(())) else 1]
        # Symbols of a region end with it; outputs bind the node's own.
        return self.graph(taken, ChainMap({}, values), dict(env))

    def loop(self, n: Node, values: Values, env: dict[str, int]) -> Sequence[Array]:
        """inputs: trip count or '' (or the attribute trips), condition or '', carried values. The region:
        (iteration, condition, carried) -> (condition, carried, one slice of each stacked output)."""
        (body,) = n.regions
        trip = int(self.value(n.inputs[0], values).reshape(())) if n.inputs[0] else None
        if "trips" in n.attrs:
            trip = to_dim(n.attrs["trips"]).evaluate(env)  # type: ignore[arg-type]
        going = bool(self.value(n.inputs[1], values).reshape(())) if n.inputs[1] else True
        carried = [self.value(r, values) for r in n.inputs[2:]]
        stacked: list[list[Array]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
        k = 0
        while going and (trip is None or k < trip):
            if self.limits and k == self.limits.rounds:
                raise SmeltError(f"a loop has run {k} rounds, which is the limit here", node=n.origin)
            inner: Values = ChainMap({}, values)
            state = [np.asarray(k, np.int64), np.asarray(going), *carried]
            for v, x in zip(body.inputs, state, strict=True):
                inner[v.name] = x
            mine = dict(env)
            for v in body.inputs:
                self.fits(n, v, inner[v.name], mine)
            condition, *rest = self.graph(body, inner, mine)
            going = bool(condition.reshape(()))
            carried = list(rest[: len(carried)])
            for s, x in zip(stacked, rest[len(carried) :], strict=True):
                s.append(x)
            k += 1
        rows = zip(stacked, n.outputs[len(carried) :], strict=True)
        return [*carried, *(self.stack(s, v, env) for s, v in rows)]

    def stack(self, slices: Sequence[Array], v: Value, env: dict[str, int]) -> Array:
        if slices:
            return np.stack(slices)
        shape = [to_dim(0), *v.type.shape[1:]]
        return np.zeros([_known(d, env).const_or_none or 0 for d in shape], v.type.dtype.numpy)


RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "<=": lambda a, b: a <= b,
    "divides": lambda a, b: (b == 0) if a == 0 else b % a == 0,  # left divides right
    "fits": lambda a, b: a in (1, b),  # left broadcasts to right
}

_STRUCTURAL: Mapping[str, Callable[[_Run, Node, Values, dict[str, int]], Sequence[Array]]] = {
    "call_kernel": _Run.call_kernel,
    "call_library": _Run.call_library,
    "transfer": _Run.transfer,
    "fused": _Run.fused,
    "check": _Run.check,
    "bind": _Run.bind,
    "if": _Run.if_,
    "loop": _Run.loop,
}


def _evaluated(a: Attr, env: Mapping[str, int]) -> Attr:
    """An attribute with its Dims as constants."""
    if isinstance(a, Dim):
        return to_dim(a.evaluate(env))
    return tuple(_evaluated(x, env) for x in a) if isinstance(a, tuple) else a


def _known(d: Dim, env: Mapping[str, int]) -> Dim:
    """The constant that d is, or what is known of it (a size that the node itself decides)."""
    return d.substitute({k: env[k] for k in d.symbols if k in env})
