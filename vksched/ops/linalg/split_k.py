"""Split-k: the sums of a product are split if its tiles are fewer than the cores of a GPU.

    a, b --the product of each part of k--> scratch (parts, batch, m, n)
         --splitk_reduce--> result + bias, epilogue

A workgroup computes a tile, so cores without a tile would idle while each of the others iterates
over all of k. Parts are added in a fixed order, in float32: results are reproducible. The second
dispatch takes as long as some steps along k, so short sums are not split. Examples:
tests/ops/test_split_k.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...ir.op import OUTPUT, Call, Dispatch
from ...topology.limits import Limits
from ..lowering.chunking import element_parts

PARTS = (2, 3, 4, 6, 8)
"""Numbers of parts that are considered."""
_STEP = 32
"""Steps along k of a part are a multiple of this number, the depth of the deepest tile."""
_SUFFIX = " split "
ASSUMED_CORES = 128
"""Cores of a GPU whose driver does not report them. The order of a product's tiles depends on this
number, as if the GPU were large; no static choice splits by it.
"""
INVOCATIONS_PER_CORE = 256
"""Invocations that occupy a core."""
MIN_GAIN = 1.2
"""Minimum gain that the model must predict: it does not know the device's latencies."""
LEVEL_COST = 5400.0
"""Time of another dispatch and of the barrier before it, in multiply-adds of an invocation: 4 us on
an NVIDIA H100, where a step of the smallest tile of matmul_vec4 takes 19 ns.
"""
BYTE_COST = 16.0
"""Multiply-adds of a GPU in the time of one byte of its memory: 8 on an H100, 20 on a GeForce."""


@dataclass(frozen=True, slots=True)
class SplitK:
    """Parts of k: `whole` parts of `part` steps, and a last one of `rest` steps if it is not 0."""

    part: int
    whole: int
    rest: int

    @property
    def parts(self) -> int:
        return self.whole + (self.rest > 0)


def split_name(variant: str, parts: int) -> str:
    """Return the name of a variant whose sums are split into parts."""
    return f"{variant}{_SUFFIX}{parts}"


def without_split(variant: str) -> str:
    """Return the name of the variant that computes the parts."""
    return variant.partition(_SUFFIX)[0]


def parts_of(variant: str) -> int:
    """Return the number of parts in the name of a variant; 1 if it does not split the sums."""
    return int(variant.partition(_SUFFIX)[2] or 1)


def split_of(variant: str, k: int) -> SplitK | None:
    """Return the parts of k of a variant, or None if it does not split the sums."""
    parts = parts_of(variant)
    if parts == 1:
        return None
    part = -(-k // (parts * _STEP)) * _STEP
    return SplitK(part, *divmod(k, part))


def occupying_invocations(limits: Limits) -> int:
    """Return the number of invocations that occupy a GPU."""
    return (limits.cores or ASSUMED_CORES) * INVOCATIONS_PER_CORE


def reduce_cost(count: int, parts: int, limits: Limits) -> float:
    """Return the time of adding the parts of `count` results, in multiply-adds of the GPU."""
    moved = 4.0 * count * (2 * parts + 1)
    return LEVEL_COST * occupying_invocations(limits) + BYTE_COST * moved


def useful_parts(groups: int, limits: Limits) -> Iterator[int]:
    """Yield the numbers of parts for a product of this many workgroups; none if they fill a GPU."""
    cores = limits.cores or ASSUMED_CORES
    if groups < cores:
        yield from (parts for parts in PARTS if groups * (parts - 1) < 2 * cores)


def split_product(
    call: Call, product: Dispatch, split: SplitK, sums: int, bias: tuple[int, int]
) -> tuple[Dispatch, ...]:
    """Return the dispatches of the parts of k, and of their sum.

    Parameters
    ----------
    product
        The dispatch of the whole product without a bias; its batch has an axis for the parts.
    sums
        The operand of the partial sums.
    bias
        Its kind and the number of values of a bias per row, as in `add_parts`.
    """
    push = dict(product.push)
    strides = {name: _ints(push[name]) for name in ("a_batch", "b_batch")}
    steps = [split.part * _int(push[name]) for name in ("a_column", "b_row")]
    for (name, own), step in zip(strides.items(), steps, strict=True):
        strides[name] = (*own[:-1], step)
    (x, y, z), batches = product.groups, _int(push["batches"]) * split.whole
    parts = replace(
        product,
        operands=(0, 1, 0, sums),
        groups=(x, y, min(z * split.whole, call.limits.max_groups[2])),
        push=(*{**push, **strides, "k": split.part, "batches": batches}.items(),),
        partial=True,
    )
    rest = replace(
        product,
        operands=(0, 1, 0, sums),
        push=(*{**push, "k": split.rest}.items(),),
        shifts=(*(split.whole * step for step in steps), 0, split.whole * call.output.size),
        partial=True,
    )
    kind, bias_rows = bias
    added = add_parts(
        *("matmul", sums, split.parts, call.output.size, call.limits),
        line=call.output.shape[-1],
        bias=(2, kind, max(bias_rows, 1)),
    )
    return (parts, *((rest,) if split.rest else ()), *added)


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _ints(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


def add_parts(
    op: str,
    source: int,
    parts: int,
    count: int,
    limits: Limits,
    line: int = 1,
    bias: tuple[int, int, int] = (OUTPUT, 0, 1),
) -> tuple[Dispatch, ...]:
    """Return the dispatches that add the parts in `source`, each of `count` values.

    Parameters
    ----------
    line
        Values of a row of the result.
    bias
        Its operand, its kind (`has_bias` of shaders/include/matmul.glsl, 0 for none), and the
        number of values of a bias per row.
    """
    operand, kind, rows = bias
    vec4 = count % 4 == 0 and not limits.software
    push = (
        *(("parts", parts), ("count", count), ("n", line)),
        *(("has_bias", kind), ("bias_rows", rows)),
    )
    return tuple(
        Dispatch(
            "splitk_reduce_vec4" if vec4 else "splitk_reduce",
            (source, operand if kind else source, OUTPUT),
            groups,
            (*push, ("first", first), ("last", last)),
            barrier=True,
        )
        for first, last, groups in element_parts(op, count // (4 if vec4 else 1), parts + 1, limits)
    )


SPLIT_K_SHADERS = ("splitk_reduce", "splitk_reduce_vec4")
