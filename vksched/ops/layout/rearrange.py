"""Rearranging ops: flip, roll, tile, repeat, triangles, split, stack and moves of axes.

Most are compositions of views, slices, transposes and expansions. All need at most one pass over
large data, except a tile along more than three axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ...common.dtypes import (
    MAX_ELEMENTS,
    NDArray,
    TensorType,
    as_int,
    as_ints,
    check_constant_size,
    contiguous_strides,
    normalize_axes,
    normalize_axis,
)
from ...common.errors import ShapeError
from ...ir.attr_domains import Axes, Int, as_many_as, wholes
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..lowering.strides import as_u32, spread
from .index import gather
from .reshape import concat, expand, expand_dims, reshape, slice_, transpose
from .strided_copy import COPIES, copy_strided

MAX_DIAGONAL = 1 << 29
"""Limit of a diagonal's number, beyond all diagonals of matrices on devices."""


def _copy_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, 2.0 * output.device_bytes)


# -- roll --------------------------------------------------------------------------------------


def _roll_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    (x,), axes, shifts = inputs, attrs.as_ints("axes"), attrs.as_ints("shifts")
    if any(by >= max(1, x.shape[axis]) for axis, by in zip(axes, shifts, strict=True)):
        raise ShapeError(
            f"[roll] expected shifts below the sizes of axes {axes} of {x.shape}, got {shifts}"
        )
    return x


def _roll_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    axes = attrs.as_ints("axes")
    return np.roll(inputs[0], attrs.as_ints("shifts"), axes) if axes else inputs[0]


def _roll_lower(call: Call) -> tuple[Dispatch, ...]:
    """Lower a roll: each rolled axis swaps two parts, and every combination is one copy."""
    shape = call.output.shape
    strides = contiguous_strides(shape)
    parts: list[list[tuple[int, int, int]]] = [[(0, 0, size)] for size in shape]
    for axis, shift in zip(call.attrs.as_ints("axes"), call.attrs.as_ints("shifts"), strict=True):
        size = shape[axis]
        parts[axis] = [(0, shift, size - shift), (size - shift, 0, shift)]
    out: list[Dispatch] = []
    for part in itertools.product(*parts):
        sizes = tuple(size for _, _, size in part)
        source = sum(p[0] * s for p, s in zip(part, strides, strict=True))
        target = sum(p[1] * s for p, s in zip(part, strides, strict=True))
        out += copy_strided(call, sizes, 0, (source, strides), (target, strides))
    return tuple(out)


def _roll_words(call: Call) -> Call | None:
    return as_u32(call, call.output.rank - 1 not in call.attrs.as_ints("axes"))


register(
    Op(
        "roll",
        _roll_infer,
        _roll_reference,
        Kernel(COPIES, _roll_lower, as_u32=_roll_words),
        view=lambda inputs, attrs: None if attrs.as_ints("axes") else 0,
        attrs={"axes": Axes(), "shifts": wholes(0, MAX_ELEMENTS, as_many_as("axes"))},
        operands=(1, 1),
        work=_copy_work,
        any_dtype=True,
    )
)


def roll(
    x: TensorLike,
    shift: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
    *,
    name: str | None = None,
) -> Tensor:
    """Shift elements along axes with wraparound, as numpy.roll.

    Without an axis the flattened x is shifted.
    """
    x = as_tensor(x)
    if axis is None:
        return reshape(roll(flatten(x), shift, 0), x.shape, name=name)
    shifts, axes = as_ints("roll", "shift", shift), as_ints("roll", "axis", axis)
    if 1 in (len(shifts), len(axes)):
        shifts, axes = shifts * len(axes), axes * len(shifts)
    if len(shifts) != len(axes):
        raise ShapeError(f"[roll] expected a shift for each of the axes {axes}, got {shifts}")
    total: dict[int, int] = {}
    for one, by in zip(axes, shifts, strict=True):
        at = normalize_axis("roll", one, x.rank)
        total[at] = (total.get(at, 0) + by) % max(1, x.shape[at])
    moved = {a: by for a, by in sorted(total.items()) if by}
    return apply("roll", (x,), {"axes": tuple(moved), "shifts": tuple(moved.values())}, name)


