"""Kernel selection of convolutions: direct, im2col with a matrix product, implicit, or coopmat.

    x (N, C, spatial) --im2col--> scratch (N, C * taps, positions) --matmul with w--> result + bias
    x (N, C * taps) --matmul with w--> result (N, rows) + bias      the window covers the image

im2col writes and reads each value as often as windows cover it, which pays if the product has
enough work. With few channels each result is summed directly. Products without an im2col buffer:
conv_implicit.py, and conv_coopmat.py with cooperative matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...common.dtypes import FLOAT32, TensorType
from ...common.errors import UnsupportedOp
from ...ir.op import SCRATCH, Call, Dispatch
from ..linalg import matmul
from ..linalg.coopmat import CONV, coopmat_tile
from ..linalg.operands import product_attrs
from ..lowering.strides import MAX_DISPATCHES
from .conv_coopmat import (
    CONV_COOPMAT,
    conv_by_coopmat,
    with_conv_coopmats,
)
from .conv_direct import (
    BLOCK,
    ConvSum,
    conv_depthwise,
    conv_depthwise_3x3,
    conv_operands,
    conv_window,
    direct,
    is_3x3,
    sum_of,
)
from .conv_implicit import (
    CONV_VEC4,
    conv_implicit,
    implicit_scratch,
    implicit_tile,
    implicit_variants,
    product_time,
)
from .conv_windows import packed_words
from .window import Push, Window, launches, three

_MIN_STEPS, MIN_ROWS = 8, 8
"""Minimum steps of a window in all channels, and rows of a group, for which a product pays."""
SCRATCH_WORDS, SOFTWARE_SCRATCH_WORDS = 1 << 24, 1 << 17
"""Maximum words of the im2col buffer, on a GPU and on a CPU driver, where it should fit a cache."""
_PASSES = 64
"""Maximum passes for which a CPU driver's buffer stays this small; a pass takes two dispatches."""
_WEIGHTS = SCRATCH - 1
"""Operand index of the packed weights."""
_CHUNK_PLACES = 64
"""Positions of a part of an image are a multiple of this number."""


# -- im2col ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pass:
    """A part of a convolution whose windows are in the im2col buffer at one time."""

    image: int
    images: int
    place: int
    places: int


