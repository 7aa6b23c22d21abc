"""Workers: a few threads for work that must not block the event loop.

    event loop --call(encode, text)--> queue --> thread --result, or ApiError after a limit--> loop

The time limit of a call begins when a thread begins it. The time in the queue has a limit, too.
Calls whose caller has gone before they begin are skipped. The threads are daemons, so that the
process can exit although a call goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from .api_error import ApiError, server_closed

Result = TypeVar("Result")
PROMPTS = "the prompt, template and grammar", "shorter ones"
PICTURES = "the pictures", "fewer or smaller ones"


class Workers:
    """Threads that call functions, each call with a time limit.

    A thread cannot be interrupted: one that exceeds the limit goes on, and its result is dropped.
    The number of waiting calls is bounded, so they cannot accumulate.

    Parameters
    ----------
    threads
        The number of threads.
    limit_s
        The time limit of a call, and of its time in the queue; None sets none.
    waiting
        The maximum number of calls in the queue; None if places of the caller bound it.
    inputs
        What calls read, in the error of their time limit, and smaller ones.
    """

    def __init__(
        self,
        threads: int,
        limit_s: float | None,
        waiting: int | None = 64,
        inputs: tuple[str, str] = PROMPTS,
    ) -> None:
        self._limit_s = limit_s
        self._most = None if waiting is None else threads + waiting
        self._inputs = inputs
        self._threads = threads
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._waiting = 0
        """The number of calls that have not ended; only the event loop changes it."""
        self._lock = threading.Lock()
        self._started = 0
        self._is_closed = False

    async def call(
        self,
        function: Callable[..., Result],
        *args: object,
        dropped: Callable[[Result], object] | None = None,
    ) -> Result:
        """Return the result of a function, called in a thread.

        Parameters
        ----------
        dropped
            Called with the result in the thread if nobody waits for it any more.

        Raises
        ------
        ApiError
            A limit is exceeded, too many calls wait, or the server is closed.
        """
        if self._most is not None and self._waiting >= self._most:
            raise _overloaded()
        call = _Call(self, function, args, dropped)
        self._put(call)
        self._waiting += 1
        try:  # asyncio.wait_for would ignore a cancellation that comes with its future
            await asyncio.wait((call.begun,), timeout=self._limit_s)
            if not call.begun.done() and call.cancel():
                raise _overloaded()
            await asyncio.wait((call.ended,), timeout=self._limit_s)
        except asyncio.CancelledError:
            call.leave()
            raise
        if call.ended.done():
            try:
                return call.ended.result()
            finally:
                del call, args  # the traceback of an error has this frame
        call.leave()
        inputs, smaller = self._inputs
        raise ApiError(
            f"[serve] expected {inputs} to be read within {self._limit_s:g} s, got a longer time; "
            f"try {smaller}, or again later",
            status=503,
            code="timeout",
            retry_after_s=self._limit_s,
        )

    def end_call(self) -> None:
        """Count a call that has ended."""
        self._waiting -= 1

    def _put(self, call: _Call[Result]) -> None:
        with self._lock:
            if self._is_closed:
                raise server_closed()
            self._calls.put(call)  # type: ignore[arg-type]
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=self._run, name="vksched-serve", daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run(server_closed() if self._is_closed else None)
            del call

    def close(self) -> None:
        """End the threads once their calls have ended; calls in the queue fail."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self._calls.put(None)


class _Call(Generic[Result]):
    """A call of a function. begun, ended: futures of the event loop."""

    def __init__(
        self,
        workers: Workers,
        function: Callable[..., Result],
        args: tuple[object, ...],
        dropped: Callable[[Result], object] | None,
    ) -> None:
        self._workers = workers
        self._function, self._args, self._dropped = function, args, dropped
        self._loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[Result] = self._loop.create_future()
        self._lock = threading.Lock()
        self._has_begun = self._is_left = self._has_ended = False

    def cancel(self) -> bool:
        """Return True if the call has not begun, and never will."""
        with self._lock:
            if not self._has_begun and not self._is_left:
                self._skip()
            return self._is_left

    def leave(self) -> None:
        """Drop the result, or the call if it has not begun."""
        with self._lock:
            if not self._has_begun and not self._is_left:
                self._skip()
            self._is_left = True
            if self._has_ended:
                self._drop_result()

    def _skip(self) -> None:
        """Drop the call, which has not begun, with the memory that it would need."""
        self._is_left = True
        del self._function, self._args
        self._workers.end_call()

    def run(self, failure: ApiError | None = None) -> None:
        """Call the function, or raise an error in its place, unless nobody waits for it."""
        with self._lock:
            self._has_begun = not self._is_left
        if not self._has_begun:
            return
        self._post(_set, self.begun, None)
        result = None
        try:
            if failure is not None:
                raise failure
            result = self._function(*self._args)
        except BaseException as error:
            self._end(None, error)
        else:
            self._end(result, None)
        finally:
            # the traceback of an error has this frame: no cycle may keep the inputs of the call
            del self, failure, result

    def _end(self, result: Result | None, error: BaseException | None) -> None:
        with self._lock:
            self._has_ended, self._result, self._failed = True, result, error is not None
            if self._is_left:
                self._drop_result()
        if error is None:
            self._post(_set, self.ended, result)
        else:
            self._post(_fail, self.ended, error)
        self._post(self._workers.end_call)

    def _drop_result(self) -> None:
        if self._dropped is not None and not self._failed:
            self._dropped(self._result)  # type: ignore[arg-type]
            self._dropped = None

    def _post(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function, *args)


def _set(future: asyncio.Future[object], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[object], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # its caller may have gone


def _overloaded() -> ApiError:
    return ApiError(
        "[serve] too many requests are being read; try again later",
        status=503,
        code="overloaded",
        retry_after_s=1,
    )
