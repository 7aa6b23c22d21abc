"""The body of a request: read with limits, parsed as JSON, and validated against a schema."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from reprlib import Repr
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from .api_error import ApiError
from .json_size import check_json_size
from .limits import ServerLimits

Schema = TypeVar("Schema", bound=BaseModel)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class BodyBudget:
    """Bounds the bytes of all bodies that are in memory until they are parsed.

    Parameters
    ----------
    most_bytes
        The maximum of their sum. A body counts with the bytes that have arrived.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request, limits: ServerLimits) -> AsyncIterator[bytearray]:
        """Yield the body of a request, which counts until the end of the context.

        Raises
        ------
        ApiError
            The body is too large, or arrives too slowly, or all bodies together are too large.
        """
        data = bytearray()
        try:
            await self._receive(request, limits, data)
            yield data
        finally:
            self.used_bytes -= len(data)

    async def _receive(self, request: Request, limits: ServerLimits, data: bytearray) -> None:
        try:
            await asyncio.wait_for(
                self._append_parts(request, limits.body_bytes, data), limits.body_timeout_s
            )
        except asyncio.TimeoutError:
            raise ApiError(
                f"[serve] expected the body within {limits.body_timeout_s:g} s", status=408
            ) from None
        except ClientDisconnect:
            raise ApiError("[serve] the client left", status=499) from None

    async def _append_parts(self, request: Request, most: int, data: bytearray) -> None:
        def refuse(size: int) -> ApiError:
            return ApiError(
                f"[serve] expected a body of at most {most} bytes, got {size} or more", status=413
            )

        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > most:
            raise refuse(int(length[:20]))
        async for part in request.stream():
            if len(data) + len(part) > most:
                raise refuse(len(data) + len(part))
            if self.used_bytes + len(part) > self.most_bytes:
                raise ApiError(
                    f"[serve] expected at most {self.most_bytes} bytes of all requests that are "
                    "being read, got more; try again later",
                    status=503,
                    code="overloaded",
                    retry_after_s=1,
                )
            data += part
            self.used_bytes += len(part)


def parse_json(data: bytes | bytearray) -> dict[str, Any]:
    """Return a JSON object. The parser bounds the depth, and takes no NaN or infinity. It caches no
    strings, which would double its time for many different ones.
    """
    check_json_size(data)
    try:
        value = from_json(data, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        text = str(error)
        raise ApiError(f"[serve] expected a body of JSON, got an error in it: {text}") from None
    if not isinstance(value, dict):
        raise ApiError(f"[serve] expected a JSON object, got {_SHORT.repr(value)}")
    return value


def parse_body(schema: type[Schema], data: bytes | bytearray) -> Schema:
    """Return the request in a body.

    Raises
    ------
    ApiError
        The body is no JSON object, or a field is missing or has a wrong value; `param` names it.
    """
    value = parse_json(data)
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        found = [(_param(each, value), each) for each in error.errors(include_url=False)]
        param = max((name for name, _ in found), key=len)  # of alternatives, the one meant
        details = [each for name, each in found if name == param]
        raise ApiError(f"[{param or 'body'}] {_message(details)}", param or None) from None


def _param(details: ErrorDetails, value: Any) -> str:
    """Return the path of a field as OpenAI writes it: "messages[0].content"."""
    path = ""
    for part in details["loc"]:
        if isinstance(value, dict) and isinstance(part, str) and part in value:
            path, value = f"{path}.{part}" if path else part, value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
    if details["type"] == "missing":
        missing = str(details["loc"][-1])
        path = f"{path}.{missing}" if path else missing
    return path


def _message(details: list[ErrorDetails]) -> str:
    """Return the message of the errors of one field."""
    first = details[0]
    if first["type"] == "missing":
        return "expected this field, got none"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    texts = dict.fromkeys(_expected(each["msg"]) for each in details)
    return f"expected {' or '.join(texts)}, got {_SHORT.repr(first['input'])}"


def _expected(text: str) -> str:
    """Return the noun of a message of pydantic."""
    text = re.sub(r"^Input should be (?=greater|less)", "a number ", text)
    text = text.removeprefix("Input should be ").partition(" after validation")[0]
    text = re.sub(r"^(String|List) should have", r"a \1 of", text)
    text = re.sub(r" dictionary.*| instance of .*", " object", text)
    return re.sub(r"^a (\w)", lambda found: found[0].lower(), text)
