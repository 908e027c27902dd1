"""Instructions in, LLVM IR text out: SSA with value numbering, each value in the outermost scope possible.

A scope is the function's entry, the body of a loop or the arm of a branch. A pure instruction is put into
the deepest scope of its operands, whose block stays open until the inner scope ends; so whatever is
invariant in a loop lands before it without a pass, and equal instructions are one. Nothing leaves the arm
of a branch unless it leaves a loop as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, TypeVar

OnceA = TypeVar("OnceA", bound=Hashable)
OnceB = TypeVar("OnceB", bound=Hashable)


class BasicBlock:
    """A basic block under construction; phis are printed before lines."""

    __slots__ = ("label", "lines", "phis")

    def __init__(self, label: str) -> None:
        self.label = label
        self.phis: list[str] = []
        self.lines: list[str] = []


class Scope:
    """A region whose block dominates the rest of the region. certain: it runs whenever its parent does.
    arm: it is one of several that exclude each other, not a loop.

    homes[d]: where code in this scope puts a value that needs nothing deeper than depth d. That is the
    scope at depth d, or below it the arms down to the first loop: moving a value out of an arm alone
    saves nothing, and would compute it when another arm is taken.
    """

    __slots__ = ("block", "cache", "certain", "depth", "homes", "made", "parent")

    def __init__(self, parent: Scope | None, block: BasicBlock, certain: bool, arm: bool = False) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.block = block
        self.certain = certain
        self.cache: dict[str, Value] = {}
        self.made: dict[tuple[str, Hashable, Hashable], Value] = {}
        above = () if parent is None else parent.homes
        self.homes: tuple[Scope, ...] = (
            *(self if arm and home is parent else home for home in above),
            self,
        )


class Value:
    """An SSA value or a constant. lanes: 0 for a scalar. const: the Python value of a constant (of each
    lane). low, high: inclusive bounds of an integer where known."""

    __slots__ = ("const", "elem", "high", "lanes", "low", "scope", "text")

    def __init__(
        self,
        text: str,
        elem: str,
        lanes: int,
        scope: Scope,
        const: int | float | None = None,
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        self.text = text
        self.elem = elem
        self.lanes = lanes
        self.scope = scope
        self.const = const
        self.low = low
        self.high = high

    @property
    def type(self) -> str:
        return type_text(self.elem, self.lanes)

    @property
    def typed(self) -> str:
        if self.lanes:
            return f"<{self.lanes} x {self.elem}> {self.text}"
        return f"{self.elem} {self.text}"

    def within(self, scope: Scope) -> Value:
        """The same value, known to be usable from here on in an outer scope."""
        if self.const is not None or self.scope.depth <= scope.depth:
            return self
        return Value(self.text, self.elem, self.lanes, scope, None, self.low, self.high)


BodyEmitter: TypeAlias = Callable[[], list[Value]]
FLOAT_ELEMS = ("half", "float", "double")


def type_text(elem: str, lanes: int) -> str:
    """LLVM's spelling of a scalar or vector type."""
    return f"<{lanes} x {elem}>" if lanes else elem


def float_text(value: float, elem: str) -> str:
    """A float literal, exact for the type (rounded to it first)."""
    if elem == "float":
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    if value != value:
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"


