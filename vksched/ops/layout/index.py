"""Indexing ops: gather, gather_elements, gather_nd, one_hot.

An index outside of its axis is an error on every device.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import (
    FLOAT32,
    INT32,
    INT64,
    MAX_RANK,
    NDArray,
    Shape,
    TensorType,
    as_int,
    canonical_dtype,
    contiguous_strides,
    normalize_axis,
)
from ...common.errors import DTypeError, IndexOutOfRange, ShapeError
from ...ir.attr_domains import Axis, Int
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel
from ...ir.op import OUTPUT, STATUS, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor, one_value
from ...topology.limits import Limits
from ..lowering.strides import as_u32, collapse, pad, spread
from ..lowering.vec4 import both_readings, launch_lines, launch_run, reading
from .native_copies import gather_program
from .reshape import expand


def check_index_type(op: str, indices: TensorType) -> None:
    """Raise DTypeError unless indices are signed integers."""
    if indices.dtype not in (INT32, INT64):
        raise DTypeError(
            f"[{op}] expected int32 or int64 indices, got {indices.dtype}; try vs.cast"
        )


def positions(op: str, indices: NDArray, size: int) -> NDArray:
    """Return indices into an axis as non-negative int64.

    Raises
    ------
    IndexOutOfRange
        An index is outside of the axis.
    """
    wide = indices.astype(np.int64)
    bad = wide[(wide < -size) | (wide >= size)]
    if bad.size:
        raise IndexOutOfRange(
            f"[{op}] expected indices in {-size}..{size - 1}, got {bad.reshape(-1)[0]}"
        )
    return np.where(wide < 0, wide + size, wide)


def tuple_positions(op: str, indices: NDArray, sizes: Shape) -> NDArray:
    """Return the number of the slice for each tuple of indices along the last axis."""
    flat = np.zeros(indices.shape[:-1], np.int64)
    for axis, size in enumerate(sizes):
        flat = flat * size + positions(op, indices[..., axis], size)
    return flat


def check_elements(op: str, data: TensorType, indices: TensorType, axis: int) -> None:
    """Raise ShapeError if indices exceed data on an axis other than the indexed one."""
    fits = indices.rank == data.rank and all(
        i <= d for a, (i, d) in enumerate(zip(indices.shape, data.shape, strict=True)) if a != axis
    )
    if not fits:
        raise ShapeError(
            f"[{op}] expected indices of rank {data.rank} that lie within {data.shape} on every "
            f"axis but {axis}, got {indices.shape}"
        )


# -- gather ------------------------------------------------------------------------------------


def _gather_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    table, indices = inputs
    axis = attrs.as_int("axis")
    check_index_type("gather", indices)
    return TensorType(table.shape[:axis] + indices.shape + table.shape[axis + 1 :], table.dtype)


def _gather_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    table, indices = inputs
    axis = attrs.as_int("axis")
    size = table.shape[axis]
    if 0 in table.shape[:axis] + table.shape[axis + 1 :]:  # nothing is read, for any indices
        return np.empty(
            (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), table.dtype
        )
    return np.take(table, positions("gather", indices, size), axis)


def _gather_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    table, indices = inputs
    axis = attrs.as_int("axis")
    at = positions("gather", indices, table.shape[axis])
    np.take(table, at, axis, out=out, mode="clip")  # indices are in range: no copy of out is needed


def _gather_lower(call: Call) -> tuple[Dispatch, ...]:
    table, axis = call.inputs[0].shape, call.attrs.as_int("axis")
    if call.output.size == 0:
        return ()
    inner = math.prod(table[axis + 1 :])
    sizes = call.output.size // inner, table[axis], call.inputs[1].size
    return (pick_lines((0, 1, OUTPUT), *sizes, inner, call.limits),)


def pick_lines(
    operands: tuple[int, int, int],
    lines: int,
    axis_size: int,
    picks: int,
    inner: int,
    limits: Limits,
) -> Dispatch:
    """Return the dispatch that gathers lines of a table.

    operands: a table (outer, axis_size, inner), indices (picks), and a result (lines, inner), i.e.
    (outer, picks, inner).
    """
    push = (("lines", lines), ("axis_size", axis_size), ("picks", picks), ("inner", inner))
    groups, constants = launch_lines(inner, lines, inner % 4 == 0, limits)
    return Dispatch(reading("gather", limits), (*operands, STATUS), groups, push, constants)


GATHER_SHADERS = both_readings(("gather",))


def _gather_words(call: Call) -> Call | None:
    return as_u32(call, call.attrs.as_int("axis") < call.inputs[0].rank - 1)


def _gather_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    return Work(0.0, 2.0 * output.device_bytes + inputs[1].device_bytes)


register(
    Op(
        "gather",
        _gather_infer,
        _gather_reference,
        Kernel(GATHER_SHADERS, _gather_lower, as_u32=_gather_words),
        attrs={"axis": Axis()},
        operands=(2, 2),
        work=_gather_work,
        native_program=lambda inputs, output, attrs: gather_program(
            inputs, output, attrs.as_int("axis")
        ),
        indices=(1,),
        cpu=CpuKernel(_gather_cpu),
        any_dtype=True,
        accepts_int8_weights=True,
    )
)


def gather(
    table: TensorLike, indices: TensorLike, axis: int = 0, *, name: str | None = None
) -> Tensor:
    """Return the slices of `table` at int32 or int64 `indices` along an axis, as ONNX Gather.

    table: (..., n, ...), indices: any shape -> (..., *indices.shape, ...). Negative indices count
    from the end; an index outside -n..n-1 raises IndexOutOfRange when the graph runs.
    """
    rows = as_tensor(table)
    if rows.rank == 0:
        raise ShapeError("[gather] expected a table with axes, got a scalar")
    at = normalize_axis("gather", axis, rows.rank)
    return apply("gather", (rows, as_tensor(indices)), {"axis": at}, name)


def embedding(table: TensorLike, ids: TensorLike, *, name: str | None = None) -> Tensor:
    """Return the rows of a table: `gather` along axis 0, as torch.nn.functional.embedding.

    table: (rows, *rest), ids: any shape -> (*ids.shape, *rest).
    """
    return gather(table, ids, 0, name=name)


# -- gather_elements ---------------------------------------------------------------------------


def _elements_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    table, indices = inputs
    check_index_type("gather_elements", indices)
    check_elements("gather_elements", table, indices, attrs.as_int("axis"))
    return TensorType(indices.shape, table.dtype)


def _elements_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    table, indices = inputs
    axis = attrs.as_int("axis")
    if indices.size == 0:
        return np.empty(indices.shape, table.dtype)
    where: list[NDArray] = list(np.indices(indices.shape, sparse=True))
    where[axis] = positions("gather_elements", indices, table.shape[axis])
    return np.asarray(table[tuple(where)])


def other_strides(shape: Shape, axis: int) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, 0 along one axis."""
    return tuple(0 if a == axis else s for a, s in enumerate(contiguous_strides(shape)))


