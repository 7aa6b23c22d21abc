"""What takes numpy many passes over float32, in one: native/loops/.

Set-up builds it beside Kompute's modules; it needs neither them nor Vulkan. Without it numpy takes
its passes. Examples: tests/ops/native/test_loops.py.
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
"""The module, None where it is not built or does not load."""
with contextlib.suppress(ImportError, OSError):
    native = importlib.import_module("vksched_native.loops")

WORDS_VERSION = 2
"""Of how words hold quantized weights (ops/quantized/quant_layout.py), with that of
native/loops/packed/packed.hpp. Who changes one counts both up.
"""
PROGRAM_VERSION = 3
"""The same of what recipes tell (native_program.py), with that of
native/loops/program/program.cpp.
"""

Into = Callable[[NDArray, NDArray], object]
"""(float32 values, result) -> None, which writes all of the result."""


def one_pass(function: str, passes: Into) -> Into:
    """Returns the native loop of a function, which takes numpy's passes where there is none."""

    def into(x: NDArray, out: NDArray) -> None:
        if _takes(x, out):
            native.run(function, _laid_out(x, out), out)
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
    """Writes layer norm (centered) or RMS norm of rows; returns False where numpy has to."""
    if not _takes(x, out):
        return False
    affine = [None if values is None else _plain(values) for values in (scale, shift)]
    native.norm(_laid_out(x, out), *affine, out, columns, eps, centered)
    return True


def norm_gradient(
    g: NDArray,
    x: NDArray,
    scale: NDArray | None,
    out: NDArray,
    columns: int,
    eps: float,
    centered: bool,
) -> bool:
    """Writes the gradient of such norms by their rows; returns False where numpy has to."""
    operands = (g, x) if scale is None else (g, x, scale)
    if not (_lie_plain(*operands) and _takes(x, out) and g.dtype == np.float32):
        return False
    native.norm_gradient(g, x, scale, out, columns, eps, centered)
    return True


def linear_packed(
    format: str, x: NDArray, words: NDArray, bias: NDArray | None, out: NDArray
) -> bool:
    """Writes x @ values.T (+ bias) of a quantized weight; returns False where numpy has to.

    x: (m, k), words: (n, words of a row), bias: (n,), out: (m, n), of which rows may lie apart.
    """
    if not (has_packed(format) and _lie_plain(words) and x.dtype == out.dtype == np.float32):
        return False
    shift = None if bias is None else _plain(bias)
    native.linear_packed(format, _plain(x), words, shift, out)
    return True


def has_rounded(format: str) -> bool:
    """Whether there are native loops for products of rounded rows and weights of a format."""
    return _knows_words() and format in native.rounded_formats


def rounded_words(columns: int) -> int:
    """Returns how many words a rounded row has."""
    words: int = native.rounded_words(columns)
    return words


def round_rows(format: str, x: NDArray) -> NDArray | None:
    """Returns rows, (m, k), rounded to 8 bits for weights of a format, as words of their own;
    None where numpy has to.
    """
    if not has_rounded(format) or x.dtype != np.float32:
        return None
    made: NDArray = np.empty((len(x), rounded_words(x.shape[1])), np.uint32)
    native.round_rows(format, _plain(x), made)
    return made


def linear_rounded(
    format: str, x: NDArray, words: NDArray, bias: NDArray | None, out: NDArray
) -> bool:
    """Writes the product of rows that are rounded to 8 bits, as `linear_packed`; returns False
    where numpy has to. x: (m, k), or words of `round_rows`.
    """
    if not (has_rounded(format) and _lie_plain(words) and out.dtype == np.float32):
        return False
    rows = x if x.dtype == np.uint32 else round_rows(format, x)
    if rows is None:
        return False
    native.linear_rounded(format, rows, words, None if bias is None else _plain(bias), out)
    return True


Layer = tuple[str, tuple[bool, ...], tuple[tuple[str, ...], ...], float, bool, bool]
"""Of a recurrent layer its kind, for each direction whether it goes back and its activations; clip,
coupled and linear as in `Cell` (vksched/ops/rnn/cell.py).
"""


