"""HTTP for `serve_load.py`: requests as bytes, so that they can be wrong, and their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

HANG_S = 180.0
"""The time after which an exchange counts as hanging: the server's own limits are 30 s at most."""


class Violation(Exception):
    """The server did something that it must not do."""


@dataclass(frozen=True)
class Response:
    """An answer. status: 0 if the connection ended without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the objects of a stream of server-sent events."""
        lines = self.body.decode().split("\n")
        data = [line[6:] for line in lines if line.startswith("data: ")]
        if not data or data[-1] != "[DONE]":
            raise Violation(f"a stream without end: {self.body[-300:]!r}")
        return [json.loads(each) for each in data[:-1]]

    def expect(self, *statuses: int, is_http: bool = True) -> Response:
        """Raise Violation unless the status is one of some, and an error has an error object.
        is_http: the request was valid HTTP.
        """
        if self.status not in statuses:
            raise Violation(f"expected {statuses}, got {self.status}: {self.body[:300]!r}")
        if self.status >= 400 and is_http and not self.json()["error"]["message"]:
            raise Violation(f"expected an error with a message, got {self.body[:300]!r}")
        return self


def request(
    method: str, path: str, key: str = "", body: object = None, *more: str, close: bool = True
) -> bytes:
    """Return a request. body: bytes, or a value for JSON. more: further header lines."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}", *more]
    lines += [f"Authorization: Bearer {key}"] * bool(key) + ["Connection: close"] * close
    return "\r\n".join([*lines, "", ""]).encode() + data


@asynccontextmanager
async def connected(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection; it is closed at once at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send bytes; the server may close the connection before all have arrived."""
    try:
        writer.write(data)
        await writer.drain()
    except ConnectionError:
        pass


async def receive(reader: asyncio.StreamReader) -> Response:
    """Return the answer on a connection that the server closes afterwards."""
    try:
        data = await asyncio.wait_for(_until_end(reader), HANG_S)
    except asyncio.TimeoutError:
        raise Violation(f"no end of an answer within {HANG_S:g} s") from None
    if not data:
        return Response(0, {}, b"")
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (s.partition(":") for s in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Response(int(status.split()[1]), headers, body)


async def exchange(port: int, data: bytes) -> Response:
    """Send a request, and return its answer."""
    async with connected(port) as (reader, writer):
        await send(writer, data)
        return await receive(reader)


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    data = bytearray()
    try:
        while part := await reader.read(1 << 16):
            data += part
    except ConnectionError:
        pass
    return bytes(data)


def _joined(body: bytes) -> bytes:
    """Return the contents of a chunked body."""
    out = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        count = int(size or b"0", 16)
        out += body[:count]
        body = body[count + 2 :]
    return bytes(out)
