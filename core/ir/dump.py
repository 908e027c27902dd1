"""A module between two passes in, the text that a compile can go on from out; and back, with its weights.

    compile {...}         what the rest of the compile needs, as JSON (smelt/stages.py)
    module "det" {...}    the module, as text.py says; large weights are in the store beside the file
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from smelt.core.bundle import replace_file
from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.store import WeightStore
from smelt.core.ir.text_parse import Parser, within_depth
from smelt.core.ir.text_print import print_module

DUMP_SUFFIX = ".smelt"

LONGEST_DUMP = 1 << 28
"""Characters of a dump; those of the largest development model have 4 million."""


@dataclass(frozen=True)
class Dump:
    """What a dump holds. head: None in a text that somebody wrote without one. edited: whether the module is
    another one than the head was written for."""

    module: Module
    head: Mapping[str, Any] | None
    edited: bool


def dump_text(module: Module, head: Mapping[str, Any]) -> str:
    """The text of a dump."""
    body = print_module(module)
    fields = {**head, "text": hashlib.sha256(body.encode()).hexdigest()}
    rows = (f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
    return "compile {\n" + ",\n".join(rows) + "\n}\n" + body


def write_dump(path: Path, module: Module, head: Mapping[str, Any]) -> None:
    """Write the dump, and into the store beside it what the text only names. Raises SmeltError."""
    WeightStore(path.parent).keep(module.weights.values())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, dump_text(module, head).encode())
    except OSError as e:
        raise SmeltError(f"cannot write '{path}': {e.strerror or e}", kind="infra") from None


class DumpStore(Protocol):
    """Where a dump's weights are."""

    def fill(self, module: Module) -> Module:
        """The module with the elements of the weights that were only named. Raises SmeltError."""


def read_dump(path: Path, store: DumpStore | None = None) -> Dump:
    """The dump in a file, weights included. store: None for the folder beside it. Raises
    SmeltError(kind='invalid')."""
    try:
        # no more bytes than a text of that many characters can have
        with path.open("rb") as f:
            text = f.read(4 * LONGEST_DUMP + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise SmeltError(f"'{path}' is no text; a model's file ends in .onnx") from None
    except OSError as e:
        raise SmeltError(f"cannot read '{path}': {e.strerror or e}", kind="infra") from None
    return parse_dump(text, store or WeightStore(path.resolve().parent))


def parse_dump(text: str, store: DumpStore) -> Dump:
    """The dump that a text spells. Raises SmeltError(kind='invalid') with line and column."""
    if len(text) > LONGEST_DUMP:
        raise SmeltError(f"the text has more than {LONGEST_DUMP} characters")
    parser = Parser(text)
    module = within_depth(parser.module)
    body = text[parser.begins :].encode("utf-8", "surrogatepass")
    edited = (parser.head or {}).get("text") != hashlib.sha256(body).hexdigest()
    return Dump(store.fill(module), parser.head, edited)
