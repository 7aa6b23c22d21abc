"""Layer norm and RMS norm over rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, NDArray, TensorType, normalize_axis
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Axis, Domains, Flag, Float, one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel, Piece, cut_leading, sum_rows
from ...ir.native_program import NativeProgram, one_loop
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, fp16_operands, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..elementwise.pointwise import MIN_NORMAL, number
from ..lowering import native_kernels
from ..lowering.fp16_result import with_fp16_result
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS
from ..lowering.vec4 import (
    SUBGROUP,
    WORKGROUP,
    launch_rows,
    launch_subgroup_rows,
    row_variants,
    vec4s_per_lane,
)

NORM_PASSES = 3
"""Passes of the kernel over each row."""
TILED = "tiled"
"""Variant for CPU drivers: reads each row twice, several rows at once (norm_tiled.comp)."""
ROWS_TOGETHER = 4
MIN_ROWS = 128
"""Minimum number of rows for the tiled variant; fewer rows leave threads of a CPU driver idle."""


def check_row(op: str, columns: int, passes: int, call: Call) -> None:
    """Raise UnsupportedOp if a kernel needs too many loop iterations for a row."""
    maximum = LOOP_STEPS * LOCAL_SIZE // passes
    if call.limits.software and columns > maximum:
        raise UnsupportedOp(
            f"[{op}] expected rows of at most {maximum} on a CPU driver, got {columns}: "
            "such drivers end long loops early"
        )


def check_eps(op: str, eps: float) -> float:
    """Return the validated eps of a norm, which is added to the variance.

    Raises
    ------
    DTypeError
        The value is negative, exceeds float32, or is a denormal, which drivers flush to 0.
    """
    value = number(op, "eps", eps)
    if value < 0 or 0 < value < MIN_NORMAL:
        raise DTypeError(f"[{op}] expected eps of 0, or of {MIN_NORMAL:.2g} or more, got {eps!r}")
    return value


# -- layer norm and RMS norm -------------------------------------------------------------------


def norm_attrs(*kinds: str) -> Domains:
    """Return the attribute domains of these norms and of their gradients."""
    flags: Domains = {"scaled": Flag(), "shifted": Flag()}
    return {"axis": Axis(), "eps": Float(0.0), "kind": one_of(*kinds), **flags}


def _norm_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, op = inputs[0], attrs.as_str("kind")
    if any(t.dtype != FLOAT32 for t in inputs):
        got = " and ".join(t.dtype for t in inputs)
        raise DTypeError(f"[{op}] expected float32, got {got}; try vs.cast")
    expected = 1 + attrs.as_bool("scaled") + attrs.as_bool("shifted")
    if len(inputs) != expected or (op == "rms_norm" and attrs.as_bool("shifted")):
        raise ShapeError(
            f"[{op}] expected a scale and a shift where attributes say so, and no shift of "
            f"rms_norm, got {len(inputs)} operands and {attrs}"
        )
    row = x.shape[attrs.as_int("axis") :]
    for part in inputs[1:]:
        if part.shape != row:
            raise ShapeError(
                f"[{op}] expected scale and shift of the normalised shape {row}, got {part.shape}"
            )
    return x


def _scale_and_shift(
    inputs: tuple[NDArray, ...], attrs: Attrs
) -> tuple[NDArray | None, NDArray | None]:
    rest = list(inputs[1:])
    scale = rest.pop(0) if attrs.as_bool("scaled") else None
    return scale, rest.pop(0) if attrs.as_bool("shifted") else None


def _affine(value: NDArray, inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    scale, shift = _scale_and_shift(inputs, attrs)
    if scale is not None:
        value = value * scale
    if shift is not None:
        value = value + shift
    return np.asarray(value, inputs[0].dtype)


MIN_SPREAD = {np.dtype(np.float32): 1e-30, np.dtype(np.float64): 1e-290}
"""Minimum mean of squares plus eps, by type; below it squares lose digits to underflow."""
MAX_SCALE_UP = 40
"""Maximum power of two that scales rows up if eps is above 0, because eps may be significant."""


def _lost(spread: NDArray) -> NDArray:
    """Return True for rows whose mean square plus eps indicates overflow or underflow."""
    return ~(np.isfinite(spread) & (spread >= MIN_SPREAD[spread.dtype]))


def _powers(rows: NDArray, eps: float) -> NDArray:
    """Return the power of two that scales each row's maximum near 1; 1 if it is 0 or not finite."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    known = np.isfinite(largest) & (largest > 0)
    exponents = np.frexp(np.where(known, largest, 1))[1] - 1
    min_exponent = int(np.finfo(rows.dtype).minexp)
    max_power = 0 if eps > MIN_SPREAD[rows.dtype] else MAX_SCALE_UP if eps > 0 else -min_exponent
    powers = np.clip(-exponents, min_exponent, max_power)
    return np.asarray(np.ldexp(rows.dtype.type(1), powers))


