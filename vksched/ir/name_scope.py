"""Scopes: prefixes of the names of values, by which placements and configs speak of them; and
turns, the places of values in an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar, cast

from ..common.errors import VkschedError

BACKWARD = "backward"
"""The innermost scope of what `grad` makes."""

RESERVED = {"pipeline": "is a key of configs", BACKWARD: "is what grad makes"}
"""Names that no signal has, and why."""

_scopes: ContextVar[tuple[str, ...]] = ContextVar("vksched_scopes", default=())

_turn: ContextVar[int | None] = ContextVar("vksched_turn", default=None)

Function = TypeVar("Function", bound=Callable[..., Any])


def current_scope() -> str:
    """Return the prefix of names that are made now: "" or one that ends in a dot."""
    return "".join(f"{name}." for name in _scopes.get())


class name_scope:
    """Prefixes the names of what is made inside, so that placement patterns can address it.

    `with vs.name_scope("layer.0"):` names a weight "w" made inside "layer.0.w". A scope may be
    entered again, and may decorate a function.

    Raises:
        VkschedError: the name is empty, or it decorates what makes nothing while it is called.
    """

    def __init__(self, name: str) -> None:
        if not name:
            raise VkschedError("[name_scope] expected a name, got an empty string")
        self.name = name

    def __enter__(self) -> None:
        _scopes.set((*_scopes.get(), self.name))

    def __exit__(self, *_: object) -> None:
        # a generator may end after what was entered later: the innermost of this name goes
        names = _scopes.get()
        if self.name in names:
            at = len(names) - 1 - names[::-1].index(self.name)
            _scopes.set(names[:at] + names[at + 1 :])

    def __call__(self, function: Function) -> Function:
        lazy = isgeneratorfunction(function) or isasyncgenfunction(function)
        if isclass(function) or lazy or iscoroutinefunction(function):
            raise VkschedError(
                f"[name_scope] expected a function that makes values while it is called, got "
                f"{function!r}; try `with` inside it"
            )

        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(Function, inside)


class signal(name_scope):
    """A name scope that a config may refer to (docs/guides/sharding-and-pipelines.md); without a
    config, a plain name scope.

    `with vs.signal("encoder.0"):` names a value "h" made inside "encoder.0.h". Signals nest, and
    may decorate a function.

    Raises:
        VkschedError: a name that a config could not tell from others: empty, with *, ? or [, with
            a dot at an end, "pipeline", or with a part that is "backward".
    """

    def __init__(self, name: str) -> None:
        clear = isinstance(name, str) and name.strip(".") == name and not set(name) & set("*?[")
        if not clear or not name:
            raise VkschedError(
                f"[signal] expected a name without *, ? and [, and without dots at its ends, got "
                f'{name!r}; try "encoder.0"'
            )
        for part, why in RESERVED.items():
            if part == name or (part == BACKWARD and part in name.split(".")):
                raise VkschedError(
                    f"[signal] expected a name of your own, got {name!r}: {part} {why}; "
                    f'try "encoder.0"'
                )
        super().__init__(name)


def current_turn() -> int | None:
    """Return the turn of what is computed now; None where it has none."""
    return _turn.get()


@contextmanager
def turn(number: int) -> Iterator[None]:
    """Give what is computed inside a turn: each device carries out turns in their order, and hands
    on what others need of one before it begins the next one. So parts of a graph that each go
    through several devices flow as a pipeline.
    """
    token = _turn.set(number)
    try:
        yield
    finally:
        _turn.reset(token)


@contextmanager
def backward_scope(name: str) -> Iterator[None]:
    """Name what is made inside as the backward pass of a tensor of that name: that of "layer.0.h"
    is made in the scope "layer.0.backward", wherever `grad` is called.
    """
    inside = name.rpartition(".")[0]
    token = _scopes.set((inside, BACKWARD) if inside else (BACKWARD,))
    try:
        yield
    finally:
        _scopes.reset(token)
