"""Operations on typed values in, the instructions of one function out; equal pure operations become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from smelt.targets.vulkan.spirv import FUNCTION, GLSL, NO_CONTRACTION, SpirvModule, instruction

Number = int | float
DONT_UNROLL = 2

LONG_BODY = 256
"""Words of a loop's body above which a driver is asked not to write its passes out: they are work enough for
what a pass costs besides, and drivers take long for the copies (benchmarks/results/vulkan.md)."""


@dataclass(frozen=True, slots=True, eq=False)
class V:
    """A value: its id and kind, and the code that it belongs to. Numbers beside it become constants."""

    code: Code
    id: int
    kind: str

    def __add__(self, o: V | Number) -> V:
        return self.code.binary("add", self, o)

    def __radd__(self, o: Number) -> V:
        return self.code.binary("add", self.like(o), self)

    def __sub__(self, o: V | Number) -> V:
        return self.code.binary("sub", self, o)

    def __rsub__(self, o: Number) -> V:
        return self.code.binary("sub", self.like(o), self)

    def __mul__(self, o: V | Number) -> V:
        return self.code.binary("mul", self, o)

    def __rmul__(self, o: Number) -> V:
        return self.code.binary("mul", self.like(o), self)

    def __truediv__(self, o: V | Number) -> V:
        return self.code.binary("div", self, o)

    def __rtruediv__(self, o: Number) -> V:
        return self.code.binary("div", self.like(o), self)

    def __and__(self, o: V | Number) -> V:
        return self.code.binary("and", self, o)

    def __or__(self, o: V | Number) -> V:
        return self.code.binary("or", self, o)

    def __xor__(self, o: V | Number) -> V:
        return self.code.binary("xor", self, o)

    def __lshift__(self, o: V | Number) -> V:
        return self.code.binary("shl", self, o)

    def __rshift__(self, o: V | Number) -> V:
        """Zeros come in from the left."""
        return self.code.binary("shr", self, o)

    def __neg__(self) -> V:
        return self.code.pure("FNegate" if self.kind in "fd" else "SNegate", self.kind, self)

    def __invert__(self) -> V:
        return self.code.pure("LogicalNot" if self.kind == "b" else "Not", self.kind, self)

    def __lt__(self, o: V | Number) -> V:
        """Of 'u' as signed numbers, as all comparisons by operators are; below() has those without sign."""
        return self.code.compare("lt", self, o)

    def __le__(self, o: V | Number) -> V:
        return self.code.compare("le", self, o)

    def __gt__(self, o: V | Number) -> V:
        return self.code.compare("gt", self, o)

    def __ge__(self, o: V | Number) -> V:
        return self.code.compare("ge", self, o)

    def equals(self, o: V | Number) -> V:
        return self.code.compare("eq", self, o)

    def differs(self, o: V | Number) -> V:
        return self.code.compare("ne", self, o)

    def below(self, o: V | Number) -> V:
        """self < o of two numbers without sign."""
        return self.code.pure("ULessThan", "b", self, self.like(o))

    def like(self, o: V | Number) -> V:
        """A number as a constant of this kind."""
        return o if isinstance(o, V) else self.code.constant(self.kind, o)

    @property
    def low(self) -> V:
        return self.code.extract(self, 0)

    @property
    def high(self) -> V:
        return self.code.extract(self, 1)

    def bits(self) -> V:
        """A float as 'u', or as 'w'."""
        return self.code.pure("Bitcast", "u" if self.kind == "f" else "w", self)

    def as_float(self) -> V:
        """The bits of 'u' as a float, those of 'w' as a double."""
        return self.code.pure("Bitcast", "f" if self.kind == "u" else "d", self)


BINARY_OPCODES = {
    "add": ("IAdd", "FAdd"), "sub": ("ISub", "FSub"), "mul": ("IMul", "FMul"), "div": ("", "FDiv"),
    "and": ("BitwiseAnd", ""), "or": ("BitwiseOr", ""), "xor": ("BitwiseXor", ""),
    "shl": ("ShiftLeftLogical", ""), "shr": ("ShiftRightLogical", ""),
}  # fmt: skip
LOGIC = {"and": "LogicalAnd", "or": "LogicalOr", "xor": "LogicalNotEqual"}
COMPARE = {
    "lt": ("SLessThan", "FOrdLessThan"), "le": ("SLessThanEqual", "FOrdLessThanEqual"),
    "gt": ("SGreaterThan", "FOrdGreaterThan"), "ge": ("SGreaterThanEqual", "FOrdGreaterThanEqual"),
    "eq": ("IEqual", "FOrdEqual"), "ne": ("INotEqual", "FUnordNotEqual"),
}  # fmt: skip
BOOL = {"eq": "LogicalEqual", "ne": "LogicalNotEqual"}
UNCONTRACTED = frozenset(("FAdd", "FSub", "FMul", "FDiv", "FNegate"))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the function."""

    code: Code
    id: int
    kind: str

    def get(self) -> V:
        return self.code.impure("Load", self.kind, self.id)

    def set(self, v: V | Number) -> None:
        value = v if isinstance(v, V) else self.code.constant(self.kind, v)
        self.code.do("Store", self.id, value.id)


