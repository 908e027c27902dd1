"""The name of a plug-in in, a Python file or a module; its definitions are added to the tables of ops.

A plug-in has BINDINGS, OPS, or both. The families come in the same way: a lookup in the bindings loads them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from smelt.core import ops
from smelt.core.diag import SmeltError
from smelt.core.ops.table import Op
from smelt.importer import families
from smelt.importer.bindings import table
from smelt.importer.call import OnnxOp

_LOADING = threading.RLock()
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
    rows: Iterable[OnnxOp] = getattr(module, "BINDINGS", ())
    own: Iterable[Op] = getattr(module, "OPS", ())
    rows, own = tuple(rows), tuple(own)
    if not rows and not own:
        raise SmeltError(f"plug-in '{name}' defines neither BINDINGS nor OPS", hint="see docs/add-op.md")
    for family in families.touched([(r.domain, r.name) for r in rows], [op.name for op in own]):
        if family != name:
            load(family)
    ops.extend(own)
    table.extend(rows)


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
    except (MemoryError, RecursionError):  # a limit of the compile, reached while a model is read
        sys.modules.pop(key, None)
        raise
    except Exception as e:
        sys.modules.pop(key, None)
        raise SmeltError(
            f"plug-in '{name}' cannot be loaded: {type(e).__name__}: {e}",
            hint="a plug-in is a Python file, or a module on the path",
        ) from e


def _from_file(path: Path, key: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    spec.loader.exec_module(module)
    return module
