"""Python's cyclic garbage collector, at rest while a large plan is made.

A plan of 100,000 nodes is millions of small objects that all live: looking through them again and
again takes a sixth of the planning time and finds nothing. So it is with a graph that is written
and goes through passes. What other threads leave behind is collected afterwards.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .fork_guard import in_child

LARGE = 1_000
"""Nodes from which on it matters."""

_lock = threading.Lock()
_resting = 0
_was_on = False


@in_child
def _wake_in_child() -> None:
    """A forked child has none of the threads that make plans."""
    global _lock, _resting
    _lock = threading.Lock()
    if _resting and _was_on:
        gc.enable()
    _resting = 0


@contextmanager
def resting_collector(nodes: int) -> Iterator[None]:
    """While a plan of so many nodes is made; plans may be made side by side."""
    global _resting, _was_on
    if nodes < LARGE:
        yield
        return
    with _lock:
        if not _resting:
            _was_on = gc.isenabled()
            gc.disable()
        _resting += 1
    try:
        yield
    finally:
        with _lock:
            _resting -= 1
            if not _resting and _was_on:
                gc.enable()
