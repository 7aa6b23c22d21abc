"""Linear layers with quantized weights as stored in a GGUF file.

    x, words -> quantized_linear -> x @ dequantize(words).T, without a float32 weight

The pass vksched/passes/fuse_dequantize.py replaces products with a dequantized weight
(dequantize.py) by `quantized_linear`. Layout of the words: quant_layout.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece, rows_of_piece
from ...ir.native_program import Loop, NativeProgram
from ...ir.op import OUTPUT, SCRATCH, Call, Dispatch, Kernel, Op, Work, register
from ...ir.vjp import VjpContext, VjpResult, gradient, sum_to
from ..elementwise.epilogue import with_epilogue
from ..elementwise.select import cast
from ..linalg.matmul import matmul
from ..linalg.matmul_kernels import (
    BIAS_PER_COLUMN,
    MAX_GEMV_ROWS,
    fp16_weight_variants,
    in_place_variants,
    product,
)
from ..linalg.matmul_shaders import SHADERS
from ..linalg.operands import product_attrs
from ..lowering import native_kernels
from ..lowering.variants import COOPMAT
from ..lowering.vec4 import both_readings, reading
from . import gemv_mixed
from . import quant_gemm as gemm
from . import quant_gemm_tiled as tiled
from .dequantize import DEQUANTIZE_SHADERS, dequantize, dequantize_rows
from .gemv_rows import (
    DOT,
    GEMV,
    GEMV_LOCAL,
    ROWS,
    UNPACK_FLOPS,
    WITH_DOT,
    has_rows,
    in_one_family,
    members,
    q8_row_words,
    quantize_activations,
    rows_at_a_time,
    rows_of,
    with_one_row,
)
from .gguf_formats import FORMAT, FORMATS, format_of, unpacked
from .q8_activations import fake_quantize_q8, quantizes_x
from .quant_gemm_dispatches import quant_gemm, tile_of
from .quant_layout import check_words

MAX_ROWS, USUAL_ROWS = 32, 16
"""Maximum rows for which the GEMV variants are tried, and are the first guess."""
DEQUANTIZE = "dequantize"
"""The variant that dequantizes into scratch memory for an ordinary product, for many rows. The name
of the product's variant follows, e.g. "dequantize vec4 64x64"; without one, the best guess is used.
"""
FP16_FORMATS = "f16", "bf16"
"""Formats that tiles read directly, for many rows."""
SCRATCH_BYTES = {True: 16 << 20, False: 64 << 20}
"""Maximum bytes of values that are dequantized at a time; the key is True for CPU drivers."""


def _linear_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, words, *bias = inputs
    if x.dtype != FLOAT32 or any(t.dtype != FLOAT32 for t in bias):
        raise DTypeError(f"[quantized_linear] expected x and bias of float32, got {x.dtype}")
    if x.rank < 2 or words.rank != 2:
        raise ShapeError(f"[quantized_linear] expected matrices, got {x.shape} and {words.shape}")
    check_words("quantized_linear", words, format_of(attrs["format"]), x.shape[-1])
    if bias and bias[0].shape != words.shape[:1]:
        raise ShapeError(
            f"[quantized_linear] expected a bias of shape {words.shape[:1]}, got {bias[0].shape}"
        )
    return TensorType((*x.shape[:-1], words.shape[0]), FLOAT32)


def _linear_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, words, *bias = inputs
    if quantizes_x(attrs):
        x = fake_quantize_q8(x)
    values = unpacked(str(attrs["format"]), words, x.shape[-1])
    product = np.matmul(x, values.T.astype(x.dtype))
    return np.asarray(product + bias[0] if bias else product)


NATIVE_GEMV = 8
"""Maximum rows of x for which native loops read quantized weights directly."""
NATIVE_PIECE = 4
"""Size of the pieces of native loops, relative to numpy's pieces: native loops are faster."""


