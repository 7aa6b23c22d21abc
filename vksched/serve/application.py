"""The ASGI application: routes, middleware and errors.

request --> host and key --> endpoint: body, schema, tokens --> engine --> JSON or events
                '-- ApiError --> {"error": {"message", "type", "param", "code"}}
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..common.errors import VkschedError
from ..generation.device_split.choose_split import choose_split
from ..generation.device_split.split_choice import AUTO, SplitChoice
from .api_error import ApiError
from .api_keys import ApiKeys, KeyMiddleware
from .build_engine import (
    build_embedder,
    build_engine,
    build_pictures,
    build_reranker,
    generates_text,
    split_request,
)
from .device_activity import DeviceActivityReader, ObservedScheduler
from .device_recovery import DeviceRecovery
from .endpoints import (
    chat_completions,
    embeddings,
    native_completion,
    rerank,
    status,
    text_completions,
    texts,
)
from .error_log import log_error
from .limits import ServerLimits
from .metrics import ServerMetrics
from .model_service import ModelService
from .request_guard import RequestGuard
from .server_state import ServerState

if TYPE_CHECKING:
    from ..common.dtypes import Progress
    from ..generation.speculation.speculation import Speculation
    from ..importers.gguf.model import LanguageModel
    from ..importers.gguf.vision.vision_model import VisionModel
    from ..scheduler.scheduler import Scheduler

RESTORE_AFTER_S = 10.0
ROUTES = {
    "/": ("GET", status.page),
    "/health": ("GET", status.health),
    "/metrics": ("GET", status.metrics),
    "/slots": ("GET", status.slots),
    "/devices": ("GET", status.devices),
    "/v1/models": ("GET", status.models),
    "/v1/models/{name:path}": ("GET", status.model),
    "/v1/chat/completions": ("POST", chat_completions.chat_completions),
    "/v1/completions": ("POST", text_completions.completions),
    "/v1/embeddings": ("POST", embeddings.embeddings),
    "/v1/rerank": ("POST", rerank.rerank),
    "/tokenize": ("POST", texts.tokenize),
    "/detokenize": ("POST", texts.detokenize),
    "/apply-template": ("POST", texts.apply_template),
    # llama-server's own format
    "/completion": ("POST", native_completion.completion),
    "/completions": ("POST", native_completion.completion),
    # llama-server has these without /v1, too
    "/models": ("GET", status.models),
    "/chat/completions": ("POST", chat_completions.chat_completions),
    "/embeddings": ("POST", embeddings.embeddings),
    "/rerank": ("POST", rerank.rerank),
}


class ServingApplication(Starlette):
    """An ASGI application that serves a model.

    Attributes
    ----------
    split
        How the devices serve the model: `print(application.split.explain())`; None for a model that
        only computes embeddings.
    """

    split: SplitChoice | None = None

    def close(self) -> None:
        """Cancel all requests, and free the KV cache and the threads. The application does this at
        the end of its lifespan; an application that mounts it does not run that lifespan.
        """
        state: ServerState = self.state.server
        state.close()


def serve_model(
    service: ModelService,
    metrics: ServerMetrics,
    scheduler: ObservedScheduler | None = None,
    *,
    api_keys: ApiKeys | Iterable[str] = (),
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    limits: ServerLimits | None = None,
    restore_after_s: float = RESTORE_AFTER_S,
) -> ServingApplication:
    """Return an ASGI application that serves a model with its own engine and embedder.

    Parameters
    ----------
    metrics
        The metrics, whose `observe` is the observer of the engine.
    scheduler
        The scheduler whose devices are shown and restored; None shows none.
    api_keys, cors_origins, hosts, limits, restore_after_s
        See `app`.
    """
    bounds = limits or ServerLimits()
    state = ServerState(
        service=service,
        limits=bounds,
        metrics=metrics,
        activity=DeviceActivityReader(scheduler),
    )
    if service.can_generate:
        metrics.follow(service.engine)
    if scheduler is not None:
        timeout_s = scheduler.graphs.preparing.timeout_s
        state.recovery = DeviceRecovery(scheduler, restore_after_s, timeout_s)

    @asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            state.close()

    keys = api_keys if isinstance(api_keys, ApiKeys) else ApiKeys(api_keys)
    middleware = [
        Middleware(
            RequestGuard, header_bytes=bounds.header_bytes, origins=cors_origins, hosts=hosts
        ),
        Middleware(KeyMiddleware, keys=keys),
    ]
    if cors_origins:  # before keys: a preflight request has none
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
        middleware.insert(0, cors)
    application = ServingApplication(
        routes=[Route(path, call, methods=[method]) for path, (method, call) in ROUTES.items()],
        middleware=middleware,
        exception_handlers={
            HTTPException: _no_route,
            **dict.fromkeys((ApiError, VkschedError, Exception), _failed),
        },
        lifespan=lifespan,
    )
    application.state.server = state
    if state.recovery is not None:
        state.recovery.start()  # last, because errors above would leave its thread
    return application


def app(
    model: LanguageModel,
    scheduler: Scheduler,
    *,
    ctx: int | None = None,
    slots: int | None = None,
    split: str = AUTO,
    names: Sequence[str] = (),
    cache_type: str | None = None,
    precision: str | None = None,
    pooling: str | None = None,
    cache_ram: int = 0,
    max_queue: int = 64,
    speculation: Speculation | None = None,
    projector: VisionModel | None = None,
    api_keys: ApiKeys | Iterable[str] = (),
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    limits: ServerLimits | None = None,
    restore_after_s: float = RESTORE_AFTER_S,
    progress: Progress | None = None,
    prepare: bool = False,
) -> ServingApplication:
    """Return an ASGI application that serves a model with OpenAI's API.

    The application owns the engine, and closes it at the end of its lifespan.

    Parameters
    ----------
    model
        A model loaded from a GGUF file by `vs.load`.
    scheduler
        The scheduler whose devices are used. It must stay open.
    ctx, cache_type, precision, progress
        See `Chat`; `ctx` is the context length of each slot.
    slots
        The number of requests that run at the same time; None selects it by the free memory.
    split
        How several GPUs serve the model: "layers", "pipeline" or "replicas"; "auto" takes the one
        with the most predicted tokens per second. See docs/guides/serving.md.
    names
        The names of the model in requests; by default the name in the file.
    pooling
        The pooling of embeddings; see `Embedder`.
    cache_ram
        The maximum size of idle prefixes of the KV cache, and of checkpoints of recurrent states,
        in host memory, in bytes; checkpoints may have 256 MiB in any case.
    max_queue
        The maximum number of waiting requests; others are refused with status 429.
    speculation
        How tokens are guessed; None guesses none. Answers do not depend on it.
    projector
        A projector file of the model, loaded by `vs.load_projector`; messages of chats may then
        have pictures as data: URLs.
    api_keys
        The keys of clients; without any, all requests are accepted.
    cors_origins
        The origins whose pages may send requests from a browser; "*" allows all.
    hosts
        The names in the header Host that are accepted; none accepts all.
    limits
        The bounds of requests.
    restore_after_s
        The time after which a failed device is opened again, in seconds; it doubles, up to 10
        minutes, if the device then fails within that time.
    prepare
        Compile all steps now, instead of at the first requests.

    Raises
    ------
    VkschedError
        A package of the extra `serve` is missing.
    ModelFormatError
        The file has no tokenizer, or an unknown one; or the draft model has other tokens; or the
        projector file is that of another model.
    ShapeError
        `ctx` is not a valid number of tokens for the model.
    PlanError
        The split is unknown, or not possible with these devices.
    """
    metrics = ServerMetrics((*names, model.name)[0])
    engine, choice = None, None
    pictures = build_pictures(model, scheduler, projector, progress)
    if pictures is not None and prepare:
        pictures.prepare()  # first: its weights need memory, too
    if generates_text(model):
        about = model, scheduler, ctx, slots, cache_type, precision, speculation
        request = split_request(*about)
        choice = choose_split(request, split)
        engine = build_engine(
            *(request, choice, progress),
            max_queue=max_queue,
            cache_ram=cache_ram,
            observer=metrics.observe,
            projector=projector,
        )
        if prepare:
            engine.prepare()
    embedder = build_embedder(model, scheduler, pooling, ctx)
    reranker = build_reranker(model, scheduler, ctx)
    service = ModelService(model, engine, embedder, names, reranker, pictures)
    if prepare:
        service.grammars.prepare()
    application = serve_model(
        service,
        metrics,
        scheduler,
        api_keys=api_keys,
        cors_origins=cors_origins,
        hosts=hosts,
        limits=limits,
        restore_after_s=restore_after_s,
    )
    application.split = choice
    return application


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"[serve] expected another method for {request.url.path}, got {request.method}"
    else:
        known = ", ".join(ROUTES).replace(":path", "")
        message = f"[serve] expected one of {known}, got {request.url.path[:100]!r}"
    refused = ApiError(message, status=error.status_code, code="unknown_url")
    return refused.response(error.headers or {})


async def _failed(request: Request, error: Exception) -> Response:
    return log_error(error).response()
