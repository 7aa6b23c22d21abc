"""Rules for elementwise arithmetic and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from onnx import TensorProto

from .... import ops
from ....common.dtypes import FLOAT64
from ....ir.tensor import Tensor, TensorLike
from ..nodes.elements import ANY
from ..nodes.node import NodeContext
from ..nodes.values import Value
from .narrow_types import NUMBERS, WRAPPING, cast, convert, fit, is_float
from .registry import rule

T = TensorProto
UNSIGNED = frozenset(
    e for e in (T.UINT8, T.UINT16, T.UINT32, T.UINT64, T.UINT4, getattr(T, "UINT2", None)) if e
)

# -- unary -------------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[TensorLike], Tensor]] = {
    "Abs": ops.abs,
    "Acos": ops.acos,
    "Acosh": ops.acosh,
    "Asin": ops.asin,
    "Asinh": ops.asinh,
    "Atan": ops.atan,
    "Atanh": ops.atanh,
    "BitwiseNot": ops.bitwise_invert,
    "Ceil": ops.ceil,
    "Cos": ops.cos,
    "Cosh": ops.cosh,
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "Log": ops.log,
    "Neg": ops.neg,
    "Reciprocal": ops.reciprocal,
    "Round": ops.round,
    "Sign": ops.sign,
    "Sin": ops.sin,
    "Sinh": ops.sinh,
    "Sqrt": ops.sqrt,
    "Tan": ops.tan,
    "Tanh": ops.tanh,
}


def _unary(build: Callable[[TensorLike], Tensor]) -> Callable[[NodeContext], Tensor]:
    return lambda n: fit(build(n.tensor(0)), n.elem_type(0))


for _name, _build in _UNARY.items():
    rule(_name, types=NUMBERS)(_unary(_build))


@rule("Not")
def logical_not(n: NodeContext) -> Tensor:
    return ops.logical_not(n.tensor(0))


@rule("IsNaN", types=NUMBERS)
def is_nan(n: NodeContext) -> Tensor:
    return ops.isnan(n.tensor(0))


@rule("IsInf", types=NUMBERS)
def is_inf(n: NodeContext) -> Tensor:
    x = n.tensor(0)
    found = ops.isinf(x)
    if not n.attr("detect_negative", 1):
        found = ops.logical_and(found, x > 0)
    if not n.attr("detect_positive", 1):
        found = ops.logical_and(found, x < 0)
    return found


# -- binary ------------------------------------------------------------------------------------

Binary = Callable[[TensorLike, TensorLike], Tensor]


def _binary(build: Binary) -> Callable[[NodeContext], Tensor]:
    return lambda n: fit(build(n.tensor(0), n.tensor(1)), n.elem_type(0))


def _predicate(build: Binary) -> Callable[[NodeContext], Tensor]:
    return lambda n: build(n.tensor(0), n.tensor(1))


for _name, _two in (("Add", ops.add), ("Sub", ops.sub), ("Mul", ops.mul)):
    rule(_name, types=WRAPPING)(_binary(_two))
rule("Div", types=NUMBERS)(_binary(ops.div))
for _name, _two in (
    ("BitwiseAnd", ops.bitwise_and),
    ("BitwiseOr", ops.bitwise_or),
    ("BitwiseXor", ops.bitwise_xor),
    ("And", ops.logical_and),
    ("Or", ops.logical_or),
    ("Xor", ops.logical_xor),
    ("Equal", ops.equal),
):
    rule(_name, types=ANY)(_predicate(_two))
for _name, _two in (
    ("Less", ops.less),
    ("LessOrEqual", ops.less_equal),
    ("Greater", ops.greater),
    ("GreaterOrEqual", ops.greater_equal),
):
    rule(_name, types=NUMBERS)(_predicate(_two))


@rule("Mod", types=NUMBERS)
def mod(n: NodeContext) -> Tensor:
    build = ops.fmod if n.attr("fmod", 0) else ops.remainder
    return fit(build(n.tensor(0), n.tensor(1)), n.elem_type(0))


@rule("Pow", types=NUMBERS)
def pow_rule(n: NodeContext) -> Tensor:
    """Return x ** y in the type of x; y may have another type."""
    x, (base, exponent) = n.tensor(0), (n.elem_type(0), n.elem_type(1))
    exponent_array = n.value(1).array
    if exponent_array is not None and exponent_array.size == 1 and is_float(base):
        value, fewer = float(exponent_array.reshape(())), exponent_array.ndim <= x.rank
        simple = {2.0: ops.square, 0.5: ops.sqrt, 1.0: ops.positive}.get(value)
        if simple is not None and fewer:
            shape = np.broadcast_shapes(x.shape, exponent_array.shape)
            return fit(simple(ops.broadcast_to(x, shape)), base)
    if is_float(base):
        return fit(ops.pow(x, convert(n.tensor(1), exponent, base)), base)
    if not is_float(exponent):
        return fit(ops.pow(x, convert(n.tensor(1), exponent, base)), base)
    # float32 would be off by one if the power is an integer
    power = ops.pow(cast(x, FLOAT64), cast(n.tensor(1), FLOAT64))
    return convert(power, T.DOUBLE, base)


@rule("BitShift", types=NUMBERS)
def bit_shift(n: NodeContext) -> Tensor:
    n.require(n.elem_type(0) in UNSIGNED or n.version >= 28, "a signed operand")
    left = n.attr("direction") == "LEFT"
    build = ops.bitwise_left_shift if left else ops.bitwise_right_shift
    return fit(build(n.tensor(0), n.tensor(1)), n.elem_type(0))


# -- variadic ----------------------------------------------------------------------------------


def _folded(build: Binary) -> Callable[[NodeContext], Tensor]:
    def fold(n: NodeContext) -> Tensor:
        return reduce(lambda a, b: fit(build(a, b), n.elem_type(0)), n.tensors())

    return fold


for _name, _two in (("Sum", ops.add), ("Max", ops.maximum), ("Min", ops.minimum)):
    rule(_name, types=NUMBERS)(_folded(_two))


@rule("Mean")
def mean(n: NodeContext) -> Tensor:
    total = reduce(ops.add, n.tensors())
    return total if len(n.inputs) == 1 else total / float(len(n.inputs))


@rule("Where", types=ANY)
def where(n: NodeContext) -> Value:
    chosen = ops.where(n.tensor(0), n.tensor(1), n.tensor(2))
    return Value(n.elem_type(1), tensor=chosen)


@rule("Clip", types=NUMBERS)
def clip(n: NodeContext) -> Tensor:
    """Clip x. Up to opset 10 the bounds are attributes, later optional operands."""
    if n.version < 11:
        ends = [n.attr(a) if n.has_attr(a) else None for a in ("min", "max")]
    else:
        ends = [_end(n, i) for i in (1, 2)]
    return ops.clip(n.tensor(0), *ends)


def _end(n: NodeContext, index: int) -> TensorLike | None:
    """Return a bound of Clip, as a number if it is known."""
    if not n.has(index):
        return None
    array = n.value(index).array
    if array is None or array.size != 1:
        return n.tensor(index)
    number = array.reshape(()).item()
    return n.tensor(index) if number != number else number
