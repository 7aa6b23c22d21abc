"""Gradient of layer norm and RMS norm with respect to the rows, in one op: each row is read by one
invocation or group, whereas composed ops would make ten passes over all rows.

    g, x -> h = g * scale, n = x normalized -> (h - mean(h) - n * mean(h * n)) * rate

rate is the factor of deviations from the mean in n; RMS norm omits mean(h). Examples:
tests/ops/test_ops.py, tests/autograd/test_rules_rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, cut_leading
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, apply
from ..lowering import native_kernels
from ..lowering.vec4 import WORKGROUP, launch_rows, row_variants
from .layer_norm import check_row, norm_attrs, norm_rows

OP = "layer_norm_backward"
PASSES = 4
"""Passes of the kernel over each row."""


def _columns(attrs: Attrs, shape: tuple[int, ...]) -> int:
    return math.prod(shape[attrs.as_int("axis") :])


def _is_centered(attrs: Attrs) -> bool:
    return attrs.as_str("kind") == "layer_norm"


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    g, x = inputs[:2]
    if any(t.dtype != FLOAT32 for t in inputs):
        got = " and ".join(t.dtype for t in inputs)
        raise DTypeError(f"[{OP}] expected float32, got {got}; try vs.cast")
    if g.shape != x.shape:
        raise ShapeError(f"[{OP}] expected a gradient of shape {x.shape}, got {g.shape}")
    if len(inputs) != 2 + attrs.as_bool("scaled"):
        raise ShapeError(
            f"[{OP}] expected a scale where the norm has one, got {len(inputs)} operands"
        )
    row = x.shape[attrs.as_int("axis") :]
    for operand in inputs[2:]:
        if operand.shape != row:
            raise ShapeError(
                f"[{OP}] expected a scale of the normalised shape {row}, got {operand.shape}"
            )
    return x


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    g, x = inputs[:2]
    if x.size == 0:
        return x
    columns, centered = _columns(attrs, x.shape), _is_centered(attrs)
    normed, rate = norm_rows(x.reshape(-1, columns), attrs.as_float("eps"), centered)
    h = g.reshape(-1, columns)
    if attrs.as_bool("scaled"):
        h = h * inputs[2].reshape(-1)
    rest = h - normed * (h * normed).mean(axis=1, keepdims=True)
    if centered:
        rest -= h.mean(axis=1, keepdims=True)
    return np.asarray((rest * rate).reshape(x.shape), x.dtype)


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    g, x = inputs[:2]
    scale = inputs[2] if attrs.as_bool("scaled") else None
    about = _columns(attrs, out.shape), attrs.as_float("eps"), _is_centered(attrs)
    if not out.size or not native_kernels.layer_norm_backward(g, x, scale, out, *about):
        out[...] = _reference(inputs, attrs)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    for operands, part in cut_leading(inputs[:2], out, attrs.as_int("axis")):
        yield (*operands, *inputs[2:]), part


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    columns = _columns(call.attrs, call.output.shape)
    rows = call.output.size // columns
    check_row(OP, columns, PASSES, call)
    (way,) = row_variants(columns, rows, False, PASSES, call.limits)
    groups, constants = launch_rows(columns, rows, False, way, call.limits)
    scaled = call.attrs.as_bool("scaled")
    constants += (("CENTERED", int(_is_centered(call.attrs))), ("HAS_GAMMA", int(scaled)))
    push = (("rows", rows), ("columns", columns), ("eps", call.attrs.as_float("eps")))
    shader = OP + f"_{WORKGROUP}" * (way == WORKGROUP)
    return (Dispatch(shader, (0, 1, 2 if scaled else 1, OUTPUT), groups, push, constants),)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(14.0 * output.size, 3.0 * output.device_bytes)


_KERNEL = Kernel((OP, f"{OP}_{WORKGROUP}"), _lower)
register(
    Op(
        OP,
        _infer,
        _reference,
        _KERNEL,
        attrs={k: v for k, v in norm_attrs("layer_norm", "rms_norm").items() if k != "shifted"},
        operands=(2, 3),
        work=_work,
        cpu=CpuKernel(_cpu, _cut),
    )
)


def layer_norm_backward(g: Tensor, x: Tensor, scale: Tensor | None, attrs: Attrs) -> Tensor:
    """Return the gradient of a norm for its rows x; attrs: the norm's axis, eps and kind."""
    norm_attrs = {name: attrs[name] for name in ("axis", "eps", "kind")}
    operands = (g, x) if scale is None else (g, x, scale)
    return apply(OP, operands, {**norm_attrs, "scaled": scale is not None})
