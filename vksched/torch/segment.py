"""DeviceSegment: nodes of a graph, compiled on a scheduler."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx

from ..common.dtypes import NDArray
from ..common.errors import IndexOutOfRange
from ..engine.executable import CompiledGraph
from ..ir.tensor import Tensor
from .convert import to_array, to_tensor
from .lower import SEED, CallLowering, declare_input, is_whole, value_of
from .partition import Segment, eager_module
from .runtime import Runtime
from .saved_values import SavedValues


class EagerSegment:
    """Nodes that run in eager PyTorch."""

    def __init__(self, module: fx.GraphModule, segment: Segment) -> None:
        self.segment = segment
        self._run = eager_module(module, segment)

    def __call__(self, values: Sequence[Any]) -> dict[fx.Node, Any]:
        """Return the outputs for the inputs in the order of the segment."""
        with torch.no_grad():
            found: Sequence[Any] = self._run(*values)
        return dict(zip(self.segment.outputs, found, strict=True))


class DeviceSegment:
    """Nodes that run on the devices of a scheduler.

    Parameters
    ----------
    runtime
        The scheduler and its options.
    leaves
        The weights and states of placeholders; all other inputs are passed to each run.
    saved
        The values of a forward graph that stay on devices; None if there are none.

    Attributes
    ----------
    placement
        The placement patterns that match a node of this segment, and their devices.
    """

    def __init__(
        self,
        runtime: Runtime,
        module: fx.GraphModule,
        segment: Segment,
        leaves: Mapping[fx.Node, Tensor],
        saved: SavedValues | None = None,
    ) -> None:
        self.segment = segment
        self._module = module
        self._eager: EagerSegment | None = None
        lowering = CallLowering(module)
        self._feeds: list[tuple[int, str]] = []
        for position, node in enumerate(segment.inputs):
            value = value_of(node)
            if node in leaves:
                lowering.values[node] = leaves[node]
            elif isinstance(value, torch.Tensor):
                lowering.values[node] = declare_input(node.name, value)
                self._feeds.append((position, node.name))
            else:
                lowering.values[node] = value
        for node in segment.nodes:
            lowering.lower(node)
        self._whole = [i for i, node in enumerate(segment.inputs) if node in lowering.whole]
        updates: dict[Tensor, Tensor] = {}
        self._outputs = segment.outputs
        if saved is not None:
            updates = saved.hold({node: lowering.values[node] for node in segment.outputs})
            self._outputs = tuple(n for n in segment.outputs if n not in saved.tensors)
        self._results = _Results(self._outputs, lowering.values)
        tensors = _tensors_of((*self._results.tensors, *updates.values()))
        read = {t.name for t in tensors if t.op == "input"}
        self._feeds = [feed for feed in self._feeds if feed[1] in read]
        self._random = SEED in read
        names = [t.name for t in tensors if t.op != "constant"]
        self.placement = {
            pattern: device
            for pattern, device in runtime.placement.items()
            if any(fnmatchcase(name, pattern) for name in names)
        }
        self.compiled: CompiledGraph = runtime.scheduler.compile(
            self._results.tensors, self.placement or None, updates=updates or None
        )
        weakref.finalize(self, runtime.memory.unused.append, self.compiled).atexit = False

    def __call__(self, values: Sequence[Any]) -> dict[fx.Node, Any]:
        """Return the outputs for the inputs in the order of the segment. A run on devices leaves
        saved values there.
        """
        if not all(is_whole(values[position]) for position in self._whole):
            return self._run_eager(values)
        feeds = {name: to_array(values[position]) for position, name in self._feeds}
        if self._random:
            seed = torch.randint(-(2**31), 2**31 - 1, (1,), dtype=torch.int64)
            feeds[SEED] = seed.to(torch.int32).numpy()
        try:
            arrays: Any = self.compiled(**feeds)
            return dict(zip(self._outputs, self._results.unpack(arrays), strict=True))
        except IndexOutOfRange:  # int64 values that 32 bits cannot hold, or a wrong index
            return self._run_eager(values)

    def _run_eager(self, values: Sequence[Any]) -> dict[fx.Node, Any]:
        if self._eager is None:
            self._eager = EagerSegment(self._module, self.segment)
        return self._eager(values)


class _Results:
    """The outputs of a segment: distinct Tensors, and the results that each one becomes."""

    def __init__(self, outputs: Sequence[fx.Node], values: Mapping[fx.Node, Any]) -> None:
        self._places: list[Any] = []
        positions: dict[Tensor, int] = {}
        for node in outputs:
            value, example = values[node], value_of(node)
            many = isinstance(value, list)
            parts = list(zip(value, example, strict=False)) if many else [(value, example)]
            places = [self._place(part, like, positions) for part, like in parts]
            self._places.append(places if many else places[0])
        self.tensors = tuple(positions)

    def _place(self, value: Any, example: Any, positions: dict[Tensor, int]) -> Any:
        if not isinstance(value, Tensor):
            return value
        first = value not in positions
        at = positions.setdefault(value, len(positions))
        return _Place(at, first, example.dtype, tuple(example.stride()))

    def unpack(self, arrays: Sequence[NDArray]) -> list[Any]:
        """Return the results of a run as tensors."""
        return [
            [_tensor(p, arrays) for p in place]
            if isinstance(place, list)
            else _tensor(place, arrays)
            for place in self._places
        ]


class _Place:
    """The position of a result in the outputs of a run, and its type."""

    __slots__ = ("at", "dtype", "first", "strides")

    def __init__(self, at: int, first: bool, dtype: Any, strides: tuple[int, ...]) -> None:
        self.at, self.first, self.dtype, self.strides = at, first, dtype, strides


def _tensor(place: Any, arrays: Sequence[NDArray]) -> Any:
    if not isinstance(place, _Place):
        return place
    array = arrays[place.at]
    return to_tensor(array if place.first else array.copy(), place.dtype, place.strides)


def _tensors_of(outputs: Sequence[Tensor]) -> set[Tensor]:
    """Return outputs and all Tensors that they depend on."""
    seen: set[Tensor] = set(outputs)
    stack = list(outputs)
    while stack:
        for source in stack.pop().inputs:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return seen
