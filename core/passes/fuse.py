"""Graph -> Graph: nodes that one kernel computes better together become one `fused` node.

Groups grow from producers to consumers. Whether a group takes its producer in is decided by the composed
index expressions: where each outside tensor is read, how often, and in which order.

    epilogue     an elementwise consumer (or a transpose that keeps the last axis) takes in the one product,
                 convolution or reduction before it
    prologue     a reduction takes in what it reads once per element, and what is cheap; a product takes in
                 pure index maps (transposes, slices, broadcasts, views that only merge axes)
    elementwise  takes in whatever it reads at its own index, and index maps at any
    recompute    what several consumers read is taken in by each when that saves more than it costs
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from smelt.core.dim import Facts
from smelt.core.ir.graph import Graph, Module, Node, Ref, Value
from smelt.core.ir.kernel import Const
from smelt.core.ops import OPS
from smelt.core.passes.alike import Alike
from smelt.core.passes.compose import Composer, Simplifier, inline_scalars
from smelt.core.passes.context import Context, Options
from smelt.core.passes.editor import STRUCTURAL, Editor, edit_module, renamed
from smelt.core.passes.traits import Read, Trait, expr_reads, expr_trait, out_index

CHEAP = 4  # additions per element that a row reduction may repeat in each of its passes
RECOMPUTE = 2  # additions per element that every consumer may repeat
MAX_INPUTS = 24


def fuse(module: Module, ctx: Context) -> Module:
    """The module with groups of nodes as `fused` nodes; every value needed outside is still made."""
    return edit_module(module, lambda editor: _Fusion(editor, ctx.options).run())


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes (keys in order) whose last one is the output. outside: the tensors it reads, and how."""

    nodes: tuple[int, ...]
    trait: Trait
    outside: Mapping[Ref, Read]

    @property
    def linear(self) -> bool:
        """Only sums of variables as indices, nothing guarded or depending on data."""
        return all(r.linear and not r.guarded and not r.depends for r in self.outside.values())

    @property
    def shifted(self) -> bool:
        """Only slices: every index a variable plus a constant, in order."""
        return all(r.shifted and not r.depends for r in self.outside.values())


