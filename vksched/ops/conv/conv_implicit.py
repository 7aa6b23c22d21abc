"""Convolutions of float32 as implicit matrix products: tiles of shared memory, no im2col buffer.

    w (rows, C * taps) x windows (C * taps, N * positions) --conv_vec4--> result (N, rows, places)
    few tiles: parts of the channels --conv_vec4--> scratch --splitk_reduce--> result

The kernel gathers windows on their way to shared memory. Against im2col this saves a dispatch, its
barrier, and writing and reading all windows; it costs some instructions per value of a window. With
fewer tiles than cores, the channels are split into parts (linalg/split_k.py). For GPUs.
"""

from __future__ import annotations

from ...common.dtypes import FLOAT32
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch
from ...topology.limits import Limits
from ..linalg.matmul_kernels import BIAS_PER_ROW
from ..linalg.matmul_vec4 import MAX_SPLITS, Vec4Tile, tiles_of, vec4_time
from ..linalg.operands import round_up_to_vec4
from ..linalg.split_k import (
    BYTE_COST,
    LEVEL_COST,
    MIN_GAIN,
    add_parts,
    occupying_invocations,
    parts_of,
    reduce_cost,
    split_name,
    useful_parts,
    without_split,
)
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS
from .conv_direct import conv_operands, sum_of
from .conv_windows import columns_of, is_packed, packed_words, window_products
from .window import Window

CONV_VEC4 = "conv_vec4"
_PREFIX = "implicit "
_TAPS_BYTES = 1024
"""Bytes of shared memory for the taps of a window."""
_GATHER_REGISTERS = 16
"""Registers that an invocation needs besides those of a matrix product, by Intel's compiler."""
_GATHER = 40.0
"""Instructions of an invocation that gather its windows of a tile, for 128 multiply-adds and more.
"""
_UNALIGNED_COST = 1.1
"""Cost of a product whose rows are no multiple of a vec4, relative to other products."""
_MIN_ROWS = 8


def _tiles(limits: Limits) -> dict[str, Vec4Tile]:
    """Return the tiles by name of the variant."""
    return {
        f"{_PREFIX}{tile.rows}x{tile.columns}": tile
        for tile in tiles_of(limits).values()
        if tile.shared_bytes + _TAPS_BYTES <= limits.shared_bytes
        and tile.registers + _GATHER_REGISTERS <= limits.registers
    }


def implicit_tile(call: Call) -> Vec4Tile | None:
    """Return the tile of a call's variant, or None if the variant is another kernel."""
    if not call.variant.startswith(_PREFIX):
        return None
    return _tiles(call.limits).get(without_split(call.variant))


def _gather(tile: Vec4Tile) -> float:
    """Return the cost of a step along k relative to that of a matrix product."""
    return 1.0 + _GATHER / (128 * tile.down * tile.across)


def implicit_variants(call: Call) -> dict[str, float]:
    """Return the approximate times of the variants, the best guess first, in multiply-adds."""
    sums, limits = sum_of(call), call.limits
    takes = call.output.dtype == FLOAT32 and not limits.software and sums.rows >= _MIN_ROWS
    if not takes or not 0 < sums.steps <= LOOP_STEPS or call.inputs[0].size == 0:
        return {}
    columns, times, splits = columns_of(call), dict[str, float](), dict[str, float]()
    packing = _pack_time(call)
    for name, tile in _tiles(limits).items():
        if not tile.fills(sums.rows, columns):
            continue
        groups = tile.groups(sums.rows, columns, sums.groups)
        times[name] = packing + tile.time(groups, limits) * sums.steps * _gather(tile)
        if 2.0 * call.output.size * sums.steps > DISPATCH_FLOPS:
            continue
        options = {}
        for count in useful_parts(groups, limits):
            channels = _channels(call, count)
            parts = -(-sums.channels // channels)
            product = tile.time(groups * parts, limits) * channels * sums.taps * _gather(tile)
            added = reduce_cost(call.output.size, parts, limits)
            options[split_name(name, count)] = packing + MIN_GAIN * (product + added)
        splits.update(sorted(options.items(), key=lambda option: option[1])[:1])
    best = min(times.values(), default=0.0)
    gains = sorted((time, name) for name, time in splits.items() if time < best)
    if limits.cores == 0:  # only the tuner selects them
        gains = [(best + time, name) for time, name in gains]
    times.update((name, time) for time, name in gains[:MAX_SPLITS])
    return dict(sorted(times.items(), key=lambda item: item[1]))


def product_time(call: Call, unfolds: bool) -> float:
    """Return the approximate time of a matrix product with unfolded windows, in multiply-adds.

    Parameters
    ----------
    unfolds
        Windows are written to memory first.
    """
    sums, limits = sum_of(call), call.limits
    batches = call.output.shape[0] * sums.groups
    aligned = sums.places % 4 == sums.steps % 4 == 0
    product = vec4_time(sums.rows, sums.places, sums.steps, batches, limits)
    product *= 1.0 if aligned else _UNALIGNED_COST
    if not unfolds:
        return product
    moved = 8.0 * sums.steps * sums.places * batches
    return product + LEVEL_COST * occupying_invocations(limits) + BYTE_COST * moved


def _channels(call: Call, parts: int) -> int:
    """Return the channels of a part, whose steps are whole vec4s."""
    return round_up_to_vec4(-(-sum_of(call).channels // parts))


def _pack_time(call: Call) -> float:
    """Return the approximate time of the dispatch that packs the weights, in multiply-adds."""
    if not is_packed(call):
        return 0.0
    sums = sum_of(call)
    moved = 4.0 * sums.groups * sums.rows * (sums.steps + round_up_to_vec4(sums.steps))
    return LEVEL_COST * occupying_invocations(call.limits) + BYTE_COST * moved


def _parts(call: Call) -> int:
    channels = sum_of(call).channels
    return -(-channels // _channels(call, parts_of(call.variant)))


def implicit_scratch(call: Call) -> tuple[int, ...]:
    """Return the words of the packed weights and of the partial sums."""
    parts = _parts(call)
    return (*packed_words(call), *((parts * call.output.size,) if parts > 1 else ()))


def conv_implicit(call: Call, window: Window, tile: Vec4Tile) -> tuple[Dispatch, ...]:
    """Return dispatches in which a workgroup computes a tile of rows and columns of all images."""
    sums, parts = sum_of(call), _parts(call)
    split = parts > 1
    target = SCRATCH - is_packed(call) if split else OUTPUT
    tiles = tile.groups(sums.rows, columns_of(call), sums.groups) * parts
    _, _, bias, _ = conv_operands(call)
    product = Dispatch(
        *(CONV_VEC4, (0, 1, 0 if split else bias, target), (1, 1, 1)),
        constants=(*tile.constants, ("PARTS", parts)),
        partial=split,
    )
    channels = _channels(call, parts_of(call.variant)) if split else sums.channels
    products = window_products(call, window, product, tiles, tile.rows * tile.columns, channels)
    if not split:
        return products
    has_bias = BIAS_PER_ROW if len(call.inputs) > 2 else 0
    added = add_parts(
        *("conv", target, parts, call.output.size, call.limits),
        line=sums.places,
        bias=(2, has_bias, call.output.shape[1]),
    )
    return (*products, *added)
