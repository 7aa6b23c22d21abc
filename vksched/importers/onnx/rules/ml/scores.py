"""Scores of classifiers and regressors: how ai.onnx.ml transforms them, and labels of classes."""

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
"""Element types of the operands of these ops that hold numbers."""
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""As TreeEnsemble numbers them."""
_ZERO = 1e-7
"""SOFTMAX_ZERO takes lesser magnitudes for 0."""
_PI = 3.14159
"""As onnxruntime has it in its approximation of the inverse error function."""


def rows_of(n: NodeContext, index: int = 0) -> Tensor:
    """Return an operand as (rows, features): of one axis it is one row."""
    x = n.tensor(index)
    n.require(1 <= x.rank <= 2, f"an operand of {x.rank} axes")
    return x if x.rank == 2 else ops.reshape(x, (1, x.shape[0]))


def transformed(n: NodeContext, scores: Tensor, how: str) -> Tensor:
    """Return scores (rows, classes) as `post_transform` makes them."""
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
    """The quantile of the normal distribution, by Winitzki's approximation of erf's inverse."""
    x = p * 2.0 - 1.0
    log = ops.log((1.0 - x) * (1.0 + x))
    v = log * 0.5 + 2.0 / (_PI * 0.147)
    size = ops.sqrt(ops.sqrt(v * v - log * (1.0 / 0.147)) - v)
    return ops.where(ops.less(x, 0.0), ops.neg(size), size) * float(np.sqrt(2.0))


def _softmax_zero(scores: Tensor) -> Tensor:
    """Softmax of the scores that are not 0; the others stay 0."""
    largest = ops.reduce_max(scores, -1, True)
    counts = ops.greater(ops.abs(scores), _ZERO)
    powers = ops.where(counts, ops.exp(scores - largest), 0.0)
    zeros = ops.where(counts, 0.0, scores * ops.exp(ops.neg(largest)))
    return (powers + zeros) / ops.reduce_sum(powers, -1, True)


def two_columns(first: Tensor, second: Tensor) -> Tensor:
    """Return columns (rows, 1) side by side."""
    return ops.concat([first, second], 1)


def both(score: Tensor, how: str, shares: bool) -> Tensor:
    """Return the scores of two classes, given that of the second (rows, 1). shares: they add up to
    1, else to 0. Of all transforms only LOGISTIC is taken.
    """
    if how == "LOGISTIC":
        score = cast(score, FLOAT32)
        return two_columns(ops.sigmoid(ops.neg(score)), ops.sigmoid(score))
    return two_columns(1.0 - score if shares else ops.neg(score), score)


# -- labels --------------------------------------------------------------------------------------


def labelled(index: Tensor, labels: Sequence[int]) -> Value:
    """Return the labels of classes, by their index (rows)."""
    table = np.array(labels, np.int64)
    if np.array_equal(table, np.arange(len(table))):
        return Value(T.INT64, tensor=cast(index, "int64"))
    return Value(T.INT64, tensor=ops.gather(table, index))


def chosen(condition: Tensor, labels: Sequence[int]) -> Value:
    """Return labels[1] where a condition (rows) holds, else labels[0]."""
    return labelled(ops.cast(condition, INT32), labels)


def with_numbers(n: NodeContext, names: Sequence[str], attribute: str) -> bool:
    """Put two nodes in the place of a classifier whose labels are texts: one with their numbers,
    and one that looks the texts up. Returns whether it did.

    names: of the classes. attribute: that of labels which are integers.
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
    """Return a node that gives the name of each number."""
    if n.version < 2:
        attrs: dict[str, Any] = {"classes_strings": list(names)}
    else:
        attrs = {"keys_int64s": list(range(len(names))), "values_strings": list(names)}
    return make_node("LabelEncoder", [number], [label], n.node.name, domain=ML, **attrs)


def shared(n: NodeContext, name: str, array: np.ndarray) -> Tensor:
    """Return an attribute as a Tensor: the same one in all lowerings of a model."""
    key = name.encode() + n.node.SerializeToString(deterministic=True)
    values = n.lowering.context.fold(key, (), lambda: [known(array)])
    assert values is not None and values[0] is not None
    return n.lowering.tensor(values[0])
