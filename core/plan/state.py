"""A Module and which of its outputs replace inputs -> the Module with these pairs last on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, Facts
from smelt.core.ir.graph import Module, TensorType

T = TypeVar("T")


def with_state(module: Module, wishes: Mapping[str, str], facts: Facts) -> tuple[Module, int]:
    """(the module, how many states it has). wishes: name of an input -> name of the output that replaces it;
    one '*' in each stands for any text, the same in both ('past.*': 'present.*').

    Raises SmeltError(kind='invalid'): an unknown name, one that is used twice, tensors of different type or
    rank, extents that can never follow each other.
    """
    if not wishes:
        return module, 0
    graph = module.main
    inputs = [v.origin or v.name[1:] for v in graph.inputs]
    found = _pairs(wishes, inputs, graph.output_names)
    types = module.output_types()
    pairs = []
    for source, target in found.items():
        n, o = inputs.index(source), graph.output_names.index(target)
        _check(source, target, graph.inputs[n].type, types[o], facts)
        pairs.append((n, o))
    arranged = graph.with_(
        inputs=_last(graph.inputs, [n for n, _ in pairs]),
        outputs=_last(graph.outputs, [o for _, o in pairs]),
        output_names=_last(graph.output_names, [o for _, o in pairs]),
    )
    return module.with_main(arranged), len(pairs)


def _last(items: Sequence[T], moved: Sequence[int]) -> tuple[T, ...]:
    """The items, those of these numbers at the end."""
    return (*(x for n, x in enumerate(items) if n not in moved), *(items[n] for n in moved))


# ---------------------------------------------------------------- names


def _pairs(wishes: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Input -> output, by name, in the order of the inputs."""
    found: dict[str, str] = {}
    for source, target in wishes.items():
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
    """The pairs that one wish stands for."""
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


def _known(name: str, what: str, names: Sequence[str], wish: str) -> None:
    if name not in names:
        of = f" (for '{wish}')" if "*" in wish else ""
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
        if not _may_follow(d, e, facts):
            raise _refused(f"{pair}: its axis {axis} has an extent of {e}, the input's of {d}")


def _may_follow(before: Dim, after: Dim, facts: Facts) -> bool:
    """Whether some extent of the output may be one of the input. The two are of different runs, so the names
    in them are not the same sizes: of a size that grows only its range says anything."""
    low, high = facts.bounds(before)
    least, most = facts.bounds(after)
    return not (
        (high is not None and least is not None and least > high)
        or (low is not None and most is not None and most < low)
    )
