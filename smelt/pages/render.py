"""A template's name and its values -> the text of a page; what is not ours is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from smelt.core.diag import printable
from smelt.core.lazily import Lazily
from smelt.pages.charts import milliseconds, plain, size

jinja2: Any = Lazily("jinja2")


def render(template: str, **values: Any) -> str:
    """The page. It is HTML that is well-formed XML as well, so that a strict parser reads it."""
    return str(_environment().get_template(template).render(**values))


@cache
def _environment() -> Any:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("smelt.pages"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_finalize,
    )  # fmt: skip
    made.filters.update(ms=milliseconds, size=size, plain=plain)
    return made


def _finalize(value: Any) -> Any:
    """Control characters of a device or a model have no place in a page."""
    return printable(value) if type(value) is str else value