def _elements_lower(call: Call) -> tuple[Dispatch, ...]:
    table, axis, shape = call.inputs[0].shape, call.attrs.as_int("axis"), call.output.shape
    if call.output.size == 0:
        return ()
    sizes, (strides,) = collapse(shape, [other_strides(table, axis)])
    push = (
        ("count", call.output.size),
        ("axis_size", table[axis]),
        ("axis_stride", contiguous_strides(table)[axis]),
        ("sizes", pad(sizes, 7)),
        ("table_strides", pad(strides, 8)),
    )
    # Along the last axis adjacent invocations read nearby elements of the table's lines; along
    # other axes they read corresponding elements of adjacent lines.
    runs = math.prod(shape[axis + 1 :]) == 1
    size, limits = call.output.size, call.limits
    groups, constants = launch_run(size, limits) if runs else (spread(size, limits), ())
    constants += (("RANK", len(sizes)), ("RUNS", int(runs)))
    return (Dispatch("gather_elements", (0, 1, OUTPUT, STATUS), groups, push, constants),)


register(
    Op(
        "gather_elements",
        _elements_infer,
        _elements_reference,
        Kernel(("gather_elements",), _elements_lower),
        attrs={"axis": Axis()},
        operands=(2, 2),
        work=_gather_work,
        indices=(1,),
        any_dtype=True,
    )
)


