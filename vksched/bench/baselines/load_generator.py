"""Load of a language model's server: clients that stream answers over HTTP at the same time.

    client 1: POST /v1/completions --> event, event, ..., usage, [DONE]
    client 2: POST ...                 each event has an arrival time

A client sends one request, with token ids as the prompt, and reads its answer to the end. Latencies
have the meaning of vLLM's benchmark: time to the first token from the request on, and times between
tokens after it. An event is counted as one token: servers hold back incomplete characters, so an
event may have more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

LIMIT_S = 900.0
"""Timeout of an answer."""


@dataclass
class AnswerTimes:
    """One answer. tokens: their number by the server's usage. arrivals_s: times of events with text
    after the request.
    """

    tokens: int = 0
    arrivals_s: list[float] = field(default_factory=list)


@dataclass
class LoadTimes:
    """All answers of a load. seconds: from the first request to the end of the last answer."""

    seconds: float
    answers: list[AnswerTimes]

    @property
    def first_token_s(self) -> list[float]:
        """Return the time to the first token of each answer."""
        return [answer.arrivals_s[0] for answer in self.answers if answer.arrivals_s]

    @property
    def between_tokens_s(self) -> list[float]:
        """Return the times between the tokens of all answers."""
        return [
            later - earlier
            for answer in self.answers
            for earlier, later in zip(answer.arrivals_s, answer.arrivals_s[1:], strict=False)
        ]


def run_load(port: int, prompts: Sequence[Sequence[int]], answer: int) -> LoadTimes:
    """Run a client for each prompt, all at the same time, and return the times.

    answer: tokens of each answer. Raise RuntimeError for an HTTP error, and OSError or TimeoutError
    for a lost connection.
    """
    return asyncio.run(_run_load(port, prompts, answer))


async def _run_load(port: int, prompts: Sequence[Sequence[int]], answer: int) -> LoadTimes:
    start = time.perf_counter()
    clients = (asyncio.wait_for(_stream(port, ids, answer), LIMIT_S) for ids in prompts)
    answers = await asyncio.gather(*clients)
    return LoadTimes(time.perf_counter() - start, list(answers))


async def _stream(port: int, ids: Sequence[int], answer: int) -> AnswerTimes:
    body = {
        "prompt": list(ids),
        "max_tokens": answer,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    found = AnswerTimes()
    start = time.perf_counter()
    async for event in _events(port, json.dumps(body).encode()):
        now = time.perf_counter()
        if any(choice.get("text") for choice in event.get("choices") or ()):
            found.arrivals_s.append(now - start)
        if event.get("usage"):
            found.tokens = int(event["usage"]["completion_tokens"])
        if event.get("error"):
            raise RuntimeError(f"the server answers an error: {event['error']}")
    return found


async def _events(port: int, body: bytes) -> AsyncIterator[dict[str, Any]]:
    """Yield the server-sent events of an answer as JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        is_chunked = any(line.lower() == "transfer-encoding: chunked" for line in lines)
        if status.split(" ")[1] != "200":
            raise RuntimeError(f"the server answers {status}: {(await reader.read(2000))!r}")
        parts = _chunks(reader) if is_chunked else _rest(reader)
        rest = b""
        async for part in parts:
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    yield json.loads(data)
    finally:
        writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a chunked body."""
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the parts of a body that ends with the connection."""
    while part := await reader.read(1 << 16):
        yield part
