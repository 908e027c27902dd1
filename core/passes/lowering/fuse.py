"""Graph -> Graph: nodes that one kernel computes better together become one `fused` node.

Groups grow from producers to consumers, one for each output of a node. Whether a group takes its producer in
is decided by the composed index expressions: where each outside tensor is read, how often, and in which order
(fusion_rules.py). What several consumers read is taken in by each when that saves more than it costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from smelt.core.dim import Dim, Facts, ceildiv, product
from smelt.core.ir.analysis.traits import Read, RowFactor, Trait, expr_trait
from smelt.core.ir.graph import Graph, Module, Node, Ref, Value
from smelt.core.ir.kernel import Const
from smelt.core.ops import OPS
from smelt.core.ops.traits import least, nominal, out_index, out_variables
from smelt.core.passes.context import Context
from smelt.core.passes.lowering.alike import Alike
from smelt.core.passes.lowering.compose import Composer, Simplifier, inline_scalars
from smelt.core.passes.lowering.fusion_rules import Blocks, NodeGroup, Offer, objection, permission
from smelt.core.passes.rewriting.editor import STRUCTURAL, Editor, edit_module, renamed


def fuse(module: Module, ctx: Context) -> Module:
    """The module with groups of nodes as `fused` nodes; every value needed outside is still made."""
    return edit_module(module, lambda editor: _Fusion(editor, ctx).run())


def explain(module: Module, ctx: Context) -> tuple[str, ...]:
    """Why `fuse` makes the kernels that it makes: for each, what came in and what stayed outside."""
    lines: list[str] = []
    edit_module(module, lambda editor: lines.extend(_Fusion(editor, ctx).explain()))
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class _Found:
    """What one look at a group found; refs by their place in its key."""

    trait: Trait
    reads: tuple[tuple[int, Read], ...]
    rows: tuple[int, int] | None
    blocks: Blocks | None


class _Fusion:
    """Fusion of one graph."""

    def __init__(self, editor: Editor, ctx: Context) -> None:
        self.g = editor
        self.ctx = ctx
        self.groups: dict[Ref, NodeGroup] = {}
        self.apart: set[Ref] = set()  # values that are stored anyway: nobody recomputes them
        self._inline = inline_scalars(editor.shop.weights)
        self._simplifier = Simplifier(editor.engine.facts)
        self._scalars: dict[Ref, Const | None] = {}
        self._alike = Alike(self.scalar, values=False)
        self._measured: dict[Hashable, _Found] = {}
        # nodes stay as they are until all groups are settled
        self._made: dict[tuple[tuple[int, ...], int], NodeGroup] = {}
        self._sizes: dict[Ref, int] = {}

    def run(self) -> None:
        self._emit(self._settled())

    def explain(self) -> list[str]:
        """A line per kernel, producer that came in and producer that did not, in the order of the graph."""
        lines, stored = [], self._settled()
        for key in self.g.in_order():
            for v in self.g.nodes[key].outputs:
                group = self.groups.get(v.name)
                if v.name in stored and group is not None and not self._is_view(self.g.nodes[key]):
                    lines += self._story(v.name, group)
        return lines

    def _settled(self) -> set[Ref]:
        """Groups grown until none recomputes what is stored anyway; the values that are stored."""
        for _ in range(3):
            self.groups = {}
            for key in self.g.in_order():
                n = self.g.nodes[key]
                if self._fusible(n):
                    self.groups.update((v.name, self._grow(key, k)) for k, v in enumerate(n.outputs))
            stored = self._stored()
            twice = self._recomputed(stored) - self.apart
            if not twice:
                break
            self.apart |= twice
        return stored

    # ------------------------------------------------------------ groups

    def _fusible(self, n: Node) -> bool:
        if n.op in STRUCTURAL or n.op not in OPS:
            return False
        rules = OPS[n.op].compute
        return all(map(callable, rules)) if isinstance(rules, tuple) else callable(rules)

    def _is_view(self, n: Node) -> bool:
        return n.op in OPS and OPS[n.op].view

    def _facts(self) -> Facts:
        return self.g.engine.facts

    def scalar(self, ref: Ref) -> Const | None:
        if ref not in self._scalars:
            self._scalars[ref] = self._inline(ref)
        return self._scalars[ref]

    def _measure(self, keys: Sequence[int], slot: int) -> NodeGroup:
        """The group of these nodes and that output of the last, with its composed expression looked at."""
        own = tuple(keys), slot
        found = self._made.get(own)
        if found is None:
            found = self._made[own] = self._new(keys, slot)
        return found

    def _new(self, keys: Sequence[int], slot: int) -> NodeGroup:
        nodes = [self.g.nodes[k] for k in keys]
        alike, refs = self._alike.key(nodes, self.g.type_of)
        key = alike, slot
        if key not in self._measured:
            self._measured[key] = self._look(nodes, nodes[-1].outputs[slot], refs)
        found = self._measured[key]
        outside = MappingProxyType({refs[k]: read for k, read in found.reads})
        views = sum(map(self._is_view, nodes))
        return NodeGroup(tuple(keys), found.trait, outside, slot, found.rows, found.blocks, views)

    def _look(self, nodes: Sequence[Node], last: Value, refs: Sequence[Ref]) -> _Found:
        """What an element of the last one's output takes, and how it reads what is outside of these nodes."""
        shape = last.type.shape
        e = Composer(nodes, self.g.type_of, self.scalar).at(last.name, out_index(shape))
        e = self._simplifier.element(e, shape)
        outside = list(dict.fromkeys(r for n in nodes for r in n.inputs if r))
        shapes = {r: self.g.type_of(r).shape for r in outside}
        trait = expr_trait(e, outside, out_variables(shape), shapes, self._facts())
        reads = tuple(
            (refs.index(r), read) for r, read in zip(outside, trait.reads, strict=True) if read is not None
        )
        rows = None
        if trait.rows is not None:
            count = nominal(self._facts(), product(shape[: trait.rows]))
            longest = max(nominal(self._facts(), product(s)) for s in (shape, *shapes.values()))
            rows = count, longest // max(count, 1)
        return _Found(trait, reads, rows, self._blocks(trait.factor, out_variables(shape)))

    def _blocks(self, f: RowFactor | None, variables: Mapping[str, Dim]) -> Blocks | None:
        """How many blocks of rows a product has whose factor reduces along them."""
        if f is None:
            return None
        facts = self._facts()
        height = self.ctx.machine.row_block(nominal(facts, f.axis.extent) * f.bytes)
        rows, groups = (product(variables[v] for v in names) for names in (f.rows, f.groups))
        count = groups * ceildiv(rows, height)
        columns = product(n for v, n in variables.items() if v not in (*f.groups, *f.rows))
        return Blocks(nominal(facts, count), least(facts, count), nominal(facts, columns), f.softmax)

    def _grow(self, key: int, slot: int) -> NodeGroup:
        """The node with all the producers that this output of it takes in, reductions first."""
        group = self._measure([key], slot)
        refused: set[Ref] = set()
        while True:
            found = self._candidates(group, refused)
            if not found:
                return group
            ref, producer = found[0]
            bigger, _ = self._absorb(group, ref, producer)
            if bigger is None:
                refused.add(ref)
            else:
                group = bigger
                refused = set()  # what had readers outside the group may have them all inside now

    def _candidates(self, group: NodeGroup, refused: set[Ref]) -> list[tuple[Ref, NodeGroup]]:
        found = []
        for ref in group.outside:
            producer = self.groups.get(ref)
            if producer is not None and ref not in refused and ref not in self.apart:
                found.append((ref, producer))
        found.sort(key=lambda f: (-self._weight(f[1]),))
        return found

    def _weight(self, group: NodeGroup) -> int:
        """Which reduction is worth most as the heart of a group: products, then other reductions."""
        return 2 * group.trait.contraction + group.trait.heavy

    def _absorb(self, group: NodeGroup, ref: Ref, producer: NodeGroup) -> tuple[NodeGroup | None, str]:
        """The group with the producer of ref in it, when that is allowed and worth it; why, or why not."""
        offer = self._offer(group, ref, producer)
        allowed, against = permission(offer), objection(offer)
        if allowed is None:
            return None, "order: the group does not use the elements one by one, in the order they are made"
        if against is None:
            keys = [*sorted({*group.nodes[:-1], *producer.nodes}, key=self._order), group.nodes[-1]]
            both = self._measure(keys, group.slot)
            against = objection(replace(offer, permitted=allowed, both=both))
        if against is not None:
            return None, f"{against.name}: {against.reason}"
        taken = (*group.taken, *producer.taken, (ref, f"{allowed.name}: {allowed.reason}"))
        return replace(both, taken=taken), ""

    def _offer(self, group: NodeGroup, ref: Ref, producer: NodeGroup) -> Offer:
        stored = ref in self.g.outputs
        inside = set(group.nodes)
        return Offer(
            group, producer, group.outside[ref],
            alone=not stored and all(k in inside for k in self.g.user_keys(ref)), stored=stored,
            bytes=(self._bytes((ref,)), self._bytes(tuple(producer.outside))),
            machine=self.ctx.machine, options=self.ctx.options,
        )

    def _order(self, key: int) -> tuple[int, int]:
        return self.g.place(key)

    def _bytes(self, refs: Sequence[Ref]) -> int:
        for r in refs:
            if r not in self._sizes:
                self._sizes[r] = self.g.shop.bytes(self.g.type_of(r))
        return sum([self._sizes[r] for r in refs])

    def _story(self, made: Ref, group: NodeGroup) -> list[str]:
        """What came into a group, and why each other value that it reads stayed outside."""
        def name(ref: Ref) -> str:
            n = self.g.nodes[self.g.key(ref)]
            slot = f".{[v.name for v in n.outputs].index(ref)}" if len(n.outputs) > 1 else ""
            return f"{n.op}{slot} {n.origin}".strip()

        lines = [f"{name(made)}: {len(group.nodes)} node(s)"]
        lines += [f"  in   {name(ref)} ({why})" for ref, why in group.taken]
        for ref in group.outside:
            if self.g.maker(ref) is None:
                continue
            producer = self.groups.get(ref)
            if producer is None:
                why = "no formula: it is a kernel of its own, or control flow"
            elif ref in self.apart:
                why = "needed: it is stored anyway"
            else:
                _, why = self._absorb(group, ref, producer)
            lines.append(f"  out  {name(ref)} ({why})")
        return lines

    # ------------------------------------------------------------ what is stored

    def _stored(self) -> set[Ref]:
        """The values that must exist in memory, from the outputs back."""
        todo = list(self.g.outputs)
        for key in self.g.in_order():
            n = self.g.nodes[key]
            if n.op in STRUCTURAL:
                todo += self.g.refs_of(key)
        stored: set[Ref] = set()
        while todo:
            ref = todo.pop()
            maker = self.g.maker(ref)
            if maker is None or ref in stored:
                continue
            stored.add(ref)
            group = self.groups.get(ref)
            if group is None or self._is_view(maker):
                todo += self.g.refs_of(self.g.key(ref))
            else:
                todo += list(group.outside)
        return stored

    def _recomputed(self, stored: set[Ref]) -> set[Ref]:
        """Values that are stored and recomputed as well."""
        found: set[Ref] = set()
        for ref in stored:
            group = self.groups.get(ref)
            nodes = [] if group is None else [self.g.nodes[k] for k in group.nodes]
            if not nodes or self._is_view(nodes[-1]):
                continue
            made = {v.name for n in nodes[:-1] if not self._is_view(n) for v in n.outputs}
            found.update(made & stored & {r for n in nodes for r in n.inputs})
        return found

    # ------------------------------------------------------------ the result

    def _emit(self, stored: set[Ref]) -> None:
        """Every node whose outputs took producers in as a fused node for each of them that is stored."""
        for key in self.g.in_order():
            n = self.g.nodes[key]
            outputs = [v for v in n.outputs if v.name in stored and v.name in self.groups]
            grown = [v for v in outputs if len(self.groups[v.name].nodes) > 1]
            if not grown or self._is_view(n):
                continue
            if len(n.outputs) == 1:
                self.g.set_node(key, self._fused(self.groups[n.output.name], n.output))
                continue
            self.g.at(key)
            for v in outputs:
                alone = replace(v, name=self.g.shop.name(v.name))
                self.g.add(self._fused(self.groups[v.name], alone))
                self.g.replace(v.name, alone.name)

    def _fused(self, group: NodeGroup, result: Value) -> Node:
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
        region = Graph("fused", parameters, tuple(body), (names[last.outputs[group.slot].name],))
        origin = last.origin or next((n.origin for n in reversed(nodes) if n.origin), "")
        return Node("fused", tuple(refs), (result,), regions=(region,), origin=origin)


def inside_order(nodes: Sequence[Node]) -> list[Ref]:
    """The values that nodes make, in order."""
    return [v.name for n in nodes for v in n.outputs]
