"""Elementwise ops with numpy broadcasting to rank 8. No implicit promotion between tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import DTypeError, UnsupportedOp
from ..types import (
    BOOL,
    FLOAT32,
    INT32,
    NDArray,
    TensorType,
    broadcast_shapes,
    canonical_dtype,
    numpy_dtype,
)
from .op import OUTPUT, Attrs, Call, Dispatch, Kernel, Op, register
from .special import erf_reference, gelu_reference, gelu_tanh_reference
from .strides import MAX_DISPATCHES, broadcast_strides, collapse, pad, peel, spread
from .tensor import Tensor, TensorLike, apply, as_tensor, binary

UNARY: tuple[tuple[str, str], ...] = (
    *((op, FLOAT32) for op in ("sqrt", "rsqrt", "exp", "log", "tanh", "erf", "relu")),
    *((op, FLOAT32) for op in ("gelu", "gelu_tanh", "silu", "sigmoid", "neg", "abs")),
    *((op, INT32) for op in ("neg", "abs", "relu")),
    ("logical_not", BOOL),
)
CASTS = tuple((a, b) for a in (FLOAT32, INT32, BOOL) for b in (FLOAT32, INT32, BOOL) if a != b)
_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
_COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
BINARY: tuple[tuple[str, str], ...] = (
    *((op, dtype) for dtype in (FLOAT32, INT32) for op in (*_ARITHMETIC, *_COMPARE)),
    *((op, BOOL) for op in (*_LOGICAL, "equal", "not_equal")),
)
"""Which ops take which operand types; each pair is a shader variant of that name."""


# -- unary and cast ----------------------------------------------------------------------------


def _unary_infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    allowed = sorted(dtype for name, dtype in UNARY if name == op)

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        if inputs[0].dtype not in allowed:
            raise DTypeError(
                f"[{op}] expected {' or '.join(allowed)}, got {inputs[0].dtype}; try vs.cast"
            )
        return inputs[0]

    return infer


def _lower_unary(what: str, call: Call) -> tuple[Dispatch, ...]:
    count = call.output.size
    if count == 0:
        return ()
    return (
        Dispatch(
            f"unary_{what}",
            (0, OUTPUT),
            spread(count, call.limits),
            push=(("count", count),),
        ),
    )


def _unary_kernel(op: str) -> Kernel:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        return _lower_unary(f"{op}_{call.inputs[0].dtype}", call)

    return Kernel(tuple(f"unary_{name}_{dtype}" for name, dtype in UNARY if name == op), lower)


def _sigmoid_reference(x: NDArray) -> NDArray:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e / (1 + e), 1 / (1 + e)), x.dtype)


def _relu_reference(x: NDArray) -> NDArray:
    return np.asarray(np.maximum(x, x.dtype.type(0)))


_UNARY_REFERENCES: dict[str, Callable[[NDArray], NDArray]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": erf_reference,
    "relu": _relu_reference,
    "gelu": gelu_reference,
    "gelu_tanh": gelu_tanh_reference,
    "silu": lambda x: x * _sigmoid_reference(x),
    "sigmoid": _sigmoid_reference,
    "neg": np.negative,
    "abs": np.abs,
    "logical_not": np.logical_not,
}


def _register_unary(op: str, compute: Callable[[NDArray], NDArray]) -> None:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        return np.asarray(compute(inputs[0]), inputs[0].dtype)

    register(Op(op, _unary_infer(op), reference, _unary_kernel(op)))


for _name, _compute in _UNARY_REFERENCES.items():
    _register_unary(_name, _compute)


def _cast_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    return TensorType(inputs[0].shape, attrs.as_str("to"))


def _cast_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, to = inputs[0], numpy_dtype(attrs.as_str("to"))
    if x.dtype == np.float32 and to == np.int32:
        least = -(2.0**31)
        fits = (x >= least) & (x < 2.0**31)  # False for NaN
        return np.asarray(np.where(fits, np.trunc(np.where(fits, x, 0)), least), np.int32)
    return x.astype(to)


def _cast_view(inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    return 0 if inputs[0].dtype == attrs.as_str("to") else None


def _cast_lower(call: Call) -> tuple[Dispatch, ...]:
    return _lower_unary(f"{call.inputs[0].dtype}_to_{call.output.dtype}", call)


_CAST_KERNEL = Kernel(tuple(f"unary_{a}_to_{b}" for a, b in CASTS), _cast_lower)
register(Op("cast", _cast_infer, _cast_reference, _CAST_KERNEL, view=_cast_view, any_dtype=True))


# -- binary ------------------------------------------------------------------------------------


def _binary_infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    allowed = [dtype for name, dtype in BINARY if name == op]
    result = BOOL if op in (*_COMPARE, *_LOGICAL) else None

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        a, b = inputs
        if a.dtype != b.dtype or a.dtype not in allowed:
            raise DTypeError(
                f"[{op}] expected two operands of {' or of '.join(allowed)}, "
                f"got {a.dtype} and {b.dtype}; try vs.cast"
            )
        return TensorType(broadcast_shapes(op, a.shape, b.shape), result or a.dtype)

    return infer


def _binary_kernel(op: str) -> Kernel:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        shape = call.output.shape
        given = [broadcast_strides(t.shape, shape) for t in call.inputs]
        sizes, strides = collapse(shape, given)
        rank = len(sizes)
        return (
            Dispatch(
                f"binary_{op}_{call.inputs[0].dtype}",
                (0, 1, OUTPUT),
                spread(call.output.size, call.limits),
                push=(
                    ("count", call.output.size),
                    ("sizes", pad(sizes, 7)),
                    ("a_strides", pad(strides[0], 8)),
                    ("b_strides", pad(strides[1], 8)),
                ),
                constants=(("RANK", rank),),
            ),
        )

    return Kernel(tuple(f"binary_{name}_{dtype}" for name, dtype in BINARY if name == op), lower)


def _div_reference(a: NDArray, b: NDArray) -> NDArray:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    wide, by = a.astype(np.int64), b.astype(np.int64)
    quotient = np.abs(wide) // np.where(by == 0, 1, np.abs(by)) * np.sign(wide) * np.sign(by)
    return quotient.astype(a.dtype)


def _pow_reference(a: NDArray, b: NDArray) -> NDArray:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    a, b = np.broadcast_arrays(a, b)
    powers = np.power(a, np.maximum(b, 0))
    odd = np.where(b % 2 == 0, 1, -1)
    negative = np.where(a == 1, 1, np.where(a == -1, odd, 0))
    return np.asarray(np.where(b < 0, negative, powers), a.dtype)


_BINARY_REFERENCES: dict[str, Callable[[NDArray, NDArray], NDArray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div_reference,
    "pow": _pow_reference,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


def _register_binary(op: str, compute: Callable[[NDArray, NDArray], NDArray]) -> None:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        return np.asarray(compute(inputs[0], inputs[1]))

    register(Op(op, _binary_infer(op), reference, _binary_kernel(op)))


for _binary_name, _binary_compute in _BINARY_REFERENCES.items():
    _register_binary(_binary_name, _binary_compute)


# -- where -------------------------------------------------------------------------------------


def _where_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    condition, a, b = inputs
    if condition.dtype != BOOL or a.dtype != b.dtype:
        raise DTypeError(
            "[where] expected a bool and two operands of one type, "
            f"got {condition.dtype}, {a.dtype} and {b.dtype}; try vs.cast"
        )
    return TensorType(broadcast_shapes("where", *(t.shape for t in inputs)), a.dtype)


def _where_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return np.asarray(np.where(*inputs))


_WHERE_RANK = 7
"""Axes that fit into 128 bytes of push constants with three operands; outer ones are peeled."""


def _where_lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    shape = call.output.shape
    given = [broadcast_strides(t.shape, shape) for t in (*call.inputs, call.output)]
    sizes, strides = collapse(shape, given)
    inner = sizes[:_WHERE_RANK]
    count = int(np.prod(inner))
    shifts = list(peel(sizes, strides, _WHERE_RANK))
    if len(shifts) > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[where] broadcasting {shape} needs {len(shifts)} dispatches, over {MAX_DISPATCHES}"
        )
    push = (
        ("count", count),
        ("sizes", pad(inner, 6)),
        ("condition_strides", pad(strides[0], 7)),
        ("a_strides", pad(strides[1], 7)),
        ("b_strides", pad(strides[2], 7)),
    )
    groups = spread(count, call.limits)
    constants = (("RANK", len(inner)),)
    return tuple(
        Dispatch("where", (0, 1, 2, OUTPUT), groups, push, constants, shifts=shift)
        for shift in shifts
    )


register(Op("where", _where_infer, _where_reference, Kernel(("where",), _where_lower)))


# -- builders ----------------------------------------------------------------------------------


def _unary(op: str, x: TensorLike, name: str | None) -> Tensor:
    return apply(op, (as_tensor(x),), name=name)


def sqrt(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Square root, as numpy.sqrt."""
    return _unary("sqrt", x, name)


