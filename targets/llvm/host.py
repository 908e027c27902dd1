"""Linked host programs in, LLVM IR text out: each entry's `plan` and `run`, the descriptor `smelt_model`.

What they call is in targets/runtime/smelt_abi.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.core.dim import Dim, Facts
from smelt.core.ir.verify import module_facts
from smelt.core.plan.link import EntryPoint, Linked
from smelt.core.plan.program import (
    Address,
    Assign,
    BindInput,
    Branch,
    CallLibrary,
    Check,
    CheckInput,
    CheckText,
    Copy,
    Draw,
    Evaluate,
    HostProgram,
    HostStep,
    Launch,
    OpenOutput,
    OpenWeights,
    ReadSymbol,
    Repeat,
    Reserve,
    StartAxis,
    Write,
    walk_steps,
)
from smelt.targets.llvm.builder import BasicBlock, FunctionBuilder, Scope, Value
from smelt.targets.llvm.descriptor import HostOptions, KernelRow, descriptor, entry_symbol
from smelt.targets.llvm.exact import Exact
from smelt.targets.llvm.index import Env

MOST_EXTENT = 1 << 62
"""RT_MAX_EXTENT of targets/runtime/rt.h: the runtime refuses a tensor with a longer axis."""

LONGEST_FORMULA, NAMED = 80, 6
"""Characters of a formula, and sizes, that the message about its overflow has."""

STEPS_PIECE = 64
"""Steps of the run that one function does: LLVM's time and memory grow faster than a function does."""


@dataclass(frozen=True, slots=True)
class HostCode:
    """The host code of a library in two parts, each with its declarations by symbol. plans: what runs when a
    shape has changed. run: what every run does, and the descriptor; it declares the plans' symbols only
    where they are `apart`."""

    plans: str
    run: str
    declared: tuple[dict[str, str], dict[str, str]]
    apart: dict[str, str]


def host_code(linked: Linked, rows: Sequence[KernelRow], options: HostOptions) -> HostCode:
    """The host code of a library. rows: of its kernel table."""
    plans: list[str] = []
    parts: list[str] = []
    checks: list[Sequence[CheckText]] = []
    early: dict[str, str] = {}
    late: dict[str, str] = {}
    for number, entry in enumerate(linked.all_entries):
        facts, found = module_facts(entry.module), _Checks(list(entry.program.checks))
        plan = _Plan(entry.program, facts, early, found).body()
        plans.append(_function(entry_symbol(number, "plan"), _PLAN, plan, "hidden"))
        parts += _run(entry, number, facts, late, found)
        checks.append(tuple(found.rows))
    names = [f"smelt_{entry_symbol(n, 'plan')}" for n in range(len(plans))]
    whole = "\n\n".join([*parts, *descriptor(linked, checks, rows, options)]) + "\n"
    apart = {n: f"declare hidden i32 @{n}({_PLAN})" for n in names}
    return HostCode("\n\n".join(plans) + "\n", whole, (early, late), apart)


# ---------------------------------------------------------------- functions


_PLAN = "ptr %rt, ptr %shapes, ptr %slots"


def _function(name: str, parameters: str, body: str, linkage: str = "internal") -> str:
    return f"define {linkage} i32 @smelt_{name}({parameters}) nounwind {{\n{body}\n}}"


