"""Sampling at the points of a grid: grid_sample, and the grid of an affine map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from ...common.dtypes import FLOAT32, FLOATS, NDArray, TensorType, as_ints, check_constant_size
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Flag, one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, constant
from ..layout.reshape import reshape, transpose
from ..linalg.matmul import matmul
from ..lowering.chunking import element_parts

MODES = ("nearest", "linear", "cubic")
"""Modes, in the order of their numbers in shaders/conv/grid_sample.comp."""
PADDINGS = ("zeros", "border", "reflection")
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
CUBIC_A = -0.75
UNDEFINED_WORD = 0x7FC00000


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, grid = inputs
    mode = attrs.as_str("mode")
    if grid.dtype != FLOAT32 or (mode != "nearest" and x.dtype != FLOAT32):
        raise DTypeError(
            f"[grid_sample] expected float32 operands, got {x.dtype} and {grid.dtype} for {mode}; "
            "try vs.cast"
        )
    most = 4 if mode == "cubic" else 5
    if not 4 <= x.rank <= most:
        raise ShapeError(
            f"[grid_sample] expected (batch, channels, {'' if most == 4 else '[depth,] '}height, "
            f"width) for {mode}, got {x.shape}"
        )
    if grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != x.rank - 2:
        raise ShapeError(
            f"[grid_sample] expected a grid of {x.rank - 2} coordinates for each point of "
            f"{x.shape[0]} results of rank {x.rank}, got {grid.shape}"
        )
    result = TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    if result.size and 0 in x.shape:
        raise ShapeError(f"[grid_sample] expected elements to sample, got none in {x.shape}")
    return result


def _fold(at: NDArray, low: float, high: float) -> NDArray:
    """Reflect coordinates at both borders until they are between them."""
    if high <= low:
        return np.zeros_like(at)
    size = high - low
    times = np.floor((at - low) / size)
    odd = times % 2 == 1
    return np.clip(np.where(odd, 2 * low + (times + 1) * size - at, at - times * size), low, high)


def _position(coordinates: NDArray, size: int, attrs: Attrs) -> NDArray:
    """Convert coordinates of -1..1 to positions on an axis, and apply the padding mode outside."""
    aligned, padding = attrs.as_bool("align_corners"), attrs.as_str("padding_mode")
    at = (coordinates + 1) / 2 * (size - 1) if aligned else ((coordinates + 1) * size - 1) / 2
    if attrs.as_str("mode") == "nearest":
        at = np.rint(at)
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if padding == "reflection":
        moved = np.where(np.isinf(at), np.nan, _fold(at, low, high))
    elif padding == "border":
        moved = np.clip(at, 0, size - 1)
    else:
        moved = np.clip(at, -3, size + 2)  # all taps outside
    return np.asarray(np.where((at < low) | (at > high), moved, at))


def _tap_index(place: NDArray, size: int, attrs: Attrs) -> tuple[NDArray, NDArray]:
    """Return the indices of whole positions, and a mask of the elements to read."""
    if attrs.as_str("padding_mode") == "reflection":
        ends = (0.0, size - 1.0) if attrs.as_bool("align_corners") else (-0.5, size - 0.5)
        outside = (place < 0) | (place > size - 1)
        place = np.where(outside, np.rint(_fold(place, *ends)), place)
    index = np.clip(place, 0, size - 1)
    every = attrs.as_str("padding_mode") != "zeros"
    return index.astype(np.int64), (index == place) | every


def _weights(mode: str, fraction: NDArray) -> list[NDArray]:
    """Return the weights of the taps, from the first position on."""
    f, a = fraction, CUBIC_A
    if mode == "nearest":
        return [np.ones_like(f)]
    if mode == "linear":
        return [1 - f, f]

    def near(d: NDArray) -> NDArray:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: NDArray) -> NDArray:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(f + 1), near(f), near(1 - f), far(2 - f)]


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, grid = inputs
    mode, dims, sizes = attrs.as_str("mode"), x.ndim - 2, x.shape[2:]
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    points = grid.reshape(len(grid), -1, dims)
    undefined = np.zeros(points.shape[:2], bool)
    axes = []
    with np.errstate(invalid="ignore"):
        for axis, size in enumerate(sizes):
            place = _position(points[..., dims - 1 - axis], size, attrs)
            undefined |= np.isnan(place)
            place = np.nan_to_num(place, nan=0.0)
            base = np.floor(place)
            weights = _weights(mode, place - base)
            first = 1 if mode == "cubic" else 0
            taps = [_tap_index(base + t - first, size, attrs) for t in range(len(weights))]
            axes.append(list(zip(taps, weights, strict=True)))
    flat = x.reshape(*x.shape[:2], -1)
    wide = np.zeros((*x.shape[:2], points.shape[1]), x.dtype if mode == "nearest" else np.float64)
    for taps_of_axes in product(*axes):
        index = np.zeros(undefined.shape, np.int64)
        weight = np.ones(undefined.shape, np.float64)
        for ((tap, read), w), size in zip(taps_of_axes, sizes, strict=True):
            index = index * size + tap
            weight = np.where(read, weight * w, 0)
        taken = np.take_along_axis(flat, index[:, None, :], axis=2)
        used = weight[:, None, :] != 0  # infinity times 0 would be NaN
        if mode == "nearest":
            wide = np.where(used, taken, wide)
        else:
            with np.errstate(invalid="ignore"):
                wide += np.where(used, taken * weight[:, None, :], 0)
    nothing = np.asarray(np.nan if x.dtype.kind == "f" else 0).astype(x.dtype)
    wide = np.where(undefined[:, None, :], nothing, wide)
    return wide.astype(x.dtype).reshape(shape)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    x, attrs = call.inputs[0], call.attrs
    mode, dims = attrs.as_str("mode"), x.rank - 2
    if call.output.size == 0:
        return ()
    push = (
        ("channels", x.shape[1]),
        ("points", math.prod(call.output.shape[2:])),
        ("depth", x.shape[2] if dims == 3 else 1),
        ("height", x.shape[-2]),
        ("width", x.shape[-1]),
        ("padding", PADDINGS.index(attrs.as_str("padding_mode"))),
        ("align_corners", int(attrs.as_bool("align_corners"))),
        ("undefined", UNDEFINED_WORD if x.dtype == FLOAT32 else 0),
    )
    constants = (("MODE", MODES.index(mode)), ("DIMS", dims))
    rounds = 1 + sum(TAPS[mode] ** (d + 1) for d in range(dims))
    return tuple(
        Dispatch(
            "grid_sample",
            (0, 1, OUTPUT),
            groups,
            (("start", start), ("end", end), *push),
            constants,
        )
        for start, end, groups in element_parts(
            "grid_sample", call.output.size, rounds + 1, call.limits
        )
    )


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    taps = TAPS[attrs.as_str("mode")] ** (inputs[0].rank - 2)
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(4.0 * taps * output.size, float(moved))


register(
    Op(
        "grid_sample",
        _infer,
        _reference,
        Kernel(("grid_sample",), _lower),
        attrs={
            "mode": one_of(*MODES),
            "padding_mode": one_of(*PADDINGS),
            "align_corners": Flag(),
        },
        operands=(2, 2),
        work=_work,
    )
)


def grid_sample(
    x: TensorLike,
    grid: TensorLike,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Sample x at the points of a grid, as ONNX GridSample.

    Parameters
    ----------
    x : Tensor
        (batch, channels, [depth,] height, width).
    grid : Tensor
        (batch, ..., coordinates), the innermost axis first; -1..1 spans x. A NaN coordinate results
        in NaN, or 0 for integers.
    mode : {"linear", "nearest", "cubic"}
        "cubic" requires x without depth. Elements of weight 0 are not read.
    padding_mode : {"zeros", "border", "reflection"}
        Values outside of x.
    align_corners : bool
        Whether -1 and 1 are the centers of the first and last elements instead of the edges.

    Returns
    -------
    Tensor
        (batch, channels, ...).
    """
    for what, value, known in (("mode", mode, MODES), ("padding_mode", padding_mode, PADDINGS)):
        if value not in known:
            raise ShapeError(
                f"[grid_sample] expected a {what} of {', '.join(known)}, got {value!r}"
            )
    attrs: dict[str, AttrValue] = {
        "mode": mode,
        "padding_mode": padding_mode,
        "align_corners": bool(align_corners),
    }
    return apply("grid_sample", (as_tensor(x), as_tensor(grid)), attrs, name)


