"""Single calls: record the dispatches of one lowering outside of a plan, to check or time it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...ir.op import SCRATCH
from ...ops.lowering.lower import Lowering
from .buffers import Buffer
from .context import Context, Pipeline, Recording
from .shaders import load_shader


class Place(NamedTuple):
    """The location of an operand: a buffer and a word offset in it."""

    buffer: Buffer
    offset: int


class SingleDispatcher:
    """Records calls on one device and holds their pipelines.

    Parameters
    ----------
    apart
        True if every dispatch waits for the preceding one, as separate buffers require.
    """

    def __init__(self, context: Context, apart: bool = False) -> None:
        self._context = context
        self._apart = apart
        self._pipelines: dict[tuple[object, ...], Pipeline] = {}

    def record(
        self, recording: Recording, lowering: Lowering, place: Callable[[int], Place]
    ) -> None:
        """Record the dispatches of a call.

        Parameters
        ----------
        place
            Returns the location of an operand, of the counters and of the first scratch buffer.
        """
        for position, dispatch in enumerate(lowering.dispatches):
            if dispatch.barrier or (position and self._apart):
                recording.barrier("shader", "shader")
            shader = load_shader(dispatch.shader)
            places = [_place(lowering, operand, place) for operand in dispatch.operands]
            values = shader.specialize(dict(dispatch.constants))
            buffers = [p.buffer for p in places]
            key = (shader.name, values, dispatch.steps, dispatch.subgroup, *map(id, buffers))
            if key not in self._pipelines:
                self._pipelines[key] = self._context.pipeline(
                    shader.module(dispatch.steps),
                    buffers,
                    values,
                    shader.push_bytes,
                    dispatch.subgroup,
                )
            shifts = dispatch.shifts or (0,) * len(places)
            offsets = [p.offset + s for p, s in zip(places, shifts, strict=True)]
            push = shader.pack_push(offsets, dict(dispatch.push))
            recording.dispatch(self._pipelines[key], dispatch.groups, push)

    def close(self) -> None:
        """Release the pipelines."""
        for pipeline in self._pipelines.values():
            pipeline.close()
        self._pipelines.clear()


def _place(lowering: Lowering, operand: int, place: Callable[[int], Place]) -> Place:
    if operand > SCRATCH:
        return place(operand)
    first = place(SCRATCH)
    return Place(first.buffer, first.offset + lowering.scratch_offset(SCRATCH - operand))
