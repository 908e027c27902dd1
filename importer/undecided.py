"""A node whose ranks a run decides, and what follows it, in; both ways of it, as branches of an `if`, out.

Types have a rank, so a value whose rank a run decides has none. What reads such a value can be translated
once for each way, up to where all that is read further on has one rank again:

    y = Squeeze(x); z = Relu(y); s = ReduceSum(z)
    -->  s = if x.shape[0] == 1 { ReduceSum(Relu(reshape x)) } else { ReduceSum(Relu(x)) }

A way on which a node could never run (an axis that its input has not) is none: the other one is taken, and
that a run takes it is checked. So is one that ends in another rank than the file declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from onnx import NodeProto

from smelt.core.diag import Problem, SmeltError
from smelt.core.dim import to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer import known as kn
from smelt.importer.branches import Arm, by_branch, declared, one_rank
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Undecided
from smelt.importer.load import uses

MOST_NODES = 256
"""Nodes of a file that are translated both ways because of one of them."""
MOST_TRIED = 2_000
"""Nodes of a file that are translated again in one model, counted each time."""
MOST_DEPTH = 4
"""Decisions inside each other."""


class Runs(Protocol):
    """What translates nodes: the importer's Translator."""

    problems: dict[tuple[str | None, str], Problem]

    def run(self, b: GraphBuilder, nodes: Sequence[NodeProto], scope: Any, outs: Sequence[str]) -> None:
        """Translate nodes in order; `outs` are names that are read after them."""
        ...


@dataclass
class Tried:
    """What was tried so far in one model: how many nodes were translated again, how deep inside each other,
    how often a way was ruled out, and the nodes for which going both ways led nowhere."""

    nodes: int = 0
    depth: int = 0
    ruled: int = 0
    firm: set[str] = field(default_factory=set)

    def exhausted(self) -> bool:
        """Whether no more may be tried."""
        return self.nodes > MOST_TRIED or self.depth >= MOST_DEPTH or self.ruled > MOST_TRIED


@dataclass(frozen=True)
class _Way:
    """One way, translated. impossible: the nodes could never run on it. open: another node has two ways on
    it, which do not end in the same ranks."""

    arm: Arm | None
    impossible: bool
    open: bool


@dataclass
class Both:
    """nodes[0], which is undecided for the reason `why`, and those after it in its list.

    outs: names that are read after all of them. here: whether nodes[0] itself is undecided, not one of which
    it is made. before: the symbols that there were. along: nodes after it that are to be translated both
    ways as well, because they have two of their own.
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
        """Decide nodes[0], or translate it both ways with those that read its results; the nodes that are
        left to translate. Raises `why` where neither is to be had."""
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
                self._rule_out(then.impossible)
                return self.nodes
            if then.arm is not None and other.arm is not None:
                enough = self._enough(readers, size, then.arm, other.arm)
                if enough is not None and self._joined(readers[:enough], enough == size, then.arm, other.arm):
                    return self.nodes
                if size == len(readers) and self._declared(names, then.arm, other.arm):
                    return self.nodes
            elif not (then.open or other.open):
                raise self.why
            if size in (len(readers), MOST_NODES) or self.tried.exhausted():
                raise self.why
            size = min(2 * size, MOST_NODES, len(readers))

    # ------------------------------------------------------------ which nodes

    def _readers(self) -> list[NodeProto]:
        """The node, those that go with it, and all after that read what one of these makes."""
        names: set[str] = set()
        found: list[NodeProto] = []
        for n in self.nodes:
            if not found or id(n) in self.along or any(u in names for u in uses(n)):
                found.append(n)
                names.update(o for o in n.output if o)
        return found

    def _live(self, chosen_: Sequence[NodeProto]) -> list[str]:
        """What these nodes make and others read."""
        own = {id(n) for n in chosen_}
        read = {u for n in self.nodes if id(n) not in own for u in uses(n)} | set(self.outs)
        return list(dict.fromkeys(o for n in chosen_ for o in n.output if o and o in read))

    def _prepare(self, chosen_: Sequence[NodeProto]) -> bool:
        """Translate what these nodes read and none of them makes. False where one of that has two ways of its
        own, and so goes along with the node from here on."""
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
        """Whether what decides means something before the node."""
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
        """Know in a region which way it is."""
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
        """The nodes, translated for one way."""
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
        new = [p for key, p in self.runs.problems.items() if key not in before]
        self.runs.problems.clear()
        self.runs.problems.update(before)
        store, refs = self.builder.store, [region.names.get(o, "") for o in names]
        if failed or new or not all(r in store.types or r in store.compounds for r in refs):
            return _Way(None, impossible or (bool(new) and all(p.kind == "invalid" for p in new)), open_)
        return _Way(Arm(region, refs), False, False)

    def _rule_out(self, then: bool) -> None:
        """Take the way that is left, and check that a run does so too."""
        self.tried.ruled += 1
        b, why = self.builder, self.why
        b.engine.at(why.node or "", why.op)
        what = "the other way, on which a node could not run, is not taken"
        if why.equal is not None and not then:
            b.engine.same(what, *why.equal)
        else:
            flag = b.cast(self._flag(), i64)
            wanted = to_dim(int(not then))
            b.bind(flag, 0, "a_way_on_which_a_node_could_not_run", wanted.const, wanted)
            if why.equal is not None:
                b.engine.differ(*why.equal)
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

    def _enough(self, readers: Sequence[NodeProto], size: int, then: Arm, other: Arm) -> int | None:
        """The smallest number of nodes, more than half of `size`, after which there is one rank again."""
        for n in range(size // 2 + 1, size + 1):
            names = self._live(readers[:n])
            pairs = [(then.region.names.get(o), other.region.names.get(o)) for o in names]
            if all(x and y and one_rank(then.region, x, other.region, y) for x, y in pairs):
                return n
        return None

    def _joined(self, nodes: Sequence[NodeProto], whole: bool, then: Arm, other: Arm) -> bool:
        """Put the `if` of both ways there; whether that could be done. whole: the arms are of these nodes."""
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

    def _declared(self, names: Sequence[str], then: Arm, other: Arm) -> bool:
        """Take the way that gives the ranks that the file declares, where only one does."""
        fits = []
        for arm in (then, other):
            ranks = [
                None if r in arm.region.store.compounds else arm.region.type_of(r).rank for r in arm.refs
            ]
            wanted = [self.builder.declared.get(o) for o in names]
            fits.append(all(None in (r, w) or r == w for r, w in zip(ranks, wanted, strict=True)))
        if fits[0] == fits[1]:
            return False
        self._rule_out(fits[1])
        return True
