"""What convolutions and pools share: the attributes of their windows."""

from __future__ import annotations

from ....ops.windows.window import Padding
from ..nodes.node import NodeContext


def spatial_axes(n: NodeContext) -> int:
    """Returns the number of axes behind batch and channels, of which kernels take one to three."""
    axes = len(n.shape(0)) - 2
    n.require(1 <= axes <= 3, f"{axes} spatial axes")
    return axes


def ints(n: NodeContext, name: str, axes: int, default: int = 1) -> tuple[int, ...]:
    """Returns an attribute of one number for each spatial axis."""
    given = n.attr(name, ())
    return tuple(given) or (default,) * axes


def padding(n: NodeContext, axes: int) -> Padding:
    """Returns the padding as vksched's ops take it."""
    rule = n.attr("auto_pad", "NOTSET")
    return ints(n, "pads", 2 * axes, 0) if rule in ("NOTSET", "") else str(rule).lower()
