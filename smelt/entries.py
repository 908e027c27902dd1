"""A request with several entries -> a request for each, with its options; errors that name the entry."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from smelt.core.diag import Problem, SmeltError, merge
from smelt.core.ir.dump import DUMP_SUFFIX
from smelt.core.naming import entry_part
from smelt.importer import names_of
from smelt.request import Request

T = TypeVar("T")


def requests_of(request: Request) -> dict[str, Request]:
    """Name of an entry -> the request for it alone; its `state` is about all entries together.

    An option named 'entry/name' goes to that entry. Without an entry, a dim or a value goes to every entry
    that has one of the name. A placement rule goes to all, but where it is the name or op type of a node, to
    those that have it. A dump has the options that it was begun with. Raises SmeltError for a dim or a value
    that no entry has.
    """
    sources, names = dict(request.entries), [name for name, _ in request.entries]
    free_dims = [key for key in request.dims if entry_part(key, names)[0] is None]
    free_values = [name for name in request.outputs if entry_part(name, names)[0] is None]
    rules = dict(request.place)
    free_rules = [key for key in rules if entry_part(key, names)[0] is None]
    known: dict[str, tuple[frozenset[str] | None, ...]] = {}
    for name in names:
        with errors_about(name):
            dump = sources[name].endswith(DUMP_SUFFIX)  # whose own options say what it has
            asked = free_dims, free_values, free_rules
            known[name] = (None, None, None) if dump else names_of(sources[name], *asked)
    _check("dims: no entry has a size", free_dims, {n: dims for n, (dims, _, _) in known.items()})
    _check("outputs: no entry has a value", free_values, {n: values for n, (_, values, _) in known.items()})
    nodes = {name for _, _, own in known.values() for name in own or ()}
    kernels = {rule for rule in free_rules if rule not in nodes}  # or patterns: what fits, passes say
    return {
        name: replace(
            request,
            source=sources[name],
            entries=(),
            entry=name,
            dims=_own(request.dims, name, names, known[name][0]),
            outputs=tuple(_own(dict.fromkeys(request.outputs), name, names, known[name][1])),
            place=tuple(_own(rules, name, names, _either(known[name][2], kernels)).items()),
        )
        for name in names
    }


def _own(
    options: Mapping[str, T], entry: str, names: Sequence[str], known: Container[str] | None
) -> dict[str, T]:
    """The options of an entry, without its name in front; those that name the entry override those for all.
    known: the names that the entry has (None: any)."""
    split = [(*entry_part(key, names), value) for key, value in options.items()]
    mine = {key: value for owner, key, value in split if owner == entry}
    free = {key: value for owner, key, value in split if owner is None and (known is None or key in known)}
    return {**mine, **{key: value for key, value in free.items() if key not in mine}}


def _either(own: frozenset[str] | None, others: set[str]) -> frozenset[str] | None:
    return None if own is None else own | others


def _check(what: str, asked: Iterable[str], known: Mapping[str, frozenset[str] | None]) -> None:
    for name in asked:
        if not any(own is None or name in own for own in known.values()):
            hint = f"the entries are {', '.join(known)}; 'ENTRY/{name}' is about one of them"
            raise SmeltError(f"{what} '{name}'", hint=hint)


@contextmanager
def errors_about(entry: str) -> Iterator[None]:
    """Add the entry's name to every SmeltError that is raised inside; '' adds none."""
    try:
        yield
    except SmeltError as e:
        if not entry:
            raise
        raise of_entry(entry, e) from e


def of_entry(entry: str, e: SmeltError) -> SmeltError:
    """The error with the entry's name in each of its problems."""
    return merge(tuple(problem_of(entry, p) for p in e.problems))


def problem_of(entry: str, p: Problem) -> Problem:
    """The problem with the entry's name in its message."""
    return replace(p, message=f"entry '{entry}': {p.message}")
