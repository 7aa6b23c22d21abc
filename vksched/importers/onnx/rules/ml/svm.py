"""Rules for support vector machines and linear models.

    kernel = K(x, support vectors)                     (rows, vectors)
    score  = kernel @ coefficients + rho               (rows, pairs of classes)
    label  = the class that wins most of its pairs

Source: libsvm; details that it leaves open follow onnxruntime. Class probabilities are computed
from pairwise ones on the CPU (Wu, Lin, Weng: Probability Estimates for Multi-class Classification
by Pairwise Coupling, 2004), because the number of iterations depends on them. Examples:
tests/importers/test_onnx_classical.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from onnx import TensorProto
from onnx.helper import make_node

from ..... import ops
from .....common.dtypes import FLOAT32, NDArray
from .....ir.tensor import Tensor, as_tensor
from ...nodes.ai_onnx_ml import COUPLING
from ...nodes.cpu_node import add_host_node
from ...nodes.node import NodeContext
from ...nodes.values import CpuValueType, Value
from ..narrow_types import cast
from ..registry import Results, rule
from .scores import (
    ML,
    NUMERIC,
    both,
    chosen,
    labelled,
    rows_of,
    shared,
    transformed,
    two_columns,
    with_numbers,
)

T = TensorProto
PIECE = 1 << 24
"""Maximum number of differences between rows and support vectors in memory."""
MAX_PIECES = 64


def _operand(n: NodeContext, features: int) -> Tensor:
    """Return the rows of a node as float32."""
    x = cast(rows_of(n), FLOAT32)
    n.require(x.shape[1] == features, f"{x.shape[1]} features, expected {features}")
    return x


def _floats(n: NodeContext, name: str) -> NDArray:
    return np.array(n.attr(name, ()), np.float32)


def _planes(n: NodeContext, weights: NDArray, count: int) -> Tensor:
    """Return weights (planes * features) as (features, planes)."""
    return shared(n, "coefficients", np.ascontiguousarray(weights.reshape(count, -1).T))


def _score(x: Tensor) -> Value:
    return Value(T.FLOAT, tensor=x)


# -- kernels -------------------------------------------------------------------------------------


def _kernel(n: NodeContext, x: Tensor, vectors: NDArray) -> Tensor:
    """Return the kernel of rows and support vectors: (rows, features) -> (rows, vectors)."""
    kind = n.attr("kernel_type", "LINEAR")
    params = [*n.attr("kernel_params", ()), 0.0, 0.0, 0.0]
    gamma, coef0, degree = params[:3]
    if kind == "RBF":
        return ops.exp(_distances(n, x, vectors) * -gamma)
    product = ops.matmul(x, shared(n, "vectors", np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    n.require(kind in ("POLY", "SIGMOID"), f"kernel_type {kind!r}")
    inner = product * gamma + coef0
    return ops.tanh(inner) if kind == "SIGMOID" else _power(inner, degree)


def _power(x: Tensor, degree: float) -> Tensor:
    if degree == 2:
        return ops.square(x)
    return ops.square(x) * x if degree == 3 else ops.pow(x, degree)


def _distances(n: NodeContext, x: Tensor, vectors: NDArray) -> Tensor:
    """Return squared distances as sums of squared differences, in blocks of vectors.

    Matmul would subtract large numbers and lose precision.
    """
    rows, features = x.shape
    count = len(vectors)
    pieces = min(max(1, math.ceil(rows * features * count / PIECE)), MAX_PIECES, max(count, 1))
    spread = ops.reshape(x, (rows, 1, features))
    parts = []
    for i, part in enumerate(np.array_split(vectors, pieces)):
        held = shared(n, f"vectors {i} of {pieces}", part[None])
        parts.append(ops.reduce_sum(ops.square(spread - held), 2))
    return parts[0] if pieces == 1 else ops.concat(parts, 1)


# -- classifiers ---------------------------------------------------------------------------------


@rule("SVMClassifier", domain=ML, types=NUMERIC)
def svm_classifier(n: NodeContext) -> Results:
    if with_numbers(n, n.attr("classlabels_strings", ()), "classlabels_ints"):
        return []
    labels = n.attr("classlabels_ints", ()) or range(len(n.attr("classlabels_strings", ())))
    n.require(len(labels) > 0, "no labels of classes")
    if sum(n.attr("vectors_per_class", ())):
        return _by_vectors(n, labels)
    return _by_planes(n, labels)


def _by_planes(n: NodeContext, labels: Sequence[int]) -> Results:
    """Classify with one hyperplane per class, without support vectors, as in liblinear."""
    classes, weights, rho = len(labels), _floats(n, "coefficients"), _floats(n, "rho")
    n.require(bool(weights.size) and weights.size % classes == 0, "coefficients of no planes")
    n.require(rho.size > 0, "no rho")
    x = _operand(n, weights.size // classes)
    scores = ops.matmul(x, _planes(n, weights, classes)) + rho[0]
    post = n.attr("post_transform", "NONE")
    index = ops.argmax(scores, 1, False)
    label = labelled(index, labels)
    if classes == 2 and not n.attr("prob_a", ()):
        largest = ops.reduce_max(scores, 1)
        positive = bool((weights >= 0).all())
        wins = ops.greater_equal(largest, 0.5) if positive else ops.greater(largest, 0.0)
        label = chosen(ops.logical_or(wins, ops.equal(ops.cast(index, "int32"), 1)), labels)
    if classes == 1 and post != "PROBIT":
        post = "NONE"
    return [label, _score(transformed(n, scores, post))]


def _by_vectors(n: NodeContext, labels: Sequence[int]) -> Results:
    per_class, classes = n.attr("vectors_per_class"), len(labels)
    n.require(len(per_class) == classes, f"vectors of {len(per_class)} classes for {classes}")
    count = sum(per_class)
    vectors, rho = _floats(n, "support_vectors"), _floats(n, "rho")
    n.require(vectors.size % count == 0, f"{vectors.size} numbers of {count} support vectors")
    n.require(min(per_class) >= 0, f"vectors_per_class {min(per_class)}")
    count_of_pairs = math.comb(classes, 2)
    n.require(rho.size >= count_of_pairs, f"{rho.size} of rho for {count_of_pairs} pairs")
    pairs = list(combinations(range(classes), 2))
    table = _pair_weights(n, pairs, per_class)
    x = _operand(n, vectors.size // count)
    post = n.attr("post_transform", "NONE")
    if not pairs:  # a single class
        zero = ops.zeros((x.shape[0],), "int32")
        return [labelled(zero, labels), _score(ops.zeros((x.shape[0], 1)))]
    kernel = _kernel(n, x, vectors.reshape(count, -1))
    scores = ops.matmul(kernel, shared(n, "coefficients", table)) + rho[: len(pairs)]
    label = labelled(ops.argmax(_votes(scores, pairs, classes), 1, False), labels)
    if n.attr("prob_a", ()):
        return [label, _score(transformed(n, _probabilities(n, scores, classes), post))]
    if classes > 2:
        return [label, _score(transformed(n, scores, post))]
    if post == "PROBIT":
        return [label, _score(two_columns(transformed(n, scores, post), scores))]
    return [label, _score(both(scores, post, shares=post != "NONE"))]


def _pair_weights(
    n: NodeContext, pairs: Sequence[tuple[int, int]], per_class: Sequence[int]
) -> NDArray:
    """Return the weight of each support vector in the score of each pair: (vectors, pairs).

    A vector of class i has classes - 1 coefficients, one per other class.
    """
    classes, count = len(per_class), sum(per_class)
    coefs = _floats(n, "coefficients")
    needed = (classes - 1) * count
    n.require(coefs.size >= needed, f"{coefs.size} coefficients, expected {needed}")
    coefficients = coefs[:needed].reshape(classes - 1, count)
    ends = np.cumsum(per_class)
    starts = ends - per_class
    table = np.zeros((count, len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        of_i, of_j = (slice(starts[c], ends[c]) for c in (i, j))
        table[of_i, k] = coefficients[j - 1, of_i]
        table[of_j, k] = coefficients[i, of_j]
    return table


def _votes(scores: Tensor, pairs: Sequence[tuple[int, int]], classes: int) -> Tensor:
    """Return the number of pairs that each class wins: (rows, pairs) -> (rows, classes)."""
    change = np.zeros((len(pairs), classes), np.float32)
    losses = np.zeros(classes, np.float32)
    for k, (i, j) in enumerate(pairs):
        change[k, i], change[k, j] = 1, -1
        losses[j] += 1
    wins = ops.cast(ops.greater(scores, 0.0), FLOAT32)
    return ops.matmul(wins, as_tensor(change)) + losses


def _probabilities(n: NodeContext, scores: Tensor, classes: int) -> Tensor:
    """Return class probabilities: (rows, pairs) -> (rows, classes)."""
    pairs = scores.shape[1]
    slope, start = _floats(n, "prob_a"), _floats(n, "prob_b")
    n.require(pairs <= slope.size == start.size, "prob_a and prob_b not of all pairs of classes")
    of_pairs = 1.0 - ops.sigmoid(scores * slope[:pairs] + start[:pairs])
    node = make_node(COUPLING.__name__, ["pairs"], ["classes"], domain=COUPLING.op_domain)
    node.name = n.node.name
    kind = CpuValueType(T.FLOAT, (scores.shape[0], classes))
    reason = "how often the probabilities of pairs are coupled depends on them"
    opsets = n.lowering.context.opsets
    (found,) = add_host_node(node, opsets, [of_pairs], [T.FLOAT], [kind], reason)
    assert found is not None
    return found


# -- regressors and linear models ----------------------------------------------------------------


@rule("SVMRegressor", domain=ML, types=NUMERIC)
def svm_regressor(n: NodeContext) -> Results:
    weights, rho = _floats(n, "coefficients"), _floats(n, "rho")
    count, vectors = n.attr("n_supports", 0), _floats(n, "support_vectors")
    n.require(rho.size > 0, "no rho")
    if count > 0:
        n.require(vectors.size % count == 0, f"{vectors.size} numbers of {count} support vectors")
        n.require(weights.size == count, f"{weights.size} coefficients of {count} vectors")
        x = _operand(n, vectors.size // count)
        kernel = _kernel(n, x, vectors.reshape(count, -1))
    else:
        kernel = _operand(n, weights.size)
    y = ops.matmul(kernel, _planes(n, weights, 1)) + rho[0]
    if n.attr("one_class", 0):
        y = ops.where(ops.greater(y, 0.0), 1.0, -1.0)
    return _score(cast(y, FLOAT32))


@rule("LinearRegressor", domain=ML, types=NUMERIC)
def linear_regressor(n: NodeContext) -> Results:
    targets, weights = n.attr("targets", 1), _floats(n, "coefficients")
    n.require(targets > 0 < weights.size, f"{weights.size} coefficients of {targets} targets")
    n.require(weights.size % targets == 0, f"{weights.size} coefficients of {targets} targets")
    x = _operand(n, weights.size // targets)
    y = ops.matmul(x, _planes(n, weights, targets))
    shift = _floats(n, "intercepts")
    if shift.size == targets:
        y = y + shift
    post = n.attr("post_transform", "NONE")
    return _score(transformed(n, y, post if targets > 1 or post == "PROBIT" else "NONE"))


@rule("LinearClassifier", domain=ML, types=NUMERIC)
def linear_classifier(n: NodeContext) -> Results:
    weights, shift = _floats(n, "coefficients"), _floats(n, "intercepts")
    texts, labels = n.attr("classlabels_strings", ()), n.attr("classlabels_ints", ())
    targets = shift.size or len(texts or labels)
    n.require(targets > 0 and weights.size % targets == 0, f"coefficients of {targets} classes")
    if with_numbers(n, texts, "classlabels_ints"):
        return []
    labels = labels or range(len(texts))
    classes = max(targets, 2)
    n.require(len(labels) == classes, f"{len(labels)} labels of {classes} classes")
    x = _operand(n, weights.size // targets)
    scores = ops.matmul(x, _planes(n, weights, targets))
    if shift.size:
        scores = scores + shift
    post = n.attr("post_transform", "NONE")
    if targets > 1:
        label = labelled(ops.argmax(scores, 1, False), labels)
        return [label, _score(transformed(n, scores, post))]
    label = chosen(ops.reshape(ops.greater(scores, 0.0), (-1,)), labels)
    n.require(post != "PROBIT", "post_transform PROBIT of two classes")
    return [label, _score(both(scores, post, shares=True))]
