"""Lists, None, dicts and arrays of Python <-> the tensors that represent sequences, optionals and maps.

The manifest's field 'groups' says which of a bundle's inputs and outputs form one value. A sequence is the
tensors `values` (all elements flattened and concatenated) and `shapes` (a row of extents per element, padded
with -1 up to the highest rank). An optional is a flag `given`, followed by its tensor `value` or by the
tensors of its sequence. A tensor of strings is `chars`: UTF-8 along one more axis, padded with zeros. A map
is its `keys` and its `values`. A list of maps is `scores`: a row per map, a column per key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt.capsules import is_elsewhere
from smelt.core.bundle import spelled_dim
from smelt.core.diag import SmeltError, reading
from smelt.core.dtype import ALL, Array, DType
from smelt.core.lazily import Lazily

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

GroupValue: TypeAlias = Any
"""An array, a list of arrays (a sequence), a list of dicts (maps), or None (an empty optional)."""


@dataclass(frozen=True)
class Group:
    """An input or output. rows: the manifest's rows of its tensors; a plain tensor has one. shape: the
    declared shape of the tensors inside, None where the model declares none. keys: those of maps."""

    name: str
    kind: str
    rows: tuple[Mapping[str, Any], ...]
    shape: tuple[int | str, ...] | None = None
    keys: tuple[int | str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it is a plain tensor."""
        return self.kind == "tensor"

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return self.kind.startswith("optional")

    @property
    def sequence(self) -> bool:
        """Whether it is a list."""
        return self.kind.endswith("sequence")

    @property
    def strings(self) -> bool:
        """Whether its tensors hold strings."""
        return "strings" in self.kind

    @property
    def words(self) -> bool:
        """Whether the keys of a map are strings: rows of bytes."""
        return self.kind == "map" and len(self.rows[0]["shape"]) == 2

    @property
    def extents(self) -> list[int | str]:
        """The shape as onnxruntime reports it: empty for a list and for an optional."""
        if self.sequence or self.kind in ("map", "maps"):
            return []
        return list(self.rows[-1]["shape"])[: -1 if self.strings else None]

    @property
    def element(self) -> DType:
        """The element type of its tensors."""
        return ALL[self.rows[1 if self.optional or self.kind == "map" else 0]["dtype"]]

    @property
    def type(self) -> str:
        """The type as onnxruntime spells it, with {} in place of the element type: 'seq(tensor({}))'."""
        if self.kind == "map":
            return f"map({'string' if self.words else 'int64'},tensor({{}}))"
        if self.kind == "maps":
            return f"seq(map({'string' if isinstance(self.keys[0], str) else 'int64'},tensor({{}})))"
        tensor = "tensor(string)" if self.strings else "tensor({})"
        inner = f"seq({tensor})" if self.sequence else tensor
        return f"optional({inner})" if self.optional else inner


def groups(manifest: Mapping[str, Any], side: str) -> tuple[Group, ...]:
    """A bundle's inputs or outputs (side), in the model's order."""
    kinds = {p: g for g in manifest.get("groups", {}).get(side, ()) for p in g["parts"]}
    rows = {r["name"]: r for r in manifest[side]}
    found: dict[str, Group] = {}
    for name, row in rows.items():
        g = kinds.get(name)
        if g is None:
            found[name] = Group(name, "tensor", (row,), tuple(row["shape"]))
        elif g["name"] not in found:
            shape = None if g["shape"] is None else tuple(g["shape"])
            parts = tuple(rows[p] for p in g["parts"])
            found[g["name"]] = Group(g["name"], g["kind"], parts, shape, tuple(g.get("keys", ())))
    return tuple(found.values())


# ---------------------------------------------------------------- what goes in


