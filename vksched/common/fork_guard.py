"""Processes: what belongs to one of them. Drivers and threads stay with the parent of a forked
child, so the child is refused what needs them, and nothing that holds them is pickled.

    parent:  Owner() ------------------------------------------------> goes on as if nothing were
                 \\ fork
    child:         in_child calls: new locks, native objects kept for ever; Owner.require raises,
                   closing does nothing, the process ends as usual

Examples: tests/runtime/test_fork.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from typing import NoReturn

from .errors import DeviceError, NotPicklable

_forks = 0
"""How many forks lie between this process and the one that was started."""


class Owner:
    """The process that opened something."""

    __slots__ = ("_forks", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._forks = _forks

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of that process."""
        return self._forks != _forks

    def require(self, what: str) -> None:
        """Raise DeviceError in a forked child."""
        if self.forked:
            raise DeviceError(
                f"[fork] expected {what} in the process that opened it ({self.pid}), got a forked "
                f"child ({os.getpid()}); try to open it in the child alone, or multiprocessing's "
                "spawn context"
            )


class OfProcess:
    """An object that holds devices, threads or memory of its process."""

    __slots__ = ()

    _INSTEAD = "to make one in each process"
    """What to do instead of pickling it, for people."""

    def __reduce__(self) -> NoReturn:
        raise NotPicklable(
            f"[pickle] expected an object of data alone, got {type(self).__name__}, which holds "
            f"devices, threads and memory of this process ({os.getpid()}); try {self._INSTEAD}"
        )


def keep_for_ever(thing: object) -> None:
    """Has an object of the parent never destroyed in a child, not even when the process ends: a
    thread of the parent may have been waiting in it, for which its destruction would wait.
    """
    import ctypes  # no start needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def in_child(call: Callable[[], None]) -> Callable[[], None]:
    """Has something done in every forked child before anything else runs there.

    A lock that another thread held when the process forked is never released in the child: what
    a child may still use gets a new one here.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


@in_child
def _count() -> None:
    global _forks
    _forks += 1


@in_child
def _renew_cached_properties() -> None:
    """Before Python 3.12 all instances of a class compute a cached property under one lock."""
    if sys.version_info >= (3, 12):
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != __name__.partition(".")[0]:
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == name:
                for each in vars(kind).values():
                    if isinstance(each, cached_property):
                        vars(each).update(lock=threading.RLock())
