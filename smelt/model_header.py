"""Linked programs and their prefix -> det.h: declarations of the functions, numbers of inputs and outputs."""

from __future__ import annotations

import re

from smelt.core.diag import printable
from smelt.core.naming import FUNCTIONS, Names
from smelt.core.plan.link import EntryPoint, Linked
from smelt.core.plan.program import Tensor
from smelt.targets.toolchain import runtime_dir

_C_TYPES = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip


def model_header(name: str, names: Names, linked: Linked) -> str:
    """C text that declares the functions and one enumerator per input and output, and documents their shapes.
    name: the model's name in comments."""
    prefix, alone = names.prefix, len(linked.entries) == 1
    guard = f"SMELT_MODEL_{prefix.upper()}_H"
    lines = [
        f"/* {prefix}.h: the functions of the model '{_comment(name)}', as smelt.h explains them, and its",
        f" * inputs and outputs in the order that {prefix}_run wants them"
        f"{'' if alone else ', of each of its entries'}. */",
        f"#ifndef {guard}",
        f"#define {guard} 0x{names.identity}",
        '#include "smelt.h"',
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        *_declarations(names),
        "",
        *(line for e in linked.entries for line in _entry(prefix if alone else f"{prefix}_{e.name}", e)),
        *_states(prefix, linked),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        f"#elif {guard} != 0x{names.identity}",
        f"#error two models are called {prefix}: compile one of them with another --name",
        f"#endif /* {guard} */",
    ]
    return "\n".join(lines) + "\n"


def _entry(prefix: str, e: EntryPoint) -> list[str]:
    return [*_enum(prefix, "input", e.program.fed), *_enum(prefix, "output", e.program.given)]


def _states(prefix: str, linked: Linked) -> list[str]:
    """Lines that document the session's states, each with the shape that an entry reads."""
    pairs = {s.name: s.input for e in reversed(linked.entries) for s in e.program.states if s.input}
    return _enum(prefix, "state", tuple(pairs[s.name] for s in linked.states)) if linked.states else []


def identifier(name: str) -> str:
    """The name as a part of a C identifier."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "tensor"


def _declarations(names: Names) -> list[str]:
    """The declarations of smelt.h's functions under the model's prefix. The function that opens the model has
    a linker name with the model's identity."""
    text = re.sub(r"/\*.*?\*/", "", (runtime_dir() / "smelt.h").read_text("utf-8"), flags=re.S)
    found = re.findall(r"^(\w[\w *]*?)smelt_(\w+)(\([^;]*\);)", text, flags=re.M)
    assert sorted(f for _, f, _ in found) == sorted(FUNCTIONS), found
    opener = f' SMELT_SYMBOL("{names.opener}");'
    return [
        f"{result}{names.prefix}_{function}{arguments if function != 'open' else arguments[:-1] + opener}"
        for result, function, arguments in found
    ]


def _comment(text: str) -> str:
    """The text without character pairs that end or begin a C comment."""
    return printable(text).replace("*/", "* /").replace("/*", "/ *")


def _enum(prefix: str, kind: str, tensors: tuple[Tensor, ...]) -> list[str]:
    rows, seen = [], set()
    for n, t in enumerate(tensors):
        made = f"{prefix}_{kind}_{identifier(t.name)}".upper()
        while made in seen:
            made += "_"
        seen.add(made)
        shape = ", ".join(map(str, t.shape))
        element = _C_TYPES.get(t.dtype.name, "uint8_t")  # codes are bytes
        rows.append(f"  {made} = {n}, /* {element}[{_comment(shape)}], '{_comment(t.name)}' */")
    count = f"{prefix}_{kind}_COUNT".upper()
    while count in seen:
        count += "_"
    return ["enum {", *rows, f"  {count} = {len(tensors)}", "};", ""]
