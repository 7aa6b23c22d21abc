"""Pools over one to three spatial axes: max, mean and p-norm of windows, sliding or adaptive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError, UnsupportedOp
from ..types import FLOAT32, INT32, INT64, NDArray, Shape, TensorType
from .elementwise import abs as absolute
from .elementwise import mul, sqrt
from .elementwise import pow as power
from .op import OUTPUT, Attrs, AttrValue, Call, Dispatch, Kernel, Op, Work, register
from .reduce import reduce_max, reduce_mean, reduce_sum
from .tensor import Tensor, TensorLike, apply, as_tensor
from .window import Padding, PerAxis, Window, check_rank, launches, paddings, per_axis, three

Combine = Callable[[NDArray, NDArray], NDArray]


def _window(x: Shape, attrs: Attrs) -> Window:
    names = ("kernel", "stride", "dilation", "begin", "end")
    return Window(x[2:], *(attrs.as_ints(name) for name in names))


def _check(op: str, x: TensorType) -> None:
    allowed = (FLOAT32, INT32) if "max" in op else (FLOAT32,)
    if x.dtype not in allowed:
        raise DTypeError(f"[{op}] expected {' or '.join(allowed)}, got {x.dtype}; try vs.cast")
    check_rank(op, x.shape)


# -- references: along one axis after the other ------------------------------------------------


def _along(x: NDArray, axis: int, places: slice) -> NDArray:
    key = (slice(None),) * axis + (places,)
    return np.asarray(x[key])


def _slide(x: NDArray, window: Window, sizes: Shape, fill: float, combine: Combine) -> NDArray:
    """Returns all windows, their values combined, for a combination that may be done axis by axis.

    fill: the value of places outside of x.
    """
    for axis, size in enumerate(sizes):
        stride, dilation = window.stride[axis], window.dilation[axis]
        last = (size - 1) * stride + window.extent[axis]
        after = max(0, last - window.begin[axis] - window.sizes[axis])
        widths = [(0, 0)] * x.ndim
        widths[2 + axis] = (window.begin[axis], after)
        padded = np.pad(x, widths, constant_values=fill) if any(map(any, widths)) else x
        taps = (
            _along(padded, 2 + axis, slice(first, first + (size - 1) * stride + 1, stride))
            for first in range(0, window.extent[axis], dilation)
        )
        x = next(taps)
        for tap in taps:
            x = combine(x, tap)
    return x


def _counts(window: Window, sizes: Shape, count_padding: bool) -> NDArray:
    """Returns how many places each window of a mean counts."""
    out = np.ones((), np.int64)
    for axis, size in enumerate(sizes):
        starts = np.arange(size) * window.stride[axis] - window.begin[axis]
        places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilation[axis]
        low, high = 0, window.sizes[axis]
        if count_padding:
            low, high = -window.begin[axis], high + window.end[axis]
        inside = ((places >= low) & (places < high)).sum(1)
        out = out[..., None] * inside
    return np.asarray(out)


def _least(dtype: np.dtype[Any]) -> float:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _max_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x = inputs[0]
    window, sizes = _window(x.shape, attrs), attrs.as_ints("sizes")
    return _slide(x, window, sizes, _least(x.dtype), np.maximum)


def _average_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x = inputs[0]
    window, sizes = _window(x.shape, attrs), attrs.as_ints("sizes")
    counts = np.maximum(_counts(window, sizes, attrs.as_bool("count_include_pad")), 1)
    return np.asarray(_slide(x, window, sizes, 0, np.add) / counts.astype(x.dtype))


def _lp_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, p = inputs[0], attrs.as_float("p")
    window, sizes = _window(x.shape, attrs), attrs.as_ints("sizes")
    powers = _slide(np.abs(x) ** x.dtype.type(p), window, sizes, 0, np.add)
    return np.asarray(powers ** x.dtype.type(1 / p))


def _indices_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """For each window the first step at which the largest value is met, then its place in x."""
    x = inputs[0]
    window, sizes = _window(x.shape, attrs), attrs.as_ints("sizes")
    widths = [(0, 0), (0, 0)]
    for axis, size in enumerate(sizes):
        last = (size - 1) * window.stride[axis] + window.extent[axis]
        after = max(0, last - window.begin[axis] - window.sizes[axis])
        widths.append((window.begin[axis], after))
    padded = np.pad(x, widths)
    inside = np.pad(np.ones((1, 1, *window.sizes), bool), widths)
    chosen = np.full((*x.shape[:2], *sizes), -1, np.int64)
    best = np.zeros(chosen.shape, x.dtype)
    for number, tap in enumerate(np.ndindex(*window.kernel)):
        values, there = padded, inside
        for axis, step in enumerate(tap):
            first, stride = step * window.dilation[axis], window.stride[axis]
            places = slice(first, first + (sizes[axis] - 1) * stride + 1, stride)
            values, there = _along(values, 2 + axis, places), _along(there, 2 + axis, places)
        larger = (values > best) | ((values != values) & (best == best))
        wins = there & (larger | (chosen < 0))
        np.copyto(best, values, where=wins)
        np.copyto(chosen, number, where=wins)
    out = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(sizes))
    for axis, steps in enumerate(np.unravel_index(np.maximum(chosen, 0), window.kernel)):
        line = np.arange(sizes[axis]) * window.stride[axis] - window.begin[axis]
        line = line.reshape(-1, *(1,) * (len(sizes) - 1 - axis))
        out = out * window.sizes[axis] + line + steps * window.dilation[axis]
    return np.asarray(np.where(chosen < 0, -1, out))


def _adaptive_reference(combine: Callable[..., NDArray]) -> Callable[..., NDArray]:
    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x = inputs[0]
        if x.size == 0:
            return np.zeros((*x.shape[:2], *attrs.as_ints("sizes")), x.dtype)
        for axis, count in enumerate(attrs.as_ints("sizes"), start=2):
            size = x.shape[axis]
            spans = (slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count))
            parts = [combine(_along(x, axis, span), axis=axis) for span in spans]
            x = np.stack(parts, axis) if parts else _along(x, axis, slice(0))
        return x

    return reference


# -- rules and kernels -------------------------------------------------------------------------


def _infer(op: str) -> Callable[[tuple[TensorType, ...], Attrs], TensorType]:
    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        x = inputs[0]
        _check(op, x)
        dtype = INT64 if op == "max_pool_indices" else x.dtype
        return TensorType((*x.shape[:2], *attrs.as_ints("sizes")), dtype)

    return infer


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


def _lower(op: str, shader: str) -> Callable[[Call], tuple[Dispatch, ...]]:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        x, attrs = call.inputs[0], call.attrs
        name = f"{shader}_{x.dtype}" if "max" in op else shader
        constants, p = {}, 0.0
        if op == "average_pool":
            constants = {"COUNT_PADDING": int(attrs.as_bool("count_include_pad"))}
        if op == "lp_pool":
            p = attrs.as_float("p")
            constants = {"WHOLE_P": int(p) if p in (1, 2) else 0}
        return _launch(op, name, call, _window(x.shape, attrs), constants, p)

    return lower


def _lower_adaptive(op: str, shader: str) -> Callable[[Call], tuple[Dispatch, ...]]:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        x = call.inputs[0]
        sizes, counts = x.shape[2:], call.output.shape[2:]
        if any((c + 1) * s >= 1 << 32 for s, c in zip(sizes, counts, strict=True)):
            raise UnsupportedOp(f"[{op}] expected sizes whose product fits 32 bits, got {sizes}")
        ones, none = (1,) * len(sizes), (0,) * len(sizes)
        longest = tuple(min(s, -(-s // c) + 1) for s, c in zip(sizes, counts, strict=True))
        window = Window(sizes, longest, ones, ones, none, none)
        name = f"{shader}_{x.dtype}" if "max" in op else shader
        return _launch(op, name, call, window, {"ADAPTIVE": 1})

    return lower


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    if "kernel" in attrs:
        taps = math.prod(attrs.as_ints("kernel"))
    else:
        taps = -(-inputs[0].size // max(output.size, 1))
    return Work(float(taps * output.size), float(inputs[0].device_bytes + output.device_bytes))


_MAX = ("pool_max_float32", "pool_max_int32")
_INDICES = ("pool_indices_float32", "pool_indices_int32")
for _name, _shader, _shaders, _reference in (
    ("max_pool", "pool_max", _MAX, _max_reference),
    ("max_pool_indices", "pool_indices", _INDICES, _indices_reference),
    ("average_pool", "pool_average", ("pool_average",), _average_reference),
    ("lp_pool", "pool_lp", ("pool_lp",), _lp_reference),
):
    _kernel = Kernel(_shaders, _lower(_name, _shader))
    register(Op(_name, _infer(_name), _reference, _kernel, work=_work))
for _name, _shader, _shaders, _combine in (
    ("adaptive_max_pool", "pool_max", _MAX, np.max),
    ("adaptive_average_pool", "pool_average", ("pool_average",), np.mean),
):
    _kernel = Kernel(_shaders, _lower_adaptive(_name, _shader))
    register(Op(_name, _infer(_name), _adaptive_reference(_combine), _kernel, work=_work))


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
    dilations = per_axis(op, "dilation", dilation, axes)
    sizes = tensor.shape[2:]
    begin, end = paddings(op, padding, sizes, reach, steps, dilations)
    window = Window(sizes, reach, steps, dilations, begin, end)
    attrs: dict[str, AttrValue] = {
        "kernel": reach,
        "stride": steps,
        "dilation": dilations,
        "begin": begin,
        "end": end,
        "sizes": window.output(op, bool(ceil_mode)),
        **more,
    }
    return apply(op, (tensor,), attrs, name)


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
    """The largest value of each window, as ONNX MaxPool, for float32 and int32; NaN wins.

    x: (N, C, spatial...) -> (N, C, spatial...), one to three spatial axes. stride: the kernel
    unless given. padding as in `conv`; it never wins: a window of nothing else gives -infinity or
    the least int. ceil_mode: a last window may reach over the end.
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
    """Where in x, counted over all its elements, `max_pool` finds each result, as ONNX MaxPool's
    second output (int64).

    The first of equal values, and the first NaN; -1 for a window of nothing but padding.
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
    """The mean of each window of float32, as ONNX AveragePool; arguments as in `max_pool`.

    count_include_pad: zeros of the padding count, but never what ceil_mode reaches beyond it. The
    mean of nothing is 0.
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
    """sum(|x|^p)^(1/p) of each window of float32, as ONNX LpPool; arguments as in `max_pool`."""
    return _pool(
        *("lp_pool", x, kernel, stride, padding, dilation, ceil_mode, name),
        p=_exponent("lp_pool", p),
    )


