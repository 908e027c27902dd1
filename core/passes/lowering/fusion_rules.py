"""A group of nodes and the producer of what it reads in; whether one kernel may compute both, and why, out.

A producer is taken in where some permission holds and no objection does. Both are rows of tables, with a
name and a reason that `smelt opt --why` prints. They see composed index expressions, never names of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smelt.core.dtype import DType
from smelt.core.ir.analysis.traits import Read, Trait
from smelt.core.ir.graph import Ref
from smelt.core.ir.instructions import matrix_types
from smelt.core.machine import Machine
from smelt.core.passes.context import Options

CHEAP = 4
"""Multiply-adds per element that a row reduction may repeat in each of its passes."""
RECOMPUTE = 2
"""Multiply-adds per element that every consumer may repeat."""
MAX_INPUTS = 24
LONG_ROW = 4096
"""Elements of a row from which few rows are better shared out in parts, by a kernel for each."""
NARROW = 128
"""Columns up to which a product has little to share out but its rows."""
BLOCKS, WIDE_BLOCKS = 2, 8
"""Blocks of rows for every core, at middling sizes of a narrow product and at the least sizes of a wider one,
from which cores seldom wait for the last block: three blocks on two cores take 1.4 times as long."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of rows that a product is made in: their number at middling and at the least sizes, and the
    columns of the product. softmax: the element type of the other factor, where the rows are softmaxes."""

    count: int
    least: int
    columns: int
    softmax: DType | None = None


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes (keys in order) whose last one makes the output. outside: the tensors it reads, and how.

    slot: which of the last node's outputs it is. rows: how many rows and how long, at middling sizes, where
    all reductions run along the same rows. blocks: of the product of which a factor reduces along its rows,
    where all reductions are part of that. views: how many of the nodes are views. taken: the value of each
    producer that came in, and the permission.
    """

    nodes: tuple[int, ...]
    trait: Trait
    outside: Mapping[Ref, Read]
    slot: int = 0
    rows: tuple[int, int] | None = None
    blocks: Blocks | None = None
    views: int = 0
    taken: tuple[tuple[Ref, str], ...] = ()

    @property
    def linear(self) -> bool:
        """Only sums of variables as indices, nothing guarded or depending on data."""
        return all(r.linear and not r.guarded and not r.depends for r in self.outside.values())

    @property
    def shifted(self) -> bool:
        """Only slices: every index a variable plus a constant, in order."""
        return all(r.shifted and not r.depends for r in self.outside.values())

    @property
    def scattered(self) -> bool:
        """Whether it reads single elements at places that data says."""
        return any(r.scattered for r in self.outside.values())

    def reads_of(self, other: NodeGroup) -> list[Read]:
        """How it reads what the other reads."""
        return [self.outside[r] for r in other.outside if r in self.outside]


@dataclass(frozen=True, slots=True)
class Offer:
    """A group and the producer of what it reads. alone: nobody else reads that. bytes: of the value, and of
    what computing it reads. stored: it is stored anyway. permitted: what permits to take it in; None before
    that is asked. both: what they make together, once composed."""

    group: NodeGroup
    producer: NodeGroup
    read: Read
    alone: bool
    stored: bool
    bytes: tuple[int, int]
    machine: Machine
    options: Options
    permitted: FusionRule | None = None
    both: NodeGroup | None = None

    @property
    def cost(self) -> int:
        """What an element of the producer takes, in multiply-adds."""
        return self.machine.cost(self.producer.trait.work)


@dataclass(frozen=True, slots=True)
class FusionRule:
    """holds: asks about an offer."""

    name: str
    reason: str
    holds: Callable[[Offer], bool]


# ---------------------------------------------------------------- permissions


def _epilogue(o: Offer) -> bool:
    return o.producer.trait.heavy and not o.group.trait.heavy and o.read.bijective and (
        o.read.ordered or o.read.last
    )


def _shared_rows(o: Offer) -> bool:
    made, mine = o.producer.trait, o.group.trait
    along = o.read.rows and not o.read.depends and (mine.heavy or o.read.missing)
    return made.heavy and along and not made.contraction and not mine.contraction