def _linear_cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by columns of the result, with dequantized weights that fit into a cache."""
    (x, words, *bias), result = _flat(inputs, out)
    name, n, values = str(attrs["format"]), words.shape[0], words.shape[0] * x.shape[-1]
    rows = native_kernels.quantize_rows_q8(name, x) if quantizes_x(attrs) else None
    native = rows is not None or (len(x) <= NATIVE_GEMV and native_kernels.has_quantized(name))
    step = rows_of_piece(n, values // (NATIVE_PIECE if native else 1))
    for start in range(0, n, step):
        part = slice(start, start + step)
        own = x if rows is None else rows
        yield (own, words[part], *(b[part] for b in bias)), result[:, part]


def _flat(inputs: tuple[NDArray, ...], out: NDArray) -> tuple[tuple[NDArray, ...], NDArray]:
    """Return a call with x and the result as matrices."""
    x, *rest = inputs
    rows = math.prod(out.shape[:-1])
    return (x.reshape(rows, x.shape[-1]), *rest), out.reshape(rows, out.shape[-1])


def _linear_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    name = str(attrs["format"])
    (x, words, *bias), result = _flat(inputs, out) if out.ndim != 2 else (inputs, out)
    shift = bias[0] if bias else None
    if quantizes_x(attrs):
        if native_kernels.quantized_linear_q8(name, x, words, shift, result):
            return
        x = fake_quantize_q8(x)
    row_products(name, x, words, shift, result)


def row_products(name: str, x: NDArray, words: NDArray, bias: NDArray | None, out: NDArray) -> None:
    """Write x W^T (+ bias): with native loops for few rows, else with dequantized weights."""
    if len(x) <= NATIVE_GEMV and native_kernels.quantized_linear(name, x, words, bias, out):
        return
    step = rows_of_piece(len(words), len(words) * x.shape[-1])
    values: NDArray = np.empty((step, x.shape[-1]), np.float32)
    for start in range(0, len(words), step):
        rows = words[start : start + step]
        own = values[: len(rows)]
        if not native_kernels.dequantize(name, rows, own):
            own = unpacked(name, rows, x.shape[-1])
        np.matmul(x, own.T, out=out[:, start : start + step])
    if bias is not None:
        out += bias


PROGRAM_PIECE = 1 << 16
"""Values of a piece of a native loop: short, because threads synchronize after each product."""
PANEL = 16
"""Rows of a weight that loops over many quantized rows of x process together."""


def _linear_program(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    if quantizes_x(attrs):
        return _q8_program(inputs, attrs)
    x, words, *bias = inputs
    name, m, k = str(attrs["format"]), math.prod(x.shape[:-1]), x.shape[-1]
    if (
        m > NATIVE_GEMV
        or not native_kernels.has_quantized(name)
        or any(t.dtype != FLOAT32 for t in (x, *bias))
    ):
        return None
    n, row_words = words.shape
    step = max(1, PROGRAM_PIECE // (m * k))
    numbers = (m, k, n, row_words, len(bias), step)
    operands = tuple(range(len(inputs)))
    loop = Loop(f"quantized_linear {name}", operands, m * n, numbers, (), -(-n // step), m * n * k)
    return NativeProgram((loop,))


def _q8_program(inputs: tuple[TensorType, ...], attrs: Attrs) -> NativeProgram | None:
    """Return the loops that quantize x once and then multiply it, for few or many rows."""
    x, words, *bias = inputs
    name, m, k = str(attrs["format"]), math.prod(x.shape[:-1]), x.shape[-1]
    if not native_kernels.has_q8(name) or any(t.dtype != FLOAT32 for t in (x, *bias)):
        return None
    n, row_words = words.shape
    row, some = native_kernels.q8_row_words(k), max(1, PROGRAM_PIECE // k)
    int_params: tuple[int, ...] = (m, k, some, row)
    rounds = Loop(f"quantize_rows_q8 {name}", (0,), m * row, int_params, (), -(-m // some), m * k)
    step = -(-PROGRAM_PIECE // (m * k * PANEL)) * PANEL
    int_params = (m, k, n, row_words, len(bias), step)
    operands = (len(inputs), *range(1, len(inputs)))
    name = f"quantized_linear_q8 {name}"
    multiplies = Loop(name, operands, m * n, int_params, (), -(-n // step), m * n * k)
    return NativeProgram((rounds, multiplies))


def _linear_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    k, n = inputs[0].shape[-1], output.shape[-1]
    return Work(2.0 * k * output.size + UNPACK_FLOPS * k * n, float(moved))


def _variants(call: Call) -> tuple[str, ...]:
    """Return the variants: for few rows those whose rows have the same bits (gemv_rows.py)."""
    if not call.output.size:
        return ()
    if rows_of(call) > MAX_GEMV_ROWS:
        return _all_variants(call)
    names = tuple(n for n in _all_variants(call) if not n.startswith(DEQUANTIZE)) or (DEQUANTIZE,)
    if rows_of(call) == 1:
        return names
    one_row = with_one_row(call, call.output.shape[-1])
    return in_one_family("quantized_linear", names, one_row, _variants)


def _all_variants(call: Call) -> tuple[str, ...]:
    plain, is_fp16 = _float_variants(call), call.attrs["format"] in FP16_FORMATS
    direct = fp16_weight_variants(_product_call(call)) if is_fp16 else ()
    tiles = tiled.variants(call, call.inputs[1].shape[:1])
    plain = (*plain, *direct) if call.limits.software else (*direct, *tiles, *plain)
    own = gemm.with_quant_gemm(call, plain, call.inputs[1].shape[:1])
    if not (call.limits.integer_dot and _supports_integer_dot(call)):
        return own
    most = rows_at_a_time(rows_of(call), str(call.attrs["format"]), call.limits)
    dot = members(DOT, most)
    return (*dot, *own) if call.limits.integer_dot_fast else (*own, *dot)


def _supports_integer_dot(call: Call) -> bool:
    """Return True if a call of few rows has a kernel with integer dot products."""
    has_kernel = quantizes_x(call.attrs) and call.attrs["format"] in WITH_DOT
    return has_kernel and rows_of(call) <= MAX_GEMV_ROWS


def _float_variants(call: Call) -> tuple[str, ...]:
    m, limits = rows_of(call), call.limits
    if m > (MAX_ROWS if limits.software else MAX_GEMV_ROWS):
        if limits.software and not limits.matrices:
            # assumed without a query, which each start of a model would make for each product
            return (DEQUANTIZE,)
        names = in_place_variants(_part(call, _step(call)))
        if not limits.software:
            return tuple(f"{DEQUANTIZE} {name}" for name in names)
        return DEQUANTIZE, *(f"{DEQUANTIZE} {name}" for name in names if COOPMAT in name)
    if not limits.software:
        most = rows_at_a_time(m, str(call.attrs["format"]), limits)
        return *gemv_mixed.variants(call), *members(GEMV, most), DEQUANTIZE
    rows = members(ROWS, m) if has_rows(call) else ()
    rows = tuple(name for name in rows if -(-m // ROWS[name]) <= limits.max_groups[0])
    return (*rows, DEQUANTIZE) if m <= USUAL_ROWS else (DEQUANTIZE, *rows[:1])


def _product_call(call: Call) -> Call:
    """Return a call with 16-bit weights as an ordinary product."""
    m, n, k = rows_of(call), call.output.shape[-1], call.inputs[0].shape[-1]
    bias = (TensorType((n,)),) * (len(call.inputs) - 2)
    operands = TensorType((m, k)), TensorType((n, k), FLOAT16), *bias
    attrs = Attrs({**product_attrs(call, False, True), "format": call.attrs["format"]})
    return Call(operands, TensorType((m, n)), attrs, call.limits, call.variant)


def _step(call: Call) -> int:
    """Return the rows of the weight that are dequantized at a time: a multiple of four."""
    n, k = call.output.shape[-1], call.inputs[0].shape[-1]
    limits = call.limits
    most = min(SCRATCH_BYTES[limits.software], limits.max_buffer_bytes) // (4 * k) // 4 * 4
    return min(n, max(4, most))


def _scratch(call: Call) -> tuple[int, ...]:
    if call.variant in DOT:
        return (rows_of(call) * q8_row_words(call),)
    if not call.variant.startswith(DEQUANTIZE):
        return gemm.quant_gemm_scratch(call, call.inputs[1].shape[:1])
    return (_step(call) * call.inputs[0].shape[-1],)


def _linear_lower(call: Call) -> tuple[Dispatch, ...]:
    if not call.output.size:
        return ()
    if call.variant.startswith(DEQUANTIZE):
        return _dequantize_first(call)
    if call.variant in gemv_mixed.VARIANTS:
        return (gemv_mixed.dispatch(call),)
    if tile_of(call):
        return quant_gemm(call, (1,), 2 if len(call.inputs) > 2 else None)
    if call.variant not in (*GEMV, *ROWS, *DOT):
        return product(_product_call(call))
    bias, quantizes = len(call.inputs) > 2, call.variant in DOT
    row = q8_row_words(call) if quantizes else call.inputs[0].shape[-1]
    gemv = quant_gemv(call, rows_of(call), 1, (row, 0), row)
    gemv = replace(
        gemv,
        operands=(SCRATCH if quantizes else 0, 1, 2 if bias else 0, OUTPUT),
        push=(*gemv.push, ("has_bias", BIAS_PER_COLUMN * bias)),
        barrier=quantizes,
    )
    return (quantize_activations(call), gemv) if quantizes else (gemv,)


def quant_gemv(call: Call, m: int, batches: int, a_steps: tuple[int, int], a_row: int) -> Dispatch:
    """Return the dispatch of a product by the GEMV kernels, without operands and `has_bias`.

    m: rows of the result. batches: tile i is number i % batches in row i // batches of tiles.
    a_steps: stride of x between rows of tiles per row of a tile, and stride between tiles. a_row:
    words of a row of x.
    """
    n, k = call.output.shape[-1], call.inputs[0].shape[-1]
    kind, limits = format_of(call.attrs["format"]), call.limits
    rows = (GEMV | DOT | ROWS)[call.variant]
    matrix_words = call.inputs[1].shape[-2] * kind.row_words(k)
    push = (
        *(("batches", batches), ("n", n), ("a_row", a_row), ("a_column", 1)),
        *(("b_row", 1), ("b_column", kind.row_words(k)), ("batch_sizes", (1, 1, 1))),
        *(("a_batch", (rows * a_steps[0], a_steps[1], 0, 0)), ("b_batch", (matrix_words, 0, 0, 0))),
        *(("result_row", n), ("bias_rows", 0), ("m", m), ("k", k), ("adds", 0)),
    )
    tiles = -(-m // rows)
    if call.variant in GEMV | DOT:
        x, y = GEMV_LOCAL
        most = limits.max_groups
        groups = min(-(-n // (4 * y)), most[0]), min(tiles, most[1]), 1
        constants = ("LOCAL_X", x), ("LOCAL_Y", y), ("ROWS", rows)
        gemv = "quant_gemv" if call.variant in GEMV else "gemv_q8_activations"
        return Dispatch(f"{gemv}_{kind.name.lower()}", (), groups, push, constants)
    lanes = limits.subgroup_size
    groups = tiles // batches, -(-n // (4 * lanes)), batches
    shader = reading(f"quant_gemv_cpu_{rows}_{kind.name.lower()}", limits)
    return Dispatch(shader, (), groups, push, (("LOCAL_X", lanes),))


def _part(call: Call, count: int) -> Call:
    """Return the product by `count` dequantized rows of the weight."""
    m, k = rows_of(call), call.inputs[0].shape[-1]
    bias = (TensorType((count,)),) * (len(call.inputs) - 2)
    attrs = product_attrs(call, False, True)
    operands = TensorType((m, k)), TensorType((count, k)), *bias
    return Call(operands, TensorType((m, count)), attrs, call.limits)


def _dequantize_first(call: Call) -> tuple[Dispatch, ...]:
    """Dequantize rows of the weight into scratch memory and multiply by them, part by part."""
    x, words, *bias = call.inputs
    n, k = call.output.shape[-1], x.shape[-1]
    variant = call.variant.removeprefix(DEQUANTIZE).strip()
    row_words, step, out = words.shape[-1], _step(call), list[Dispatch]()
    for start in range(0, n, step):
        count = min(step, n - start)
        dispatch = dequantize_rows(call, (1, SCRATCH), count, k)
        out.append(replace(dispatch, shifts=(start * row_words, 0), barrier=bool(out)))
        part = _part(call, count)
        # the last part may be too small for the variant
        if variant and variant in in_place_variants(part):
            part = replace(part, variant=variant)
        for at, one in enumerate(product(part, result_row=n)):
            a, b, c, result = one.shifts
            shifts = a, b, c + start * bool(bias), result + start
            operands = 0, SCRATCH, 2 if bias else 0, OUTPUT
            out.append(
                replace(one, operands=operands, shifts=shifts, barrier=one.barrier or not at)
            )
    return tuple(out)


DOT_SHADERS = ("quantize_activations", *(f"gemv_q8_activations_{n.lower()}" for n in WITH_DOT))
LINEAR_SHADERS = (
    *(f"quant_gemv_{name.lower()}" for name in FORMATS),
    *gemv_mixed.SHADERS,
    *gemm.QUANT_GEMM_SHADERS,
    *tiled.TILED_SHADERS,
    *both_readings(
        f"quant_gemv_cpu_{rows}_{name.lower()}" for rows in ROWS.values() for name in FORMATS
    ),
)

register(
    with_epilogue(
        Op(
            "quantized_linear",
            _linear_infer,
            _linear_reference,
            Kernel(
                (*LINEAR_SHADERS, *DOT_SHADERS, *DEQUANTIZE_SHADERS, *SHADERS),
                _linear_lower,
                _scratch,
                variants=_variants,
                takes_fp16=gemm.quant_gemm_takes_fp16,
                counters=lambda call: gemm.quant_gemm_counters(call, call.inputs[1].shape[:1]),
            ),
            attrs={"format": FORMAT},
            operands=(2, 3),
            work=_linear_work,
            roundable_operands=(0,),
            float32_result=True,
            cpu=CpuKernel(_linear_cpu, _linear_cut),
            native_program=_linear_program,
        )
    )
)


@gradient("quantized_linear")
def _linear_gradient(call: VjpContext) -> VjpResult:
    """Return the gradients of x and of the bias: quantized words have none."""
    x, words, *bias = call.inputs
    grad = call.grad
    values = cast(dequantize(words, str(call.attrs["format"]), x.shape[-1]), grad.dtype)
    of_bias = (cast(sum_to(grad, b.shape), b.dtype) for b in bias)
    return (cast(matmul(grad, values), x.dtype), None, *of_bias)
