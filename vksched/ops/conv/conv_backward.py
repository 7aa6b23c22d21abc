"""Gradient rules of convolutions, which are convolutions themselves.

    y[i] = sum over k of w[k] * x[i * stride + k * dilation - begin]

    x:    each dy contributes to the positions of its window   -> conv_transpose of dy with w; if
                                      all strides are 1, conv of dy with flipped filters, for
                                      which devices have faster kernels
    w:    w[k] meets x at steps of `stride`, once per result   -> products of dy with slices of x;
                                      depthwise: depthwise_conv_weight_grad
    bias: it was added to all results of its channel           -> a sum

Positions of x that no window reads are cropped for the gradient of w, and are the output padding of
the transposed convolution. All rules use linear ops, so they also serve higher-order gradients.
Examples: tests/autograd/test_rules_windows.py.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import Shape
from ...ir.attrs import AttrValue
from ...ir.tensor import Tensor, apply
from ...ir.vjp import VjpContext, VjpResult, gradient, no_gradient
from ..layout.pad import pad
from ..layout.reshape import concat, reshape, slice_, transpose
from ..linalg.matmul import matmul
from ..reduction.reduce import reduce_sum
from .conv import conv
from .conv_direct import conv_window, transpose_window
from .depthwise_conv_weight_grad import depthwise_conv_weight_grad, window_of
from .flip_filters import flip_filters
from .window import Window, extent
from .winograd import winograd_conv, winograd_weights

_MAX_ROWS = 4
"""Minimum rows of a channel for which matrix products are faster for a depthwise convolution."""
MAX_UNFOLDED_ELEMENTS = 1 << 22
"""Maximum elements of x, repeated for some taps of a window, that are unfolded at once."""

no_gradient(
    "is created by a pass from conv, after differentiation",
    *(build.__name__ for build in (winograd_conv, winograd_weights)),
)


@gradient("conv")
def _conv(call: VjpContext) -> VjpResult:
    x, w = call.inputs[:2]
    g, groups = call.grad, call.attrs.as_int("groups")
    window = conv_window((x.type, w.type), call.attrs)
    gradients = (
        _input_gradient(g, w, window, groups),
        _weight_gradient(x, g, window, groups),
        _bias_gradient(g),
    )
    return gradients[: len(call.inputs)]


@gradient("conv_transpose")
def _conv_transpose(call: VjpContext) -> VjpResult:
    x, w = call.inputs[:2]
    g, groups = call.grad, call.attrs.as_int("groups")
    window = transpose_window((x.type, w.type), call.attrs)
    read, begin, end = _crop_unread(g, window, x.shape[2:])
    by_x = conv(
        read,
        w,
        stride=window.stride,
        dilation=window.dilation,
        padding=(*begin, *end),
        groups=groups,
    )
    gradients = by_x, _weight_gradient(g, x, window, groups), _bias_gradient(g)
    return gradients[: len(call.inputs)]


@gradient("depthwise_conv_weight_grad")
def _depthwise_conv_weight_grad(call: VjpContext) -> VjpResult:
    (x, g), w = call.inputs, call.grad
    window, groups = window_of((x.type, g.type), call.attrs), x.shape[1]
    by_g = conv(
        x,
        w,
        stride=window.stride,
        dilation=window.dilation,
        padding=(*window.begin, *window.end),
        groups=groups,
    )
    return _input_gradient(g, w, window, groups), by_g


def _bias_gradient(g: Tensor) -> Tensor:
    return reduce_sum(g, (0, *range(2, g.rank)))


def _input_gradient(g: Tensor, w: Tensor, window: Window, groups: int) -> Tensor:
    """Return the gradient of a convolution's input: a transposed convolution, padded to fit."""
    counts = g.shape[2:]
    stride = tuple(s if n > 1 else 1 for s, n in zip(window.stride, counts, strict=True))
    reach = extent(window.kernel, window.dilation)
    before = [r - 1 - first for r, first in zip(reach, window.begin, strict=True)]
    after = [
        size - n + first for size, n, first in zip(window.sizes, counts, window.begin, strict=True)
    ]
    if max(stride) == 1 and min(*before, *after) >= 0 and 0 not in window.sizes:
        flipped = flip_filters(w, groups)
        padding = (*before, *after)
        return conv(g, flipped, dilation=window.dilation, padding=padding, groups=groups)
    behind = tuple(  # positions behind the last window; negative if it reaches beyond the end
        size + first - r
        for size, first, r in zip(
            window.sizes, window.begin, _window_ends(window, counts), strict=True
        )
    )
    attrs: dict[str, AttrValue] = {
        "stride": stride,
        "dilation": window.dilation,
        "begin": window.begin,
        "end": tuple(max(0, -b) for b in behind),
        "groups": groups,
        "output_padding": tuple(max(0, b) for b in behind),
    }
    return apply("conv_transpose", (g, w), attrs)


