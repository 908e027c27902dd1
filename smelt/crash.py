"""A crash record of the runner and the bundle -> the functions that ran: kernels, with their ONNX nodes.

The device tells positions in the model's code (targets/runtime/runner_crash.c); the symbols are in the
bundle's own file. Addresses that the device found on the stack by their value count only where a call ends
right before them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from smelt.core.bundle import RUNNER, Bundle
from smelt.core.diag import SmeltError, shortened
from smelt.devicefarm.report import Crash
from smelt.targets.elf import MachineCode, code_of

LONGEST_NODES = 200
"""Characters of the names of a kernel's nodes."""
MOST_FRAMES = 12
_KERNEL = re.compile(r"(?:\w+\.)?k\.(.+)")
_SHARED = re.compile(r"shared\.k\.(.+)\.body")
"""Code of a kernel and others; the function that called it is of the one that ran."""


def explainer(bundle: Bundle) -> Callable[[Crash], Crash]:
    """What adds the functions to a crash of this bundle; it reads the bundle's files only when asked to."""

    @cache
    def code(file: str) -> MachineCode | None:
        try:
            return code_of((bundle.path / file).read_bytes())
        except (OSError, SmeltError):
            return None  # gone, or damaged: the positions stay

    def explain(crash: Crash) -> Crash:
        own = str(bundle.manifest["library"]["file"])
        static = crash.object == RUNNER or not (bundle.path / own).exists()
        found = code(RUNNER if static else own)
        if found is None:
            return crash
        return replace(crash, where=tuple(_functions(crash, own, found, bundle.manifest)))

    return explain


def _functions(crash: Crash, own: str, code: MachineCode, manifest: Mapping[str, Any]) -> Iterator[str]:
    """The functions from the innermost out, each once in a row."""
    frames = [f for f in crash.frames if code.follows_call(f)]
    if crash.object in (own, RUNNER):
        frames.insert(0, crash.offset + 1)  # the pc is at its instruction, the others are right after theirs
    told: list[str] = []
    for at in frames:
        name = code.function_at(at - 1)
        words = _in_words(name, manifest) if name else ""
        if words and (not told or told[-1] != words):
            told.append(words)
    yield from told[:MOST_FRAMES]


def _in_words(symbol: str, manifest: Mapping[str, Any]) -> str:
    """A symbol as a reader knows it: det.k.conv_relu.1 and k.conv_relu.body are of kernel 'conv_relu'."""
    if found := _SHARED.fullmatch(symbol):
        return f"code of '{found[1]}' and kernels like it"
    found = _KERNEL.fullmatch(symbol)
    if found is None:
        return symbol
    rows = [*manifest["kernels"], *(r for e in manifest.get("entries", ()) for r in e.get("kernels", ()))]
    known, name = {r["name"]: r for r in rows}, found[1]
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    row = known.get(name)
    if row is None:
        return f"kernel '{found[1]}'"
    values = list(dict.fromkeys(_values(row["name"], manifest)))
    more = " and others" if len(values) > 3 else ""
    made = f", which makes {', '.join(values[:3])}{more}" if values else ""
    return f"kernel '{row['name']}' (nodes {shortened(row['origin'], LONGEST_NODES)}{made})"


def _values(kernel: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """The values that launches of the kernel complete: of repeated layers the kernel is one."""
    sites: Sequence[Mapping[str, Any]] = manifest.get("probes", {}).get("sites", ())
    for site in sites:
        if site["callee"] == kernel:
            yield from (f"'{names[0]['name']}'" for names in site.get("made", ()) if names)