def gather_elements(
    table: TensorLike, indices: TensorLike, axis: int = 0, *, name: str | None = None
) -> Tensor:
    """Return one element of `table` per index, along an axis, as ONNX GatherElements.

    table: (..., n, ...), indices: equal rank, not larger on the other axes -> shape of indices. An
    index outside -n..n-1 raises IndexOutOfRange when the graph runs.
    """
    data = as_tensor(table)
    if data.rank == 0:
        raise ShapeError("[gather_elements] expected a table with axes, got a scalar")
    at = normalize_axis("gather_elements", axis, data.rank)
    return apply("gather_elements", (data, as_tensor(indices)), {"axis": at}, name)


def take_along_axis(
    x: TensorLike, indices: TensorLike, axis: int = -1, *, name: str | None = None
) -> Tensor:
    """Return one element of x per index, along an axis, as numpy.take_along_axis.

    x and indices have equal rank and broadcast with each other on the other axes.
    """
    data, where = as_tensor(x), as_tensor(indices)
    if data.rank == 0 or data.rank != where.rank:
        raise ShapeError(
            f"[take_along_axis] expected two tensors of one rank with axes, "
            f"got {data.shape} and {where.shape}; try reshape"
        )
    at = normalize_axis("take_along_axis", axis, data.rank)
    pairs = list(enumerate(zip(data.shape, where.shape, strict=True)))
    if any(a != at and d != w and 1 not in (d, w) for a, (d, w) in pairs):
        raise ShapeError(
            f"[take_along_axis] expected shapes that broadcast but for axis {at}, "
            f"got {data.shape} and {where.shape}"
        )
    sides = [d if w == 1 else w for _, (d, w) in pairs]
    expected = [
        tuple(t.shape[a] if a == at else s for a, s in enumerate(sides)) for t in (data, where)
    ]
    data = data if data.shape == expected[0] else expand(data, expected[0])
    where = where if where.shape == expected[1] else expand(where, expected[1])
    return gather_elements(data, where, at, name=name)


# -- gather_nd ---------------------------------------------------------------------------------


def _nd_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    table, indices = inputs
    batch = attrs.as_int("batch_dims")
    check_index_type("gather_nd", indices)
    if batch >= min(table.rank, indices.rank):
        raise ShapeError(
            f"[gather_nd] expected batch_dims in 0..{min(table.rank, indices.rank) - 1}, "
            f"got {batch}"
        )
    if table.shape[:batch] != indices.shape[:batch]:
        raise ShapeError(
            f"[gather_nd] expected the first {batch} axes to be equal, "
            f"got {table.shape} and {indices.shape}"
        )
    depth = indices.shape[-1]
    if not 1 <= depth <= table.rank - batch:
        raise ShapeError(
            f"[gather_nd] expected tuples of 1 to {table.rank - batch} indices into {table.shape}, "
            f"got {indices.shape}"
        )
    return TensorType(indices.shape[:-1] + table.shape[batch + depth :], table.dtype)


def _nd_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    table, indices = inputs
    batch, depth = attrs.as_int("batch_dims"), indices.shape[-1]
    sizes, rest = table.shape[batch : batch + depth], table.shape[batch + depth :]
    shape = indices.shape[:-1] + rest
    if 0 in shape:
        return np.empty(shape, table.dtype)
    batches = math.prod(table.shape[:batch])
    slices = tuple_positions("gather_nd", indices, sizes).reshape(batches, -1)
    number = np.arange(batches)[:, None]
    picked = table.reshape(batches, math.prod(sizes), *rest)[number, slices]
    return np.asarray(np.reshape(picked, shape))


def _nd_lower(call: Call) -> tuple[Dispatch, ...]:
    (table, indices), batch = call.inputs, call.attrs.as_int("batch_dims")
    if call.output.size == 0:
        return ()
    depth = indices.shape[-1]
    sizes = table.shape[batch : batch + depth]
    push = (
        ("count", call.output.size),
        ("inner", math.prod(table.shape[batch + depth :])),
        ("batch_rows", math.prod(indices.shape[batch:-1])),
        ("batch_slices", math.prod(sizes)),
        ("sizes", pad(sizes, 8)),
    )
    groups = spread(call.output.size * depth, call.limits)
    constants = (("DEPTH", depth),)
    return (Dispatch("gather_nd", (0, 1, OUTPUT, STATUS), groups, push, constants),)


