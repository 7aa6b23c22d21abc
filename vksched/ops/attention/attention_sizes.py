"""Sizes of a call of attention, in any layout of its operands."""

from __future__ import annotations

from dataclasses import dataclass

from ...common.dtypes import INT32, INT64, Shape, TensorType
from ...ir.attrs import Attrs
from ...ir.op import Call


def by_heads(inputs: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the types of q, k and v in BHSD layout."""
    return tuple(
        TensorType((t.shape[0], t.shape[2], t.shape[1], t.shape[3]), t.dtype) if bshd else t
        for t, bshd in zip(inputs[:3], attrs.as_ints("is_bshd")[:3], strict=True)
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a call: `batches` counts key heads of all examples, `rows` queries of each.

    `planned` is the number of batches by which variants and parts of the keys are chosen: with
    slots the key heads of one example, so that its result does not depend on their number.
    """

    batches: int
    planned: int
    heads: int
    rows: int
    queries: int
    keys: int
    depth: int
    columns: int


def sizes_of(call: Call) -> Sizes:
    """Return the sizes of a call; operand 1 determines the number of keys."""
    q, k, _ = (t.shape for t in by_heads(call.inputs, call.attrs))
    columns = call.output.shape[3]
    batches = q[0] * k[1]
    planned = k[1] if has_slots(call) else batches
    return Sizes(batches, planned, k[1], q[1] // max(1, k[1]) * q[2], q[2], k[2], q[3], columns)


def has_slots(call: Call) -> bool:
    """Return True if the examples of a call with a KV cache have slots."""
    return any(
        t.dtype in (INT32, INT64) and are_slots(t.shape, call.attrs) for t in call.inputs[3:4]
    )


def are_slots(used: Shape, attrs: Attrs) -> bool:
    """Return True if each number of keys in use, in an operand of this shape, comes with a slot."""
    return len(used) == 2 and used[1] - has_positions(attrs) == 2


def has_positions(attrs: Attrs) -> bool:
    """Return True if each number of keys in use comes with the position of the first query."""
    return bool(attrs.get("has_positions"))


def kv_len_stride(used: TensorType) -> int:
    """Return the elements between the numbers of keys in use of two examples."""
    return used.shape[1] if used.rank == 2 else used.rank


def chunk_of(attrs: Attrs) -> int:
    """Return the size of the chunks of a KV cache in keys; 0 without chunks."""
    return attrs.as_int("chunk") if "chunk" in attrs else 0