class Code:
    """The body of one function. Frames follow the blocks, so that no value is used where it may not be."""

    def __init__(self, module: SpirvModule) -> None:
        self.m = module
        self.variables: list[int] = []
        self.head: list[int] = []
        self.body: list[int] = []
        self.label = module.fresh()
        self._first = self.label
        self._frames: list[dict[tuple[object, ...], V]] = [{}]
        self.rounds = 0
        self.spend: Callable[[int], None] = self._count_rounds

    def _count_rounds(self, rounds: int) -> None:
        """So many rounds of loops, at most, are in what is written here: of a function, in all of it."""
        self.rounds += rounds

    # -- instructions

    def do(self, op: str, *operands: int) -> None:
        """An instruction without a result."""
        self.body += instruction(op, *operands)

    def impure(self, op: str, kind: str, *operands: int) -> V:
        """One whose result may be another each time."""
        result = self.m.fresh()
        self.body += instruction(op, self.m.type(kind), result, *operands)
        return V(self, result, kind)

    def pure(self, op: str, kind: str, *operands: V | int, contract: bool = False) -> V:
        """One whose result depends on its operands alone. contract: products may be fused with sums."""
        ids = tuple(o.id if isinstance(o, V) else o for o in operands)
        key = (op, kind, *ids, contract)
        for frame in reversed(self._frames):
            if key in frame:
                return frame[key]
        found = self._frames[-1][key] = self.impure(op, kind, *ids)
        if op in UNCONTRACTED and not contract:
            self.m.decorate(found.id, NO_CONTRACTION)
        return found

    def glsl(self, name: str, kind: str, *operands: V) -> V:
        """A function of GLSL.std.450."""
        return self.pure("ExtInst", kind, self.m.glsl, GLSL[name], *operands)

    def constant(self, kind: str, value: Number) -> V:
        return V(self, self.m.constant(kind, value), kind)

    def u(self, value: int) -> V:
        return self.constant("u", value)

    def at_head(self, op: str, kind: str, *operands: int) -> V:
        """An instruction at the function's start, where everything sees it."""
        result = self.m.fresh()
        self.head += instruction(op, self.m.type(kind), result, *operands)
        return V(self, result, kind)

    def chain(self, storage: int, kind: str, base: int, *indices: V) -> int:
        """The pointer to an element."""
        pointer = self.m.pointer(storage, self.m.type(kind))
        key = ("AccessChain", pointer, base, *(i.id for i in indices))
        for frame in reversed(self._frames):
            if key in frame:
                return frame[key].id
        result = self.m.fresh()
        self.body += instruction("AccessChain", pointer, result, base, *(i.id for i in indices))
        self._frames[-1][key] = V(self, result, kind)
        return result

    # -- operators

    def binary(self, fn: str, a: V, b: V | Number) -> V:
        b = a.like(b)
        assert a.kind == b.kind, (fn, a.kind, b.kind)
        if a.kind == "b":
            return self.pure(LOGIC[fn], "b", a, b)
        return self.pure(BINARY_OPCODES[fn][a.kind in "fd"], a.kind, a, b)

    def compare(self, fn: str, a: V, b: V | Number) -> V:
        b = a.like(b)
        assert a.kind == b.kind, (fn, a.kind, b.kind)
        op = BOOL[fn] if a.kind == "b" else COMPARE[fn][a.kind in "fd"]
        return self.pure(op, "b", a, b)

    def select(self, condition: V, a: V | Number, b: V | Number) -> V:
        """a where the condition holds, else b; one of them at least is a value."""
        like = a if isinstance(a, V) else b
        assert isinstance(like, V)
        a, b = like.like(a), like.like(b)
        assert a.kind == b.kind, (a.kind, b.kind)
        if a.kind == "w":
            condition = self.pure("CompositeConstruct", "c", condition, condition)
        return self.pure("Select", a.kind, condition, a, b)

    def wide(self, low: V, high: V) -> V:
        """Two halves as 64 bits."""
        return self.pure("CompositeConstruct", "w", low, high)

    def extract(self, v: V, index: int) -> V:
        return self.pure("CompositeExtract", "u", v, index)

    # -- blocks

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What is computed inside is not known afterwards."""
        self._frames.append({})
        yield
        self._frames.pop()

    def begin(self, label: int) -> None:
        self.do("Label", label)
        self.label = label

    @contextmanager
    def when(self, condition: V) -> Iterator[None]:
        """What is written inside happens where the condition holds."""
        inside, after = self.m.fresh(), self.m.fresh()
        self.do("SelectionMerge", after, 0)
        self.do("BranchConditional", condition.id, inside, after)
        self.begin(inside)
        with self.frame():
            yield
        self.do("Branch", after)
        self.begin(after)

    def choose(self, condition: V, a: Callable[[], V], b: Callable[[], V]) -> V:
        """a() where the condition holds, else b(); only one is computed."""
        labels = [self.m.fresh() for _ in range(3)]
        self.do("SelectionMerge", labels[2], 0)
        self.do("BranchConditional", condition.id, labels[0], labels[1])
        operands: list[int] = []
        kind = ""
        for label, arm in zip(labels, (a, b), strict=False):
            self.begin(label)
            with self.frame():
                value = arm()
            operands += [value.id, self.label]
            kind = value.kind
            self.do("Branch", labels[2])
        self.begin(labels[2])
        return self.impure("Phi", kind, *operands)

    @contextmanager
    def loop(
        self, condition: Callable[[], V], step: Callable[[], None], hint: int = 0, rounds: int = 0
    ) -> Iterator[None]:
        """While the condition holds: what is inside, then the step. hint: DONT_UNROLL or 0, which leaves it
        to the driver unless what is inside is long. rounds: no more than so many; 0: somebody else counts
        them."""
        self.spend(rounds)
        header, test, inside, again, after = (self.m.fresh() for _ in range(5))
        self.do("Branch", header)
        self.begin(header)
        self.do("LoopMerge", after, again, hint)
        merge = len(self.body)
        self.do("Branch", test)
        self.begin(test)
        with self.frame():
            self.do("BranchConditional", condition().id, inside, after)
            self.begin(inside)
            yield
            self.do("Branch", again)
            self.begin(again)
            step()
            self.do("Branch", header)
        if len(self.body) - merge > LONG_BODY:
            self.body[merge - 1] = DONT_UNROLL
        self.begin(after)

    @contextmanager
    def count(
        self, first: V | int, limit: V, step: V | int = 1, hint: int = 0, rounds: int = 0
    ) -> Iterator[V]:
        """A loop over first, first + step, .. below the limit."""
        at = self.variable("u", first)
        with self.loop(lambda: at.get() < limit, lambda: at.set(at.get() + step), hint, rounds):
            yield at.get()

    def variable(self, kind: str, first: V | Number | None = None) -> Variable:
        """A variable, which is given its first value here."""
        made = Variable(self, self.storage(self.m.type(kind)), kind)
        if first is not None:
            made.set(first)
        return made

    def storage(self, of: int) -> int:
        """Memory of the function for a type."""
        result = self.m.fresh()
        self.variables += instruction("Variable", self.m.pointer(FUNCTION, of), result, FUNCTION)
        return result

    # -- functions

    def call(self, name: str, kind: str, build: Callable[..., V], *args: V) -> V:
        """A call of function `name`, which build(*parameters) writes where the module does not have it."""
        name = f"{name}:{''.join(a.kind for a in args)}"
        function = self.m.named(name)
        if function is None:
            function = _function(self.m, name, kind, build, [a.kind for a in args])
        self.spend(self.m.rounds[name])
        return self.pure("FunctionCall", kind, function, *args)

    def words(self, function: int, kind: str, parameters: Sequence[V] = ()) -> list[int]:
        """The whole function, which ends with a Return that stands in its body."""
        m = self.m
        types = [m.type(p.kind) for p in parameters]
        kind_of = m.declare("TypeFunction", m.type(kind), *types)
        out = instruction("Function", m.type(kind), function, 0, kind_of)
        for p, t in zip(parameters, types, strict=True):
            out += instruction("FunctionParameter", t, p.id)
        out += instruction("Label", self._first)
        return [*out, *self.variables, *self.head, *self.body, *instruction("FunctionEnd")]


def _function(m: SpirvModule, name: str, kind: str, build: Callable[..., V], kinds: Sequence[str]) -> int:
    code = Code(m)
    parameters = [V(code, m.fresh(), k) for k in kinds]
    result = build(*parameters)
    code.do("ReturnValue", result.id)
    m.rounds[name] = code.rounds
    function = m.fresh()
    return m.add(name, code.words(function, kind, parameters), function)
