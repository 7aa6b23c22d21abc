"""Server-sent events of an answer, and waiting for an answer as long as its client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from .api_error import client_left
from .error_log import log_error
from .limits import ServerLimits

Result = TypeVar("Result")
DONE = "[DONE]"


def event_response(
    chunks: AsyncIterator[dict[str, Any]], limits: ServerLimits, *, done: bool = True
) -> EventSourceResponse:
    """Return a stream of JSON objects that ends with [DONE], unless `done` is False. An error ends
    it with an error object.

    If the client leaves, or does not take its data in time, the iterator is closed.
    """
    return EventSourceResponse(
        _events(chunks, done),
        ping=max(1, round(limits.ping_s)),
        send_timeout=limits.send_timeout_s,
        sep="\n",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _events(chunks: AsyncIterator[dict[str, Any]], done: bool) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield _event(to_json(chunk))
    except Exception as error:
        yield _event(to_json(log_error(error).body()))
        return
    if done:
        yield _event(DONE)


def _event(data: str) -> bytes:
    return ServerSentEvent(data, sep="\n").encode()


def to_json(value: object) -> str:
    """Return JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_response(text: str) -> Response:
    """Return a response whose body is JSON already."""
    return Response(text, media_type="application/json")


async def while_connected(
    request: Request,
    work: Awaitable[Result],
    dropped: Callable[[Result], object] | None = None,
) -> Result:
    """Return the result of some work; cancel it and raise ApiError if the client leaves.

    dropped: called with a result that came too late for the cancellation.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    is_needed = False
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_left()
        is_needed = True
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        found, _ = await asyncio.gather(task, gone, return_exceptions=True)
        if not (is_needed or dropped is None or isinstance(found, BaseException)):
            dropped(found)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
