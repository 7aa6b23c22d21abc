"""Device kernels of int8 matrix products, with four activations packed into a 32-bit word.

    x --int8_pack_activations--> scratch: zero point | words of each window, tap by tap
    scratch --int8_gemm_*--> result

CPU drivers are fastest at float32 products, with the kernels of matmul. float32 sums of 256
products of int8 values are exact.

    x, words --int8_unpack_activations, int8_unpack_weights--> scratch
    scratch --matmul--> sums --int8_row_sums--> result

A matrix is treated as an image: its rows are the positions and its k axis the channels. Devices
with integer dot products multiply one word of each operand per instruction; other devices unpack
its four values. Devices with int8 cooperative matrices multiply tiles of words, once the tuner has
measured these variants (coopmat.py).
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
from ..lowering.strides import DISPATCH_FLOPS, LOOP_STEPS, MAX_DISPATCHES
from .coopmat import INT8_MATMUL, coopmat_tile, coopmat_variants
from .int8_weights import PER_WORD, SHIFT, TILE, depth_of
from .matmul_kernels import product
from .matmul_shaders import SHADERS as MATMUL_SHADERS

HEADER_WORDS = 4
"""Header of the scratch buffer, in words. The first word is the zero point of the packed values."""
SCRATCH_WORDS, SOFTWARE_SCRATCH_WORDS = 1 << 22, 1 << 18
"""Maximum words packed per pass, on a GPU and on a CPU driver, where they should fit a cache."""
DOT = " dot"
"""Suffix of the variants for devices with integer dot products."""
ROWS = {"rows 1": 1, "rows 8": 8}
"""Variants of `int8_gemm_cpu_*`: rows of one column that an invocation computes."""
TILED = "tiled"
COOPMAT = "int8_gemm_coopmat"
"""The cooperative-matrix shader."""
FLOATS = "float32"
"""The variant that subtracts zero points and multiplies in float32."""
PART = 256
"""Number of products that float32 sums exactly: each is at most 255 * 255."""
FLOAT_WORDS = 1 << 20, 1 << 24
"""Maximum float32 values in scratch memory: of x per pass, and of all weights."""
MIN_FLOAT_ROWS = 16
"""Minimum number of rows for which weights are unpacked in each run."""
_TILE = 64, 64
_TILED_LOCAL = 16, 8
"""Rows and columns of a workgroup of `int8_gemm_tiled`, and its invocations."""
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
class Im2Col:
    """Windows of an image as rows of a matrix product, over three axes.

    Attributes
    ----------
    sizes, counts : tuple of int
        Size of an image, and number of windows along each axis. Windows of images with the same
        weights are rows of one product.
    steps : tuple of int
        Strides of x between positions, channels and images.
    result_steps : tuple of int
        Strides of the result between windows, columns and images.
    words_step : int
        Words between the weights of two images; 0 if all images have the same weights.
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
        """Return the number of windows of an image."""
        return math.prod(self.counts)

    @property
    def products(self) -> int:
        """Return the number of products with different weights."""
        return self.images if self.words_step else 1

    @property
    def rows(self) -> int:
        """Return the number of windows of a product."""
        return self.images // self.products * self.places

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def depth(self) -> int:
        """Return the number of words of a row."""
        return self.taps * depth_of(self.channels)


def integer_kernel(unfolded: Callable[[Call], Im2Col]) -> Kernel:
    """Return the kernel of an op that multiplies int8 values.

    `unfolded` converts a call to a product; it is not called for empty results.
    """

    def lower(call: Call) -> tuple[Dispatch, ...]:
        return _lower(call, unfolded(call)) if call.output.size else ()

    def scratch(call: Call) -> tuple[int, ...]:
        return _scratch(call, unfolded(call)) if call.output.size else ()

    def variants(call: Call) -> tuple[str, ...]:
        return _variants(call, unfolded(call)) if call.output.size else ()

    return Kernel(PRODUCT_SHADERS, lower, scratch, variants=variants)


