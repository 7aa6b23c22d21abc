"""Merged linear layers (fused QKV, gate-up): several quantized weights in one dispatch.

    x --RMS norm--> rows --W1, W2, W3--> [ rows W1^T | rows W2^T | rows W3^T ]
                         --W1, W2------> gate(rows W1^T) * (rows W2^T)

With `normed`, x is divided by its root mean square and multiplied by a scale. Each workgroup of a
GPU repeats this for the columns that it computes. With `gate`, an activation, there are two weights
of equal size. The norm and the activation of a decode step thus cost no dispatches or barriers.

A precision applies to the normalized rows. At int8 they are quantized to 8 bits: each workgroup
does this once, in shared memory, for all of its columns, and multiplies by integer dot products. At
mixed it converts them to float16 (gemv_mixed.py).

A workgroup multiplies up to eight rows, whose results do not depend on their number (gemv_rows.py).
Many rows are multiplied in tiles (quant_gemm_dispatches.py). With `stacked`, the products are
contiguous matrices, one after another, so that a slice of the result is a product without a copy.
The pass vksched/passes/fuse_linears.py creates this op; it is not part of the public API. Examples:
tests/passes/test_fuse_linears.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Flag, Float, OneOf, Optional, one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel, Piece, rows_of_piece
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, get_op, register
from ...ir.precision import PRECISION, PRECISIONS, as_factor, precision_of, rounds_operands
from ...ir.vjp import no_gradient
from ...topology.limits import Limits
from ..elementwise.epilogue import with_epilogue
from ..linalg.matmul_kernels import MAX_GEMV_ROWS
from ..lowering.fp16_result import stores_fp16, with_fp16_result
from ..lowering.strides import LOOP_STEPS
from . import gemv_mixed
from . import quant_gemm_tiled as tiled
from .gemv_rows import (
    GEMV_LOCAL,
    UNPACK_FLOPS,
    WITH_DOT,
    in_one_family,
    rows_at_a_time,
    rows_of,
    with_one_row,
)
from .gguf_formats import FORMAT, FORMATS, format_of, unpacked
from .q8_activations import fake_quantize_q8, quantizes_x
from .quant_gemm import (
    QUANT_GEMM_SHADERS,
    quant_gemm_counters,
    quant_gemm_scratch,
    quant_gemm_takes_fp16,
    with_quant_gemm,
)
from .quant_gemm_dispatches import quant_gemm, tile_of
from .quant_layout import RUN, check_words
from .quantized_linear import NATIVE_PIECE, row_products
from .rotated_columns import Rope

NAME, NORM = "merged_linear", "rms_norm"
GATES = {"": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}
"""Activations, by their numbers in shaders/quantized/quant_gemv_merged.comp; "" is no gate."""
MAX_WEIGHTS = 3
COLUMNS = 4 * GEMV_LOCAL[1]
"""Columns of a workgroup, all of one weight."""
MERGED_BUFFERS = 7
"""Buffers that the kernel binds: x, a scale, three weights, the result and a residual."""
LANES = math.prod(GEMV_LOCAL)
MAX_MERGED_ROWS = {False: 4, True: 1}
"""Maximum rows of a workgroup in float32 or int8, by whether registers are few: on Intel's GPUs two
rows with a norm spilled 2 to 4 registers, and four rows up to 145.
"""


def has_int8_kernel(limits: Limits, format: str, k: int) -> bool:
    """Return True if workgroups quantize rows of k values, with fast integer dot products."""
    fits = _int8_bytes(k, 1) <= limits.shared_bytes
    return limits.integer_dot_fast and format in WITH_DOT and fits


def is_stacked(attrs: Attrs) -> bool:
    """Return True if the products are matrices one after another."""
    return bool(attrs.get("stacked"))


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    normed, gate, kind = attrs.as_bool("normed"), attrs.as_str("gate"), format_of(attrs["format"])
    x, floats, weights = inputs[0], inputs[: 1 + normed], inputs[1 + normed :]
    if any(t.dtype != FLOAT32 for t in floats):
        got = " and ".join(t.dtype for t in floats)
        raise DTypeError(f"[{NAME}] expected float32, got {got}")
    if x.rank < 2 or not 0 < len(weights) <= MAX_WEIGHTS or any(w.rank != 2 for w in weights):
        raise ShapeError(
            f"[{NAME}] expected x and 1 to {MAX_WEIGHTS} quantized matrices, got "
            f"{' and '.join(map(str, inputs))}"
        )
    if normed and inputs[1].shape != x.shape[-1:]:
        raise ShapeError(f"[{NAME}] expected a scale {x.shape[-1:]}, got {inputs[1].shape}")
    for words in weights:
        check_words(NAME, words, kind, x.shape[-1])
        if words.shape[0] % COLUMNS:
            raise ShapeError(
                f"[{NAME}] expected weights with a multiple of {COLUMNS} rows, got {words.shape[0]}"
            )
    sizes = [words.shape[0] for words in weights]
    if gate and (len(sizes) != 2 or sizes[0] != sizes[1]):
        raise ShapeError(f"[{NAME}] expected two weights of one size for {gate}, got {sizes}")
    if stores_fp16(attrs) and not gate:
        raise ShapeError(f"[{NAME}] expected a gate with a result of float16, got {attrs}")
    if is_stacked(attrs):
        if gate:
            raise ShapeError(f"[{NAME}] expected no gate with stacked, got {attrs}")
        return TensorType((math.prod(x.shape[:-1]) * sum(sizes),), FLOAT32)
    return TensorType((*x.shape[:-1], sizes[0] if gate else sum(sizes)), FLOAT32)


def _split_inputs(inputs: tuple[NDArray, ...], attrs: Attrs) -> tuple[NDArray, tuple[NDArray, ...]]:
    """Return the normalized rows, as they are multiplied, and the weights."""
    x, *rest = inputs
    if attrs.as_bool("normed"):
        scale, *rest = rest
        norm_attrs: dict[str, AttrValue] = {
            "axis": x.ndim - 1,
            "eps": attrs.as_float("eps"),
            "kind": NORM,
        }
        norm = Attrs({**norm_attrs, "scaled": True, "shifted": False})
        x = get_op(NORM).reference((x, scale), norm)
    if quantizes_x(attrs):
        x = fake_quantize_q8(x)
    elif rounds_operands(attrs):
        x = as_factor(x, precision_of(attrs))
    return x, tuple(rest)


def merge(parts: list[NDArray], attrs: Attrs) -> NDArray:
    """Concatenate products, or multiply the second one by the activation of the first."""
    gate = attrs.as_str("gate")
    if is_stacked(attrs):
        return np.concatenate([each.ravel() for each in parts])
    if not gate:
        return np.concatenate(parts, axis=-1)
    return np.asarray(get_op(gate).reference((parts[0],), Attrs()) * parts[1])


def products(inputs: tuple[NDArray, ...], attrs: Attrs) -> list[NDArray]:
    """Return the product by each weight."""
    (rows, weights), name = _split_inputs(inputs, attrs), str(attrs["format"])
    values = (unpacked(name, words, rows.shape[-1]).T for words in weights)
    return [np.matmul(rows, each.astype(rows.dtype)) for each in values]


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return merge(products(inputs, attrs), attrs)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by columns of one weight or, with a gate, of both.

    Each piece recomputes the norm, which is cheap compared to the products.
    """
    if is_stacked(attrs):
        yield inputs, out
        return
    count, rows = 1 + attrs.as_bool("normed"), math.prod(out.shape[:-1])
    (x, *scale), weights = inputs[:count], inputs[count:]
    x, result = x.reshape(rows, x.shape[-1]), out.reshape(rows, out.shape[-1])
    parts = [weights] if attrs.as_str("gate") else [(words,) for words in weights]
    begin = 0
    for part in parts:
        n = len(part[0])
        step = rows_of_piece(n, n * len(part) * x.shape[-1] // NATIVE_PIECE)
        for start in range(0, n, step):
            end = min(start + step, n)
            own = (words[start:end] for words in part)
            yield (x, *scale, *own), result[:, begin + start : begin + end]
        begin += n


def cpu_products(inputs: tuple[NDArray, ...], attrs: Attrs) -> list[NDArray]:
    """Return the product by each weight, (rows, columns), by native loops that read quantized
    weights directly for few rows.
    """
    (rows, weights), name = _split_inputs(inputs, attrs), str(attrs["format"])
    flat = np.ascontiguousarray(rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]))
    parts = [np.empty((len(flat), len(words)), np.float32) for words in weights]
    for words, part in zip(weights, parts, strict=True):
        row_products(name, flat, words, None, part)
    return parts


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    out[...] = merge(cpu_products(inputs, attrs), attrs).reshape(out.shape)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    products = output.size * (2 if attrs.as_str("gate") else 1)
    k, first = inputs[0].shape[-1], 1 + attrs.as_bool("normed")
    unpacked = k * sum(words.shape[0] for words in inputs[first:])
    return Work(2.0 * k * products + UNPACK_FLOPS * unpacked, float(moved))


