"""Cumulative sums and products along an axis.

    short rows   x ------------------------------------------------------> result
    long rows    x -- totals of the parts -- scanned: their carries -- x -> result

Rows are split into parts as for reductions (reduce_launch.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...common.dtypes import FLOAT32, INT32, UINT32, NDArray, TensorType, normalize_axis
from ...common.errors import ShapeError
from ...ir.attr_domains import Axis, Flag
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..layout.reshape import reshape
from ..lowering.strides import LOCAL_SIZE
from .reduce import check_reduced, wide
from .reduce_launch import Launch, choose_last_launch, choose_launch

SCAN_DTYPES = (FLOAT32, INT32, UINT32)
STATE_WORDS = 2
"""Words of a float32 state, as in shaders/reduction/reduce_state.glsl; integers need 1."""
_WORDS, _STATES, _TOTALS = 0, 1, 2
"""Outputs of a dispatch of shaders/reduction/scan.comp."""


def _infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        check_reduced(op, inputs[0], attrs, SCAN_DTYPES)
        return inputs[0]

    return infer


def _reference(compute: np.ufunc, neutral: int) -> Callable[[tuple[NDArray, ...], Attrs], NDArray]:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x, axis = inputs[0], attrs.as_int("axis")
        if x.size == 0:
            return x
        values = np.moveaxis(wide(x), axis, -1)
        if attrs.as_bool("reverse"):
            values = np.flip(values, -1)
        with np.errstate(all="ignore"):
            out = compute.accumulate(values, axis=-1, dtype=values.dtype)
            if attrs.as_bool("exclusive"):
                out = np.concatenate([np.full_like(out[..., :1], neutral), out[..., :-1]], -1)
            if attrs.as_bool("reverse"):
                out = np.flip(out, -1)
            return np.ascontiguousarray(np.moveaxis(out, -1, axis)).astype(x.dtype)

    return reference


def _launch(call: Call) -> tuple[int, int, int, Launch]:
    """Return rows, columns, inner size, and the split into parts."""
    shape, axis = call.output.shape, call.attrs.as_int("axis")
    columns, inner = shape[axis], math.prod(shape[axis + 1 :])
    rows = call.output.size // columns
    return rows, columns, inner, choose_launch(rows, columns, inner, call.limits)


def _lower(shaders: dict[str, str]) -> Callable[[Call], tuple[Dispatch, ...]]:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        rows, columns, inner, launch = _launch(call)
        attrs = call.attrs

        def dispatch(
            operands: tuple[int, int, int], columns: int, launch: Launch, writes: int
        ) -> Dispatch:
            items = rows * launch.parts
            groups = items if launch.whole_group else -(-items // LOCAL_SIZE)
            push = (
                *(("rows", rows), ("columns", columns), ("inner", inner)),
                *(("parts", launch.parts), ("chunk", launch.chunk)),
                ("exclusive", int(attrs.as_bool("exclusive"))),
                ("backwards", int(attrs.as_bool("reverse"))),
                ("has_carry", int(operands[1] != 0)),
                ("reads_states", int(operands[0] != 0)),
                ("writes", writes),
            )
            return Dispatch(
                shaders[call.inputs[0].dtype],
                operands,
                (min(groups, call.limits.max_groups[0]), 1, 1),
                push,
                (("WHOLE_GROUP", int(launch.whole_group)),),
                barrier=min(operands[:2]) < 0,
            )

        if launch.parts == 1:
            return (dispatch((0, 0, OUTPUT), columns, launch, _WORDS),)
        totals, carries = SCRATCH, SCRATCH - 1
        middle = choose_last_launch(rows, launch.parts, call.limits)
        return (
            dispatch((0, 0, totals), columns, launch, _TOTALS),
            dispatch((totals, 0, carries), launch.parts, middle, _STATES),
            dispatch((0, carries, OUTPUT), columns, launch, _WORDS),
        )

    return lower


def _scratch(call: Call) -> tuple[int, ...]:
    if call.output.size == 0:
        return ()
    rows, _, _, launch = _launch(call)
    return (rows * launch.parts * STATE_WORDS,) * 2 if launch.parts > 1 else ()


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(float(output.size), 3.0 * output.device_bytes)


def _register(op: str, kind: str, compute: np.ufunc, neutral: int) -> None:
    shaders = {d: f"scan_{kind}_{d}" for d in (FLOAT32, INT32)}
    shaders[UINT32] = shaders[INT32]  # equal on the bits
    kernel = Kernel(tuple(sorted(set(shaders.values()))), _lower(shaders), _scratch)
    register(
        Op(
            op,
            _infer(op),
            _reference(compute, neutral),
            kernel,
            attrs={"axis": Axis(), "exclusive": Flag(), "reverse": Flag()},
            operands=(1, 1),
            work=_work,
        )
    )


_register("cumsum", "sum", np.add, 0)
_register("cumprod", "prod", np.multiply, 1)


def _scan(
    op: str, x: TensorLike, axis: int | None, exclusive: bool, reverse: bool, name: str | None
) -> Tensor:
    tensor = as_tensor(x)
    if axis is None:
        tensor, axis = reshape(tensor, (tensor.size,)), 0
    if tensor.rank == 0:
        raise ShapeError(f"[{op}] expected a tensor with axes, got a scalar; try axis=None")
    attrs: dict[str, AttrValue] = {
        "axis": normalize_axis(op, axis, tensor.rank),
        "exclusive": bool(exclusive),
        "reverse": bool(reverse),
    }
    return apply(op, (tensor,), attrs, name)


def cumsum(
    x: TensorLike,
    axis: int | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Return cumulative sums along an axis, by default of the flattened tensor, as numpy.cumsum.

    Integers wrap.

    Parameters
    ----------
    exclusive
        Exclude each element from its own sum, as in ONNX CumSum.
    reverse
        Sum from the end, as in ONNX CumSum.
    """
    return _scan("cumsum", x, axis, exclusive, reverse, name)


def cumprod(
    x: TensorLike,
    axis: int | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Return cumulative products along an axis, by default of the flattened tensor.

    As numpy.cumprod; integers wrap.

    Parameters
    ----------
    exclusive
        Exclude each element from its own product.
    reverse
        Multiply from the end.
    """
    return _scan("cumprod", x, axis, exclusive, reverse, name)
