"""Kernel selection and dispatches of matrix products.

CPU drivers load each value once per lane, at the cost of about fifty multiplications. There, a
value is loaded by one lane as part of a vec4 and broadcast to the others (`subgroup`, `gemv_cpu`).
Matrices whose sizes are not multiples of four are first packed into scratch memory, if this costs
little compared to the product. GPUs stage tiles in shared memory, in vec4s (`vec4`) or one by one
(`unaligned`, `tiled`), and read b only once if there are few rows (`gemv`). Cooperative matrices
(`coopmat`) also read vec4s.

    a, b --matmul_pack--> scratch, rows of a multiple of four --> product --> result + bias
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...common.dtypes import FLOAT16, FLOAT32, INT32, contiguous_strides
from ...common.errors import UnsupportedOp
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, fp16_operands
from ...topology.limits import Limits
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS, MAX_DISPATCHES, collapse, pad, peel
from ..lowering.variants import chosen
from .coopmat import CoopmatTile, coopmat_tile, with_coopmats
from .matmul_subgroup import SubgroupTile, subgroup_tiles
from .matmul_vec4 import FP16_ACC, UNALIGNED, Vec4Tile, tiles_of, vec4_tile, vec4_variants
from .operands import (
    batch_strides,
    fp16_weights,
    matrices,
    operands_of,
    pack_operand,
    round_up_to_vec4,
)
from .split_k import split_of, split_product, without_split
from .split_variants import with_splits

_BATCH_AXES = 4
"""Batch axes that fit into the push constants; a batch with more axes takes several dispatches."""
BIAS_PER_COLUMN, BIAS_PER_ROW, NUMBERS = 1, 2, 3
"""The values of has_bias in shaders/include/matmul.glsl."""
MAX_CUTS = 256
TALLEST_TILE = 128
"""Rows of the largest workgroup tile."""
SEVERAL = 128
"""Minimum rows and columns of a result for which a CPU driver computes several tiles."""
GUESSED_COLUMNS = 32
"""Assumed divisor of a GPU product's number of columns in `step_cost`; not measured."""
PART_K = LOOP_STEPS
"""Steps along k of one dispatch; a longer k takes several dispatches."""
CACHED_K = 512
"""Steps along k on a CPU driver if k is long: the operands stay in a cache for other tiles."""
MIN_REUSE = 16
"""Minimum rows and columns of a result for which packing the operands pays."""


# -- variant selection -------------------------------------------------------------------------


REGISTER = "register"
TILED = "tiled 32x64"
_TILED_TILE, _REGISTER_TILE = (32, 64), (32, 64)
"""Rows and columns of a tile of `matmul_tiled` and `matmul_register`."""
PACKED_K = 512
"""Steps along k of one dispatch with float16 sums, whose relative error is about 1 / 500."""
GEMV = {"gemv 1": 1, "gemv 4": 4}
"""Variants of `matmul_gemv`: rows of a workgroup."""
READ = 10.0
READ_ROWS = 25
"""Estimates for a GPU: the cost of a column of a step along k when reading b is the bottleneck, and
the rows of the largest tile of `matmul_vec4` whose products take as long.
"""
TILED_COST = 2.0
"""Approximate cost of a product in `matmul_tiled`, relative to the largest `matmul_vec4` tile."""
GEMV_LOCAL = {True: (8, 16), False: (32, 4)}
"""Workgroup sizes: (along n, along k) if b is contiguous along n, else (along k, along n). Adjacent
lanes read the same cache line.
"""
MAX_GEMV_ROWS = 8
"""Maximum rows for which reading b takes longer than the products."""


def variants(call: Call) -> tuple[str, ...]:
    """Return the variants: subgroup or shared-memory tiles, then cooperative matrices."""
    return with_splits(call, _packing_variants(call))


def _packing_variants(call: Call) -> tuple[str, ...]:
    return _variants(call, True)


def in_place_variants(call: Call) -> tuple[str, ...]:
    """Return the variants without scratch memory, which `product` can use."""
    return _variants(call, False)


def fp16_weight_variants(call: Call) -> tuple[str, ...]:
    """Return the variants that multiply float32 a (m, k) by 16-bit b (n, k) without unpacking b.

    The attribute `format` distinguishes float16 and bfloat16.
    """
    _, k, _, n = matrices(call.inputs, call.attrs)
    m = call.output.shape[-2]
    if k % 4 or m <= MAX_GEMV_ROWS or call.limits.software:
        return ()
    return vec4_variants(call, m, n, 1)