@dataclass
class _Checks:
    """The checks of a program, and one more for each formula that may overflow."""

    rows: list[CheckText]
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of an added check."""
        if text not in self.numbers:
            self.numbers[text] = len(self.rows)
            self.rows.append(CheckText(text))
        return self.numbers[text]


class _Host:
    """Shared by both functions: values of Dims, calls, early returns."""

    def __init__(self, program: HostProgram, facts: Facts, declared: dict[str, str], checks: _Checks) -> None:
        self.program = program
        self.facts = facts
        self.checks = checks
        self.b = FunctionBuilder(declared)
        self.ix = Exact(self.b, self._refusal)
        self.env: Env = {}
        self._refusals: dict[int, BasicBlock] = {}  # a check -> where it fails

    def symbol(self, name: str, value: Value) -> None:
        """Make the value known under the symbol's name, with its range."""
        low, high = self.facts.bounds(_sym(name))
        value.low, value.high = low, high
        self.env[name] = value

    def value(self, d: Dim) -> Value:
        """The Dim's value; where it does not fit in 64 bits the function returns with an error."""
        return self.ix.exact(d, self.env)

    def _refusal(self, d: Dim) -> str:
        """The label of a block that leaves with an error that has the formula and its numbers."""
        check = self._overflow_check(d)
        if check not in self._refusals:
            self._refusals[check] = self.b.block("overflow")
        return self._refusals[check].label

    def _overflow_check(self, d: Dim) -> int:
        slots = dict(self.program.symbol_slots)
        numbers = ", ".join(f"{s} = {{slot {slots[s]}}}" for s in sorted(d.symbols)[:NAMED] if s in slots)
        # many formulas have the same symbols, whose names are long
        end = self.checks.number(f" does not fit in 64 bits{' at ' if numbers else ''}{numbers}")
        return self.checks.number(f"the size {_short(str(d))}{{check {end}}}")

    def text(self) -> str:
        """The blocks of the finished function."""
        if self._refusals:
            leave, check, status = self.b.block("leave"), self.b.name(), self.b.name()
            edges = ", ".join(f"[ {n}, %{block.label} ]" for n, block in self._refusals.items())
            for block in self._refusals.values():
                block.lines = [f"br label %{leave.label}"]
            self.b.declare("smelt_rt_fail", "i32", ["ptr", "i32", "i64", "i64"], "nounwind")
            leave.phis = [f"{check} = phi i32 {edges}"]
            leave.lines = [
                f"{status} = call i32 @smelt_rt_fail(ptr %rt, i32 {check}, i64 0, i64 0)",
                f"ret i32 {status}",
            ]
        return self.b.text("ret i32 0")

    def argument(self, name: str, elem: str) -> Value:
        return Value(f"%{name}", elem, 0, self.b.root)

    def element(self, base: Value, n: int, elem: str) -> Value:
        """base[n] of 8-byte (i64) or pointer-sized (ptr) elements, loaded now."""
        at = self.b.pure(f"getelementptr {elem}, ptr {base.text}, i64 {n}", "ptr", 0, base)
        return self.b.here(f"load {elem}, ptr {at.text}", elem, 0)

    def early(self, base: Value, n: int, elem: str) -> Value:
        """base[n] loaded where the function runs in any case, so that it serves everything after it."""
        root = self.b.root
        at = self.b.at(root, f"getelementptr {elem}, ptr {base.text}, i64 {n}", "ptr", 0, None)
        return self.b.at(root, f"load {elem}, ptr {at.text}", elem, 0, None)

    def store(self, base: Value, n: int, value: Value) -> None:
        at = self.b.pure(f"getelementptr i64, ptr {base.text}, i64 {n}", "ptr", 0, base)
        self.b.effect(f"store i64 {value.text}, ptr {at.text}")

    def call(self, name: str, result: str, *args: Value) -> Value:
        self.b.declare(name, result, [a.type for a in args], "nounwind")
        return self.b.here(f"call {result} @{name}({', '.join(a.typed for a in args)})", result, 0)

    def leave_if(self, bad: Value, status: Value) -> None:
        """Return `status` where the condition holds."""
        fail, go_on = self.b.block("leave"), self.b.block("next")
        self.b.effect(f"br i1 {bad.text}, label %{fail.label}, label %{go_on.label}")
        fail.lines.append(f"ret {status.typed}")
        self.b.scope.block = go_on

    def leave_if_failed(self, status: Value) -> None:
        self.leave_if(self.compare("ne", status, self.b.integer(0, "i32")), status)

    def fail_if(self, bad: Value, check: int, got: Value, want: Value) -> None:
        """Report a check that does not hold and return its status."""
        fail, go_on = self.b.block("fail"), self.b.block("next")
        self.b.effect(f"br i1 {bad.text}, label %{fail.label}, label %{go_on.label}")
        self.b.declare("smelt_rt_fail", "i32", ["ptr", "i32", "i64", "i64"], "nounwind")
        status = self.b.name()
        fail.lines.append(
            f"{status} = call i32 @smelt_rt_fail(ptr %rt, i32 {check}, {got.typed}, {want.typed})"
        )
        fail.lines.append(f"ret i32 {status}")
        self.b.scope.block = go_on

    def compare(self, how: str, a: Value, b: Value) -> Value:
        return self.b.here(f"icmp {how} {a.typed}, {b.text}", "i1", 0)

    def check(self, s: Check) -> None:
        left, right = self.value(s.left), self.value(s.right)
        if s.relation == "divides":
            safe = self.b.intrinsic("smax", "i64", 0, left, self.b.integer(1))
            rest = self.b.here(f"srem i64 {right.text}, {safe.text}", "i64", 0)
            bad = self.compare("ne", rest, self.b.integer(0))
        elif s.relation == "fits":
            other, more = self.compare("ne", left, right), self.compare("ne", left, self.b.integer(1))
            bad = self.b.here(f"and i1 {other.text}, {more.text}", "i1", 0)
        else:
            bad = self.compare({"==": "ne", "<=": "sgt"}[s.relation], left, right)
        self.fail_if(bad, s.check, left, right)


