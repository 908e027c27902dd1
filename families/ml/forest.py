"""The attributes of a tree ensemble in, the constant tables of the core op `forest` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from smelt.core.dtype import Array
from smelt.families.ml.ops.trees import MEMBER
from smelt.importer.attributes import integers, numbers, tensor, texts
from smelt.importer.call import Call

MODES = {
    "BRANCH_LEQ": "leq", "BRANCH_LT": "lt", "BRANCH_GTE": "gte", "BRANCH_GT": "gt", "BRANCH_EQ": "eq",
    "BRANCH_NEQ": "neq",
}  # fmt: skip
CODES = (*MODES.values(), MEMBER)
"""What the bytes of `nodes_modes` mean in TreeEnsemble."""


@dataclass(frozen=True)
class Forest:
    """Trees as arrays. A position below len(feature) is an inner node, from there on a leaf.

    root, depth: i32[trees]. feature, threshold, mode (codes of CODES), missing: [nodes].
    child: i32[nodes, 2], for yes and no. target, weight: [entries]; first: i32[leaves + 1], where a leaf's
    entries begin. begin: i32[nodes + 1], where a node's set begins in members.
    """

    root: Array
    depth: Array
    feature: Array
    threshold: Array
    mode: Array
    missing: Array
    child: Array
    first: Array
    target: Array
    weight: Array
    begin: Array
    members: Array

    def surely(self, targets: int) -> Array:
        """bool[targets]: whether every row gets a weight for the target, because all leaves of some tree have
        one."""
        trees, inner = len(self.root), len(self.feature)
        owner = np.full(inner + len(self.first) - 1, -1)
        front, of = self.root, np.arange(trees)
        while len(front):
            owner[front] = of
            on = front < inner
            front, of = self.child[front[on]].reshape(-1), np.repeat(of[on], 2)
            front, at = np.unique(front, return_index=True)
            of = of[at]
        leaf_owner = owner[inner:]
        count = np.diff(self.first)
        pairs = np.unique(np.stack([np.repeat(np.arange(len(count)), count), self.target]), axis=1)
        reached = leaf_owner[pairs[0]] >= 0
        held = np.zeros((trees, targets), np.int64)
        np.add.at(held, (leaf_owner[pairs[0]][reached], pairs[1][reached]), 1)
        whole = np.bincount(leaf_owner[leaf_owner >= 0], minlength=trees)
        return np.asarray((held == whole[:, None]).any(axis=0))

    def single(self) -> Forest:
        """The forest for a single target: of a leaf's entries the first counts, as in ONNX Runtime."""
        has = np.diff(self.first) > 0
        keep = self.first[:-1][has]
        first = np.r_[0, np.cumsum(has)].astype(self.first.dtype)
        return replace(self, first=first, target=self.target[keep], weight=self.weight[keep])


def from_nodes(c: Call, kind: str) -> Forest:
    """The ensemble of TreeEnsembleRegressor (kind 'target') or TreeEnsembleClassifier ('class')."""
    tree, node = integers(c, "nodes_treeids"), integers(c, "nodes_nodeids")
    modes, n = texts(c, "nodes_modes"), len(tree)
    columns: dict[str, Sequence[str] | Array] = {
        "nodes_nodeids": node,
        "nodes_modes": modes,
        "nodes_featureids": integers(c, "nodes_featureids"),
        "nodes_truenodeids": integers(c, "nodes_truenodeids"),
        "nodes_falsenodeids": integers(c, "nodes_falsenodeids"),
        "nodes_values": numbers(c, "nodes_values"),
    }
    for name, column in columns.items():
        if len(column) != n:
            raise c.fail(f"{name} has {len(column)} elements, nodes_treeids has {n}")
    if not n:
        raise c.fail("the ensemble has no nodes")
    unknown = sorted(set(modes) - {*MODES, "LEAF"})
    if unknown:
        raise c.unsupported(f"a node of mode '{unknown[0]}'")
    inner = np.array([m != "LEAF" for m in modes])
    place = np.where(inner, np.cumsum(inner) - 1, inner.sum() + np.cumsum(~inner) - 1)
    names = _Names(c, tree, node)
    child = np.stack(
        [
            place[names.find(tree[inner], np.asarray(columns[f"nodes_{side}nodeids"])[inner])]
            for side in ("true", "false")
        ],
        axis=1,
    )
    starts = np.flatnonzero(np.r_[True, tree[1:] != tree[:-1]])
    missing = _missing(c, n)
    target, weight = integers(c, f"{kind}_ids"), numbers(c, f"{kind}_weights")
    at = names.find(integers(c, f"{kind}_treeids"), integers(c, f"{kind}_nodeids"))
    if not len(at) == len(target) == len(weight):
        raise c.fail(f"{kind}_ids, {kind}_weights, {kind}_treeids and {kind}_nodeids differ in length")
    used = ~inner[at]  # what an inner node holds is never added
    leaf = place[at[used]] - inner.sum()
    order = np.argsort(leaf, kind="stable")
    first = np.searchsorted(leaf[order], np.arange((~inner).sum() + 1))
    codes = np.array([CODES.index(MODES[m]) for m in modes if m != "LEAF"], np.uint8)
    return _checked(
        c,
        place[starts],
        np.asarray(columns["nodes_featureids"])[inner],
        np.asarray(columns["nodes_values"])[inner],
        codes,
        missing[inner],
        child,
        (first, target[used][order], weight[used][order]),
        [()] * int(inner.sum()),
    )


