"""What convolutions and pools share: the attributes of their windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....ir.tensor import Tensor
from ....ops import transpose
from ....ops.conv.window import Padding
from ..nodes.node import NodeContext
from ..nodes.values import Value


def spatial_axes(n: NodeContext) -> int:
    """Return the number of axes behind batch and channels, of which kernels take one to three."""
    axes = len(n.shape(0)) - 2
    n.require(1 <= axes <= 3, f"{axes} spatial axes")
    return axes


def ints(n: NodeContext, name: str, axes: int, default: int = 1) -> tuple[int, ...]:
    """Return an attribute of one number for each spatial axis."""
    attribute = n.attr(name, ())
    return tuple(attribute) or (default,) * axes


def padding(n: NodeContext, axes: int) -> Padding:
    """Return the padding as vksched's ops take it."""
    rule = n.attr("auto_pad", "NOTSET")
    return ints(n, "pads", 2 * axes, 0) if rule in ("NOTSET", "") else str(rule).lower()


# -- channels that come last ---------------------------------------------------------------------


def channels_first(x: Tensor) -> Tensor:
    """(batch, ..., channels) -> (batch, channels, ...)"""
    return transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Tensor) -> Tensor:
    """(batch, channels, ...) -> (batch, ..., channels)"""
    return transpose(x, (0, *range(2, x.rank), 1))


def either_layout(build: Callable[[NodeContext], Value]) -> Callable[[NodeContext], Value]:
    """Return a rule that computes with channels first and takes the attribute channels_last."""

    def either(n: NodeContext) -> Value:
        if not n.attr("channels_last", 0):
            return build(n)
        first = Value(n.elem_type(0), tensor=channels_first(n.tensor(0)))
        result = build(n.with_input(0, first))
        assert result.tensor is not None
        return replace(result, tensor=channels_last(result.tensor))

    return either
