"""A bundle -> where its bytes come from: files, kernels, host code, runtime, weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smelt.core.bundle import Bundle
from smelt.core.manifest_schema import entry_views
from smelt.core.naming import Names
from smelt.targets.elf import symbol_sizes

TOP = 10
_HOST = ("smelt_plan", "smelt_run.", "smelt_host")


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes. files: by name. code: of the library, by cause. kernels, weights: the largest, by
    name."""

    names: Names
    files: dict[str, int]
    code: dict[str, int]
    kernels: tuple[tuple[str, int], ...]
    weights: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes of the whole bundle."""
        return sum(self.files.values())

    @property
    def without_weights(self) -> int:
        """Bytes of everything but the weights' file."""
        return self.total - self.files.get(self.names.weights, 0)


def sizes(bundle: Bundle) -> Sizes:
    """Read the bundle's files and its library's symbols."""
    folder = Path(bundle.path)
    bundle.verify([bundle.names.library])  # symbols are read out of it
    files = {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    names = {k["name"] for view in entry_views(bundle.manifest) for k in view["kernels"]}
    per_kernel: dict[str, int] = {}
    host = runtime = 0
    for symbol, size in symbol_sizes((folder / bundle.names.library).read_bytes()):
        symbol = symbol.removeprefix(f"{bundle.names.prefix}.")
        kernel = _kernel(symbol, names)
        if kernel is not None:
            per_kernel[kernel] = per_kernel.get(kernel, 0) + size
        elif symbol.startswith(_HOST):
            host += size
        else:
            runtime += size
    kernels = sum(per_kernel.values())
    rest = files[bundle.names.library] - kernels - host - runtime
    code = {
        "kernels": kernels,
        "host program": host,
        "runtime and tables": runtime,
        "linking, constants, names": rest,
    }
    weights = {w["name"]: int(w["bytes"]) for w in bundle.manifest["weights"]["tensors"]}
    return Sizes(bundle.names, files, code, _largest(per_kernel), _largest(weights))


def _kernel(symbol: str, names: set[str]) -> str | None:
    """The kernel that a symbol of the library belongs to: 'k.matmul.1.body' belongs to 'matmul', and so does
    'shared.k.matmul.body', code that others run too."""
    symbol = symbol.removeprefix("shared.").removeprefix("k.")
    parts = symbol.split(".")
    for n in range(len(parts), 0, -1):
        if (found := ".".join(parts[:n])) in names:
            return found
    return None


def _largest(rows: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(rows.items(), key=lambda r: (-r[1], r[0]))[:TOP])
