"""Tree traversal: all rows traverse all trees at once, one level of nodes at a time.

    node = roots                                   (rows, trees)
    for each level:
        way  = comparison of x[row, feature[node]] with threshold[node]: less, equal, greater...
        node = children[node, way]
    scores = sums over trees of the contributions of leaves

Comparisons are exact, so each row reaches the leaves that onnxruntime finds, except if a device
flushes subnormals to 0. Sums are rounded in another order. Examples:
tests/importers/test_onnx_trees.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..... import ops
from .....common.dtypes import BOOL, FLOAT32, FLOAT64, NDArray, numpy_dtype
from .....common.errors import ModelFormatError
from .....ir.tensor import Tensor, as_tensor
from ...nodes.cpu_node import describe
from ...nodes.node import NodeContext
from ...nodes.tree_tables import TreeTables, from_columns, from_tensors
from ...nodes.values import Value, known
from ..narrow_types import cast
from .scores import rows_of

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""Aggregations in the numbering of TreeEnsemble."""
MAX_TARGETS = 1 << 16
"""Maximum number of targets or classes, as in onnxruntime."""
_WEIGHTED = ("treeids", "nodeids", "ids")
"""Attributes with one element per leaf weight."""
_EMPTY = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}
_REDUCE = {
    "SUM": ops.reduce_sum,
    "AVERAGE": ops.reduce_sum,
    "MIN": ops.reduce_min,
    "MAX": ops.reduce_max,
}


@dataclass(frozen=True)
class _Tables:
    """A forest as Tensors: see `_arrays`.

    Attributes
    ----------
    roots
        Start node of each walk.
    ways
        Number of children per node.
    used
        Targets that at least one leaf contributes to.
    width
        Number of walks per target if each tree contributes to a single target; 0 if leaves of a
        tree may contribute to all targets.
    reads
        Number of features that the trees read.
    """

    features: Tensor
    thresholds: Tensor
    children: Tensor
    weights: Tensor
    contributes: Tensor | None
    roots: Tensor
    used: tuple[int, ...]
    branches: int
    depth: int
    trees: int
    ways: int
    width: int
    reads: int


@dataclass(frozen=True)
class Scores:
    """Scores of trees (rows, used).

    Attributes
    ----------
    used
        Targets that at least one leaf contributes to.
    contributes
        True if a leaf contributes for a row (rows, used); None if this holds for all.
    """

    values: Tensor
    used: tuple[int, ...]
    contributes: Tensor | None

    def all(self, targets: int) -> Tensor:
        """Return (rows, targets), 0 without contributions."""
        values = self.values
        if self.contributes is not None:
            values = ops.where(self.contributes, values, ops.zeros(values.shape, values.dtype))
        return self._spread(values, targets)

    def all_contribute(self, targets: int) -> Tensor | None:
        """Return True if a leaf contributes to a target (rows, targets); None if this holds for
        all.
        """
        if self.contributes is None and len(self.used) == targets:
            return None
        contributes = self.contributes
        if contributes is None:
            contributes = ops.full(self.values.shape, True, BOOL)
        return self._spread(contributes, targets)

    def _spread(self, x: Tensor, targets: int) -> Tensor:
        """Expand (rows, used) to (rows, targets), 0 for unused targets."""
        if len(self.used) == targets:
            return x
        places = np.full(targets, len(self.used), np.int32)
        places[list(self.used)] = np.arange(len(self.used), dtype=np.int32)
        empty = ops.full((x.shape[0], 1), 0, x.dtype)
        return ops.gather(ops.concat([x, empty], 1), places, 1)

    def column(self, target: int) -> Tensor:
        """Return (rows, 1), 0 without contributions."""
        return self.masked(target, self._column(self.values, target))

    def masked(self, target: int, x: Tensor) -> Tensor:
        """Return x (rows, 1), 0 for rows without contributions to a target."""
        zero = ops.zeros(x.shape, x.dtype)
        if target not in self.used:
            return zero
        return x if self.contributes is None else ops.where(self.contributes_to(target), x, zero)

    def contributes_to(self, target: int) -> Tensor:
        """Return True if a leaf contributes to a used target (rows, 1)."""
        assert self.contributes is not None
        return self._column(self.contributes, target)

    def _column(self, x: Tensor, target: int) -> Tensor:
        at = self.used.index(target) if target in self.used else 0
        return ops.slice(x, at, at + 1, 1) if x.shape[1] > 1 else x

    def plus(self, base: NDArray) -> Scores:
        """Return a copy with a base value per target, which counts if a leaf contributes to it."""
        more = base[list(self.used)].astype(numpy_dtype(self.values.dtype))
        return Scores(self.values + more, self.used, self.contributes)


