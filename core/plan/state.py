"""Modules, and which of their outputs replace inputs -> the Modules with these last on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, Facts
from smelt.core.ir.graph import Module, TensorType
from smelt.core.naming import entry_part

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateUse:
    """What a graph does with a state: the name of the input that reads it, and of the output that replaces
    it; None where it does not. name: that of the inputs."""

    name: str
    input: str | None
    output: str | None


def with_state(
    module: Module, pairs: Mapping[str, str], facts: Facts
) -> tuple[Module, tuple[StateUse, ...]]:
    """(the module, its states). pairs: name of an input -> name of the output that replaces it;
    one '*' in each stands for any text, the same in both ('past.*': 'present.*').

    Raises SmeltError(kind='invalid'): an unknown name, one that is used twice, tensors of different type or
    rank, extents that can never follow each other.
    """
    if not pairs:
        return module, ()
    graph = module.main
    inputs = [v.origin or v.name[1:] for v in graph.inputs]
    found = _pairs(pairs, inputs, graph.output_names)
    before, after = _types(module)
    for source, target in found.items():
        _check(source, target, before[source], after[target], facts)
    uses = tuple(StateUse(source, source, target) for source, target in found.items())
    return _arranged(module, uses), uses


def _types(module: Module) -> tuple[dict[str, TensorType], dict[str, TensorType]]:
    """Of the inputs and of the outputs, by their names in the file."""
    graph = module.main
    outputs = dict(zip(graph.output_names, module.output_types(), strict=True))
    return {v.origin or v.name[1:]: v.type for v in graph.inputs}, outputs


def _arranged(module: Module, uses: Sequence[StateUse]) -> Module:
    """The module with what reads and what replaces states last."""
    graph = module.main
    inputs = [v.origin or v.name[1:] for v in graph.inputs]
    read = [inputs.index(s.input) for s in uses if s.input is not None]
    written = [graph.output_names.index(s.output) for s in uses if s.output is not None]
    arranged = graph.with_(
        inputs=_last(graph.inputs, read),
        outputs=_last(graph.outputs, written),
        output_names=_last(graph.output_names, written),
    )
    return module.with_main(arranged) if uses else module


def _last(items: Sequence[T], moved: Sequence[int]) -> tuple[T, ...]:
    """The items, those of these numbers at the end."""
    return (*(x for n, x in enumerate(items) if n not in moved), *(items[n] for n in moved))


# ---------------------------------------------------------------- names


def _pairs(pairs: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Input -> output, by name, in the order of the inputs."""
    found: dict[str, str] = {}
    for source, target in pairs.items():
        for name, other in _matches(source, target, inputs):
            _known(name, "input", inputs, source)
            _known(other, "output", outputs, source)
            if name in found:
                raise _refused(f"input '{name}' is replaced twice, by '{found[name]}' and by '{other}'")
            if other in found.values():
                twice = next(n for n, o in found.items() if o == other)
                raise _refused(f"output '{other}' replaces two inputs, '{twice}' and '{name}'")
            found[name] = other
    return {name: found[name] for name in inputs if name in found}


def _matches(source: str, target: str, inputs: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs that one pattern stands for."""
    if source in inputs or "*" not in source + target:
        return [(source, target)]
    if source.count("*") != 1 or target.count("*") != 1:
        raise _refused(f"'{source}={target}' wants one '*' on each side, or none")
    head, tail = source.split("*")
    found = [
        (name, target.replace("*", name[len(head) : len(name) - len(tail)]))
        for name in inputs
        if len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)
    ]
    if not found:
        raise _refused(f"no input is called '{source}'; there are: {_names(inputs)}")
    return found


def _known(name: str, what: str, names: Sequence[str], pattern: str) -> None:
    if name not in names:
        of = f" (for '{pattern}')" if "*" in pattern else ""
        raise _refused(f"no {what} is called '{name}'{of}; there are: {_names(names)}")


def _names(names: Sequence[str]) -> str:
    few = 20
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _refused(text: str) -> SmeltError:
    return SmeltError(
        f"state: {text}", kind="invalid", hint="name an input and the output that replaces it: past=present"
    )


# ---------------------------------------------------------------- types


def _check(source: str, target: str, before: TensorType, after: TensorType, facts: Facts) -> None:
    """Raises SmeltError unless the output can be the next run's input."""
    pair = f"output '{target}' cannot replace input '{source}'"
    if before.dtype != after.dtype:
        raise _refused(f"{pair}: it has {after.dtype.name} elements, the input {before.dtype.name}")
    if before.rank != after.rank:
        raise _refused(f"{pair}: it has {after.rank} axes, the input {before.rank}")
    for axis, (d, e) in enumerate(zip(before.shape, after.shape, strict=True)):
        if not _may_follow(d, facts, e, facts):
            raise _refused(f"{pair}: its axis {axis} has an extent of {e}, the input's of {d}")


def _may_follow(before: Dim, of: Facts, after: Dim, by: Facts) -> bool:
    """Whether some extent of the output may be one of the input. The two are of different runs, so the names
    in them are not the same sizes: of a size that grows only its range says anything."""
    low, high = of.bounds(before)
    least, most = by.bounds(after)
    return not (
        (high is not None and least is not None and least > high)
        or (low is not None and most is not None and most < low)
    )


# ---------------------------------------------------------------- of several graphs


@dataclass(slots=True)
class _State:
    """Who reads a state: names of graphs; who replaces it: the output, by graph."""

    readers: dict[str, None] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)


