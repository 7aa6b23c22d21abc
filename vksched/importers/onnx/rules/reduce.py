"""Rules for reductions, softmax, cumulative ops, arg ops, top-k and losses."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

from onnx import TensorProto

from .... import ops
from ....common.dtypes import BOOL, normalize_axes
from ....ir.tensor import Tensor
from ..nodes.elements import INTS, NARROW_FLOATS, PLAIN
from ..nodes.node import NodeContext
from .narrow_types import NUMBERS, convert, fit, is_float, limits
from .registry import rule

T = TensorProto
Reduce = Callable[..., Tensor]

# -- reductions --------------------------------------------------------------------------------


def _same(x: Tensor) -> Tensor:
    return x


_REDUCTIONS: dict[str, tuple[Reduce, Callable[[Tensor], Tensor]]] = {
    "ReduceL1": (ops.reduce_l1, ops.abs),
    "ReduceL2": (ops.reduce_l2, ops.abs),
    "ReduceLogSum": (ops.reduce_log_sum, ops.log),
    "ReduceLogSumExp": (ops.reduce_logsumexp, _same),
    "ReduceMean": (ops.reduce_mean, _same),
    "ReduceProd": (ops.reduce_prod, _same),
    "ReduceSum": (ops.reduce_sum, _same),
    "ReduceSumSquare": (ops.reduce_sum_square, ops.square),
}
"""Reductions, and their result over an empty set of axes."""


def reduced_axes(n: NodeContext) -> tuple[int, ...]:
    """Return the axes of a reduction, an attribute or an operand; all axes by default."""
    rank = len(n.shape(0))
    requested = n.ints(1) if n.has(1) else n.attr("axes") or ()
    if not requested and n.attr("noop_with_empty_axes", 0):
        return ()
    return normalize_axes(n.op_type, requested or None, rank)


def _reduction(n: NodeContext) -> Tensor:
    build, of_none = _REDUCTIONS[n.op_type]
    x, axes, elem_type = n.tensor(0), reduced_axes(n), n.elem_type(0)
    if not axes and (is_float(elem_type) or n.op_type != "ReduceLogSum"):
        return fit(of_none(x), elem_type)
    keepdims = bool(n.attr("keepdims", 1))
    if not is_float(elem_type):
        if n.op_type == "ReduceL1":
            x, build = ops.abs(x), ops.reduce_sum
        elif n.op_type == "ReduceSumSquare":
            x, build = ops.square(x), ops.reduce_sum
        elif build not in (ops.reduce_sum, ops.reduce_prod):
            wide = build(convert(x, elem_type, T.DOUBLE), axes, keepdims)
            return convert(wide, T.DOUBLE, elem_type)
    return fit(build(x, axes, keepdims), elem_type)


for _name in _REDUCTIONS:
    rule(_name, types=NUMBERS)(_reduction)


@rule("ReduceMax", "ReduceMin", types=NUMBERS)
def extreme(n: NodeContext) -> Tensor:
    """Return the maximum or minimum; False < True, and an empty reduction returns the limit of the
    type.
    """
    x, axes, keepdims = n.tensor(0), reduced_axes(n), bool(n.attr("keepdims", 1))
    is_max = n.op_type == "ReduceMax"
    if not axes:
        return x
    if x.dtype == BOOL:
        return (ops.reduce_any if is_max else ops.reduce_all)(x, axes, keepdims)
    if prod(x.shape[a] for a in axes) == 0:
        out_shape = [
            1 if a in axes else s for a, s in enumerate(x.shape) if keepdims or a not in axes
        ]
        return ops.full(out_shape, _of_nothing(n.elem_type(0), is_max), x.dtype)
    return (ops.reduce_max if is_max else ops.reduce_min)(x, axes, keepdims)


def _of_nothing(elem_type: int, is_max: bool) -> float:
    if elem_type in INTS:
        return limits(elem_type)[0 if is_max else 1]
    return -inf if is_max else inf


@rule("ArgMax", "ArgMin", types=NUMBERS)
def arg(n: NodeContext) -> Tensor:
    build = ops.argmax if n.op_type == "ArgMax" else ops.argmin
    last = bool(n.attr("select_last_index", 0))
    return build(n.tensor(0), n.attr("axis", 0), bool(n.attr("keepdims", 1)), last)


# -- along an axis -----------------------------------------------------------------------------


@rule("CumSum", "CumProd", types=NUMBERS)
def running(n: NodeContext) -> Tensor:
    build = ops.cumsum if n.op_type == "CumSum" else ops.cumprod
    exclusive, reverse = (bool(n.attr(a, 0)) for a in ("exclusive", "reverse"))
    n.require(n.elem_type(0) not in NARROW_FLOATS, "a sum that is rounded at each step")
    return fit(build(n.tensor(0), n.number(1), exclusive, reverse), n.elem_type(0))


@rule("TopK", types=NUMBERS)
def topk(n: NodeContext) -> tuple[Tensor, Tensor]:
    count = n.number(1) if n.has(1) else n.attr("k")
    largest = bool(n.attr("largest", 1))
    return ops.topk(n.tensor(0), int(count), n.attr("axis", -1), largest)


def _along(n: NodeContext, build: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Apply a function along an axis; before opset 13 along the flattened axes from that one on."""
    x = n.tensor(0)
    axis = n.attr("axis", -1 if n.version >= 13 else 1)
    if n.version >= 13:
        return build(x, axis)
    axis += x.rank if axis < 0 else 0
    rows = prod(x.shape[:axis])
    flat = ops.reshape(x, (rows, prod(x.shape[axis:])))
    return ops.reshape(build(flat, 1), x.shape)


