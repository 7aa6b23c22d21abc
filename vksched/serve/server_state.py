"""ServerState: what all endpoints of an application share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from .device_activity import DeviceActivityReader
from .device_recovery import DeviceRecovery
from .limits import ServerLimits
from .metrics import ServerMetrics
from .model_service import ModelService
from .picture_admission import PictureAdmission
from .request_body import BodyBudget, parse_body
from .workers import PICTURES, Workers

Schema = TypeVar("Schema", bound=BaseModel)


@dataclass
class ServerState:
    """The model, the limits and the threads of an application.

    parsers: for bodies. workers: for templates and tokens. grammar_workers: for schemas and
    grammars, which may use all of their time limit. answer_workers: for the beginning and the
    bodies of answers. embedding_worker: one thread that runs the embedder. picture_worker: one
    thread that runs the encoder of pictures. picture_readers: for decoding pictures. Both queues
    have only requests that `admission` gave a place in the engine's queue. recovery: restores
    failed devices; None without a scheduler.
    """

    service: ModelService
    limits: ServerLimits
    metrics: ServerMetrics
    activity: DeviceActivityReader
    parsers: Workers = field(init=False)
    workers: Workers = field(init=False)
    grammar_workers: Workers = field(init=False)
    answer_workers: Workers = field(init=False)
    embedding_worker: Workers = field(init=False)
    picture_worker: Workers = field(init=False)
    picture_readers: Workers = field(init=False)
    admission: PictureAdmission = field(init=False)
    bodies: BodyBudget = field(init=False)
    recovery: DeviceRecovery | None = None

    def __post_init__(self) -> None:
        limits = self.limits
        self.parsers = Workers(2, limits.work_timeout_s)
        self.workers = Workers(4, limits.work_timeout_s)
        self.grammar_workers = Workers(2, limits.work_timeout_s)
        self.answer_workers = Workers(2, None, limits.connections)
        self.embedding_worker = Workers(1, None)
        self.picture_worker = Workers(1, None, None)
        reading_s = limits.pictures * limits.picture_timeout_s + 1
        self.picture_readers = Workers(2, reading_s, None, PICTURES)
        self.admission = PictureAdmission(limits.all_pictures_bytes)
        self.bodies = BodyBudget(limits.all_bodies_bytes)
        self.service.limit_pictures(
            limits.pictures, limits.picture_pixels, limits.picture_timeout_s
        )
        self.service.grammars.seconds = limits.grammar_timeout_s

    def close(self) -> None:
        """Cancel all requests, and end the threads."""
        if self.recovery is not None:
            self.recovery.close()
        self.service.close()
        for workers in (
            self.parsers,
            self.workers,
            self.grammar_workers,
            self.answer_workers,
            self.embedding_worker,
            self.picture_worker,
            self.picture_readers,
        ):
            workers.close()


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
    async with state.bodies.read(request, state.limits) as data:
        return await state.parsers.call(parse_body, schema, data)
