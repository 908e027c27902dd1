"""A parsed manifest.json in, nothing out: what each of its fields may be, so that no reader meets a surprise.

A rule takes a value and where it stands, and raises ValueError that tells both. Fields that are not listed
are a later smelt's and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from smelt.core.dim import MAX_TEXT, Dim, asked_parts, named_dims, parse_dim
from smelt.core.dtype import ALL, INT64
from smelt.core.naming import is_entry, is_name

Valid: TypeAlias = Callable[[object, str], None]

FILE_NAME: Final = re.compile(
    r"smelt_run|lib[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}\.(so|a)|[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}\.(bin|weights|h|o|smelt)"
)
"""Names that files of bundles and packages have: all that smelt writes, and nothing with a path in it."""

MOST_TEXT: Final = 1 << 22
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
MOST_RANK: Final = 4096
PARTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "strings": 1, "maps": 1, "map": 2, "sequence": 2, "strings sequence": 2, "optional tensor": 2,
        "optional strings": 2, "optional sequence": 3, "optional strings sequence": 3,
    }
)  # fmt: skip
"""Kind of a group -> how many tensors stand for it."""


# ---------------------------------------------------------------- rules


def _fail(at: str, wanted: str, got: object) -> ValueError:
    return ValueError(f"{at}: expected {wanted}, got {repr(got)[:60]}")


def text(value: object, at: str) -> None:
    """Any text that is not enormous."""
    if not isinstance(value, str) or len(value) > MOST_TEXT or _SURROGATE.search(value):
        raise _fail(at, f"a text of at most {MOST_TEXT} characters", value)


def label(value: object, at: str) -> None:
    """A text for terminals and the system: no control characters, no line ends."""
    text(value, at)
    if not str(value).isprintable():
        raise _fail(at, "a text of printable characters", value)


def formula(value: object, at: str) -> None:
    """Text that may spell a Dim; whether it does is found where it is read."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise _fail(at, f"a formula of at most {MAX_TEXT} characters", value)


def flag(value: object, at: str) -> None:
    """true or false."""
    if not isinstance(value, bool):
        raise _fail(at, "true or false", value)


