"""State turns: who may use the states of a scheduler now.

    run --turn, defer--> returns             read, write, next run: finish_commit --> turn
                           '-- commit of the run, still pending ----^

Problem: a run may return before its next values are written, sinks may use states during a run, and
an interrupt may come at any time. Method: the run registers its commit before it submits it. The
next user finishes it without the turn, and forgets it only when its outcome is recorded. The thread
that executes a run, or finishes its commit, does not wait for itself.

Examples: tests/engine/test_deferred_commits.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..common.errors import PlanError

Finish = Callable[[], BaseException | None]
"""Waits for a commit, records its outcome, and returns the error to raise."""


class StateTurns:
    """The order of the users of states."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        """Held by the run that uses states, or during a read or write."""
        self._finishing = threading.RLock()
        """Held while a deferred commit is finished; acquired before all other locks."""
        self._deferred: Finish | None = None
        """Finishes the commit of the last run; set during a turn."""
        self._runner: int | None = None
        """The thread of the run that has the turn."""
        self._finisher: int | None = None
        """The thread that finishes a commit."""

    def defer(self, finish: Finish) -> None:
        """Let the next user of states wait for the commit of the current run; called before the
        commit is submitted. finish: may be called again if an interrupt ended it.
        """
        self._deferred = finish

    def finish_commit(self) -> None:
        """Wait for the commit of the last run, if it is deferred; raise its error if it is not a
        device failure that the graph recovers from. A sink that is called meanwhile does not wait.
        """
        if self._deferred is None or self._is_inside():
            return
        error: BaseException | None = None
        with self._finishing:
            if self._deferred is not None:
                try:
                    self._finisher = threading.get_ident()
                    error = self._deferred()
                    self._deferred = None
                finally:
                    self._finisher = None
        if error is not None:
            raise error

    def _is_inside(self) -> bool:
        """Return True if this thread executes a run with states or finishes its commit."""
        return threading.get_ident() in (self._runner, self._finisher)

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """Hold the states after the commit of the last run."""
        while True:
            self.finish_commit()  # without the turn: its error may have the graph planned again
            with self._turn:
                if self._deferred is None or self._is_inside():  # else another run was first
                    yield
                    return

    @contextmanager
    def _run_turn(self) -> Iterator[None]:
        """Hold the states during a run."""
        with self._own_turn():
            if self._is_inside():
                raise PlanError("[run] an observer of a stateful run must not start another one")
            try:
                self._runner = threading.get_ident()
                yield
            finally:
                self._runner = None