class _Plan(_Host):
    """Bind symbols from shapes, check, evaluate slots."""

    def body(self) -> str:
        """The text of the function."""
        self.slots, self.shapes = self.argument("slots", "ptr"), self.argument("shapes", "ptr")
        for s in self.program.plan:
            self.step(s)
        return self.text()

    def extent(self, n: int, axis: int) -> Value:
        found = self.element(self.element(self.shapes, n, "ptr"), axis, "i64")
        found.low, found.high = 0, MOST_EXTENT
        return found

    def step(self, step: HostStep) -> None:
        match step:
            case BindInput():
                self.bind(step)
            case CheckInput(n, axis, want, check):
                got, expected = self.extent(n, axis), self.value(want)
                self.fail_if(self.compare("ne", got, expected), check, got, expected)
            case StartAxis(n, axis, extent):
                at = self.b.integer(n, "i32"), self.b.integer(axis, "i32")
                rt = self.argument("rt", "ptr")
                self.leave_if_failed(self.call("smelt_rt_start", "i32", rt, *at, self.value(extent)))
            case Check():
                self.check(step)
            case Evaluate(slot, dim):
                self.store(self.slots, slot, self.value(dim))
            case Assign(symbols):
                for name, dim in symbols:
                    value = self.value(dim)
                    self.symbol(name, value)
                    self.store(self.slots, dict(self.program.symbol_slots)[name], value)
            case _:
                raise AssertionError(f"{step} in the plan phase")

    def bind(self, s: BindInput) -> None:
        got = self.extent(s.input, s.axis)
        whole = self.ix.exact(s.rest, self.env, got)
        value = whole
        if s.factor != 1:
            value = self.b.here(f"sdiv i64 {whole.text}, {s.factor}", "i64", 0)
            back = self.b.here(f"mul i64 {value.text}, {s.factor}", "i64", 0)
            self.fail_if(self.compare("ne", back, whole), s.check, got, got)
        # a fresh value: the bounds given to a symbol hold only after its checks
        bound = Value(value.text, "i64", 0, value.scope, None, 0, MOST_EXTENT)
        self.env[s.symbol] = bound
        negative = self.compare("slt", value, self.b.integer(0))
        self.fail_if(negative, s.check, got, got)
        self.store(self.slots, dict(self.program.symbol_slots)[s.symbol], value)


AS_SEEN = -(1 << 63)
"""Of an address: the sign, which says that the host's view of the place is meant (smelt_abi.h)."""
_RUN = "ptr %rt, ptr %slots, ptr %inputs, i64 %weights, i64 %arena"


