"""Gradient checkpointing: recompute the values of a function in the backward pass instead of
storing them.

The problem: a gradient reads values of the forward pass, so all of them live until the backward
pass reaches them. A checkpointed function is computed a second time instead, when its gradient is
needed:

    x ── f ── y ── ... ── loss        forward: only x and y stay alive
    x' ─ f' ─ (values) ── dx          backward: x' is x after dy is computed; f' is f on x'

`optimization_barrier` (ops/layout/control.py) makes x' distinct from x: equal calls on x and x' are
not merged, and f' does not start before dy is known. Functions may be nested: f' then holds
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
    """One call of a checkpointed function; `inputs` are its tensor arguments."""

    inputs: frozenset[Tensor]


_regions: WeakKeyDictionary[Tensor, tuple[Region, ...]] = WeakKeyDictionary()
"""By tensor created in checkpointed functions, the calls around it, the outermost first."""


def checkpoint(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that its gradient recomputes its values instead of storing them.

    Equivalent of jax.checkpoint; also usable as a decorator.

    Parameters
    ----------
    function
        A function that accepts tensors, alone or in sequences and dicts, and other arguments, and
        returns a tensor, or a tuple, list or dict of tensors. Weights and other tensors that it
        reads from its closure are not recomputed.

    Returns
    -------
    callable
        A function with equal results.

    Raises
    ------
    GradientError
        It is no function, or does not return tensors.
    """

    if not callable(function):
        raise GradientError(f"[checkpoint] expected a function of tensors, got {function!r}")

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        returned = function(*args, **kwargs)
        results = list(_tensors(returned))
        if not results:
            raise GradientError(
                f"[checkpoint] expected a function that returns tensors, got {returned!r}"
            )
        _mark(results, Region(frozenset(_tensors((*args, *kwargs.values())))))
        return returned

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
    """Record the region of each tensor that was computed from its inputs."""
    inside: set[Tensor] = set()
    for tensor in topological_order(results, stop=region.inputs):
        if any(i in inside or i in region.inputs for i in tensor.inputs):
            inside.add(tensor)
            _regions[tensor] = (region, *_regions.get(tensor, ()))


class Recomputed:
    """The recomputation of each region in one backward pass, created on demand."""

    def __init__(self) -> None:
        self._events: dict[Region, Tensor] = {}
        self._copies: dict[tuple[Tensor, tuple[Region, ...]], Tensor] = {}

    def values_for(self, tensor: Tensor, grad: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the operands of a tensor and the tensor itself, as its gradient rule has to read
        them.

        grad: the gradient with respect to the tensor. A region is not recomputed before the first
        gradient within it is known.
        """
        path = _regions.get(tensor, ())
        if not path:
            return tensor.inputs, tensor
        for region in path:
            self._events.setdefault(region, grad)
        return tuple(self._recompute(i, path) for i in tensor.inputs), self._recompute(tensor, path)

    def _recompute(self, tensor: Tensor, path: tuple[Region, ...]) -> Tensor:
        """Return the copy of a tensor in the innermost of some nested regions."""
        stack = [(tensor, path)]
        while stack:
            key = stack[-1]
            needed = [k for k in _reads(*key) if k[1] and k not in self._copies]
            if key in self._copies or not key[1]:
                stack.pop()
            elif needed:
                stack.extend(needed)
            else:
                self._copies[key] = self._make(*key)
                stack.pop()
        return self._value((tensor, path))

    def _value(self, key: tuple[Tensor, tuple[Region, ...]]) -> Tensor:
        return self._copies[key] if key[1] else key[0]

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
        copy = Tensor(tensor.op, operands, tensor.attrs, tensor.type, None, tensor.held)
        copy.name = tensor.name
        return copy


def _is_inside(tensor: Tensor, path: tuple[Region, ...]) -> bool:
    return _regions.get(tensor, ())[: len(path)] == path


def _reads(tensor: Tensor, path: tuple[Region, ...]) -> list[tuple[Tensor, tuple[Region, ...]]]:
    """Return the operands of a tensor in some nested regions, or the tensor outside of the
    innermost one if it was computed before that.
    """
    if not path:
        return []
    if _is_inside(tensor, path):
        return [(i, path) for i in tensor.inputs]
    return [(tensor, path[:-1])]
