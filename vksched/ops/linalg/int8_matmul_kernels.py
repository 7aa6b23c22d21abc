"""How devices multiply integers of 8 bits: rows of a become words of four quantized values, which
meet the words of the weights.

    x --int8_pack_activations--> scratch: zero point | words of each window, tap by tap
    scratch --int8_gemm_*--> result

CPU drivers multiply float32 fastest, by the kernels of matmul: sums of 256 products of quantized
values are exact there.

    x, words --int8_unpack_activations, int8_unpack_weights--> scratch
    scratch --matmul--> sums --int8_row_sums--> result

A matrix is an image whose places are its rows and whose channels are what is summed up. Devices
with integer dot products take a word of each side at once, others its four quantized values, and
those with cooperative matrices of int8 tiles of words, once the tuner has measured that
(coopmat.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...common.dtypes import TensorType
from ...common.errors import UnsupportedOp
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel
from ...topology.limits import Limits
from ..lowering.strides import LOOP_STEPS, MAX_DISPATCHES
from .coopmat import INT8_MATMUL, coopmat_tile, coopmat_variants
from .int8_weights import PER_WORD, SHIFT, TILE, depth_of
from .matmul_kernels import DISPATCH_FLOPS, product
from .matmul_kernels import SHADERS as MATMUL_SHADERS

HEADER_WORDS = 4
"""Of the scratch memory: the zero point of its quantized values comes first."""
SCRATCH_WORDS, SOFTWARE_SCRATCH_WORDS = 1 << 22, 1 << 18
"""Of the words at a time: on a CPU driver what a cache may hold."""
DOT = " dot"
"""The end of the names of variants for devices with integer dot products."""
ROWS = {"rows 1": 1, "rows 8": 8}
"""Variants of `int8_gemm_cpu_*`: rows of an invocation, which has one column."""
TILED = "tiled"
COOPMAT = "int8_gemm_coopmat"
"""The shader for cooperative matrices."""
FLOATS = "float32"
"""The variant that multiplies quantized values less their zero points in float32."""
PART = 256
"""Products of two such values that float32 sums exactly: each is at most 255 * 255."""
FLOAT_WORDS = 1 << 20, 1 << 24
"""Of values of x at a time, and of all weights, in scratch memory."""
MIN_FLOAT_ROWS = 16
"""Rows from which weights are worth unpacking in each run."""
_TILE = 64, 64
_TILED_LOCAL = 16, 8
"""Rows and columns of a group of `int8_gemm_tiled`, and its invocations."""
_PACKED_EACH = 64
"""Words that an invocation packs on a CPU driver."""
PRODUCT_SHADERS = (
    *("int8_pack_activations", "int8_unpack_activations", "int8_unpack_weights", "int8_row_sums"),
    *(f"int8_gemm_{kind}{dot}" for kind in ("tiled", "cpu_1", "cpu_8") for dot in ("", "_dot")),
    COOPMAT,
    *MATMUL_SHADERS,
)

Three = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unfolded:
    """Windows as rows of a product; three axes.

    sizes, counts: places of an image, and of its windows. Windows of images that have the same
        weights are rows of one product. steps: elements from place to place, from
        channel to channel, and from image to image. result_steps: those from window to window, from
        column to column, and from image to image. words_step: words from one image's weights to the
        next one's; 0: all have the same.
    """

    images: int
    sizes: Three
    counts: Three
    steps: Three
    channels: int
    columns: int
    result_steps: Three
    words_step: int = 0
    kernel: Three = (1, 1, 1)
    stride: Three = (1, 1, 1)
    dilation: Three = (1, 1, 1)
    begin: Three = (0, 0, 0)

    @property
    def places(self) -> int:
        """Windows of an image."""
        return math.prod(self.counts)

    @property
    def products(self) -> int:
        """With weights of their own."""
        return self.images if self.words_step else 1

    @property
    def rows(self) -> int:
        """Windows of a product."""
        return self.images // self.products * self.places

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def depth(self) -> int:
        """Words of a row."""
        return self.taps * depth_of(self.channels)


def integer_kernel(unfolded: Callable[[Call], Unfolded]) -> Kernel:
    """Return the kernel of an op that is a product of quantized values. unfolded: a call as such a
    product; calls without results are not asked.
    """

    def lower(call: Call) -> tuple[Dispatch, ...]:
        return _lower(call, unfolded(call)) if call.output.size else ()

    def scratch(call: Call) -> tuple[int, ...]:
        return _scratch(call, unfolded(call)) if call.output.size else ()

    def variants(call: Call) -> tuple[str, ...]:
        return _variants(call, unfolded(call)) if call.output.size else ()

    return Kernel(PRODUCT_SHADERS, lower, scratch, variants=variants)


def _variants(call: Call, own: Unfolded) -> tuple[str, ...]:
    """Return the variants, the best guess first: dot products where they are one instruction,
    cooperative matrices last.
    """
    coopmats = coopmat_variants(call, own.rows, own.columns, INT8_MATMUL) if own.depth else ()
    few = "rows 1" if own.rows == 1 else "rows 8"
    kinds: tuple[str, ...] = (few,)
    if not call.limits.software:
        kinds = (few, TILED) if own.rows <= 8 else (TILED, few)
    if call.limits.software and _has_floats(call, own):
        kinds = (FLOATS, *kinds) if own.rows >= MIN_FLOAT_ROWS else (*kinds, FLOATS)
    if not call.limits.integer_dot:
        return (*kinds, *coopmats)
    dots = tuple(kind + DOT for kind in kinds if kind != FLOATS)
    return (
        (*dots, *kinds, *coopmats) if call.limits.integer_dot_fast else (*kinds, *dots, *coopmats)
    )


def _rows_at_once(call: Call, own: Unfolded) -> int:
    """Return the rows of a pass: as many as the scratch memory and one dispatch may have."""
    limits = call.limits
    if call.variant == FLOATS:
        return max(1, min(own.rows, FLOAT_WORDS[0] // max(PER_WORD * own.depth, own.columns)))
    words = SOFTWARE_SCRATCH_WORDS if limits.software else SCRATCH_WORDS
    words = min(words, limits.max_buffer_bytes // 4) - HEADER_WORDS
    most = max(1, words // max(1, own.depth))
    if not limits.software:
        products = 2.0 * max(1, own.columns * own.depth * PER_WORD)
        most = min(most, max(_TILE[0], int(DISPATCH_FLOPS / products)))
    return min(own.rows, most, limits.max_groups[1] * _tile_of(call)[0])


def _tile_of(call: Call) -> tuple[int, int]:
    """Return the rows and columns of the tile of a group."""
    name, limits, coopmat = (
        call.variant.removesuffix(DOT),
        call.limits,
        coopmat_tile(call, INT8_MATMUL),
    )
    if coopmat is not None:
        return coopmat.rows, coopmat.columns
    if name == TILED:
        return _TILE
    return ROWS[name], min(TILE, max(4, limits.subgroup_size)) if limits.software else TILE


def _scratch(call: Call, own: Unfolded) -> tuple[int, ...]:
    """Return the words of the rows of a pass."""
    rows = _rows_at_once(call, own)
    if call.variant == FLOATS:
        steps = PER_WORD * own.depth
        return rows * steps, own.columns * steps, _parts(own) * rows * own.columns
    return (HEADER_WORDS + rows * own.depth,)


def _parts(own: Unfolded) -> int:
    return -(-own.depth * PER_WORD // PART)


def _has_floats(call: Call, own: Unfolded) -> bool:
    """Whether the values of the weights, and sums of a pass, fit the scratch memory."""
    most = min(FLOAT_WORDS[1], call.limits.max_buffer_bytes // 4)
    sums = _parts(own) * max(own.columns, FLOAT_WORDS[0])
    return 0 < own.columns * own.depth * PER_WORD <= most and sums <= most


def _lower(call: Call, own: Unfolded) -> tuple[Dispatch, ...]:
    """Return the dispatches of a product, or of a convolution, whose operands are quantized
    values, words, and both zero points.
    """
    each = _rows_at_once(call, own)
    passes = [(i, row) for i in range(own.products) for row in range(0, own.rows, each)]
    if 2 * len(passes) > MAX_DISPATCHES:
        raise UnsupportedOp(f"{own.products} products take more than {MAX_DISPATCHES} dispatches")
    if own.depth >= LOOP_STEPS:
        raise UnsupportedOp(f"sums of {own.depth * PER_WORD} products are too long for a kernel")
    make = _float_pass if call.variant == FLOATS else _pass
    return tuple(step for at in passes for step in make(call, own, *at, each))


def _pass(call: Call, own: Unfolded, image: int, row: int, each: int) -> Iterator[Dispatch]:
    rows = min(each, own.rows - row)
    yield _words(call, own, image, row, rows, "int8_pack_activations", bool(image or row))
    yield _product(call, own, image, row, rows)


def _float_pass(call: Call, own: Unfolded, image: int, row: int, each: int) -> Iterator[Dispatch]:
    rows, steps, n = min(each, own.rows - row), PER_WORD * own.depth, own.columns
    values, weights, sums = SCRATCH, SCRATCH - 1, SCRATCH - 2
    yield _words(call, own, image, row, rows, "int8_unpack_activations", bool(image or row))
    if not row and (not image or own.words_step):
        yield _weights(call, own, image, weights)
    for part in range(_parts(own)):
        k = min(PART, steps - part * PART)
        types = TensorType((rows, k)), TensorType((n, k))
        attrs = Attrs({"transpose_a": False, "transpose_b": True})
        dispatches = product(Call(types, TensorType((rows, n)), attrs, call.limits))
        first = part * PART * rows, part * PART * n, 0, part * rows * n
        for at, one in enumerate(dispatches):
            shifts = tuple(a + b for a, b in zip(one.shifts, first, strict=True))
            barrier = one.barrier or not at
            yield replace(
                one, operands=(values, weights, values, sums), shifts=shifts, barrier=barrier
            )
    groups, constants = _launch(rows * n, call.limits)
    push = (
        *(("rows", rows), ("columns", n), ("parts", _parts(own))),
        *_result_of(own, image, row),
    )
    yield Dispatch("int8_row_sums", (sums, OUTPUT), groups, push, constants, barrier=True)


def _weights(call: Call, own: Unfolded, image: int, target: int) -> Dispatch:
    groups, constants = _launch(own.columns * own.depth, call.limits)
    push = (
        *(("columns", own.columns), ("depth", own.depth)),
        *(("zero_step", int(call.inputs[3].size > 1)), ("words_first", image * own.words_step)),
    )
    later = image > 0
    return Dispatch("int8_unpack_weights", (1, 3, target), groups, push, constants, barrier=later)


def _launch(items: int, limits: Limits) -> tuple[tuple[int, int, int], tuple[tuple[str, int], ...]]:
    """Return groups and constants of a kernel whose invocations make an item at a time.

    Raises:
        UnsupportedOp: they would go round their loops too often.
    """
    local = 8 if limits.software else 64
    per_group = local * (_PACKED_EACH if limits.software else 1)
    groups = min(-(-max(1, items) // per_group), limits.max_groups[0])
    if -(-items // (groups * local)) * 5 > LOOP_STEPS:
        raise UnsupportedOp(f"{items} items are too many for {groups} groups")
    return (groups, 1, 1), (("LOCAL_X", local),)


def _words(
    call: Call, own: Unfolded, image: int, row: int, rows: int, shader: str, later: bool
) -> Dispatch:
    groups, constants = _launch(rows * own.depth, call.limits)
    push = (
        *(("x_sizes", own.sizes), ("result_sizes", own.counts), ("kernel", own.kernel)),
        *(("stride", own.stride), ("dilation", own.dilation), ("begin", own.begin)),
        *(("place_step", own.steps[0]), ("channel_step", own.steps[1])),
        *(("image_step", own.steps[2]), ("first", image * own.steps[2])),
        ("channels", own.channels),
        *(("flip", 0 if call.attrs.as_bool("signed") else SHIFT), ("first_row", row)),
        ("rows", rows),
    )
    operands = (0, 2, SCRATCH)
    return Dispatch(shader, operands, groups, push, constants, barrier=later)


def _product(call: Call, own: Unfolded, image: int, row: int, rows: int) -> Dispatch:
    limits, tile, coopmat = call.limits, _tile_of(call), coopmat_tile(call, INT8_MATMUL)
    tiles = -(-own.columns // tile[1])
    across, down = min(tiles, limits.max_groups[0]), -(-rows // tile[0])
    if limits.software and -(-tiles // across) * (own.depth + 1) > LOOP_STEPS:
        raise UnsupportedOp(f"{own.columns} columns are too many for {across} groups")
    push = (
        *(("rows", rows), ("columns", own.columns), ("depth", own.depth)),
        *(("count", own.taps * own.channels), ("zero_step", int(call.inputs[3].size > 1))),
        *(("words_first", image * own.words_step), *_result_of(own, image, row)),
    )
    shader, constants = _shader(call, tile) if coopmat is None else (COOPMAT, coopmat.constants)
    return Dispatch(
        shader,
        (SCRATCH, 1, 3, OUTPUT),
        (across, down, 1),
        push,
        constants,
        barrier=True,
        subgroup=0 if coopmat is None else coopmat.subgroup,
    )


def _result_of(own: Unfolded, image: int, row: int) -> tuple[tuple[str, int], ...]:
    """Return where the results of a pass lie, which begins at a row of a product."""
    each, across, step = own.result_steps
    return (
        *(("row_step", each), ("column_step", across), ("image_step", step)),
        *(("result_first", image * step), ("first_row", row), ("places", own.places)),
    )


def _shader(call: Call, tile: tuple[int, int]) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the shader without cooperative matrices, and its constants."""
    name, dot = call.variant.removesuffix(DOT), "_dot" if call.variant.endswith(DOT) else ""
    kind, local = (TILED, _TILED_LOCAL) if name == TILED else (f"cpu_{tile[0]}", (tile[1], 1))
    return f"int8_gemm_{kind}{dot}", (("LOCAL_X", local[0]), ("LOCAL_Y", local[1]))