def step_cost(m: int, n: int, batches: int, limits: Limits) -> float:
    """Return the approximate cost of a step along k, in a unit specific to the device.

    It compares products whose rows are padded to tiles, before a call exists.
    """
    tiles = [tile for tile in subgroup_tiles(limits).values() if not tile.gemv]
    if not tiles:
        return float(m * -(-n // GUESSED_COLUMNS) * GUESSED_COLUMNS * batches)
    return min(tile.cost(m, n, batches) for tile in tiles)


@dataclass(frozen=True, slots=True)
class Tiling:
    """A variant without scratch memory.

    `rows` is the height of a tile. `step` is the approximate cost of a step along k for some
    columns of a tile, in a unit specific to the device.
    """

    rows: int
    columns: int
    step: float

    def cost(self, n: int, tiles: int) -> float:
        """Return the approximate cost of a step along k for this many tiles of n columns."""
        return -(-n // self.columns) * tiles * self.step


def tilings(n: int, k: int, limits: Limits) -> dict[str, Tiling]:
    """Return the variants that multiply by (n, k) matrices, for calls that choose a tile height."""
    if not limits.software:
        return _gpu_tilings(n, k, limits)
    lanes = subgroup_tiles(limits) if k and k % 4 == 0 else {}
    fitting = {
        name: Tiling(tile.rows, tile.columns, tile.step)
        for name, tile in lanes.items()
        if (not tile.gemv or tile.suits(True)) and -(-n // tile.columns) <= limits.max_groups[1]
    }
    rows, columns = _REGISTER_TILE
    return fitting or {REGISTER: Tiling(rows, columns, rows * columns)}


def _variants(call: Call, packs: bool) -> tuple[str, ...]:
    if call.output.size == 0:
        return ()
    a, b, batch, m = operands_of(call)
    vec4 = a.is_vec4_aligned and b.is_vec4_aligned
    along_k, fp16 = a.along_k and b.along_k, _is_fp16_readable(call)
    plain = _plain_variants(call, packs)
    if not (a.along * a.lines and (packs or vec4)):
        return plain
    sizes = m, call.output.shape[-1], matrices(call.inputs, call.attrs)[1]
    return with_coopmats(call, plain, sizes, math.prod(batch), along_k=along_k, fp16=fp16)


def _plain_variants(call: Call, packs: bool) -> tuple[str, ...]:
    _, _, batch, m = operands_of(call)
    n, k = call.output.shape[-1], matrices(call.inputs, call.attrs)[1]
    batches = math.prod(batch)
    if call.limits.software:
        fitting = _fitting(call, packs)
        best = sorted(fitting, key=lambda name: fitting[name].cost(m, n, batches))
        return tuple(best) or (REGISTER,)
    vec4 = vec4_variants(call, m, n, batches) if _supports_vec4(call, packs) else ()
    if m <= MAX_GEMV_ROWS:
        return "gemv 1" if m == 1 else "gemv 4", *vec4, TILED
    if _is_vec4_aligned(call):
        return (*vec4, TILED)
    reads = call.output.dtype == FLOAT32 and min(m, n) >= MIN_REUSE and k > 0
    unaligned = vec4_variants(call, m, n, batches, (UNALIGNED,)) if reads else ()
    return (*unaligned, TILED, *vec4)


def _supports_vec4(call: Call, packs: bool) -> bool:
    """Return True if vec4 kernels can compute a call, directly or after packing that pays."""
    a, _, _, m = operands_of(call)
    if call.output.dtype not in (FLOAT32, FLOAT16) or not a.along * a.lines:
        return False
    return _is_vec4_aligned(call) or (packs and min(m, call.output.shape[-1]) >= MIN_REUSE)


def _fitting(call: Call, packs: bool) -> dict[str, SubgroupTile]:
    """Return the vec4 variants of a CPU driver that can compute a call."""
    a, b, batch, m = operands_of(call)
    n, batches = call.output.shape[-1], math.prod(batch)
    if not _supports_vec4(call, packs):
        return {}
    most = call.limits.max_groups
    tiles = subgroup_tiles(call.limits)
    gemv = (
        sorted({t.rows for t in tiles.values() if t.gemv and t.rows >= m})[:1] if a.along_k else []
    )
    return {
        name: variant
        for name, variant in tiles.items()
        if (not variant.gemv or variant.rows in gemv and variant.suits(b.along_k))
        and all(
            count <= limit for count, limit in zip(variant.tiles(m, n, batches), most, strict=True)
        )
    }


def takes_fp16(call: Call) -> tuple[int, ...]:
    """Return the operands that the variant accesses as packed float16.

    Variants that accumulate in the result are excluded: partial sums would be rounded or overflow.
    """
    known = call.variant in (TILED, *GEMV) or vec4_tile(call) or coopmat_tile(call)
    taken = _is_fp16_readable(call) and (known or call.variant in _fitting(call, packs=False))
    return fp16_operands(call) if taken else ()


def _is_fp16_readable(call: Call) -> bool:
    """Return True if kernels can access the float16 operands directly, in one pass along k."""
    whole = matrices(call.inputs, call.attrs)[1] <= PART_K
    return call.output.dtype == FLOAT16 and whole and _is_vec4_aligned(call)


def _is_vec4_aligned(call: Call) -> bool:
    """Return True if the operands, and a float16 result, can be accessed as vec4."""
    a, b, _, _ = operands_of(call)
    whole = call.output.dtype != FLOAT16 or call.output.shape[-1] % 4 == 0
    return a.along * a.lines > 0 and a.is_vec4_aligned and b.is_vec4_aligned and whole


def _is_vec8_aligned(call: Call, coopmats: CoopmatTile) -> bool:
    """Return True if both operands are float16, aligned to 8 elements, and not transposed, and if
    registers for longer reads are there.
    """
    if call.limits.few_registers:
        return False
    factors = operands_of(call)[:2]
    oriented = all(each.along_k or coopmats.untransposed for each in factors)
    whole = all(each.along % 8 == 0 for each in factors)
    return call.output.dtype == FLOAT16 and oriented and whole


def _packs(call: Call) -> tuple[bool, bool]:
    """Return the flags of a and b that are True if the operand is packed first."""
    a, b, _, _ = operands_of(call)
    tile = vec4_tile(call) or coopmat_tile(call)
    if isinstance(tile, Vec4Tile) and tile.kind == UNALIGNED:
        return False, False
    if call.output.size == 0 or not (tile or call.variant in subgroup_tiles(call.limits)):
        return False, False
    _, k, _, _ = matrices(call.inputs, call.attrs)
    return not a.is_vec4_aligned or k % 4 != 0, not b.is_vec4_aligned or k % 4 != 0


def product_scratch(call: Call) -> tuple[int, ...]:
    """Return the number of words of each packed operand, and of partial sums."""
    packs = _packs(call)
    pairs = zip(operands_of(call)[:2], packs, strict=True)
    packed = (math.prod((*o.batch, *o.padded)) for o, packed in pairs if packed)
    split = split_of(call.variant, _steps(call, packs))
    return (*packed, *((split.parts * call.output.size,) if split else ()))


def _steps(call: Call, packed: tuple[bool, bool]) -> int:
    """Return the steps along k of a product with packed operands."""
    k = matrices(call.inputs, call.attrs)[1]
    return round_up_to_vec4(k) if any(packed) else k


def _gpu_tilings(n: int, k: int, limits: Limits) -> dict[str, Tiling]:
    step = READ / READ_ROWS
    rows, _ = _TILED_TILE
    tiles = tiles_of(limits) if k and k % 4 == 0 else {}
    vec4 = {name: tile for name, tile in tiles.items() if tile.fills(tile.rows, n)}
    return {
        **{name: Tiling(height, 1, READ) for name, height in GEMV.items()},
        **{name: Tiling(t.rows, 1, step * t.rows * t.cost) for name, t in vec4.items()},
        TILED: Tiling(rows, 1, step * rows * TILED_COST),
    }


# -- dispatches --------------------------------------------------------------------------------


def lower_product(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a matmul, with packed operands if this pays."""
    operands, first, pack = [0, 1], SCRATCH, []
    for operand, packed in zip(operands_of(call)[:2], _packs(call), strict=True):
        if packed:
            pack.append(pack_operand(operand, first, call.limits))
            operands[operand.number] = first
            first -= 1
    dispatches = _product(call, 0, 0, _packs(call), sums=first)
    return (
        *pack,
        *(
            replace(
                step,
                operands=tuple(operands[o] if o in (0, 1) else o for o in step.operands),
                barrier=step.barrier or (bool(pack) and i == 0),
            )
            for i, step in enumerate(dispatches)
        ),
    )


def pack(call: Call, number: int, target: int) -> Dispatch:
    """Return the dispatch that packs operand 0 or 1 of a product into `target`."""
    return pack_operand(operands_of(call)[:2][number], target, call.limits)


def product(
    call: Call,
    bias_rows: int = 0,
    result_row: int = 0,
    packed: tuple[bool, bool] = (False, False),
    adds: bool = False,
) -> tuple[Dispatch, ...]:
    """Return the dispatches of a product inside another op, with the fastest in-place kernel.

    On CPU drivers with subgroup shuffles this is the `matmul` kernel, if k and the contiguous axes
    are multiples of four. The caller replaces the operands 0 (a), 1 (b), 2 (bias) and OUTPUT, and
    may add offsets in multiples of four words. The first dispatch has no barrier. A float32 by
    float16 product has a variant of `fp16_weight_variants`.

    bias_rows: number of values of operand 2, one per row of all matrices; 0 for one per column.
    result_row: row stride of the result in words, if this product computes only some columns.
    packed: whether a and b are packed by `pack`.
    adds: whether to add to the result instead of overwriting it.
    """
    if call.output.size == 0:
        return ()
    if fp16_weights(call):
        return _product(call, bias_rows, result_row, packed, adds)
    fitting = _packing_variants if any(packed) else in_place_variants
    return _product(chosen("matmul", fitting, call), bias_rows, result_row, packed, adds)


def _product(
    call: Call,
    bias_rows: int,
    result_row: int,
    packed: tuple[bool, bool],
    adds: bool = False,
    sums: int = OUTPUT,
) -> tuple[Dispatch, ...]:
    """Return the dispatches of a product. `sums` is the operand of the partial sums of split-k."""
    if call.output.size == 0:
        return ()
    bias = (BIAS_PER_ROW if bias_rows else BIAS_PER_COLUMN) if len(call.inputs) > 2 else 0
    split = split_of(call.variant, _steps(call, packed))
    if split is not None:
        plain = replace(call, inputs=call.inputs[:2], variant=without_split(call.variant))
        (unsplit,) = _product(plain, 0, 0, packed)
        return split_product(call, unsplit, split, sums, (bias, bias_rows))
    a, b, batch, m = operands_of(call)
    n, k = call.output.shape[-1], _steps(call, packed)
    a_row, a_column, a_step = a.strides(packed[0])
    b_column, b_row, b_step = b.strides(packed[1])
    all_strides = [
        *(batch_strides(o.batch, batch, step) for o, step in ((a, a_step), (b, b_step))),
        tuple(s * m * (result_row or n) for s in contiguous_strides(batch)),
    ]
    sizes, strides = collapse(batch, all_strides)
    part = _part_of_k(call, m, n, k)
    inner = _inner_axes(sizes, 2.0 * m * n * min(k, part), call.limits)
    shifts = [(at_a, at_b, out) for at_a, at_b, out in peel(sizes, strides, inner)]
    sizes, strides = sizes[:inner], tuple(s[:inner] for s in strides)
    parts = range(0, max(k, 1), part)
    if len(shifts) * len(parts) > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[matmul] broadcasting to {batch} needs {len(shifts) * len(parts)} dispatches, "
            f"over {MAX_DISPATCHES}; try expand"
        )
    batches = math.prod(sizes)
    rows = _rows_of_dispatch(m, 2.0 * n * min(k, part) * batches, batches, call.limits)
    layout = (
        *(("batches", batches), ("n", n)),
        *(("a_row", a_row), ("a_column", a_column), ("b_row", b_row), ("b_column", b_column)),
        ("batch_sizes", pad(sizes, 3, 1)),
        ("a_batch", pad(strides[0], 4)),
        ("b_batch", pad(strides[1], 4)),
        *(("result_row", result_row or n), ("bias_rows", bias_rows)),
    )
    whole = len(parts) == 1 and not (adds or bias_rows) and (result_row or n) % 4 == 0
    shader, tile, constants = _algorithm(call, a.along_k, not b.along_k, whole)
    most = call.limits.max_groups
    across, down = -(-n // tile[0]), -(-min(m, rows) // tile[1])
    # tiles of `Lanes` iterate over rows first, so that workgroups share the columns of b in a cache
    by_subgroups = call.variant in subgroup_tiles(call.limits)
    first, second = (down, across) if by_subgroups else (across, down)
    groups = (min(first, most[0]), min(second, most[1]), min(batches, most[2]))
    per_word = 2 if call.output.dtype == FLOAT16 else 1
    per_word_of_b = 2 if call.inputs[1].dtype == FLOAT16 else 1
    coopmats = coopmat_tile(call)
    return tuple(
        Dispatch(
            shader,
            (0, 1, 2 if bias else 0, OUTPUT),
            groups,
            (
                *layout,
                *(("m", min(rows, m - row)), ("k", min(part, k - start))),
                *(("has_bias", bias * (start == 0)), ("adds", int(adds or start > 0))),
            ),
            constants,
            shifts=(
                (at_a + start * a_column + row * a_row) // per_word,
                (at_b + start * b_row) // per_word_of_b,
                out // (result_row or n) % bias_rows + row if bias_rows else 0,
                (out + row * (result_row or n)) // per_word,
            ),
            barrier=start > 0,
            partial=start + part < k,
            subgroup=coopmats.subgroup if coopmats else 0,
        )
        for start in parts
        for at_a, at_b, out in shifts
        for row in range(0, m, rows)
    )


def _part_of_k(call: Call, m: int, n: int, k: int) -> int:
    """Return the steps along k of one dispatch.

    They are few if sums are float16, or if tiles on a CPU driver share operands that are larger
    than the result, which makes adding to it cheap.
    """
    tile = vec4_tile(call)
    if tile is not None and tile.kind == FP16_ACC:
        return PACKED_K
    long = call.limits.software and call.output.dtype != FLOAT16 and k >= 4 * CACHED_K
    shared = min(m, n) >= SEVERAL and m * n <= (m + n) * CACHED_K
    return CACHED_K if long and shared else PART_K


def _inner_axes(sizes: tuple[int, ...], flops: float, limits: Limits) -> int:
    """Return how many batch axes one dispatch covers: fewer on a GPU if they would take long."""
    inner = min(len(sizes), _BATCH_AXES)
    while (
        inner > 0
        and not limits.software
        and flops * math.prod(sizes[:inner]) > DISPATCH_FLOPS
        and math.prod(sizes[inner - 1 :]) <= MAX_CUTS
    ):
        inner -= 1
    return inner


def _rows_of_dispatch(m: int, flops_per_row: float, batches: int, limits: Limits) -> int:
    """Return how many rows one dispatch computes: all, unless they would take a GPU long."""
    if limits.software or batches > 1 or m * flops_per_row <= DISPATCH_FLOPS:
        return m
    tiles = max(1, int(DISPATCH_FLOPS / flops_per_row / TALLEST_TILE))
    return tiles * TALLEST_TILE


def _algorithm(
    call: Call, a_along_k: bool, b_along_n: bool, whole: bool
) -> tuple[str, tuple[int, int], tuple[tuple[str, int], ...]]:
    """Return the shader, the columns and rows of a workgroup, and the constants.

    `whole`: only missing columns prevent a tile from being stored without bounds checks.
    """
    # int32 products and sums are bitwise equal to those of uint32
    dtype = call.output.dtype if call.output.dtype in (FLOAT32, FLOAT16) else INT32
    dtype = f"{fp16_weights(call)}{dtype}"
    along = (("A_ALONG_K", int(a_along_k)), ("B_ALONG_N", int(b_along_n)))
    if call.variant == TILED:
        return f"matmul_tiled_{dtype}", _TILED_TILE[::-1], along
    vec4 = vec4_tile(call)
    if vec4 is not None:
        return vec4.shader(dtype), (vec4.columns, vec4.rows), (*vec4.constants, *along)
    if call.variant in GEMV:
        rows, (x, y) = GEMV[call.variant], GEMV_LOCAL[b_along_n]
        across = x if b_along_n else y
        local = (("LOCAL_X", x), ("LOCAL_Y", y))
        return f"matmul_gemv_{dtype}", (4 * across, rows), (*local, ("ROWS", rows), *along)
    coopmats = coopmat_tile(call)
    if coopmats is not None:
        aligned = "aligned_" if _is_vec8_aligned(call, coopmats) else ""
        shader = f"matmul_coopmat_{aligned}{dtype}"
        return shader, (coopmats.columns, coopmats.rows), (*along, *coopmats.constants)
    tile = subgroup_tiles(call.limits).get(call.variant)
    if tile is not None:
        constants = () if tile.fixed else along[1:] if tile.gemv else along
        whole = whole and call.output.shape[-1] % tile.columns == 0
        shader = tile.shader(dtype, _layout(a_along_k, b_along_n), whole)
        return shader, (tile.columns, tile.rows), (("LOCAL_X", tile.lanes), *constants)
    return f"matmul_register_{dtype}", _REGISTER_TILE[::-1], ()


def _layout(a_along_k: bool, b_along_n: bool) -> str:
    return ("n" if a_along_k else "t") + ("n" if b_along_n else "t")
