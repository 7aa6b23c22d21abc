"""Convolutions by cooperative matrices: weights of a group times the windows of all images.

    w (rows, C * taps) x windows (C * taps, N * positions) --> result (N, rows, positions) + bias

The kernel gathers windows directly into shared memory, so there is no im2col buffer (implicit
GEMM). Tiles and their selection: ops/linalg/coopmat.py.
"""

from __future__ import annotations

from ...ir.op import Call, Dispatch
from ..linalg.coopmat import CONV, CoopmatTile, with_coopmats
from ..lowering.strides import LOOP_STEPS
from .conv_direct import conv_operands, sum_of
from .conv_windows import columns_of, window_products
from .window import Window

CONV_COOPMAT = "conv_coopmat"


def with_conv_coopmats(call: Call, plain: tuple[str, ...]) -> tuple[str, ...]:
    """Return all variants of a convolution, the best guess first.

    Parameters
    ----------
    plain
        The variants without cooperative matrices.
    """
    sums = sum_of(call)
    sizes = sums.rows, columns_of(call), sums.steps
    if not 0 < sums.steps <= LOOP_STEPS or call.inputs[0].size == 0:
        return plain
    return with_coopmats(call, plain, sizes, sums.groups, CONV)


def conv_by_coopmat(call: Call, window: Window, tile: CoopmatTile) -> tuple[Dispatch, ...]:
    """Return dispatches in which a workgroup computes a tile of rows and columns of all images."""
    sums = sum_of(call)
    tiles = sums.groups * -(-sums.rows // tile.rows) * -(-columns_of(call) // tile.columns)
    product = Dispatch(
        *(CONV_COOPMAT, conv_operands(call), (1, 1, 1)),
        constants=tile.constants,
        subgroup=tile.subgroup,
    )
    return window_products(call, window, product, tiles, tile.rows * tile.columns, sums.channels)
