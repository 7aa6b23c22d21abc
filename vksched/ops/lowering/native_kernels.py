"""Native CPU kernels (native/cpu_kernels/): one pass for ops that take numpy many passes.

The setup builds this module with those of Kompute; it depends neither on them nor on Vulkan.
Without it numpy computes the ops. Functions return False if they do not support a call. Examples:
tests/ops/native/test_loops.py.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...common.dtypes import NDArray

native: Any = None
"""The module, or None if it is not built or does not load."""
with contextlib.suppress(ImportError, OSError):
    native = importlib.import_module("vksched_native.cpu_kernels")

QUANT_LAYOUT_VERSION = 2
"""Version of the layout of quantized weights (ops/quantized/quant_layout.py); equal to the version
in native/cpu_kernels/quantized/quant_matmul.hpp. Increase both if the layout changes.
"""
PROGRAM_VERSION = 6
"""Version of the loops of native programs and of their parameters; equal to the version in
native/cpu_kernels/program/program.cpp.
"""

Into = Callable[[NDArray, NDArray], object]
"""(float32 values, result) -> None; writes all of the result."""


def one_pass(function: str, passes: Into) -> Into:
    """Return a function that calls a unary native kernel, or `passes` if there is none."""

    def into(x: NDArray, out: NDArray) -> None:
        if _supports(x, out):
            native.unary(function, _contiguous_or_copied(x, out), out)
        else:
            passes(x, out)

    return into


def norm(
    x: NDArray,
    scale: NDArray | None,
    shift: NDArray | None,
    out: NDArray,
    columns: int,
    eps: float,
    centered: bool,
) -> bool:
    """Compute layer norm (centered) or RMS norm of rows."""
    if not _supports(x, out):
        return False
    affine = [None if values is None else _contiguous(values) for values in (scale, shift)]
    native.norm(_contiguous_or_copied(x, out), *affine, out, columns, eps, centered)
    return True


def layer_norm_backward(
    g: NDArray,
    x: NDArray,
    scale: NDArray | None,
    out: NDArray,
    columns: int,
    eps: float,
    centered: bool,
) -> bool:
    """Compute the gradient of x of a layer norm (centered) or RMS norm."""
    operands = (g, x) if scale is None else (g, x, scale)
    if not (_are_contiguous(*operands) and _supports(x, out) and g.dtype == np.float32):
        return False
    native.layer_norm_backward(g, x, scale, out, columns, eps, centered)
    return True


def quantized_linear(
    format: str, x: NDArray, words: NDArray, bias: NDArray | None, out: NDArray
) -> bool:
    """Compute x @ w.T (+ bias) with a quantized weight.

    Shapes
    ------
    x
        (m, k)
    words
        (n, words of a row)
    bias
        (n,)
    out
        (m, n), whose rows may have a stride.
    """
    if not (
        has_quantized(format) and _are_contiguous(words) and x.dtype == out.dtype == np.float32
    ):
        return False
    shift = None if bias is None else _contiguous(bias)
    native.quantized_linear(format, _contiguous(x), words, shift, out)
    return True


def has_q8(format: str) -> bool:
    """Return True if a format has native kernels for Q8 activations."""
    return _has_current_layout() and format in native.q8_formats


def q8_row_words(columns: int) -> int:
    """Return the number of words of a row that is quantized to Q8."""
    words: int = native.q8_row_words(columns)
    return words


def quantize_rows_q8(format: str, x: NDArray) -> NDArray | None:
    """Return rows, (m, k), quantized to Q8 for weights of a format, or None if unsupported."""
    if not has_q8(format) or x.dtype != np.float32:
        return None
    words: NDArray = np.empty((len(x), q8_row_words(x.shape[1])), np.uint32)
    native.quantize_rows_q8(format, _contiguous(x), words)
    return words


def quantized_linear_q8(
    format: str, x: NDArray, words: NDArray, bias: NDArray | None, out: NDArray
) -> bool:
    """Compute `quantized_linear` with Q8 activations.

    x: (m, k), or a result of `quantize_rows_q8`.
    """
    if not (has_q8(format) and _are_contiguous(words) and out.dtype == np.float32):
        return False
    rows = x if x.dtype == np.uint32 else quantize_rows_q8(format, x)
    if rows is None:
        return False
    native.quantized_linear_q8(
        format, rows, words, None if bias is None else _contiguous(bias), out
    )
    return True


Layer = tuple[str, tuple[bool, ...], tuple[tuple[str, ...], ...], float, bool, bool]
"""A recurrent layer: its kind, whether each direction is reversed, the activations of each
direction; clip, coupled and linear as in `Cell` (vksched/ops/rnn/cell.py).
"""


def rnn_scan(layer: Layer, operands: Sequence[NDArray | None], out: NDArray) -> bool:
    """Compute all time steps of a recurrent layer.

    Parameters
    ----------
    operands
        Gates, r, state, own and lengths; the last two may be None. Operands and out may be views of
        larger arrays.
    """
    floats = [x for x in (*operands[:4], out) if x is not None]
    if not hasattr(native, "rnn_scan") or any(x.dtype != np.float32 for x in floats):
        return False
    lengths = operands[4]
    whole = None if lengths is None else np.ascontiguousarray(lengths, np.int64)
    gates, r, *others = operands[:4]
    arrays = (
        _non_negative_strides(gates),
        _non_negative_strides(r, contiguous_rows=False),
        *map(_non_negative_strides, others),
    )
    native.rnn_scan(*layer, *arrays, whole, out)
    return True


def rnn_functions() -> tuple[str, ...]:
    """Return the activations of recurrent layers by index; empty without native kernels."""
    return tuple(getattr(native, "rnn_functions", ()))


def dequantize(format: str, words: NDArray, out: NDArray) -> bool:
    """Dequantize a weight: write its values, (n, k)."""
    if not (has_quantized(format) and _are_contiguous(words)):
        return False
    native.dequantize(format, words, out)
    return True


def repack(format: str, blocks: NDArray, words: NDArray) -> bool:
    """Repack the GGUF blocks of a weight, (n, bytes of a row), into words, (n, words of a row)."""
    if not (_has_current_layout() and _are_contiguous(blocks, words)):
        return False
    native.repack(format, blocks, words)
    return True


FilePart: TypeAlias = tuple[int, int, str, int, NDArray]
"""File descriptor, offset, format, bytes of a row, and the array for the words."""


def has_repack_file() -> bool:
    """Return True if `repack_file` and `repack_job` are available."""
    return _has_current_layout() and hasattr(native, "RepackJob")


def repack_file(parts: Sequence[FilePart]) -> int:
    """Repack weights of one file without the interpreter lock; return the number of parts read."""
    count: int = native.repack_file(parts[0][0], [part[1:] for part in parts]) if parts else 0
    return count


def repack_job(parts: Sequence[FilePart]) -> Any:
    """Return a job that repacks parts of several files in all threads that call it.

    `work(bytes)` repacks up to this size and returns True if parts remain. `end()` starts no more
    parts, waits for other threads, and returns True if all parts were complete.
    """
    return native.RepackJob(parts)


def gguf_strings(data: memoryview, at: int, count: int) -> tuple[list[str], int] | None:
    """Return up to `count` strings of a GGUF file from byte `at` on, and the offset after them.

    None if Python must read them. Fewer strings are returned if the file is truncated.
    """
    result: tuple[list[str], int] | None = None
    if hasattr(native, "gguf_strings"):
        result = native.gguf_strings(data, at, count)
    return result


def skip_gguf_strings(data: memoryview, at: int, count: int) -> tuple[int, int] | None:
    """Return the number of strings, up to `count`, from byte `at` on, and the offset after them.

    None if only `gguf_strings` is available.
    """
    result: tuple[int, int] | None = None
    if hasattr(native, "skip_gguf_strings"):
        result = native.skip_gguf_strings(data, at, count)
    return result


def int8_matmul(
    a: NDArray, words: NDArray, a_zero: int, b_zero: NDArray, out: NDArray, signed: bool
) -> bool:
    """Compute an int8 matmul with packed weights.

    a: (m, k), out: (m, n), whose rows may have a stride.
    """
    if not (has_int8() and _are_contiguous(words, b_zero)):
        return False
    native.int8_matmul(np.require(a, np.int32, ["C", "A"]), words, a_zero, b_zero, out, signed)
    return True


def int8_conv(
    x: NDArray,
    words: NDArray,
    x_zero: int,
    w_zero: NDArray,
    out: NDArray,
    window: tuple[tuple[int, ...], ...],
    signed: bool,
) -> bool:
    """Compute an int8 convolution of one image with packed weights.

    Parameters
    ----------
    x, out
        (channels, positions).
    window
        Sizes, kernel, stride, dilation, pad_begin and output sizes, for three axes each.
    """
    if not (has_int8() and x.size and _are_contiguous(words, w_zero)):
        return False
    x = np.require(x, np.int32, ["C", "A"])
    native.int8_conv(x, words, x_zero, w_zero, out, *window, signed)
    return True


def quantize(
    x: NDArray,
    scale: NDArray,
    zero: NDArray,
    out: NDArray,
    limits: tuple[int, int],
    inner: int,
) -> bool:
    """Compute clip(round(x / scale) + zero). inner: number of adjacent values of a channel."""
    if not (has_int8() and _are_contiguous(x, scale, zero, out)):
        return False
    native.quantize(x, scale, zero, out, *limits, inner)
    return True


def requantize(
    x: NDArray,
    scale: NDArray,
    bias: NDArray,
    out: NDArray,
    zero: int,
    limits: tuple[int, int],
    inner: int,
) -> bool:
    """Compute clip(round((x + bias) * scale) + zero), as `quantize`."""
    if not (has_int8() and _are_contiguous(x, scale, bias, out)):
        return False
    native.requantize(x, bias, scale, out, zero, *limits, inner)
    return True


def has_int8() -> bool:
    """Return True if there are native int8 kernels."""
    return hasattr(native, "int8_targets")


def conv_epilogue_ops() -> frozenset[str]:
    """Return the elementwise ops that a convolution supports as epilogue."""
    return frozenset(getattr(native, "conv_epilogue_ops", ()))


def conv(
    x: NDArray,
    w: NDArray,
    bias: NDArray | None,
    residual: NDArray | None,
    out: NDArray,
    sliding: Any,
    steps: Any,
) -> bool:
    """Compute a convolution with its epilogue.

    Parameters
    ----------
    residual
        Array with the shape of the result, or None.
    sliding, steps
        native.SlidingWindow and native.FusedProgram.
    """
    operands = [t for t in (x, w, bias, residual) if t is not None]
    if not (_supports(x, out) and all(g.dtype == np.float32 and g.size for g in operands)):
        return False
    epilogue_operands = [
        None if values is None else _contiguous(values) for values in (bias, residual)
    ]
    # the kernel accepts unaligned weights
    weights = w if w.flags.c_contiguous else _contiguous(w)
    native.conv(_contiguous(x), weights, *epilogue_operands, out, sliding, steps)
    return True


def pool(
    kind: str,
    x: NDArray,
    out: NDArray,
    kernel: Sequence[int],
    sliding: Callable[[], Any],
    counts: Sequence[Sequence[float]],
) -> bool:
    """Compute max or mean pooling.

    Parameters
    ----------
    sliding
        Function that creates native.SlidingWindow.
    counts
        Divisors of a mean, for each axis.
    """
    if not (conv_epilogue_ops() and _supports(x, out) and x.size):
        return False
    native.pool(kind, _contiguous(x), out, kernel, sliding(), counts)
    return True


def resample(x: NDArray, indices: NDArray, weights: NDArray, out: NDArray, axis: int) -> bool:
    """Compute weighted sums of a few elements along an axis."""
    ready = hasattr(native, "resample") and _supports(x, out) and x.size and out.size
    if not (ready and weights.dtype == np.float32 and indices.dtype == np.int32):
        return False
    inner = math.prod(x.shape[axis + 1 :])
    at = np.require(indices, np.int32, ["C", "A"])
    native.resample(_contiguous(x), at, _contiguous(weights), out, x.shape[axis], inner)
    return True


def has_quantized(format: str) -> bool:
    """Return True if a format of quantized weights has native kernels."""
    return _has_current_layout() and format in native.quant_formats


def has_vectors() -> bool:
    """Return True if the compiler of the module had vector types; some loops need them."""
    return bool(getattr(native, "has_vector_extensions", False))


def has_programs() -> bool:
    """Return True if native programs of this version are available."""
    return getattr(native, "program_version", 0) == PROGRAM_VERSION


def about() -> str:
    """Describe the available kernels; "" without the module."""
    if native is None:
        return ""
    current = has_programs() and _has_current_layout()
    return "native loops" if current else "native loops of another version"


def _has_current_layout() -> bool:
    """Return True if the module uses QUANT_LAYOUT_VERSION."""
    return getattr(native, "quant_layout_version", 0) == QUANT_LAYOUT_VERSION


def _supports(x: NDArray, out: NDArray) -> bool:
    return native is not None and _are_contiguous(out) and x.dtype == out.dtype == np.float32


def _non_negative_strides(x: NDArray | None, contiguous_rows: bool = True) -> NDArray | None:
    """Return an aligned array with non-negative strides: x itself, or a copy.

    contiguous_rows: require a contiguous last axis.
    """
    if x is None:
        return None
    ahead = x.flags.aligned and min(x.strides, default=0) >= 0
    if ahead and (not contiguous_rows or x.shape[-1] < 2 or x.strides[-1] == x.itemsize):
        return x
    return np.require(x, None, ["C", "A"])


def _are_contiguous(*arrays: NDArray) -> bool:
    for array in arrays:
        if not (array.flags.c_contiguous and array.flags.aligned):
            return False
    return True


def _contiguous(x: NDArray) -> NDArray:
    """Return contiguous, aligned float32: values mapped from a file may be unaligned."""
    if x.dtype == np.float32 and _are_contiguous(x):
        return x
    return np.require(x, np.float32, ["C", "A"])


def _contiguous_or_copied(x: NDArray, out: NDArray) -> NDArray:
    """Return a contiguous operand: x itself, or its copy in the result."""
    if _are_contiguous(x):
        return x
    np.copyto(out, x)
    return out
