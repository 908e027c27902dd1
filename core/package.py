"""A portable package, a directory with a manifest, a dump for each entry and one file of weights: reading it.

It holds a model after the passes that ask no machine (smelt/stages.py), so `finalise` makes of it the bundle
that a compile of the model for that target would be. core.staging writes packages, as it does bundles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.core.bundle import (
    MANIFEST,
    hash_file,
    open_regular,
    parse_manifest,
    read_manifest,
    refused_manifest,
)
from smelt.core.diag import SmeltError

_LOOKED_AT = 1 << 26
"""Bytes of a manifest in which its kind is looked for."""
_AGAIN = "make the package again, or copy the whole of it again"


@dataclass(frozen=True)
class Package:
    """A package on disk. `manifest` is the parsed manifest.json."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def entries(self) -> dict[str, Path]:
        """Name of each entry -> its dump."""
        return {row["name"]: self.path / row["file"] for row in self.manifest["entries"]}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the manifest, which holds every file's hash: the package's identity."""
        return str(self.manifest["seal"])

    @property
    def weights(self) -> Path | None:
        """The file of the weights; None where there are none."""
        name = self.manifest["weights"]["file"]
        return self.path / name if name else None

    def __fspath__(self) -> str:
        return str(self.path)


def read_package(path: str | os.PathLike[str]) -> Package:
    """Open a package. Raises SmeltError(kind='invalid') where it is none, or is damaged."""
    try:
        folder = Path(path)
    except TypeError:
        raise SmeltError(f"expected the path of a package, got {type(path).__name__}") from None
    if not (folder / MANIFEST).is_file():
        hint = "make one with 'smelt compile MODEL --portable -o DIR'"
        raise SmeltError(f"'{folder}' is no portable package: it has no {MANIFEST}", hint=hint)
    with open_regular(folder / MANIFEST) as f:
        try:
            manifest = parse_manifest(read_manifest(f))
        except ValueError as e:
            raise refused_manifest(folder / MANIFEST, e, _AGAIN) from None
    if "kind" not in manifest:
        raise SmeltError(
            f"'{folder}' is a bundle for {manifest['target']}, not a portable package",
            hint="it is finished; a package is made with 'smelt compile MODEL --portable'",
        )
    for name in manifest["files"]:
        if not (folder / name).is_file():
            raise SmeltError(f"package '{folder}' lacks its file '{name}'", hint=_AGAIN)
    return Package(folder, manifest)


def is_package(path: str | os.PathLike[str]) -> bool:
    """Whether the path is that of a package, sound or not."""
    try:
        raw = (Path(path) / MANIFEST).read_bytes()[:_LOOKED_AT]
    except (OSError, ValueError):
        return False
    return b'"kind": "package"' in raw


def package_of(dump: Path) -> Package | None:
    """The package that a dump is a file of; None where it is in none. Raises SmeltError where the dump is not
    what was packed."""
    try:
        found = read_package(dump.parent)
    except SmeltError:
        return None  # a dump may lie anywhere
    wanted = found.manifest["files"].get(dump.name)
    if wanted is not None and hash_file(dump) != wanted:
        what = f"package '{found.path}' is damaged: '{dump.name}' is not what was packed"
        raise SmeltError(what, hint=_AGAIN)
    return None if wanted is None else found
