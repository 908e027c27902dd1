"""A node whose result's rank a run decides, and its readers, in; both cases as branches of an `if` out.

Every type has a rank, so a value whose rank a run decides has no type. Its readers are translated once per
case (tail duplication), up to where every value that is read later has one rank again:

    y = Squeeze(x); z = Relu(y); s = ReduceSum(z)
    -->  s = if x.shape[0] == 1 { ReduceSum(Relu(reshape x)) } else { ReduceSum(Relu(x)) }

A case in which a node could never run (it names an axis that its input lacks) is excluded: the other one is
taken, with a check at run time. So is a case that ends in another rank than the file declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from onnx import NodeProto

from smelt.core.diag import Problem, SmeltError
from smelt.core.ir.graph import Ref
from smelt.importer import known as kn
from smelt.importer.branches import (
    TranslatedBranch,
    assume,
    by_branch,
    declared,
    never_runs,
    one_rank,
)
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Undecided
from smelt.importer.load import uses

MOST_TWICE = 256
"""Most nodes of a file that are translated for both cases because of one of them."""
MOST_REPEATED = 2_000
"""Most repeated translations of nodes in one model."""
MOST_DEPTH = 4
"""Deepest nesting of such decisions."""


class Runs(Protocol):
    """What translates nodes: the importer's Translator."""

    problems: dict[tuple[str | None, str], Problem]

    def run(self, b: GraphBuilder, nodes: Sequence[NodeProto], scope: Any, outs: Sequence[str]) -> None:
        """Translate nodes in order; `outs` are names that are read after them."""
        ...


@dataclass
class Tried:
    """The attempts so far in one model: how many nodes were translated again, the depth of nesting, how often
    a case was excluded, and the nodes for which both cases failed."""

    nodes: int = 0
    depth: int = 0
    ruled: int = 0
    firm: set[str] = field(default_factory=set)

    def exhausted(self) -> bool:
        """Whether the limits allow no further attempt."""
        return self.nodes > MOST_REPEATED or self.depth >= MOST_DEPTH or self.ruled > MOST_REPEATED


@dataclass(frozen=True)
class _Way:
    """One case, translated. impossible: the nodes could never run in it. open: another node in it has two
    cases, which end in different ranks."""

    arm: TranslatedBranch | None
    impossible: bool
    open: bool


