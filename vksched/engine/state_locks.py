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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from ..common.errors import PlanError
from ..ir.tensor import Tensor

POLL_S = 0.1
"""The time after which a waiting run looks again, in case an interrupt prevented its wake-up."""
MAX_NAMES = 4


@dataclass(eq=False)
class _Claim:
    """The states that a thread holds or waits for. nested: the thread holds others already."""

    thread: threading.Thread
    states: frozenset[Tensor]
    nested: bool
    is_held: bool = False
    is_over: bool = False
    wake_ups: SimpleQueue[None] = field(default_factory=SimpleQueue)

    @property
    def is_current(self) -> bool:
        """Return False if its block was left, or its thread has ended."""
        return not self.is_over and self.thread.is_alive()


class StateLocks:
    """The states that are in use. All methods are thread-safe."""

    def __init__(self) -> None:
        # no Condition: an interrupt in its methods, which are Python code, may leave it locked
        self._lock = threading.RLock()
        self._claims: list[_Claim] = []
        """Claims that are held or waiting, in the order of their requests. The list is replaced,
        never changed, so that it is read without the lock. Claims that are no longer current may
        remain after an interrupt; they block nobody.
        """

    @property
    def is_holder(self) -> bool:
        """Return True if this thread holds states."""
        me = threading.current_thread()
        return any(claim.thread is me for claim in self._current())

    @contextmanager
    def hold(self, states: frozenset[Tensor]) -> Iterator[None]:
        """Hold states during the block; wait until no other thread holds one of them.

        Raises
        ------
        PlanError
            Two observers would wait for each other's states.
        """
        claim = _Claim(threading.current_thread(), states, self.is_holder)
        try:  # an interrupt may come between any two calls
            with self._lock:
                self._claims = [*self._current(), claim]
                self._check(claim)
            while not self._take(claim):
                with suppress(Empty):
                    claim.wake_ups.get(timeout=POLL_S)
            yield
        finally:
            claim.is_over = True  # first, because an interrupt may prevent the rest
            with self._lock:
                self._claims = self._current()
            for other in self._claims:
                other.wake_ups.put(None)

    def _current(self) -> list[_Claim]:
        return [claim for claim in self._claims if claim.is_current]

    def _take(self, claim: _Claim) -> bool:
        """Hold the states of a claim, and return True, unless they are in use."""
        with self._lock:
            claim.is_held = not self._blockers(claim)
            return claim.is_held

    def _blockers(self, claim: _Claim) -> list[_Claim]:
        """Return the claims for which a claim waits: held ones, and earlier ones unless it is
        nested. Nested claims may be held before earlier ones.
        """
        out, is_earlier = [], not claim.nested
        for other in self._current():
            if other is claim:
                is_earlier = False
            elif other.thread is not claim.thread and (other.is_held or is_earlier):
                if not claim.states.isdisjoint(other.states):
                    out.append(other)
        return out

    def _check(self, claim: _Claim) -> None:
        """Raise PlanError if a nested claim would wait for a thread that waits for this one."""
        if not claim.nested:
            return
        for blocker in self._blockers(claim):
            for waiting in self._waiting(blocker.thread):
                if self._waits_for(waiting, claim.thread):
                    raise PlanError(
                        f"[state] expected {_names(claim.states)} to be free sooner or later, got "
                        f"it in use by a run with {self._held_by(blocker.thread)}, whose observer "
                        f"waits for {_names(waiting.states)}, while an observer of this run with "
                        f"{self._held_by(claim.thread)} reads it; try to read states after the runs"
                    )

    def _waits_for(self, claim: _Claim, thread: threading.Thread) -> bool:
        return any(
            blocker.thread is thread
            or any(self._waits_for(waiting, thread) for waiting in self._waiting(blocker.thread))
            for blocker in self._blockers(claim)
        )

    def _waiting(self, thread: threading.Thread) -> list[_Claim]:
        return [each for each in self._current() if each.thread is thread and not each.is_held]

    def _held_by(self, thread: threading.Thread) -> str:
        held = (each.states for each in self._current() if each.thread is thread and each.is_held)
        return _names(frozenset[Tensor]().union(*held))


def _names(states: Iterable[Tensor]) -> str:
    """Return the names of states as text, for errors."""
    names = sorted(repr(state.name) for state in states)
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join([*names[:MAX_NAMES], *more])
