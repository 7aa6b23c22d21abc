"""Pools over one to three spatial axes: max, mean and p-norm of sliding or adaptive windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...common.dtypes import FLOAT32, INT32, INT64, Shape, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Domains, Flag, Float
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..elementwise import abs as absolute
from ..elementwise import pow as power
from ..elementwise.fp16 import computed_wide
from ..elementwise.pointwise import MIN_NORMAL, number
from ..layout.reshape import concat, reshape, slice_
from ..reduction.reduce import reduce_l1, reduce_l2, reduce_max, reduce_mean, reduce_sum
from .conv_cpu import pool_cpu_kernel
from .conv_native import pool_program
from .pool_reference import (
    adaptive_reference,
    average_reference,
    indices_reference,
    lp_reference,
    max_reference,
    pool_window,
)
from .window import (
    PADDING,
    STEPS,
    WINDOW,
    Padding,
    PerAxis,
    Window,
    check_rank,
    dilation_of,
    launches,
    paddings,
    per_axis,
    stepping,
    three,
)

_LONG_WINDOW, _MAX_SPANS = 1 << 12, 64
"""Minimum positions of a window that is reduced axis by axis, and maximum number of unequal
adaptive windows of an axis that are separate reductions.
"""


def _check(op: str, x: TensorType) -> None:
    allowed = (FLOAT32, INT32) if "max" in op else (FLOAT32,)
    if x.dtype not in allowed:
        raise DTypeError(f"[{op}] expected {' or '.join(allowed)}, got {x.dtype}; try vs.cast")
    check_rank(op, x.shape)


# -- rules and kernels -------------------------------------------------------------------------


def _infer(op: str, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, sizes = inputs[0], attrs.as_ints("sizes")
    _check(op, x)
    if "kernel" in attrs:
        window = pool_window(x.shape, attrs)
        window.check(op, window.counts(True), math.prod(x.shape[:2]))
        if any(
            n not in both
            for n, *both in zip(sizes, window.counts(), window.counts(True), strict=True)
        ):
            raise ShapeError(
                f"[{op}] expected as many results as there are windows, {window.counts()}, or "
                f"{window.counts(True)} with ceil_mode, got {sizes}"
            )
    elif 0 in x.shape[2:]:
        raise ShapeError(f"[{op}] expected values along the spatial axes, got {x.shape}")
    return TensorType((*x.shape[:2], *sizes), x.dtype)


def _infer_indices(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    return _infer("max_pool_indices", inputs, attrs).as_dtype(INT64)


def _launch(
    op: str, shader: str, call: Call, window: Window, attrs: dict[str, int], p: float = 0.0
) -> tuple[Dispatch, ...]:
    push = (
        *window.push(),
        ("x_sizes", three(window.sizes)),
        ("result_sizes", three(call.output.shape[2:])),
        ("end", three(window.end, 0)),
        ("p", p),
    )
    return tuple(
        Dispatch(
            *(shader, (0, OUTPUT), launch.groups, (*push, *launch.push), tuple(attrs.items())),
            barrier=launch.barrier,
        )
        for launch in launches(op, call.output.size, window.rounds(), call.limits)
    )


def _lower_largest(op: str, shader: str, call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a maximum or its index, with one kernel per element type."""
    x = call.inputs[0]
    return _lower(op, f"{shader}_{x.dtype}", call)


def _lower_average(call: Call) -> tuple[Dispatch, ...]:
    counts = {"COUNT_PADDING": int(call.attrs.as_bool("count_include_pad"))}
    return _lower("average_pool", "pool_average", call, counts)


def _lower_lp(call: Call) -> tuple[Dispatch, ...]:
    p = call.attrs.as_float("p")
    return _lower("lp_pool", "pool_lp", call, {"WHOLE_P": int(p) if p in (1, 2) else 0}, p)


def _lower(
    op: str, shader: str, call: Call, constants: dict[str, int] | None = None, p: float = 0.0
) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    window = pool_window(call.inputs[0].shape, call.attrs)
    return _launch(op, shader, call, window, constants or {}, p)


