"""The variants of a product that split k, among its other variants."""

from __future__ import annotations

import math
from dataclasses import replace

from ...common.dtypes import FLOAT32
from ...ir.op import Call
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS
from ..lowering.variants import COOPMAT
from .coopmat import coopmat_split
from .matmul_vec4 import vec4_splits, vec4_tile
from .operands import matrices, operands_of, round_up_to_vec4

_MIN_ROWS = 9
"""Minimum rows for a static choice: fewer are products of gemv kernels, which split k themselves.
"""
_MAX_AXES = 3
"""Axes of a batch that leave one for the parts."""


def with_splits(call: Call, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the variants of a product with those that split k.

    They come before the tiles that they replace, the tile of the static choice included. If the
    device does not report its cores, they come after the tiles: only the tuner selects them.
    """
    _, _, batch, m = operands_of(call)
    n, k, batches = call.output.shape[-1], matrices(call.inputs, call.attrs)[1], math.prod(batch)
    packed_k = round_up_to_vec4(k)  # the product of a part is one dispatch
    fits = len(batch) <= _MAX_AXES and packed_k <= LOOP_STEPS
    fits = fits and 2.0 * m * n * packed_k * batches <= DISPATCH_FLOPS
    if call.limits.software or call.output.dtype != FLOAT32 or not fits:
        return names
    out = list(names)
    found = [(at, vec4_tile(replace(call, variant=name))) for at, name in enumerate(names)]
    tiles = [(at, tile) for at, tile in found if tile is not None]
    if tiles:
        static = call.limits.cores > 0 and m >= _MIN_ROWS and not names[0].startswith(COOPMAT)
        at = 0 if static else tiles[-1][0] + 1
        out[at:at] = vec4_splits(call, tiles[0][1].kind, (m, n, k), batches)
    for name in names:
        split = name.startswith(COOPMAT) and coopmat_split(name, (m, n, k), batches, call.limits)
        if split:
            out.insert(out.index(name), split)
    return tuple(out)
