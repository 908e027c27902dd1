"""Kernels in, LLVM IR text out: `void name(i64* args, i64 lo, i64 hi, i64 place)` for each top-level part.

args: addresses of inputs, outputs and workspace (core/ir/workspace.py) in order, then the kernel's dims. A
function runs the flat group indices lo .. hi-1 of its statement (outermost group loop slowest); without a
group loop there is one group. place: which of the places in the workspace the groups have. Function i of a
kernel is called name, name.1, name.2 ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from smelt.core.diag import SmeltError
from smelt.core.ir.groups import instances, nest
from smelt.core.ir.idle import needed_at_all
from smelt.core.ir.kernel import (
    Const,
    Kernel,
    Loop,
    LoopNode,
    Stmt,
    Store,
    own_scratch,
    walk,
)
from smelt.core.ir.workspace import MOST_PLACES, place_bytes
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.exprs import BufferMemory
from smelt.targets.llvm.machines import Cpu
from smelt.targets.llvm.sharing import SharedCode
from smelt.targets.llvm.tiles import Tiled

SHARED_CODE = "shared."
"""What the symbol of code for several kernels begins with, before that of the first of them."""


def function_name(kernel: str, part: int) -> str:
    """The symbol of a kernel's part-th top-level statement. The prefix keeps a kernel called 'fmod' apart
    from libm's function."""
    return f"k.{kernel}" if part == 0 else f"k.{kernel}.{part}"


@dataclass(frozen=True)
class IrText:
    """LLVM IR of some functions: definitions in order, and the declarations they need by symbol."""

    functions: tuple[str, ...]
    declared: dict[str, str]

    @property
    def size(self) -> int:
        """Characters of the definitions."""
        return sum(map(len, self.functions))

    def module(self, cpu: Cpu) -> str:
        """The LLVM module of these functions alone."""
        return module_text(self.functions, self.declared, cpu)


def merged(texts: Iterable[IrText]) -> IrText:
    """The functions of all of them, in order."""
    functions: list[str] = []
    declared: dict[str, str] = {}
    for text in texts:
        functions.extend(text.functions)
        declared.update(text.declared)
    return IrText(tuple(functions), declared)


def emit_kernel(kernel: Kernel, cpu: Cpu) -> IrText:
    """The functions of a kernel. Raises as `emit_shared`."""
    return emit_shared(SharedCode(kernel, (kernel.name,), ((),)), cpu)


def emit_shared(group: SharedCode, cpu: Cpu) -> IrText:
    """The functions of kernels of equal code. Raises SmeltError (internal) naming the first one for a tree
    that cannot be emitted."""
    declared: dict[str, str] = {}
    functions: list[str] = []
    kernel = group.kernel
    try:
        for part, s in enumerate(kernel.body):
            functions.extend(Function(kernel, part, s, cpu, declared).text(group))
    except AssertionError as e:
        raise SmeltError(f"kernel '{kernel.name}' cannot be emitted: {e}", kind="internal") from e
    return IrText(tuple(functions), declared)


def emit_module(kernels: Iterable[Kernel], cpu: Cpu) -> str:
    """One LLVM module with all functions of these kernels."""
    return merged(emit_kernel(k, cpu) for k in kernels).module(cpu)


def module_text(functions: Iterable[str], declared: dict[str, str], cpu: Cpu) -> str:
    """Functions and declarations put together, in an order that depends only on their content."""
    head = f'target triple = "{cpu.triple}"\n'
    return "\n".join([head, *(declared[n] for n in sorted(declared)), "", *functions, "!0 = !{}", ""])


