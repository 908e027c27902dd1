"""The name of a plug-in in, a Python file or a module; its definitions are added to the tables of ops.

A plug-in has BINDINGS, OPS, or both. The families come in the same way: a lookup in the bindings loads them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from smelt.core import ops
from smelt.core.diag import Kind, SmeltError
from smelt.core.forksafe import ForkSafe
from smelt.core.ops.table import Op
from smelt.importer import families
from smelt.importer.bindings import table
from smelt.importer.call import Build, Call, OnnxOp, Results

T = TypeVar("T")

_LOADING = ForkSafe()
"""Held during a load: a module that another thread is importing has no rows yet."""


def load(name: str) -> None:
    """Add a plug-in's definitions to the tables, unless it is loaded already.

    A family that has one of its names is loaded first, so that the name counts as taken whether or not a
    model has used the family. Raises SmeltError when the plug-in cannot be loaded, defines nothing, or
    defines a name that is taken.
    """
    with _LOADING:
        _load(name)


def _load(name: str) -> None:
    module = _module(name)
    rows, own = _table(module, name, "BINDINGS", OnnxOp), _table(module, name, "OPS", Op)
    if not rows and not own:
        raise SmeltError(f"plug-in '{name}' defines neither BINDINGS nor OPS", hint="see docs/add-op.md")
    if name not in {f.module for f in families.FAMILIES}:  # whose faults are smelt's
        rows = tuple(_blamed(row, name) for row in rows)
    for family in families.touched([(r.domain, r.name) for r in rows], [op.name for op in own]):
        if family != name:
            load(family)
    try:
        ops.extend(own)
        table.extend(rows)
    except SmeltError as e:  # a name that is taken
        raise SmeltError(f"plug-in '{name}': {e.message}", kind=e.kind, hint=e.hint) from e


def _table(module: ModuleType, name: str, field: str, kind: type[T]) -> tuple[T, ...]:
    """The rows of one of a plug-in's tables. Raises SmeltError where it is none."""
    try:
        rows = tuple(getattr(module, field, ()))
    except Exception as e:
        raise _fault(name, f"{field} is no list of rows ({_told(e)})") from e
    for row in rows:
        if not isinstance(row, kind):
            raise _fault(name, f"{field} holds {row!r:.80}, expected {kind.__name__}(...)")
    return rows


def _blamed(row: OnnxOp, name: str) -> OnnxOp:
    """The row of a plug-in, whose faults are told as its own. Raises SmeltError for one that cannot be."""
    typed = isinstance(row.name, str) and isinstance(row.domain, str) and type(row.since) is int
    if not typed or not callable(row.build):
        raise _fault(name, f"{row!r:.200} is no OnnxOp(name, since, build, domain)")

    return replace(row, build=_Blamed(row.build, row.name, name))


@dataclass(frozen=True)
class _Blamed:
    """The `build` of a plug-in's row, which tells its faults as the plug-in's. Those of one row are equal,
    however the plug-in was named: it is loaded once."""

    build: Build
    op: str
    plugin: str = field(compare=False)

    def __call__(self, call: Call) -> Results:
        try:
            made = self.build(call)
        except (MemoryError, KeyboardInterrupt):
            raise
        except BaseException as e:  # SystemExit, too
            if type(e).__module__.startswith("smelt."):  # a refusal of the node, or of one before it
                raise
            what = f"its binding of {self.op} raised {_told(e)}"
            raise _fault(self.plugin, what, "infra" if isinstance(e, OSError) else "invalid") from e
        refs = [made] if isinstance(made, str) else made
        if not isinstance(refs, Sequence) or not all(_is_reference(call, r) for r in refs):
            what = f"its binding of {self.op} returned {made!r:.80}, expected references"
            raise _fault(self.plugin, what)
        return made


def _is_reference(call: Call, made: object) -> bool:
    """Whether a binding may return this: a value of the graph, or '' for an output that is left out."""
    store = call.builder.store
    return isinstance(made, str) and (not made or made in store.types or made in store.compounds)


def _told(e: BaseException) -> str:
    """An exception in words; of a plug-in's own class these may fail as well."""
    try:
        return f"{type(e).__name__}: {e}"
    except Exception:
        return type(e).__name__


def _fault(name: str, what: str, kind: Kind = "invalid") -> SmeltError:
    return SmeltError(f"plug-in '{name}': {what}", kind=kind, hint="see docs/add-op.md")


def load_all() -> None:
    """Load every family, for callers that iterate over the whole tables, such as tests."""
    for family in families.FAMILIES:
        load(family.module)


def _module(name: str) -> ModuleType:
    """Import a plug-in's module; a file's module is named after its absolute path."""
    is_file = name.endswith(".py")
    key = f"smelt_plugin:{Path(name).resolve()}" if is_file else name
    if key in sys.modules:
        return sys.modules[key]
    try:
        return _from_file(Path(name), key) if is_file else importlib.import_module(name)
    except (MemoryError, RecursionError, KeyboardInterrupt):  # a limit of the compile, or the user's wish
        sys.modules.pop(key, None)
        raise
    except BaseException as e:  # SystemExit, too
        sys.modules.pop(key, None)
        raise SmeltError(
            f"plug-in '{name}' cannot be loaded: {_told(e)}",
            hint="a plug-in is a Python file, or a module on the path",
        ) from e


def _from_file(path: Path, key: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    spec.loader.exec_module(module)
    return module