def _normed(rows: NDArray, eps: NDArray, centered: bool) -> tuple[NDArray, NDArray]:
    """Return normalized rows, and their mean squares plus eps."""
    if centered:
        rows = rows - rows.mean(axis=1, keepdims=True)
        rows -= rows.mean(axis=1, keepdims=True)  # the rounding error of the mean
    spread = np.square(rows).mean(axis=1, keepdims=True) + eps
    return rows / np.sqrt(spread), spread


def _norm_again(rows: NDArray, eps: float, centered: bool) -> tuple[NDArray, NDArray]:
    """Return normalized rows, and the factor of their deviations, if squares over- or underflow.

    Rows are first scaled by powers of two.
    """
    by = _powers(rows, eps)
    normed, spread = _normed(rows * by, rows.dtype.type(eps) * by * by, centered)
    return normed, by / np.sqrt(spread)


def norm_rows(rows: NDArray, eps: float, centered: bool) -> tuple[NDArray, NDArray]:
    """Return normalized rows, and the factor of their deviations from the mean."""
    normed, spread = _normed(rows, np.asarray(eps, rows.dtype), centered)
    rate = 1 / np.sqrt(spread)
    lost = _lost(spread)[:, 0]
    if lost.any():
        normed[lost], rate[lost] = _norm_again(rows[lost], eps, centered)
    return normed, rate


def _norm_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x = inputs[0]
    if x.size == 0:
        return x
    columns = math.prod(x.shape[attrs.as_int("axis") :])
    eps, centered = attrs.as_float("eps"), attrs.as_str("kind") == "layer_norm"
    normed, _ = norm_rows(x.reshape(-1, columns), eps, centered)
    return _affine(normed.reshape(x.shape), inputs, attrs)


def _norm_variants(call: Call) -> tuple[str, ...]:
    columns = math.prod(call.output.shape[call.attrs.as_int("axis") :])
    rows = call.output.size // max(columns, 1)
    plain = row_variants(columns, rows, False, NORM_PASSES, call.limits)
    if vec4s_per_lane(columns, call.limits):
        return (SUBGROUP, *plain, TILED)
    if not call.limits.software or columns % 4 or 4 * columns > LOOP_STEPS:
        return plain
    return (TILED, *plain) if rows >= MIN_ROWS else (*plain, TILED)


def _norm_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Compute both norms in the result's memory."""
    columns = math.prod(out.shape[attrs.as_int("axis") :])
    eps, centered = attrs.as_float("eps"), attrs.as_str("kind") == "layer_norm"
    scale, shift = _scale_and_shift(inputs, attrs)
    if native_kernels.norm(inputs[0], scale, shift, out, columns, eps, centered):
        return
    x, line = (values.reshape(-1, columns) for values in (inputs[0], out))

    def mean(values: NDArray) -> NDArray:
        total = sum_rows(values)
        total /= columns
        return total

    if centered:
        np.subtract(x, mean(x), out=line)
        line -= mean(line)  # the rounding error of the mean
    else:
        np.copyto(line, x)
    spread = mean(np.square(line))
    spread += eps
    lost = _lost(spread)[:, 0]
    np.sqrt(spread, out=spread)
    line /= spread
    if lost.any():
        line[lost], _ = _norm_again(x[lost], eps, centered)
    if scale is not None:
        line *= scale.reshape(-1)
    if shift is not None:
        line += shift.reshape(-1)


