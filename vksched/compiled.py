"""Compiled: a graph made ready to run, its runs under way, and its end.

    run(), submit() --> under way --> executor (a slot each)          close(): no more, then wait

Examples: tests/test_closing.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .errors import PlanError
from .plan.plan import Plan
from .runtime.executor import Executor, RunStats
from .types import NDArray

R = TypeVar("R")


class Compiled:
    """A graph made ready to run on the devices of one scheduler."""

    def __init__(self, build: Callable[[], Executor]) -> None:
        self._executor = build()
        self._pool: ThreadPoolExecutor | None = None
        # What follows changes under this condition; who waits for the end is told.
        self._state = threading.Condition()
        self._under_way = 0
        self._accepted: set[Future[Any]] = set()
        self._workers: set[int] = set()
        self._closing = False
        self._closed = False

    @property
    def plan(self) -> Plan:
        return self._executor.plan

    @property
    def last_stats(self) -> RunStats | None:
        """What the last finished run cost; None before the first."""
        return self._executor.last_stats

    def run(self, feeds: Mapping[int, NDArray]) -> tuple[NDArray, ...]:
        """Runs once on the calling thread; the arrays must not change until it is done."""
        with self._state:
            self._require_open()
            self._under_way += 1
        try:
            return self._executor.run(feeds)
        finally:
            with self._state:
                self._under_way -= 1
                self._state.notify_all()

    def submit(
        self, feeds: Mapping[int, NDArray], then: Callable[[tuple[NDArray, ...]], R]
    ) -> Future[R]:
        """Starts a run and returns at once; the arrays must not change until it is done.

        A run that was accepted is carried out, even when `close` is called before it begins.
        """

        def work() -> R:
            with self._state:
                self._workers.add(threading.get_ident())
            return then(self._executor.run(feeds))

        with self._state:
            self._require_open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.plan.copies, thread_name_prefix="vksched-run")
            try:
                future = self._pool.submit(work)
            except RuntimeError as error:
                raise PlanError(f"[submit] the interpreter is shutting down: {error}") from error
            self._accepted.add(future)
        future.add_done_callback(self._forget)
        return future

    def close(self) -> None:
        """Waits for runs under way and accepted ones, then frees what the plan holds; safe to call
        again. Called from a callback of a future, it cancels those that have not begun.
        """
        with self._state:
            first, self._closing = not self._closing, True
            in_worker = threading.get_ident() in self._workers
        if in_worker and self._pool is not None:  # it cannot wait for what only it could run
            with self._state:
                accepted = list(self._accepted)
            self._pool.shutdown(wait=False, cancel_futures=True)
            for future in accepted:
                if future.cancelled():  # the pool leaves out to tell who waits for it
                    future.set_running_or_notify_cancel()
        with self._state:
            if not first:
                if not in_worker:
                    self._state.wait_for(lambda: self._closed)
                return
            self._state.wait_for(lambda: not self._under_way and not self._accepted)
        try:
            if self._pool is not None:
                self._pool.shutdown(wait=False)  # nothing is left in it; this may be its thread
            self._executor.close()
        finally:
            with self._state:
                self._closed = True
                self._state.notify_all()

    def _forget(self, future: Future[Any]) -> None:
        with self._state:
            self._accepted.discard(future)
            self._state.notify_all()

    def _require_open(self) -> None:
        if self._closing:
            raise PlanError(
                "[run] the compiled graph or its scheduler is closed; run it inside the "
                "scheduler's `with`, or compile it again"
            )