def _pass_size(call: Call) -> tuple[int, int]:
    """Return the images, and positions of each image, that are unfolded at a time."""
    parts, limits = sum_of(call), call.limits
    per_place = parts.groups * parts.steps
    total = per_place * parts.places * call.output.shape[0]
    room = max(SOFTWARE_SCRATCH_WORDS, total // _PASSES) if limits.software else SCRATCH_WORDS
    room = min(room, SCRATCH_WORDS, limits.max_buffer_bytes // 4)
    if per_place * parts.places <= room:
        return min(call.output.shape[0], room // (per_place * parts.places)), parts.places
    return 1, max(room // per_place // _CHUNK_PLACES, 1) * _CHUNK_PLACES


def _passes(call: Call) -> Iterator[_Pass]:
    images, places = _pass_size(call)
    total_images, total_places = call.output.shape[0], sum_of(call).places
    for image in range(0, total_images, images):
        for place in range(0, total_places, places):
            yield _Pass(
                *(image, min(images, total_images - image)),
                *(place, min(places, total_places - place)),
            )


@dataclass(frozen=True, slots=True)
class _Lines:
    """Layout of the im2col buffer: words between lines, and lines of zeros after each image.

    Kernels of CPU drivers read vec4s along both axes.
    """

    row: int
    zeros: int

    def packed(self, part: _Pass) -> tuple[bool, bool]:
        """Return the flags of weights and windows that are True if these are padded."""
        return self.zeros > 0, self.zeros > 0 or self.row != part.places


def _lines(call: Call, part: _Pass) -> _Lines:
    sums = sum_of(call)
    zeros = -sums.steps % 4
    if not call.limits.software or call.output.dtype != FLOAT32 or (zeros and sums.groups > 1):
        return _Lines(part.places, 0)
    return _Lines(part.places + -part.places % 4, zeros)


def _matmul_call(call: Call, part: _Pass) -> Call:
    sums, dtype = sum_of(call), call.output.dtype
    w = TensorType((1, sums.groups, sums.rows, sums.steps), dtype)
    columns = TensorType((part.images, sums.groups, sums.steps, part.places), dtype)
    result = TensorType((part.images, sums.groups, sums.rows, part.places), dtype)
    plain = product_attrs(call, False, False)
    return Call((w, columns, *call.inputs[2:]), result, plain, call.limits)


def _product(
    call: Call, source: int, part: _Pass, packed: tuple[bool, bool] = (False, False)
) -> tuple[Dispatch, ...]:
    """Multiply w by the unfolded windows in `source`, for all groups of the images of a pass."""
    sums = sum_of(call)
    dispatches = matmul.product(
        _matmul_call(call, part), sums.groups * sums.rows, sums.places, packed
    )
    operands = (_WEIGHTS if packed[0] else 1, source, *conv_operands(call)[2:])
    shift = part.image * sums.groups * sums.rows * sums.places + part.place
    return tuple(
        replace(d, operands=operands, shifts=(*d.shifts[:3], d.shifts[3] + shift))
        for d in dispatches
    )


def _unfold(call: Call, window: Window, part: _Pass) -> tuple[Dispatch, ...]:
    channels = call.inputs[0].shape[1]
    image = channels * math.prod(call.inputs[0].shape[2:])
    lines = _lines(call, part)
    push: Push = (
        *window.push(),
        ("x_sizes", three(window.sizes)),
        ("result_sizes", three(call.output.shape[2:])),
        *(("first_place", part.place), ("places", part.places)),
        *(("channels", channels), ("row", lines.row), ("zeros", lines.zeros)),
    )
    items = part.images * channels * part.places
    return tuple(
        Dispatch(
            "im2col",
            (0, SCRATCH),
            launch.groups,
            (*push, *launch.push),
            shifts=(part.image * image, 0),
            barrier=launch.barrier,
        )
        for launch in launches("conv", items, window.rounds() + lines.zeros, call.limits)
    )


def _unfolded(call: Call, window: Window) -> tuple[Dispatch, ...]:
    out: list[Dispatch] = []
    for number, part in enumerate(_passes(call)):
        packed = _lines(call, part).packed(part)
        if packed[0] and number == 0:
            weights = matmul.pack(_matmul_call(call, part), 0, _WEIGHTS)
            out.append(replace(weights, operands=(1, _WEIGHTS)))
        unfold, multiply = _unfold(call, window, part), _product(call, SCRATCH, part, packed)
        # wait until the previous windows have been read, and the next ones written
        out += [replace(unfold[0], barrier=number > 0), *unfold[1:]]
        out += [replace(multiply[0], barrier=True), *multiply[1:]]
        if len(out) > MAX_DISPATCHES:
            raise UnsupportedOp(f"[conv] it needs more than {MAX_DISPATCHES} dispatches")
    return tuple(out)


def _is_linear(parts: ConvSum, window: Window) -> bool:
    """Return True if each result sums all values of an image, as in squeeze-and-excitation."""
    whole = window.kernel == window.sizes and not any((*window.begin, *window.end))
    return whole and parts.places == 1 and parts.groups == 1 and parts.steps > 0


def _linear(call: Call) -> tuple[Dispatch, ...]:
    """Return a single product whose rows are the images.

    With images as columns, each product would have a single column, for which there is no kernel;
    and one direct sum over all steps accumulates rounding errors.
    """
    sums, (x, _, *bias), out = sum_of(call), call.inputs, call.output
    images, rows = (TensorType((n, sums.steps), x.dtype) for n in (out.shape[0], sums.rows))
    result = TensorType((out.shape[0], sums.rows), out.dtype)
    attrs = product_attrs(call, False, True)
    return matmul.product(Call((images, rows, *bias), result, attrs, call.limits))


# -- variant selection -------------------------------------------------------------------------


DEPTHWISE_3X3, DEPTHWISE, DIRECT = "depthwise 3x3", "depthwise", "direct"
IM2COL, MATMUL, LINEAR = "im2col", "matmul", "linear"


def conv_variants(call: Call) -> tuple[str, ...]:
    """Return the variants that can compute a convolution, the best guess first."""
    if call.output.size == 0:
        return ()
    plain = _with_implicit(call, _plain_variants(call))
    if not {IM2COL, MATMUL}.intersection(plain):
        # the others are products that select cooperative matrices themselves, or are too small
        return plain
    return with_conv_coopmats(call, plain)


def _with_implicit(call: Call, plain: tuple[str, ...]) -> tuple[str, ...]:
    """Return variants with those of implicit products, first if they are faster by the model."""
    if not {IM2COL, MATMUL}.intersection(plain):
        return plain
    times = implicit_variants(call)
    best = product_time(call, plain[0] == IM2COL) if plain[0] != DIRECT else 0.0
    faster = tuple(name for name, time in times.items() if time < best)
    return (*faster, *plain, *(name for name in times if name not in faster))


def _plain_variants(call: Call) -> tuple[str, ...]:
    parts, window = sum_of(call), conv_window(call.inputs, call.attrs)
    if parts.channels == 1 and parts.rows < BLOCK:
        return (DEPTHWISE_3X3, DEPTHWISE) if is_3x3(call, window) else (DEPTHWISE,)
    if _is_linear(parts, window):
        return (LINEAR,)
    room = call.limits.max_buffer_bytes // 4
    fits = parts.groups * parts.steps * min(_CHUNK_PLACES, parts.places) <= room
    if window.pointwise and parts.channels:
        product: tuple[str, ...] = (MATMUL,)
    else:
        product = (IM2COL,) if fits and parts.steps >= _MIN_STEPS else ()
    if parts.rows >= 2 * MIN_ROWS and product:
        return product
    return (*product, DIRECT) if parts.rows >= MIN_ROWS else (DIRECT, *product)


def lower_conv(call: Call) -> tuple[Dispatch, ...]:
    """Return the dispatches of a convolution."""
    if call.output.size == 0:
        return ()
    window, tile = conv_window(call.inputs, call.attrs), coopmat_tile(call, CONV)
    if tile is not None:
        return conv_by_coopmat(call, window, tile)
    implicit = implicit_tile(call)
    if implicit is not None:
        return conv_implicit(call, window, implicit)
    if call.variant == MATMUL:
        return _product(call, 0, _Pass(0, call.output.shape[0], 0, sum_of(call).places))
    if call.variant == LINEAR:
        return _linear(call)
    if call.variant == IM2COL:
        return _unfolded(call, window)
    if call.variant == DEPTHWISE_3X3:
        return conv_depthwise_3x3(call, window)
    if call.variant == DEPTHWISE:
        return conv_depthwise(call, window)
    return direct("conv", call, window)


def conv_rounds(call: Call) -> int:
    """Return the loop iterations of an invocation that sums, or copies, one window."""
    if call.output.size == 0:
        return 0
    variant, parts = _plain_variants(call)[0], sum_of(call)
    if variant in (MATMUL, LINEAR):
        return 0
    return parts.steps if variant == DIRECT else parts.taps


def conv_scratch(call: Call) -> tuple[int, ...]:
    """Return the words of the im2col buffer of a pass, or of the packed weights."""
    if call.output.size == 0:
        return ()
    if coopmat_tile(call, CONV):
        return packed_words(call)
    if implicit_tile(call):
        return implicit_scratch(call)
    if call.variant != IM2COL:
        return ()
    part, parts = next(_passes(call)), sum_of(call)
    lines = _lines(call, part)
    columns = part.images * (parts.groups * parts.steps + lines.zeros) * lines.row
    if not lines.zeros:
        return (columns,)
    return (columns, parts.rows * (parts.steps + lines.zeros))


CONV_SHADERS = (
    *("im2col", "conv_depthwise_3x3_1", "conv_depthwise_3x3_2"),
    *(f"{kind}_{dtype}" for kind in ("conv", "conv_depthwise") for dtype in ("float32", "int32")),
    *matmul.SHADERS,
    CONV_COOPMAT,
    CONV_VEC4,
)