def _weight_gradient(x: Tensor, g: Tensor, window: Window, groups: int) -> Tensor:
    """Return the gradient of the weights, (groups * R, C, kernel).

    The window slides over x (N, groups * C, sizes); g (N, groups * R, counts) is the gradient of
    the result.
    """
    read, begin, end = _crop_unread(x, window, g.shape[2:])
    padding = (*begin, *end)
    if x.shape[1] == groups and g.shape[1] < _MAX_ROWS * groups and g.size:
        return depthwise_conv_weight_grad(read, g, window, padding)
    return _by_products(read, g, window, padding, groups)


def _by_products(x: Tensor, g: Tensor, window: Window, padding: Shape, groups: int) -> Tensor:
    """Compute the gradient of the weights by matrix products: for each tap, g times its slice of x.

    Taps share a product as long as their slices together are not too large.
    """
    axes = len(window.sizes)
    around = ((0, 0), (0, 0), *zip(padding[:axes], padding[axes:], strict=True))
    whole = pad(x, around) if any(padding) else x
    images, places, channels = x.shape[0], math.prod(g.shape[2:]), x.shape[1] // groups
    rows = reshape(g, (images, groups, g.shape[1] // groups, places))
    met = [
        reshape(
            _tap_values(whole, place, window, g.shape[2:]), (images, groups, channels, 1, places)
        )
        for place in np.ndindex(*window.kernel)
    ]
    together = max(1, MAX_UNFOLDED_ELEMENTS // max(1, met[0].size))
    products: list[Tensor] = []
    for first in range(0, len(met), together):  # adjacent taps of a channel
        part = met[first : first + together]
        columns = concat(part, 3) if len(part) > 1 else part[0]
        columns = reshape(columns, (images, groups, channels * len(part), places))
        products.append(reshape(_product_sum(rows, columns), (g.shape[1], channels, len(part))))
    return reshape(
        concat(products, 2) if len(products) > 1 else products[0],
        (g.shape[1], channels, *window.kernel),
    )


def _tap_values(x: Tensor, place: Shape, window: Window, counts: Shape) -> Tensor:
    """Return the values of x, with padding, that one tap of the window reads: (N, C, counts)."""
    if x.shape[2:] == counts and not any(place):
        return x
    starts = tuple(p * d for p, d in zip(place, window.dilation, strict=True))
    ends = tuple(
        first + (n - 1) * s + 1 for first, n, s in zip(starts, counts, window.stride, strict=True)
    )
    return slice_(x, starts, ends, range(2, x.rank), window.stride)


def _product_sum(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the sum over images of rows @ columns^T: (groups, R, C).

    `rows` is (N, groups, R, positions), `columns` is (N, groups, C, positions). Either the products
    of all images are summed, or both operands are transposed for a single product, whichever moves
    less data.
    """
    images, groups, _, places = rows.shape
    if rows.size * columns.shape[2] <= places * (rows.size + columns.size):
        return reduce_sum(matmul(rows, columns, transpose_b=True), 0)
    flattened = (
        reshape(transpose(t, (1, 2, 0, 3)), (groups, t.shape[2], images * places))
        for t in (rows, columns)
    )
    return matmul(*flattened, transpose_b=True)


def _window_ends(window: Window, counts: Shape) -> Shape:
    """Return the end of the last window along each padded axis."""
    return tuple(
        (n - 1) * s + reach
        for n, s, reach in zip(
            counts, window.stride, extent(window.kernel, window.dilation), strict=True
        )
    )


def _crop_unread(x: Tensor, window: Window, counts: Shape) -> tuple[Tensor, Shape, Shape]:
    """Return x without the positions behind its last window, and the padding of the windows."""
    reached = _window_ends(window, counts)
    begin = tuple(min(b, r) for b, r in zip(window.begin, reached, strict=True))
    covered = tuple(
        min(size, r - b) for size, r, b in zip(x.shape[2:], reached, begin, strict=True)
    )
    end = tuple(r - b - k for r, b, k in zip(reached, begin, covered, strict=True))
    if covered != x.shape[2:]:
        x = slice_(x, (0,) * len(covered), covered, range(2, x.rank))
    return x, begin, end
