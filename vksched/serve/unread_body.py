"""The rest of a body that is refused: it is received and dropped, within bounds.

A connection that is closed with data in its buffer is reset, and the client may lose the error.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.requests import Request

MOST_BYTES = 64 << 20
MOST_SECONDS = 30.0


async def discard_body(request: Request) -> None:
    """Receive the rest of a body, and drop it. A client that waits for "100 Continue" sends none,
    because it reads the error first.
    """
    if request.headers.get("expect", "").lower() == "100-continue":
        return
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_discard(request), MOST_SECONDS)


async def _discard(request: Request) -> None:
    left = MOST_BYTES
    while left > 0:
        message = await request.receive()
        left -= len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