@dataclass
class Both:
    """The translation of nodes[0], whose rank is undecided for the reason `why`, with the nodes after it.

    outs: names that are read after all nodes. here: whether nodes[0] itself is undecided, not a node inside
    it.
    before: the symbols declared before. along: later nodes that are translated for both cases too, because
    they have two cases of their own.
    """

    runs: Runs
    builder: GraphBuilder
    nodes: list[NodeProto]
    scope: Any
    outs: Sequence[str]
    why: Undecided
    here: bool
    tried: Tried
    before: frozenset[str] = frozenset()
    along: set[int] = field(default_factory=set)

    def translate(self) -> list[NodeProto]:
        """Decide nodes[0], or translate it and its readers for both cases; the nodes that are left to
        translate. Raises `why` where neither is possible."""
        if self.tried.exhausted() or not self._visible():
            raise self.why
        self.before = declared(self.builder.engine)
        readers, size = self._readers(), 1
        while True:
            while not self._prepare(readers[:size]):
                readers = self._readers()
            names = self._live(readers[:size])
            then, other = (self._way(readers[:size], names, way) for way in (True, False))
            if then.impossible or other.impossible:
                self._rule_out(then.impossible, "way on which all nodes can run")
                return self.nodes
            if then.arm is not None and other.arm is not None:
                enough = self._enough(readers, size, then.arm, other.arm)
                if enough is not None and self._joined(readers[:enough], enough == size, then.arm, other.arm):
                    return self.nodes
                if size == len(readers) and self._declared(names, then.arm, other.arm):
                    return self.nodes
            elif not (then.open or other.open):
                raise self.why
            if size in (len(readers), MOST_TWICE) or self.tried.exhausted():
                raise self.why
            size = min(2 * size, MOST_TWICE, len(readers))

    # ------------------------------------------------------------ which nodes

    def _readers(self) -> list[NodeProto]:
        """The node, those in `along`, and all later nodes that read a result of one of these."""
        names: set[str] = set()
        found: list[NodeProto] = []
        for n in self.nodes:
            if not found or id(n) in self.along or any(u in names for u in uses(n)):
                found.append(n)
                names.update(o for o in n.output if o)
        return found

    def _live(self, chosen_: Sequence[NodeProto]) -> list[str]:
        """The names of results of these nodes that other nodes read."""
        own = {id(n) for n in chosen_}
        read = {u for n in self.nodes if id(n) not in own for u in uses(n)} | set(self.outs)
        return list(dict.fromkeys(o for n in chosen_ for o in n.output if o and o in read))

    def _prepare(self, chosen_: Sequence[NodeProto]) -> bool:
        """Translate the nodes whose results these read. False where one of them has two cases of its own; it
        is added to `along`."""
        own = {id(n) for n in chosen_}
        wanted = {u for n in chosen_ for u in uses(n)}
        needed: list[NodeProto] = []
        for n in reversed(self.nodes):
            if id(n) not in own and not wanted.isdisjoint(n.output):
                needed.append(n)
                wanted.update(uses(n))
        for n in reversed(needed):
            try:
                self.runs.run(self.builder, [n], self.scope, [o for o in n.output if o])
            except Undecided:
                self.along.add(id(n))
                return False
            self.nodes = [m for m in self.nodes if m is not n]
        return True

    def _visible(self) -> bool:
        """Whether the deciding condition is defined before the node."""
        if self.why.equal is None:
            return self.why.condition is not None and self.here
        wanted = {s for d in self.why.equal for s in d.symbols}
        b: GraphBuilder | None = self.builder
        while b is not None and wanted:
            wanted = wanted.difference(*(v.type.symbols for v in b.inputs), *(n.settled for n in b.nodes))
            b = b.parent
        return not wanted

    # ------------------------------------------------------------ ways

    def _suppose(self, region: GraphBuilder, way: bool) -> None:
        """Assume the case's condition in its region."""
        if self.why.condition is not None and self.here:
            shape = [d.const for d in region.type_of(self.why.condition).shape if d.is_const]
            region.suppose(self.why.condition, kn.full(shape, [way]))
        if self.why.equal is None:
            return
        a, b = self.why.equal
        if way:
            region.engine.same("sizes that are equal on this way", a, b)
        else:
            region.engine.differ(a, b)
        region.flush_checks()

    def _way(self, nodes: Sequence[NodeProto], names: Sequence[str], way: bool) -> _Way:
        """The nodes, translated for one case."""
        engine, before = self.builder.engine, dict(self.runs.problems)
        where = (engine.node, engine.op)
        region = GraphBuilder(self.builder.store, self.builder)
        region.declared = dict(self.builder.declared)
        failed = impossible = open_ = False
        self.tried.nodes += len(nodes)
        self.tried.depth += 1
        try:
            with engine.conditional():
                self._suppose(region, way)
                self.runs.run(region, nodes, self.scope, names)
        except Undecided:
            failed = open_ = True
        except SmeltError as e:
            failed, impossible = True, e.kind == "invalid"
        finally:
            self.tried.depth -= 1
            engine.take_checks()
            engine.at(*where)
        new = self.runs.problems.keys() - before.keys()
        # of malformed nodes the way that is left tells, which has the same ones
        impossible = impossible or never_runs(self.runs.problems, before)
        self.runs.problems.clear()
        self.runs.problems.update(before)
        store, refs = self.builder.store, [region.names.get(o, "") for o in names]
        if failed or new or not all(r in store.types or r in store.compounds for r in refs):
            return _Way(None, impossible, open_)
        return _Way(TranslatedBranch(region, refs), False, False)

    def _rule_out(self, then: bool, left: str) -> None:
        """Translate for the case that is left, which the text names, with a run-time check of its
        condition."""
        self.tried.ruled += 1
        b, why = self.builder, self.why
        b.engine.at(why.node or "", why.op)
        assume(b, self._flag, why.equal, not then, left)
        if why.condition is not None and self.here:
            shape = [d.const for d in b.type_of(why.condition).shape if d.is_const]
            b.suppose(why.condition, kn.full(shape, [not then]))
        b.flush_checks()

    def _flag(self) -> Ref:
        """The bool of rank 0 that decides."""
        b = self.builder
        if self.why.condition is not None and self.here:
            return b.reshape(self.why.condition, ())
        assert self.why.equal is not None
        x, y = (b.from_dims([d], []) for d in self.why.equal)
        return b.emit("equal", [x, y])

    # ------------------------------------------------------------ after both

    def _enough(
        self, readers: Sequence[NodeProto], size: int, then: TranslatedBranch, other: TranslatedBranch
    ) -> int | None:
        """The smallest number of readers, more than half of `size`, after which every read value has one
        rank."""
        for n in range(size // 2 + 1, size + 1):
            names = self._live(readers[:n])
            pairs = [(then.region.names.get(o), other.region.names.get(o)) for o in names]
            if all(x and y and one_rank(then.region, x, other.region, y) for x, y in pairs):
                return n
        return None

    def _joined(
        self, nodes: Sequence[NodeProto], whole: bool, then: TranslatedBranch, other: TranslatedBranch
    ) -> bool:
        """Emit the `if` of both cases; whether that was possible. whole: the arms hold exactly these
        nodes."""
        names, b = self._live(nodes), self.builder
        if not whole:
            ways = [self._way(nodes, names, way) for way in (True, False)]
            if any(w.arm is None for w in ways):
                return False
            then, other = (w.arm for w in ways if w.arm is not None)
        b.engine.at(self.why.node or "", self.why.op)
        found = by_branch(b, self._flag(), then, other, self.before, shapes=True)
        if found is None:
            return False
        for name, ref in zip(names, found, strict=True):
            b.names[name] = ref
            if ref not in b.store.compounds:
                b.store.origins.setdefault(ref, self.scope.prefix + name)
        done = {id(n) for n in nodes}
        self.nodes = [n for n in self.nodes if id(n) not in done]
        return True

    def _declared(self, names: Sequence[str], then: TranslatedBranch, other: TranslatedBranch) -> bool:
        """Take the case whose ranks the file declares, where only one has them."""
        fits = []
        for arm in (then, other):
            ranks = [
                None if r in arm.region.store.compounds else arm.region.type_of(r).rank for r in arm.refs
            ]
            wanted = [self.builder.declared.get(o) for o in names]
            fits.append(all(None in (r, w) or r == w for r, w in zip(ranks, wanted, strict=True)))
        if fits[0] == fits[1]:
            return False
        self._rule_out(fits[1], "way of the declared ranks")
        return True
