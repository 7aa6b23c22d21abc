"""Rearrangement of blocks of two spatial axes into channels, and back."""

from __future__ import annotations

from ...common.dtypes import as_int
from ...common.errors import ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor
from .reshape import reshape, transpose

MODES = ("DCR", "CRD")


def _check(op: str, x: Tensor, block: int) -> int:
    if x.rank != 4:
        raise ShapeError(f"[{op}] expected (batch, channels, height, width), got {x.shape}")
    whole = as_int(op, "block", block)
    if isinstance(block, bool) or whole < 1:
        raise ShapeError(f"[{op}] expected a block of 1 or more, got {block!r}")
    return whole


def depth_to_space(
    x: TensorLike, block: int, mode: str = "DCR", *, name: str | None = None
) -> Tensor:
    """Rearrange channels into blocks of height and width, as ONNX DepthToSpace.

    Parameters
    ----------
    mode
        Order of x's channels: "DCR" with the position in the block first, "CRD" with the channel
        first.

    Shapes
    ------
    x
        (batch, c * block * block, h, w)
    result
        (batch, c, h * block, w * block)
    """
    tensor = as_tensor(x)
    b = _check("depth_to_space", tensor, block)
    batch, channels, height, width = tensor.shape
    if mode not in MODES:
        raise ShapeError(f"[depth_to_space] expected a mode of DCR or CRD, got {mode!r}")
    if channels % (b * b):
        raise ShapeError(
            f"[depth_to_space] expected a multiple of {b * b} channels, got {channels}"
        )
    rest = channels // (b * b)
    if mode == "DCR":
        parts = reshape(tensor, (batch, b, b, rest, height, width))
        moved = transpose(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = reshape(tensor, (batch, rest, b, b, height, width))
        moved = transpose(parts, (0, 1, 4, 2, 5, 3))
    return reshape(moved, (batch, rest, height * b, width * b), name=name)


def space_to_depth(x: TensorLike, block: int, *, name: str | None = None) -> Tensor:
    """Rearrange blocks of height and width into channels, as ONNX SpaceToDepth.

    Shapes
    ------
    x
        (batch, c, h * block, w * block)
    result
        (batch, block * block * c, h, w)
    """
    tensor = as_tensor(x)
    b = _check("space_to_depth", tensor, block)
    batch, channels, height, width = tensor.shape
    if height % b or width % b:
        raise ShapeError(
            f"[space_to_depth] expected height and width in multiples of {b}, got {height} and "
            f"{width}"
        )
    parts = reshape(tensor, (batch, channels, height // b, b, width // b, b))
    moved = transpose(parts, (0, 3, 5, 1, 2, 4))
    return reshape(moved, (batch, channels * b * b, height // b, width // b), name=name)