class FunctionBuilder:
    """The body of one function. `declared` collects the declarations that the module needs."""

    def __init__(self, declared: dict[str, str]) -> None:
        self.declared = declared
        self.allocas: list[str] = []
        self.halves: dict[str, Value] = {}  # scalar floats that were widened -> the halves that they were
        self._names = 0
        self._blocks: list[BasicBlock] = []
        self.root = Scope(None, self.block("entry"), True)
        self.scope = self.root

    # -- names, constants

    def block(self, stem: str) -> BasicBlock:
        """A new block, printed after those made before it."""
        made = BasicBlock(f"{stem}{len(self._blocks)}")
        self._blocks.append(made)
        return made

    def name(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def integer(self, value: int, elem: str = "i64", lanes: int = 0) -> Value:
        """An integer constant (of every lane)."""
        text = ("true" if value else "false") if elem == "i1" else str(value)
        if lanes:
            text = f"splat ({elem} {text})"
        return Value(text, elem, lanes, self.root, value, value, value)

    def real(self, value: float, elem: str = "float", lanes: int = 0) -> Value:
        """A float constant (of every lane)."""
        text = float_text(value, elem)
        if lanes:
            text = f"splat ({elem} {text})"
        return Value(text, elem, lanes, self.root, value)

    def const(self, value: int | float, elem: str, lanes: int = 0) -> Value:
        """A constant of either kind."""
        if elem in FLOAT_ELEMS:
            return self.real(value, elem, lanes)
        return self.integer(int(value), elem, lanes)

    def poison(self, elem: str, lanes: int) -> Value:
        return Value("poison", elem, lanes, self.root)

    def null(self) -> Value:
        return Value("null", "ptr", 0, self.root)

    # -- instructions

    def pure(self, rhs: str, elem: str, lanes: int, *operands: Value) -> Value:
        """A value without side effects, computed once, in the deepest scope of its operands."""
        depth = 0
        for o in operands:
            if o.scope.depth > depth:
                depth = o.scope.depth
        home = self.scope.homes[depth]
        look: Scope | None = home
        while look is not None and look.depth >= depth:
            found = look.cache.get(rhs)
            if found is not None:
                return found
            look = look.parent
        made = Value(self.name(), elem, lanes, home)
        home.block.lines.append(f"{made.text} = {rhs}")
        home.cache[rhs] = made
        return made

    def once(self, op: str, a: OnceA, b: OnceB, make: Callable[[OnceA, OnceB], Value]) -> Value:
        """make(a, b), made once in a scope. `pure` would find it again, but needs its text for that."""
        made, key = self.scope.made, (op, a, b)
        found = made.get(key)
        if found is None:
            found = made[key] = make(a, b)
        return found

    def here(self, rhs: str, elem: str, lanes: int, key: str | None = None) -> Value:
        """A value computed in the current scope; with a key, once per scope and those inside it."""
        scope: Scope | None = self.scope
        while key is not None and scope is not None:
            if key in scope.cache:
                return scope.cache[key]
            scope = scope.parent
        return self.at(self.scope, rhs, elem, lanes, key)

    def at(self, scope: Scope, rhs: str, elem: str, lanes: int, key: str | None) -> Value:
        """A value computed in that scope, remembered there under the key."""
        made = Value(self.name(), elem, lanes, scope)
        scope.block.lines.append(f"{made.text} = {rhs}")
        if key is not None:
            scope.cache[key] = made
        return made

    def effect(self, line: str) -> None:
        """A line with a side effect, in the current scope."""
        self.scope.block.lines.append(line)

    def intrinsic(self, name: str, elem: str, lanes: int, *args: Value) -> Value:
        """A pure call of llvm.<name> overloaded on the result's type."""
        suffix = {"float": "f32", "double": "f64", "half": "f16"}.get(elem, elem)
        full = f"llvm.{name}." + (f"v{lanes}{suffix}" if lanes else suffix)
        return self.call(full, elem, lanes, *args)

    def call(self, name: str, elem: str, lanes: int, *args: Value) -> Value:
        """A pure call; the function is declared from its argument types."""
        kind = type_text(elem, lanes)
        self.declare(name, kind, [a.type for a in args], "nounwind memory(none)")
        rhs = f"call {kind} @{name}({', '.join(a.typed for a in args)})"
        return self.pure(rhs, elem, lanes, *args)

    def declare(self, name: str, result: str, args: Sequence[str], attributes: str) -> None:
        self.declared.setdefault(name, f"declare {result} @{name}({', '.join(args)}) {attributes}")

    # -- vectors

    def splat(self, v: Value, lanes: int) -> Value:
        """A scalar in every lane; a vector stays as it is."""
        if not lanes or v.lanes:
            assert v.lanes == lanes, (v.typed, lanes)
            return v
        if v.const is not None:
            return self.const(v.const, v.elem, lanes)
        if v.text in self.halves:
            # a conversion of a whole vector costs what one of a scalar does, and waits for no older value
            many = self.splat(self.halves[v.text], lanes)
            return self.pure(f"fpext {many.typed} to {type_text(v.elem, lanes)}", v.elem, lanes, many)
        kind = type_text(v.elem, lanes)
        one = self.pure(f"insertelement {kind} poison, {v.typed}, i32 0", v.elem, lanes, v)
        rhs = f"shufflevector {one.typed}, {kind} poison, <{lanes} x i32> zeroinitializer"
        return self.pure(rhs, v.elem, lanes, one)

    def lane(self, v: Value, i: int) -> Value:
        """One lane as a scalar."""
        if not v.lanes:
            return v
        if v.const is not None:
            return self.const(v.const, v.elem)
        return self.pure(f"extractelement {v.typed}, i32 {i}", v.elem, 0, v)

    def vector(self, parts: Sequence[Value]) -> Value:
        """Scalars side by side."""
        elem, lanes = parts[0].elem, len(parts)
        if all(p is parts[0] for p in parts):
            return self.splat(parts[0], lanes)
        v = self.poison(elem, lanes)
        for i, p in enumerate(parts):
            v = self.pure(f"insertelement {v.typed}, {p.typed}, i32 {i}", elem, lanes, v, p)
        return v

    def with_lane(self, v: Value, part: Value, i: int) -> Value:
        """v with one lane replaced."""
        rhs = f"insertelement {v.typed}, {part.typed}, i32 {i}"
        return self.pure(rhs, v.elem, v.lanes, v, part)

    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        """Lanes picked from a and b laid side by side."""
        other = f"{b.typed}" if b is not None else f"{a.type} poison"
        mask = ", ".join(f"i32 {p}" for p in picks)
        rhs = f"shufflevector {a.typed}, {other}, <{len(picks)} x i32> <{mask}>"
        operands = (a,) if b is None else (a, b)
        return self.pure(rhs, a.elem, len(picks), *operands)

    # -- control

    def loop(
        self,
        count: Value,
        carried: list[Value],
        body: Callable[[Value, list[Value]], list[Value]],
        nonzero: bool,
    ) -> list[Value]:
        """body(i, carried) -> carried for i in 0 .. count-1; the values after the last run.

        nonzero: count is at least 1, so the body runs before the first test.
        """
        if count.const == 0:
            return carried
        if count.const == 1:
            return body(self.integer(0, count.elem), carried)
        outer, pre, header = self.scope, self.scope.block, self.block("loop")
        skip = None if nonzero else self.pure(f"icmp sgt {count.typed}, 0", "i1", 0, count)
        inner = Scope(outer, header, nonzero)
        high = None if count.high is None else max(count.high - 1, 0)
        i = Value(self.name(), count.elem, 0, inner, None, 0, high)
        phis = [Value(self.name(), v.elem, v.lanes, inner) for v in carried]
        self.scope = inner
        results = body(i, phis)
        latch = inner.block
        following, again = self.name(), self.name()
        latch.lines.append(f"{following} = add nuw nsw {i.typed}, 1")
        latch.lines.append(f"{again} = icmp slt {i.elem} {following}, {count.text}")
        edges = f"[ {{}}, %{pre.label} ], [ {{}}, %{latch.label} ]"
        header.phis.append(f"{i.text} = phi {i.type} " + edges.format("0", following))
        for phi, first, last in zip(phis, carried, results, strict=True):
            header.phis.append(f"{phi.text} = phi {phi.type} " + edges.format(first.text, last.text))
        leave = self.block("exit")
        latch.lines.append(f"br i1 {again}, label %{header.label}, label %{leave.label}")
        self.scope, outer.block = outer, leave
        if skip is None:
            pre.lines.append(f"br label %{header.label}")
            return [v.within(outer) for v in results]
        pre.lines.append(f"br i1 {skip.text}, label %{header.label}, label %{leave.label}")
        return [
            self._phi(leave, outer, [(pre, a), (latch, b)])
            for a, b in zip(carried, results, strict=True)
        ]

    def branch(self, condition: Value, then: BodyEmitter, other: BodyEmitter) -> list[Value]:
        """The values of one of two arms."""
        if condition.const is not None:
            return then() if condition.const else other()
        return self._arms(
            lambda to: f"br i1 {condition.text}, label %{to[0].label}, label %{to[1].label}",
            [then, other],
        )

    def switch(self, on: Value, arms: Sequence[tuple[int, BodyEmitter]]) -> list[Value]:
        """The values of the arm whose number `on` is; it must be one of them."""
        if len(arms) == 1:
            return arms[0][1]()

        def terminator(to: list[BasicBlock]) -> str:
            cases = " ".join(
                f"{on.elem} {n}, label %{b.label}" for (n, _), b in zip(arms[:-1], to, strict=False)
            )
            return f"switch {on.typed}, label %{to[-1].label} [ {cases} ]"

        return self._arms(terminator, [body for _, body in arms])

    def _arms(
        self, terminator: Callable[[list[BasicBlock]], str], bodies: Sequence[BodyEmitter]
    ) -> list[Value]:
        outer, pre = self.scope, self.scope.block
        heads: list[BasicBlock] = []
        ends: list[tuple[BasicBlock, list[Value]]] = []
        for body in bodies:
            head = self.block("arm")
            heads.append(head)
            self.scope = Scope(outer, head, False, arm=True)
            results = body()
            ends.append((self.scope.block, results))
        join = self.block("join")
        for end, _ in ends:
            end.lines.append(f"br label %{join.label}")
        pre.lines.append(terminator(heads))
        self.scope, outer.block = outer, join
        return [
            self._phi(join, outer, [(end, results[i]) for end, results in ends])
            for i in range(len(ends[0][1]))
        ]

    def _phi(self, block: BasicBlock, scope: Scope, sources: list[tuple[BasicBlock, Value]]) -> Value:
        first = sources[0][1]
        if all(v.text == first.text for _, v in sources):
            return first.within(scope)
        made = Value(self.name(), first.elem, first.lanes, scope)
        edges = ", ".join(f"[ {v.text}, %{b.label} ]" for b, v in sources)
        block.phis.append(f"{made.text} = phi {made.type} {edges}")
        return made

    # -- text

    def text(self, last: str = "ret void") -> str:
        """The blocks of the finished function, which ends with the line `last`."""
        assert self.scope is self.root, "a scope is still open"
        self.root.block.lines.append(last)
        out: list[str] = []
        for n, block in enumerate(self._blocks):
            out.append(f"{block.label}:")
            if n == 0:
                out.extend("  " + a for a in self.allocas)
            out.extend("  " + p for p in block.phis)
            out.extend("  " + line for line in block.lines)
        return "\n".join(out)