def _norm_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    columns = math.prod(output.shape[attrs.as_int("axis") :])
    flags = attrs.as_str("kind") == "layer_norm", attrs.as_bool("scaled"), attrs.as_bool("shifted")
    numbers = (output.size // columns, columns, *map(int, flags))
    return one_loop("norm", inputs, output, numbers, (attrs.as_float("eps"),), numbers[0])


def _norm_cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    for (x,), part in cut_leading(inputs[:1], out, attrs.as_int("axis")):
        yield (x, *inputs[1:]), part


def _tiled_shader(kind: str, scaled: bool, shifted: bool) -> str:
    return f"norm_tiled_{kind}" + "_scaled" * scaled + "_shifted" * shifted


def _norm_lower(call: Call) -> tuple[Dispatch, ...]:
    shape, attrs = call.output.shape, call.attrs
    if call.output.size == 0:
        return ()
    columns = math.prod(shape[attrs.as_int("axis") :])
    rows = call.output.size // columns
    check_row(attrs.as_str("kind"), columns, NORM_PASSES, call)
    items = -(-rows // ROWS_TOGETHER) if call.variant == TILED else rows
    if call.variant == SUBGROUP:
        groups, constants = launch_subgroup_rows(columns, rows, call.limits)
    else:
        groups, constants = launch_rows(columns, items, False, call.variant, call.limits)
    scaled, shifted = attrs.as_bool("scaled"), attrs.as_bool("shifted")
    operands = (0, 1 if scaled else 0, 1 + int(scaled) if shifted else 0, OUTPUT)
    push = (("rows", rows), ("columns", columns), ("eps", attrs.as_float("eps")))
    if call.variant == TILED:
        shader = _tiled_shader(attrs.as_str("kind"), scaled, shifted)
        return (Dispatch(shader, operands, groups, push, constants[:1]),)
    constants += (
        ("CENTERED", int(attrs.as_str("kind") == "layer_norm")),
        ("HAS_GAMMA", int(scaled)),
        ("HAS_BETA", int(shifted)),
    )
    shader = f"norm_{call.variant}" if call.variant in (WORKGROUP, SUBGROUP) else "norm"
    shader += _FP16 * (call.output.dtype == FLOAT16)
    return (Dispatch(shader, operands, groups, push, constants),)


def _norm_takes_fp16(call: Call) -> tuple[int, ...]:
    """Return the result, if the kernel of GPUs writes it as float16."""
    columns = math.prod(call.output.shape[call.attrs.as_int("axis") :])
    writes = call.limits.float16 and call.variant == WORKGROUP and columns % 4 == 0
    return (OUTPUT,) if writes and fp16_operands(call) == (OUTPUT,) else ()


def _norm_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(8.0 * output.size, 2.0 * output.device_bytes)


_FP16 = "_fp16"
"""The suffix of the kernel that writes float16."""
NORM_SHADERS = ("norm", "norm_workgroup", f"norm_workgroup{_FP16}", "norm_subgroup")
for _name, _shifts in (("layer_norm", (False, True)), ("rms_norm", (False,))):
    _tiled_shaders = tuple(
        _tiled_shader(_name, scaled, shifted) for scaled in (False, True) for shifted in _shifts
    )
    _kernel = Kernel(
        (*NORM_SHADERS, *_tiled_shaders),
        _norm_lower,
        variants=_norm_variants,
        takes_fp16=_norm_takes_fp16,
    )
    register(
        with_fp16_result(
            Op(
                _name,
                _norm_infer,
                _norm_reference,
                _kernel,
                attrs=norm_attrs(_name),
                operands=(1, 1 + len(_shifts)),
                work=_norm_work,
                cpu=CpuKernel(_norm_cpu, _norm_cut),
                native_program=_norm_program,
            )
        )
    )


def _norm(
    op: str,
    x: TensorLike,
    scale: TensorLike | None,
    shift: TensorLike | None,
    axis: int,
    eps: float,
    name: str | None,
) -> Tensor:
    tensor = as_tensor(x)
    if tensor.rank == 0:
        raise ShapeError(f"[{op}] expected a tensor with axes, got a scalar")
    attrs: dict[str, AttrValue] = {
        "axis": normalize_axis(op, axis, tensor.rank),
        "eps": check_eps(op, eps),
        "kind": op,
        "scaled": scale is not None,
        "shifted": shift is not None,
    }
    parameters = [as_tensor(t, like=tensor) for t in (scale, shift) if t is not None]
    return apply(op, (tensor, *parameters), attrs, name)


# -- builders ----------------------------------------------------------------------------------


def layer_norm(
    x: TensorLike,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
    axis: int = -1,
    eps: float = 1e-5,
    *,
    name: str | None = None,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * gamma + beta, as ONNX LayerNormalization.

    Mean and variance are computed over `axis` and all axes after it; gamma and beta have their
    shape.
    """
    return _norm("layer_norm", x, gamma, beta, axis, eps, name)


def rms_norm(
    x: TensorLike,
    weight: TensorLike | None = None,
    axis: int = -1,
    eps: float = 1e-6,
    *,
    name: str | None = None,
) -> Tensor:
    """Return x / sqrt(mean(x * x) + eps) * weight, as ONNX RMSNormalization.

    The mean is computed over `axis` and all axes after it; weight has their shape.
    """
    return _norm("rms_norm", x, weight, None, axis, eps, name)
