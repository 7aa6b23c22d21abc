"""Rules for resampling."""

from __future__ import annotations

from onnx import TensorProto

from ....common.dtypes import normalize_axis
from ....ir.tensor import Tensor
from ....ops import (
    affine_grid,
    depth_to_space,
    grid_sample,
    pad,
    reshape,
    resize,
    space_to_depth,
    transpose,
)
from ....ops import slice as slice_
from ..nodes.elements import ANY, PLAIN, element_name
from ..nodes.node import NodeContext
from .registry import rule

NAMES = {"bilinear": "linear", "bicubic": "cubic"}
"""Modes of older opsets, with their new names."""
HALF_LATER = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}
"""Rounding modes that are equivalent to adding one half first."""


@rule("Upsample", types=ANY, rounds=True)
def upsample(n: NodeContext) -> Tensor:
    """Until opset 8 the scales were an attribute."""
    scales = n.known(1).tolist() if n.has(1) else list(n.attr("scales"))
    return _resize(n, n.attr("mode", "nearest"), scales=scales)


@rule("Resize", types=ANY, rounds=True)
def resize_rule(n: NodeContext) -> Tensor:
    """Operands: x, roi, scales, sizes; in opset 10 x, scales, with the semantics of Upsample."""
    mode = n.attr("mode", "nearest")
    if n.version < 11:
        return _resize(n, mode, scales=n.known(1).tolist())
    transform = n.attr("coordinate_transformation_mode", "half_pixel")
    sizes = n.ints(3) if n.has(3) and n.shape(3) != (0,) else None
    scales = None
    if sizes is None:
        scales = n.known(2).tolist()
    roi = n.known(1).tolist() if transform == "tf_crop_and_resize" else None
    nearest = n.attr("nearest_mode", "round_prefer_floor")
    if transform == "tf_half_pixel_for_nn":  # opset 11 and 12: half a pixel after half_pixel
        n.require(mode == "nearest" and nearest in HALF_LATER, f"{transform} for {nearest}")
        transform, nearest = "half_pixel", HALF_LATER[nearest]
    return resize(
        _plain(n, mode),
        sizes=sizes,
        scales=scales,
        axes=n.attr("axes", None),
        mode=mode,
        coordinate_transformation_mode=transform,
        nearest_mode=nearest,
        cubic_coeff_a=n.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(n.attr("exclude_outside", 0)),
        antialias=bool(n.attr("antialias", 0)) and mode != "nearest",
        keep_aspect_ratio_policy=n.attr("keep_aspect_ratio_policy", "stretch"),
        roi=roi,
        extrapolation_value=n.attr("extrapolation_value", 0.0),
    )


def _resize(n: NodeContext, mode: str, scales: list[float]) -> Tensor:
    """Resize with the semantics of Upsample: positions are divided by the scale.

    "nearest" selects the previous pixel, or the next one on a shrinking axis, as in onnxruntime.
    """
    x = _plain(n, mode)
    for nearest, shrinks in (("ceil", True), ("floor", False)):
        axes = [a for a, scale in enumerate(scales) if (scale < 1) == shrinks]
        x = resize(
            x,
            scales=[scales[a] for a in axes],
            axes=axes,
            mode=NAMES.get(mode, mode),
            coordinate_transformation_mode="asymmetric",
            nearest_mode=nearest,
        )
    return x


def _plain(n: NodeContext, mode: str) -> Tensor:
    """Return x; require "nearest" for narrow element types, because other modes would change
    values.
    """
    name = element_name(n.elem_type(0))
    allowed = n.elem_type(0) in PLAIN or n.elem_type(0) == TensorProto.BFLOAT16
    n.require(mode == "nearest" or allowed, f"mode {mode} of {name}")
    return n.tensor(0)


@rule("GridSample", rounds=True)
def grid_sample_rule(n: NodeContext) -> Tensor:
    mode = n.attr("mode", "linear")
    return grid_sample(
        n.tensor(0),
        n.tensor(1),
        NAMES.get(mode, mode),
        n.attr("padding_mode", "zeros"),
        bool(n.attr("align_corners", 0)),
    )


@rule("AffineGrid", rounds=True)
def affine_grid_rule(n: NodeContext) -> Tensor:
    theta, size = n.tensor(0), n.ints(1)
    n.require_room((*size[2:], len(size) - 1), theta.dtype)
    return affine_grid(theta, size, bool(n.attr("align_corners", 0)))


@rule("DepthToSpace", types=ANY)
def depth_to_space_rule(n: NodeContext) -> Tensor:
    return depth_to_space(n.tensor(0), n.attr("blocksize"), n.attr("mode", "DCR"))


@rule("SpaceToDepth", types=ANY)
def space_to_depth_rule(n: NodeContext) -> Tensor:
    x, b = n.tensor(0), n.attr("blocksize")
    if n.attr("mode", "DCR") == "DCR":
        return space_to_depth(x, b)
    batch, channels, height, width = x.shape
    parts = reshape(x, (batch, channels, height // b, b, width // b, b))
    moved = transpose(parts, (0, 1, 3, 5, 2, 4))
    return reshape(moved, (batch, channels * b * b, height // b, width // b))


@rule("CenterCropPad", types=ANY)
def center_crop_pad(n: NodeContext) -> Tensor:
    """Crop or pad symmetrically; an odd remainder goes to the end."""
    x, wanted = n.tensor(0), n.ints(1)
    axes = n.attr("axes", None)
    along = range(x.rank) if axes is None else [normalize_axis("axes", a, x.rank) for a in axes]
    pads = [(0, 0)] * x.rank
    for axis, size in zip(along, wanted, strict=True):
        extra = x.shape[axis] - size
        if extra > 0:
            x = slice_(x, extra // 2, extra // 2 + size, axis)
        elif extra < 0:
            pads[axis] = (-extra // 2, -extra - -extra // 2)
    return pad(x, pads) if any(map(any, pads)) else x