def _operand(o: Offer) -> bool:
    if not _in_reduction(o) or not o.group.trait.contraction:
        return False
    shifted = o.producer.shifted or not (o.read.window or o.read.guarded)
    return o.producer.trait.plain and o.producer.linear and shifted


def _prologue(o: Offer) -> bool:
    if not _in_reduction(o) or o.group.trait.contraction:
        return False
    cheap = o.cost <= CHEAP and not any(r.depends for r in o.producer.outside.values())
    moved = o.producer.trait.plain and o.producer.linear and (o.producer.shifted or not o.read.window)
    return o.read.once or (cheap if o.read.rows else moved)


def _in_reduction(o: Offer) -> bool:
    return o.read.reduced and not o.producer.trait.heavy


def _element(o: Offer) -> bool:
    outside_reduction = not o.read.reduced and not o.producer.trait.heavy
    moved = o.producer.trait.plain and (o.producer.shifted or not _looked_up(o.read))
    # where its elements are looked up together, neighbours of a row are to stay neighbours
    turned = not o.read.last and any(map(_looked_up, o.producer.outside.values()))
    return outside_reduction and not turned and (o.read.bijective or o.read.once or moved)


def _looked_up(r: Read) -> bool:
    """Whether an element is made of several, at places that data says, as in an interpolation."""
    return r.depends and r.loads > 1


def _row_factor(o: Offer) -> bool:
    made, mine = o.producer.trait, o.group.trait
    return made.heavy and not made.contraction and mine.contraction and o.read.reduced and o.read.rows


def _row_operand(o: Offer) -> bool:
    product = o.group.blocks is not None and o.producer.trait.contraction
    return product and o.read.reduced and o.read.rows and not o.read.depends


ROWS = FusionRule("rows", "both reduce along the same rows, which stay in cache", _shared_rows)
ROW_FACTOR = FusionRule(
    "row factor", "a block of rows is made in cache for the product that sums over them", _row_factor
)
ROW_OPERAND = FusionRule(
    "row operand", "a block of the product is made in cache, for the rows that are made of it", _row_operand
)
PERMISSIONS: tuple[FusionRule, ...] = (
    FusionRule("epilogue", "each element of the reduction is used once, as it is stored", _epilogue),
    ROWS,
    ROW_FACTOR,
    ROW_OPERAND,
    FusionRule("operand", "the product reads its operand through an index map", _operand),
    FusionRule("prologue", "the reduction reads each element once, or it is cheap to make again", _prologue),
    FusionRule("element", "each element is used where it is made, or only moves", _element),
)


# ---------------------------------------------------------------- objections to a pair


def _only_views(o: Offer) -> bool:
    return o.producer.views == len(o.producer.nodes)


def _conditions(o: Offer) -> bool:
    inside = any(r.guarded for r in o.producer.outside.values())
    return o.read.guarded and inside and not o.read.reduced and not o.producer.trait.heavy


def _needed(o: Offer) -> bool:
    """Whether others read it and computing it for each of them takes more than it saves."""
    if o.alone:
        return False
    if o.producer.trait.heavy or o.stored:
        return True
    if o.producer.trait.plain:
        return not o.producer.linear
    return o.cost > RECOMPUTE or o.bytes[1] > o.bytes[0]


def _too_large(o: Offer) -> bool:
    nodes = {*o.group.nodes, *o.producer.nodes}
    size = o.group.trait.size + o.read.loads * o.producer.trait.size
    return len(nodes) > o.options.fuse_nodes or size > o.options.fuse_size


def _compared(o: Offer) -> bool:
    return o.group.trait.exact and not o.producer.trait.plain


OBJECTIONS: tuple[FusionRule, ...] = (
    FusionRule("exact", "it is compared with its own extreme: made twice, it might differ", _compared),
    FusionRule("view", "a view costs nothing where it is", _only_views),
    FusionRule("conditions", "conditions inside conditions: two copies of rows are cheaper", _conditions),
    FusionRule("needed", "others need it too, and making it again costs more than reading it", _needed),
    FusionRule("size", "the kernel would be too large", _too_large),
)


# ---------------------------------------------------------------- objections to what both make