class Function(Tiled):
    """One top-level statement. Buffers are noalias pointer arguments of an inner function, so that the
    scheduler may move loads over stores; the exported one only unpacks the arguments."""

    builder = FunctionBuilder

    def __init__(self, kernel: Kernel, part: int, s: Stmt, cpu: Cpu, declared: dict[str, str]) -> None:
        super().__init__(self.builder(declared), cpu, kernel)
        self.name, self.which = function_name(kernel.name, part), part
        self.statement = s
        self.asked = needed_at_all(s, kernel)
        self.invariant_loads = not any(isinstance(x, Store) and x.accumulate == "fma" for x in walk((s,)))
        self._bind_arguments()

    # -- the frame

    def _bind_arguments(self) -> None:
        root = self.b.root
        written = self.written((self.statement,))
        for i, buffer in enumerate(self.kernel.buffers().values()):
            pointer = Value(f"%b{i}", "ptr", 0, root)
            self.memory[buffer.name] = BufferMemory(buffer, pointer, buffer.name not in written)
        for i, d in enumerate(self.kernel.dims):
            if d.low == d.high:
                self.env[d.name] = d.low
                continue
            v = Value(f"%d{i}", "i64", 0, root, None, d.low, d.high)
            self.env[d.name] = self._narrow(v)
        for b in own_scratch(self.statement):
            place = self._narrow(Value("%place", "i64", 0, root, None, 0, MOST_PLACES - 1))
            m = self.memory[b.name]
            apart = self.index.as_value(self.index.mul(place, self.index.value(place_bytes(b), self.env)))
            self.memory[b.name] = replace(m, pointer=self._plus(m.pointer, apart))

    def _narrow(self, v: Value) -> Value:
        if self.index.elem == "i64":
            return v
        made = self.b.pure(f"trunc {v.typed} to {self.index.elem}", self.index.elem, 0, v)
        made.low, made.high = v.low, v.high
        return made

    def _literals(self, group: SharedCode) -> list[int]:
        """Bind the literals that are given, to arguments where the kernels' values differ; the numbers of
        these. What is equal in each kernel is one value, lest code computes it twice with it."""
        made: dict[tuple[str, ...], Value] = {}
        arguments = []
        for number, c in enumerate(group.values[0]):
            texts = group.texts(number)
            if texts not in made:
                made[texts] = v = self._literal(c)
                if len(set(texts)) > 1:
                    made[texts] = Value(f"%c{number}", v.elem, 0, self.b.root)
                    arguments.append(number)
            self.given.append(made[texts])
        return arguments

    def text(self, group: SharedCode) -> list[str]:
        """The inner function, and for each kernel its exported wrapper."""
        literals = self._literals(group)
        self._groups(self.statement)
        buffers = list(self.kernel.buffers())
        params = [f"ptr noalias {'readonly ' if self.memory[n].read_only else ''}%b{i}"
                  for i, n in enumerate(buffers)]  # fmt: skip
        params += [f"i64 %d{i}" for i in range(len(self.kernel.dims))] + ["i64 %lo", "i64 %hi", "i64 %place"]
        params += [f"{self.given[n].typed}" for n in literals]
        inner = f'"{self.name}.body"' if len(group.names) == 1 else f'"{SHARED_CODE}{self.name}.body"'
        body = self.b.text()
        define = f"define internal void @{inner}({', '.join(params)}) nounwind noinline {{\n{body}\n}}\n"
        wrappers = (
            self._wrapper(function_name(name, self.which), inner, buffers, [own[n] for n in literals])
            for name, own in zip(group.names, group.values, strict=True)
        )
        return [define, *wrappers]

    def _wrapper(self, name: str, inner: str, buffers: list[str], given: Sequence[Const]) -> str:
        lines, args = [], []
        word = self.index.elem
        for i in range(len(buffers) + len(self.kernel.dims)):
            lines.append(f"  %p{i} = getelementptr i64, ptr %args, i64 {i}")
            lines.append(f"  %w{i} = load i64, ptr %p{i}, align 8")
            if i >= len(buffers):
                args.append(f"i64 %w{i}")
                continue
            source = f"%w{i}"
            if word == "i32":
                lines.append(f"  %t{i} = trunc i64 %w{i} to i32")
                source = f"%t{i}"
            lines.append(f"  %a{i} = inttoptr {word} {source} to ptr")
            args.append(f"ptr %a{i}")
        literals = (self._literal(c).typed for c in given)
        call = ", ".join([*args, "i64 %lo", "i64 %hi", "i64 %place", *literals])
        head = f'define void @"{name}"(ptr %args, i64 %lo, i64 %hi, i64 %place) nounwind {{'
        return "\n".join([head, *lines, f"  call void @{inner}({call})", "  ret void", "}", ""])

    # -- groups

    def _groups(self, s: Stmt) -> None:
        nodes, body = nest(s, "group")
        if not nodes:
            self._stmts((s,))
            return
        lo = self._narrow(Value("%lo", "i64", 0, self.b.root, None, 0))
        hi = self._narrow(Value("%hi", "i64", 0, self.b.root, None, 0))
        extents = [self.index.number(instances(n), self.env) for n in nodes]
        high = 1
        for n in extents:
            high *= n if isinstance(n, int) else 1
        known = all(isinstance(n, int) for n in extents)
        if known and high == 1:
            self._enter(nodes, [0] * len(nodes), body)
            return
        count = self.index.as_value(self.index.sub(hi, lo))

        def run(i: Value, carried: list[Value]) -> list[Value]:
            flat = self.index.as_value(self.index.add(lo, i))
            flat.low, flat.high = 0, high - 1 if known else None
            self._enter(nodes, self._decode(flat, extents), body)
            return []

        self.b.loop(count, [], run, False)

    def _decode(self, flat: Value, extents: list[int | Value]) -> list[int | Value]:
        """A flat group index as one index for each node, the last fastest."""
        out: list[int | Value] = []
        rest: int | Value = flat
        for n in reversed(extents[1:]):
            out.append(self.index.mod(rest, n))
            rest = self.index.floordiv(rest, n)
        out.append(rest if extents[0] != 1 else 0)
        for v, n in zip(reversed(out), extents, strict=True):
            if isinstance(v, Value) and isinstance(n, int) and v.high is None:
                v.high = n - 1
        return out[::-1]

    def _enter(self, nodes: Sequence[LoopNode], at: Sequence[int | Value], body: tuple[Stmt, ...]) -> None:
        """Bind the group nodes' variables from the outermost on, then run the body."""
        if not nodes:
            self._stmts(body)
            return
        node = nodes[0]

        def inside() -> None:
            self._with_buffers(node.buffers, node.body, lambda: self._enter(nodes[1:], at[1:], body))

        if isinstance(node, Loop):
            with self.bind({node.var: at[0]}):
                inside()
        elif node.mode == "balanced":
            self._balanced_tile(node, at[0], inside)
        else:
            self._greedy_group(node, at[0], inside)
