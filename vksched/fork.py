"""Forked children: drivers and threads stay with the parent, so a child is refused what needs them.

    parent:  Owner() ------------------------------------------------> goes on as if nothing were
                 \\ fork
    child:         in_child calls: new locks, native objects kept for ever; Owner.require raises,
                   closing does nothing, the process ends as usual

Examples: tests/runtime/test_fork.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .errors import DeviceError

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
        """Raises DeviceError in a forked child."""
        if self.forked:
            raise DeviceError(
                f"[fork] expected {what} in the process that opened it ({self.pid}), got a forked "
                f"child ({os.getpid()}); try multiprocessing's spawn context"
            )


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
