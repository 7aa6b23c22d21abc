"""Rules for tree ensembles: convert the sums of leaves to scores and labels.

Two classes follow onnxruntime exactly. Examples: tests/importers/test_onnx_trees.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from ..... import ops
from .....common.dtypes import FLOAT32, NDArray, numpy_dtype
from .....ir.tensor import Tensor
from ...nodes.elements import storage
from ...nodes.node import NodeContext
from ...nodes.values import Value
from ..narrow_types import cast
from ..registry import Results, rule
from .scores import (
    ML,
    NUMERIC,
    TRANSFORMS,
    both,
    chosen,
    labelled,
    transformed,
    two_columns,
    with_numbers,
)
from .tree_traversal import AGGREGATES, Scores, aggregate, floats_of

T = TensorProto

# -- regressors ----------------------------------------------------------------------------------


@rule("TreeEnsembleRegressor", domain=ML, types=NUMERIC)
def regressor(n: NodeContext) -> Results:
    how = n.attr("aggregate_function", "SUM")
    return _regression(n, how, n.attr("n_targets", 0), n.attr("post_transform", "NONE"), T.FLOAT)


@rule("TreeEnsemble", domain=ML, types=(T.FLOAT, T.DOUBLE, T.FLOAT16))
def ensemble(n: NodeContext) -> Results:
    how, post = n.attr("aggregate_function", 1), n.attr("post_transform", 0)
    n.require(0 <= how < len(AGGREGATES), f"aggregate_function {how}")
    n.require(0 <= post < len(TRANSFORMS), f"post_transform {post}")
    return _regression(n, AGGREGATES[how], n.attr("n_targets", 0), TRANSFORMS[post], n.elem_type(0))


def _regression(n: NodeContext, how: str, targets: int, post: str, elem_type: int) -> Results:
    n.require(how in AGGREGATES, f"aggregate_function {how!r}")
    base = np.array([], np.float32) if n.op_type == "TreeEnsemble" else floats_of(n, "base_values")
    found = aggregate(n, targets, how)
    if base.size == targets:
        found = found.plus(base)
    scores = found.all(targets)
    if targets > 1 or post == "PROBIT":  # for one target no other transform applies
        scores = transformed(n, scores, post)
    return Value(elem_type, tensor=cast(scores, storage(elem_type)))


# -- classifiers ---------------------------------------------------------------------------------


@rule("TreeEnsembleClassifier", domain=ML, types=NUMERIC)
def classifier(n: NodeContext) -> Results:
    if with_numbers(n, n.attr("classlabels_strings", ()), "classlabels_int64s"):
        return []
    labels = n.attr("classlabels_int64s", ()) or range(len(n.attr("classlabels_strings", ())))
    n.require(len(labels) > 0, "no labels of classes")
    base = floats_of(n, "base_values")
    found = aggregate(n, len(labels), "SUM")
    post = n.attr("post_transform", "NONE")
    if len(labels) > 2:
        return _of_many(n, found, labels, base, post)
    if len(labels) == 2:
        return _of_two(n, found, labels, base, post)
    return _of_one(n, found, base, post)


def _of_many(
    n: NodeContext, found: Scores, labels: Sequence[int], base: NDArray, post: str
) -> Results:
    """Return the class of the largest score; a class without contributions has no score."""
    scores = found.all(len(labels))
    n.require(base.size in (0, len(labels)), f"{base.size} base_values for {len(labels)} classes")
    if base.size:
        rated = scores = scores + base.astype(numpy_dtype(scores.dtype))
    else:
        has_score = found.all_contribute(len(labels))
        rated = scores if has_score is None else ops.where(has_score, scores, -np.inf)
    label = labelled(ops.argmax(rated, 1, False), labels)
    return [label, _scores(transformed(n, scores, post))]


def _of_two(
    n: NodeContext, found: Scores, labels: Sequence[int], base: NDArray, post: str
) -> Results:
    """Return results of two classes.

    If no leaf contributes to the second class, the score of the first applies to both; this can
    vary between rows. Labels are 0 and 1 if both classes have weights.
    """
    n.require(base.size <= 2, f"{base.size} base_values for two classes")
    alone = len(found.used) == 1
    if 1 not in found.used:
        rated, scores = _one_score(n, found, base, post)
    elif found.contributes is None:
        rated, scores = _two_scores(n, found, base, post)
    else:
        has_second = found.contributes_to(1)
        pairs = zip(
            _two_scores(n, found, base, post), _one_score(n, found, base, post), strict=True
        )
        rated, scores = (
            ops.where(has_second, cast(two, FLOAT32), cast(one, FLOAT32)) for two, one in pairs
        )
    threshold = 0.5 if alone and _are_positive(n) else 0.0
    is_second = ops.reshape(ops.greater(rated, threshold), (-1,))
    return [chosen(is_second, labels if alone else (0, 1)), _scores(scores)]


def _one_score(n: NodeContext, found: Scores, base: NDArray, post: str) -> tuple[Tensor, Tensor]:
    """Return the value that decides the label, and both scores, for rows without a second score."""
    first = found.column(0)
    if base.size:
        first = found.masked(0, first + base[0].astype(numpy_dtype(first.dtype)))
    if base.size == 2:
        pair = two_columns(first, ops.zeros(first.shape, first.dtype))
        return first, transformed(n, pair, post)
    alone = len(found.used) == 1
    if post == "PROBIT" or (base.size and not alone):  # the second score is not specified
        score = transformed(n, first, post if post == "PROBIT" else "NONE")
        return first, two_columns(score, ops.zeros(score.shape, score.dtype))
    return first, both(first, post, shares=alone and _are_positive(n))


def _two_scores(n: NodeContext, found: Scores, base: NDArray, post: str) -> tuple[Tensor, Tensor]:
    """Return the value that decides the label, and both scores, for rows with a second score."""
    first, second = found.column(0), found.column(1)
    values = base.astype(numpy_dtype(first.dtype))
    if base.size == 2:  # as in onnxruntime: the second score is then ignored
        second = first + values[1]
        first = found.masked(0, ops.neg(second))
    elif base.size:
        first = found.masked(0, first + values[0])
    return second, transformed(n, two_columns(first, second), post)


def _are_positive(n: NodeContext) -> bool:
    return bool((floats_of(n, "class_weights") >= 0).all())


def _of_one(n: NodeContext, found: Scores, base: NDArray, post: str) -> Results:
    """One class: the label is 1 if its score is positive, else 0."""
    n.require(base.size <= 1, f"{base.size} base_values for one class")
    score = found.all(1)
    if base.size:
        score = score + base.astype(numpy_dtype(score.dtype))
    label = chosen(ops.reshape(ops.greater(score, 0.0), (-1,)), (0, 1))
    return [label, _scores(transformed(n, score, post) if post == "PROBIT" else score)]


def _scores(x: Tensor) -> Value:
    return Value(T.FLOAT, tensor=cast(x, FLOAT32))
