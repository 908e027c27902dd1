"""Kernels in, SPIR-V modules out: one for each top-level statement, one workgroup per group.

Parameters are words: the byte offset of each buffer, the dims that are used, the number of groups; in push
constants where they fit, else in a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from smelt.core.dim import Dim, product
from smelt.core.ir.analysis.scope import accesses, written
from smelt.core.ir.kernel import Block, Kernel, Stmt, walk
from smelt.core.ir.rewrite import free_symbols, local_buffers
from smelt.core.machine import Machine
from smelt.targets.grid.lane_trees import lane_tree
from smelt.targets.grid.parts import each_part, mentioned
from smelt.targets.vulkan.dialect import Dialect, PartParameter, Place
from smelt.targets.vulkan.features import KERNEL_FORMS, SMALL_FORM, TOGETHER
from smelt.targets.vulkan.index import MOST
from smelt.targets.vulkan.machine import MACHINE
from smelt.targets.vulkan.spirv import (
    ALIASED,
    BINDING,
    COHERENT,
    DESCRIPTOR_SET,
    NON_WRITABLE,
    PUSH_CONSTANT,
    STORAGE_BUFFER,
    instruction,
)

PUSHED_WORDS = 32
"""128 bytes of push constants are what every device has."""


@dataclass(frozen=True, slots=True)
class Part:
    """One module and how it is launched. lanes: invocations of a group; elastic: any number of them does.
    shared_bytes: memory of a group. features: what the device must have.
    better: other forms of it, each for devices with more features, to be taken in this order where these are.
    bindings: (buffer, whether it is written) at each binding; the parameters' buffer, if any, is the next
    one. reach: no more than 2^31 - 1, for the launch's dims, if numbers of 32 bits are to be enough. rounds:
    of all loops of an invocation, in 1 / ROUND. sizes: bytes of each bound buffer. These are polynomials in
    the sizes of the kernel's dims."""

    name: str
    words: tuple[int, ...]
    lanes: int
    elastic: bool
    features: frozenset[str]
    bindings: tuple[tuple[int, bool], ...]
    parameters: tuple[PartParameter, ...]
    reach: Dim
    rounds: Dim
    sizes: tuple[Dim, ...]
    dims: tuple[str, ...]
    shared_bytes: int
    better: tuple[Part, ...] = ()

    @property
    def pushed(self) -> bool:
        """Whether the parameters are push constants."""
        return len(self.parameters) <= PUSHED_WORDS


def emit_parts(kernels: Sequence[Kernel], machine: Machine = MACHINE) -> dict[tuple[str, int], Part]:
    """All top-level statements of these kernels; raises as `each_part` does."""
    return each_part(kernels, lambda k, part, name: _forms(k, k.body[part], machine, name))


def _forms(kernel: Kernel, s: Stmt, machine: Machine, name: str) -> Part:
    """A statement for every device, and for those that have what it would use."""
    plain = _part(Dialect(kernel, s, machine), name)
    of_use = _of_use(kernel, s)
    better: dict[frozenset[str], Part] = {}
    for features in dict.fromkeys(form & of_use for form in KERNEL_FORMS):
        if not features:
            continue
        made = _part(Dialect(kernel, s, machine, features), name)
        if made.features != plain.features:
            better.setdefault(made.features, made)
    return replace(plain, better=tuple(better.values()))


def _of_use(kernel: Kernel, s: Stmt) -> frozenset[str]:
    """The features that may change a statement's module: those of small numbers where memory has elements
    that are smaller than a word, those of subgroups where lanes reduce."""
    used = mentioned(s)
    buffers = (b for b in kernel.buffers().values() if b.name in used)
    narrow = any(b.dtype.bits < 32 for b in (*buffers, *local_buffers((s,))))
    trees = any(isinstance(x, Block) and lane_tree(x) is not None for x in walk((s,)))
    return (SMALL_FORM if narrow else frozenset()) | (TOGETHER if trees else frozenset())


def _part(f: Dialect, name: str) -> Part:
    """The whole module."""
    c, m = f.code, f.code.m
    bindings = tuple(_bind_arguments(f))
    f.groups()
    c.do("Return")
    c.head = _parameter_loads(f, len(bindings)) + c.head
    m.workgroup_size(f.width.id)
    function = m.fresh()
    m.add("main", c.words(function, "v"), function)
    words = m.words(name, function, f.lanes, [m.built_in(which) for which in f.built_in])
    words[3] = m.fresh()
    buffers = list(f.kernel.buffers().values())
    sizes = (f.size(product(buffers[i].shape) * buffers[i].dtype.bytes) for i, _ in bindings)
    return Part(
        name, tuple(words), f.lanes, f.elastic, m.features, bindings, tuple(f.parameters),
        f.limits.polynomial(), f.rounds, tuple(sizes), tuple(d.name for d in f.kernel.dims), f.shared_bytes,
    )  # fmt: skip


def _bind_arguments(f: Dialect) -> list[tuple[int, bool]]:
    """(buffer, whether it is written) at each binding; expressions can name buffers and dims from here on."""
    stores, used = written((f.statement,)), mentioned(f.statement)
    loads = {a.buffer for a in accesses((f.statement,)) if not a.is_store or a.accumulate}
    m = f.code.m
    bindings: list[tuple[int, bool]] = []
    for i, b in enumerate(f.kernel.buffers().values()):
        if b.name not in used:
            continue
        kind = f.stored_kind(b.dtype)
        memory = m.global_variable(STORAGE_BUFFER, m.block(STORAGE_BUFFER, None, kind))
        m.decorate(memory, DESCRIPTOR_SET, 0)
        m.decorate(memory, BINDING, len(bindings))
        m.decorate(memory, ALIASED)  # outputs may take the place of inputs
        if b.name not in stores:
            m.decorate(memory, NON_WRITABLE)
        elif b.name in loads and f.lanes > 1:
            m.decorate(memory, COHERENT)
        bindings.append((i, b.name in stores))
        f.places[b.name] = Place(buffer=b, memory=memory, kind=kind, offset=f.parameter("buffer", i))
    shapes = {n for b in f.places.values() for d in b.buffer.shape for n in d.symbols}
    symbols = free_symbols((f.statement,)) | shapes
    for j, d in enumerate(f.kernel.dims):
        if d.low == d.high:
            f.env[d.name] = d.low
        elif d.name in symbols and max(-d.low, d.high or 0) > MOST:
            halves = f.parameter("low", j), f.parameter("high", j)
            f.env[d.name] = f.code.at_head("CompositeConstruct", "w", *(h.id for h in halves))
        elif d.name in symbols:
            f.env[d.name] = f.parameter("dim", j)
    return bindings


def _parameter_loads(f: Dialect, binding: int) -> list[int]:
    """What gives the parameters their values, at the head of the function."""
    m, count, words = f.code.m, len(f.parameters), list[int]()
    if not count:
        return words
    if count <= PUSHED_WORDS:
        storage = PUSH_CONSTANT
        block = m.global_variable(storage, m.block(storage, count))
    else:
        storage = STORAGE_BUFFER
        block = m.global_variable(storage, m.block(storage, None))
        m.decorate(block, DESCRIPTOR_SET, 0)
        m.decorate(block, BINDING, binding)
        m.decorate(block, NON_WRITABLE)
    pointer = m.pointer(storage, m.type("u"))
    for i, v in enumerate(f.parameters.values()):
        at = m.fresh()
        indices = (m.constant("u", 0), m.constant("u", i))
        words += instruction("AccessChain", pointer, at, block, *indices)
        words += instruction("Load", m.type("u"), v.id, at)
    return words
