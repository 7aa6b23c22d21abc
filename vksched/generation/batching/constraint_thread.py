"""ConstraintThread: computes the token masks of a constraint while the device computes logits.

    engine   | decode step of token t    | mask of t + 1 -> sample
    thread   | accept(t), mask()   |

Each constrained request has a thread of its own: a grammar that takes forever delays no other
request, and its thread is abandoned.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np

from ..completion import TokenConstraint

Mask = np.ndarray[Any, np.dtype[np.bool_]]
_Job = tuple["int | None", "Future[Mask | None]"]


class ConstraintThread:
    """A thread that advances the constraint of one request."""

    def __init__(self, constraint: TokenConstraint) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(
            target=_work, args=(constraint, self._jobs), name="vksched-constraint", daemon=True
        ).start()

    def next_mask(self, token: int | None) -> Future[Mask | None]:
        """Append a token to the answer unless it is None. Return the mask of the next token, or
        None if the answer is finished.
        """
        future: Future[Mask | None] = Future()
        self._jobs.put((token, future))
        return future

    def close(self) -> None:
        """Let the thread end after its current job."""
        self._jobs.put(None)


def _work(constraint: TokenConstraint, jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        token, future = job
        try:
            if token is not None:
                constraint.accept(token)
            future.set_result(None if constraint.is_finished else constraint.mask())
        except BaseException as error:
            future.set_exception(error)