def _lower_adaptive(op: str, shader: str, call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    sizes, counts = call.inputs[0].shape[2:], call.output.shape[2:]
    if any((c + 1) * s >= 1 << 32 for s, c in zip(sizes, counts, strict=True)):
        raise UnsupportedOp(f"[{op}] expected sizes whose product fits 32 bits, got {sizes}")
    ones, none = (1,) * len(sizes), (0,) * len(sizes)
    window = Window(sizes, _longest(sizes, counts), ones, ones, none, none)
    return _launch(op, shader, call, window, {"ADAPTIVE": 1})


def _lower_adaptive_max(call: Call) -> tuple[Dispatch, ...]:
    return _lower_adaptive("adaptive_max_pool", f"pool_max_{call.inputs[0].dtype}", call)


def _longest(sizes: Shape, counts: Shape) -> Shape:
    """Return the positions of the longest adaptive window along each axis."""
    return tuple(
        -(-s // c) + (s % c > 0 and c > 1) if c else 0 for s, c in zip(sizes, counts, strict=True)
    )


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    if "kernel" in attrs:
        taps = math.prod(attrs.as_ints("kernel"))
    else:
        taps = math.prod(_longest(inputs[0].shape[2:], output.shape[2:]))
    moved = inputs[0].device_bytes + output.device_bytes
    return Work(float(taps * output.size), float(moved), float(taps if output.size else 0))


_MAX = ("pool_max_float32", "pool_max_int32")
_INDICES = ("pool_indices_float32", "pool_indices_int32")
_AVERAGE = ("pool_average",)
_POOL: Domains = {**WINDOW, "kernel": STEPS, "sizes": STEPS}
_ADAPTIVE: Domains = {"sizes": PADDING}
register(
    Op(
        "max_pool",
        partial(_infer, "max_pool"),
        max_reference,
        Kernel(_MAX, partial(_lower_largest, "max_pool", "pool_max")),
        attrs=_POOL,
        operands=(1, 1),
        work=_work,
        cpu=pool_cpu_kernel("max", max_reference),
        native_program=pool_program("max"),
    )
)
register(
    Op(
        "max_pool_indices",
        _infer_indices,
        indices_reference,
        Kernel(_INDICES, partial(_lower_largest, "max_pool_indices", "pool_indices")),
        attrs=_POOL,
        operands=(1, 1),
        work=_work,
    )
)
register(
    Op(
        "average_pool",
        partial(_infer, "average_pool"),
        average_reference,
        Kernel(_AVERAGE, _lower_average),
        attrs={**_POOL, "count_include_pad": Flag()},
        operands=(1, 1),
        work=_work,
        cpu=pool_cpu_kernel("mean", average_reference),
        native_program=pool_program("mean"),
    )
)
register(
    Op(
        "lp_pool",
        partial(_infer, "lp_pool"),
        lp_reference,
        Kernel(("pool_lp",), _lower_lp),
        attrs={**_POOL, "p": Float(MIN_NORMAL)},
        operands=(1, 1),
        work=_work,
    )
)
register(
    Op(
        "adaptive_max_pool",
        partial(_infer, "adaptive_max_pool"),
        adaptive_reference(np.max),
        Kernel(_MAX, _lower_adaptive_max),
        attrs=_ADAPTIVE,
        operands=(1, 1),
        work=_work,
    )
)
register(
    Op(
        "adaptive_average_pool",
        partial(_infer, "adaptive_average_pool"),
        adaptive_reference(np.mean),
        Kernel(_AVERAGE, partial(_lower_adaptive, "adaptive_average_pool", "pool_average")),
        attrs=_ADAPTIVE,
        operands=(1, 1),
        work=_work,
    )
)


# -- builders ----------------------------------------------------------------------------------


def _pool(
    op: str,
    x: TensorLike,
    kernel: PerAxis,
    stride: PerAxis | None,
    padding: Padding,
    dilation: PerAxis,
    ceil_mode: bool,
    name: str | None,
    **more: AttrValue,
) -> Tensor:
    tensor = as_tensor(x)
    axes = check_rank(op, tensor.shape)
    reach = per_axis(op, "kernel", kernel, axes)
    steps = reach if stride is None else per_axis(op, "stride", stride, axes)
    dilations = dilation_of(op, dilation, reach)
    sizes = tensor.shape[2:]
    begin, end = paddings(op, padding, sizes, reach, steps, dilations)
    window = stepping(Window(sizes, reach, steps, dilations, begin, end))
    counts = window.counts(bool(ceil_mode))
    window.check(op, counts, math.prod(tensor.shape[:2]))
    result = apply(op, (tensor,), {**_attrs(window, counts), **more}, name)
    if window.taps <= _LONG_WINDOW or op == "max_pool_indices" or result.size == 0:
        return result
    return _axis_by_axis(op, tensor, window, counts, name, more)


def _attrs(window: Window, counts: Shape) -> dict[str, AttrValue]:
    names = ("kernel", "stride", "dilation", "begin", "end")
    return {**{name: getattr(window, name) for name in names}, "sizes": counts}


def _axis_by_axis(
    op: str,
    x: Tensor,
    window: Window,
    counts: Shape,
    name: str | None,
    more: dict[str, AttrValue],
) -> Tensor:
    """Pool long windows along one axis after the other, so that many invocations take part.

    A window that covers a whole axis is a reduction.
    """
    for axis in reversed(range(len(counts))):
        here, rest = slice(axis, axis + 1), x.shape[2:]

        def alone(values: tuple[int, ...], fill: int, here: slice = here) -> tuple[int, ...]:
            out = [fill] * len(counts)
            out[here] = values[here]
            return tuple(out)

        part = Window(
            rest,
            alone(window.kernel, 1),
            alone(window.stride, 1),
            alone(window.dilation, 1),
            alone(window.begin, 0),
            alone(window.end, 0),
        )
        if part.pointwise and counts[axis] == rest[axis]:
            continue
        if part.extent[axis] == part.taps == rest[axis] and not part.begin[axis] + part.end[axis]:
            x = _reduce_axes(op, x, (2 + axis,), more.get("p"))
        else:
            reduced = (*rest[:axis], counts[axis], *rest[axis + 1 :])
            x = apply(op, (x,), {**_attrs(part, reduced), **more})
    return reshape(x, x.shape, name=name) if name is not None else x


def _reduce_axes(
    op: str, x: Tensor, axes: Sequence[int], p: object, name: str | None = None
) -> Tensor:
    """Reduce whole axes as the pool does; they remain with size 1."""
    if op.endswith("max_pool"):
        return reduce_max(x, axes, True, name=name)
    if op.endswith("average_pool"):
        return reduce_mean(x, axes, True, name=name)
    if p == 1:
        return reduce_l1(x, axes, True, name=name)
    if p == 2:
        return reduce_l2(x, axes, True, name=name)
    assert isinstance(p, float)
    exponent = p

    def build(x: Tensor, name: str | None) -> Tensor:
        total = reduce_sum(power(absolute(x), exponent), axes, True)
        return power(total, 1 / exponent, name=name)

    return computed_wide(build, (x,), name)


def max_pool(
    x: TensorLike,
    kernel: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the largest value of each window (float32, int32; NaN wins), as ONNX MaxPool.

    x: (N, C, spatial...) -> (N, C, spatial...), one to three spatial axes. stride: default
    `kernel`. padding: as in `conv`; a window of padding only results in -infinity or the least int.
    ceil_mode: a last window may reach beyond the end.
    """
    return _pool("max_pool", x, kernel, stride, padding, dilation, ceil_mode, name)


def max_pool_indices(
    x: TensorLike,
    kernel: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the flat index (int64) in x of each result of `max_pool`, as ONNX MaxPool.

    Of equal values, or of NaNs, the first counts; -1 for a window of padding only.
    """
    return _pool("max_pool_indices", x, kernel, stride, padding, dilation, ceil_mode, name)


def average_pool(
    x: TensorLike,
    kernel: PerAxis,
    *,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the mean of each window of float32, as ONNX AveragePool; parameters as in `max_pool`.

    count_include_pad: padding counts, but never positions that ceil_mode adds beyond it. An empty
    mean is 0.
    """
    return _pool(
        *("average_pool", x, kernel, stride, padding, dilation, ceil_mode, name),
        count_include_pad=bool(count_include_pad),
    )


def lp_pool(
    x: TensorLike,
    kernel: PerAxis,
    p: float = 2.0,
    *,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the p-norm of each window of float32, as ONNX LpPool; parameters as in `max_pool`."""
    return _pool(
        *("lp_pool", x, kernel, stride, padding, dilation, ceil_mode, name),
        p=_exponent("lp_pool", p),
    )


def _exponent(op: str, p: float) -> float:
    value = number(op, "p (max_pool for infinity)", p)
    if value < MIN_NORMAL:
        raise DTypeError(f"[{op}] expected p over 0 in float32, got {p!r}")
    return value


def _adaptive(
    op: str,
    x: TensorLike,
    sizes: PerAxis,
    whole: Callable[..., Tensor],
    name: str | None,
) -> Tensor:
    """Apply an adaptive pool; `whole` reduces the spatial axes to size 1 with many invocations."""
    tensor = as_tensor(x)
    counts = per_axis(op, "sizes", sizes, check_rank(op, tensor.shape), 0)
    if 0 in tensor.shape[2:]:
        raise ShapeError(f"[{op}] expected values along the spatial axes, got {tensor.shape}")
    if set(counts) == {1}:
        return whole(tensor, name=name)
    result = apply(op, (tensor,), {"sizes": counts}, name)
    if result.size == 0 or math.prod(_longest(tensor.shape[2:], counts)) <= _LONG_WINDOW:
        return result
    for axis in reversed(range(len(counts))):
        tensor = _adaptive_axis(op, tensor, axis, counts[axis])
    return reshape(tensor, tensor.shape, name=name) if name is not None else tensor


def _adaptive_axis(op: str, x: Tensor, axis: int, count: int) -> Tensor:
    """Apply an adaptive pool along one axis, with reductions for long windows."""
    at, size = 2 + axis, x.shape[2 + axis]
    lead, rest = x.shape[:at], x.shape[at + 1 :]
    if count == size:
        return x
    if size % count == 0:
        parts = reshape(x, (*lead, count, size // count, *rest))
        return reshape(_reduce_axes(op, parts, (at + 1,), None), (*lead, count, *rest))
    if size // count > _LONG_WINDOW and count <= _MAX_SPANS:
        spans = ((i * size // count, -(-(i + 1) * size // count)) for i in range(count))
        parts_of_x = [slice_(x, [first], [last], [at]) for first, last in spans]
        return concat([_reduce_axes(op, part, (at,), None) for part in parts_of_x], at)
    return apply(op, (x,), {"sizes": (*x.shape[2:at], count, *rest)})


def adaptive_max_pool(x: TensorLike, sizes: PerAxis, *, name: str | None = None) -> Tensor:
    """Return the maxima of `sizes` windows over x, as torch's adaptive_max_pool (float32, int32).

    x: (N, C, spatial...) -> (N, C, sizes...). Window i of n over s positions is floor(i * s / n) ..
    ceil((i + 1) * s / n) - 1.
    """
    return _adaptive("adaptive_max_pool", x, sizes, global_max_pool, name)


def adaptive_average_pool(x: TensorLike, sizes: PerAxis, *, name: str | None = None) -> Tensor:
    """Return the means of `sizes` windows over float32 x, as torch's adaptive_avg_pool.

    The windows are those of `adaptive_max_pool`.
    """
    return _adaptive("adaptive_average_pool", x, sizes, global_average_pool, name)


def _spatial(op: str, x: TensorLike) -> tuple[Tensor, Sequence[int]]:
    tensor = as_tensor(x)
    return tensor, range(2, 2 + check_rank(op, tensor.shape))


def global_max_pool(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the maximum of each channel, (N, C, 1...), for float32 and int32, as ONNX
    GlobalMaxPool.
    """
    tensor, axes = _spatial("global_max_pool", x)
    return reduce_max(tensor, axes, True, name=name)


def global_average_pool(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the mean of each channel of float32, as ONNX GlobalAveragePool: (N, C, 1...)."""
    tensor, axes = _spatial("global_average_pool", x)
    return reduce_mean(tensor, axes, True, name=name)


def global_lp_pool(x: TensorLike, p: float = 2.0, *, name: str | None = None) -> Tensor:
    """Return the p-norm of each channel of float32, as ONNX GlobalLpPool: (N, C, 1...)."""
    tensor, axes = _spatial("global_lp_pool", x)
    return _reduce_axes("lp_pool", tensor, axes, _exponent("global_lp_pool", p), name)
