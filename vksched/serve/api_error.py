"""ApiError: an error of a request, as OpenAI's error object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from ..common.errors import (
    DeviceError,
    EngineError,
    GrammarError,
    MessageError,
    ModelFormatError,
    QueueFull,
    SamplingError,
    ShapeError,
    VkschedError,
)

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""The types of errors by status; all others are "invalid_request_error"."""
UNREAD = (401, 403, 408, 413, 431)
"""The statuses of requests whose body was not read: the connection is closed."""


class ApiError(Exception):
    """An error that the client receives.

    Parameters
    ----------
    message
        The text: what was expected, and what came.
    param
        The field of the request that is wrong, for example "messages[0].content".
    code
        A name that programs can compare, for example "model_not_found".
    retry_after_s
        The time after which a new attempt may succeed, in seconds.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        kind = TYPES.get(self.status, "invalid_request_error")
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        headers = {}
        if self.status in UNREAD:
            headers["Connection"] = "close"
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        return headers

    def response(self, headers: Mapping[str, str] = {}) -> JSONResponse:
        """Return the HTTP response."""
        return JSONResponse(self.body(), self.status, {**self.headers(), **headers})


def server_closed() -> ApiError:
    """Return the error of a request that the end of the server cuts."""
    return ApiError(
        "[serve] expected an engine that runs until the answer ends, got a closed one; try the "
        "request again",
        status=503,
        code="server_closed",
        retry_after_s=5,
    )


def client_left() -> ApiError:
    """Return the error that ends the work for a client that left."""
    return ApiError("[serve] the client left", status=499)


def api_error_of(error: BaseException) -> ApiError:
    """Return the error that a client receives for an exception. Texts of unexpected exceptions,
    which may hold internal names or another request's data, are not sent.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(
            str(error), status=429, code="queue_full", retry_after_s=error.retry_after_s
        )
    if isinstance(error, DeviceError):
        return ApiError(str(error), status=503, code="device_error", retry_after_s=5)
    if isinstance(error, (MessageError, GrammarError)):
        return ApiError(str(error), error.field)
    if isinstance(error, ModelFormatError):  # the chat template refuses the messages
        return ApiError(str(error), "messages")
    if isinstance(error, (ShapeError, SamplingError)):
        return ApiError(str(error))
    if isinstance(error, VkschedError) and not isinstance(error, EngineError):
        return ApiError(str(error), status=500)
    return ApiError("[serve] an internal error; the server's log has its text", status=500)