# -- triu and tril -----------------------------------------------------------------------------


def _triangle_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    if inputs[0].rank < 2:
        raise ShapeError(f"[triangle] expected matrices, got {inputs[0]}; try vs.expand_dims")
    return inputs[0]


def _triangle(op: str, is_upper: bool, compute: Callable[[NDArray, int], NDArray]) -> None:
    def lower(call: Call) -> tuple[Dispatch, ...]:
        if call.output.size == 0:
            return ()
        rows, columns = call.output.shape[-2:]
        push = (
            ("count", call.output.size),
            ("rows", rows),
            ("columns", columns),
            ("diagonal", call.attrs.as_int("k")),
        )
        groups, constants = spread(call.output.size, call.limits), (("UPPER", int(is_upper)),)
        return (Dispatch("triangle", (0, OUTPUT), groups, push, constants),)

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        return compute(inputs[0], attrs.as_int("k"))

    kernel = Kernel(("triangle",), lower)
    register(
        Op(
            op,
            _triangle_infer,
            reference,
            kernel,
            attrs={"k": Int(-MAX_DIAGONAL, MAX_DIAGONAL)},
            operands=(1, 1),
            work=_copy_work,
            any_dtype=True,
        )
    )


_triangle("triu", True, np.triu)
_triangle("tril", False, np.tril)


def _diagonal(op: str, k: int) -> int:
    """Return a diagonal's number, clamped beyond the matrices that devices can hold."""
    return max(-MAX_DIAGONAL, min(MAX_DIAGONAL, as_int(op, "k", k)))


def triu(x: TensorLike, k: int = 0, *, name: str | None = None) -> Tensor:
    """Set elements below diagonal number k to 0, as numpy.triu. x: (..., rows, columns)."""
    return apply("triu", (as_tensor(x),), {"k": _diagonal("triu", k)}, name)


def tril(x: TensorLike, k: int = 0, *, name: str | None = None) -> Tensor:
    """Set elements above diagonal number k to 0, as numpy.tril. x: (..., rows, columns)."""
    return apply("tril", (as_tensor(x),), {"k": _diagonal("tril", k)}, name)


# -- flip, tile, repeat ------------------------------------------------------------------------


def flip(
    x: TensorLike, axes: int | Sequence[int] | None = None, *, name: str | None = None
) -> Tensor:
    """Reverse the elements along axes, or along all of them, as numpy.flip."""
    x = as_tensor(x)
    along = normalize_axes("flip", axes, x.rank)
    count = len(along)
    return slice_(
        x, [x.shape[a] - 1 for a in along], (None,) * count, along, (-1,) * count, name=name
    )


MAX_TILED_AXES = 3
"""Axes tiled in one pass: each needs two axes, and one remains for the axes before them."""


def tile(x: TensorLike, repeats: int | Sequence[int], *, name: str | None = None) -> Tensor:
    """Repeat x as a whole along its axes, as numpy.tile.

    Fewer repeats than axes apply to the last axes; more add leading axes.
    """
    x = as_tensor(x)
    times = list(as_ints("tile", "repeats", repeats))
    if any(r < 0 for r in times):
        raise ShapeError(f"[tile] expected repeats of 0 or more, got {tuple(times)}")
    rank = max(len(times), x.rank)
    times = [1] * (rank - len(times)) + times
    shape = [1] * (rank - x.rank) + list(x.shape)
    tiled = [a for a in range(rank) if times[a] != 1]
    while tiled:  # start with the last axes, while the data is small
        axes, tiled = tiled[-MAX_TILED_AXES:], tiled[:-MAX_TILED_AXES]
        ends = [*axes[1:], rank]
        first = math.prod(shape[: axes[0]])
        blocks = [math.prod(shape[a:end]) for a, end in zip(axes, ends, strict=True)]
        apart = [n for block in blocks for n in (1, block)]
        whole = [n for a, block in zip(axes, blocks, strict=True) for n in (times[a], block)]
        x = expand(reshape(x, (first, *apart)), (first, *whole))
        for a in axes:
            shape[a] *= times[a]
    return reshape(x, shape, name=name)