def aggregate(n: NodeContext, targets: int, how: str) -> Scores:
    """Return the aggregated scores of a node's trees."""
    n.require(0 < targets <= MAX_TARGETS, f"{targets} targets")
    x = rows_of(n)
    if x.dtype not in (FLOAT32, FLOAT64):
        x = cast(x, FLOAT32)
    n.require(math.prod(x.shape) < 1 << 31, f"{x.shape[0]} rows of {x.shape[1]} features")
    tables = _tables(n, targets, how, x.dtype)
    n.require(tables.reads <= x.shape[1], f"{x.shape[1]} features, of which it reads more")
    leaf = _walk(x, tables) - tables.branches
    rows, used = x.shape[0], tables.used
    found, axis = ops.gather(tables.weights, leaf), 1  # (rows, trees, targets)
    if tables.width:
        found, axis = ops.reshape(found, (rows, len(used), tables.width)), 2
    total = _REDUCE[how](found, axis)
    if how == "AVERAGE":
        total = total / float(tables.trees)
    contributes = None
    if tables.contributes is not None:
        contributes = ops.reduce_any(ops.gather(tables.contributes, leaf), axis)
    return Scores(total, used, contributes)


def _walk(x: Tensor, tables: _Tables) -> Tensor:
    """Return the leaf of each row in each walk: (rows, features) -> (rows, walks)."""
    first = ops.reshape(tables.roots, (1, -1))
    rows, features = x.shape
    node = ops.expand(first, (rows, first.shape[1]))
    flat, start = ops.reshape(x, (-1,)), as_tensor(_row_starts(rows, features))
    for _ in range(tables.depth):
        value = ops.gather(flat, ops.gather(tables.features, node) + start)
        split = ops.gather(tables.thresholds, node)
        way = _way(value, split, tables.ways)
        node = ops.gather(tables.children, node * np.int32(tables.ways) + way)
    return node


def _row_starts(rows: int, features: int) -> NDArray:
    """Return the offset of each row in the flattened features: (rows, 1)."""
    return np.asarray(np.arange(rows, dtype=np.int32) * np.int32(features)).reshape(-1, 1)


def _way(value: Tensor, split: Tensor, ways: int) -> Tensor:
    """Return the index of the child that follows.

    Parameters
    ----------
    ways
        2 if all modes only test whether a feature is at most the threshold.
    """
    if ways == 2:
        return ops.where(ops.less_equal(value, split), np.int32(0), np.int32(1))
    beyond = ops.where(ops.greater(value, split), np.int32(2), np.int32(3))
    way = ops.where(ops.equal(value, split), np.int32(1), beyond)
    return ops.where(ops.less(value, split), np.int32(0), way)


def _tables(n: NodeContext, targets: int, how: str, dtype: str) -> _Tables:
    """Return the tables of a node, cached for all lowerings of the model."""

    def make() -> list[Value | None]:
        try:
            return [known(array) for array in _arrays(_forest(n), targets, how, dtype)]
        except (ValueError, LookupError, TypeError) as error:
            raise ModelFormatError(f"[onnx] {describe(n.node)}: {error}") from error

    key = f"forest {targets} {how} {dtype} ".encode()
    result = n.lowering.context.fold(key + n.node.SerializeToString(deterministic=True), (), make)
    values = [v for v in result or () if v is not None and v.array is not None]
    numbers, used, *tables = values
    tensors = [n.lowering.tensor(v) if v.array.size else None for v in tables]  # type: ignore[union-attr]
    roots, features, thresholds, children, weights, contributes = tensors
    assert roots is not None and features is not None and thresholds is not None
    assert children is not None and weights is not None
    branches, depth, trees, ways, width, reads = numbers.array.tolist()  # type: ignore[union-attr]
    return _Tables(
        features,
        thresholds,
        children,
        weights,
        contributes,
        roots,
        tuple(used.array.tolist()),  # type: ignore[union-attr]
        branches,
        depth,
        trees,
        ways,
        width,
        reads,
    )