def _variants(call: Call, own: Im2Col) -> tuple[str, ...]:
    """Return the variants, the best guess first.

    Dot products come first if they are one instruction, cooperative matrices come last.
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


def _rows_at_once(call: Call, own: Im2Col) -> int:
    """Return the rows of a pass, limited by scratch memory and by the size of a dispatch."""
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
    """Return the rows and columns of a workgroup's tile."""
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


def _scratch(call: Call, own: Im2Col) -> tuple[int, ...]:
    """Return the sizes of the scratch buffers of a pass, in words."""
    rows = _rows_at_once(call, own)
    if call.variant == FLOATS:
        steps = PER_WORD * own.depth
        return rows * steps, own.columns * steps, _parts(own) * rows * own.columns
    return (HEADER_WORDS + rows * own.depth,)


def _parts(own: Im2Col) -> int:
    return -(-own.depth * PER_WORD // PART)


def _has_floats(call: Call, own: Im2Col) -> bool:
    """Return True if the float32 weights and the sums of a pass fit into scratch memory."""
    most = min(FLOAT_WORDS[1], call.limits.max_buffer_bytes // 4)
    sums = _parts(own) * max(own.columns, FLOAT_WORDS[0])
    return 0 < own.columns * own.depth * PER_WORD <= most and sums <= most


def _lower(call: Call, own: Im2Col) -> tuple[Dispatch, ...]:
    """Return the dispatches of a matrix product or convolution of int8 values.

    The operands are values, packed weights and both zero points.
    """
    each = _rows_at_once(call, own)
    passes = [(i, row) for i in range(own.products) for row in range(0, own.rows, each)]
    if 2 * len(passes) > MAX_DISPATCHES:
        raise UnsupportedOp(f"{own.products} products need more than {MAX_DISPATCHES} dispatches")
    if own.depth >= LOOP_STEPS:
        raise UnsupportedOp(f"sums of {own.depth * PER_WORD} products are too long for a kernel")
    make = _float_pass if call.variant == FLOATS else _pass
    return tuple(step for at in passes for step in make(call, own, *at, each))


def _pass(call: Call, own: Im2Col, image: int, row: int, each: int) -> Iterator[Dispatch]:
    rows = min(each, own.rows - row)
    yield _words(call, own, image, row, rows, "int8_pack_activations", bool(image or row))
    yield _product(call, own, image, row, rows)


def _float_pass(call: Call, own: Im2Col, image: int, row: int, each: int) -> Iterator[Dispatch]:
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


def _weights(call: Call, own: Im2Col, image: int, target: int) -> Dispatch:
    groups, constants = _launch(own.columns * own.depth, call.limits)
    push = (
        *(("columns", own.columns), ("depth", own.depth)),
        *(("zero_step", int(call.inputs[3].size > 1)), ("words_first", image * own.words_step)),
    )
    later = image > 0
    return Dispatch("int8_unpack_weights", (1, 3, target), groups, push, constants, barrier=later)


def _launch(items: int, limits: Limits) -> tuple[tuple[int, int, int], tuple[tuple[str, int], ...]]:
    """Return workgroups and constants of a kernel whose invocations compute one item at a time.

    Raises
    ------
    UnsupportedOp
        If an invocation needs more loop iterations than the device allows.
    """
    local = 8 if limits.software else 64
    per_group = local * (_PACKED_EACH if limits.software else 1)
    groups = min(-(-max(1, items) // per_group), limits.max_groups[0])
    if -(-items // (groups * local)) * 5 > LOOP_STEPS:
        raise UnsupportedOp(f"{items} items are too many for {groups} groups")
    return (groups, 1, 1), (("LOCAL_X", local),)


def _words(
    call: Call, own: Im2Col, image: int, row: int, rows: int, shader: str, later: bool
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


def _product(call: Call, own: Im2Col, image: int, row: int, rows: int) -> Dispatch:
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


def _result_of(own: Im2Col, image: int, row: int) -> tuple[tuple[str, int], ...]:
    """Return the offsets and strides of the result of a pass that starts at `row` of a product."""
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
