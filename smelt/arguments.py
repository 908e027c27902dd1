"""Arguments of `compile` in, whatever they are; the fields of a Request out, or an error that names one."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.core.diag import SmeltError, reading
from smelt.core.dtype import INT64
from smelt.core.naming import check_name
from smelt.core.passes.numerics import fast_parts
from smelt.limits import MOST_THREADS
from smelt.request import DimSpec


def checked(given: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a Request from arguments of `compile`, whatever these are. Raises SmeltError of kind
    'invalid' that names the first one which is no such value."""
    return {name: _checked(value, name) for name, value in given.items()}


def _checked(value: object, name: str) -> Any:
    with reading(name, kind="invalid"):
        return ARGUMENTS[name](value, name)


def _wrong(value: object, name: str, wanted: str) -> SmeltError:
    return SmeltError(f"{name}: expected {wanted}, got {value_text(value)}")


def value_text(value: object) -> str:
    """A value as a message says it; the name of its type where it cannot say what it is."""
    try:
        return f"{value!r:.80}"
    except Exception:
        return f"an object of type {type(value).__name__}"


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, name, "True or False")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(value, name, "a text without zero bytes")
    return value


def whole(value: object, name: str, low: int, high: int) -> int:
    """A whole number from low to high, of any type that is one, such as NumPy's. Raises SmeltError."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except Exception:
        number = None
    if number is None or not low <= number <= high:
        raise _wrong(value, name, f"a whole number from {low} to {high}")
    return number


def _path(value: object, name: str) -> str:
    """An absolute path."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
        return os.path.abspath(_text(text, name))
    except TypeError:
        raise _wrong(value, name, "a path") from None
    except OSError as e:
        raise SmeltError(
            f"{name}: the current folder, in which {value_text(value)} would lie, is gone: {e.strerror}",
            kind="infra",
            hint="give an absolute path",
        ) from None


LONGEST_BOOK = 1 << 25
"""Bytes of a file of schedules that are read; a thousand kernels take a megabyte."""


def _schedules(value: object, name: str) -> str:
    """The text of a file of schedules, which the compile parses. Raises SmeltError for a file that cannot be
    read."""
    if value is None:
        return ""
    path = _path(value, name)
    try:
        with open(path, "rb") as f:
            data = f.read(LONGEST_BOOK + 1)
    except OSError as e:
        hint = "'smelt tune MODEL -o FILE' writes one"
        raise SmeltError(f"{name}: cannot read '{path}': {e.strerror or e}", hint=hint) from None
    if len(data) > LONGEST_BOOK:
        raise SmeltError(f"{name}: '{path}' has more than {LONGEST_BOOK} bytes")
    return data.decode("utf-8", "replace")


def _texts(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(value, name, "a list of texts")
    return tuple(_text(os.fspath(t) if isinstance(t, os.PathLike) else t, name) for t in value)


def _pairs(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(value, name, "a dict of names by name")
    return {_text(k, name): _text(v, name) for k, v in value.items()}


def _dims(value: object, name: str) -> dict[str, DimSpec]:
    if not isinstance(value, Mapping):
        raise _wrong(value, name, "a dict of sizes or ranges by name")
    return {_text(k, name): _dim(v, f"{name}: '{k}'") for k, v in value.items()}


def _dim(value: object, name: str) -> DimSpec:
    if not isinstance(value, tuple | list):
        return whole(value, name, 0, INT64)
    if len(value) not in (2, 3):
        raise _wrong(
            value, name, "a size, a pair of the lowest and the highest, or these and a list of hot sizes"
        )
    low, high = value[:2]
    ends = whole(low, name, 0, INT64), None if high is None else whole(high, name, 0, INT64)
    if len(value) == 2:
        return ends
    if not isinstance(value[2], tuple | list):
        raise _wrong(value[2], name, "a list of hot sizes")
    return *ends, tuple(whole(n, name, 0, INT64) for n in value[2])


def _fast(value: object, name: str) -> tuple[str, ...]:
    return fast_parts(value if isinstance(value, bool | str) else _texts(value, name))


Argument: TypeAlias = Callable[[object, str], Any]
ARGUMENTS: Mapping[str, Argument] = MappingProxyType({
    "target": _text, "output": _path, "dims": lambda v, n: _dims({} if v is None else v, n),
    "threads": lambda v, n: None if v is None else whole(v, n, 1, MOST_THREADS),
    "opt": lambda v, n: whole(v, n, 0, 3),
    "fp16": _flag, "static": _flag, "libraries": _flag, "plan_only": _flag, "fallback": _flag,
    "choose": _flag, "portable": _flag, "keep_subnormals": _flag,
    "fast_math": _fast,
    "name": lambda v, n: "" if v is None else check_name(_text(v, n)),
    "outputs": _texts, "plugins": _texts, "listings": _texts,
    "place": lambda v, n: tuple(_pairs({} if v is None else v, n).items()),
    "state": lambda v, n: _pairs({} if v is None else v, n),
    "schedules": _schedules,
})  # fmt: skip
"""Argument of `compile` -> what makes the field of a Request of it, or raises SmeltError."""
