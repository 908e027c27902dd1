"""A node's attributes that are strings, lists or tensors in, Python and NumPy values out."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto

from smelt.core.dtype import Array
from smelt.importer.call import Call

ROUNDINGS = ("up", "down", "nearest")


def text(c: Call, name: str, default: str) -> str:
    """A string attribute."""
    try:
        return c.text(name, default)
    except UnicodeDecodeError:
        raise c.fail(f"attribute '{name}' is not UTF-8") from None


def texts(c: Call, name: str) -> tuple[str, ...]:
    """A list of strings, empty when it is absent. Raises SmeltError for invalid UTF-8."""
    a = c.attributes.get(name)
    if a is None:
        return ()
    if a.type != AttributeProto.STRINGS:
        raise c.fail(f"attribute '{name}' is no list of strings")
    try:
        return tuple(s.decode() for s in a.strings)
    except UnicodeDecodeError:
        raise c.fail(f"attribute '{name}' is not UTF-8") from None


def tensor(c: Call, name: str) -> Array | None:
    """A tensor attribute as an array, of strings with dtype object; None when it is absent."""
    a = c.attributes.get(name)
    if a is None:
        return None
    if a.type != AttributeProto.TENSOR:
        raise c.fail(f"attribute '{name}' is no tensor")
    try:
        found = np.asarray(onnx.numpy_helper.to_array(a.t))
        if found.dtype.kind not in "OSU":
            return found
        strings = [s.decode() if isinstance(s, bytes) else str(s) for s in found.reshape(-1).tolist()]
        return np.array(strings, object).reshape(found.shape)
    except (ValueError, TypeError, KeyError) as e:  # UnicodeDecodeError is a ValueError
        raise c.fail(f"attribute '{name}' cannot be read: {e}") from None


def integers(c: Call, name: str) -> Array:
    """A list of ints as i64[n], empty when it is absent."""
    return np.array(c.ints(name, ()), np.int64)


def numbers(c: Call, name: str) -> Array:
    """A list of floats as f32[n], or the tensor `name`_as_tensor as f64[n]; empty when both are absent."""
    found = tensor(c, f"{name}_as_tensor")
    return np.array(c.floats(name, ()), np.float32) if found is None else found.reshape(-1)


def rounding(c: Call) -> str:
    """How a cast rounds what lies between two values of float8e8m0."""
    mode = c.text("round_mode", "up")
    if mode not in ROUNDINGS:
        raise c.fail(f"round_mode '{mode}' is none of {', '.join(ROUNDINGS)}")
    return mode
