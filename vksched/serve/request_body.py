"""The body of a request: read with limits, parsed as JSON, and validated against a schema."""

from __future__ import annotations

import asyncio
import re
from reprlib import Repr
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from .api_error import ApiError
from .limits import ServerLimits

Schema = TypeVar("Schema", bound=BaseModel)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """Return the body of a request.

    Raises
    ------
    ApiError
        The body is too large, or arrives too slowly.
    """
    try:
        return await asyncio.wait_for(_read(request, limits.body_bytes), limits.body_timeout_s)
    except asyncio.TimeoutError:
        raise ApiError(
            f"[serve] expected the body within {limits.body_timeout_s:g} s", status=408
        ) from None
    except ClientDisconnect:
        raise ApiError("[serve] the client left", status=499) from None


async def _read(request: Request, most: int) -> bytes:
    def refuse(size: int) -> ApiError:
        return ApiError(
            f"[serve] expected a body of at most {most} bytes, got {size} or more", status=413
        )

    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise refuse(int(length[:20]))
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise refuse(len(data))
    return bytes(data)


def parse_json(data: bytes) -> dict[str, Any]:
    """Return a JSON object. The parser bounds the depth, and takes no NaN or infinity."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        text = str(error)
        raise ApiError(f"[serve] expected a body of JSON, got an error in it: {text}") from None
    if not isinstance(value, dict):
        raise ApiError(f"[serve] expected a JSON object, got {_SHORT.repr(value)}")
    return value


def parse_body(schema: type[Schema], data: bytes) -> Schema:
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