@rule("Softmax", types=PLAIN)
def softmax(n: NodeContext) -> Tensor:
    half = n.elem_type(0) == T.FLOAT16
    return _along(n, _softmax_in_steps if half else lambda x, axis: ops.softmax(x, axis))


def _softmax_in_steps(x: Tensor, axis: int) -> Tensor:
    """Compute softmax as the op's function body does, with a rounding per step, as float16 tests
    expect.
    """
    powers = ops.exp(x - ops.reduce_max(x, axis, True))
    return powers / ops.reduce_sum(powers, axis, True)


@rule("LogSoftmax", types=PLAIN)
def log_softmax(n: NodeContext) -> Tensor:
    return _along(n, lambda x, axis: ops.log_softmax(x, axis))


@rule("Hardmax", types=NUMBERS)
def hardmax(n: NodeContext) -> Tensor:
    return _along(n, _hardmax)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    return ops.one_hot(ops.argmax(x, axis), x.shape[axis], axis=axis, dtype=x.dtype)


# -- losses ------------------------------------------------------------------------------------


@rule("NegativeLogLikelihoodLoss")
def nll_loss(n: NodeContext) -> Tensor:
    return _loss(n, n.tensor(0))


@rule("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(n: NodeContext) -> tuple[Tensor, Tensor]:
    log_probabilities = ops.log_softmax(n.tensor(0), 1)
    return _loss(n, log_probabilities), log_probabilities


def _loss(n: NodeContext, log_probabilities: Tensor) -> Tensor:
    """Operands: log_probabilities (N, C, ...), labels (N, ...), weights (C)."""
    labels, weights = n.tensor(1), n.optional(2)
    ignored, reduction = n.attr("ignore_index"), n.attr("reduction", "mean")
    known = None
    if ignored is not None:
        known = ops.not_equal(labels, ignored)
        labels = ops.where(known, labels, 0)
    columns = ops.unsqueeze(labels, 1)
    loss = ops.neg(ops.squeeze(ops.take_along_axis(log_probabilities, columns, 1), 1))
    each = ops.ones_like(loss) if weights is None else ops.gather(weights, labels)
    if weights is not None:
        loss = loss * each
    if known is not None:
        zero = ops.zeros_like(loss)
        loss, each = ops.where(known, loss, zero), ops.where(known, each, zero)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return ops.reduce_sum(loss)
    if weights is None and known is None:
        return ops.reduce_mean(loss)
    return ops.reduce_sum(loss) / ops.reduce_sum(each)