def with_shared_state(
    modules: Mapping[str, Module], pairs: Mapping[str, str], facts: Mapping[str, Facts]
) -> dict[str, tuple[Module, tuple[StateUse, ...]]]:
    """As with_state, for the graphs of one session by name, which share their states.

    A pattern stands for all graphs: each that has an input of the name reads the state, each that has such an
    output replaces it. 'graph/input' is about that graph alone, and 'graph/output' means the output of that
    one, whoever reads. Raises SmeltError(kind='invalid') as with_state does; also where nobody reads or
    writes a state, and where types or ranks of it differ.
    """
    types = {name: _types(m) for name, m in modules.items()}
    states = _states(pairs, types)
    for name, state in states.items():
        _check_shared(name, state, types, facts)
    found = {}
    for graph, module in modules.items():
        rows = [(n, n if graph in s.readers else None, s.writers.get(graph)) for n, s in states.items()]
        uses = tuple(StateUse(*row) for row in rows if row[1:] != (None, None))
        found[graph] = (_arranged(module, uses), uses)
    return found


_Types = Mapping[str, "tuple[Mapping[str, TensorType], Mapping[str, TensorType]]"]
"""Types of the inputs and of the outputs, by graph."""


def _states(pairs: Mapping[str, str], types: _Types) -> dict[str, _State]:
    """By name, in the order in which the graphs' inputs have them."""
    inputs = list(dict.fromkeys(n for before, _ in types.values() for n in before))
    found: dict[str, _State] = {}
    for pattern, target in pairs.items():
        graph, source = entry_part(pattern, types)
        writer, output = entry_part(target, types)
        for name, replaced_by in _matches(source, output, inputs):
            _known(name, "input", inputs, pattern)
            state = found.setdefault(name, _State())
            state.readers |= {g: None for g in types if graph in (None, g) and name in types[g][0]}
            writers = [g for g in types if g == (writer or graph or g) and replaced_by in types[g][1]]
            if not writers:
                where = writer or graph
                of = list(types[where][1]) if where else sorted({o for _, a in types.values() for o in a})
                _known(replaced_by, f"output of entry '{where}'" if where else "output", of, pattern)
            for g in writers:
                _claim(found, name, g, replaced_by)
    for name, state in found.items():
        if not state.readers:
            raise _refused(f"no entry reads '{name}': name the input of one that does")
    return {name: found[name] for name in inputs if name in found}


def _claim(found: Mapping[str, _State], name: str, graph: str, output: str) -> None:
    """Let the output of the graph replace the state."""
    if (other := found[name].writers.setdefault(graph, output)) != output:
        raise _refused(f"in entry '{graph}' '{name}' is replaced twice, by '{other}' and by '{output}'")
    twice = [n for n, s in found.items() if n != name and s.writers.get(graph) == output]
    if twice:
        raise _refused(f"output '{output}' of entry '{graph}' replaces two inputs, '{twice[0]}' and '{name}'")


def _check_shared(name: str, state: _State, types: _Types, facts: Mapping[str, Facts]) -> None:
    """Raises SmeltError unless each graph that uses the state can be given what the others leave."""
    before = {g: types[g][0][name] for g in state.readers}
    after = {g: types[g][1][output] for g, output in state.writers.items()}
    rows = [(f"input '{name}' of entry '{g}'", t) for g, t in before.items()]
    rows += [(f"output '{state.writers[g]}' of entry '{g}'", t) for g, t in after.items()]
    first, wanted = rows[0]
    for who, t in rows[1:]:
        if t.dtype != wanted.dtype:
            raise _refused(f"{who} has {t.dtype.name} elements, {first} {wanted.dtype.name}")
        if t.rank != wanted.rank:
            raise _refused(f"{who} has {t.rank} axes, {first} {wanted.rank}")
    for axis in range(wanted.rank):
        fixed = {d.const: who for who, t in rows if (d := t.shape[axis]).is_const and d.const}
        if len(fixed) > 1 and all(t.shape[axis].is_const for _, t in rows):
            (a, one), (b, other), *_ = fixed.items()
            raise _refused(f"axis {axis} has an extent of {a} in {one}, of {b} in {other}")
    for writer, t in after.items():
        fits = (
            all(_may_follow(d, facts[g], e, facts[writer]) for d, e in zip(r.shape, t.shape, strict=True))
            for g, r in before.items()
        )
        if not any(fits):
            made = f"output '{state.writers[writer]}' of entry '{writer}' is [{_shape(t)}]"
            read = "; ".join(f"entry '{g}' reads [{_shape(r)}]" for g, r in before.items())
            raise _refused(f"{made}, which no input '{name}' can be: {read}")


def _shape(t: TensorType) -> str:
    return ", ".join(map(str, t.shape))
