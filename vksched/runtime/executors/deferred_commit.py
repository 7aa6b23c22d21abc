"""DeferredCommit: a write of states that a run does not wait for; and the results of runs.

    run N      wait for results | register, submit the commit, return
    caller                      |  reads the results, prepares the next inputs
    run N + 1                   |  wait for the commit | submit

The commit usually ends while the caller works. Whoever uses the states next waits for it first,
and learns of its failure (engine/state_turns.py). It is registered there before its submission, so
that an interrupt at any time leaves none that nobody waits for.

Examples: tests/engine/test_deferred_commits.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...common.dtypes import NDArray
from ...plan.plan import Plan
from ...trace import Event
from ..run_stats import RunStats


@dataclass(slots=True)
class RunResult:
    """Results of a run.

    Parameters
    ----------
    outputs
        The outputs, in the order of `Graph.outputs`.
    next_states
        The next values of states, in the order of `Graph.backed_up_states`.
    plan_and_stats
        The plan of this run and its statistics, once it is done.
    commit
        The write of states, if the run has not waited for it.
    are_states_recorded
        True once the state table knows the next values.
    are_stats_recorded
        True once the statistics are in the history.
    """

    outputs: tuple[NDArray, ...]
    next_states: tuple[NDArray, ...] = ()
    plan_and_stats: tuple[Plan, RunStats] | None = None
    commit: DeferredCommit | None = None
    are_states_recorded: bool = False
    are_stats_recorded: bool = False


class CommitFailed(Exception):
    """A run is complete, but the states of some devices may be old or torn.

    Parameters
    ----------
    cause
        The original error.
    results
        The results of the run.
    devices
        The devices of these states.
    """

    def __init__(self, cause: BaseException, results: RunResult, devices: frozenset[int]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.results = results
        self.devices = devices


class DeferredCommit:
    """A write of states that a run submits and does not wait for; safe for threads.

    Parameters
    ----------
    finish
        Waits for it, after an interrupt also submits the rest; raises CommitFailed. It calls no
        sinks: it adds their events to `events`.
    errors
        The errors of the submission.
    """

    def __init__(
        self, finish: Callable[[DeferredCommit], None], errors: Sequence[BaseException]
    ) -> None:
        self._finish: Callable[[DeferredCommit], None] | None = finish
        self._errors = errors
        self._failure: CommitFailed | None = None
        self._lock = threading.RLock()
        """Held while a thread submits or finishes it."""
        self._busy = False
        """True while the thread with the lock is in `submit` or `wait`."""
        self.begun = False
        """True once it is registered; it will be complete, or a device has failed."""
        self.events: list[Event] = []
        """The events of its end, for the sinks."""

    @property
    def pending(self) -> bool:
        """Return True until it has been waited for."""
        return self.begun and self._finish is not None

    @property
    def failed(self) -> bool:
        """Return True if its submission failed."""
        return bool(self._errors)

    def submit(self, register: Callable[[], None], submit: Callable[[], None]) -> None:
        """Register it, then submit it; other threads that wait for it wait for this, too.

        Parameters
        ----------
        register
            Lets the next user of the states wait for it.
        submit
            Submits it; adds its errors to `errors`.
        """
        with self._lock:
            try:
                self._busy = True
                register()
                self.begun = True
                submit()
            finally:
                self._busy = False

    def wait(self) -> CommitFailed | None:
        """Wait for the commit, once; return its failure. A call from within `submit` or `wait`
        returns at once.
        """
        with self._lock:
            if self._finish is not None and self.begun and not self._busy:
                try:
                    self._busy = True
                    self._finish(self)
                    self._finish = None  # and so its arrays
                except CommitFailed as failure:
                    self._failure, self._finish = failure, None
                finally:
                    self._busy = False
            return self._failure
