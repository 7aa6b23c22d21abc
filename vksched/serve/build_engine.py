"""The engine and the embedder of a model on a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.errors import ShapeError
from ..generation.batching.batching_engine import BatchingEngine
from ..generation.chat import context_of
from ..generation.device_split.choose_split import SplitRequest, choose_split
from ..generation.device_split.device_subset import DeviceSubset
from ..generation.device_split.engine_group import EngineGroup, GroupMember
from ..generation.device_split.split_choice import AUTO, PIPELINE, SplitChoice
from ..generation.embedder import Embedder
from ..generation.pictures.picture_encoder import PictureEncoder
from ..generation.reranker import Reranker
from ..generation.slot_steps import SlotSteps
from ..importers.gguf.architectures import architecture
from .engine_interface import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..common.dtypes import Progress
    from ..generation.compiled_steps import CompilingScheduler
    from ..generation.speculation.drafter import Drafter
    from ..generation.speculation.speculation import Speculation
    from ..importers.gguf.model import LanguageModel
    from ..importers.gguf.vision.vision_model import VisionModel
    from ..scheduler.scheduler import Scheduler


def generates_text(model: LanguageModel) -> bool:
    """Return True if a model generates text: an encoder only computes embeddings, and a reranker
    scores.
    """
    hyper = model.hyper
    return hyper.causal and hyper.pooling != "rank" and not architecture(model.architecture).encoder


def build_engine(
    request: SplitRequest,
    choice: SplitChoice,
    progress: Progress | None,
    *,
    max_queue: int,
    cache_ram: int,
    observer: Observer,
    projector: VisionModel | None = None,
) -> BatchingEngine | EngineGroup:
    """Return the engine of a split, or a group of engines; see `vksched.serve.app` for the other
    parameters. Engines share the queue's places and the host memory equally.
    """
    members: list[GroupMember] = []
    count = len(choice.engines)
    in_flight = count if choice.split == PIPELINE else 1
    places = [max_queue // count + (n < max_queue % count) for n in range(count)]
    try:
        for plan, limit in zip(choice.engines, places, strict=True):
            subset = DeviceSubset(request.scheduler, plan.devices) if plan.devices else None
            devices = subset or request.scheduler
            runner = SlotSteps(
                devices,
                request.model,
                request.length,
                plan.slots,
                progress=progress,
                cache_type=request.cache_type,
                precision=request.precision,
                in_flight=in_flight,
                reads_pictures=projector is not None,
            )
            if projector is not None and projector.is_whole:
                runner.picture_tokens = projector.tokens
            try:
                drafters = _drafters(request, devices, plan.slots)
            except BaseException:
                runner.close()  # it repacks weights
                raise
            engine = BatchingEngine(
                runner,
                request.model.tokenizer.ends,
                max_queue=limit,
                cache_ram=cache_ram // count,
                observer=observer,
                drafters=drafters,
            )
            members.append(GroupMember(engine, plan.speeds, subset))
    except BaseException:
        for member in members:
            member.engine.close()
        raise
    return members[0].engine if count == 1 else EngineGroup(members)


def _drafters(request: SplitRequest, devices: CompilingScheduler, slots: int) -> Sequence[Drafter]:
    """Return the methods that guess tokens for one engine."""
    if request.speculation is None:
        return ()
    return request.speculation.drafters(request.model, devices, request.length, slots)


def split_request(
    model: LanguageModel,
    scheduler: Scheduler,
    ctx: int | None = None,
    slots: int | None = None,
    cache_type: str | None = None,
    precision: str | None = None,
    speculation: Speculation | None = None,
) -> SplitRequest:
    """Return the request for a split; see `vksched.serve.app` for the parameters."""
    length = context_of(model, ctx)
    return SplitRequest(scheduler, model, length, slots, cache_type, precision, speculation)


def explain_split(
    model: LanguageModel,
    scheduler: Scheduler,
    ctx: int | None = None,
    slots: int | None = None,
    split: str = AUTO,
    cache_type: str | None = None,
    precision: str | None = None,
    speculation: Speculation | None = None,
) -> str:
    """Return how a server would use several GPUs, with the predicted rates, as text. Nothing is
    compiled.

    Parameters
    ----------
    model, scheduler, ctx, slots, split, cache_type, precision, speculation
        See `vksched.serve.app`.

    Raises
    ------
    PlanError
        The split is unknown, or not possible with these devices.
    """
    if not generates_text(model):
        result = "scores" if model.hyper.pooling == "rank" else "embeddings"
        return f"{model.name} computes {result} on one device"
    about = model, scheduler, ctx, slots, cache_type, precision, speculation
    request = split_request(*about)
    return choose_split(request, split).explain()


def build_embedder(
    model: LanguageModel, scheduler: Scheduler, pooling: str | None, ctx: int | None
) -> Embedder | None:
    """Return the embedder of a model; None if neither the file nor the caller names a pooling."""
    try:
        name = model.pooling(pooling)
    except ShapeError:
        if pooling is not None:
            raise
        return None
    return Embedder(scheduler, model, name, ctx)


def build_pictures(
    model: LanguageModel,
    scheduler: Scheduler,
    projector: VisionModel | None,
    progress: Progress | None,
) -> PictureEncoder | None:
    """Return the encoder of a projector file; None without one."""
    if projector is None:
        return None
    return PictureEncoder(scheduler, projector, model, progress=progress)


def build_reranker(model: LanguageModel, scheduler: Scheduler, ctx: int | None) -> Reranker | None:
    """Return the reranker of a model; None if the file is not that of a reranker."""
    return Reranker(scheduler, model, ctx) if model.hyper.pooling == "rank" else None