class _Fusion:
    """Fusion of one graph."""

    def __init__(self, editor: Editor, options: Options) -> None:
        self.g = editor
        self.options = options
        self.groups: dict[int, Group] = {}
        self.apart: set[Ref] = set()  # values that are stored anyway: nobody recomputes them
        self._inline = inline_scalars(editor.shop.weights)
        self._simplifier = Simplifier(editor.engine.facts)
        self._scalars: dict[Ref, Const | None] = {}
        self._alike = Alike(self.scalar, values=False)
        self._measured: dict[Hashable, tuple[Trait, tuple[tuple[int, Read], ...]]] = {}

    def run(self) -> None:
        for _ in range(3):
            self.groups = {}
            for key in self.g.in_order():
                if self._fusible(self.g.nodes[key]):
                    self.groups[key] = self._grow(key)
            stored = self._stored()
            twice = self._recomputed(stored) - self.apart
            if not twice:
                break
            self.apart |= twice
        self._emit(self._stored())

    # ------------------------------------------------------------ groups

    def _fusible(self, n: Node) -> bool:
        if n.op in STRUCTURAL or n.op not in OPS or len(n.outputs) != 1:
            return False
        return callable(OPS[n.op].compute)

    def _is_view(self, n: Node) -> bool:
        return n.op in OPS and OPS[n.op].view

    def _facts(self) -> Facts:
        return self.g.engine.facts

    def scalar(self, ref: Ref) -> Const | None:
        if ref not in self._scalars:
            self._scalars[ref] = self._inline(ref)
        return self._scalars[ref]

    def _measure(self, keys: Sequence[int]) -> Group:
        """The group of these nodes, with its composed expression looked at."""
        nodes = [self.g.nodes[k] for k in keys]
        key, refs = self._alike.key(nodes, self.g.type_of)
        if key not in self._measured:
            trait, reads = self._look(nodes)
            self._measured[key] = trait, tuple((refs.index(r), read) for r, read in reads.items())
        trait, rows = self._measured[key]
        return Group(tuple(keys), trait, MappingProxyType({refs[k]: read for k, read in rows}))

    def _look(self, nodes: Sequence[Node]) -> tuple[Trait, Mapping[Ref, Read]]:
        """What the last one's element costs, and how it reads what is outside of these nodes."""
        last = nodes[-1].output
        e = Composer(nodes, self.g.type_of, self.scalar).at(last.name, out_index(last.type.shape))
        e = self._simplifier.element(e, last.type.shape)
        outside = {r: self.g.type_of(r) for n in nodes for r in n.inputs if r}
        reads = expr_reads(e, last.type.shape, outside, self._facts())
        return expr_trait(e, tuple(reads.values())), reads

    def _grow(self, key: int) -> Group:
        """The node with all the producers it takes in, reductions first."""
        group = self._measure([key])
        refused: set[Ref] = set()
        while True:
            found = self._candidates(group, refused)
            if not found:
                return group
            ref, producer = found[0]
            bigger = self._absorb(group, ref, producer)
            if bigger is None:
                refused.add(ref)
            else:
                group = bigger
                refused = set()  # what had readers outside the group may have them all inside now

    def _candidates(self, group: Group, refused: set[Ref]) -> list[tuple[Ref, Group]]:
        found = []
        for ref in group.outside:
            if ref in refused or self.g.maker(ref) is None:
                continue
            producer = self.groups.get(self.g.key(ref))
            if producer is not None and ref not in self.apart:
                found.append((ref, producer))
        found.sort(key=lambda f: (-self._weight(f[1]),))
        return found

    def _weight(self, group: Group) -> int:
        """Which reduction is worth most as the heart of a group: products, then other reductions."""
        return 2 * group.trait.contraction + group.trait.heavy

    def _absorb(self, group: Group, ref: Ref, producer: Group) -> Group | None:
        """The group with the producer of ref in it, when that is allowed and worth it."""
        alone = all(self._is_view(self.g.nodes[k]) for k in producer.nodes)
        if alone:
            return None  # a view costs nothing where it is
        read = group.outside[ref]
        if not self._allowed(group, read, producer) or not self._single(group, ref, producer):
            return None
        keys = [*sorted({*group.nodes[:-1], *producer.nodes}, key=self._order), group.nodes[-1]]
        if len(keys) > self.options.fuse_nodes:
            return None
        if group.trait.size + read.loads * producer.trait.size > self.options.fuse_size:
            return None
        bigger = self._measure(keys)
        if len(bigger.outside) > MAX_INPUTS or bigger.trait.size > self.options.fuse_size:
            return None
        if group.trait.contraction and read.reduced and not self._still_product(bigger, producer):
            return None
        products = [g for g in (group, producer) if g.trait.contraction]
        if self._looks_up(bigger) and not all(map(self._looks_up, products)):
            return None  # a product's tile would look up every element by code of its own
        return None if self._divides(bigger, producer) else bigger

    def _looks_up(self, group: Group) -> bool:
        """Whether it reads single elements at places that data says."""
        return any(r.scattered for r in group.outside.values())

    def _divides(self, bigger: Group, producer: Group) -> bool:
        """Whether a view inside would cost a division per element: a view outside is free."""
        if not any(self._is_view(self.g.nodes[k]) for k in producer.nodes):
            return False
        mine = (bigger.outside[r] for r in producer.outside if r in bigger.outside)
        return not all(r.linear or r.depends for r in mine)

    def _order(self, key: int) -> tuple[int, int]:
        return self.g.place(key)

    def _still_product(self, bigger: Group, producer: Group) -> bool:
        """A product's operands stay sums of variables, without conditions, after an index map."""
        mine = (bigger.outside[r] for r in producer.outside if r in bigger.outside)
        return all(r.linear and not r.depends for r in mine)

    def _allowed(self, group: Group, read: Read, producer: Group) -> bool:
        """Whether the index expressions let the group compute the producer where it reads it."""
        made, mine = producer.trait, group.trait
        if made.heavy:
            # its elements are dear: each exactly once, in an order that it can store in
            return not mine.heavy and read.bijective and (read.ordered or read.last)
        if read.reduced and mine.contraction:
            if not (made.plain and producer.linear):
                return False
            return producer.shifted if read.window or read.guarded else True
        if read.reduced:
            if read.once:
                return True
            cheap = made.cost <= CHEAP and not any(r.depends for r in producer.outside.values())
            return cheap if read.rows else made.plain and producer.linear
        if read.guarded and any(r.guarded for r in producer.outside.values()):
            return False  # conditions inside conditions: two copies of whole rows are cheaper
        if read.bijective or read.once:
            return True
        return made.plain

    def _single(self, group: Group, ref: Ref, producer: Group) -> bool:
        """Whether the group is the only one to read ref, or recomputing it is cheap."""
        users = self.g.user_keys(ref)
        inside = set(group.nodes)
        if ref not in self.g.outputs and all(k in inside for k in users):
            return True
        if producer.trait.heavy or ref in self.g.outputs:
            return False
        if producer.trait.plain:
            return producer.linear
        if producer.trait.cost > RECOMPUTE:
            return False
        return self._bytes(tuple(producer.outside)) <= self._bytes((ref,))

    def _bytes(self, refs: Sequence[Ref]) -> int:
        return sum(self.g.shop.bytes(self.g.type_of(r)) for r in refs)

    # ------------------------------------------------------------ what is stored

    def _stored(self) -> set[int]:
        """The nodes whose value must exist in memory, from the outputs back."""
        todo = list(self.g.outputs)
        for key in self.g.in_order():
            n = self.g.nodes[key]
            if n.op in STRUCTURAL:
                todo += self.g.refs_of(key)
        stored: set[int] = set()
        while todo:
            ref = todo.pop()
            if self.g.maker(ref) is None:
                continue
            key = self.g.key(ref)
            if key in stored:
                continue
            stored.add(key)
            n = self.g.nodes[key]
            group = self.groups.get(key)
            if group is None or self._is_view(n):
                todo += self.g.refs_of(key)
            else:
                todo += list(group.outside)
        return stored

    def _recomputed(self, stored: set[int]) -> set[Ref]:
        """Values that are stored and recomputed as well."""
        found: set[Ref] = set()
        for key in stored:
            group = self.groups.get(key)
            if group is None or self._is_view(self.g.nodes[key]):
                continue
            for k in group.nodes[:-1]:
                if k in stored and not self._is_view(self.g.nodes[k]):
                    found.add(self.g.nodes[k].output.name)
        return found

    # ------------------------------------------------------------ the result

    def _emit(self, stored: set[int]) -> None:
        for key in self.g.in_order():
            group = self.groups.get(key)
            if key not in stored or group is None or self._is_view(self.g.nodes[key]):
                continue
            if len(group.nodes) > 1:
                self.g.set_node(key, self._fused(group))

    def _fused(self, group: Group) -> Node:
        """The nodes of a group as one node with a region; names inside are new."""
        nodes = [self.g.nodes[k] for k in group.nodes]
        last = nodes[-1]
        inside = {v.name for n in nodes for v in n.outputs}
        refs = dict.fromkeys(
            r for n in nodes for r in n.inputs if r and r not in inside and self.scalar(r) is None
        )
        names: dict[Ref, Ref] = {r: self.g.shop.name(f"%{r[1:]}.in") for r in refs}
        names |= {r: self.g.shop.name(f"{r}.f") for r in inside_order(nodes)}
        parameters = tuple(Value(names[r], self.g.type_of(r)) for r in refs)
        body = []
        for n in nodes:
            outputs = tuple(Value(names[v.name], v.type, v.origin) for v in n.outputs)
            body.append(renamed(n, names).with_(outputs=outputs))
        region = Graph("fused", parameters, tuple(body), (names[last.output.name],))
        origin = last.origin or next((n.origin for n in reversed(nodes) if n.origin), "")
        return Node("fused", tuple(refs), last.outputs, regions=(region,), origin=origin)


def inside_order(nodes: Sequence[Node]) -> list[Ref]:
    """The values that nodes make, in order."""
    return [v.name for n in nodes for v in n.outputs]