GEMV = "gemv"
"""The variant for few rows in float32."""


def _product(call: Call) -> gemv_mixed.Product:
    """Return the product of a call."""
    return product_of(call, GATES[call.attrs.as_str("gate")])


def product_of(call: Call, gate: int = 0, rope: Rope | None = None) -> gemv_mixed.Product:
    """Return the product of a call; a rotary embedding has its tables as the last two operands."""
    normed, tables = call.attrs.as_bool("normed"), 2 if rope else 0
    return gemv_mixed.Product(
        weights=tuple(range(1 + normed, len(call.inputs) - tables)),
        scale=1 if normed else None,
        gate=gate,
        eps=call.attrs.as_float("eps"),
        stacked=is_stacked(call.attrs),
        rope=rope,
    )


def few_rows_variants(
    op: str,
    call: Call,
    product: gemv_mixed.Product,
    variants: Callable[[Call], tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the variants of a call with up to MAX_GEMV_ROWS rows, whose rows have the same bits
    for each number of rows. variants: those of another call of the op.
    """
    names = (*gemv_mixed.variants(call, product), GEMV)
    if rows_of(call) == 1:
        return names
    plain = {name: value for name, value in call.attrs.items() if name != "stacked"}
    one_row = with_one_row(replace(call, attrs=Attrs(plain)), product.size(call))
    return in_one_family(op, names, one_row, variants)


def _variants(call: Call) -> tuple[str, ...]:
    if not call.output.size:
        return (GEMV,)
    product = _product(call)
    if rows_of(call) <= MAX_GEMV_ROWS:
        return few_rows_variants(NAME, call, product, _variants)
    if call.attrs.as_bool("normed"):
        return (GEMV,)
    sizes, is_gated = _sizes(call), bool(product.gate)
    plain = (*tiled.variants(call, sizes, is_gated), *(() if is_stacked(call.attrs) else (GEMV,)))
    return with_quant_gemm(call, plain, sizes, is_gated)


def _sizes(call: Call) -> tuple[int, ...]:
    """Return the rows of each weight."""
    return tuple(call.inputs[i].shape[0] for i in _product(call).weights)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    product = _product(call)
    if call.variant in gemv_mixed.VARIANTS:
        return (gemv_mixed.dispatch(call, product),)
    if tile_of(call):
        return quant_gemm(call, product.weights, gate=product.gate, stacked=product.stacked)
    if product.stacked and rows_of(call) > MAX_GEMV_ROWS:
        raise UnsupportedOp("stacked products of many rows need float16")
    return lower_merged(call, product)


def _int8_bytes(k: int, rows: int) -> int:
    """Return the bytes of shared memory of a workgroup that quantizes so many rows."""
    return rows * (k // RUN) * (32 + 4 + 8) + LANES * (16 + 4 + 4)


def _rows_at_a_time(call: Call, int8: bool) -> int:
    """Return the rows of a workgroup."""
    rows, limits = rows_of(call), call.limits
    most = MAX_MERGED_ROWS[limits.few_registers]
    count = min(rows_at_a_time(rows, str(call.attrs["format"]), limits), most)
    while int8 and count > 1 and _int8_bytes(call.inputs[0].shape[-1], count) > limits.shared_bytes:
        count //= 2
    return count


def lower_merged(call: Call, product: gemv_mixed.Product) -> tuple[Dispatch, ...]:
    """Return the dispatches of merged products of few rows in float32 or in int8."""
    limits, normed, rope = call.limits, product.scale is not None, product.rope
    k, n, tables = call.inputs[0].shape[-1], product.size(call), rope.tables if rope else ()
    buffers = MERGED_BUFFERS + len(tables)
    if limits.storage_buffers < buffers:
        raise UnsupportedOp(
            f"merged weights need a kernel with {buffers} buffers, the device allows "
            f"{limits.storage_buffers}"
        )
    if limits.software and k > LOOP_STEPS * RUN:
        raise UnsupportedOp(f"rows of {k} values are too long for a CPU driver")
    if not call.output.size:
        return ()
    own = product.weights
    weights = tuple(own[min(i, len(own) - 1)] for i in range(MAX_WEIGHTS))
    ends = tuple(accumulate(call.inputs[i].shape[0] for i in weights[: MAX_WEIGHTS - 1]))
    kind, m = format_of(call.attrs["format"]), rows_of(call)
    int8 = quantizes_x(call.attrs) and has_int8_kernel(limits, kind.name, k)
    rows = _rows_at_a_time(call, int8)
    push: tuple[tuple[str, int | float | tuple[int, ...]], ...] = (
        *(("m", m), ("n", n), ("k", k), ("ends", ends)),
        *(("b_column", kind.row_words(k)), ("eps", product.eps), *(rope.push if rope else ())),
    )
    fixed: tuple[tuple[str, int], ...] = (
        *(("LOCAL_X", GEMV_LOCAL[0]), ("LOCAL_Y", GEMV_LOCAL[1]), ("NORMED", int(normed))),
        *(("GATE", product.gate), ("WEIGHTS", len(own)), ("ROWS", rows)),
        *(("STACKED", int(product.stacked and m > 1)), *(rope.constants if rope else ())),
    )
    shader = "quant_gemv_merged_rope" if rope else "quant_gemv_merged"
    if int8:
        shader, fixed = f"{shader}_int8", (*fixed, ("RUNS", k // RUN))
    groups = min(n // COLUMNS, limits.max_groups[0]), min(-(-m // rows), limits.max_groups[1]), 1
    operands = (0, int(normed), *weights, *tables, OUTPUT)
    return (Dispatch(f"{shader}_{kind.name.lower()}", operands, groups, push, fixed),)


def merged_shaders(name: str) -> tuple[str, ...]:
    """Return the names of a shader for each format, in float32 and in int8."""
    return tuple(f"{name}_{way}" for way in map(str.lower, FORMATS)) + tuple(
        f"{name}_int8_{way}" for way in map(str.lower, WITH_DOT)
    )


register(
    with_epilogue(
        with_fp16_result(
            Op(
                NAME,
                _infer,
                _reference,
                Kernel(
                    (
                        *merged_shaders("quant_gemv_merged"),
                        *gemv_mixed.SHADERS,
                        *QUANT_GEMM_SHADERS,
                        *tiled.TILED_SHADERS,
                    ),
                    _lower,
                    lambda call: quant_gemm_scratch(call, _sizes(call)),
                    variants=_variants,
                    takes_fp16=quant_gemm_takes_fp16,
                    counters=lambda call: quant_gemm_counters(call, _sizes(call)),
                ),
                attrs={
                    "format": FORMAT,
                    "normed": Flag(),
                    "gate": one_of(*GATES),
                    "eps": Float(0.0),
                    PRECISION: Optional(OneOf(PRECISIONS)),
                    "stacked": Optional(Flag()),
                },
                operands=(2, 2 + MAX_WEIGHTS),
                work=_work,
                float32_result=True,
                cpu=CpuKernel(_cpu, _cut),
            )
        )
    )
)
no_gradient("is created by a pass from ops with gradients", NAME)
