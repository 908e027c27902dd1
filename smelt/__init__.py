"""The front door: what a user imports. Everything is loaded on first use, `typing` (8 ms) too."""

from __future__ import annotations

from importlib import import_module

from smelt.core.forksafe import IMPORTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from smelt import onnx_backend as backend
    from smelt.core.bundle import Bundle
    from smelt.core.diag import SmeltError, SmeltWarning
    from smelt.driver import compile, compile_portable, finalise
    from smelt.policy import UnitPolicy
    from smelt.session import Session, load
    from smelt.streams import Stage, Stream

__version__ = "0.1.0"
__all__ = [
    "Bundle", "Session", "SmeltError", "SmeltWarning", "Stage", "Stream", "UnitPolicy", "__version__",
    "backend", "compile", "compile_portable", "finalise", "load",
]  # fmt: skip

_HOMES = {
    "compile": ("smelt.driver", "compile"),
    "compile_portable": ("smelt.driver", "compile_portable"),
    "finalise": ("smelt.driver", "finalise"),
    "load": ("smelt.session", "load"),
    "Session": ("smelt.session", "Session"),
    "UnitPolicy": ("smelt.policy", "UnitPolicy"),
    "Stage": ("smelt.streams", "Stage"),
    "Stream": ("smelt.streams", "Stream"),
    "Bundle": ("smelt.core.bundle", "Bundle"),
    "SmeltError": ("smelt.core.diag", "SmeltError"),
    "SmeltWarning": ("smelt.core.diag", "SmeltWarning"),
    "backend": ("smelt.onnx_backend", ""),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'smelt' has no attribute '{name}'")
    with IMPORTS:
        module = import_module(home[0])
    return getattr(module, home[1]) if home[1] else module


def __dir__() -> list[str]:
    return __all__