def _both(o: Offer) -> NodeGroup:
    assert o.both is not None
    return o.both


def _too_wide(o: Offer) -> bool:
    return len(_both(o).outside) > MAX_INPUTS


def _grown(o: Offer) -> bool:
    """Whether it is too large where the estimate of _too_large was not: a guard around what is computed
    becomes a choice between two values."""
    return _both(o).trait.size > o.options.fuse_size


def _no_rows(o: Offer) -> bool:
    """Whether it has reductions beside each other that do not run along the same rows."""
    return o.permitted is ROWS and _both(o).rows is None


def _few_rows(o: Offer) -> bool:
    count, length = _both(o).rows or (0, 0)
    return o.permitted is ROWS and count < o.machine.cores and length > LONG_ROW


def _no_factor(o: Offer) -> bool:
    """Whether a factor of a product has reductions that no block of rows is made by."""
    asked = o.permitted in (ROW_FACTOR, ROW_OPERAND)
    wanted = asked or o.group.blocks is not None or o.producer.blocks is not None
    return wanted and _both(o).blocks is None


def _few_blocks(o: Offer) -> bool:
    blocks = _both(o).blocks
    if o.permitted not in (ROW_FACTOR, ROW_OPERAND) or blocks is None or _in_blocks(o):
        return False
    if blocks.columns > NARROW:
        return blocks.least < WIDE_BLOCKS * o.machine.cores
    return blocks.count < BLOCKS * o.machine.cores


def _in_blocks(o: Offer) -> bool:
    """Whether lanes that run in step make blocks of rows one after the other; of few rows they have
    statements of their own for what rows are made of, so that nothing is lost. Not where instructions
    multiply matrices of the type: they take products of whole tensors alone, and are several times faster."""
    blocks = _both(o).blocks
    if o.permitted not in (ROW_FACTOR, ROW_OPERAND) or not o.machine.in_step or blocks is None:
        return False
    return blocks.softmax is not None and blocks.softmax not in matrix_types(o.machine)


def _lanes(o: Offer) -> bool:
    wanted = o.permitted in (ROWS, ROW_FACTOR, ROW_OPERAND) and o.machine.max_lanes > 1
    return wanted and not _in_blocks(o)


def _no_product(o: Offer) -> bool:
    """A product's operands stay sums of variables, without conditions, after an index map."""
    if not (o.group.trait.contraction and o.read.reduced):
        return False
    return not all(r.linear and not r.depends for r in _both(o).reads_of(o.producer))


def _looks_up(o: Offer) -> bool:
    products = [g for g in (o.group, o.producer) if g.trait.contraction]
    return _both(o).scattered and not all(g.scattered for g in products)


def _divides(o: Offer) -> bool:
    mine = _both(o).reads_of(o.producer)
    return o.producer.views > 0 and not all(r.linear or r.depends for r in mine)


LATE_OBJECTIONS: tuple[FusionRule, ...] = (
    FusionRule("inputs", "the kernel would read too many tensors", _too_wide),
    FusionRule("grown", "the kernel would be too large, with the conditions that it takes", _grown),
    FusionRule("no rows", "the reductions do not run along the same rows", _no_rows),
    FusionRule("few rows", "too few rows to share out: a kernel for each uses all of the machine", _few_rows),
    FusionRule("no factor", "no block of rows can be made for the product that sums over them", _no_factor),
    FusionRule("few blocks", "too few blocks of rows, where a product shares out columns too", _few_blocks),
    FusionRule("lanes", "work-items take a row each: what follows would be done one by one", _lanes),
    FusionRule("no product", "the product could not read its operand by sums of variables", _no_product),
    FusionRule("look-up", "a product's tile would look up every element by code of its own", _looks_up),
    FusionRule("division", "a view inside costs a division per element, outside it is free", _divides),
)


def permission(o: Offer) -> FusionRule | None:
    """The first permission that holds."""
    return next((r for r in PERMISSIONS if r.holds(o)), None)


def objection(o: Offer) -> FusionRule | None:
    """The first objection that holds; those to what both make only once it is composed."""
    rules = OBJECTIONS if o.both is None else LATE_OBJECTIONS
    return next((r for r in rules if r.holds(o)), None)
