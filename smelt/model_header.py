"""A host program and its model's prefix -> det.h: the functions, and the names of inputs and outputs."""

from __future__ import annotations

import re

from smelt.core.diag import printable
from smelt.core.naming import FUNCTIONS, Names
from smelt.core.plan.program import HostProgram, Tensor
from smelt.targets.toolchain import runtime_dir

_C_TYPES = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip


def model_header(name: str, names: Names, program: HostProgram) -> str:
    """C text that declares the functions and one enumerator per input and output, and documents their shapes.
    name: what people call the model."""
    prefix = names.prefix
    guard = f"SMELT_MODEL_{prefix.upper()}_H"
    lines = [
        f"/* {prefix}.h: the functions of the model '{_comment(name)}', as smelt.h explains them, and its",
        f" * inputs and outputs in the order that {prefix}_run wants them. */",
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
        *_enum(prefix, "input", program.fed),
        *_enum(prefix, "output", program.given),
        *(_enum(prefix, "state", tuple(s.input for s in program.states)) if program.states else ()),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        f"#elif {guard} != 0x{names.identity}",
        f"#error two models are called {prefix}: compile one of them with another --name",
        f"#endif /* {guard} */",
    ]
    return "\n".join(lines) + "\n"


def identifier(name: str) -> str:
    """The name as a part of a C identifier."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "tensor"


def _declarations(names: Names) -> list[str]:
    """Those of smelt.h, under the model's prefix; to the linker that which opens it is this model's alone."""
    text = re.sub(r"/\*.*?\*/", "", (runtime_dir() / "smelt.h").read_text("utf-8"), flags=re.S)
    found = re.findall(r"^(\w[\w *]*?)smelt_(\w+)(\([^;]*\);)", text, flags=re.M)
    assert sorted(f for _, f, _ in found) == sorted(FUNCTIONS), found
    opener = f' SMELT_SYMBOL("{names.opener}");'
    return [
        f"{result}{names.prefix}_{function}{arguments if function != 'open' else arguments[:-1] + opener}"
        for result, function, arguments in found
    ]


def _comment(text: str) -> str:
    """Text that neither ends the comment that it stands in nor looks like the start of one."""
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
