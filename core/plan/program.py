"""The host program: what runs on the host between inputs and outputs, as data. Printed by `inspect`.

Two phases. `plan` binds symbols from input shapes, checks them and evaluates every Dim that the launches
need into numbered slots; it runs only when a shape changed. `run` launches kernels with those slots, takes
branches and repeats loops. Sizes that only a run tells (`ReadSymbol`, `Assign`) are evaluated where they are
used; what they size lies in further arenas, which are reserved once the sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from smelt.core.dim import Dim
from smelt.core.dtype import DType
from smelt.core.ir.graph import Ref
from smelt.core.ir.layout import Layout

Base = Literal["arena", "input", "output", "weights"]


@dataclass(frozen=True, slots=True)
class Address:
    """A place: base (and its number: arena, input or output index, or the unit that weights are at) plus a
    byte offset. seen: as the host sees the place, which is at another unit."""

    base: Base
    number: int
    offset: Dim
    seen: bool = False

    def __str__(self) -> str:
        name = self.base if self.base == "weights" and not self.number else f"{self.base}{self.number}"
        return f"{name} + {self.offset}{' seen' if self.seen else ''}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of the model: its ONNX name, type and symbolic shape."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class CheckText:
    """A run-time check's message; {got} and {want} are filled in. kind as SmeltError's."""

    text: str
    kind: str = "shape"


# ---------------------------------------------------------------- steps


@dataclass(frozen=True, slots=True)
class BindInput:
    """symbol = (extent of the input's axis - rest) / factor; check that it divides exactly."""

    symbol: str
    input: int
    axis: int
    factor: int
    rest: Dim
    check: int


@dataclass(frozen=True, slots=True)
class CheckInput:
    """The extent of an input's axis must equal `want`."""

    input: int
    axis: int
    want: Dim
    check: int


@dataclass(frozen=True, slots=True)
class StartAxis:
    """A state that has no value yet starts with `extent` elements along the axis of its input."""

    input: int
    axis: int
    extent: Dim


@dataclass(frozen=True, slots=True)
class Check:
    """left relation right must hold; 'divides': left divides right; 'fits': left is 1 or right."""

    left: Dim
    relation: Literal["==", "<=", "divides", "fits"]
    right: Dim
    check: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Slot `slot` of the host state becomes the value of `dim`."""

    slot: int
    dim: Dim


@dataclass(frozen=True, slots=True)
class Reserve:
    """Arena `arena` (1 and up) gets that many bytes. What it held is lost when it grows, unless `keep`."""

    arena: int
    bytes: Dim
    keep: bool = False


@dataclass(frozen=True, slots=True)
class OpenWeights:
    """From here on the address of the weights at a unit is known."""

    unit: int


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """Tell the runtime output `output`'s shape; from here on its address is known."""

    output: int
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Run entry `entry` of the kernel table. buffers then dims are its arguments; groups how many.

    site: which of the program's launches and library calls it is, from 0 in the order of `walk_steps`. made:
    (buffer, value) for each value that is complete from here on."""

    entry: int
    buffers: tuple[Address, ...]
    dims: tuple[Dim, ...]
    groups: Dim
    site: int = 0
    made: tuple[tuple[int, Ref], ...] = ()


@dataclass(frozen=True, slots=True)
class CallLibrary:
    """Call an external function by its number in the library table. site, made: as a Launch's."""

    library: int
    buffers: tuple[Address, ...]
    dims: tuple[Dim, ...]
    site: int = 0
    made: tuple[tuple[int, Ref], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadSymbol:
    """symbol = an integer element in memory."""

    symbol: str
    at: Address
    dtype: DType


@dataclass(frozen=True, slots=True)
class Draw:
    """symbol = another number each time, 0 .. 2^62 - 1."""

    symbol: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy bytes (an output that is an input, a weight, or another output; what crosses from one unit to
    another). Between a place and the same one as the host sees it: the bytes are handed over, and copied
    only where the unit has memory of its own."""

    to: Address
    source: Address
    bytes: Dim


@dataclass(frozen=True, slots=True)
class Assign:
    """Symbols become the values of Dims; all Dims are evaluated before the first symbol changes."""

    symbols: tuple[tuple[str, Dim], ...]


@dataclass(frozen=True, slots=True)
class Write:
    """An integer element in memory becomes the value of a Dim."""

    at: Address
    value: Dim
    dtype: DType


@dataclass(frozen=True, slots=True)
class Branch:
    """`then` where the symbol is not 0, else `otherwise`."""

    symbol: str
    then: tuple[HostStep, ...]
    otherwise: tuple[HostStep, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body` while counter < limit (None: no limit of the model's own) and the symbol `going` is not 0
    (None: always). The counter starts at 0 and counts finished rounds; it keeps its value after the loop."""

    counter: str
    limit: Dim | None
    going: str | None
    body: tuple[HostStep, ...]


HostStep: TypeAlias = (
    BindInput
    | CheckInput
    | StartAxis
    | Check
    | Evaluate
    | Reserve
    | OpenWeights
    | OpenOutput
    | Launch
    | CallLibrary
    | ReadSymbol
    | Draw
    | Copy
    | Assign
    | Write
    | Branch
    | Repeat
)


def walk_steps(steps: tuple[HostStep, ...]) -> Iterator[HostStep]:
    """All steps, those of branches and loops after the step that holds them."""
    for s in steps:
        yield s
        if isinstance(s, Branch):
            yield from walk_steps(s.then)
            yield from walk_steps(s.otherwise)
        elif isinstance(s, Repeat):
            yield from walk_steps(s.body)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the kernel table: one top-level statement of a kernel. unit: the number of who runs it."""

    kernel: str
    statement: int
    unit: int = 0

    @property
    def name(self) -> str:
        """The function's name in generated code: the kernel's, numbered from the second statement on."""
        return self.kernel if self.statement == 0 else f"{self.kernel}.{self.statement}"


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """Where a weight lies in the weights' file in one of its layouts; several places may have one offset.
    units: the numbers of those that read it."""

    ref: str
    layout: Layout | None
    offset: int
    bytes: int
    units: tuple[int, ...] = (0,)


def weights_span(places: Sequence[WeightPlace], unit: int) -> tuple[int, int]:
    """(first byte, bytes) that hold all weights which a unit reads."""
    mine = [w for w in places if unit in w.units]
    first = min((w.offset for w in mine), default=0)
    return first, max((w.offset + w.bytes for w in mine), default=0) - first


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a value lives and when: for `inspect` and for the overlap check."""

    value: str
    arena: int
    offset: Dim
    bytes: Dim
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StatePair:
    """A state: an input that an output replaces; None where this graph only writes, or only reads it, and
    others of the same session do the rest. bytes: of both while a run lasts. most: that the output, and so a
    buffer, can have; None: there is no bound. room: an axis, and how many rows memory has for it, whatever
    the value has. in_place: the output is the input's memory, in which rows are written behind those of the
    input."""

    name: str
    input: Tensor | None
    output: Tensor | None
    bytes: Dim
    most: int | None
    room: tuple[int, int] | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Everything the host code needs. slots: how many int64 it keeps, slot 0 is arena 0's bytes.
    peak: bytes of each arena as a formula. most: the most bytes that each arena, input and output, one after
    the other, may take; None where dims without a bound are in it. states: what the last inputs and the last
    outputs are.

    units: those besides the CPU, which has number 0, from number 1 on. homes: the number of the unit where
    each arena, input and output lies, one after the other. seen: whether the host looks at it, too, so that
    it has as many bytes beside it where the unit's memory is not its own. spans: first byte and bytes of the
    part of the weights' file that each unit has; the CPU has all."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    checks: tuple[CheckText, ...]
    entries: tuple[Entry, ...]
    libraries: tuple[str, ...]
    plan: tuple[HostStep, ...]
    run: tuple[HostStep, ...]
    slots: int
    symbol_slots: tuple[tuple[str, int], ...]
    dim_slots: tuple[tuple[Dim, int], ...]
    peak: tuple[Dim, ...]
    most: tuple[int | None, ...]
    weights: tuple[WeightPlace, ...]
    weights_bytes: int
    placements: tuple[Placement, ...] = ()
    units: tuple[str, ...] = ()
    homes: tuple[int, ...] = ()
    seen: tuple[bool, ...] = ()
    states: tuple[StatePair, ...] = ()
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def home(self) -> int:
        """The unit of arena 0, and of the weights that the run is given."""
        return self.homes[0]

    @property
    def fed(self) -> tuple[Tensor, ...]:
        """The inputs that a caller feeds."""
        return self.inputs[: len(self.inputs) - sum(s.input is not None for s in self.states)]

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The outputs that a caller gets."""
        return self.outputs[: len(self.outputs) - sum(s.output is not None for s in self.states)]

    def names(self) -> tuple[tuple[str, Dim], ...]:
        """Symbols that stand for formulas in what the inputs bind, in order."""
        return tuple(pair for s in self.plan if isinstance(s, Assign) for pair in s.symbols)

    def late(self) -> frozenset[str]:
        """Symbols that get their values while the model runs."""
        found: set[str] = set()
        for s in walk_steps(self.run):
            if isinstance(s, ReadSymbol | Draw):
                found.add(s.symbol)
            elif isinstance(s, Assign):
                found.update(name for name, _ in s.symbols)
            elif isinstance(s, Repeat):
                found.add(s.counter)
        return frozenset(found)
