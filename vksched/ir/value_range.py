"""Value ranges of integer tensors, derived from their graph.

A device stores int64 in 32 bits, so an int64 node runs there only if all its values are known to
fit. Each op has one rule; without a rule the range is unknown and int64 stays on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..common.dtypes import BOOL, INT32, INT64, UINT32, NDArray, TensorType
from ..common.errors import DTypeError
from .attrs import Attrs
from .op import Op

Bounds = tuple[int, int]
Known = tuple[Bounds | None, ...]
Rule = Callable[[Known, tuple[TensorType, ...], Attrs], Bounds | None]

INT32_BOUNDS: Bounds = (-(2**31), 2**31 - 1)
INT64_BOUNDS: Bounds = (-(2**63), 2**63 - 1)
OF_DTYPE: dict[str, Bounds] = {BOOL: (0, 1), INT32: INT32_BOUNDS, UINT32: (0, 2**32 - 1)}


def check_bounds(op: str, ends: tuple[object, ...], type_: TensorType) -> None:
    """Raise DTypeError if bounds are not the minimum and maximum of an integer type."""
    match ends:
        case int(low), int(high) if low <= high and type_.dtype in (INT32, UINT32, INT64):
            return
    raise DTypeError(
        f"[{op}] expected bounds (low, high) of an integer {op}, got {ends} for {type_.dtype}"
    )


def bounds_of_data(array: NDArray) -> Bounds | None:
    """Return the bounds of a weight or constant: (0, 0) if it is empty, None for floats."""
    if array.dtype.kind not in "iub":
        return None
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def bounds_of_result(
    op: Op, known: Known, inputs: tuple[TensorType, ...], result: TensorType, attrs: Attrs
) -> Bounds | None:
    """Return the bounds of a result from the bounds of the operands, or None if unknown."""
    widest = INT64_BOUNDS if result.dtype == INT64 else OF_DTYPE.get(result.dtype)
    if widest is None:
        return None
    rule = RULES.get(op.name) or (_moved(op) if op.any_dtype else None)
    found = rule(known, inputs, attrs) if rule is not None else None
    if found is not None and fits(found, widest):
        return found
    return OF_DTYPE.get(result.dtype)  # unknown, or it may overflow


def fits(inner: Bounds | None, outer: Bounds = INT32_BOUNDS) -> bool:
    """Return True if the inner bounds are known and within the outer bounds."""
    return inner is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def _union(ranges: Sequence[Bounds | None]) -> Bounds | None:
    known = [b for b in ranges if b is not None]
    if not known or len(known) != len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _moved(op: Op) -> Rule:
    return lambda known, inputs, attrs: _union(
        [b for i, b in enumerate(known) if i not in op.indices and inputs[i].dtype != BOOL]
        or [b for i, b in enumerate(known) if i not in op.indices]
    )


def _corners(compute: Callable[[int, int], int]) -> Rule:
    """Return the rule of a function that is monotonic in both operands: extremes are at corners."""

    def rule(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
        a, b = known[0], known[1]
        if a is None or b is None:
            return None
        corners = [compute(x, y) for x in a for y in b]
        return min(corners), max(corners)

    return rule


def _each(compute: Callable[[int, int], Bounds]) -> Rule:
    """Return the rule of a function of one operand's bounds."""
    return lambda known, inputs, attrs: compute(*known[0]) if known[0] is not None else None