def _run(
    entry: EntryPoint, number: int, facts: Facts, declared: dict[str, str], checks: _Checks
) -> list[str]:
    """The functions that the run is made of; that which calls the others is the last."""
    program = entry.program
    opened = sorted({k for s in walk_steps(program.run) if (k := _opens(s)) is not None})
    shared = _Shared(dict(program.dim_slots), dict(program.symbol_slots), program.late(),
                     {key: n for n, key in enumerate(opened)}, [], entry, number)  # fmt: skip
    run = _Run(program, facts, declared, checks, shared)
    run.b.allocas.append(f"%opened = alloca [{max(1, len(opened))} x i64]")
    whole = _function(entry_symbol(number, "run"), _RUN, run.body(program.run))
    return [*shared.pieces, whole]


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the pieces of the run have in common. slots and symbols: which slot holds a formula, a
    symbol. opened: where %opened holds the address of an output or an arena. pieces: texts, added as
    they are done. entry, number: whose they are."""

    slots: Mapping[Dim, int]
    symbols: Mapping[str, int]
    late: frozenset[str]
    opened: Mapping[tuple[str, int], int]
    pieces: list[str]
    entry: EntryPoint
    number: int


class _Run(_Host):
    """Launch everything with the slots that plan filled: one function for a stretch of steps.

    Symbols that the run itself sets live in slots, addresses that it gets in %opened: both are loaded
    at each use, since branches and loops change them.
    """

    def __init__(
        self,
        program: HostProgram,
        facts: Facts,
        declared: dict[str, str],
        checks: _Checks,
        shared: _Shared,
    ) -> None:
        super().__init__(program, facts, declared, checks)
        self.shared = shared
        self.slots = self.argument("slots", "ptr")
        self.inputs = self.argument("inputs", "ptr")
        self.opened = self.argument("opened", "ptr")
        self.args = self.argument("args", "ptr")
        self.bases: dict[tuple[str, int], Value] = {
            ("weights", program.home): self.argument("weights", "i64"),
            ("arena", 0): self.argument("arena", "i64"),
        }
        self.loaded: dict[int, Value] = {}

    def body(self, steps: Sequence[HostStep]) -> str:
        """The text of the function that does these steps."""
        widest = max([1, *(len(_arguments(s)) for s in walk_steps(tuple(steps)))])
        self.b.allocas.append(f"%args = alloca [{widest} x i64], align 16")
        self.arm(steps)
        return self.text()

    def arm(self, steps: Sequence[HostStep]) -> list[Value]:
        """These steps, here or as calls of functions for a stretch of them each."""
        stretches = _stretches(steps)
        if len(stretches) == 1:
            for s in steps:
                self.step(s)
            return []
        for stretch in stretches:
            piece = _Run(self.program, self.facts, self.b.declared, self.checks, self.shared)
            body = piece.body(stretch)
            name = entry_symbol(self.shared.number, f"run.{len(self.shared.pieces)}")
            self.shared.pieces.append(_function(name, f"{_RUN}, ptr %opened", body))
            self.leave_if_failed(self.b.here(f"call i32 @smelt_{name}({_RUN}, ptr %opened)", "i32", 0))
        return []

    def slot(self, n: int) -> Value:
        if n not in self.loaded:
            self.loaded[n] = self.early(self.slots, n, "i64")
        return self.loaded[n]

    def value(self, d: Dim) -> Value:
        late = d.symbols & self.shared.late
        if not d.is_const and d in self.shared.slots and not late:
            return self.slot(self.shared.slots[d])
        for name in sorted(d.symbols):
            at = self.shared.symbols[name]
            if name in late:
                self.symbol(name, self.element(self.slots, at, "i64"))
            elif name not in self.env:
                self.symbol(name, self.slot(at))
        return super().value(d)

    def set(self, symbol: str, value: Value) -> None:
        self.store(self.slots, self.shared.symbols[symbol], value)

    def address(self, a: Address) -> Value:
        key = (a.base, a.number)
        if a.base == "input" and key not in self.bases:
            self.bases[key] = self.early(self.inputs, a.number, "i64")
        base = self.bases.get(key)
        if base is None:
            base = self.element(self.opened, self.shared.opened[key], "i64")
        if a.seen:
            base = self.b.here(f"or i64 {base.text}, {AS_SEEN}", "i64", 0)
        if a.offset.const_or_none == 0:
            return base
        return self.b.here(f"add i64 {base.text}, {self.value(a.offset).text}", "i64", 0)

    def fill(self, values: Sequence[Value]) -> None:
        for n, v in enumerate(values):
            self.store(self.args, n, v)

    def step(self, step: HostStep) -> None:
        rt, b = self.argument("rt", "ptr"), self.b
        match step:
            case Launch(entry, buffers, dims, groups, site):
                self.fill([*map(self.address, buffers), *map(self.value, dims)])
                count = self.value(groups)
                row = b.integer(self.shared.entry.kernels[entry], "i32")
                self.must("smelt_rt_launch", rt, row, self.args, count, b.integer(site, "i32"))
            case CallLibrary(library, buffers, dims, site):
                self.fill([*map(self.address, buffers), *map(self.value, dims)])
                row = b.integer(self.shared.entry.libraries[library], "i32")
                self.must("smelt_rt_library", rt, row, self.args, b.integer(site, "i32"))
            case OpenWeights(unit):
                self.open(("weights", unit), self.call("smelt_rt_weights", "i64", rt, b.integer(unit, "i32")))
            case OpenOutput(n, shape):
                self.fill([self.value(d) for d in shape])
                at = self.call("smelt_rt_output", "i64", rt, b.integer(n, "i32"), self.args)
                self.open(("output", n), at)
            case Reserve(arena, size, keep):
                name = "smelt_rt_grow" if keep else "smelt_rt_reserve"
                own = b.integer(self.shared.entry.arenas[arena], "i32")
                at = self.call(name, "i64", rt, own, self.value(size))
                self.open(("arena", arena), at)
            case ReadSymbol():
                self.read(step)
            case Draw(symbol):
                self.set(symbol, self.call("smelt_rt_random", "i64", rt))
            case Assign(symbols):
                values = [(name, self.value(d)) for name, d in symbols]
                for name, v in values:
                    self.set(name, v)
            case Write(to, value, dtype):
                place, width = self.address(to), b.integer(dtype.bytes, "i32")
                self.must("smelt_rt_write", rt, place, self.value(value), width)
            case Copy(to, source, size):
                self.must("smelt_rt_copy", rt, self.address(to), self.address(source), self.value(size))
            case Check():
                self.check(step)
            case Branch(symbol, then, otherwise):
                taken = self.compare("ne", self.value(_sym(symbol)), b.integer(0))
                b.branch(taken, lambda: self.arm(then), lambda: self.arm(otherwise))
            case Repeat():
                self.repeat(step)
            case _:
                raise AssertionError(f"{step} in the run phase")

    def must(self, name: str, *args: Value) -> None:
        """A call that returns a status, and an early return where that is no success."""
        self.leave_if_failed(self.call(name, "i32", *args))

    def repeat(self, s: Repeat) -> None:
        """counter = 0; while (counter < limit && going) { round; body; counter++ }"""
        b, outer = self.b, self.b.scope
        zero, one = b.integer(0), b.integer(1)
        limit = None if s.limit is None else self.value(s.limit)
        if limit is not None and s.going is None:
            # nothing but an error ends more rounds than the runtime allows, so it comes before the first
            self.must("smelt_rt_rounds", self.argument("rt", "ptr"), limit)
        self.set(s.counter, zero)
        before = outer.block
        head, body, leave = b.block("rounds"), b.block("round"), b.block("exit")
        b.scope = inner = Scope(outer, head, False)
        again = [] if limit is None else [self.compare("slt", self.value(_sym(s.counter)), limit)]
        if s.going is not None:
            again.append(self.compare("ne", self.value(_sym(s.going)), zero))
        test = again[0] if again else b.integer(1, "i1")
        if len(again) == 2:
            test = b.here(f"and i1 {again[0].text}, {again[1].text}", "i1", 0)
        b.effect(f"br i1 {test.text}, label %{body.label}, label %{leave.label}")
        inner.block = body
        self.must("smelt_rt_round", self.argument("rt", "ptr"), self.value(_sym(s.counter)))
        self.arm(s.body)
        self.set(s.counter, self.b.here(f"add i64 {self.value(_sym(s.counter)).text}, {one.text}", "i64", 0))
        b.effect(f"br label %{head.label}")
        # only now: what is invariant in the loop has landed before it
        before.lines.append(f"br label %{head.label}")
        b.scope, outer.block = outer, leave

    def open(self, key: tuple[str, int], address: Value) -> None:
        """An address from the runtime; 0 means it failed and has said why."""
        # -1: the runtime keeps the status of the failure and returns that one to the caller
        self.leave_if(self.compare("eq", address, self.b.integer(0)), self.b.integer(-1, "i32"))
        self.store(self.opened, self.shared.opened[key], address)

    def read(self, s: ReadSymbol) -> None:
        b, rt = self.b, self.argument("rt", "ptr")
        width, signed = b.integer(s.dtype.bytes, "i32"), b.integer(int(s.dtype.category == "int"), "i32")
        self.set(s.symbol, self.call("smelt_rt_read", "i64", rt, self.address(s.at), width, signed))


def _opens(step: HostStep) -> tuple[str, int] | None:
    """The base whose address a step gets from the runtime."""
    if isinstance(step, OpenWeights):
        return "weights", step.unit
    if isinstance(step, OpenOutput):
        return "output", step.output
    return ("arena", step.arena) if isinstance(step, Reserve) else None


def _stretches(steps: Sequence[HostStep]) -> list[list[HostStep]]:
    """Neighbours grouped so that no group counts more than STEPS_PIECE steps, those inside steps included; a
    step that counts more by itself is alone."""
    groups: list[list[HostStep]] = [[]]
    size = 0
    for s in steps:
        more = sum(1 for _ in walk_steps((s,)))
        if groups[-1] and size + more > STEPS_PIECE:
            groups.append([])
            size = 0
        groups[-1].append(s)
        size += more
    return groups


def _arguments(step: HostStep) -> Sequence[object]:
    match step:
        case Launch(_, buffers, dims) | CallLibrary(_, buffers, dims):
            return [*buffers, *dims]
        case OpenOutput(_, shape):
            return shape
        case _:
            return ()


def _short(formula: str) -> str:
    return formula if len(formula) <= LONGEST_FORMULA else f"{formula[:LONGEST_FORMULA]} ..."


def _sym(name: str) -> Dim:
    from smelt.core.dim import sym

    return sym(name)
