"""Rules for identity, shapes, optionals, and constants generated from numbers."""

from __future__ import annotations

import math

import numpy as np

from ....common.dtypes import NDArray, as_shape
from ....common.errors import ModelFormatError, UnsupportedOp
from ....ir.tensor import Tensor
from ....ops import arange, eye, full, reshape
from ..nodes.cpu_node import describe
from ..nodes.elements import ANY, EVERY, numpy_of, storage, to_storage
from ..nodes.node import NodeContext
from ..nodes.values import EMPTY, Value, known
from .registry import rule

KNOWN_ELEMENTS = 1 << 16
"""Constants up to this size are computed on the CPU, so that they can be folded."""


@rule("Identity", types=EVERY)
def identity(n: NodeContext) -> Value:
    return n.value(0)


@rule("Shape", types=EVERY)
def shape(n: NodeContext) -> Value:
    rank = len(n.shape(0))
    start, end = n.attr("start", 0), n.attr("end", rank)
    return known(np.array(n.shape(0)[slice(start, end)], np.int64))


@rule("Size", types=EVERY)
def size(n: NodeContext) -> Value:
    return known(np.array(np.prod(n.shape(0), dtype=np.int64), np.int64))


@rule("Reshape", types=ANY)
def reshape_rule(n: NodeContext) -> Tensor:
    sizes, old = n.ints(1), n.shape(0)
    if not n.attr("allowzero", 0):
        copied = [i for i, d in enumerate(sizes) if d == 0]
        n.require(all(i < len(old) for i in copied), f"shape {sizes} for {old}")
        sizes = tuple(old[i] if d == 0 else d for i, d in enumerate(sizes))
        if -1 in sizes and any(old[i] == 0 for i in copied):
            # an empty tensor: -1 is inferred from the axes that are not copied
            rest = math.prod(d for i, d in enumerate(old) if i not in copied)
            others = math.prod(d for i, d in enumerate(sizes) if i not in copied and d != -1)
            n.require(others > 0 and rest % others == 0, f"shape {sizes} for {old}")
            sizes = tuple(rest // others if d == -1 else d for d in sizes)
    return reshape(n.tensor(0), sizes)


# -- optionals -----------------------------------------------------------------------------------


@rule("Optional", types=EVERY)
def optional(n: NodeContext) -> Value:
    return n.value(0) if n.has(0) else EMPTY


def _is_empty(n: NodeContext) -> bool:
    return not n.has(0) or (not n.value(0).is_tensor and n.value(0).items is None)


@rule("OptionalHasElement", types=EVERY)
def optional_has_element(n: NodeContext) -> Value:
    return known(np.array(not _is_empty(n)))


@rule("OptionalGetElement", types=EVERY)
def optional_get_element(n: NodeContext) -> Value:
    n.require(not _is_empty(n), "an empty optional")
    return n.value(0)


# -- generated from numbers ---------------------------------------------------------------------


@rule("ConstantOfShape", types=ANY)
def constant_of_shape(n: NodeContext) -> Tensor | Value:
    fill = n.attr("value")
    one: NDArray = np.zeros(1, np.float32) if fill is None else fill
    n.require(one.size == 1, f"{one.size} elements as its value")
    wanted = as_shape(n.ints(0))
    n.require(all(d >= 0 for d in wanted), f"shape {wanted}")
    if math.prod(wanted) <= KNOWN_ELEMENTS:
        return known(np.full(wanted, one.reshape(()), one.dtype))
    held = to_storage(one)
    return full(wanted, held.item(), str(held.dtype))


@rule("Range", types=ANY)
def range_rule(n: NodeContext) -> Tensor | Value:
    dtype = numpy_of(n.elem_type(0))
    start, limit = (n.known(i).reshape(()) for i in range(2))
    delta: NDArray = n.known(2).reshape(()) if n.has(2) else np.ones((), dtype)
    if not delta:
        raise ModelFormatError(f"[onnx] {describe(n.node)}: expected a step other than 0")
    with np.errstate(all="ignore"):
        count = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
        if dtype.kind in "iu":
            count = max(0, -((int(start) - int(limit)) // int(delta)))
        if count > KNOWN_ELEMENTS:
            return arange(start.item(), limit.item(), delta.item(), storage(n.elem_type(0)))
        wide = dtype if dtype.kind in "iu" or dtype.itemsize == 8 else np.dtype(np.float32)
        steps = np.arange(count).astype(wide) * delta.astype(wide)
        return known((start.astype(wide) + steps).astype(dtype))


@rule("EyeLike", types=ANY)
def eye_like(n: NodeContext) -> Tensor | Value:
    elem_type, diagonal = n.attr("dtype", n.elem_type(0)), n.attr("k", 0)
    rows, columns = n.shape(0)
    if rows * columns <= KNOWN_ELEMENTS:
        return known(np.eye(rows, columns, diagonal).astype(numpy_of(elem_type)))
    if storage(elem_type) == "bool":
        raise UnsupportedOp("EyeLike of bool")
    return eye(rows, columns, diagonal, storage(elem_type))
