"""Kernels in, OpenCL C 1.2 text out: one __kernel per top-level statement, one work-group per group.

Parameters: for each buffer the memory that it lies in, then one struct of the buffers' byte offsets and the
kernel's dims, since drivers take their time for each parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt.core.dtype import f64
from smelt.core.ir.analysis.scope import kernel_dtypes, written
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.targets.grid.parts import each_part, identifier, mentioned
from smelt.targets.opencl.dialect import Place
from smelt.targets.opencl.helpers import Helpers, storage_type
from smelt.targets.opencl.machine import MACHINE
from smelt.targets.opencl.vectors import Vectors

_FP64 = """\
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
"""


_TILES = """\
#ifndef TILE_PARTS
#define TILE_PARTS 1
#endif
"""

_LANES = """\
#ifdef SMALL_GROUPS
#define LANES(all, some) some
#define EACH_LANE(n) for (long lane = 0; lane < n; ++lane)
#else
#define LANES(all, some) all
#define EACH_LANE(n) const long lane = get_local_id(0);
#endif
"""


# A fused product in an index computation (resize) would choose another element than the definition does.
_EXACT = "#pragma OPENCL FP_CONTRACT OFF\n\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One __kernel: its name in C, its text, the work-items of a group that it must be run with (or, under
    SMALL_GROUPS, of as many groups as they fill), and the bytes of local memory that a group takes. chain: it
    does what others do, in one launch."""

    name: str
    text: str
    lanes: int
    local_bytes: int
    chain: bool


def emit_program(
    kernels: Sequence[Kernel], machine: Machine = MACHINE
) -> tuple[str, dict[tuple[str, int], Part]]:
    """(source, parts) of all top-level statements of these kernels; raises as `each_part` does."""
    helpers = Helpers()

    def emit(kernel: Kernel, part: int, name: str) -> Part:
        return _part(Vectors(kernel, kernel.body[part], machine, helpers, name), name)

    parts = each_part(kernels, emit)
    with_doubles = {k.name for k in kernels if f64 in kernel_dtypes(k)}
    doubles = [p.name for (kernel, _), p in parts.items() if kernel in with_doubles]
    return _program_text(list(parts.values()), helpers, doubles), parts


def _program_text(parts: Sequence[Part], helpers: Helpers, doubles: Iterable[str]) -> str:
    """The source of a program: what the parts need, then the parts. The driver reads the names of the parts
    that need doubles in the first line; it defines ONE and ONE_name to compile a single part, ALONE for
    all but chains, TILE_PARTS as 2 where registers hold half of a tile, and SMALL_GROUPS where lanes that do
    not meet should be groups of a few."""
    names = " ".join(doubles)
    head = f"/* fp64: {names} */\n{_FP64}" if names else ""
    lanes = _LANES if any("LANES(" in p.text or "EACH_LANE(" in p.text for p in parts) else ""
    return "\n".join([head + _TILES + lanes + _EXACT + helpers.text(), *map(_alone, parts)])


def _alone(p: Part) -> str:
    all_of = "!defined(ONE) && !defined(ALONE)" if p.chain else "!defined(ONE)"
    return f"#if {all_of} || defined(ONE_{p.name})\n{p.text}#endif\n"


def _part(f: Vectors, name: str) -> Part:
    """The whole __kernel."""
    words = f"words_{name}"
    parameters = ", ".join([*_bind_arguments(f), f"const {words} w"])
    f.groups()
    if f.one_item():
        f.some = 1
    size = f"__attribute__((reqd_work_group_size({f.of_groups(str(f.lanes), str(f.some))}, 1, 1)))"
    about = " ".join(f"{f.kernel.name}: {f.kernel.origin}".split()).replace("*/", "")
    lines = [
        *map(f.function_text, f.functions),
        f"typedef struct {{ long v[{f.kernel.memories() + len(f.kernel.dims)}]; }} {words};",
        f"/* {about.removesuffix(':')} */",
        f"__kernel {size}\nvoid {name}(\n    {parameters}) {{",
        *f.head,
        *f.w.lines,
        "}",
    ]
    return Part(name, "\n".join(lines) + "\n", f.lanes, f.shared_bytes, bool(f.functions))


def _bind_arguments(f: Vectors) -> list[str]:
    """Parameters for the memories of a kernel; its buffers and dims are what its expressions can name from
    here on."""
    buffers = f.kernel.buffers()
    memories = f.kernel.memories()
    lies = [(m, memories + d) for m, d in f.kernel.lies] or [(i, i) for i in range(memories)]
    stores, used = written((f.statement,)), mentioned(f.statement)
    for b, (memory, word) in zip(buffers.values(), lies, strict=True):
        name = f.w.fresh(f"p_{identifier(b.name)}")
        f.places[b.name] = Place(buffer=b, name=name)
        if b.name in used:
            # parts of a chain may use one place for elements of several types
            element = f.helpers.aliased(b.dtype) if f.kernel.lies else storage_type(b.dtype)
            kind = f"__global {'' if b.name in stores else 'const '}{element} *"
            f.head.append(f"  {kind}{name} = ({kind})(b{memory} + w.v[{word}]);")
            f.given[name] = kind + name
    for i, d in enumerate(f.kernel.dims, memories):
        name = f.w.fresh(f"n_{identifier(d.name)}")
        f.head.append(f"  const long {name} = w.v[{i}];")
        f.given[name] = f"const long {name}"
        f.env[d.name] = d.low if d.low == d.high else name
    return [f"__global uchar *b{i}" for i in range(memories)]

