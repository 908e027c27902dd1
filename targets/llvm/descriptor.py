"""Linked host programs in, LLVM IR text out: the constant `smelt_model`, by which the runtime knows a model.

Layouts and numbers come from the runtime's headers (abi.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from smelt.core.dlpack import DLPACK
from smelt.core.dtype import DType
from smelt.core.ir.graph import Library
from smelt.core.plan.link import EntryPoint, Linked
from smelt.core.plan.program import CheckText, Tensor
from smelt.core.schedule.chain import LinkPlace
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.llvm.abi import constants, structs


@dataclass(frozen=True, slots=True)
class KernelRow:
    """How an entry of the kernel table runs. symbol: its name, in its driver's code on a device. function: of
    the host's code; '' for none. lanes: work-items of a group. group_bytes: memory of a group to ask for."""

    symbol: str
    function: str
    lanes: int = 1
    grain: int = 1
    group_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A unit besides the CPU. driver: the device's name, after which its driver is called. code: what that
    makes the unit's kernels of. weights: first byte and bytes of the part of the weights that it reads."""

    driver: str
    code: bytes
    weights: tuple[int, int]


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What the descriptor says besides the programs."""

    name: str
    prefix: str
    default_threads: int = 0
    keep_subnormals: bool = False
    weights_sha256: bytes = bytes(32)
    units: tuple[UnitRow, ...] = ()
    weights_sums: Sums = NO_SUMS
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each processor: what its code uses."""


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
    code, bits = DLPACK[d]
    return structs()["DLDataType"].value(code=code, bits=bits, lanes=1)


