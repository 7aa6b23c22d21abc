"""The engine and the embedder of a model on a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.errors import OutOfMemory, ShapeError
from ..generation.batching.batching_engine import BatchingEngine
from ..generation.batching.slots_for_memory import slots_for_memory
from ..generation.chat import context_of
from ..generation.embedder import Embedder
from ..generation.slot_steps import SlotSteps
from ..generation.speculation.speculation import Speculation
from ..importers.gguf.architectures import architecture
from .engine_interface import Observer

if TYPE_CHECKING:
    from ..common.dtypes import Progress
    from ..importers.gguf.model import LanguageModel
    from ..scheduler.scheduler import Scheduler

ELEMENT_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
"""The bytes per element of a KV cache; without a choice, those of the largest type count."""
CACHE_FRACTION = 0.5
"""The fraction of the memory left by the weights that slots may use."""


def generates_text(model: LanguageModel) -> bool:
    """Return True if a model generates text: an encoder only computes embeddings."""
    return model.hyper.causal and not architecture(model.architecture).encoder


def build_engine(
    model: LanguageModel,
    scheduler: Scheduler,
    ctx: int | None,
    slots: int | None,
    cache_type: str | None,
    precision: str | None,
    progress: Progress | None,
    *,
    max_queue: int,
    cache_ram: int,
    observer: Observer,
    speculation: Speculation | None = None,
) -> BatchingEngine:
    """Return an engine; see `vksched.serve.app` for the parameters."""
    length = context_of(model, ctx)
    count = auto_slots(model, scheduler, length, cache_type) if slots is None else slots
    runner = SlotSteps(
        scheduler,
        model,
        length,
        count,
        progress=progress,
        cache_type=cache_type,
        precision=precision,
    )
    return BatchingEngine(
        runner,
        model.tokenizer.ends,
        max_queue=max_queue,
        cache_ram=cache_ram,
        observer=observer,
        drafters=speculation.drafters(model, scheduler, length, count) if speculation else (),
    )


def auto_slots(
    model: LanguageModel, scheduler: Scheduler, length: int, cache_type: str | None
) -> int:
    """Return the number of slots by the memory of the GPUs together, or of the CPU without any.

    Slots share the memory left by the weights with the work buffers of steps.
    """
    hyper = model.hyper
    per_token = sum(hyper.kv_heads) * (hyper.key_length + hyper.value_length)
    slot_bytes = int(length * per_token * ELEMENT_BYTES[cache_type or "f32"])
    devices = scheduler.topology.devices
    cards = [each for each in devices if each.kind == "vulkan"] or devices
    free_bytes = sum(each.memory_bytes for each in cards) - model.device_bytes
    try:
        return slots_for_memory(
            {"the devices": slot_bytes}, {"the devices": int(CACHE_FRACTION * free_bytes)}
        )
    except OutOfMemory:
        return 1  # layers that have no memory on the cards run on the CPU


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
