"""Lowering: one call of an op as dispatches on a device with given limits, and what they need.

The one door to kernels: planner, runtime and tests come through here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from ..errors import UnsupportedOp
from ..types import NDArray, TensorType
from .op import Attrs, Call, Dispatch, Limits, Op

SCRATCH_ALIGN_WORDS = 16
"""Every scratch buffer starts at a multiple of this many words."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """dispatches: in order. scratch: words of each scratch buffer that they use, by number."""

    dispatches: tuple[Dispatch, ...]
    scratch: tuple[int, ...] = ()

    @property
    def scratch_words(self) -> int:
        """Words of all scratch buffers, one behind the other."""
        return sum(_aligned(words) for words in self.scratch)

    def scratch_offset(self, number: int) -> int:
        """Returns where a scratch buffer starts among all of them, in words."""
        return [0, *accumulate(_aligned(words) for words in self.scratch)][number]


def _aligned(words: int) -> int:
    return -(-max(words, 1) // SCRATCH_ALIGN_WORDS) * SCRATCH_ALIGN_WORDS


def infer(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    """Returns the result type of a call.

    Raises:
        ShapeError, DTypeError: the op does not take such operands.
    """
    return op.infer(inputs, attrs)


def compute(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Returns the result of the op's numpy reference, which may be a view of an input."""
    return op.reference(inputs, attrs)


def lower(op: Op, call: Call) -> Lowering:
    """Returns the dispatches of a call; none for an empty result that needs no work.

    Raises:
        UnsupportedOp: a device with these limits cannot run this call; the text says why.
    """
    if op.kernel is None:
        raise UnsupportedOp(f"{op.name} has no kernel{op.gap and ': '}{op.gap}")
    lowering = Lowering(op.kernel.lower(call), op.kernel.scratch(call))
    _check(lowering, call.limits)
    return lowering


def _check(lowering: Lowering, limits: Limits) -> None:
    for dispatch in lowering.dispatches:
        if len(dispatch.operands) > limits.storage_buffers:
            raise UnsupportedOp(
                f"{dispatch.shader} binds {len(dispatch.operands)} buffers, the device "
                f"allows {limits.storage_buffers}"
            )
        if any(g > m for g, m in zip(dispatch.groups, limits.max_groups, strict=True)):
            raise UnsupportedOp(f"{dispatch.shader} needs {dispatch.groups} groups")
    needed = lowering.scratch_words * 4
    if needed > limits.max_buffer_bytes:
        raise UnsupportedOp(
            f"it needs {needed} bytes beside its result, over the largest buffer of "
            f"{limits.max_buffer_bytes}"
        )
