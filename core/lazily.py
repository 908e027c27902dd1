"""A module's name in, a stand-in out that imports it when it is first asked for something.

NumPy takes a tenth of a second, and most commands need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazily:
    """As `import name as ...`, where a type checker is told that it is that import."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)  # the next time it is found without this
        return found
