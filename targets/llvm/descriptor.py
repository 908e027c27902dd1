"""HostProgram in, LLVM IR text out: the constant `smelt_model`, by which the runtime knows a model.

Layouts and numbers come from the runtime's headers (abi.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.core.dtype import DType
from smelt.core.ir.graph import Library, Module
from smelt.core.plan.program import CheckText, Entry, HostProgram, Tensor
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.llvm.abi import Struct, constants, structs

_DLPACK = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_BFLOAT = 4


@dataclass(frozen=True, slots=True)
class KernelRow:
    """How an entry of the kernel table runs. symbol: its name, in its driver's code on a device. function: of
    the host's code; '' for none. lanes: work-items of a group."""

    symbol: str
    function: str
    lanes: int = 1
    grain: int = 1


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A unit besides the CPU. driver: the device's name, after which its driver is called. code: what that
    makes the unit's kernels of. weights: first byte and bytes of the part of the weights that it reads."""

    driver: str
    code: bytes
    weights: tuple[int, int]


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
            return "null"
        return self.names.setdefault(text, f"@smelt_text.{len(self.names)}")

    def lines(self) -> list[str]:
        made = []
        for text, name in self.names.items():
            raw = text.encode() + b"\0"
            made.append(f'{name} = private unnamed_addr constant [{len(raw)} x i8] c"{_escaped(raw)}"')
        return made


def _escaped(raw: bytes) -> str:
    """Bytes as LLVM's text has them."""
    return "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in raw)


def _dlpack(d: DType) -> str:
    code = _BFLOAT if d.name == "bf16" else _DLPACK[d.category]
    return structs()["DLDataType"].value(code=code, bits=d.bits, lanes=1)


def _table(name: str, row: Struct, values: Sequence[str]) -> tuple[str, str]:
    """(definition, address) of a constant array; an empty one is null."""
    if not values:
        return "", "null"
    body = ", ".join(f"{row.type} {v}" for v in values)
    return f"@smelt_{name} = internal constant [{len(values)} x {row.type}] [ {body} ]", f"@smelt_{name}"


def descriptor(
    program: HostProgram, module: Module, rows: Mapping[str, KernelRow], options: HostOptions
) -> list[str]:
    """LLVM IR: texts, tables, and `smelt_model`."""
    texts, row = _Texts(), structs()

    def tensors(items: Sequence[Tensor]) -> list[str]:
        desc = row["smelt_tensor_desc"]
        return [
            desc.value(name=texts.ref(t.name), dtype=_dlpack(t.dtype), rank=len(t.shape)) for t in items
        ]

    tables = {
        "inputs": ("smelt_tensor_desc", tensors(program.inputs)),
        "outputs": ("smelt_tensor_desc", tensors(program.outputs)),
        "kernels": ("smelt_kernel_desc", [_kernel(module, e, rows[e.name], texts) for e in program.entries]),
        "checks": ("smelt_check_desc", [_check(c, texts) for c in program.checks]),
        "libraries": (
            "smelt_library_desc", [_library(module.libraries[name], texts) for name in program.libraries],
        ),
        "units": ("smelt_unit_desc", [_unit(u, k) for k, u in enumerate(options.units, 1)]),
    }  # fmt: skip
    made = {name: _table(name, row[struct], values) for name, (struct, values) in tables.items()}
    desc = row["smelt_model_desc"]
    model = desc.value(
        abi_version=constants()["SMELT_ABI_VERSION"],
        n_arenas=len(program.peak),
        n_slots=program.slots,
        n_states=len(program.states),
        default_threads=options.default_threads,
        name=texts.ref(options.name),
        prefix=texts.ref(options.prefix),
        weights_bytes=program.weights_bytes,
        weights_sha256=f"[{', '.join(f'i8 {c}' for c in options.weights_sha256)}]",
        weights_sums=f"[{', '.join(f'i64 {n}' for n in options.weights_sums)}]",
        cpu_features=texts.ref(",".join(options.cpu_features) or None),
        plan="@smelt_plan.steps",
        run="@smelt_run.steps",
        homes="@smelt_homes" if program.units else "null",
        most="@smelt_most" if program.most else "null",
        **{name: address for name, (_, address) in made.items()},
        **{f"n_{name}": len(values) for name, (_, values) in tables.items()},
    )
    drivers = dict.fromkeys(u.driver for u in options.units)  # which linking takes from their targets
    given = [f"@smelt_driver_{d} = external constant i8" for d in drivers]
    given += [_unit_data(u, k) for k, u in enumerate(options.units, 1)]
    if program.units:
        rows_of = ", ".join(f"i32 {unit}" for unit in program.homes)
        given.append(f"@smelt_homes = internal constant [{len(program.homes)} x i32] [ {rows_of} ]")
    if program.most:
        bounds = ", ".join(f"i64 {0 if n is None else max(n, 1)}" for n in program.most)
        given.append(f"@smelt_most = internal constant [{len(program.most)} x i64] [ {bounds} ]")
    return [
        "\n".join((*texts.lines(), *given)), *(text for text, _ in made.values() if text),
        f"@smelt_model = constant {desc.type} {model}",
    ]  # fmt: skip


def _kernel(module: Module, e: Entry, row: KernelRow, texts: _Texts) -> str:
    k = module.kernels[e.kernel]
    return structs()["smelt_kernel_desc"].value(
        name=texts.ref(row.symbol),
        fn=f'@"{row.function}"' if row.function else "null",
        unit=e.unit,
        n_buffers=len(k.inputs) + len(k.outputs) + len(k.scratch),
        n_dims=len(k.dims),
        lane_count=row.lanes,
        grain=row.grain,
    )


def _check(c: CheckText, texts: _Texts) -> str:
    status = constants()[f"SMELT_{c.kind.upper()}"]
    return structs()["smelt_check_desc"].value(status=status, text=texts.ref(c.text))


def _library(library: Library, texts: _Texts) -> str:
    return structs()["smelt_library_desc"].value(
        files=texts.ref(";".join(library.files)), symbol=texts.ref(library.name),
        adapter=constants()[f"SMELT_LIBRARY_{library.adapter.upper()}"],
    )  # fmt: skip


def _unit(row: UnitRow, k: int) -> str:
    return structs()["smelt_unit_desc"].value(
        driver=f"@smelt_driver_{row.driver}", code=f"@smelt_code.{k}", code_bytes=len(row.code),
        weights_at=row.weights[0], weights_bytes=row.weights[1],
    )  # fmt: skip


def _unit_data(row: UnitRow, k: int) -> str:
    return f'@smelt_code.{k} = internal constant [{len(row.code)} x i8] c"{_escaped(row.code)}", align 16'
