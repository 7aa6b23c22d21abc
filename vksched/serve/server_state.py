"""ServerState: what all endpoints of an application share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from .device_activity import DeviceActivityReader
from .limits import ServerLimits, Workers
from .metrics import ServerMetrics
from .model_service import ModelService
from .request_body import parse_body, read_body

Schema = TypeVar("Schema", bound=BaseModel)


@dataclass
class ServerState:
    """The model, the limits and the threads of an application.

    workers: for templates, tokens and grammars. embedding_worker: one thread that runs the
    embedder.
    """

    service: ModelService
    limits: ServerLimits
    workers: Workers
    embedding_worker: Workers
    metrics: ServerMetrics
    activity: DeviceActivityReader

    def close(self) -> None:
        """Cancel all requests, and end the threads."""
        self.service.close()
        self.workers.close()
        self.embedding_worker.close()


def state_of(request: Request) -> ServerState:
    """Return the state of the application that a request belongs to."""
    state: ServerState = request.app.state.server
    return state


def cache_key_of(request: Request) -> str:
    """Return the name of the client's key; "" without keys."""
    return str(request.scope.get("state", {}).get("cache_key", ""))


async def body_of(request: Request, schema: type[Schema]) -> Schema:
    """Return the validated body of a request."""
    state = state_of(request)
    data = await read_body(request, state.limits)
    return await state.workers.call(parse_body, schema, data)