def _nd_words(call: Call) -> Call | None:
    table, indices = call.inputs
    return as_u32(call, call.attrs.as_int("batch_dims") + indices.shape[-1] < table.rank)


register(
    Op(
        "gather_nd",
        _nd_infer,
        _nd_reference,
        Kernel(("gather_nd",), _nd_lower, as_u32=_nd_words),
        attrs={"batch_dims": Int(0, MAX_RANK)},
        operands=(2, 2),
        work=_gather_work,
        indices=(1,),
        any_dtype=True,
    )
)


def gather_nd(
    table: TensorLike, indices: TensorLike, batch_dims: int = 0, *, name: str | None = None
) -> Tensor:
    """Return the slices of `table` at tuples of indices, as ONNX GatherND.

    table: (*batch, *indexed, *rest), indices: (*batch, ..., k), k indexed axes -> (*batch, ...,
    *rest). An index outside its axis raises IndexOutOfRange when the graph runs.
    """
    data, where = as_tensor(table), as_tensor(indices)
    if data.rank == 0 or where.rank == 0:
        raise ShapeError("[gather_nd] expected a table and indices with axes, got a scalar")
    return apply(
        "gather_nd",
        (data, where),
        {"batch_dims": as_int("gather_nd", "batch_dims", batch_dims)},
        name,
    )


# -- one_hot -----------------------------------------------------------------------------------


def _one_hot_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    indices, values = inputs
    axis, depth = attrs.as_int("axis"), attrs.as_int("depth")
    check_index_type("one_hot", indices)
    if values.shape != (2,):
        raise ShapeError(f"[one_hot] expected two values, those off and on, got {values}")
    return TensorType((*indices.shape[:axis], depth, *indices.shape[axis:]), values.dtype)


def _one_hot_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    indices, (off, on) = inputs
    axis, depth = attrs.as_int("axis"), attrs.as_int("depth")
    wide = np.expand_dims(indices.astype(np.int64), axis)
    wide = np.where(wide < 0, wide + depth, wide)
    line = np.arange(depth).reshape(-1, *(1 for _ in indices.shape[axis:]))
    return np.asarray(np.where(wide == line, on, off), inputs[1].dtype)


def _one_hot_lower(call: Call) -> tuple[Dispatch, ...]:
    axis = call.attrs.as_int("axis")
    if call.output.size == 0:
        return ()
    push = (
        ("count", call.output.size),
        ("depth", call.attrs.as_int("depth")),
        ("inner", math.prod(call.inputs[0].shape[axis:])),
    )
    groups, constants = launch_run(call.output.size, call.limits)
    return (Dispatch("one_hot", (0, 1, OUTPUT), groups, push, constants),)


register(
    Op(
        "one_hot",
        _one_hot_infer,
        _one_hot_reference,
        Kernel(("one_hot",), _one_hot_lower),
        attrs={"axis": Axis(more=1), "depth": Int(0)},
        operands=(2, 2),
        indices=(0,),
        any_dtype=True,
    )
)


def one_hot(
    indices: TensorLike,
    depth: int,
    on_value: float = 1,
    off_value: float = 0,
    axis: int = -1,
    dtype: object = FLOAT32,
    *,
    name: str | None = None,
) -> Tensor:
    """Return `on_value` where a new axis equals the index, else `off_value`, as ONNX OneHot.

    The axis has the size `depth`. Negative indices count from the end; an index outside
    -depth..depth-1 gives a line of off_value.
    """
    where = as_tensor(indices)
    at = normalize_axis("one_hot", axis, where.rank + 1)
    known = canonical_dtype(dtype)
    values = as_tensor(np.stack([one_value("one_hot", v, known) for v in (off_value, on_value)]))
    attrs = {"axis": at, "depth": as_int("one_hot", "depth", depth)}
    return apply("one_hot", (where, values), attrs, name)