def recurrent(layer: Layer, operands: Sequence[NDArray | None], out: NDArray) -> bool:
    """Writes all turns of a recurrent layer; returns False where numpy has to.

    operands: gates, r, state, own and lengths, of which the last two may be None; they and out may
    be parts of larger arrays.
    """
    floats = [x for x in (*operands[:4], out) if x is not None]
    if not hasattr(native, "recurrent") or any(x.dtype != np.float32 for x in floats):
        return False
    lengths = operands[4]
    whole = None if lengths is None else np.ascontiguousarray(lengths, np.int64)
    gates, r, *others = operands[:4]
    given = (_forward(gates), _forward(r, whole_rows=False), *map(_forward, others))
    native.recurrent(*layer, *given, whole, out)
    return True


def recurrent_functions() -> tuple[str, ...]:
    """Returns the activations of recurrent layers in programs, by number; none where there are no
    such loops.
    """
    return tuple(getattr(native, "recurrent_functions", ()))


def unpack(format: str, words: NDArray, out: NDArray) -> bool:
    """Writes the values of a quantized weight, (n, k); returns False where numpy has to."""
    if not (has_packed(format) and _lie_plain(words)):
        return False
    native.unpack(format, words, out)
    return True


def repack(format: str, blocks: NDArray, words: NDArray) -> bool:
    """Writes the words of a quantized weight, (n, words of a row), of its blocks, (n, bytes of a
    row); returns False where numpy has to.
    """
    if not (_knows_words() and _lie_plain(blocks, words)):
        return False
    native.repack(format, blocks, words)
    return True


FilePart: TypeAlias = tuple[int, int, str, int, NDArray]
"""The descriptor of a file, the first byte, a format, the bytes of a row, and room for words."""


def has_repack_file() -> bool:
    """Whether `repack_file` and `repacking` are there."""
    return _knows_words() and hasattr(native, "Repacking")


def repack_file(parts: Sequence[FilePart]) -> int:
    """Writes the words of weights of one file, without the interpreter; returns how many parts the
    file had.
    """
    made: int = native.repack_file(parts[0][0], [part[1:] for part in parts]) if parts else 0
    return made


def repacking(parts: Sequence[FilePart]) -> Any:
    """Returns what does the same for parts of several files, in as many threads as call it:
    `work(bytes)` repacks so many and returns whether anything is left to begin; `end()` begins no
    more, waits for others, and returns whether all was there.
    """
    return native.Repacking(parts)


def texts(data: memoryview, at: int, count: int) -> tuple[list[str], int] | None:
    """Returns strings of a file from byte `at` on, each behind its length, fewer where it ends
    before, and the byte behind them; None where Python has to read them.
    """
    found: tuple[list[str], int] | None = None
    if hasattr(native, "texts"):
        found = native.texts(data, at, count)
    return found


def skip_texts(data: memoryview, at: int, count: int) -> tuple[int, int] | None:
    """Returns how many of so many strings a file has from byte `at` on, and the byte behind them;
    None where only `texts` can tell.
    """
    found: tuple[int, int] | None = None
    if hasattr(native, "skip_texts"):
        found = native.skip_texts(data, at, count)
    return found


def matmul_integer(
    a: NDArray, words: NDArray, a_zero: int, b_zero: NDArray, out: NDArray, signed: bool
) -> bool:
    """Writes the product of codes of 8 bits, (m, k), and words of weights, into out (m, n), of
    which rows may lie apart; returns False where numpy has to.
    """
    if not (has_integers() and _lie_plain(words, b_zero)):
        return False
    native.matmul_integer(np.require(a, np.int32, ["C", "A"]), words, a_zero, b_zero, out, signed)
    return True


def conv_integer(
    x: NDArray,
    words: NDArray,
    x_zero: int,
    w_zero: NDArray,
    out: NDArray,
    window: tuple[tuple[int, ...], ...],
    signed: bool,
) -> bool:
    """Writes the convolution of an image of codes of 8 bits, (channels, places), and words of
    weights, into out (channels, places); returns False where numpy has to.

    window: sizes, kernel, stride, dilation, begin and counts of three axes each.
    """
    if not (has_integers() and x.size and _lie_plain(words, w_zero)):
        return False
    x = np.require(x, np.int32, ["C", "A"])
    native.conv_integer(x, words, x_zero, w_zero, out, *window, signed)
    return True


def quantize(
    x: NDArray,
    scale: NDArray,
    zero: NDArray,
    out: NDArray,
    limits: tuple[int, int],
    inner: int,
) -> bool:
    """Writes clip(round(x / scale) + zero); returns False where numpy has to. inner: values that
    lie beside each other in one channel, which has a scale and zero point of its own.
    """
    if not (has_integers() and _lie_plain(x, scale, zero, out)):
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
    """Writes clip(round((x + bias) * scale) + zero); as `quantize`."""
    if not (has_integers() and _lie_plain(x, scale, bias, out)):
        return False
    native.requantize(x, bias, scale, out, zero, *limits, inner)
    return True


