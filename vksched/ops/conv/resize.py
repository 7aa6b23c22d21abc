"""Resize, axis by axis: the elements that each result reads are known when the graph is written.

Nearest mode reads one index per result, the other modes read a few with weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...common.dtypes import (
    FLOATS,
    NDArray,
    as_float,
    as_floats,
    as_ints,
    as_shape,
    check_constant_size,
    normalize_axis,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor, constant, one_value
from ..elementwise import where
from ..layout.index import gather
from ..layout.reshape import reshape
from ..reduction.resample import resample

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True, slots=True)
class _Axis:
    """One resized axis: index, old and new size, scale, and region of interest."""

    axis: int
    size: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def changes(self) -> bool:
        same = self.size == self.out and math.isclose(self.scale, 1.0)
        return not (same and self.roi == (0.0, 1.0))


def _coordinates(a: _Axis, transform: str, mode: str) -> NDArray:
    """Return the position of each result on the axis, as ONNX defines it.

    The nearest position is computed in float32, the type of scales: 3 / 0.6 is 5 there, but less if
    the float32 scale is converted to float64 first.
    """
    at: NDArray = np.arange(a.out, dtype=np.float32 if mode == "nearest" else np.float64)
    length = a.scale * a.size  # the length of the result, which need not be whole
    if transform == "align_corners":
        return at * 0 if length == 1 else at * (a.size - 1) / (length - 1)
    if transform == "asymmetric":
        return at / a.scale
    if transform == "tf_crop_and_resize":
        first, last = a.roi
        if length == 1:
            middle = (last - first) * (a.size - 1) / 2
            return at * 0 + middle + first * (a.size - 1)
        return at * (last - first) * (a.size - 1) / (length - 1) + first * (a.size - 1)
    if transform == "pytorch_half_pixel" and a.out <= 1:
        return at * 0
    half_pixel: NDArray = (at + 0.5) / a.scale - 0.5
    if transform == "half_pixel_symmetric":
        return a.size / 2 * (1 - a.out / length) + half_pixel
    return half_pixel


def _nearest(at: NDArray, mode: str, size: int) -> NDArray:
    if mode == "round_prefer_floor":
        index = np.ceil(at - 0.5)
    elif mode == "round_prefer_ceil":
        index = np.floor(at + 0.5)
    else:
        index = np.floor(at) if mode == "floor" else np.ceil(at)
    return np.asarray(np.clip(index, 0, size - 1), np.int32)


def _hat(distance: NDArray) -> NDArray:
    return np.asarray(np.clip(1 - np.abs(distance), 0, 1))


def _cubic(distance: NDArray, a: float) -> NDArray:
    """Return the weights of Keys' cubic convolution for these distances.

    Source: Keys, Cubic convolution interpolation for digital image processing, 1981.
    """
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(
    a: _Axis, at: NDArray, mode: str, cubic_coeff_a: float, exclude_outside: bool, antialias: bool
) -> tuple[NDArray, NDArray]:
    """Return the source indices and weights (out, taps) of the results at these positions."""
    if a.out == 0:
        return np.zeros((0, 1), np.int32), np.zeros((0, 1))
    reach = 1 if mode == "linear" else 2
    scale = min(a.scale, 1.0) if antialias else 1.0
    first = math.floor(-reach / scale) + 1
    check_constant_size("resize", a.out * (2 - 2 * first))
    base = np.ceil(at) - 1  # the position is in base..base + 1, including the end
    steps = np.arange(first, 2 - first)
    distance = (steps - (at - base)[:, None]) * scale
    weights = _hat(distance) if mode == "linear" else _cubic(distance, cubic_coeff_a)
    indices = base[:, None] + steps
    if antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if exclude_outside:
        weights = np.where((indices < 0) | (indices >= a.size), 0.0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return np.clip(indices, 0, a.size - 1), weights


def _resized_axes(
    shape: tuple[int, ...],
    along: Sequence[int],
    sizes: Sequence[int] | None,
    scales: Sequence[float] | None,
    policy: str,
    roi: Sequence[float] | None,
) -> list[_Axis]:
    """Return the description of each resized axis."""
    old_sizes = [shape[a] for a in along]
    if sizes is not None:
        outs = list(as_shape(sizes))
        if len(outs) != len(along) or any(out < 0 for out in outs):
            raise ShapeError(f"[resize] expected {len(along)} sizes of 0 or more, got {outs}")
        factors = [out / size if size else 1.0 for out, size in zip(outs, old_sizes, strict=True)]
        if policy != "stretch" and factors:
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(along)
            outs = [int(factor * size + 0.5) for size in old_sizes]
    else:
        assert scales is not None
        factors = list(as_floats("resize", "scales", scales))
        if len(factors) != len(along) or any(f <= 0 for f in factors):
            raise ShapeError(f"[resize] expected {len(along)} scales above 0, got {factors}")
        outs = [int(factor * size) for factor, size in zip(factors, old_sizes, strict=True)]
    for size, out in zip(old_sizes, outs, strict=True):
        if size == 0 and out:
            raise ShapeError(f"[resize] cannot make {out} elements of none, in {shape}")
    windows = [(0.0, 1.0)] * len(along)
    if roi is not None:
        ends = list(as_floats("resize", "roi", roi))
        if len(ends) != 2 * len(along):
            raise ShapeError(
                f"[resize] expected {len(along)} starts and as many ends as roi, got {ends}"
            )
        windows = list(zip(ends[: len(along)], ends[len(along) :], strict=True))
    return [_Axis(*a) for a in zip(along, old_sizes, outs, factors, windows, strict=True)]


def _check_choice(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ShapeError(f"[resize] expected {what} of {', '.join(known)}, got {value!r}")


def resize(
    x: TensorLike,
    sizes: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    axes: Sequence[int] | None = None,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    keep_aspect_ratio_policy: str = "stretch",
    roi: Sequence[float] | None = None,
    extrapolation_value: float = 0.0,
    *,
    name: str | None = None,
) -> Tensor:
    """Resize x along axes, as ONNX Resize.

    Parameters
    ----------
    x : Tensor
        The input.
    sizes, scales : sequence, optional
        New size or scale of each axis in `axes`; one of the two is required.
    axes : sequence of int, optional
        Resized axes; default: all.
    roi : sequence of float, optional
        For tf_crop_and_resize: the starts of all `axes`, then their ends; 0..1 spans x. Results
        outside x are `extrapolation_value`.

    Returns
    -------
    Tensor
        x with the new sizes. Elements of weight 0 are not read, so infinite elements do not affect
        results that exclude them.
    """
    tensor = as_tensor(x)
    _check_choice("a mode", mode, MODES)
    _check_choice("a nearest_mode", nearest_mode, NEAREST)
    _check_choice("a policy", keep_aspect_ratio_policy, POLICIES)
    _check_choice("a coordinate mode", coordinate_transformation_mode, COORDINATES)
    if (sizes is None) == (scales is None):
        raise ShapeError("[resize] expected sizes or scales, got both or neither")
    if mode != "nearest" and tensor.dtype not in FLOATS:
        raise DTypeError(f"[resize] expected float32 for {mode}, got {tensor.dtype}; try vs.cast")
    if mode == "nearest" and antialias:
        raise ShapeError("[resize] expected linear or cubic with antialias, got nearest")
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    if crops and roi is None:
        raise ShapeError("[resize] expected a roi with tf_crop_and_resize, got none")
    rank = tensor.rank
    along = (
        range(rank)
        if axes is None
        else [normalize_axis("resize", a, rank) for a in as_ints("resize", "axes", axes)]
    )
    if len(set(along)) != len(along):
        raise ShapeError(f"[resize] expected distinct axes, got {axes}")
    todo = _resized_axes(
        tensor.shape, along, sizes, scales, keep_aspect_ratio_policy, roi if crops else None
    )
    cubic = as_float("resize", "cubic_coeff_a", cubic_coeff_a)
    inside = np.ones((1,) * rank, bool)
    for a in sorted(todo, key=lambda a: a.scale):  # shrinking axes first leaves less work
        if not a.changes:
            continue
        check_constant_size("resize", a.out)
        at = _coordinates(a, coordinate_transformation_mode, mode)
        if crops:
            within = (at >= 0) & (at <= a.size - 1)
            inside = inside & within.reshape(-1, *(1,) * (rank - a.axis - 1))
        if mode == "nearest":
            tensor = gather(tensor, _nearest(at, nearest_mode, a.size), a.axis)
        else:
            indices, weights = _taps(a, at, mode, cubic, exclude_outside, antialias)
            tensor = resample(tensor, indices, weights, a.axis)
    if not inside.all():
        outside = constant(one_value("resize", extrapolation_value, tensor.dtype))
        tensor = where(constant(inside), tensor, outside)
    return tensor if name is None else reshape(tensor, tensor.shape, name=name)
