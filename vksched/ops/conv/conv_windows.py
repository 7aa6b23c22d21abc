"""Dispatches of convolutions whose kernels gather windows on their way to shared memory.

    w (rows, C * taps) --matmul_pack--> scratch, if lines are no whole vec4s
    w or scratch x windows (C * taps, N * positions) --a tile per workgroup--> result

Shared by conv_coopmat.py and conv_implicit.py, as shaders/conv/conv_windows.glsl by their kernels.
"""

from __future__ import annotations

from dataclasses import replace

from ...common.dtypes import TensorType
from ...ir.op import SCRATCH, Call, Dispatch
from ..linalg import matmul
from ..linalg.operands import product_attrs, round_up_to_vec4
from ..lowering.strides import DISPATCH_FLOPS
from .conv_direct import conv_constants, push_of, sum_of
from .window import Window, three


def columns_of(call: Call) -> int:
    """Return the number of windows, those of all images."""
    return call.output.shape[0] * sum_of(call).places


def is_packed(call: Call) -> bool:
    """Return True if the weights are packed first, so that their lines are whole vec4s."""
    return sum_of(call).steps % 4 > 0


def packed_words(call: Call) -> tuple[int, ...]:
    """Return the words of the packed weights, if they are packed."""
    sums = sum_of(call)
    words = sums.groups * sums.rows * round_up_to_vec4(sums.steps)
    return (words,) if is_packed(call) else ()


def _weights_call(call: Call) -> Call:
    """Return the matrix product whose operand is the weights of each group."""
    sums, dtype = sum_of(call), call.output.dtype
    w = TensorType((sums.groups, sums.rows, sums.steps), dtype)
    windows = TensorType((sums.groups, sums.steps, sums.places), dtype)
    result = TensorType((sums.groups, sums.rows, sums.places), dtype)
    return Call((w, windows), result, product_attrs(call, False, False), call.limits)


def _checked_axes(window: Window, steps: int) -> int:
    """Return the number of last axes that need bounds checks.

    These are the axes along which a window may reach beyond the edge, and the last axis if a line
    of packed weights is longer than a window.
    """
    over = three([b > 0 or e > 0 for b, e in zip(window.begin, window.end, strict=True)], 0)
    axes = [len(over) - axis for axis, reaches in enumerate(over) if reaches]
    return max(*axes, int(steps % 4 > 0), 0)


def window_products(
    call: Call, window: Window, product: Dispatch, tiles: int, tile_size: int, channels: int
) -> tuple[Dispatch, ...]:
    """Return the dispatch that packs the weights, if they are packed, and those of all tiles.

    The tiles are divided among dispatches whose duration a GPU driver tolerates.

    Parameters
    ----------
    product
        The shader, its operands, of which 1 is the weights, and the constants of its tile.
    tiles, tile_size
        The number of tiles, and of the results of one.
    channels
        The channels that a tile sums.
    """
    sums, packed = sum_of(call), is_packed(call)
    pack = (replace(matmul.pack(_weights_call(call), 0, SCRATCH), operands=(1, SCRATCH)),) * packed
    most = max(1, int(DISPATCH_FLOPS / (2.0 * tile_size * sums.steps)))
    each = tiles if call.limits.software else most
    push = (*push_of(call, window), ("start", 0), ("end", channels))
    constants = (
        *conv_constants(call, not product.partial),
        ("GUARDED", _checked_axes(window, sums.steps)),
        *zip(("KERNEL_Z", "KERNEL_Y", "KERNEL_X"), three(window.kernel), strict=True),
        *product.constants,
    )
    products = (
        replace(
            product,
            operands=tuple(SCRATCH if packed and o == 1 else o for o in product.operands),
            groups=(min(each, tiles - first, call.limits.max_groups[0]), 1, 1),
            push=(*push, ("first_item", first), ("last_item", min(first + each, tiles))),
            constants=constants,
            barrier=packed or first > 0,
        )
        for first in range(0, tiles, each)
    )
    return (*pack, *products)
