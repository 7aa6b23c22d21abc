"""Convolutions by cooperative matrices: weights of a group times the windows of all images.

    w (rows, C * taps) x windows (C * taps, N * positions) --> result (N, rows, positions) + bias

The kernel gathers windows directly into shared memory, so there is no im2col buffer (implicit
GEMM). Tiles and their selection: ops/linalg/coopmat.py.
"""

from __future__ import annotations

from dataclasses import replace

from ...common.dtypes import TensorType
from ...ir.op import SCRATCH, Call, Dispatch
from ..linalg import matmul
from ..linalg.coopmat import CONV, CoopmatTile, with_coopmats
from ..linalg.operands import product_attrs, round_up_to_vec4
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS
from .conv_direct import conv_constants, conv_operands, push_of, sum_of
from .window import Window, three

CONV_COOPMAT = "conv_coopmat"


def with_conv_coopmats(call: Call, plain: tuple[str, ...]) -> tuple[str, ...]:
    """Return all variants of a convolution, the best guess first.

    Parameters
    ----------
    plain
        The variants without cooperative matrices.
    """
    sums = sum_of(call)
    sizes = sums.rows, call.output.shape[0] * sums.places, sums.steps
    if not 0 < sums.steps <= LOOP_STEPS or call.inputs[0].size == 0:
        return plain
    return with_coopmats(call, plain, sizes, sums.groups, CONV)


def weights_call(call: Call) -> Call:
    """Return the matrix product whose operand is the weights of each group."""
    sums, dtype = sum_of(call), call.output.dtype
    w = TensorType((sums.groups, sums.rows, sums.steps), dtype)
    windows = TensorType((sums.groups, sums.steps, sums.places), dtype)
    result = TensorType((sums.groups, sums.rows, sums.places), dtype)
    return Call((w, windows), result, product_attrs(call, False, False), call.limits)


def coopmat_scratch(call: Call) -> tuple[int, ...]:
    """Return the words of the packed weights, whose lines are padded to whole vec4s."""
    sums = sum_of(call)
    return (sums.groups * sums.rows * round_up_to_vec4(sums.steps),) if sums.steps % 4 else ()


def checked_axes(window: Window, steps: int) -> int:
    """Return the number of last axes that need bounds checks.

    These are the axes along which a window may reach beyond the edge, and the last axis if a line
    of packed weights is longer than a window.
    """
    over = three([b > 0 or e > 0 for b, e in zip(window.begin, window.end, strict=True)], 0)
    axes = [len(over) - axis for axis, reaches in enumerate(over) if reaches]
    return max(*axes, int(steps % 4 > 0), 0)


def conv_by_coopmat(call: Call, window: Window, tile: CoopmatTile) -> tuple[Dispatch, ...]:
    """Return dispatches in which a workgroup computes a tile of rows and columns of all images.

    The tiles are divided among dispatches whose duration a GPU driver tolerates.
    """
    sums = sum_of(call)
    packed = sums.steps % 4 > 0
    pack = matmul.pack(weights_call(call), 0, SCRATCH) if packed else None
    before = () if pack is None else (replace(pack, operands=(1, SCRATCH)),)
    columns = call.output.shape[0] * sums.places
    tiles = sums.groups * -(-sums.rows // tile.rows) * -(-columns // tile.columns)
    most = int(DISPATCH_FLOPS / (2.0 * tile.rows * tile.columns * sums.steps))
    each = tiles if call.limits.software else max(1, most)
    _, _, *others = conv_operands(call)
    push = (*push_of(call, window), ("start", 0), ("end", sums.channels))
    kernel = zip(("KERNEL_Z", "KERNEL_Y", "KERNEL_X"), three(window.kernel), strict=True)
    guarded = ("GUARDED", checked_axes(window, sums.steps))
    constants = (*conv_constants(call), guarded, *kernel, *tile.constants)
    return (
        *before,
        *(
            Dispatch(
                CONV_COOPMAT,
                (0, SCRATCH if packed else 1, *others),
                (min(each, tiles - first, call.limits.max_groups[0]), 1, 1),
                (*push, ("first_item", first), ("last_item", min(first + each, tiles))),
                constants,
                barrier=packed or first > 0,
                subgroup=tile.subgroup,
            )
            for first in range(0, tiles, each)
        ),
    )