def has_integers() -> bool:
    """Whether there are native loops for codes of 8 bits."""
    return hasattr(native, "integer_ways")


def conv_functions() -> frozenset[str]:
    """Returns the elementwise ops that loops take behind a convolution; none where there are no
    loops for it.
    """
    return frozenset(getattr(native, "conv_functions", ()))


def conv(
    x: NDArray,
    w: NDArray,
    bias: NDArray | None,
    residual: NDArray | None,
    out: NDArray,
    sliding: Any,
    steps: Any,
) -> bool:
    """Writes a convolution and what follows it; returns False where numpy has to.

    sliding, steps: native.Sliding and native.Steps. residual: as the result.
    """
    operands = [given for given in (x, w, bias, residual) if given is not None]
    if not (_takes(x, out) and all(g.dtype == np.float32 and g.size for g in operands)):
        return False
    given = [None if values is None else _plain(values) for values in (bias, residual)]
    weights = w if w.flags.c_contiguous else _plain(w)  # they may lie at any byte
    native.conv(_plain(x), weights, *given, out, sliding, steps)
    return True


def pool(
    kind: str,
    x: NDArray,
    out: NDArray,
    kernel: Sequence[int],
    sliding: Callable[[], Any],
    counts: Sequence[Sequence[float]],
) -> bool:
    """Writes the largest values ("max") or means of windows; returns False where numpy has to.

    sliding: makes native.Sliding. counts: of a mean, for each axis the places that its windows
    count.
    """
    if not (conv_functions() and _takes(x, out) and x.size):
        return False
    native.pool(kind, _plain(x), out, kernel, sliding(), counts)
    return True


def resample(x: NDArray, indices: NDArray, weights: NDArray, out: NDArray, axis: int) -> bool:
    """Writes weighted sums of a few elements along an axis; returns False where numpy has to."""
    ready = hasattr(native, "resample") and _takes(x, out) and x.size and out.size
    if not (ready and weights.dtype == np.float32 and indices.dtype == np.int32):
        return False
    inner = math.prod(x.shape[axis + 1 :])
    at = np.require(indices, np.int32, ["C", "A"])
    native.resample(_plain(x), at, _plain(weights), out, x.shape[axis], inner)
    return True


def has_packed(format: str) -> bool:
    """Whether there are native loops for weights of a format."""
    return _knows_words() and format in native.packed_formats


def has_programs() -> bool:
    """Whether there are native programs that are told what recipes tell (native_program.py); those
    of other modules than set-up builds from these sources may not be.
    """
    return getattr(native, "program_version", 0) == PROGRAM_VERSION


def about() -> str:
    """Returns which loops there are, for people; "" where there are none."""
    if native is None:
        return ""
    current = has_programs() and _knows_words()
    return "native loops" if current else "native loops of another version"


def _knows_words() -> bool:
    """The same of words as they are laid out here."""
    return getattr(native, "words_version", 0) == WORDS_VERSION


def _takes(x: NDArray, out: NDArray) -> bool:
    return native is not None and _lie_plain(out) and x.dtype == out.dtype == np.float32


def _forward(x: NDArray | None, whole_rows: bool = True) -> NDArray | None:
    """Returns an array whose elements follow each other along each axis, with gaps where views have
    them; rows of the last axis have none, unless they may.
    """
    if x is None:
        return None
    ahead = x.flags.aligned and min(x.strides, default=0) >= 0
    if ahead and (not whole_rows or x.shape[-1] < 2 or x.strides[-1] == x.itemsize):
        return x
    return np.require(x, None, ["C", "A"])


def _lie_plain(*arrays: NDArray) -> bool:
    for array in arrays:
        if not (array.flags.c_contiguous and array.flags.aligned):
            return False
    return True


def _plain(x: NDArray) -> NDArray:
    """Returns values as loops read them: files may hold them at any byte."""
    if x.dtype == np.float32 and _lie_plain(x):
        return x
    return np.require(x, np.float32, ["C", "A"])


def _laid_out(x: NDArray, out: NDArray) -> NDArray:
    """Returns an operand as loops read it: where it lies anyhow, its copy in the result."""
    if _lie_plain(x):
        return x
    np.copyto(out, x)
    return out
