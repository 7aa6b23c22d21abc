"""Dispatches of products of many rows by quantized weights, in tiles of any kernel.

    quant_gemm.py         with cooperative matrices
    quant_gemm_tiled.py   without

One dispatch multiplies by up to three weights, or by two whose products are combined by a gated
activation. It can also rotate the first heads of its results, and store each head as a matrix.
"""

from __future__ import annotations

from itertools import accumulate

from ...common.dtypes import FLOAT16
from ...ir.op import COUNTERS, OUTPUT, SCRATCH, Call, Dispatch
from ..linalg.split_k import parts_of
from ..lowering.strides import DISPATCH_FLOPS
from .gemv_rows import rows_of
from .gguf_formats import format_of
from .quant_gemm import quant_gemm_tile
from .quant_gemm_tile import GemmTile, column_tiles
from .quant_gemm_tiled import tiled_quant_gemms
from .quant_layout import RUN
from .rotated_columns import Rope

MAX_WEIGHTS = 3
"""Maximum weights of one dispatch."""


def tile_of(call: Call) -> GemmTile | None:
    """Return the tile of a call's variant, or None if the variant is another kernel."""
    return quant_gemm_tile(call) or tiled_quant_gemms(call.limits).get(call.variant)


def quant_gemm(
    call: Call,
    weights: tuple[int, ...],
    bias: int | None = None,
    gate: int = 0,
    stacked: bool = False,
    rope: Rope | None = None,
) -> tuple[Dispatch, ...]:
    """Return the dispatches of a product of x, operand 0, by quantized weights, for a call with one
    of these variants.

    Parameters
    ----------
    weights
        Operands. Each row of the result has their results, one after another.
    bias
        Operand with a value for each column of the result.
    gate
        Number of the activation in the shader; 0: none. With a gate there are two weights.
    stacked
        If true, the results of the weights are matrices of their own, one after another.
    rope
        Rotary embedding of stacked results, each head of which is a matrix of its own.
    """
    limits, m, k = call.limits, rows_of(call), call.inputs[0].shape[-1]
    tile = tile_of(call)
    assert tile is not None
    by_coopmats = tile.subgroup > 0  # these kernels also read and write float16, and split k
    kind = format_of(call.attrs["format"])
    sizes = tuple(call.inputs[i].shape[0] for i in weights)
    missing = MAX_WEIGHTS - len(weights)
    operands = (0, *weights, *weights[-1:] * missing, 0 if bias is None else bias, OUTPUT)
    parts, runs = parts_of(call.variant), k // RUN
    split_runs = -(-runs // parts)
    parts = -(-runs // split_runs)
    assert parts == 1 or rope is None
    if parts > 1:
        operands = (*operands[:-1], SCRATCH, COUNTERS, OUTPUT)
    elif rope:
        cos, sin = rope.tables
        operands = (*operands[:4], cos, OUTPUT, sin)
    else:  # the shader reads the sines by the binding of the residual
        operands = (*operands, 0)
    is_fp16 = call.inputs[0].dtype == FLOAT16, call.output.dtype == FLOAT16
    constants = (
        *(*tile.constants, ("WEIGHTS", len(weights)), ("GATE", gate)),
        *((("FP16_X", int(is_fp16[0])), ("FP16_RESULT", int(is_fp16[1]))) if by_coopmats else ()),
        *((("ROTARY", 1 + rope.interleaved),) if rope else ()),
    )
    x_per_word, results_per_word = (1 + each for each in is_fp16)
    columns = sizes[0] if gate else sum(sizes)
    rows = m  # splits are for few tiles
    if parts == 1:
        rows = max(1, int(DISPATCH_FLOPS / (2.0 * sum(sizes) * k) / tile.rows)) * tile.rows
    across = column_tiles(tile, sizes, gate > 0)

    def tiles_of(row: int, count: int) -> Dispatch:
        before = [sum(sizes[:i]) for i in range(len(sizes))]
        widths = [rope.head_size] * len(sizes) if rope else sizes
        begins = [m * b + row * n for b, n in zip(before, widths, strict=True)]
        push: tuple[tuple[str, int | float | tuple[int, ...]], ...] = (
            *(("m", count), ("k", k), ("sizes", (*sizes, *(0,) * missing))),
            ("begins", (*(begins if stacked else before), *(0,) * missing)),
            ("strides", (*(sizes if stacked else [columns] * len(sizes)), *(0,) * missing)),
            *(("b_column", kind.row_words(k)), ("has_bias", int(bias is not None))),
            *((("split_runs", split_runs),) if by_coopmats else ()),
            *(() if parts > 1 else _rope_push(rope, m, (*sizes, *(0,) * missing))),
        )
        tables = row * rope.pairs if rope else 0
        return Dispatch(
            tile.shader(kind.name, parts > 1),
            operands,
            (min(-(-count // tile.rows), limits.max_groups[0]), across, parts),
            push,
            constants,
            shifts=(
                *(row * k // x_per_word, 0, 0, 0, tables),
                *((0, 0) if parts > 1 else ()),
                0 if stacked else row * columns // results_per_word,
                *(() if parts > 1 else (tables,)),
            ),
            subgroup=tile.subgroup,
        )

    return tuple(tiles_of(row, min(rows, m - row)) for row in range(0, m, rows))


def _rope_push(
    rope: Rope | None, rows: int, sizes: tuple[int, ...]
) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """Return the push constants of a rotary embedding. sizes: rows of each weight."""
    if rope is None:
        none = (0,) * len(sizes)
        return ("rotations", none), ("head_size", 0), ("head_step", 0), ("rotary_pairs", 0)
    ends = accumulate(sizes)
    rotations = tuple(
        min(max(0, rope.columns - end + size), size) for size, end in zip(sizes, ends, strict=True)
    )
    return (
        *(("rotations", rotations), ("head_size", rope.head_size)),
        *(("head_step", rows * rope.head_size), ("rotary_pairs", rope.pairs)),
    )