def _exponent(op: str, p: float) -> float:
    if not (isinstance(p, (int, float, np.number)) and 0 < p < math.inf):
        raise DTypeError(f"[{op}] expected p over 0, got {p!r}; try max_pool for infinity")
    return float(p)


def _adaptive(
    op: str,
    x: TensorLike,
    sizes: PerAxis,
    whole: Callable[..., Tensor],
    name: str | None,
) -> Tensor:
    """whole: what reduces the spatial axes to one place, with many invocations for it."""
    tensor = as_tensor(x)
    counts = per_axis(op, "sizes", sizes, check_rank(op, tensor.shape), 0)
    if 0 in tensor.shape[2:]:
        raise ShapeError(f"[{op}] expected values along the spatial axes, got {tensor.shape}")
    if set(counts) == {1}:
        return whole(tensor, name=name)
    return apply(op, (tensor,), {"sizes": counts}, name)


def adaptive_max_pool(x: TensorLike, sizes: PerAxis, *, name: str | None = None) -> Tensor:
    """The largest values of windows that share x out into `sizes` results, as torch's
    adaptive_max_pool, for float32 and int32.

    x: (N, C, spatial...) -> (N, C, sizes...). Window i of n over s places is floor(i * s / n) ..
    ceil((i + 1) * s / n) - 1.
    """
    return _adaptive("adaptive_max_pool", x, sizes, global_max_pool, name)


