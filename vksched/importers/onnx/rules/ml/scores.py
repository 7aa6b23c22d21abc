"""Scores of classifiers and regressors: post transforms of ai.onnx.ml, and class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto
from onnx.helper import make_attribute, make_node

from ..... import ops
from .....common.dtypes import FLOAT32, INT32
from .....ir.tensor import Tensor
from ...nodes.node import NodeContext
from ...nodes.values import Value, known
from ..narrow_types import cast

T = TensorProto
ML = "ai.onnx.ml"
NUMERIC = (T.FLOAT, T.DOUBLE, T.INT32, T.INT64)
"""Element types of numeric operands of these ops."""
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""Post transforms in the numbering of TreeEnsemble."""
_ZERO = 1e-7
"""SOFTMAX_ZERO treats smaller magnitudes as 0."""
_PI = 3.14159
"""Constant of onnxruntime's approximation of the inverse error function."""


def rows_of(n: NodeContext, index: int = 0) -> Tensor:
    """Return an operand as (rows, features); a vector is one row."""
    x = n.tensor(index)
    n.require(1 <= x.rank <= 2, f"an operand of {x.rank} axes")
    return x if x.rank == 2 else ops.reshape(x, (1, x.shape[0]))


def transformed(n: NodeContext, scores: Tensor, how: str) -> Tensor:
    """Apply a `post_transform` to scores (rows, classes)."""
    n.require(how in TRANSFORMS, f"post_transform {how!r}")
    if how == "NONE":
        return scores
    scores = cast(scores, FLOAT32)
    if how == "LOGISTIC":
        return ops.sigmoid(scores)
    if how == "SOFTMAX":
        return ops.softmax(scores, -1)
    return _probit(scores) if how == "PROBIT" else _softmax_zero(scores)


def _probit(p: Tensor) -> Tensor:
    """Return the quantile of the normal distribution, with Winitzki's approximation of inverse
    erf.
    """
    x = p * 2.0 - 1.0
    log = ops.log((1.0 - x) * (1.0 + x))
    v = log * 0.5 + 2.0 / (_PI * 0.147)
    size = ops.sqrt(ops.sqrt(v * v - log * (1.0 / 0.147)) - v)
    return ops.where(ops.less(x, 0.0), ops.neg(size), size) * float(np.sqrt(2.0))


def _softmax_zero(scores: Tensor) -> Tensor:
    """Compute softmax over the nonzero scores; zeros stay 0."""
    largest = ops.reduce_max(scores, -1, True)
    counts = ops.greater(ops.abs(scores), _ZERO)
    powers = ops.where(counts, ops.exp(scores - largest), 0.0)
    zeros = ops.where(counts, 0.0, scores * ops.exp(ops.neg(largest)))
    return (powers + zeros) / ops.reduce_sum(powers, -1, True)


def two_columns(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate two columns (rows, 1)."""
    return ops.concat([first, second], 1)


def both(score: Tensor, how: str, shares: bool) -> Tensor:
    """Return the scores of two classes from that of the second (rows, 1).

    Of all post transforms only LOGISTIC applies.

    Parameters
    ----------
    shares
        The scores sum to 1; otherwise they sum to 0.
    """
    if how == "LOGISTIC":
        score = cast(score, FLOAT32)
        return two_columns(ops.sigmoid(ops.neg(score)), ops.sigmoid(score))
    return two_columns(1.0 - score if shares else ops.neg(score), score)


# -- labels --------------------------------------------------------------------------------------


def labelled(index: Tensor, labels: Sequence[int]) -> Value:
    """Return class labels for class indices (rows)."""
    table = np.array(labels, np.int64)
    if np.array_equal(table, np.arange(len(table))):
        return Value(T.INT64, tensor=cast(index, "int64"))
    return Value(T.INT64, tensor=ops.gather(table, index))


def chosen(condition: Tensor, labels: Sequence[int]) -> Value:
    """Return labels[1] if a condition (rows) is true, else labels[0]."""
    return labelled(ops.cast(condition, INT32), labels)


def with_numbers(n: NodeContext, names: Sequence[str], attribute: str) -> bool:
    """Replace a classifier with string labels by one with integer labels and a node that maps them
    to strings. Return True if it was replaced.

    Parameters
    ----------
    names
        Class names.
    attribute
        Name of the attribute with integer labels.
    """
    if not names or not n.wants(0):
        return False
    label = n.outputs[0]
    number = f"{n.lowering.context.prefix(n.node)}number"
    node = NodeProto()
    node.CopyFrom(n.node)
    other = [a for a in n.node.attribute if a.name not in ("classlabels_strings", attribute)]
    del node.attribute[:]
    node.attribute.extend([*other, make_attribute(attribute, list(range(len(names))))])
    node.output[0] = number
    n.lowering.splice([node, _names_of(number, label, names, n)], {})
    return True


def _names_of(number: str, label: str, names: Sequence[str], n: NodeContext) -> NodeProto:
    """Return a node that maps class numbers to names."""
    if n.version < 2:
        attrs: dict[str, Any] = {"classes_strings": list(names)}
    else:
        attrs = {"keys_int64s": list(range(len(names))), "values_strings": list(names)}
    return make_node("LabelEncoder", [number], [label], n.node.name, domain=ML, **attrs)


def shared(n: NodeContext, name: str, array: np.ndarray) -> Tensor:
    """Return an attribute as a Tensor, cached for all lowerings of a model."""
    key = name.encode() + n.node.SerializeToString(deterministic=True)
    values = n.lowering.context.fold(key, (), lambda: [known(array)])
    assert values is not None and values[0] is not None
    return n.lowering.tensor(values[0])
