"""Scatter ops: updates of a copy of the data.

The last update of an element is final, and sums are accumulated in the order of the updates, so
results are equal on all devices. By default each line of independent elements is processed by one
invocation, with its updates in order. Few lines with many updates would leave a GPU idle; all
updates then run in parallel if their order is irrelevant, or, without a reduction, after the latest
update of each element is determined.

    targets of all updates -> latest[target] = max(number of the update) -> the latest writes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT32,
    UINT32,
    NDArray,
    TensorType,
    contiguous_strides,
    normalize_axis,
)
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attr_domains import Axis, Domains, one_of
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import (
    OUTPUT,
    SCRATCH,
    STATUS,
    Call,
    Dispatch,
    Kernel,
    Op,
    Work,
    no_u32,
    register,
)
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...topology.limits import Limits
from ..lowering.strides import (
    LOCAL_SIZE,
    LOOP_STEPS,
    SERIAL_STEPS,
    as_u32,
    collapse,
    pad,
    spread,
)
from .index import (
    check_elements,
    check_index_type,
    other_strides,
    positions,
    tuple_positions,
)
from .strided_copy import COPIES, FILLS, copy_strided, fill_words

SCATTER_CODES = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}
"""Values of OP in shaders/layout/scatter.glsl."""
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
PARALLEL_MAX_LINES, PARALLEL_MIN_UPDATES = 2048, 64
"""Updates run in parallel below this number of lines and above this number of updates per line."""
MIN_ROW_ELEMENTS, MIN_ROWS = 48, 16
"""numpy: minimum elements of a row, and minimum number of rows per call, for calls on rows."""
MAX_ORDERED_UPDATES = SERIAL_STEPS
"""Maximum updates of one line that a GPU processes in order."""
_STEPS = {"add": 2, "max": 3, "min": 4}
"""Values of STEP in shaders/layout/scatter_apply.comp; MARK is 0 and WRITE 1."""


def _check(op: str, inputs: tuple[TensorType, ...], attrs: Attrs) -> None:
    data, indices, updates = inputs
    reduction = attrs.as_str("reduction")
    check_index_type(op, indices)
    if updates.dtype != data.dtype:
        raise DTypeError(f"[{op}] expected {data.dtype} updates, got {updates.dtype}; try vs.cast")
    if reduction not in SCATTER_CODES:
        raise ShapeError(
            f"[{op}] expected one of {', '.join(SCATTER_CODES)} as reduction, got {reduction!r}"
        )
    if data.dtype == BOOL and reduction != "none":
        raise DTypeError(f"[{op}] expected numbers to {reduction}, got bool; try vs.cast")


def _update(reduction: str, target: NDArray, where: NDArray, updates: NDArray) -> None:
    """Update rows of target in order; numpy applies the last of several with one index.

    `ufunc.at` needs about 10 ns per element, so for wide rows all first updates are one call, then
    all second ones, as long as these are many. The rest follows in order.
    """
    if reduction == "none":
        target[where] = updates
        return
    ufunc = _UFUNCS[reduction]
    if math.prod(target.shape[1:]) >= MIN_ROW_ELEMENTS:
        *rounds, rest = _rounds(where)
        for numbers in rounds:
            at = where[numbers]
            target[at] = ufunc(target[at], updates[numbers])
        if rounds:
            where, updates = where[rest], updates[rest]
    ufunc.at(target, where, updates)


def _rounds(where: NDArray) -> list[NDArray]:
    """Return the numbers of all first updates of a target, of all second ones, and so on while
    there are many, and of the rest in order.
    """
    order = np.argsort(where, kind="stable")
    targets = where[order]
    firsts = np.flatnonzero(np.concatenate([[True], targets[1:] != targets[:-1]]))
    before = np.arange(len(where)) - np.repeat(firsts, np.diff(np.append(firsts, len(where))))
    sizes = np.bincount(before)  # in descending order
    ends = np.cumsum(sizes[sizes >= MIN_ROWS])
    *rounds, rest = np.split(order[np.argsort(before, kind="stable")], ends)
    return [*rounds, np.sort(rest)]


def copy_data(call: Call) -> tuple[Dispatch, ...]:
    """Copy operand 0 to the result."""
    return copy_strided(call, (call.output.size,), 0, (0, (1,)), (0, (1,)))


def _parts(
    lines: int, updates: int, steps: int, limits: Limits
) -> tuple[tuple[int, int, int], list[tuple[int, int]]]:
    """Return groups, and for each dispatch the range of updates of every line.

    steps: loop iterations per update.

    Raises
    ------
    UnsupportedOp
        A line has too many updates.
    """
    if updates > MAX_ORDERED_UPDATES and not limits.software:
        raise UnsupportedOp(
            f"over {MAX_ORDERED_UPDATES} updates of a line, in order, take too long"
        )
    groups = max(1, min(-(-lines // LOCAL_SIZE), limits.max_groups[0]))
    own = -(-lines // (groups * LOCAL_SIZE))
    length = max(1, LOOP_STEPS // (own * steps) - 8)
    return (groups, 1, 1), [(i, min(i + length, updates)) for i in range(0, updates, length)]


def _is_parallel(call: Call, lines: int, updates: int) -> bool:
    """Return True for parallel updates: on a GPU, with few lines, if order is irrelevant."""
    if call.limits.software or lines >= PARALLEL_MAX_LINES or updates < PARALLEL_MIN_UPDATES:
        return False
    reduction = call.attrs.as_str("reduction")
    return reduction == "none" or (reduction in _STEPS and call.output.dtype != FLOAT32)


def _parallel_updates(call: Call, targets: Dispatch, slices: int) -> tuple[Dispatch, ...]:
    """Run all updates in parallel; scratch 0 holds the targets, scratch 1 the latest of each."""
    reduction, inner = call.attrs.as_str("reduction"), call.output.size // slices
    rows = call.inputs[2].size // inner
    shader = "scatter_apply_" + ("uint32" if call.output.dtype == UINT32 else "int32")

    def step(number: int, width: int) -> Dispatch:
        groups = spread(rows * width, call.limits)
        push = (("count", rows * width), ("inner", width))
        operands = (SCRATCH, 2, SCRATCH - 1 if reduction == "none" else SCRATCH, OUTPUT)
        return Dispatch(shader, operands, groups, push, (("STEP", number),), barrier=True)

    if reduction != "none":
        return (*copy_data(call), targets, step(_STEPS[reduction], inner))
    clear = fill_words(SCRATCH - 1, slices, 0, call.limits)
    return (*copy_data(call), clear, targets, step(0, 1), step(1, inner))


def _scratch(call: Call, lines: int, updates: int, targets: int, slices: int) -> tuple[int, ...]:
    if not _is_parallel(call, lines, updates):
        return ()
    return (targets, slices) if call.attrs.as_str("reduction") == "none" else (targets,)


def _shaders(op: str) -> tuple[str, ...]:
    at_once = (*FILLS, f"{op}_targets", "scatter_apply_int32", "scatter_apply_uint32")
    in_order = tuple(f"{op}_{dtype}" for dtype in ("float32", "int32", "uint32"))
    return (*COPIES, *in_order, *at_once)


def _kernel_of(op: str, data: TensorType) -> str:
    return f"{op}_{INT32 if data.dtype == BOOL else data.dtype}"


def _in_parts(
    call: Call, whole: Dispatch, parts: Iterable[tuple[int, int]]
) -> tuple[Dispatch, ...]:
    """Return the copy of the data, followed by dispatches of the updates.

    parts: the range of updates of each dispatch.
    """
    spans = ((("start", start), ("end", end)) for start, end in parts)
    return (*copy_data(call), *(replace(whole, push=(*whole.push, *span)) for span in spans))


def _work(of: Callable[[Call], tuple[int, int]]) -> Callable[..., Work]:
    """Return the cost of an op; `of` gives the number of lines and the updates per line."""

    def work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
        moved = 2 * output.device_bytes + inputs[1].device_bytes + 3 * inputs[2].device_bytes
        rounds = 0
        if inputs[2].size and output.size:
            # float16 accumulates in float32; a CPU driver is estimated as a GPU
            computed = replace(output, dtype=FLOAT32) if output.dtype == FLOAT16 else output
            call = Call(inputs, computed, attrs)
            lines, updates = of(call)
            rounds = 0 if _is_parallel(call, lines, updates) else updates
        return Work(float(inputs[2].size), float(moved), float(rounds))

    return work


# -- scatter_elements --------------------------------------------------------------------------


def _elements_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    data, indices, updates = inputs
    _check("scatter_elements", inputs, attrs)
    check_elements("scatter_elements", data, indices, attrs.as_int("axis"))
    if updates.shape != indices.shape:
        raise ShapeError(
            f"[scatter_elements] expected updates of the shape of the indices, {indices.shape}, "
            f"got {updates.shape}"
        )
    return data


def _elements_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    data, indices, updates = inputs
    axis = attrs.as_int("axis")
    out = np.array(data)
    if indices.size == 0 or data.size == 0:
        return out
    where: tuple[NDArray, ...] = np.indices(indices.shape, sparse=True)
    strides = contiguous_strides(data.shape)
    flat = positions("scatter_elements", indices, data.shape[axis]) * strides[axis]
    for other, grid in enumerate(where):
        if other != axis:
            flat = flat + grid * strides[other]
    _update(attrs.as_str("reduction"), out.reshape(-1), flat.reshape(-1), updates.reshape(-1))
    return out


def _elements_lines(call: Call) -> tuple[int, int]:
    """Return the number of lines and the number of updates per line; at least 1 each."""
    indices = call.inputs[1]
    updates = indices.shape[call.attrs.as_int("axis")]
    return indices.size // updates, updates


def _elements_scratch(call: Call) -> tuple[int, ...]:
    data, indices = call.inputs[:2]
    if data.size == 0 or indices.size == 0:
        return ()
    return _scratch(call, *_elements_lines(call), indices.size, data.size)


def _elements_targets(call: Call) -> Dispatch:
    (data, indices, _), axis = call.inputs, call.attrs.as_int("axis")
    sizes, (strides,) = collapse(indices.shape, [other_strides(data.shape, axis)])
    push = (
        ("count", indices.size),
        ("axis_size", data.shape[axis]),
        ("axis_stride", contiguous_strides(data.shape)[axis]),
        ("sizes", pad(sizes, 7)),
        ("strides", pad(strides, 8)),
    )
    groups, constants = spread(indices.size, call.limits), (("RANK", len(sizes)),)
    return Dispatch("scatter_elements_targets", (1, SCRATCH, STATUS), groups, push, constants)


def _elements_lower(call: Call) -> tuple[Dispatch, ...]:
    (data, indices, _), axis = call.inputs, call.attrs.as_int("axis")
    if data.size == 0:
        return ()
    if indices.size == 0:
        return copy_data(call)
    steps = contiguous_strides(indices.shape)
    sizes, (result_strides, line_strides) = collapse(
        (*indices.shape[:axis], 1, *indices.shape[axis + 1 :]),
        [other_strides(data.shape, axis), other_strides(indices.shape, axis)],
    )
    lines, updates = _elements_lines(call)
    if _is_parallel(call, lines, updates):
        return _parallel_updates(call, _elements_targets(call), data.size)
    groups, parts = _parts(lines, updates, 1, call.limits)
    push = (
        ("lines", lines),
        ("axis_size", data.shape[axis]),
        ("axis_stride", contiguous_strides(data.shape)[axis]),
        ("step", steps[axis]),
        ("sizes", pad(sizes, 6)),
        ("result_strides", pad(result_strides, 7)),
        ("line_strides", pad(line_strides, 7)),
    )
    constants = (("RANK", len(sizes)), ("OP", SCATTER_CODES[call.attrs.as_str("reduction")]))
    operands = (1, 2, OUTPUT, STATUS)
    kernel = _kernel_of("scatter_elements", data)
    return _in_parts(call, Dispatch(kernel, operands, groups, push, constants, barrier=True), parts)


# -- scatter_nd --------------------------------------------------------------------------------


def _nd_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    data, indices, updates = inputs
    _check("scatter_nd", inputs, attrs)
    depth = indices.shape[-1] if indices.rank else 0
    if not 1 <= depth <= data.rank:
        raise ShapeError(
            f"[scatter_nd] expected tuples of 1 to {data.rank} indices into {data.shape}, "
            f"got {indices.shape}"
        )
    expected = indices.shape[:-1] + data.shape[depth:]
    if updates.shape != expected:
        raise ShapeError(f"[scatter_nd] expected updates of shape {expected}, got {updates.shape}")
    return data


def _nd_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    data, indices, updates = inputs
    out = np.array(data)
    if updates.size == 0 or data.size == 0:
        return out
    depth = indices.shape[-1]
    rest = data.shape[depth:]
    where = tuple_positions("scatter_nd", indices, data.shape[:depth]).reshape(-1)
    slices = out.reshape(-1, *rest)
    _update(attrs.as_str("reduction"), slices, where, updates.reshape(-1, *rest))
    return out


def _nd_lines(call: Call) -> tuple[int, int]:
    """Return the number of elements per slice and the number of updates."""
    data, indices = call.inputs[:2]
    return math.prod(data.shape[indices.shape[-1] :]), math.prod(indices.shape[:-1])


def _nd_scratch(call: Call) -> tuple[int, ...]:
    data, indices, updates = call.inputs
    if data.size == 0 or updates.size == 0:
        return ()
    depth = indices.shape[-1]
    inner, rows = _nd_lines(call)
    return _scratch(call, inner, rows, rows, math.prod(data.shape[:depth]))


def _nd_targets(call: Call) -> Dispatch:
    data, indices = call.inputs[:2]
    depth, rows = indices.shape[-1], math.prod(indices.shape[:-1])
    push = (("count", rows), ("sizes", pad(data.shape[:depth], 8)))
    groups, constants = spread(rows * depth, call.limits), (("DEPTH", depth),)
    return Dispatch("scatter_nd_targets", (1, SCRATCH, STATUS), groups, push, constants)


def _nd_lower(call: Call) -> tuple[Dispatch, ...]:
    data, indices, updates = call.inputs
    if data.size == 0:
        return ()
    if updates.size == 0:
        return copy_data(call)
    depth = indices.shape[-1]
    inner, rows = _nd_lines(call)
    if _is_parallel(call, inner, rows):
        return _parallel_updates(call, _nd_targets(call), math.prod(data.shape[:depth]))
    groups, parts = _parts(inner, rows, depth + 1, call.limits)
    push = (("inner", inner), ("sizes", pad(data.shape[:depth], 8)))
    constants = (("DEPTH", depth), ("OP", SCATTER_CODES[call.attrs.as_str("reduction")]))
    operands = (1, 2, OUTPUT, STATUS)
    kernel = _kernel_of("scatter_nd", data)
    return _in_parts(call, Dispatch(kernel, operands, groups, push, constants, barrier=True), parts)


def _nd_words(call: Call) -> Call | None:
    data, indices = call.inputs[:2]
    moves = call.attrs.as_str("reduction") == "none" and indices.shape[-1] < data.rank
    return as_u32(call, moves)


def _register(
    op: str,
    infer: Callable[[tuple[TensorType, ...], Attrs], TensorType],
    reference: Callable[[tuple[NDArray, ...], Attrs], NDArray],
    lower: Callable[[Call], tuple[Dispatch, ...]],
    scratch: Callable[[Call], tuple[int, ...]],
    lines: Callable[[Call], tuple[int, int]],
    attrs: Domains,
    words: Callable[[Call], Call | None] = no_u32,
) -> None:
    kernel = Kernel(_shaders(op), lower, scratch, words)
    register(
        Op(
            op,
            infer,
            reference,
            kernel,
            attrs={**attrs, "reduction": one_of(*SCATTER_CODES)},
            operands=(3, 3),
            work=_work(lines),
            indices=(1,),
        )
    )


_register(
    *("scatter_elements", _elements_infer, _elements_reference),
    *(_elements_lower, _elements_scratch, _elements_lines),
    {"axis": Axis()},
)
_register(
    "scatter_nd", _nd_infer, _nd_reference, _nd_lower, _nd_scratch, _nd_lines, {}, words=_nd_words
)


# -- builders ----------------------------------------------------------------------------------


def scatter_elements(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    axis: int = 0,
    reduction: str = "none",
    *,
    name: str | None = None,
) -> Tensor:
    """Return `data` with one element updated per index along an axis, as ONNX ScatterElements.

    data: (..., n, ...), indices and updates: equal shapes, not larger than data on the other axes.
    reduction: "none" (the last update is final), "add", "mul", "max" or "min". An index outside
    -n..n-1 raises IndexOutOfRange when the graph runs.
    """
    target = as_tensor(data)
    if target.rank == 0:
        raise ShapeError("[scatter_elements] expected data with axes, got a scalar")
    attrs: dict[str, AttrValue] = {
        "axis": normalize_axis("scatter_elements", axis, target.rank),
        "reduction": str(reduction),
    }
    operands = (target, as_tensor(indices), as_tensor(updates, like=target))
    return apply("scatter_elements", operands, attrs, name)


def scatter(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    axis: int = 0,
    *,
    name: str | None = None,
) -> Tensor:
    """Return `scatter_elements` without a reduction, as ONNX's deprecated Scatter."""
    return scatter_elements(data, indices, updates, axis, name=name)


def scatter_nd(
    data: TensorLike,
    indices: TensorLike,
    updates: TensorLike,
    reduction: str = "none",
    *,
    name: str | None = None,
) -> Tensor:
    """Return `data` with one slice updated per tuple of indices, as ONNX ScatterND.

    data: (*indexed, *rest), indices: (..., k), k indexed axes, updates: (..., *rest). reduction:
    "none" (the last update is final), "add", "mul", "max" or "min". An index outside its axis
    raises IndexOutOfRange when the graph runs.
    """
    target = as_tensor(data)
    operands = (target, as_tensor(indices), as_tensor(updates, like=target))
    return apply("scatter_nd", operands, {"reduction": str(reduction)}, name)
