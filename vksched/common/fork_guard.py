r"""Guards for objects that belong to one process, such as devices, threads and native memory.

Drivers and threads stay in the parent of a fork. A child is refused operations that need them, and
objects that hold them cannot be pickled.

    parent:  Owner() ------------------------------------------------> continues unchanged
                 \ fork
    child:         in_child calls: new locks, native objects leaked; Owner.require raises,
                   closing has no effect, the process exits as usual

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
"""Number of forks between this process and the process that was started."""


class Owner:
    """The process that opened a resource."""

    __slots__ = ("_forks", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._forks = _forks

    @property
    def forked(self) -> bool:
        """Return True if the current process is a forked child of the owner."""
        return self._forks != _forks

    def require(self, what: str) -> None:
        """Raise DeviceError in a forked child."""
        if self.forked:
            raise DeviceError(
                f"[fork] expected {what} in the process that opened it ({self.pid}), got a forked "
                f"child ({os.getpid()}); try to open it in the child alone, or multiprocessing's "
                "spawn context"
            )


class ProcessBound:
    """Base class of objects that hold devices, threads or memory of their process."""

    __slots__ = ()

    _INSTEAD = "to make one in each process"
    """Alternative to pickling, for error messages."""

    def __reduce__(self) -> NoReturn:
        raise NotPicklable(
            f"[pickle] expected a picklable object, got {type(self).__name__}, which holds "
            f"devices, threads and memory of this process ({os.getpid()}); try {self._INSTEAD}"
        )


def keep_for_ever(thing: object) -> None:
    """Leak an object of the parent in a forked child, so that it is never destroyed there.

    A thread of the parent may have been waiting inside the object; its destructor would wait for
    that thread forever.
    """
    import ctypes  # lazy import: not needed at startup

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def in_child(call: Callable[[], None]) -> Callable[[], None]:
    """Register a function that runs first in every forked child.

    A lock that another thread held at the fork is never released in the child. Replace such locks
    here.
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
    """Renew the locks of cached properties: before Python 3.12 each is shared by all instances."""
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