def from_leaves(c: Call) -> Forest:
    """The ensemble of TreeEnsemble, whose leaves are apart from its nodes."""
    split, weight, codes = (tensor(c, k) for k in ("nodes_splits", "leaf_weights", "nodes_modes"))
    if split is None or weight is None or codes is None:
        raise c.fail("nodes_splits, nodes_modes or leaf_weights is missing")
    if any(a.ndim != 1 or a.dtype.kind != k for a, k in ((split, "f"), (weight, "f"), (codes, "u"))):
        raise c.fail("nodes_splits and leaf_weights are not rows of floats, or nodes_modes no row of bytes")
    n, leaves = len(split), len(weight)
    target, feature = integers(c, "leaf_targetids"), integers(c, "nodes_featureids")
    if len(target) != leaves or len(feature) != n or len(codes) != n:
        raise c.fail(f"lists of {n} nodes and {leaves} leaves differ in length")
    if n and int(codes.max()) >= len(CODES):
        raise c.unsupported(f"a node of mode {int(codes.max())}")
    child = np.zeros((n, 2), np.int64)
    for side, name in enumerate(("true", "false")):
        at, is_leaf = integers(c, f"nodes_{name}nodeids"), integers(c, f"nodes_{name}leafs")
        if len(at) != n or len(is_leaf) != n:
            raise c.fail(f"nodes_{name}nodeids or nodes_{name}leafs has not {n} elements")
        top = np.where(is_leaf != 0, leaves, n)
        if ((at < 0) | (at >= top)).any():
            raise c.fail(f"nodes_{name}nodeids names a node or leaf that is not there")
        child[:, side] = np.where(is_leaf != 0, n + at, at)
    missing = _missing(c, n)
    found = tensor(c, "membership_values")
    if found is not None and found.dtype.kind != "f":
        raise c.fail("membership_values are no floats")
    values = iter(() if found is None else found.reshape(-1).tolist())
    # NaN ends a set
    sets = [tuple(takewhile(lambda v: v == v, values)) if CODES[int(k)] == MEMBER else () for k in codes]
    entries = np.arange(leaves + 1), target, weight.reshape(-1)
    return _checked(c, integers(c, "tree_roots"), feature, split, codes, missing, child, entries, sets)


def _missing(c: Call, n: int) -> Array:
    """bool[n]: whether a node sends NaN to its first child; one that the list does not reach does not."""
    given = integers(c, "nodes_missing_value_tracks_true")[:n]
    return np.asarray(np.r_[given, np.zeros(n - len(given), np.int64)] == 1)


class _Names:
    """Finds nodes by tree and number."""

    def __init__(self, c: Call, tree: Array, node: Array) -> None:
        self._c = c
        self._rows = {(int(t), int(k)): i for i, (t, k) in enumerate(zip(tree, node, strict=True))}
        if len(self._rows) != len(tree):
            raise c.fail("two nodes of a tree have the same number")

    def find(self, tree: Array, node: Array) -> Array:
        """Positions in the lists; an error for a node that is not there."""
        try:
            rows = [self._rows[int(t), int(k)] for t, k in zip(tree, node, strict=True)]
        except KeyError as e:
            t, k = e.args[0]
            raise self._c.fail(f"tree {t} has no node {k}") from None
        except ValueError:
            raise self._c.fail("lists of trees and nodes differ in length") from None
        return np.array(rows, np.int64)


def _checked(
    c: Call,
    root: Array,
    feature: Array,
    threshold: Array,
    codes: Array,
    missing: Array,
    child: Array,
    entries: tuple[Array, Array, Array],
    sets: list[tuple[float, ...]],
) -> Forest:
    """A validated forest without cycles; with one unreachable inner node where it has none. Raises
    SmeltError."""
    first, target, weight = entries
    if not len(root):
        raise c.fail("the ensemble has no tree")
    if not len(feature):
        root = root + 1
        feature, threshold, codes = np.zeros(1, np.int64), np.zeros(1, threshold.dtype), np.zeros(1, np.uint8)
        missing, child, sets = np.zeros(1, np.bool_), np.ones((1, 2), np.int64), [()]
    inner, leaves = len(feature), len(first) - 1
    if not leaves or ((root < 0) | (root >= inner + leaves)).any():
        raise c.fail("a tree has no leaf, or its root is not there")
    if len(feature) and int(feature.min()) < 0:
        raise c.fail(f"nodes_featureids has {int(feature.min())}")
    size = np.cumsum([0, *map(len, sets)])
    return Forest(
        root.astype(np.int32),
        _depths(c, root, child, inner).astype(np.int32),
        feature.astype(np.int32),
        threshold,
        codes.astype(np.uint8),
        missing,
        child.astype(np.int32),
        first.astype(np.int32),
        target.astype(np.int32),
        weight,
        size.astype(np.int32),
        np.array([v for own in sets for v in own], threshold.dtype),
    )


def _depths(c: Call, root: Array, child: Array, inner: int) -> Array:
    """The largest number of steps from each root to a leaf."""
    depth = np.zeros(len(root), np.int64)
    front, of, level = root, np.arange(len(root)), 0
    while True:
        on = front < inner
        front, of = front[on], of[on]
        if not len(front):
            return depth
        level += 1
        if level > inner:
            raise c.fail("nodes of a tree form a circle")
        depth[of] = level
        pairs = np.unique(np.stack([np.repeat(of, 2), child[front].reshape(-1)]), axis=1)
        of, front = pairs
