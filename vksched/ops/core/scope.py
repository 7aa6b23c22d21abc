"""Scopes: prefixes of the names of values, by which placements and configs speak of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...errors import VkschedError

BACKWARD = "backward"
"""The innermost scope of what `grad` makes."""

_scope: ContextVar[str] = ContextVar("vksched_scope", default="")


def current_scope() -> str:
    """Returns the prefix of names that are made now: "" or one that ends in a dot."""
    return _scope.get()


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Prefixes the names of what is made inside, so that placement patterns can address it.

    `with vs.scope("layer.0"):` names a weight "w" made inside "layer.0.w".
    """
    if not name:
        raise VkschedError("[scope] expected a name, got an empty string")
    token = _scope.set(f"{_scope.get()}{name}.")
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def signal(name: str) -> Iterator[None]:
    """A scope that a config may speak of (docs/config.md); without a config no more than that.

    `with vs.signal("encoder.0"):` names a value "h" made inside "encoder.0.h". Signals nest, and
    may decorate a function.

    Raises:
        VkschedError: a name that a config could not tell from others: empty, with *, ? or [, or
            with a dot at an end.
    """
    clear = isinstance(name, str) and name.strip(".") == name and not set(name) & set("*?[")
    if not clear or not name:
        raise VkschedError(
            f"[signal] expected a name without *, ? and [, and without dots at its ends, got "
            f'{name!r}; try "encoder.0"'
        )
    with scope(name):
        yield


@contextmanager
def backward_scope(name: str) -> Iterator[None]:
    """Names what is made inside as the backward pass of a tensor of that name: that of "layer.0.h"
    is made in the scope "layer.0.backward", wherever `grad` is called.
    """
    inside = name.rpartition(".")[0]
    token = _scope.set(f"{inside}.{BACKWARD}." if inside else f"{BACKWARD}.")
    try:
        yield
    finally:
        _scope.reset(token)
