"""Forest: the trees of ai.onnx.ml's tree ensembles as tables for traversal with gathers.

Problem: each node compares a feature with a threshold in one of six ways, or looks it up in a set,
and missing values may go either way. Method: the next node depends only on whether the feature is
less than the threshold, equal, greater, or unordered (NaN on one side). So a node is a feature, a
threshold and four children, and one comparison serves all modes. A leaf is its own child.

    node   feature  threshold   less  equal  greater  unordered
       0         2        0.5      1      1        2          2     BRANCH_LEQ
       1         -          -      1      1        1          1     leaf

A set of values becomes a binary search tree of equality tests. Complexity: O(nodes log(nodes)).
Examples: tests/importers/test_onnx_trees.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....common.dtypes import NDArray

MAX_DEPTH = 512
"""Maximum depth of a tree: each level adds several ops to the graph."""
MODES = {
    "BRANCH_LEQ": (True, True, False, False),
    "BRANCH_LT": (True, False, False, False),
    "BRANCH_GTE": (False, True, True, False),
    "BRANCH_GT": (False, False, True, False),
    "BRANCH_EQ": (False, True, False, False),
    "BRANCH_NEQ": (True, False, True, True),
}
"""The result of each comparison if the feature is less, equal, greater, or unordered."""
LEAF = "LEAF"
NUMBERED = (*MODES, "BRANCH_MEMBER")
"""The modes in the numbering of TreeEnsemble: LEQ, LT, GTE, GT, EQ, NEQ, MEMBER."""
UNORDERED = 3


@dataclass(frozen=True)
class TreeTables:
    """Trees as tables. Branches come first, then leaves.

    Attributes
    ----------
    features, thresholds
        Feature and threshold of each node.
    children
        Children of each node: less, equal, greater, unordered.
    roots
        Root node of each tree.
    branches
        Number of nodes that are not leaves.
    depth
        Depth of the deepest tree.
    leaves, targets, weights
        Contributions of leaves, each to one target; sorted by leaf, then in file order.
    """

    features: NDArray
    thresholds: NDArray
    children: NDArray
    roots: NDArray
    branches: int
    depth: int
    leaves: NDArray
    targets: NDArray
    weights: NDArray


@dataclass
class Branches:
    """Nodes of trees while they are read; negative children are leaves: -1 is leaf 0."""

    features: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    children: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, feature: int, threshold: float, children: Sequence[int]) -> int:
        """Add a node and return its index."""
        self.features.append(feature)
        self.thresholds.append(threshold)
        self.children.append(tuple(children))
        return len(self.features) - 1


def ways(mode: str, threshold: float, missing: bool, yes: int, no: int) -> tuple[int, ...]:
    """Return the children of a node by comparison result; if `missing`, NaN goes to `yes`."""
    holds = MODES[mode]
    if threshold != threshold:  # NaN: all ordered features take one branch
        holds = (holds[UNORDERED],) * 4
    return tuple(yes if h else no for h in (*holds[:3], holds[UNORDERED] or missing))


def from_columns(columns: dict[str, Sequence[object]], weighted: Iterable[NDArray]) -> TreeTables:
    """Return the forest of a TreeEnsembleClassifier or TreeEnsembleRegressor.

    Parameters
    ----------
    columns
        Attributes with one element per node, by name without "nodes_".
    weighted
        Trees, nodes, targets and weights of the leaves' contributions.

    Raises
    ------
    ValueError
        The attributes describe no trees.
    """
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    tree, node, feature, yes, no = (np.asarray(columns[n], np.int64) for n in names)
    mode, threshold = np.asarray(columns["modes"], object), np.asarray(columns["values"])
    count = len(tree)
    missing = np.zeros(count, bool)
    missing_true = np.asarray(columns["missing_value_tracks_true"], np.int64)
    if any(len(a) != count for a in (node, feature, yes, no, mode, threshold)) or not count:
        raise ValueError(f"expected as many of each attribute of nodes, at least one, got {count}")
    missing[: len(missing_true)] = missing_true[:count] == 1
    unknown = sorted(set(mode) - {*MODES, LEAF})
    if unknown:
        raise ValueError(f"expected modes of {[*MODES, LEAF]}, got {unknown[0]!r}")
    find = _Finder(tree, node)
    is_leaf = mode == LEAF
    place = np.where(is_leaf, np.cumsum(is_leaf) - 1, np.cumsum(~is_leaf) - 1)
    place[is_leaf] = -1 - place[is_leaf]  # leaves are negative, as in Branches
    branch_table = Branches()
    inner = np.flatnonzero(~is_leaf)
    targets_of = place[find(tree[inner], yes[inner])], place[find(tree[inner], no[inner])]
    for i, then, other in zip(inner, *targets_of, strict=True):
        value = threshold[i].item()
        children = ways(mode[i], value, bool(missing[i]), int(then), int(other))
        branch_table.add(int(feature[i]), 0.0 if value != value else value, children)
    starts = np.flatnonzero(np.diff(tree, prepend=tree[0] - 1) != 0)
    trees, nodes, targets, weights = (np.asarray(a) for a in weighted)
    if not len(trees) == len(nodes) == len(targets) == len(weights):
        raise ValueError("expected as many trees, nodes, targets and weights of leaves")
    order = np.lexsort((np.arange(len(trees)), nodes, trees))
    leaf = -1 - place[find(trees[order], nodes[order])]
    at_leaf = leaf >= 0  # old converters also write weights for branches, which are ignored
    targets, weights = targets[order][at_leaf], weights[order][at_leaf]
    return _finish(
        branch_table,
        place[starts],
        int(is_leaf.sum()),
        leaf[at_leaf],
        targets,
        weights,
        threshold.dtype,
    )


class _Finder:
    """Find nodes by tree and node ids."""

    def __init__(self, tree: NDArray, node: NDArray) -> None:
        self._order = np.lexsort((node, tree))
        keys = _keys(tree, node)[self._order]
        if (keys[1:] == keys[:-1]).any():
            raise ValueError("expected each node of a tree once")
        self._keys = keys

    def __call__(self, tree: NDArray, node: NDArray) -> NDArray:
        keys = _keys(tree, node)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        wrong = np.flatnonzero(self._keys[at] != keys)
        if wrong.size:
            raise ValueError(f"expected a node {node[wrong[0]]} in tree {tree[wrong[0]]}, got none")
        return np.asarray(self._order[at])


def _keys(tree: NDArray, node: NDArray) -> NDArray:
    for numbers in (tree, node):
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < 1 << 31:
            raise ValueError("expected numbers of trees and nodes of 31 bits")
    return np.asarray(tree * (1 << 31) + node)


def from_tensors(
    columns: dict[str, Sequence[int]],
    modes: NDArray,
    splits: NDArray,
    weights: NDArray,
    members: NDArray,
) -> TreeTables:
    """Return the forest of a TreeEnsemble; `columns` holds its integer lists by name.

    Raises
    ------
    ValueError
        The attributes describe no trees.
    """
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    feature, yes, no, yes_leaf, no_leaf = (
        np.asarray(columns[f"nodes_{name}"], np.int64) for name in names
    )
    count, leaves = len(modes), len(weights)
    if any(len(a) != count for a in (feature, yes, no, yes_leaf, no_leaf, splits)) or not count:
        raise ValueError(f"expected as many of each attribute of nodes, at least one, got {count}")
    targets = np.asarray(columns["leaf_targetids"], np.int64)
    if len(targets) != leaves:
        raise ValueError(f"expected a target for each of {leaves} leaves, got {len(targets)}")
    for ids, leaf in ((yes, yes_leaf), (no, no_leaf)):
        if ((ids < 0) | (ids >= np.where(leaf != 0, leaves, count))).any():
            raise ValueError("expected children that exist")
    if modes.max() >= len(NUMBERED):
        raise ValueError(f"expected modes below {len(NUMBERED)}, got {modes.max()}")
    missing = np.zeros(count, bool)
    missing_true = np.asarray(columns["nodes_missing_value_tracks_true"], np.int64)
    missing[: len(missing_true)] = missing_true[:count] == 1
    yes, no = (np.where(leaf != 0, -1 - ids, ids) for ids, leaf in ((yes, yes_leaf), (no, no_leaf)))
    sets = iter(np.split(members, np.flatnonzero(np.isnan(members)) + 1))
    branch_table = Branches([0] * count, [0.0] * count, [()] * count)
    for i in range(count):
        mode, value = NUMBERED[int(modes[i])], splits[i].item()
        children = int(yes[i]), int(no[i])
        if mode == "BRANCH_MEMBER":
            found = next(sets, members[:0])
            values = sorted({v for v in found.tolist() if v == v})
            _add_set(branch_table, i, int(feature[i]), values, children, bool(missing[i]))
            continue
        branch_table.features[i] = int(feature[i])
        branch_table.thresholds[i] = 0.0 if value != value else value
        branch_table.children[i] = ways(mode, value, bool(missing[i]), *children)
    roots = np.asarray(columns["tree_roots"], np.int64)
    if not roots.size or roots.min() < 0 or roots.max() >= count:
        raise ValueError(f"expected roots among {count} nodes")
    return _finish(branch_table, roots, leaves, np.arange(leaves), targets, weights, splits.dtype)


def _add_set(
    branch_table: Branches,
    at: int,
    feature: int,
    values: Sequence[float],
    children: tuple[int, int],
    missing: bool,
) -> None:
    """Turn node `at` into the root of a binary search for a feature in sorted values."""
    yes, no = children
    none = yes if missing else no
    branch_table.features[at] = feature
    if not values:
        branch_table.children[at] = (no, no, no, none)
        return
    stack = [(at, 0, len(values))]
    while stack:
        node, low, high = stack.pop()
        middle = (low + high) // 2
        sides = []
        for part in ((low, middle), (middle + 1, high)):
            side = no
            if part[0] < part[1]:
                side = branch_table.add(feature, 0.0, ())
                stack.append((side, *part))
            sides.append(side)
        branch_table.thresholds[node] = values[middle]
        branch_table.children[node] = (sides[0], yes, sides[1], none)


def _finish(
    branch_table: Branches,
    roots: NDArray,
    leaf_count: int,
    leaves: NDArray,
    targets: NDArray,
    weights: NDArray,
    dtype: np.dtype[np.generic],
) -> TreeTables:
    """Return branches and leaves as tables, leaves after the branches."""
    branches = len(branch_table.features)
    inner = np.array(branch_table.children, np.int64).reshape(branches, 4)
    own = np.repeat(np.arange(branches, branches + leaf_count)[:, None], 4, axis=1)
    children = np.concatenate([np.where(inner < 0, branches - 1 - inner, inner), own])
    starts = np.where(roots < 0, branches - 1 - roots, roots)
    features = np.array(branch_table.features + [0] * leaf_count, np.int64)
    if features.size and not 0 <= features.min() <= features.max() < 1 << 31:
        raise ValueError("expected numbers of features of 31 bits")
    return TreeTables(
        features.astype(np.int32),
        np.array(branch_table.thresholds + [0.0] * leaf_count).astype(dtype),
        children.astype(np.int32),
        starts.astype(np.int32),
        branches,
        _depth(children, starts, branches),
        leaves.astype(np.int64),
        targets.astype(np.int64),
        weights,
    )


def _depth(children: NDArray, roots: NDArray, branches: int) -> int:
    """Return the number of steps from the roots to the deepest leaf.

    Raises
    ------
    ValueError
        A path is longer than MAX_DEPTH, for instance a cycle.
    """
    depth, line = 0, np.unique(roots)
    while (line := line[line < branches]).size:
        if depth == MAX_DEPTH:
            raise ValueError(f"expected trees of at most {MAX_DEPTH} levels, and no cycles")
        line, depth = np.unique(children[line]), depth + 1
    return depth
