"""Ops of other domains, registered from Python: what a plug-in file imports, and how it is loaded.

A plug-in is a Python file (or an importable module) with either or both of

    BINDINGS = (OnnxOp("Name", 1, build, "my.domain"), ...)      # ONNX op -> core ops
    OPS = (Op("my_op", "x y?", infer, ref, cases, compute=...), ...)   # core ops of its own

It is named by `plugins=[...]` of `smelt.compile`, or by the environment variable SMELT_PLUGINS, a list
separated like PATH, which every command reads.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from smelt.core import ops
from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, dmax, dmin, to_dim
from smelt.core.dtype import DTYPES, DType
from smelt.core.ir.graph import Ref, TensorType
from smelt.core.ir.kernel import Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.table import Arg, Array, Attrs, Builder, Case, Infer, Nest, Op, ShapeValue
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select
from smelt.importer import bindings
from smelt.importer.call import Call, OnnxOp

VARIABLE = "SMELT_PLUGINS"


def load_plugins(names: Iterable[str] = ()) -> None:
    """Load plug-ins by file or module name, and those that SMELT_PLUGINS names; each is loaded once.

    Raises SmeltError when one cannot be loaded, has no ops, or defines what is there already."""
    for name in named(names):
        module = _module(name)
        rows, own = getattr(module, "BINDINGS", ()), getattr(module, "OPS", ())
        if not rows and not own:
            raise SmeltError(f"plug-in '{name}' defines neither BINDINGS nor OPS", hint="see docs/add-op.md")
        ops.extend(own)
        bindings.extend(rows)


def named(names: Iterable[str] = ()) -> tuple[str, ...]:
    """The plug-ins that SMELT_PLUGINS names, then these, each once."""
    given = [n for n in os.environ.get(VARIABLE, "").split(os.pathsep) if n]
    return tuple(dict.fromkeys([*given, *names]))


def _module(name: str) -> ModuleType:
    """The module of a plug-in; a file is known by its absolute path."""
    is_file = name.endswith(".py")
    key = f"smelt_plugin:{Path(name).resolve()}" if is_file else name
    if key in sys.modules:
        return sys.modules[key]
    try:
        return _from_file(Path(name), key) if is_file else importlib.import_module(name)
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


__all__ = [
    "DTYPES",
    "Arg",
    "Array",
    "Attrs",
    "Bound",
    "Buffer",
    "Builder",
    "Call",
    "Case",
    "DType",
    "Dim",
    "DimIndex",
    "Expr",
    "Infer",
    "Load",
    "Loop",
    "Nest",
    "OnnxOp",
    "Op",
    "Operand",
    "Ref",
    "ShapeValue",
    "SmeltError",
    "Stmt",
    "Store",
    "TensorType",
    "Trace",
    "call",
    "cast",
    "const",
    "dmax",
    "dmin",
    "index",
    "load_plugins",
    "select",
    "to_dim",
]
