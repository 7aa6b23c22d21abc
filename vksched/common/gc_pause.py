"""Pause of Python's cyclic garbage collector while large graphs and plans are built.

A plan of 100,000 nodes consists of millions of small live objects. Scanning them repeatedly takes a
sixth of the planning time and frees nothing, as does scanning while graphs are built and rewritten.
Garbage of other threads is collected afterwards.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .fork_guard import in_child

LARGE = 1_000
"""Minimum number of nodes for a pause."""

_lock = threading.Lock()
_resting = 0
_was_on = False


@in_child
def _wake_in_child() -> None:
    """Restore the collector in a forked child, which has no threads that build plans."""
    global _lock, _resting
    _lock = threading.Lock()
    if _resting and _was_on:
        gc.enable()
    _resting = 0


@contextmanager
def resting_collector(nodes: int) -> Iterator[None]:
    """Pause the collector while a plan with this many nodes is built; contexts may overlap."""
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
