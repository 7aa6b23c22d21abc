"""State locks: give states to one run, read or write at a time.

    run 0: states a, b   |######|
    run 1: states c      |####|            shares no state with run 0, so both run at once
    run 2: states b, c          |####|     after both
    run 3: states c                  |##|  after run 2, in the order of their requests

An observer may read further states inside its run. It does not wait for requests that have not
begun, and raises PlanError where two observers would wait for each other. Complexity: O(threads)
for each request. Examples: tests/engine/test_concurrent_states.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..common.errors import PlanError
from ..ir.tensor import Tensor


@dataclass(eq=False)
class _Claim:
    """The states that a thread holds or waits for. nested: the thread holds others already."""

    thread: int
    states: frozenset[Tensor]
    nested: bool
    is_held: bool = False


class StateLocks:
    """The states that are in use. All methods are thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._claims: list[_Claim] = []
        """Claims that are held or waiting, in the order of their requests."""

    @property
    def is_holder(self) -> bool:
        """Return True if this thread holds states."""
        me = threading.get_ident()
        return any(claim.thread == me for claim in list(self._claims))

    @contextmanager
    def hold(self, states: frozenset[Tensor]) -> Iterator[None]:
        """Hold states during the block; wait until no other thread holds one of them.

        Raises
        ------
        PlanError
            Two observers would wait for each other's states.
        """
        claim = _Claim(threading.get_ident(), states, self.is_holder)
        try:  # an interrupt may come between any two calls
            with self._changed:
                self._claims.append(claim)
                self._check(claim)
                self._changed.wait_for(lambda: not self._blockers(claim))
                claim.is_held = True
            yield
        finally:
            # without the lock, which an interrupt may prevent it from acquiring
            if claim in self._claims:
                self._claims.remove(claim)
            if self._claims:
                with self._changed:
                    self._changed.notify_all()

    def _blockers(self, claim: _Claim) -> list[_Claim]:
        """Return the claims for which a claim waits."""
        out = []
        for other in list(self._claims):
            if other is claim:
                if not claim.nested:
                    break
            elif other.thread != claim.thread and (other.is_held or not claim.nested):
                if not claim.states.isdisjoint(other.states):
                    out.append(other)
        return out

    def _check(self, claim: _Claim) -> None:
        """Raise PlanError if a nested claim would wait for a thread that waits for this one."""
        if claim.nested and self._waits_for(claim, claim.thread):
            names = ", ".join(sorted(repr(state.name) for state in claim.states))
            raise PlanError(
                f"[state] expected {names} to be free sooner or later, got an observer that waits "
                "for this one; try to read it after the run"
            )

    def _waits_for(self, claim: _Claim, thread: int) -> bool:
        for blocker in self._blockers(claim):
            waiting = (c for c in self._claims if c.thread == blocker.thread and not c.is_held)
            if blocker.thread == thread or any(self._waits_for(c, thread) for c in waiting):
                return True
        return False