def repeat(
    x: TensorLike,
    repeats: int | Sequence[int],
    axis: int | None = None,
    *,
    name: str | None = None,
) -> Tensor:
    """Repeat each element along an axis, by one count or a count per element, as numpy.repeat.

    Without an axis x is flattened.
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = flatten(x), 0
    at = normalize_axis("repeat", axis, x.rank)
    size = x.shape[at]
    times = as_ints("repeat", "repeats", repeats)
    if any(r < 0 for r in times) or len(times) not in (1, size):
        raise ShapeError(f"[repeat] expected 1 or {size} repeats of 0 or more, got {times}")
    if len(times) == 1:
        before, after = math.prod(x.shape[:at]), math.prod(x.shape[at + 1 :])
        wide = expand(reshape(x, (before, size, 1, after)), (before, size, times[0], after))
        return reshape(wide, (*x.shape[:at], size * times[0], *x.shape[at + 1 :]), name=name)
    check_constant_size("repeat", sum(times))
    return gather(x, np.repeat(np.arange(size, dtype=np.int32), times), at, name=name)


# -- split, stack, unstack ---------------------------------------------------------------------


def split(
    x: TensorLike, parts: int | Sequence[int], axis: int = 0, *, name: str | None = None
) -> tuple[Tensor, ...]:
    """Split x along an axis into equal parts, or into parts of several sizes, as torch.split.

    Parameters
    ----------
    parts
        The number of equal parts, or the size of each part.
    name
        Prefix of the parts' names, followed by their numbers.

    Contiguous parts are views.
    """
    x = as_tensor(x)
    if x.rank == 0:
        raise ShapeError("[split] expected a tensor with axes, got a scalar")
    at = normalize_axis("split", axis, x.rank)
    size = x.shape[at]
    if isinstance(parts, (int, np.integer)):
        count = int(parts)
        if count < 1 or size % count:
            raise ShapeError(f"[split] expected a number of parts that divides {size}, got {count}")
        sizes = [size // count] * count
    else:
        sizes = list(as_ints("split", "parts", parts))
        if any(s < 0 for s in sizes) or sum(sizes) != size:
            raise ShapeError(f"[split] expected sizes that add up to {size}, got {tuple(sizes)}")
    ends = list(itertools.accumulate(sizes))
    return tuple(
        slice_(x, end - length, end, at, name=name and f"{name}.{number}")
        for number, (length, end) in enumerate(zip(sizes, ends, strict=True))
    )


def stack(xs: Sequence[TensorLike], axis: int = 0, *, name: str | None = None) -> Tensor:
    """Stack tensors of one shape along a new axis, as numpy.stack."""
    if not isinstance(xs, Sequence):
        raise ShapeError("[stack] expected a sequence of tensors, got one; try vs.stack([a, b])")
    tensors = [as_tensor(x) for x in xs]
    if not tensors:
        raise ShapeError("[stack] expected at least one tensor, got none")
    if any(t.shape != tensors[0].shape for t in tensors):
        raise ShapeError(f"[stack] expected equal shapes, got {[t.shape for t in tensors]}")
    return concat([expand_dims(t, axis) for t in tensors], axis, name=name)


def unstack(x: TensorLike, axis: int = 0, *, name: str | None = None) -> tuple[Tensor, ...]:
    """Return the slices of x along an axis, without the axis, as numpy.unstack."""
    x = as_tensor(x)
    if x.rank == 0:
        raise ShapeError("[unstack] expected a tensor with axes, got a scalar")
    at = normalize_axis("unstack", axis, x.rank)
    shape = (*x.shape[:at], *x.shape[at + 1 :])
    return tuple(
        reshape(slice_(x, i, i + 1, at), shape, name=name and f"{name}.{i}")
        for i in range(x.shape[at])
    )


# -- axes --------------------------------------------------------------------------------------


def flatten(
    x: TensorLike, start_axis: int = 0, end_axis: int = -1, *, name: str | None = None
) -> Tensor:
    """Merge axes from start_axis to end_axis, by default all, as torch.flatten. Returns a view."""
    x = as_tensor(x)
    if x.rank == 0:
        return reshape(x, (1,), name=name)
    first = normalize_axis("flatten", start_axis, x.rank)
    last = normalize_axis("flatten", end_axis, x.rank)
    if first > last:
        raise ShapeError(f"[flatten] expected axes in order, got {start_axis} and {end_axis}")
    merged = math.prod(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], merged, *x.shape[last + 1 :]), name=name)


def unsqueeze(x: TensorLike, axes: int | Sequence[int], *, name: str | None = None) -> Tensor:
    """Insert axes of size 1 at these positions of the result, as ONNX Unsqueeze. Returns a view."""
    x = as_tensor(x)
    count = len(as_ints("unsqueeze", "axes", axes))
    new = normalize_axes("unsqueeze", axes, x.rank + count)
    sizes = iter(x.shape)
    shape = [1 if a in new else next(sizes) for a in range(x.rank + count)]
    return reshape(x, shape, name=name)


def moveaxis(
    x: TensorLike,
    source: int | Sequence[int],
    destination: int | Sequence[int],
    *,
    name: str | None = None,
) -> Tensor:
    """Move axes to other positions and keep the order of the others, as numpy.moveaxis."""
    x = as_tensor(x)
    pairs = [as_ints("moveaxis", "axes", a) for a in (source, destination)]
    start, end = ([normalize_axis("moveaxis", a, x.rank) for a in axes] for axes in pairs)
    if len(start) != len(end) or len(set(start)) != len(start) or len(set(end)) != len(end):
        raise ShapeError(
            f"[moveaxis] expected as many distinct destinations as sources, "
            f"got {pairs[0]} and {pairs[1]}"
        )
    order = [a for a in range(x.rank) if a not in start]
    for to, axis in sorted(zip(end, start, strict=True)):
        order.insert(to, axis)
    return transpose(x, order, name=name)


def swapaxes(x: TensorLike, axis1: int, axis2: int, *, name: str | None = None) -> Tensor:
    """Swap two axes, as numpy.swapaxes."""
    x = as_tensor(x)
    first = normalize_axis("swapaxes", axis1, x.rank)
    second = normalize_axis("swapaxes", axis2, x.rank)
    order = list(range(x.rank))
    if order:
        order[first], order[second] = second, first
    return transpose(x, order, name=name)


def permute_dims(
    x: TensorLike, axes: Sequence[int] | None = None, *, name: str | None = None
) -> Tensor:
    """Permute axes, as numpy.permute_dims: an alias of `transpose`."""
    return transpose(x, axes, name=name)


def broadcast_to(x: TensorLike, shape: Sequence[int], *, name: str | None = None) -> Tensor:
    """Repeat x along axes of size 1 and new leading axes, as numpy.broadcast_to: `expand`."""
    return expand(x, shape, name=name)


def meshgrid(*xs: TensorLike, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return the coordinates of a grid, one tensor per vector, as numpy.meshgrid."""
    tensors = [as_tensor(x) for x in xs]
    if indexing not in ("xy", "ij") or any(t.rank > 1 for t in tensors):
        raise ShapeError(
            f"[meshgrid] expected vectors and indexing xy or ij, "
            f"got {[t.shape for t in tensors]} and {indexing!r}"
        )
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [1] * len(order)
    for place, tensor in zip(order, tensors, strict=True):
        shape[place] = tensor.size
    return tuple(
        expand(reshape(t, [t.size if a == place else 1 for a in range(len(shape))]), shape)
        for place, t in zip(order, tensors, strict=True)
    )