def whole_number(low: int = 0, high: int = INT64) -> Valid:
    """A whole number in low..high."""

    def rule(value: object, at: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _fail(at, f"a whole number in {low}..{high}", value)

    return rule


def extent(value: object, at: str) -> None:
    """A size: a number or a formula."""
    (formula if isinstance(value, str) else whole_number())(value, at)


def declared(value: object, at: str) -> None:
    """A size as the model's file declares it: a number, a name, or "" for none."""
    (text if isinstance(value, str) else whole_number())(value, at)


def dtype(value: object, at: str) -> None:
    """The name of an element type."""
    if not isinstance(value, str) or value not in ALL:
        raise _fail(at, "the name of an element type", value)


def sha256(value: object, at: str) -> None:
    """64 hexadecimal digits."""
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise _fail(at, "a SHA-256 in hexadecimal", value)


def maybe(rule: Valid, absent: object = None) -> Valid:
    """What rule allows, or the value that stands for nothing."""
    return lambda value, at: None if value == absent and type(value) is type(absent) else rule(value, at)


def list_of(rule: Valid, least: int = 0, most: int | None = None) -> Valid:
    """A list, each item by rule."""

    def check(value: object, at: str) -> None:
        if not isinstance(value, list) or len(value) < least or (most is not None and len(value) > most):
            raise _fail(at, f"a list of {least} to {most or 'any number of'} items", value)
        for i, item in enumerate(value):
            rule(item, f"{at}[{i}]")

    return check


def fields(required: Mapping[str, Valid], optional: Mapping[str, Valid] = MappingProxyType({})) -> Valid:
    """A table that has these fields; others are left alone."""

    def check(value: object, at: str) -> None:
        if not isinstance(value, dict):
            raise _fail(at, "a table of fields", value)
        for name, rule in required.items():
            if name not in value:
                raise ValueError(f"{at}: the field '{name}' is missing")
            rule(value[name], f"{at}.{name}")
        for name, rule in optional.items():
            if name in value:
                rule(value[name], f"{at}.{name}")

    return check


def table(key: Valid, item: Valid) -> Valid:
    """A table whose keys are data."""

    def check(value: object, at: str) -> None:
        if not isinstance(value, dict):
            raise _fail(at, "a table", value)
        for k, v in value.items():
            key(k, f"{at}: a key")
            item(v, f"{at}.{k[:40]}")

    return check


def one_of(*names: str) -> Valid:
    """One of some words."""

    def rule(value: object, at: str) -> None:
        if not isinstance(value, str) or value not in names:
            raise _fail(at, " or ".join(map(repr, names)), value)

    return rule


def file_name(value: object, at: str) -> None:
    """A name that smelt gives to a file of a bundle, never a path."""
    if not isinstance(value, str) or not FILE_NAME.fullmatch(value):
        raise _fail(at, "the name of a file that smelt writes", value)


def name(value: object, at: str) -> None:
    """What a model is called in C."""
    if not isinstance(value, str) or not is_name(value):
        raise _fail(at, "a name that a model can have", value)


def key(value: object, at: str) -> None:
    """A key of a map: a text or a number."""
    (text if isinstance(value, str) else whole_number(-INT64 - 1))(value, at)


# ---------------------------------------------------------------- the manifest

_COUNT = whole_number()
_BOUND = whole_number(-INT64 - 1)  # of a number that a run binds, which need not be a size
_TENSOR = fields(
    {"name": text, "dtype": dtype, "shape": list_of(extent, most=MOST_RANK)}, {"late": flag, "unit": label}
)
_STATE = fields({
    "name": text, "output": maybe(text), "dtype": dtype,
    **dict.fromkeys(("shape", "next", "start"), maybe(list_of(extent, most=MOST_RANK))),
    "bytes": formula, "most": maybe(whole_number()),
}, {"room": maybe(list_of(whole_number(), least=2, most=2)), "in_place": flag})  # fmt: skip
_GROUP = fields(
    {
        "name": text,
        "kind": one_of(*PARTS),
        "parts": list_of(text, least=1, most=3),
        "shape": maybe(list_of(declared, most=MOST_RANK)),
    },
    {"keys": list_of(key, least=1)},
)
QUANTISED: Final = fields({"integer": _COUNT, "float": table(text, text)}, {"packed": _COUNT})
HALVED: Final = fields({"half": _COUNT, "weights": _COUNT, "float": table(text, _COUNT)})
GROUPS: Final = fields({"inputs": list_of(_GROUP), "outputs": list_of(_GROUP)})
_SYMBOL = fields(
    {"name": text, "low": _BOUND, "high": maybe(_BOUND), "divisor": whole_number(1), "origin": text},
    {"hot": list_of(_COUNT)},
)
_STORED = fields({
    "name": text, "dtype": dtype, "shape": list_of(_COUNT, most=MOST_RANK), "offset": _COUNT, "bytes": _COUNT,
}, {"layout": maybe(text)})  # fmt: skip
_VALUE = fields({
    "name": text, "arena": _COUNT, "offset": formula, "bytes": formula,
    "live": list_of(_COUNT, least=2, most=2),
})  # fmt: skip
KERNEL_WORK: Final = fields(dict.fromkeys(("flops", "integers", "bytes"), formula))
_KERNEL = fields(
    {"name": text, "origin": text, "schedule": text, "launches": _COUNT, "statements": _COUNT},
    {"unit": label, "work": KERNEL_WORK, "hot": fields({"of": text, "dims": table(text, _COUNT)})},
)
_AXES = list_of(whole_number(0, MOST_RANK), most=MOST_RANK)
_STORED_NAME = fields({"name": text}, {"axes": _AXES, "last": flag})
_CALLEE = fields({
    "dims": list_of(text),
    "results": list_of(
        fields({"buffer": _COUNT, "dtype": dtype, "shape": list_of(extent, most=MOST_RANK)})
    ),
})  # fmt: skip
PROBES: Final = fields({
    "callees": table(text, _CALLEE),
    "sites": list_of(fields({"callee": text}, {"made": list_of(list_of(_STORED_NAME))})),
})  # fmt: skip
_TRANSFER = fields({"name": text, "from": label, "to": label, "bytes": formula})


def _size(value: object, at: str) -> None:
    """[name, formula]"""
    list_of(formula, least=2, most=2)(value, at)


OWN: Final = fields({
    "schema_version": whole_number(1, 1 << 16),
    "smelt": label, "target": label, "platform": label,
    "model": fields({"name": label, "sha256": sha256}),
    "inputs": list_of(_TENSOR), "outputs": list_of(_TENSOR),
    "files": table(file_name, sha256),
})  # fmt: skip
"""What the manifests of all versions have in common: by these a folder is known to be a bundle."""

_ENTRY: Final = {
    "model": fields({"name": label, "sha256": sha256}),
    "inputs": list_of(_TENSOR), "outputs": list_of(_TENSOR),
    "state": list_of(_STATE),
    "symbols": list_of(_SYMBOL),
    "sizes": list_of(_size),
    "checks": list_of(fields({"text": text, "kind": text})),
    "kernels": list_of(_KERNEL),
    "memory": fields(
        {"alignment": whole_number(1, 1 << 20), "arenas": list_of(formula, least=1)},
        {"units": list_of(label), "most": list_of(maybe(_COUNT)), "outputs": list_of(maybe(_COUNT))},
    ),
    "values": list_of(_VALUE),
    "transfers": list_of(_TRANSFER),
}  # fmt: skip
_ENTRY_MAY: Final = {"quantised": QUANTISED, "fp16": HALVED, "groups": GROUPS, "probes": PROBES}
OF_ENTRY: Final = frozenset({*_ENTRY, *_ENTRY_MAY})
"""The fields that each entry has for itself."""


def _entry_name(value: object, at: str) -> None:
    """What an entry is called."""
    if not isinstance(value, str) or not is_entry(value):
        raise _fail(at, "a name that an entry can have", value)


_VARIANT: Final = fields({"processor": label, "units": list_of(label), "kernels": _COUNT})
_MANIFEST = fields(
    {
        "cpu": label, "devices": list_of(label), "machine": label, "parts": list_of(_size),
        "options": fields(
            {"opt": whole_number(0, 9), "threads": _COUNT}, {"fp16": flag, "keep_subnormals": flag}
        ),
        **_ENTRY,
        "library": fields({
            "prefix": name, "identity": label, "file": file_name, "static": maybe(file_name),
            "header": file_name,
        }),
        "weights": fields(
            {"bytes": whole_number(0, 1 << 48), "tensors": list_of(_STORED), "sha256": maybe(sha256, "")},
            {"file": maybe(file_name)},
        ),
    },
    {
        **_ENTRY_MAY, "variants": list_of(_VARIANT), "states": list_of(text),
        "entries": list_of(fields({"name": _entry_name}), least=2),
    },
)  # fmt: skip
_OTHER_ENTRY: Final = fields({"name": _entry_name, **_ENTRY}, _ENTRY_MAY)


_PLACE: Final = list_of(_COUNT, least=2, most=2)
"""[offset, bytes]"""
PACKAGE_FIELDS: Final = fields({
    "kind": one_of("package"),
    "schema_version": whole_number(1, 1 << 16),
    "smelt": label, "name": label, "prefix": maybe(name, ""),
    "entries": list_of(
        fields({
            "name": _entry_name, "file": file_name, "model": sha256,
            "inputs": list_of(_TENSOR), "outputs": list_of(_TENSOR),
        }),
        least=1,
    ),
    "weights": fields(
        {"file": maybe(file_name), "bytes": whole_number(0, 1 << 48), "places": table(sha256, _PLACE)}
    ),
    "files": table(file_name, sha256),
})  # fmt: skip
"""The manifest of a portable package (core/package.py)."""


def entry_views(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The manifest of each entry as if it were alone: its own fields beside those of the bundle."""
    rows = manifest.get("entries")
    if rows is None:
        return [dict(manifest)]
    shared = {k: v for k, v in manifest.items() if k not in OF_ENTRY and k not in ("entries", "states")}
    own = [{k: manifest[k] for k in OF_ENTRY if k in manifest}]
    own += [{k: row[k] for k in OF_ENTRY if k in row} for row in rows[1:]]
    return [{**shared, **fields_of} for fields_of in own]


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first field that is not what every reader takes it to be."""
    if "kind" in manifest:
        _check_package(manifest)
        return
    OWN(manifest, "manifest")
    _MANIFEST(manifest, "manifest")
    found = manifest.get("entries", [])
    for n, row in enumerate(found[1:], 1):
        _OTHER_ENTRY(row, f"manifest.entries[{n}]")
    if len({row["name"] for row in found}) != len(found):
        raise ValueError("manifest.entries: two have one name")
    views = entry_views(manifest)
    parts = named_dims(asked_parts(manifest["parts"], [str(d) for view in views for d in _port_sizes(view)]))
    for n, view in enumerate(views):
        try:
            _check_entry(view, parts)
        except ValueError as e:
            raise ValueError(f"entry '{found[n]['name']}': {e}" if found else str(e)) from None
    if found:
        _check_states(views, manifest)
    elif any(row["shape"] is None or row["next"] is None for row in manifest["state"]):
        raise ValueError("manifest.state: the only entry reads or writes one in part")
    total = manifest["weights"]["bytes"]
    for row in manifest["weights"]["tensors"]:
        if row["offset"] + row["bytes"] > total:
            raise ValueError(f"manifest.weights: '{row['name'][:40]}' lies beyond its {total} bytes")


def _check_package(manifest: Mapping[str, Any]) -> None:
    PACKAGE_FIELDS(manifest, "manifest")
    weights, rows = manifest["weights"], manifest["entries"]
    for digest, (offset, count) in weights["places"].items():
        if offset + count > weights["bytes"]:
            raise ValueError(f"manifest.weights: {digest} lies beyond its {weights['bytes']} bytes")
    named = [row["file"] for row in rows] + ([weights["file"]] if weights["file"] else [])
    if bool(weights["bytes"]) != bool(weights["file"]) or {*named} != {*manifest["files"]}:
        raise ValueError("manifest.files: they are not those of the entries and of the weights")
    for key in ("name", "file"):
        if len({row[key] for row in rows}) != len(rows):
            raise ValueError(f"manifest.entries: two have one {key}")


def _check_entry(manifest: Mapping[str, Any], parts: Mapping[str, Dim]) -> None:
    for side in ("inputs", "outputs"):
        ranks = {row["name"]: len(row["shape"]) for row in manifest[side]}
        if len(ranks) != len(manifest[side]):
            raise ValueError(f"manifest.{side}: two have one name")
        check_groups(manifest.get("groups", {}).get(side, ()), ranks, f"manifest.groups.{side}")
    _check_state(manifest, parts)
    known = {s["name"] for s in manifest["symbols"]} | {name for name, _ in manifest["sizes"]}
    if both := sorted(known & {name for name, _ in manifest["parts"]}):
        raise ValueError(f"manifest.parts: '{both[0][:40]}' is the name of a size, too")
    # what a feed binds, and what a run finds; parse_dim raises ValueError, too
    for row in (*manifest["inputs"], *manifest["state"]):
        shape = row["shape"] or ()
        strange = {s for d in shape if isinstance(d, str) for s in parse_dim(d, names=parts).symbols} - known
        if strange:
            raise ValueError(f"manifest: '{row['name'][:40]}' has unknown sizes {sorted(strange)}")


def _port_sizes(manifest: Mapping[str, Any]) -> Iterator[int | str]:
    """The extents and byte counts of an entry's inputs and states."""
    for row in manifest["inputs"]:
        yield from row["shape"]
    for row in manifest["state"]:
        yield row["bytes"]
        for side in ("shape", "next", "start"):
            yield from row[side] or ()


def _check_states(views: Sequence[Mapping[str, Any]], manifest: Mapping[str, Any]) -> None:
    """What entries do with a state must be one thing."""
    found: dict[str, set[tuple[str, int]]] = {}
    read = set()
    for row in (row for view in views for row in view["state"]):
        rank = len(row["next"] if row["shape"] is None else row["shape"])
        found.setdefault(row["name"], set()).add((row["dtype"], rank))
        read |= set() if row["shape"] is None else {row["name"]}
    if sorted(found) != sorted(manifest.get("states", ())) or read != found.keys():
        raise ValueError("manifest.states: it names other states than the entries read")
    for name, kinds in found.items():
        if len(kinds) > 1:
            raise ValueError(f"manifest.states: '{name[:40]}' has another type or rank in another entry")


def _check_state(manifest: Mapping[str, Any], parts: Mapping[str, Dim]) -> None:
    def dim(extent: int | str) -> Dim:
        return parse_dim(str(extent), names=parts)

    for own, side in (("name", "inputs"), ("output", "outputs")):
        names = [row[own] for row in manifest["state"] if row[own] is not None]
        if len({*names}) != len(names) or {*names} & {row["name"] for row in manifest[side]}:
            raise ValueError(f"manifest.state: one of manifest.{side}, or two of its own, have one name")
    fed = {s for row in manifest["inputs"] for d in row["shape"] for s in dim(d).symbols}
    for row in manifest["state"]:
        where = f"manifest.state: '{row['name'][:40]}'"
        sides = [row[side] for side in ("shape", "next", "start")]
        half = [(row[a] is None) != (row[b] is None) for a, b in (("shape", "start"), ("next", "output"))]
        if any(half):
            raise ValueError(f"{where} is read or written in part")
        if len({len(side) for side in sides if side is not None}) != 1:
            raise ValueError(f"{where} has shapes of different rank")
        if not {s for d in row["start"] or () for s in dim(d).symbols} <= fed:
            raise ValueError(f"{where} starts with sizes that no input has")
        for d in row["next"] or ():
            dim(d)
        dim(row["bytes"])


def check_groups(found: Sequence[Mapping[str, Any]], ranks: Mapping[str, int], at: str) -> None:
    """Raises ValueError for a group that cannot be made of tensors of these names and ranks."""
    used: set[str] = set()
    for g in found:
        parts, where = g["parts"], f"{at}: '{g['name'][:40]}'"
        if len(parts) != PARTS[g["kind"]] or used & {*parts} or not ranks.keys() >= {*parts}:
            raise ValueError(f"{where} is no {g['kind']} of tensors of the model: {parts}")
        used |= {*parts}
        if g["kind"] == "maps" and "keys" not in g:
            raise ValueError(f"{where} has no keys")
        # characters lie along one more axis, and a sequence has its shapes after them
        chars = parts[-2 if "sequence" in g["kind"] else -1]
        if "strings" in g["kind"] and not ranks[chars]:
            raise ValueError(f"{where}: its strings have no axis")
    if len({g["name"] for g in found}) != len(found):
        raise ValueError(f"{at}: two have one name")
