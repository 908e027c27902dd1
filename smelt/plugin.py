"""Ops of other domains, registered from Python: what a plug-in file imports, and how it is loaded.

A plug-in is a Python file (or an importable module) with either or both of

    BINDINGS = (OnnxOp("Name", 1, build, "my.domain"), ...)      # ONNX op -> core ops
    OPS = (Op("my_op", "x y?", infer, ref, cases, compute=...), ...)   # core ops of its own

It is named by `plugins=[...]` of `smelt.compile`, or by the environment variable SMELT_PLUGINS, a list
separated like PATH, which every command reads.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, dmax, dmin, to_dim
from smelt.core.dtype import DTYPES, Array, DType
from smelt.core.ir.graph import Ref, TensorType
from smelt.core.ir.kernel import Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.table import Arg, Attrs, Builder, Case, Infer, Nest, Op, ShapeValue
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select
from smelt.importer import plugins
from smelt.importer.call import Call, OnnxOp

VARIABLE = "SMELT_PLUGINS"


def load_plugins(names: Iterable[str] = ()) -> None:
    """Load plug-ins by file or module name, and those that SMELT_PLUGINS names; each is loaded once.

    Raises SmeltError when one cannot be loaded, has no ops, or defines an op that exists already.
    """
    for name in named_plugins(names):
        plugins.load(name)


def named_plugins(names: Iterable[str] = ()) -> tuple[str, ...]:
    """The plug-ins that SMELT_PLUGINS names, then these, each once."""
    given = [n for n in os.environ.get(VARIABLE, "").split(os.pathsep) if n]
    return tuple(dict.fromkeys([*given, *names]))


def look_here(names: Iterable[str] = ()) -> None:
    """Add the current folder to the import path where a plug-in is named as a module: a compile's process
    does not import from there otherwise."""
    if any(not n.endswith(".py") for n in named_plugins(names)):
        with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
            sys.path.append(os.getcwd())


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
