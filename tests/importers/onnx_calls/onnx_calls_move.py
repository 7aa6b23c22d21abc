"""How calls of ops that move elements, or make them of numbers alone, are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from onnx_calls import Drawn, Source, calls

LAST = (2**63 - 1, 2**31 - 1, 10**6)
"""How exporters write "to the end"."""


@calls("Reshape")
def reshape(s: Source) -> Drawn:
    shape = s.shape(0, 4)
    x = s.values(shape, s.dtype())
    sizes = [int(d) for d in s.rng.permutation(shape)] if s.chance(0.5) else list(shape)
    if s.chance(0.3):
        sizes = [int(x.size)]
    if sizes and x.size and s.chance(0.4):
        sizes[s.int(0, len(sizes) - 1)] = -1
    if sizes == list(shape) and sizes and s.chance(0.5):
        sizes[s.int(0, len(sizes) - 1)] = 0
    zero = s.pick(0, 1, None) if s.opset >= 14 and -1 not in sizes else None
    return [x, s.vector(sizes)], {"allowzero": zero}


@calls("Transpose")
def transpose(s: Source) -> Drawn:
    shape = s.shape(0, 5)
    order = [int(a) for a in s.rng.permutation(len(shape))]
    return [s.values(shape, s.dtype())], {"perm": order if s.chance(0.7) and order else None}


@calls("Concat")
def concat(s: Source) -> Drawn:
    dtype, shape = s.dtype(), list(s.shape(1, 4))
    axis = s.axis(len(shape)) if s.opset >= 11 else s.int(0, len(shape) - 1)
    parts = []
    for _ in range(s.int(1, 4)):
        part = list(shape)
        part[axis] = s.size()
        parts.append(s.values(part, dtype))
    return [*parts], {"axis": axis}


@calls("Slice")
def slices(s: Source) -> Drawn:
    shape = s.shape(1, 4)
    x = s.values(shape, s.dtype())
    axes = s.axes(len(shape)) if s.chance(0.7) else list(range(s.int(1, len(shape))))
    if s.opset < 10:
        axes = [a % len(shape) for a in axes]
    starts, ends, steps = [], [], []
    for _ in axes:
        back = s.opset >= 10 and s.chance(0.3)
        steps.append(s.pick(1, 1, 2, 3) * (-1 if back else 1))
        first = s.pick(0, 0, 1, 2, -1, -2, 9)
        last = s.pick(*LAST, 1, 2, -1, 5)
        starts.append(s.pick(-1, 9, LAST[0], 2) if back else first)
        ends.append(s.pick(-(2**63), -(2**31) + 1, 0, 1, -9) if back else last)
    plain = axes == list(range(len(axes)))
    if s.opset < 10:
        return [x], {"starts": starts, "ends": ends, "axes": None if plain else axes}
    narrow = all(abs(v) < 2**31 for v in (*starts, *ends))
    kind = s.pick(np.int32, np.int64) if narrow else np.int64
    ones = all(v == 1 for v in steps) and s.chance(0.5)
    vectors = [np.array(v, kind) for v in (starts, ends, axes, steps)]
    return [
        x, vectors[0], vectors[1],
        None if plain and s.chance(0.5) else vectors[2],
        None if ones else vectors[3],
    ], {}  # fmt: skip


@calls("Split")
def split(s: Source) -> Drawn | None:
    shape = s.shape(1, 4, empty=False)
    axis = s.axis(len(shape)) if s.opset >= 11 else s.int(0, len(shape) - 1)
    length, attrs = shape[axis], {"axis": axis}
    x = s.values(shape, s.dtype())
    count = s.int(1, min(4, length))
    if s.chance(0.5):
        cuts = sorted(s.ints(count - 1, 0, length))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
        if s.opset < 13:
            return [x], {**attrs, "split": sizes}, count
        return [x, s.vector(sizes)], attrs, count
    if s.opset >= 18:
        if -(-length // count) * (count - 1) > length:
            return None
        return [x], {**attrs, "num_outputs": count}, count
    return ([x], attrs, count) if length % count == 0 else None


@calls("Squeeze")
def squeeze(s: Source) -> Drawn:
    shape = s.shape(0, 5)
    ones = [i for i, d in enumerate(shape) if d == 1]
    x = s.values(shape, s.dtype())
    chosen = [int(a) for a in s.rng.permutation(ones)[: s.int(0, len(ones))]]
    if s.opset >= 11:
        chosen = [a - len(shape) * s.chance(0.4) for a in chosen]
    axes = chosen if s.chance(0.7) and chosen else None
    if s.opset < 13:
        return [x], {"axes": axes}
    return [x, None if axes is None else s.vector(axes)], {}


@calls("Unsqueeze")
def unsqueeze(s: Source) -> Drawn:
    shape = s.shape(0, 3)
    count = s.int(1, 3)
    rank = len(shape) + count
    axes = [int(a) for a in s.rng.permutation(rank)[:count]]
    if s.opset >= 11:
        axes = [a - rank * s.chance(0.4) for a in axes]
    x = s.values(shape, s.dtype())
    return ([x], {"axes": axes}) if s.opset < 13 else ([x, s.vector(axes)], {})


@calls("Flatten")
def flatten(s: Source) -> Drawn:
    shape = s.shape(0, 4)
    axis = s.int(-len(shape) if s.opset >= 11 else 0, len(shape))
    valid = axis if s.chance(0.8) or not shape else None
    return [s.values(shape, s.dtype())], {"axis": valid}


@calls("Expand")
def expand(s: Source) -> Drawn:
    a, b = s.broadcasts(2)
    return [s.values(a, s.dtype()), s.vector(b)], {}


@calls("Tile")
def tile(s: Source) -> Drawn:
    shape = s.shape(0, 4)
    return [s.values(shape, s.dtype()), s.vector(s.ints(len(shape), 0, 3))], {}


@calls("Pad")
def pad(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    x = s.values(shape, s.dtype())
    mode = s.pick("constant", "constant", "edge", "reflect", None)
    if s.opset >= 19:
        mode = s.pick(mode, "wrap")
    axes = s.axes(len(shape)) if s.opset >= 18 and s.chance(0.5) else None
    over = range(len(shape)) if axes is None else axes
    low = -1 if mode in ("constant", None) else 0
    most = [shape[a] - 1 if mode == "reflect" else shape[a] if mode == "wrap" else 3 for a in over]
    pads = [s.int(max(low, -(shape[a] // 2)), m) for a, m in [*zip(over, most, strict=True)] * 2]
    value = s.values((), x.dtype, full=False) if s.chance(0.5) else None
    if s.opset < 11:
        return [x], {"mode": mode, "pads": pads, "value": None if value is None else float(value)}
    kind = s.pick(np.int32, np.int64)
    return [x, s.vector(pads), value, None if axes is None else np.array(axes, kind)], {
        "mode": mode
    }


@calls("Trilu")
def trilu(s: Source) -> Drawn:
    x = s.values(s.shape(2, 4), s.dtype())
    k = np.array(s.int(-5, 5), np.int64) if s.chance(0.7) else None
    return [x, k], {"upper": s.pick(0, 1, None)}


@calls("Shape")
def shape_of(s: Source) -> Drawn:
    x = s.values(s.shape(0, 4), s.dtype())
    if s.opset < 15:
        return [x], {}
    ends = {n: s.int(-5, 5) for n in ("start", "end") if s.chance(0.5)}
    return [x], ends


@calls("Size")
def size(s: Source) -> Drawn:
    return [s.values(s.shape(0, 4), s.dtype())], {}


@calls("ConstantOfShape")
def constant_of_shape(s: Source) -> Drawn:
    value = s.values((1,), s.pick(np.float32, np.int64, np.bool_, np.int8, np.float16))
    axes = helper.make_tensor("v", helper.np_dtype_to_tensor_dtype(value.dtype), [1], value)
    return [s.vector(s.shape(0, 4))], {"value": axes if s.chance(0.7) else None}


@calls("Range")
def steps(s: Source) -> Drawn:
    dtype = s.dtype(0, "float32", "float64", "int32", "int64", "int16")
    start, limit = (s.values((), dtype, full=False, scale=5.0) for _ in range(2))
    step = s.pick(1, 2, 3, -1, -2, 0.5, 0.1, -0.3) if dtype.kind == "f" else s.pick(1, 2, -1, -3)
    return [start, limit, np.array(step, dtype)], {}


@calls("EyeLike")
def eye(s: Source) -> Drawn:
    dtype = s.pick(None, 1, 6, 7, 9, 11)
    return [s.values(s.shape(2, 2), s.pick(np.float32, np.int64, np.int32))], {
        "dtype": dtype,
        "k": s.int(-3, 3) if s.chance(0.5) else None,
    }


# -- by index --------------------------------------------------------------------------------------


def indices(s: Source, size: int, shape: Any) -> Any:
    low = -size if s.opset >= 11 else 0
    return s.rng.integers(low, size, shape).astype(s.pick(np.int32, np.int64))


@calls("Gather")
def gather(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    axis = s.axis(len(shape))
    index = indices(s, shape[axis], s.shape(0, 2))
    return [s.values(shape, s.dtype()), index], {"axis": axis if s.chance(0.8) else None} if (
        axis % len(shape) == 0
    ) else {"axis": axis}


@calls("GatherElements")
def gather_elements(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    axis = s.axis(len(shape))
    taken = [s.int(1, d) for d in shape]
    taken[axis] = s.size()
    return [s.values(shape, s.dtype()), indices(s, shape[axis], taken)], {"axis": axis}


@calls("GatherND")
def gather_nd(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    batch = s.int(0, len(shape) - 1) if s.opset >= 12 else 0
    depth = s.int(1, len(shape) - batch)
    before = (*shape[:batch], *s.shape(0, 2))
    parts = [s.rng.integers(-d, d, before) for d in shape[batch : batch + depth]]
    index = np.stack(parts, -1).astype(np.int64).reshape(*before, depth)
    return [s.values(shape, s.dtype()), index], {"batch_dims": batch if batch else None}


def reductions(s: Source) -> str | None:
    if s.opset < 16:
        return None
    names = ("none", "add", "mul", None) + (("max", "min") if s.opset >= 18 else ())
    return s.pick(*names)  # type: ignore[no-any-return]


@calls("ScatterElements")
@calls("Scatter", until=10)
def scatter_elements(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    axis = s.axis(len(shape)) if s.opset >= 11 else s.int(0, len(shape) - 1)
    how, dtype = reductions(s), s.dtype()
    if s.op == "Scatter":
        how = None
    taken = [s.int(1, d) for d in shape]
    if how in (None, "none"):  # which of two updates of one place stays is not said
        order = np.argsort(s.rng.random(shape), axis)
        index = order[tuple(slice(t) for t in taken)].astype(s.pick(np.int32, np.int64))
        if s.opset >= 11:
            index = np.where(s.rng.random(index.shape) < 0.3, index - shape[axis], index)
    else:
        taken[axis] = s.size(False)
        index = indices(s, shape[axis], taken)
    return [s.values(shape, dtype, full=False), index, s.values(index.shape, dtype, full=False)], {
        "axis": axis,
        "reduction": how,
    }


@calls("ScatterND")
def scatter_nd(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    how, dtype, depth = reductions(s), s.dtype(), s.int(1, len(shape))
    places = int(np.prod(shape[:depth]))
    if how in (None, "none"):
        flat = s.rng.permutation(places)[: s.int(0, places)]
    else:
        flat = s.rng.integers(0, places, s.int(0, 6))
    index = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64)
    if s.opset >= 11 and s.chance(0.3):
        index = index - np.array(shape[:depth])
    x = s.values(shape, dtype, full=False)
    return [x, index, s.values((len(flat), *shape[depth:]), dtype, full=False)], {"reduction": how}


@calls("OneHot")
def one_hot(s: Source) -> Drawn:
    depth, shape = s.int(1, 5), s.shape(0, 3)
    values = s.values((2,), s.dtype(2, "float32", "int64", "int32", "float64", "bool"), full=False)
    kind = s.pick(np.int64, np.int32, np.float32)
    x = s.rng.integers(-depth - 1 if s.opset >= 11 else 0, depth + 2, shape).astype(kind)
    axis = s.int(-len(shape) - 1, len(shape)) if s.chance(0.6) else None
    held = np.array(depth, s.pick(np.int64, np.int32, np.float32)).reshape(s.pick((), (1,)))
    return [x, held, values], {"axis": axis}


@calls("Compress")
def compress(s: Source) -> Drawn:
    shape = s.shape(1, 4)
    x = s.values(shape, s.dtype())
    axis = s.axis(len(shape)) if s.chance(0.7) else None
    if axis is not None and s.opset < 11:
        axis %= len(shape)
    length = x.size if axis is None else shape[axis]
    return [x, s.values((s.int(0, length),), bool)], {"axis": axis}


@calls("NonZero")
def non_zero(s: Source) -> Drawn:
    only = ("float32", "int64", "bool", "int32", "uint8")
    return [s.values(s.shape(1, 4), s.dtype(0, *only))], {}


@calls("Unique", since=11)
def unique(s: Source) -> Drawn:
    # of nothing Unique of onnxruntime ends the process
    x = s.values(s.shape(1, 4, empty=False), s.dtype(0, "float32", "float64", "int64", "int8"))
    if s.chance(0.3):
        x = np.sign(x).astype(x.dtype)  # more that are equal
    if s.chance(0.2):
        x = np.array(["b", "a", "", "Ä", "ab"], object)[s.rng.integers(0, 5, x.shape)]
    axis = s.axis(x.ndim) if s.chance(0.5) else None
    return [x], {"axis": axis, "sorted": s.pick(0, 1, None)}, s.int(1, 4)


@calls("ReverseSequence")
def reverse_sequence(s: Source) -> Drawn:
    shape = s.shape(2, 4, empty=False)
    time = s.int(0, 1)
    lengths = s.rng.integers(0, shape[time], shape[1 - time], endpoint=True).astype(np.int64)
    return [s.values(shape, s.dtype()), lengths], {"time_axis": time, "batch_axis": 1 - time}


@calls("DepthToSpace", "SpaceToDepth")
def blocks(s: Source) -> Drawn:
    b, c, h, w = s.pick(1, 2, 3), s.int(1, 3), s.int(1, 3), s.int(1, 3)
    mode = s.pick("DCR", "CRD", None) if s.opset >= 11 and s.op == "DepthToSpace" else None
    shape = (s.int(1, 2), c * b * b, h, w) if s.op == "DepthToSpace" else (1, c, h * b, w * b)
    return [s.values(shape, s.dtype())], {"blocksize": b, "mode": mode}


@calls("CenterCropPad")
def center(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    axes = s.axes(len(shape)) if s.chance(0.6) else None
    sizes = s.ints(len(shape) if axes is None else len(axes), 1, 8)
    return [s.values(shape, s.dtype()), s.vector(sizes)], {"axes": axes}