def rsqrt(x: TensorLike, *, name: str | None = None) -> Tensor:
    """1 / sqrt(x), as numpy; 0 gives inf."""
    return _unary("rsqrt", x, name)


def exp(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Exponential, as numpy.exp."""
    return _unary("exp", x, name)


def log(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Natural logarithm, as numpy.log; negative values give NaN."""
    return _unary("log", x, name)


def tanh(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Hyperbolic tangent, as numpy.tanh."""
    return _unary("tanh", x, name)


def erf(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Error function, as ONNX Erf."""
    return _unary("erf", x, name)


def relu(x: TensorLike, *, name: str | None = None) -> Tensor:
    """max(x, 0), as ONNX Relu; NaN stays NaN."""
    return _unary("relu", x, name)


def gelu(x: TensorLike, approximate: str = "none", *, name: str | None = None) -> Tensor:
    """x * Phi(x), as ONNX Gelu. approximate: "none" (by erf) or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise DTypeError(f'[gelu] expected approximate "none" or "tanh", got {approximate!r}')
    return _unary("gelu" if approximate == "none" else "gelu_tanh", x, name)


def silu(x: TensorLike, *, name: str | None = None) -> Tensor:
    """x * sigmoid(x), as ONNX Swish with alpha 1."""
    return _unary("silu", x, name)


def sigmoid(x: TensorLike, *, name: str | None = None) -> Tensor:
    """1 / (1 + exp(-x)), as ONNX Sigmoid, without overflow."""
    return _unary("sigmoid", x, name)


def neg(x: TensorLike, *, name: str | None = None) -> Tensor:
    """-x, as numpy.negative; the least int32 stays itself."""
    return _unary("neg", x, name)


def abs(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Absolute value, as numpy.abs; the least int32 stays itself."""
    return _unary("abs", x, name)


def logical_not(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Negation of a bool, as numpy.logical_not."""
    return _unary("logical_not", x, name)


def cast(x: TensorLike, dtype: object, *, name: str | None = None) -> Tensor:
    """Converts the element type, as ONNX Cast.

    float32 to int32 truncates; NaN and what does not fit become -2**31 on every device. To bool: x
    != 0.
    """
    return apply("cast", (as_tensor(x),), {"to": canonical_dtype(dtype)}, name)


def add(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a + b, as numpy.add; int32 wraps."""
    return binary("add", a, b, name)


def sub(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a - b, as numpy.subtract; int32 wraps."""
    return binary("sub", a, b, name)


def mul(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a * b, as numpy.multiply; int32 wraps."""
    return binary("mul", a, b, name)


def div(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a / b. float32: as numpy.divide. int32: as ONNX Div, towards zero; by zero gives 0."""
    return binary("div", a, b, name)


def pow(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a ** b, as numpy.power; int32 with a negative exponent gives the truncated quotient 1 /
    a**-b.
    """
    return binary("pow", a, b, name)


def maximum(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """The larger of two, as numpy.maximum: NaN wins."""
    return binary("maximum", a, b, name)


def minimum(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """The smaller of two, as numpy.minimum: NaN wins."""
    return binary("minimum", a, b, name)


def equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a == b as bool, as numpy.equal."""
    return binary("equal", a, b, name)


def not_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a != b as bool, as numpy.not_equal."""
    return binary("not_equal", a, b, name)


def less(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a < b as bool, as numpy.less."""
    return binary("less", a, b, name)


def less_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a <= b as bool, as numpy.less_equal."""
    return binary("less_equal", a, b, name)


def greater(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a > b as bool, as numpy.greater."""
    return binary("greater", a, b, name)


def greater_equal(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """a >= b as bool, as numpy.greater_equal."""
    return binary("greater_equal", a, b, name)


def logical_and(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Both, of two bools, as numpy.logical_and."""
    return binary("logical_and", a, b, name)


def logical_or(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Either, of two bools, as numpy.logical_or."""
    return binary("logical_or", a, b, name)


def logical_xor(a: TensorLike, b: TensorLike, *, name: str | None = None) -> Tensor:
    """Exactly one, of two bools, as numpy.logical_xor."""
    return binary("logical_xor", a, b, name)


def where(
    condition: TensorLike, a: TensorLike, b: TensorLike, *, name: str | None = None
) -> Tensor:
    """a where the bool condition holds, else b, as numpy.where."""
    if isinstance(condition, bool):
        raise DTypeError(
            f"[where] expected a bool tensor as condition, got {condition}: `==` and `!=` of "
            "tensors compare identity; try vs.equal or vs.not_equal"
        )
    like = next((t for t in (a, b) if isinstance(t, Tensor)), None)
    left, right = as_tensor(a, like=like), as_tensor(b, like=like)
    return apply("where", (as_tensor(condition), left, right), name=name)
