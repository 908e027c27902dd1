"""A name in, its module out, imported when it is needed: all of it (`Lazily`), or all but parts (`only`).

NumPy takes a tenth of a second, and most commands need none of it; onnx imports all of its tools.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from smelt.core.forksafe import IMPORTS


class Lazily:
    """As `import name as ...`, where a type checker is told that it is that import."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        with IMPORTS:
            found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)  # the next time it is found without this
        return found


def only(package: str, shown: str, *others: str) -> None:
    """Import these modules of a package alone, and show what the first defines as the package's; its own code
    runs when anything else of it is wanted, by whomever. Nothing changes where it is imported already."""
    if package in sys.modules or (spec := importlib.util.find_spec(package)) is None:
        return
    module = sys.modules[package] = importlib.util.module_from_spec(spec)
    module.__class__ = _Waiting
    found = vars(import_module(f"{package}.{shown}"))
    vars(module).update({k: v for k, v in found.items() if not k.startswith("_")})
    for part in others:
        import_module(f"{package}.{part}")


class _Waiting(ModuleType):
    """A package whose code has not run."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None and spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)