def _arrays(forest: TreeTables, targets: int, how: str, dtype: str) -> list[NDArray]:
    """Return the tables of a forest: numbers, used targets, roots, features, thresholds, children,
    weights by leaf, and a mask of leaves with weights, which is empty if all have.

    If each tree contributes to a single target, walks are sorted by target and padded with walks
    that start at an empty leaf: then the sum for a target is one over adjacent walks.
    """
    leaves, ids = forest.leaves, forest.targets
    weights = forest.weights.astype(numpy_dtype(dtype))
    if ids.size and not 0 <= ids.min() <= ids.max() < targets:
        raise ValueError(f"expected targets of leaves below {targets}")
    if not ids.size:
        raise ValueError("expected leaves with weights")
    if targets == 1:  # of several weights of a leaf the first one counts
        leaves, first = np.unique(leaves, return_index=True)
        ids, weights = ids[first], weights[first]
    used, column = np.unique(ids, return_inverse=True)
    count, empty = len(forest.children) - forest.branches, _EMPTY[how]
    features, thresholds, children = forest.features, forest.thresholds, forest.children
    roots, width = forest.roots, 0
    contributes = np.zeros(0, bool)
    walks = _walks_of_targets(forest, leaves, column, len(used), count)
    if walks is not None:
        table = np.full(count + 1, empty, weights.dtype)
        table[leaves] = weights
        own = len(children)
        features, thresholds = np.append(features, np.int32(0)), np.append(thresholds, 0)
        children = np.append(children, np.full((1, 4), own, np.int32), axis=0)
        roots = np.where(walks < 0, own, forest.roots[walks]).astype(np.int32).reshape(-1)
        width = walks.shape[1]
    else:
        table = np.full((count, len(used)), empty, weights.dtype)
        combine = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
        combine.at(table, (leaves, column), weights)
        mask = np.zeros(table.shape, bool)
        mask[leaves, column] = True
        contributes = contributes if mask.all() else mask
    reads = int(forest.features.max(initial=-1)) + 1
    if (children[:, 0] == children[:, 1]).all() and (children[:, 2] == children[:, 3]).all():
        children = children[:, ::2]
    numbers = [forest.branches, forest.depth, len(forest.roots), children.shape[1], width, reads]
    thresholds = thresholds.astype(numpy_dtype(dtype))
    return [
        *(np.array(numbers), used, roots, features, thresholds),
        *(np.ascontiguousarray(children).reshape(-1), table, contributes),
    ]


def _walks_of_targets(
    forest: TreeTables, leaves: NDArray, column: NDArray, used: int, count: int
) -> NDArray | None:
    """Return the trees that contribute to each used target (used, width), padded with -1.

    Return None if a tree contributes to several targets, a leaf to none, or padding would add far
    more walks.
    """
    if len(leaves) != count or len(np.unique(leaves)) != count:
        return None
    of_leaf = np.empty(count, np.int64)
    of_leaf[leaves] = column
    owner = np.full(len(forest.children), -1, np.int64)
    line, trees = forest.roots.astype(np.int64), np.arange(len(forest.roots))
    while line.size:
        owner[line] = trees
        if (owner[line] != trees).any():
            return None  # a node shared by two trees
        inner = line < forest.branches
        line, trees = forest.children[line[inner]].reshape(-1), np.repeat(trees[inner], 4)
        line, first = np.unique(line, return_index=True)
        trees = trees[first]
    target = np.full(len(forest.roots), -1, np.int64)
    of_tree = owner[forest.branches :]
    reached = of_tree >= 0
    target[of_tree[reached]] = of_leaf[reached]
    if (target[of_tree[reached]] != of_leaf[reached]).any():
        return None
    groups = [np.flatnonzero(target == t) for t in range(used)]
    width = max(map(len, groups))
    if not width or width * used > 2 * len(forest.roots) + used or not all(map(len, groups)):
        return None
    out = np.full((used, width), -1, np.int64)
    for row, group in zip(out, groups, strict=True):
        row[: len(group)] = group
    return out


def _forest(n: NodeContext) -> TreeTables:
    """Return the forest of a node.

    Raises
    ------
    ValueError
        Its attributes describe no trees.
    """
    if n.op_type == "TreeEnsemble":
        lists = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
        names = [*(f"nodes_{name}" for name in lists), "nodes_missing_value_tracks_true"]
        columns = {name: n.attr(name, ()) for name in (*names, "leaf_targetids", "tree_roots")}
        splits, weights = n.attr("nodes_splits"), n.attr("leaf_weights")
        members = n.attr("membership_values", splits[:0])
        return from_tensors(columns, n.attr("nodes_modes"), splits, weights, members)
    names = ["treeids", "nodeids", "featureids", "truenodeids", "falsenodeids", "modes"]
    columns = {name: n.attr(f"nodes_{name}", ()) for name in names}
    columns["missing_value_tracks_true"] = n.attr("nodes_missing_value_tracks_true", ())
    columns["values"] = floats_of(n, "nodes_values")
    kind = "class" if n.op_type.endswith("Classifier") else "target"
    ids = [np.array(n.attr(f"{kind}_{name}", ()), np.int64) for name in _WEIGHTED]
    return from_columns(columns, [*ids, floats_of(n, f"{kind}_weights")])


def floats_of(n: NodeContext, name: str) -> NDArray:
    """Return an attribute of floats, which may be a tensor since version 3."""
    tensor = n.attr(f"{name}_as_tensor")
    if tensor is not None and tensor.size:
        return np.asarray(tensor).reshape(-1)
    return np.array(n.attr(name, ()), np.float32)