def adaptive_average_pool(x: TensorLike, sizes: PerAxis, *, name: str | None = None) -> Tensor:
    """The means of windows that share x out into `sizes` results, as torch's adaptive_avg_pool, for
    float32; windows as in `adaptive_max_pool`.
    """
    return _adaptive("adaptive_average_pool", x, sizes, global_average_pool, name)


def _spatial(op: str, x: TensorLike) -> tuple[Tensor, Sequence[int]]:
    tensor = as_tensor(x)
    return tensor, range(2, 2 + check_rank(op, tensor.shape))


def global_max_pool(x: TensorLike, *, name: str | None = None) -> Tensor:
    """The largest value of each channel, as ONNX GlobalMaxPool: (N, C, spatial...) -> (N, C, 1...),
    for float32 and int32.
    """
    tensor, axes = _spatial("global_max_pool", x)
    return reduce_max(tensor, axes, True, name=name)


def global_average_pool(x: TensorLike, *, name: str | None = None) -> Tensor:
    """The mean of each channel of float32, as ONNX GlobalAveragePool: (N, C, spatial...) ->
    (N, C, 1...).
    """
    tensor, axes = _spatial("global_average_pool", x)
    return reduce_mean(tensor, axes, True, name=name)


def global_lp_pool(x: TensorLike, p: float = 2.0, *, name: str | None = None) -> Tensor:
    """sum(|x|^p)^(1/p) of each channel of float32, as ONNX GlobalLpPool: (N, C, spatial...) ->
    (N, C, 1...).
    """
    tensor, axes = _spatial("global_lp_pool", x)
    exponent = _exponent("global_lp_pool", p)
    if exponent == 1:
        return reduce_sum(absolute(tensor), axes, True, name=name)
    if exponent == 2:
        return sqrt(reduce_sum(mul(tensor, tensor), axes, True), name=name)
    total = reduce_sum(power(absolute(tensor), exponent), axes, True)
    return power(total, 1 / exponent, name=name)
