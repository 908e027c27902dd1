"""The options of a compile, checked, as one value, which goes to the child that compiles as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

DimSpec: TypeAlias = "int | tuple[int, int | None] | tuple[int, int | None, tuple[int, ...]]"
"""A size, a range (low, high), or a range with the sizes at which it is to be fast."""
OnProgress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to compile and how: the arguments of `compile`, checked and in one value. name: what the model is
    called in messages, '' after its file. prefix: of its C functions and files, '' made of the name.
    plan_only: up to the plan, no bundle. describe: with a description of each kernel, and the code of those
    that `listings` names (with * and ?). entries: (name, file) of each entry, for a bundle with several; the
    source is then the first one's. entry: which of them this request is about, '' for one alone. portable: a
    package for all targets, no bundle. schedules: the text of a file of them (core/schedule/book.py), '' for
    none."""

    source: str
    target: str = "host"
    dims: Mapping[str, DimSpec] = field(default_factory=dict)
    threads: int | None = None
    opt: int = 3
    output: str = "out"
    fp16: bool = False
    fast_math: tuple[str, ...] = ()
    keep_subnormals: bool = False
    static: bool = False
    libraries: bool = False
    name: str = ""
    prefix: str = ""
    outputs: tuple[str, ...] = ()
    runner: bool = True
    plugins: tuple[str, ...] = ()
    place: tuple[tuple[str, str], ...] = ()
    plan_only: bool = False
    state: Mapping[str, str] = field(default_factory=dict)
    entries: tuple[tuple[str, str], ...] = ()
    entry: str = ""
    fallback: bool = False
    choose: bool = False
    describe: bool = False
    listings: tuple[str, ...] = ()
    portable: bool = False
    schedules: str = ""

    def to_json(self) -> str:
        """The request as text for the child."""
        return json.dumps({**self.__dict__, "dims": dict(self.dims), "state": dict(self.state)})

    @staticmethod
    def from_json(text: str) -> Request:
        """The inverse of to_json."""
        raw = json.loads(text)
        raw["dims"] = {k: _tuples(v) for k, v in raw["dims"].items()}
        raw["outputs"] = tuple(raw["outputs"])
        raw["plugins"] = tuple(raw["plugins"])
        raw["listings"] = tuple(raw.get("listings", ()))
        raw["fast_math"] = tuple(raw["fast_math"])
        for name in ("place", "entries"):
            raw[name] = tuple(map(tuple, raw.get(name, ())))
        return Request(**raw)


def _tuples(value: Any) -> Any:
    """A value of JSON with tuples in the place of lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def bounds(spec: DimSpec) -> int | tuple[int, int | None]:
    """The size or the range alone."""
    return spec if isinstance(spec, int) else spec[:2]


def spelled_spec(spec: DimSpec) -> str:
    """The spec as --dim takes it after the name and '='."""
    if isinstance(spec, int):
        return str(spec)
    high = "" if spec[1] is None else spec[1]
    hot = ",".join(map(str, spec[2])) if len(spec) == 3 else ""
    return f"{spec[0]}..{high}{f':opt={hot}' if hot else ''}"
