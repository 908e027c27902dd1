"""A host program -> model.h: the model's own names, ranks and a typed call around smelt.h."""

from __future__ import annotations

import re

from smelt.core.plan.program import HostProgram, Tensor

_C_TYPES = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip


def model_header(name: str, program: HostProgram) -> str:
    """C text that declares one enumerator per input and output, and documents their shapes."""
    prefix = identifier(name)
    guard = f"SMELT_MODEL_{prefix.upper()}_H"
    lines = [
        f"/* model.h: inputs and outputs of '{_comment(name)}', in the order that smelt_run wants them. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        '#include "smelt.h"',
        "",
        *_enum(prefix, "input", program.inputs),
        *_enum(prefix, "output", program.outputs),
        f"#endif /* {guard} */",
    ]
    return "\n".join(lines) + "\n"


def identifier(name: str) -> str:
    """The name as a C identifier."""
    made = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "model"
    return f"m_{made}" if made[0].isdigit() else made


def _comment(text: str) -> str:
    return text.replace("*/", "* /")


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
