"""Counter-based random values: value i of a stream depends on the seed, the stream and i only.

    word i = Philox 4x32-10(counter = (i / 4, 0, stream), key = seed)[i % 4]

Values are bit-identical on all devices and in numpy. With a tensor as seed, each run of a compiled
graph can draw new values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from statistics import NormalDist

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOATS,
    INT32,
    UINT32,
    NDArray,
    TensorType,
    as_float,
    as_shape,
    canonical_dtype,
)
from ...common.errors import DTypeError, ShapeError
from ...ir.attr_domains import Dims, Domains, Float, Int, dtype_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, constant
from ...ir.vjp import no_gradient
from ..elementwise import where
from ..elementwise.fp16 import computed_wide
from ..lowering.strides import spread

RANDOM_CODES = {"random_uniform": 0, "random_integers": 1, "bernoulli": 2}
"""Values of KIND in shaders/creation/random.comp."""
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
OCTAVES, PIECES = 32, 8
"""The normal quantile is approximated by cubics, in 8 pieces for each of 32 octaves of the tail."""
_UNIT = np.float32(2.0**-24)


def philox(counters: NDArray, key: tuple[int, int]) -> NDArray:
    """Return four random words per counter: (n, 4) uint32 -> (n, 4) uint32.

    Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    x0, x1, x2, x3 = (counters[:, i].astype(np.uint64) for i in range(4))
    low, high, mask = key[0], key[1], np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for _ in range(_ROUNDS):
        first, second = x0 * np.uint64(_MULTIPLIERS[0]), x2 * np.uint64(_MULTIPLIERS[1])
        x0, x1, x2, x3 = (
            (second >> shift) ^ x1 ^ np.uint64(low),
            second & mask,
            (first >> shift) ^ x3 ^ np.uint64(high),
            first & mask,
        )
        low, high = (low + _WEYL[0]) & 0xFFFFFFFF, (high + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([x0, x1, x2, x3], 1).astype(np.uint32)


def _words(seed: NDArray, attrs: Attrs) -> NDArray:
    """Return the random words of a call, one per value."""
    count = math.prod(attrs.as_ints("shape"))
    words = [int(v) for v in seed.reshape(-1)]
    # one word is extended to a 64-bit int
    number = words[0] if len(words) == 1 else (words[0] & 0xFFFFFFFF) | words[1] << 32
    stream = attrs.as_int("stream")
    counters = np.zeros((-(-count // 4), 4), np.uint32)
    counters[:, 0] = np.arange(len(counters))
    counters[:, 2:] = stream & 0xFFFFFFFF, stream >> 32
    return philox(counters, (number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF)).reshape(-1)[:count]


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(40.0 * output.size, float(output.device_bytes))


def _check_seed(op: str, seed: TensorType) -> None:
    if seed.dtype != INT32:
        raise DTypeError(f"[{op}] expected an int32 seed, got {seed.dtype}; try vs.cast")
    if seed.size not in (1, 2):
        raise ShapeError(f"[{op}] expected a seed of one or two elements, got {seed.shape}")


def _common(call: Call) -> tuple[tuple[int, int, int], tuple[tuple[str, int], ...]]:
    """Return groups and the push constants that all generators share."""
    stream = call.attrs.as_int("stream")
    groups = spread(-(-call.output.size // 4), call.limits)
    return groups, (
        ("count", call.output.size),
        ("stream_low", stream & 0xFFFFFFFF),
        ("stream_high", stream >> 32),
    )


# -- uniform, integers, bernoulli ---------------------------------------------------------------


def _infer(op: str, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    _check_seed(op, inputs[0])
    if op == "random_integers":
        start, scale = attrs.as_int("start"), attrs.as_int("scale")
        held = np.iinfo(attrs.as_str("dtype"))
        if not held.min <= start <= start + scale - 1 <= held.max:
            raise ShapeError(
                f"[{op}] expected integers that {held.dtype} holds, got {start} to "
                f"{start + scale - 1}"
            )
    return TensorType(attrs.as_ints("shape"), attrs.as_str("dtype"))


def _shaped(values: NDArray, attrs: Attrs) -> NDArray:
    return np.asarray(values, attrs.as_str("dtype")).reshape(attrs.as_ints("shape"))


def _uniform_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    scale, start = np.float32(attrs.as_float("scale")), np.float32(attrs.as_float("start"))
    unit = (_words(inputs[0], attrs) >> np.uint32(8)).astype(np.float32) * _UNIT
    return _shaped(unit * scale + start, attrs)


def _integers_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    scale, start = attrs.as_int("scale"), attrs.as_int("start")
    steps = _words(inputs[0], attrs).astype(np.uint64) * np.uint64(scale) >> np.uint64(32)
    return _shaped(steps.astype(np.int64) + start, attrs)


def _coins_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    coins = (_words(inputs[0], attrs) >> np.uint32(8)) < attrs.as_int("scale")
    return _shaped(coins, attrs)


def _float_words(call: Call) -> tuple[int, int]:
    """Return scale and start as the bits of float32."""
    scale, start = call.attrs.as_float("scale"), call.attrs.as_float("start")
    return int(np.float32(scale).view(np.uint32)), int(np.float32(start).view(np.uint32))


def _int_words(call: Call) -> tuple[int, int]:
    """Return scale and start as words."""
    return call.attrs.as_int("scale") & 0xFFFFFFFF, call.attrs.as_int("start") & 0xFFFFFFFF


def _lower(kind: int, words: Callable[[Call], tuple[int, int]], call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    groups, push = _common(call)
    scale, start = words(call)
    constants = (("KIND", kind), ("SEED_WORDS", call.inputs[0].size))
    push = (*push, ("scale", scale), ("start", start))
    return (Dispatch("random", (0, OUTPUT), groups, push, constants),)


def _register(
    op: str,
    reference: Callable[[tuple[NDArray, ...], Attrs], NDArray],
    words: Callable[[Call], tuple[int, int]],
    attrs: Domains,
) -> None:
    lower = partial(_lower, RANDOM_CODES[op], words)
    kernel = Kernel(("random",), lower)
    infer = partial(_infer, op)
    register(
        Op(
            op,
            infer,
            reference,
            kernel,
            attrs={"shape": Dims(), "stream": _STREAM, **attrs},
            operands=(1, 1),
            work=_work,
            indices=(0,),
            any_dtype=True,
        )
    )


_STREAM = Int(0, 2**64 - 1)
_FLOATS = dtype_of(FLOAT16, FLOAT32)
_register(
    *("random_uniform", _uniform_reference, _float_words),
    {"start": Float(), "scale": Float(), "dtype": _FLOATS},
)
_register(
    *("random_integers", _integers_reference, _int_words),
    {"start": Int(), "scale": Int(1, 2**32), "dtype": dtype_of(INT32, UINT32)},
)
_register(
    *("bernoulli", _coins_reference, _int_words),
    {"start": Int(0, 0), "scale": Int(0, 2**24), "dtype": dtype_of(BOOL)},
)


# -- normal ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def normal_pieces() -> NDArray:
    """Return the coefficients of the normal quantile's cubics, the constant first: (256, 4).

    Piece 8 o + p covers tails u from (8 + p) 2^(o - 36) to (9 + p) 2^(o - 36). Each cubic
    interpolates the quantile at four Chebyshev points, by Newton's divided differences, expanded in
    t = 0..1.
    """
    points = [0.5 - 0.5 * math.cos(math.pi * (2 * i + 1) / 8) for i in range(4)]
    quantile = NormalDist().inv_cdf
    out = np.empty((OCTAVES * PIECES, 4))
    for octave in range(OCTAVES):
        for piece in range(PIECES):
            unit = 2.0 ** (octave - 36)
            newton = [quantile((PIECES + piece + t) * unit) for t in points]
            for order in range(1, 4):
                for i in range(3, order - 1, -1):
                    newton[i] = (newton[i] - newton[i - 1]) / (points[i] - points[i - order])
            cubic = np.zeros(4)
            for i in range(3, -1, -1):  # cubic = cubic * (t - points[i]) + newton[i]
                cubic = np.append(0.0, cubic[:-1]) - points[i] * cubic
                cubic[0] += newton[i]
            out[octave * PIECES + piece] = cubic
    result = out.astype(np.float32)
    result.flags.writeable = False
    return result


def quantiles(words: NDArray, pieces: NDArray) -> NDArray:
    """Return the normal quantile of random words with the float32 operations of the kernel."""
    tail = words << np.uint32(1) | np.uint32(1)
    octave = np.frexp(tail.astype(np.float64))[1].astype(np.uint32) - np.uint32(1)
    below = tail << (np.uint32(31) - octave) & np.uint32(0x7FFFFFFF)
    rows = pieces.reshape(-1, 4)[octave * np.uint32(PIECES) + (below >> np.uint32(28))]
    t = ((below & np.uint32(0x0FFFFFFF)) >> np.uint32(4)).astype(np.float32) * _UNIT
    value = ((rows[:, 3] * t + rows[:, 2]) * t + rows[:, 1]) * t + rows[:, 0]
    return np.asarray(np.where(words >> np.uint32(31) != 0, value, -value))


def _normal_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    seed, pieces = inputs
    _check_seed("random_normal", seed)
    if pieces != TensorType((OCTAVES * PIECES, 4)):
        raise ShapeError(f"[random_normal] expected the table of pieces, got {pieces}")
    return TensorType(attrs.as_ints("shape"), attrs.as_str("dtype"))


def _normal_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    values = quantiles(_words(inputs[0], attrs), inputs[1])
    deviation, mean = np.float32(attrs.as_float("deviation")), np.float32(attrs.as_float("mean"))
    drawn = values * deviation + mean
    return np.asarray(drawn, attrs.as_str("dtype")).reshape(attrs.as_ints("shape"))


def _normal_lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    groups, push = _common(call)
    constants = (("SEED_WORDS", call.inputs[0].size),)
    shape = tuple((n, call.attrs.as_float(n)) for n in ("deviation", "mean"))
    return (Dispatch("random_normal", (0, 1, OUTPUT), groups, (*push, *shape), constants),)


register(
    Op(
        "random_normal",
        _normal_infer,
        _normal_reference,
        Kernel(("random_normal",), _normal_lower),
        attrs={
            "shape": Dims(),
            "stream": _STREAM,
            "mean": Float(),
            "deviation": Float(0.0),
            "dtype": _FLOATS,
        },
        operands=(2, 2),
        work=_work,
        indices=(0,),
        any_dtype=True,
    )
)
no_gradient("draws by a seed", "random_uniform", "random_normal", "random_integers", "bernoulli")


# -- builders ----------------------------------------------------------------------------------


def _seed(op: str, seed: int | Tensor) -> Tensor:
    """Return a seed as a tensor; an int becomes a constant of two words."""
    if isinstance(seed, Tensor):
        return seed
    number = _whole(op, "seed", seed, -(2**63), 2**64)
    words = np.asarray([number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF], np.uint32)
    return constant(words.view(np.int32))


def _whole(op: str, what: str, value: object, low: int, high: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DTypeError(f"[{op}] expected an integer as {what}, got {value!r}") from None
    if not low <= number < high:
        raise ShapeError(f"[{op}] expected {what} in {low}..{high - 1}, got {number}")
    return number


def _attrs(op: str, shape: int | Sequence[int], stream: int, dtype: object) -> dict[str, AttrValue]:
    return {
        "shape": as_shape(shape),
        "stream": _whole(op, "stream", stream, 0, 2**64),
        "dtype": canonical_dtype(dtype),
    }


def _float_dtype(op: str, dtype: object) -> object:
    if canonical_dtype(dtype) not in (FLOAT16, FLOAT32):
        raise DTypeError(f"[{op}] expected float32 or float16, got {dtype}; try vs.cast")
    return dtype


def _float32(op: str, what: str, value: float) -> float:
    """Return a number rounded to float32."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(as_float(op, what, value)))
    if not math.isfinite(rounded):
        raise ShapeError(f"[{op}] expected a finite float32 as {what}, got {value}")
    return rounded


def random_uniform(
    shape: int | Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int | Tensor,
    stream: int = 0,
    dtype: object = FLOAT32,
    name: str | None = None,
) -> Tensor:
    """Draw uniform floats, as numpy.random.Generator.uniform; float16 is rounded from float32.

    Values are in low..high, with high only due to rounding. seed: a 64-bit int, or an int32 tensor
    with one or two elements. Equal seeds and streams give equal numbers; streams are independent.
    """
    op = "random_uniform"
    attrs = _attrs(op, shape, stream, _float_dtype(op, dtype))
    attrs["start"] = _float32(op, "low", low)
    attrs["scale"] = _float32(op, "high - low", as_float(op, "high", high) - float(low))
    if high < low:
        raise ShapeError(f"[{op}] expected low <= high, got {low} and {high}")
    return apply(op, (_seed(op, seed),), attrs, name)


def random_normal(
    shape: int | Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int | Tensor,
    stream: int = 0,
    dtype: object = FLOAT32,
    name: str | None = None,
) -> Tensor:
    """Draw normally distributed floats, up to 6.3 deviations, as numpy.random.Generator.normal.

    seed: a 64-bit int, or an int32 tensor with one or two elements. Equal seeds and streams give
    equal numbers; streams are independent.
    """
    op = "random_normal"
    attrs = _attrs(op, shape, stream, _float_dtype(op, dtype))
    attrs["mean"], attrs["deviation"] = _float32(op, "mean", mean), _float32(op, "std", std)
    if std < 0:
        raise ShapeError(f"[{op}] expected a std of 0 or more, got {std}")
    return apply(op, (_seed(op, seed), constant(normal_pieces())), attrs, name)


def random_integers(
    shape: int | Sequence[int],
    low: int,
    high: int,
    *,
    seed: int | Tensor,
    stream: int = 0,
    name: str | None = None,
) -> Tensor:
    """Draw uniform int32 in low..high-1, as numpy.random.Generator.integers.

    For n values probabilities deviate by up to n / 2^32, relatively. seed: a 64-bit int, or an
    int32 tensor with one or two elements. Equal seeds and streams give equal numbers; streams are
    independent.
    """
    op = "random_integers"
    attrs = _attrs(op, shape, stream, INT32)
    first = _whole(op, "low", low, -(2**31), 2**31)
    attrs["start"] = first
    attrs["scale"] = _whole(op, "high", high, first + 1, 2**31 + 1) - first
    return apply(op, (_seed(op, seed),), attrs, name)


def random_bits(
    shape: int | Sequence[int],
    *,
    seed: int | Tensor,
    stream: int = 0,
    name: str | None = None,
) -> Tensor:
    """Draw random uint32 words, from which the other functions derive their values.

    seed: a 64-bit int, or an int32 tensor with one or two elements. Equal seeds and streams give
    equal numbers; streams are independent.
    """
    op = "random_integers"
    attrs = {**_attrs(op, shape, stream, UINT32), "start": 0, "scale": 2**32}
    return apply(op, (_seed(op, seed),), attrs, name)


def bernoulli(
    shape: int | Sequence[int],
    p: float = 0.5,
    *,
    seed: int | Tensor,
    stream: int = 0,
    name: str | None = None,
) -> Tensor:
    """Draw True with probability p, to 24 bits, else False.

    seed: a 64-bit int, or an int32 tensor with one or two elements. Equal seeds and streams give
    equal numbers; streams are independent.
    """
    op = "bernoulli"
    attrs = _attrs(op, shape, stream, BOOL)
    p = as_float(op, "probability", p)
    if not 0 <= p <= 1:
        raise ShapeError(f"[{op}] expected a probability in 0..1, got {p}")
    attrs["start"], attrs["scale"] = 0, round(float(p) * 2**24)
    return apply(op, (_seed(op, seed),), attrs, name)


def dropout(
    x: TensorLike,
    p: float = 0.5,
    *,
    seed: int | Tensor,
    stream: int = 0,
    name: str | None = None,
) -> Tensor:
    """Return 0 with probability p, else x / (1 - p), as ONNX Dropout in training mode.

    seed: a 64-bit int, or an int32 tensor with one or two elements. Equal seeds and streams give
    equal masks, so every dropout of a network needs its own seed or stream.
    """
    x = as_tensor(x)
    if x.dtype not in FLOATS:
        raise DTypeError(f"[dropout] expected floats, got {x.dtype}; try vs.cast")
    p = as_float("dropout", "probability", p)
    if not 0 <= p < 1:
        raise ShapeError(f"[dropout] expected a probability of 0 or more, below 1, got {p}")
    mask = bernoulli(x.shape, 1 - p, seed=seed, stream=stream)

    def build(x: Tensor, name: str | None) -> Tensor:
        return where(mask, x * (1 / (1 - p)), as_tensor(0.0, like=x), name=name)

    return computed_wide(build, (x,), name)