def _divided(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    if known[0] is None:
        return None
    maximum = max(abs(v) for v in known[0])
    return -maximum, maximum


def _remainder(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    if known[1] is None:
        return None
    maximum = max(abs(v) for v in known[1])
    return -maximum, maximum


def _positions(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds:
    """Return the bounds of indices along an axis, or in the whole tensor."""
    return 0, max(0, inputs[0].size - 1)


def _summed(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    if known[0] is None:
        return None
    axes = attrs.as_tuple("axes") if "axes" in attrs else (attrs["axis"],)
    count = math.prod(inputs[0].shape[a] for a in axes if isinstance(a, int))
    low, high = known[0]
    return min(0, count * low), max(0, count * high)


def _found(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds:
    """Return the bounds of indices along any axis, with the fill value."""
    fill = attrs.as_int("fill_value")
    return min(0, fill), max(fill, *inputs[0].shape, 0)


def _pooled(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    """Return None for windows of padding only, whose result is the minimum integer.

    The minimum differs in 32 bits.
    """
    padded = any((*attrs.as_ints("begin"), *attrs.as_ints("end")))
    return None if padded else known[0]


def _absolute(low: int, high: int) -> Bounds:
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _square(low: int, high: int) -> Bounds:
    minimum, maximum = _absolute(low, high)
    return minimum**2, maximum**2


def _bitwise(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    """Return the range with the bits of the widest operand, signed if one of them is."""
    ends = [v for bounds in known[:2] if bounds is not None for v in bounds]
    if len(ends) < 4:
        return None
    maximum = (1 << max((v if v >= 0 else ~v).bit_length() for v in ends)) - 1
    return (0 if min(ends) >= 0 else -1 - maximum), maximum


def _clipped(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    if known[0] is None:
        return None
    out = list(known[0])
    for key, choose in (("low", max), ("high", min)):
        end = attrs[key]
        out = [choose(v, end) if isinstance(end, int) else v for v in out]
    return out[0], out[1]


def _unchanged(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    return known[0]


def _with_zero(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    return _union([known[0], (0, 0)])


def _scattered(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    """Return the bounds of a scatter: "add" as if all updates hit one element, "mul" None."""
    data, updates = known[0], known[2]
    if data is None or updates is None or attrs["reduction"] == "mul":
        return None
    if attrs["reduction"] != "add":
        return _union([data, updates])
    count = inputs[2].size
    return data[0] + min(0, count * updates[0]), data[1] + max(0, count * updates[1])


def _filled(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    value = attrs["value"]
    return (value, value) if isinstance(value, int) else None


def _counted(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    start, step, count = attrs["start"], attrs["step"], attrs.as_ints("shape")[0]
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    last = start + max(0, count - 1) * step
    return min(start, last), max(start, last)


def _drawn(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds:
    start, count = attrs.as_int("start"), attrs.as_int("scale")
    return start, start + count - 1


def _padded(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    value = attrs["value"]
    return _union((known[0], (value, value))) if isinstance(value, int) else None


def _size(bounds: Bounds) -> int:
    return max(abs(v) for v in bounds)


def _products(known: Known, terms: int) -> Bounds | None:
    """Return the bounds of a sum of `terms` products and a bias."""
    if any(bounds is None for bounds in known):
        return None
    sizes = [_size(bounds) for bounds in known if bounds is not None]
    maximum = terms * sizes[0] * sizes[1] + sum(sizes[2:])
    return -maximum, maximum


def _multiplied(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    return _products(known, inputs[0].shape[-2 if attrs.as_bool("transpose_a") else -1])


def _convolved(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    return _products(known, math.prod(inputs[1].shape[1:]))


def _spread(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    w = inputs[1].shape
    return _products(known, math.prod((w[0], *w[2:])))


def _power(base: Bounds | None, exponent: int) -> Bounds | None:
    """Return the bounds of a power, or None beyond 64 bits."""
    if base is None or exponent * max(_size(base), 2).bit_length() > 4096:
        return None
    maximum = max(1, _size(base)) ** max(0, exponent)
    return (0 if base[0] >= 0 else -maximum), maximum


def _raised(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    return _power(known[0], known[1][1]) if known[1] is not None else None


def _factors(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    axes = attrs.as_tuple("axes") if "axes" in attrs else (attrs["axis"],)
    shape = inputs[0].shape
    return _power(known[0], math.prod(shape[a] for a in axes if isinstance(a, int)))


def _shifted(known: Known, inputs: tuple[TensorType, ...], attrs: Attrs) -> Bounds | None:
    if known[0] is None or known[1] is None:
        return None
    maximum = _size(known[0]) << min(63, max(0, known[1][1]))
    return (0 if known[0][0] >= 0 else -maximum), maximum


RULES: dict[str, Rule] = {
    "matmul": _multiplied,
    "conv": _convolved,
    "conv_transpose": _spread,
    "pow": _raised,
    **dict.fromkeys(("reduce_prod", "cumprod"), _factors),
    "bitwise_left_shift": _shifted,
    "full": _filled,
    "eye": lambda known, inputs, attrs: (0, 1),
    "arange": _counted,
    "random_integers": _drawn,
    "bernoulli": lambda known, inputs, attrs: (0, 1),
    **dict.fromkeys(("triu", "tril"), _with_zero),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    "add": _corners(lambda a, b: a + b),
    "sub": _corners(lambda a, b: a - b),
    "mul": _corners(lambda a, b: a * b),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "div": _divided,
    "floor_divide": _divided,
    "remainder": _remainder,
    "fmod": _divided,
    "square": _each(_square),
    "clip": _clipped,
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), _bitwise),
    "bitwise_invert": _each(lambda low, high: (-1 - high, -1 - low)),
    "bitwise_right_shift": lambda known, inputs, attrs: _union([known[0], (-1, 0)]),
    **dict.fromkeys(("ceil", "floor", "round", "trunc", "positive"), _unchanged),
    "neg": _each(lambda low, high: (-high, -low)),
    "abs": _each(_absolute),
    "relu": _each(lambda low, high: (max(low, 0), max(high, 0))),
    "sign": _each(lambda low, high: (-1, 1)),
    "cast": lambda known, inputs, attrs: known[0],
    "assign": lambda known, inputs, attrs: known[0],
    "optimization_barrier": lambda known, inputs, attrs: known[0],
    "pad": _padded,
    "grid_sample": lambda known, inputs, attrs: _union((known[0], (0, 0))),
    "where": lambda known, inputs, attrs: _union(known[1:]),
    "reduce_sum": _summed,
    "cumsum": _summed,
    "reduce_max": lambda known, inputs, attrs: known[0],
    "reduce_min": lambda known, inputs, attrs: known[0],
    "nonzero": _found,
    "sort": lambda known, inputs, attrs: known[0],
    "max_pool": _pooled,
    "adaptive_max_pool": lambda known, inputs, attrs: known[0],
    "max_pool_indices": lambda known, inputs, attrs: (-1, max(0, inputs[0].size - 1)),
    **dict.fromkeys(("argmax", "argmin", "argsort"), _positions),
}