class _Tables:
    """Constant arrays, as they are asked for."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def structs(self, name: str, struct: str, values: Sequence[str]) -> str:
        """The address of a table of structs; an empty one is null."""
        return self._array(name, structs()[struct].type, values)

    def numbers(self, name: str, elem: str, values: Iterable[int]) -> str:
        """The address of an array of numbers; an empty one is null."""
        return self._array(name, elem, [str(n) for n in values])

    def _array(self, name: str, elem: str, values: Sequence[str]) -> str:
        if not values:
            return "null"
        body = ", ".join(f"{elem} {v}" for v in values)
        self.lines.append(f"@smelt_{name} = internal constant [{len(values)} x {elem}] [ {body} ]")
        return f"@smelt_{name}"


def entry_symbol(number: int, name: str) -> str:
    """What a function or table of an entry is called, after 'smelt_'."""
    return f"{name}.{number}"


def descriptor(
    linked: Linked, checks: Sequence[Sequence[CheckText]], rows: Sequence[KernelRow], options: HostOptions
) -> list[str]:
    """LLVM IR: texts, tables, and `smelt_model`. checks: of each entry."""
    texts, row, made = _Texts(), structs(), _Tables()
    entries = [
        _entry(linked, e, n, found, texts, made)
        for n, (e, found) in enumerate(zip(linked.all_entries, checks, strict=True))
    ]
    kernels = [_kernel(linked, n, r, texts, made) for n, r in enumerate(rows)]
    states = [
        row["smelt_state_desc"].value(
            name=texts.ref(s.name),
            dtype=_dlpack(s.dtype),
            rank=s.rank,
            most=_most(s.most),
            axis=s.room[0] if s.room else 0,
            room=s.room[1] if s.room else 0,
        )
        for s in linked.states
    ]
    variants = [_variant(linked, n, options, texts, made) for n in range(len(linked.variants))]
    units = [_unit(u, k) for k, u in enumerate(options.units, 1)]
    libraries = [_library(library, texts) for library in linked.libraries]
    desc = row["smelt_model_desc"]
    model = desc.value(
        abi_version=constants()["SMELT_ABI_VERSION"],
        n_entries=len(entries),
        n_kernels=len(kernels),
        n_arenas=len(linked.homes),
        n_states=len(states),
        n_libraries=len(libraries),
        n_units=len(units),
        n_variants=len(variants),
        default_threads=options.default_threads,
        keep_subnormals=int(options.keep_subnormals),
        name=texts.ref(options.name),
        prefix=texts.ref(options.prefix),
        entries=made.structs("entries", "smelt_entry_desc", entries),
        variants=made.structs("variants", "smelt_variant_desc", variants),
        kernels=made.structs("kernels", "smelt_kernel_desc", kernels),
        states=made.structs("states", "smelt_state_desc", states),
        libraries=made.structs("libraries", "smelt_library_desc", libraries),
        units=made.structs("units", "smelt_unit_desc", units),
        homes=made.numbers("homes", "i32", [h.unit for h in linked.homes] if linked.units else ()),
        seen=made.numbers("seen", "i32", _flags(h.seen for h in linked.homes)),
        most=made.numbers("most", "i64", map(_most, linked.most)),
        weights_bytes=linked.weights_bytes,
        weights_sha256=f"[{', '.join(f'i8 {c}' for c in options.weights_sha256)}]",
        weights_sums=f"[{', '.join(f'i64 {n}' for n in options.weights_sums)}]",
    )
    drivers = dict.fromkeys(u.driver for u in options.units)  # which linking takes from their targets
    given = [f"@smelt_driver_{d} = external constant i8" for d in drivers]
    given += [_unit_data(u, k) for k, u in enumerate(options.units, 1)]
    return [
        "\n".join((*texts.lines(), *given)), *made.lines, f"@smelt_model = constant {desc.type} {model}",
    ]  # fmt: skip


def _variant(linked: Linked, n: int, options: HostOptions, texts: _Texts, made: _Tables) -> str:
    v, homes = linked.variants[n], [s.homes[n] for s in linked.states]
    return structs()["smelt_variant_desc"].value(
        name=texts.ref(v.processor),
        cpu_features=texts.ref(",".join(options.features[v.processor]) or None),
        units=sum(1 << (unit - 1) for unit in v.units),
        states=made.numbers(f"state_homes.{n}", "i32", homes if any(homes) else ()),
    )


def _entry(
    linked: Linked, e: EntryPoint, number: int, checks: Sequence[CheckText], texts: _Texts, made: _Tables
) -> str:
    """An entry's row; its tables are added to `made`."""
    program, arenas = e.program, len(e.arenas)

    def own(name: str) -> str:
        return entry_symbol(number, name)

    def tensors(items: Sequence[Tensor]) -> list[str]:
        desc = structs()["smelt_tensor_desc"]
        return [desc.value(name=texts.ref(t.name), dtype=_dlpack(t.dtype), rank=len(t.shape)) for t in items]

    lies = [s.in_place for s in program.states if s.output is not None]
    return structs()["smelt_entry_desc"].value(
        name=texts.ref(e.name),
        n_inputs=len(program.inputs),
        n_outputs=len(program.outputs),
        n_checks=len(checks),
        n_slots=program.slots,
        arena=e.arenas[0],
        n_reads=len(e.reads),
        n_writes=len(e.writes),
        reads=made.numbers(own("reads"), "i32", e.reads),
        writes=made.numbers(own("writes"), "i32", e.writes),
        in_place=made.numbers(own("in_place"), "i32", _flags(lies)),
        inputs=made.structs(own("inputs"), "smelt_tensor_desc", tensors(program.inputs)),
        outputs=made.structs(own("outputs"), "smelt_tensor_desc", tensors(program.outputs)),
        checks=made.structs(own("checks"), "smelt_check_desc", [_check(c, texts) for c in checks]),
        homes=made.numbers(own("homes"), "i32", program.homes[arenas:] if linked.units else ()),
        seen=made.numbers(own("seen"), "i32", _flags(program.seen[arenas:])),
        most=made.numbers(own("most"), "i64", map(_most, program.most[arenas:])),
        plan=f"@smelt_{own('plan')}",
        run=f"@smelt_{own('run')}",
    )


def _flags(found: Iterable[bool]) -> Sequence[int]:
    """As numbers; none where none is set."""
    numbers = [int(f) for f in found]
    return numbers if any(numbers) else ()


def _most(n: int | None) -> int:
    return 0 if n is None else max(n, 1)


def _kernel(linked: Linked, number: int, row: KernelRow, texts: _Texts, made: _Tables) -> str:
    e, parts = linked.rows[number], linked.chained.get(number, ())
    k = linked.kernels[e.kernel]
    chains = [
        structs()["smelt_chain_part"].value(
            kernel=p.chain, dim=p.place.taking_part,
            at=made.numbers(f"part_{number}.{n}", "i32", _numbers(p.place)),
        )
        for n, p in enumerate(parts)
    ]  # fmt: skip
    return structs()["smelt_kernel_desc"].value(
        name=texts.ref(row.symbol),
        fn=f'@"{row.function}"' if row.function else "null",
        unit=e.unit,
        n_buffers=k.memories(),
        n_read=0 if k.lies else len(k.inputs),
        n_dims=len(k.dims),
        lane_count=row.lanes,
        grain=row.grain,
        group_bytes=row.group_bytes,
        n_chains=len(chains),
        chains=made.structs(f"chains_{number}", "smelt_chain_part", chains),
        chain_groups=max((p.most_groups for p in parts), default=0),
    )


def _numbers(place: LinkPlace) -> tuple[int, ...]:
    """As `at` of smelt_chain_part."""
    return (*chain.from_iterable(place.buffers), *place.dims)


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
