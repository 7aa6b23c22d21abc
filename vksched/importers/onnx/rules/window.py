"""Window attributes of convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....ir.tensor import Tensor
from ....ops import transpose
from ....ops.conv.window import Padding
from ..nodes.node import NodeContext
from ..nodes.values import Value


def spatial_axes(n: NodeContext) -> int:
    """Return the number of spatial axes; kernels support one to three."""
    axes = len(n.shape(0)) - 2
    n.require(1 <= axes <= 3, f"{axes} spatial axes")
    return axes


def ints(n: NodeContext, name: str, axes: int, default: int = 1) -> tuple[int, ...]:
    """Return an attribute with one number per spatial axis."""
    attribute = n.attr(name, ())
    return tuple(attribute) or (default,) * axes


def padding(n: NodeContext, axes: int) -> Padding:
    """Return the padding as an argument of vksched's ops."""
    rule = n.attr("auto_pad", "NOTSET")
    return ints(n, "pads", 2 * axes, 0) if rule in ("NOTSET", "") else str(rule).lower()


# -- channels last ------------------------------------------------------------------------------


def channels_first(x: Tensor) -> Tensor:
    """(batch, ..., channels) -> (batch, channels, ...)"""
    return transpose(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Tensor) -> Tensor:
    """(batch, channels, ...) -> (batch, ..., channels)"""
    return transpose(x, (0, *range(2, x.rank), 1))


def either_layout(build: Callable[[NodeContext], Value]) -> Callable[[NodeContext], Value]:
    """Wrap a rule for channels first so that it supports the attribute channels_last."""

    def either(n: NodeContext) -> Value:
        if not n.attr("channels_last", 0):
            return build(n)
        first = Value(n.elem_type(0), tensor=channels_first(n.tensor(0)))
        result = build(n.with_input(0, first))
        assert result.tensor is not None
        return replace(result, tensor=channels_last(result.tensor))

    return either
