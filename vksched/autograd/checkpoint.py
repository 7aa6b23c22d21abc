"""Recomputing: `checkpoint` keeps only what goes into a function and what comes out of it.

The problem: a gradient reads values of the forward pass, so all of them live until the backward
pass has come back to them. A checkpointed function is computed a second time instead, when its
gradient is needed:

    x ── f ── y ── ... ── loss        forward: only x and y live on
    x' ─ f' ─ (values) ── dx          backward: x' is x after dy is there; f' is f on x'

`optimization_barrier` (ops/layout/control.py) is what makes x' another value than x: equal calls of
both are not made one, and none of f' starts before dy is known. Functions may nest: f' then holds
recomputed values of inner functions only until these are recomputed once more. Time is linear in
the nodes. Examples: tests/autograd/test_checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ..common.errors import GradientError
from ..ir.graph import topological_order
from ..ir.tensor import Tensor
from ..ops.layout.control import optimization_barrier

P = ParamSpec("P")
R = TypeVar("R", Tensor, tuple[Tensor, ...], list[Tensor], dict[str, Tensor])


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """One call of a checkpointed function. inputs: the tensors that it was given."""

    inputs: frozenset[Tensor]


_regions: WeakKeyDictionary[Tensor, tuple[Region, ...]] = WeakKeyDictionary()
"""Of each tensor made in checkpointed functions the calls around it, the outermost first."""


def checkpoint(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function of tensors so that its gradient computes its values again, instead of
    keeping them, as jax.checkpoint. Also a decorator.

    function: (tensors, alone or in sequences and dicts, and anything else) -> a tensor, or a
        tuple, list or dict of them. Weights and other tensors that it reads without being given
        them stay as they are.
    """

    if not callable(function):
        raise GradientError(f"[checkpoint] expected a function of tensors, got {function!r}")

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        made = function(*args, **kwargs)
        results = list(_tensors(made))
        if not results:
            raise GradientError(
                f"[checkpoint] expected a function that returns tensors, got {made!r}"
            )
        _mark(results, Region(frozenset(_tensors((*args, *kwargs.values())))))
        return made

    return wrapped


def _tensors(values: object) -> Iterable[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _mark(results: Sequence[Tensor], region: Region) -> None:
    """Notes the region of each tensor that was made from its inputs."""
    inside: set[Tensor] = set()
    for tensor in topological_order(results, stop=region.inputs):
        if any(i in inside or i in region.inputs for i in tensor.inputs):
            inside.add(tensor)
            _regions[tensor] = (region, *_regions.get(tensor, ()))


class Recomputed:
    """The second computation of each region on one walk back, made when it is asked for."""

    def __init__(self) -> None:
        self._events: dict[Region, Tensor] = {}
        self._made: dict[tuple[Tensor, tuple[Region, ...]], Tensor] = {}

    def values_for(self, tensor: Tensor, grad: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the operands of a tensor and itself as its gradient rule is to read them.

        grad: the gradient by the tensor; no region around it is computed again before the first
            gradient that is asked for inside it.
        """
        path = _regions.get(tensor, ())
        if not path:
            return tensor.inputs, tensor
        for region in path:
            self._events.setdefault(region, grad)
        return tuple(self._again(i, path) for i in tensor.inputs), self._again(tensor, path)

    def _again(self, tensor: Tensor, path: tuple[Region, ...]) -> Tensor:
        """Return the tensor that stands for one in the innermost of some nested regions."""
        stack = [(tensor, path)]
        while stack:
            key = stack[-1]
            needed = [k for k in _reads(*key) if k[1] and k not in self._made]
            if key in self._made or not key[1]:
                stack.pop()
            elif needed:
                stack.extend(needed)
            else:
                self._made[key] = self._make(*key)
                stack.pop()
        return self._value((tensor, path))

    def _value(self, key: tuple[Tensor, tuple[Region, ...]]) -> Tensor:
        return self._made[key] if key[1] else key[0]

    def _make(self, tensor: Tensor, path: tuple[Region, ...]) -> Tensor:
        operands = tuple(self._value(key) for key in _reads(tensor, path))
        if not _is_inside(tensor, path):
            (outside,) = operands
            region = path[-1]
            return (
                optimization_barrier(outside, self._events[region])
                if tensor in region.inputs
                else outside
            )
        made = Tensor(tensor.op, operands, tensor.attrs, tensor.type, None, tensor.held)
        made.name = tensor.name
        return made


def _is_inside(tensor: Tensor, path: tuple[Region, ...]) -> bool:
    return _regions.get(tensor, ())[: len(path)] == path


def _reads(tensor: Tensor, path: tuple[Region, ...]) -> list[tuple[Tensor, tuple[Region, ...]]]:
    """Returns what a tensor in some nested regions is made from: its operands there, or itself
    outside of the innermost, where it was made before that.
    """
    if not path:
        return []
    if _is_inside(tensor, path):
        return [(i, path) for i in tensor.inputs]
    return [(tensor, path[:-1])]