def _steps(size: int, align_corners: bool) -> NDArray:
    """Return the coordinates of an axis, -1 to 1 between the outer centers or between the edges."""
    at = np.arange(size, dtype=np.float64)
    if not align_corners:
        return np.asarray((2 * at + 1) / max(size, 1) - 1)
    return np.asarray(2 * at / (size - 1) - 1 if size > 1 else at)


def affine_grid(
    theta: TensorLike,
    size: Sequence[int],
    align_corners: bool = False,
    *,
    name: str | None = None,
) -> Tensor:
    """Return the sampling grid of an affine map for `grid_sample`, as ONNX AffineGrid.

    Parameters
    ----------
    theta : Tensor
        (batch, 2, 3), or (batch, 3, 4) with depth.
    size : sequence of int
        (batch, channels, height, width), or (batch, channels, depth, height, width).
    align_corners : bool
        As in `grid_sample`.

    Returns
    -------
    Tensor
        (batch, height, width, 2), or (batch, depth, height, width, 3).
    """
    maps, shape = as_tensor(theta), as_ints("affine_grid", "size", size)
    if any(s < 0 for s in shape):
        raise ShapeError(f"[affine_grid] expected sizes of 0 or more, got {shape}")
    if maps.dtype not in FLOATS:
        raise DTypeError(f"[affine_grid] expected float32, got {maps.dtype}; try vs.cast")
    dims = len(shape) - 2
    if dims not in (2, 3) or maps.shape != (shape[0], dims, dims + 1):
        raise ShapeError(
            "[affine_grid] expected maps (batch, 2, 3) and a size (batch, channels, height, width) "
            f"or (batch, 3, 4) and one with depth, got {maps.shape} and {shape}"
        )
    check_constant_size("affine_grid", math.prod(shape[2:]) * (dims + 1))
    steps = [_steps(length, align_corners) for length in shape[2:]]
    places = np.stack([*reversed(np.meshgrid(*steps, indexing="ij")), np.ones(shape[2:])], -1)
    base = constant(places.reshape(-1, dims + 1).astype(maps.dtype))
    moved = matmul(base, transpose(maps, (0, 2, 1)))
    return reshape(moved, (shape[0], *shape[2:], dims), name=name)
