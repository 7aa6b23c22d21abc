"""ServerLimits: the bounds of requests, and threads for work that must not block the event loop.

event loop --Workers.call(encode, text)--> thread --result, or ApiError after the limit--> loop
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from .api_error import ApiError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of requests.

    Parameters
    ----------
    body_bytes
        The maximum size of a request's body.
    header_bytes
        The maximum size of a request's headers.
    header_timeout_s, body_timeout_s
        The time in which the headers, and the body, of a request must arrive.
    send_timeout_s
        The time in which a client must take a part of a stream.
    ping_s
        The time between two comments of a stream that keep connections open.
    work_timeout_s
        The time limit of one template, tokenization or grammar.
    connections
        The maximum number of open connections.
    choices
        The maximum of `n`, and of the number of prompts of a request.
    """

    body_bytes: int = 8 << 20
    header_bytes: int = 32 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 30.0
    ping_s: float = 15.0
    work_timeout_s: float = 10.0
    connections: int = 512
    choices: int = 16


class Workers:
    """A few threads, each call with a time limit.

    A thread cannot be interrupted: one that exceeds the limit goes on, and its result is dropped.
    The number of waiting calls is bounded, so they cannot accumulate.
    """

    def __init__(self, threads: int, limit_s: float | None, waiting: int = 64) -> None:
        self._pool = ThreadPoolExecutor(threads, "vksched-serve")
        self._limit_s = limit_s
        self._most = threads + waiting
        self._running = 0

    async def call(self, function: Callable[..., Result], *args: object) -> Result:
        """Return the result of a function, called in a thread.

        Raises
        ------
        ApiError
            The limit is exceeded, or too many calls wait.
        """
        if self._running >= self._most:
            raise ApiError(
                "[serve] too many requests are being read; try again later",
                status=503,
                code="overloaded",
                retry_after_s=1,
            )
        self._running += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        future.add_done_callback(self._ended)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._limit_s)
        except asyncio.TimeoutError:
            raise ApiError(
                f"[serve] expected the prompt, template and grammar to be read within "
                f"{self._limit_s:g} s; try shorter ones, or again later",
                status=503,
                code="timeout",
                retry_after_s=self._limit_s,
            ) from None

    def _ended(self, future: asyncio.Future[Result]) -> None:
        self._running -= 1
        if not future.cancelled():
            future.exception()  # it was raised, or its request is gone

    def close(self) -> None:
        """End the threads once their calls have ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)
