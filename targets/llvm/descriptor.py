"""HostProgram in, LLVM IR text out: the constant `smelt_model`, by which the runtime knows a model.

The struct layouts below are those of targets/runtime/smelt_abi.h, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.core.dtype import DType
from smelt.core.ir.graph import Library, Module
from smelt.core.plan.program import HostProgram, Tensor
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.llvm.emit import function_name

ABI_VERSION = 5
"""SMELT_ABI_VERSION."""

_STATUS = {"invalid": 1, "unsupported": 2, "shape": 3, "device": 4, "infra": 5, "internal": 6}
_DLPACK = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_BFLOAT = 4
_ADAPTERS = {"sgemm": 1}

_TENSOR = "{ ptr, { i8, i8, i16 }, i32 }"
_KERNEL = "{ ptr, ptr, i32, i32, i32, i32, i32, i32 }"
_CHECK = "{ i32, i32, ptr }"
_LIBRARY = "{ ptr, ptr, i32, i32 }"
_UNIT = "{ ptr, ptr, i64 }"
_MODEL = (
    "{ i32, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr, ptr, ptr, ptr, "
    "i64, [32 x i8], ptr, i32, ptr, ptr, ptr, ptr, i32, ptr, [4 x i64] }"
)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """How an entry of the kernel table runs. unit: 0 the CPU, k the k-th of the units. lanes: work-items of a
    group. symbol: its function's name where that is not the entry's."""

    unit: int = 0
    lanes: int = 1
    grain: int = 1
    symbol: str = ""


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A unit besides the CPU. driver: the device's name, after which its driver is called. code: what that
    makes the unit's kernels of."""

    driver: str
    code: bytes


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What the descriptor says besides the program."""

    name: str
    prefix: str
    default_threads: int = 0
    weights_sha256: bytes = bytes(32)
    units: tuple[UnitRow, ...] = ()
    weights_sums: Sums = NO_SUMS
    cpu_features: tuple[str, ...] = ()



class _Texts:
    """C strings as private constants, each once."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def ref(self, text: str | None) -> str:
        if text is None:
            return "ptr null"
        return "ptr " + self.names.setdefault(text, f"@smelt_text.{len(self.names)}")

    def lines(self) -> list[str]:
        made = []
        for text, name in self.names.items():
            raw = text.encode() + b"\0"
            made.append(f'{name} = private unnamed_addr constant [{len(raw)} x i8] c"{_escaped(raw)}"')
        return made


def _dlpack(d: DType) -> str:
    code = _BFLOAT if d.name == "bf16" else _DLPACK[d.category]
    return f"{{ i8, i8, i16 }} {{ i8 {code}, i8 {d.bits}, i16 1 }}"


def _table(name: str, row: str, rows: Sequence[str]) -> tuple[str, str]:
    """(definition, pointer to it) of a constant array; an empty one is null."""
    if not rows:
        return "", "ptr null"
    body = ", ".join(f"{row} {{ {r} }}" for r in rows)
    return f"@smelt_{name} = internal constant [{len(rows)} x {row}] [ {body} ]", f"ptr @smelt_{name}"


def descriptor(
    program: HostProgram, module: Module, rows: Mapping[str, KernelRow], options: HostOptions
) -> list[str]:
    texts = _Texts()

    def tensors(name: str, items: Sequence[Tensor]) -> tuple[str, str]:
        return _table(
            name, _TENSOR, [f"{texts.ref(t.name)}, {_dlpack(t.dtype)}, i32 {len(t.shape)}" for t in items]
        )

    kernels = []
    for e in program.entries:
        k, row = module.kernels[e.kernel], rows[e.name]
        fn = f'ptr @"{function_name(k, e.statement)}"' if row.unit == 0 else "ptr null"
        buffers = len(k.inputs) + len(k.outputs) + len(k.scratch)
        kernels.append(
            f"{texts.ref(row.symbol or e.name)}, {fn}, i32 {row.unit}, i32 {buffers}, i32 {len(k.dims)}, "
            f"i32 {row.lanes}, i32 {row.grain}, i32 0"
        )
    checks = [f"i32 {_STATUS[c.kind]}, i32 0, {texts.ref(c.text)}" for c in program.checks]
    libraries = [_library(module.libraries[name], texts) for name in program.libraries]
    tables = {
        "inputs": tensors("inputs", program.inputs),
        "outputs": tensors("outputs", program.outputs),
        "kernels": _table("kernels", _KERNEL, kernels),
        "checks": _table("checks", _CHECK, checks),
        "libraries": _table("libraries", _LIBRARY, libraries),
        "units": _table("units", _UNIT, [_unit(u, k) for k, u in enumerate(options.units, 1)]),
    }
    digest = ", ".join(f"i8 {c}" for c in options.weights_sha256)
    sums = ", ".join(f"i64 {n}" for n in options.weights_sums)
    features = texts.ref(",".join(options.cpu_features) or None)
    counts = (
        ABI_VERSION,
        len(program.inputs),
        len(program.outputs),
        len(kernels),
        len(checks),
        len(program.peak),
        program.slots,
        options.default_threads,
    )
    pointers = ", ".join(tables[n][1] for n in ("inputs", "outputs", "kernels", "checks"))
    model = (
        f"@smelt_model = constant {_MODEL} {{ "
        f"{', '.join(f'i32 {c}' for c in counts)}, {texts.ref(options.name)}, {texts.ref(options.prefix)}, "
        f"{pointers}, i64 {program.weights_bytes}, [32 x i8] [{digest}], {tables['units'][1]}, "
        f"i32 {len(options.units)}, ptr null, ptr @smelt_plan.steps, ptr @smelt_run.steps, "
        f"{tables['libraries'][1]}, i32 {len(libraries)}, "
        f"{features}, [4 x i64] [{sums}] }}"
    )
    given = [line for k, u in enumerate(options.units, 1) for line in _unit_data(u, k)]
    return ["\n".join((*texts.lines(), *given)), *(t for t, _ in tables.values() if t), model]


def _unit(row: UnitRow, k: int) -> str:
    return f"ptr @smelt_driver_{row.driver}, ptr @smelt_code.{k}, i64 {len(row.code)}"


def _unit_data(row: UnitRow, k: int) -> tuple[str, str]:
    """The unit's driver, which linking takes from the folder of its target, and its code."""
    data = f'[{len(row.code)} x i8] c"{_escaped(row.code)}"'
    return (
        f"@smelt_driver_{row.driver} = external constant i8",
        f"@smelt_code.{k} = internal constant {data}, align 16",
    )


def _escaped(raw: bytes) -> str:
    """Bytes as LLVM's text has them."""
    return "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in raw)


def _library(library: Library, texts: _Texts) -> str:
    files, adapter = ";".join(library.files), _ADAPTERS[library.adapter]
    return f"{texts.ref(files)}, {texts.ref(library.name)}, i32 {adapter}, i32 0"