def as_array(x: GroupValue, what: str) -> Array:
    """An array, an object with DLPack, or anything that NumPy can read, as a numpy.ndarray (no subclass) of
    the same dtype. Raises SmeltError naming `what`; also for masked elements, whose values are undefined."""
    with reading(what):
        if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
            why = "some of its elements are masked"
            raise SmeltError(f"{what}: {why}", kind="shape", hint="call filled() first")
        if not isinstance(x, np.ndarray):
            if is_elsewhere(x):
                device = tuple(map(int, x.__dlpack_device__()))
                why = f"it lies on a device (DLPack's type {device[0]}, number {device[1]})"
                hint = "session.tensor(name, value) takes it where it is, or copy it to the host"
                raise SmeltError(f"{what}: {why}", kind="shape", hint=hint)
            x = np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
        return np.asarray(x)


def packed(
    inputs: Sequence[Group], feed: Mapping[str, GroupValue], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """The tensors of a feed whose values may be lists, dicts and None. manifest: its sizes
    give the shape of the placeholder for an empty optional.

    Raises SmeltError(kind='shape') naming the input and the element.
    """
    found: dict[str, Any] = {}
    absent: list[Group] = []
    for g in inputs:
        if g.name not in feed:
            continue  # the session names what is missing
        if feed[g.name] is None and g.optional and not g.sequence:
            found[g.rows[0]["name"]] = np.array(False)
            absent.append(g)
            continue
        with reading(f"input '{g.name}'"):
            found.update(_parts(g, feed[g.name]))
    sizes = _sizes(inputs, found, manifest["symbols"]) if absent else {}
    for g in absent:
        row = g.rows[-1]
        with reading(f"input '{g.name}', which is not given"):
            shape = [spelled_dim(d, manifest).evaluate(sizes) for d in row["shape"]]
            found[row["name"]] = np.zeros(shape, ALL[row["dtype"]].numpy)
    known = {g.name for g in inputs}
    return {**found, **{n: v for n, v in feed.items() if n not in known}}


def _parts(g: Group, value: GroupValue) -> dict[str, Array]:
    """Tensor name -> array of one input, the flag first where it is optional."""
    flag = {g.rows[0]["name"]: np.array(value is not None)} if g.optional else {}
    if g.kind == "map":
        return flag | _map(g, value)
    if g.sequence:
        return flag | _sequence(g, [] if value is None and g.optional else value)
    what = f"input '{g.name}'"
    return flag | {g.rows[-1]["name"]: chars(value, what) if g.strings else as_array(value, what)}


def chars(value: GroupValue, what: str) -> Array:
    """Strings (str or bytes, in an array or in nested lists) as u8[*shape, width]. Raises SmeltError naming
    `what` for anything else."""
    # as objects: NumPy would spell out the numbers that stand among strings
    array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    if array.dtype.kind not in "OUS":
        raise SmeltError(f"{what}: expected strings, got {array.dtype}", kind="shape")
    flat = [s.encode() if isinstance(s, str) else s for s in array.reshape(-1).tolist()]
    for s in flat:
        if not isinstance(s, bytes) or b"\0" in s:
            found = "a string with a zero in it" if isinstance(s, bytes) else type(s).__name__
            raise SmeltError(f"{what}: expected strings, got {found}", kind="shape")
    width = max((len(s) for s in flat), default=0) or 1
    joined = b"".join(s.ljust(width, b"\0") for s in flat)
    return np.frombuffer(joined, np.uint8).reshape(*array.shape, width)


def _map(g: Group, value: GroupValue) -> dict[str, Array]:
    what = f"input '{g.name}'"
    if not isinstance(value, Mapping):
        raise SmeltError(f"{what}: expected a dict, got {type(value).__name__}", kind="shape")
    kind = str if g.words else (int, np.integer)
    for k in value:
        if not isinstance(k, kind):
            wanted = "strings" if g.words else "integers"
            raise SmeltError(f"{what}: expected {wanted} as keys, got {type(k).__name__}", kind="shape")
    keys = list(value)
    own = chars(np.array(keys, object), f"{what}, keys") if g.words else np.array(keys, np.int64)
    numbers = np.array(list(value.values()), g.element.numpy).reshape(len(keys))
    return {g.rows[0]["name"]: own, g.rows[1]["name"]: numbers}


def _sequence(g: Group, value: GroupValue) -> dict[str, Array]:
    values, shapes = g.rows[-2:]
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        kind = type(value).__name__
        raise SmeltError(f"input '{g.name}': expected a list of arrays, got {kind}", kind="shape")
    items = [as_array(v, f"input '{g.name}', array {k}") for k, v in enumerate(value)]
    wanted, width = g.element.numpy, shapes["shape"][1]
    for k, a in enumerate(items):
        if a.dtype != wanted and not g.strings:
            found = f"expected {wanted} elements, got {a.dtype}"
            raise SmeltError(f"input '{g.name}': {found} in array {k}", kind="shape")
        if isinstance(width, int) and a.ndim != width:
            found = f"expected arrays of rank {width}, got rank {a.ndim}"
            raise SmeltError(f"input '{g.name}': {found} in array {k}", kind="shape")
    columns = width if isinstance(width, int) else max((a.ndim for a in items), default=0)
    rows = np.full((len(items), columns), -1, np.int64)
    for k, a in enumerate(items):
        rows[k, : a.ndim] = a.shape
    if g.strings:
        every = np.array([s for a in items for s in a.reshape(-1).tolist()], object)
        return {values["name"]: chars(every, f"input '{g.name}'"), shapes["name"]: rows}
    flat = [np.zeros(0, wanted), *(a.reshape(-1) for a in items)]
    return {values["name"]: np.concatenate(flat), shapes["name"]: rows}


def _sizes(
    inputs: Sequence[Group], found: Mapping[str, Any], symbols: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Symbol -> its value in the tensors that are given; its lower bound where none of them determines it."""
    sizes = {str(s["name"]): int(s["low"]) for s in symbols}
    for row in (r for g in inputs for r in g.rows if r["name"] in found):
        for d, n in zip(row["shape"], np.shape(found[row["name"]]), strict=False):
            if d in sizes:
                sizes[d] = n
    return sizes


# ---------------------------------------------------------------- what comes out


def unpacked(outputs: Sequence[Group], arrays: Mapping[str, Array]) -> dict[str, GroupValue]:
    """Output name -> array, list, dict or None, made of the tensors that a run returned."""
    return {g.name: _value(g, [arrays[r["name"]] for r in g.rows]) for g in outputs}


def _value(g: Group, parts: Sequence[Array]) -> GroupValue:
    if g.optional and not bool(parts[0].reshape(())):
        return None
    if g.strings:
        parts = [*parts[:-1], texts(parts[-1])] if not g.sequence else [texts(parts[-2]), parts[-1]]
    if g.kind == "maps":
        return [dict(zip(g.keys, row, strict=True)) for row in parts[0].tolist()]
    if not g.sequence:
        return parts[-1]
    values, shapes = parts[-2:]
    items, at = [], 0
    for row in shapes:
        shape = tuple(int(n) for n in row if n >= 0)
        size = int(np.prod(shape, dtype=np.int64))
        items.append(values[at : at + size].reshape(shape).copy())
        at += size
    return items


def named_arrays(values: Mapping[str, GroupValue]) -> dict[str, Array]:
    """Name -> array of all arrays in some values: those of a list are 'name[0]', 'name[1]' ...; a list of
    maps is one array with a row per map; None has no array."""
    found: dict[str, Array] = {}
    for name, v in values.items():
        if isinstance(v, list) and v and isinstance(v[0], dict):
            found[name] = np.array([list(m.values()) for m in v], np.float32)
        elif isinstance(v, list):
            found.update((f"{name}[{k}]", a) for k, a in enumerate(v))
        elif v is not None:
            found[name] = v
    return found


def texts(a: Array) -> Array:
    """u8[*shape, width] as an array of str."""
    rows = np.ascontiguousarray(a).reshape(-1, a.shape[-1])
    found = np.empty(len(rows), object)
    for k, row in enumerate(rows):
        found[k] = row.tobytes().rstrip(b"\0").decode(errors="replace")
    return found.reshape(a.shape[:-1])
