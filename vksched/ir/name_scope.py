"""Name scopes for placements and configs, and pipeline positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar, cast

from ..common.errors import VkschedError

BACKWARD = "backward"
"""Innermost name scope of the nodes that `grad` creates."""

RESERVED = {"pipeline": "is a key of configs", BACKWARD: "is the scope of gradients"}
"""Names that are not allowed for signals, with the reason."""

_scopes: ContextVar[tuple[str, ...]] = ContextVar("vksched_scopes", default=())

_turn: ContextVar[int | None] = ContextVar("vksched_turn", default=None)

Function = TypeVar("Function", bound=Callable[..., Any])


def current_scope() -> str:
    """Return the current name prefix: "" or a prefix that ends with a dot."""
    return "".join(f"{name}." for name in _scopes.get())


class name_scope:
    """Context manager that prefixes the names of values, for use in placement patterns.

    `with vs.name_scope("layer.0"):` names a weight "w" created inside "layer.0.w". A scope may be
    entered repeatedly, and may decorate a function.

    Raises
    ------
    VkschedError
        The name is empty, or it decorates a class, a generator function or a coroutine function.
    """

    def __init__(self, name: str) -> None:
        if not name:
            raise VkschedError("[name_scope] expected a name, got an empty string")
        self.name = name

    def __enter__(self) -> None:
        _scopes.set((*_scopes.get(), self.name))

    def __exit__(self, *_: object) -> None:
        # a generator may exit after scopes that were entered later: remove its innermost name
        names = _scopes.get()
        if self.name in names:
            at = len(names) - 1 - names[::-1].index(self.name)
            _scopes.set(names[:at] + names[at + 1 :])

    def __call__(self, function: Function) -> Function:
        lazy = isgeneratorfunction(function) or isasyncgenfunction(function)
        if isclass(function) or lazy or iscoroutinefunction(function):
            raise VkschedError(
                f"[name_scope] expected a function that creates values when it is called, got "
                f"{function!r}; try `with` inside it"
            )

        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(Function, inside)


class signal(name_scope):
    """Name scope that a config may refer to (docs/guides/sharding-and-pipelines.md).

    Without a config it is a plain name scope. `with vs.signal("encoder.0"):` names a value "h"
    created inside "encoder.0.h". Signals nest, and may decorate a function.

    Raises
    ------
    VkschedError
        The name is ambiguous in a config: it is empty, contains *, ? or [, starts or ends with a
        dot, is "pipeline", or has "backward" as a component.
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
    """Return the current pipeline position, or None."""
    return _turn.get()


@contextmanager
def turn(number: int) -> Iterator[None]:
    """Assign a pipeline position to the values computed inside.

    Each device executes positions in order, and sends the results of one before it starts the next.
    Parts of a graph that use several devices thus form a pipeline.
    """
    token = _turn.set(number)
    try:
        yield
    finally:
        _turn.reset(token)


@contextmanager
def backward_scope(name: str) -> Iterator[None]:
    """Return the scope of the backward pass of a tensor: "layer.0.backward" for "layer.0.h",
    independent of the scope in which `grad` is called.
    """
    inside = name.rpartition(".")[0]
    token = _scopes.set((inside, BACKWARD) if inside else (BACKWARD,))
    try:
        yield
    finally:
        _scopes.reset(token)
