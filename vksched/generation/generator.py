"""Generator: runs prefill and decode steps of a language model over a KV cache.

text, as tokens --skip the cached prefix--> rest --steps of 128, 32, 8, 1--> logits
                                                    (on a card of 512, too)
                                                    |
a device is lost, with its KV cache --> layers are placed on the remaining devices,
                                        and the whole text is prefilled again
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ..common.dtypes import NDArray, Progress
from ..common.errors import OutOfMemory, StateLost
from ..common.gc_pause import resting_collector
from ..common.user_warning import warn_user
from ..engine.request_precision import check_precision
from ..ir.precision import SINGLE
from ..ops.quantized.weight_repack import WeightRepackThread
from ..runtime.device import BackgroundTask, PrefetchesWeights
from .deferred_step import deferred_step
from .device_precision import (
    AUTO,
    CHAT_PRECISIONS,
    FAST,
    FLOAT16_CACHE,
    cache_types_by_layer,
    placement_cache_type,
    precision_by_name,
)
from .layer_placement.place_layers import LayerScheduler, place_layers, takes_all
from .overflow import DAMAGED, SCALED_ROWS, OverflowFallback

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.executable import CompiledGraph
    from ..engine.graph_cache import DeferredGraph
    from ..engine.request_precision import Precision
    from ..importers.gguf.kv_cache import KeyValueCache
    from ..importers.gguf.model import LanguageModel
    from ..ir.build_graph import Outputs, Updates
    from ..ir.tensor import Tensor
    from ..plan.plan import Plan
    from ..runtime.device import Device

T = TypeVar("T")
SIZES = (1, 8, 32, 128)
"""The sizes of steps in tokens. Each is a graph, compiled at its first use."""
WIDE = 512
"""The size of the largest step if one card holds the whole model: GEMMs of fewer rows do not
saturate a large card, and each step dequantizes the weights again.
"""
NODES_PER_LAYER = 40
"""The approximate number of nodes of a layer."""
MICROBATCHES = (4, 16)
"""The numbers of microbatches of longer steps, each of the largest size. Devices process them as a
pipeline: the next device reads a part while this one reads the part after it.
"""


def sizes_of(length: int) -> list[int]:
    """Return the sizes of steps that fit into a text of `length` tokens."""
    return [size for size in SIZES if size <= length]


class DeviceNames(Protocol):
    """The names of devices in plans, from names in placements."""

    def device_name(self, name: str) -> str: ...


class CompilingScheduler(LayerScheduler, Protocol):
    """The interface of a scheduler that the generator uses."""

    @property
    def devices(self) -> tuple[Device, ...]: ...

    @property
    def precision(self) -> str | None: ...

    def compile(
        self,
        outputs: Outputs | DeferredGraph,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        updates: Updates | None = None,
        precision: Precision | None = None,
    ) -> CompiledGraph: ...

    def reserve(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        *,
        updates: Updates | None = None,
        precision: Precision | None = None,
    ) -> Plan: ...

    @property
    def failed_devices(self) -> Mapping[str, str]: ...

    @property
    def graphs(self) -> DeviceNames: ...

    def delete_state(self, state: Tensor) -> None: ...


class Generator:
    """A sequence and its KV cache; a text with a common prefix continues from the cached tokens.

    tokens: the tokens in the KV cache. length: the capacity of the cache in tokens. placement: the
    user's placement; None selects the fastest one before the first step is compiled. cache_type:
    the element type of the KV cache; None selects it by the layers' devices, and "f32" in other
    modes than "mixed" and "float16". precision: a precision mode, AUTO or FAST; None selects the
    scheduler's mode, or AUTO if it has none. prefetch: False to read no weights before a step is
    compiled.
    """

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        length: int,
        placement: Placements | None = None,
        progress: Progress | None = None,
        cache_type: str | None = None,
        precision: Precision | None = None,
        prefetch: bool = True,
    ) -> None:
        if isinstance(precision, str):
            check_precision(precision, "chat", CHAT_PRECISIONS)
        self.tokens: list[int] = []
        self.length = length
        self._scheduler = scheduler
        self._model = model
        self._asked: Precision = precision or scheduler.precision or AUTO
        self._precision = self._asked
        """The precision of all steps, once it is decided."""
        self._cache_type = cache_type
        self._overflow = OverflowFallback()
        self._is_cache_checked = False
        self._cache = self._placement_cache()
        self._user_placement = self.placement = placement
        self._progress = progress
        self._was_decided = False
        self._sizes: list[int] = []
        """The sizes of steps, once the placement is decided."""
        self._parts: dict[int, int] = {}
        """The numbers of microbatches of longer steps, by size."""
        self.away = 0
        """The number of layers whose experts are on the CPU but whose KV cache is not."""
        self._without: set[str] = set()
        """The devices that had failed when the placement was decided."""
        self._full: set[str] = set()
        """The devices that ran out of memory."""
        self._runs: dict[int, CompiledGraph] = {}
        self._background_task: BackgroundTask | None = None
        if prefetch:
            model.file.read_ahead()
            self._background_task = self._start_background_tasks()

    def _start_background_tasks(self) -> BackgroundTask | None:
        """Start to repack weights in the background if their device is known."""
        first, *others = self._scheduler.devices
        if not others:
            return WeightRepackThread(self._model.weights.held())
        if isinstance(first, PrefetchesWeights) and self._fits_one_device():
            return first.prefetch_weights(list(self._model.weights.words().items()))
        return None

    def prepare(self, tokens: int | None = None) -> None:
        """Compile the steps that a text of `tokens` tokens needs, or all steps if None."""
        self._retry_if_lost(lambda: self._prepare(tokens))

    def _prepare(self, tokens: int | None) -> None:
        self._decide()
        sizes = self._sizes if tokens is None else self._sizes_for(tokens)
        for size in dict.fromkeys(sizes):
            self._run(size)

    def plans(self) -> Iterator[Plan]:
        """Yield the plans of the steps without allocating anything: that of a token, then those of
        prompts, the longest first.
        """
        self._decide()
        one, *longer = sorted(self._sizes)
        for size in (one, *reversed(longer)):
            outputs, updates = self._step(size, is_cached=False).build()
            yield self._scheduler.reserve(
                outputs, self.placement, updates=updates, precision=self._precision
            )

    @property
    def layers(self) -> dict[str, int]:
        """The number of layers whose KV cache is on each device, once a step is compiled."""
        if not self._runs:
            return {}
        plan = next(iter(self._runs.values())).plan
        keys = (name for name in self._cache.states if name.endswith(".keys"))
        return dict(Counter(map(plan.device_of, keys)))

    def prefill(self, text: Sequence[int]) -> NDArray:
        """Return the logits of the next token of a text, (vocabulary,).

        If a device fails or runs out of memory, layers are placed again and the whole text is
        prefilled again.
        """
        gone = set(self._scheduler.failed_devices)
        if self._user_placement is None and self._sizes and gone != self._without:
            self.forget()
        return self._retry_if_lost(lambda: self._prefill(text))

    def _retry_if_lost(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, repeated after a device with states was lost or ran out of
        memory.
        """
        for _ in self._scheduler.devices:
            try:
                return work()
            except StateLost:
                self.forget()
            except OutOfMemory as error:
                name = error.holder
                if self._user_placement is not None or not name or name in self._full:
                    raise
                warn_user(f"[chat] {name} gets no more layers: {error}")
                self._full.add(name)
                self.forget()
        return work()

    def _prefill(self, text: Sequence[int]) -> NDArray:
        """Return the logits after a text; process it again after an overflow of float16."""
        logits = self._run_steps(text)
        while not (_is_finite(logits) and self._is_cache_finite(text)) and self._is_overflow():
            self.forget()
            logits = self._run_steps(text)
        return logits

    def _is_cache_finite(self, text: Sequence[int]) -> bool:
        """Return False if the cached keys and values of the first text exceed float16's range.

        Kernels that round the keys of their own step may hide them. A step of the last token reads
        the cache.
        """
        types = {self._cache.kind, *self._cache.by_layer.values()}
        if self._is_cache_checked or FLOAT16_CACHE not in types or len(text) == 1:
            return True
        self._is_cache_checked = _is_finite(self._run_steps(text))
        return self._is_cache_checked

    def _is_overflow(self) -> bool:
        """Return True, after a warning, if logits that are not finite may be due to float16."""
        types = {self._cache.kind, *self._cache.by_layer.values()}
        if not self._overflow.advance(self._precision, types):
            notes = self._overflow.notes
            if notes and notes[-1] != DAMAGED:
                notes.append(DAMAGED)
                warn_user(f"[chat] {DAMAGED}")
            return False
        warn_user(f"[chat] {self._overflow.notes[-1]}")
        return True

    def _run_steps(self, text: Sequence[int]) -> NDArray:
        del self.tokens[min(_common_prefix(self.tokens, text), len(text) - 1) :]
        self._decide()
        logits: Any = None
        while (start := len(self.tokens)) < len(text):
            size = self._size(start, len(text))
            part = list(text[start : start + size])
            ids = np.zeros((1, size), np.int32)
            ids[0, : len(part)] = part
            numbers = np.array((start, len(part)), np.int32)
            logits = self._run(size)(ids=ids, start=numbers[0], count=numbers[1])
            self.tokens += part
        return np.asarray(logits[0])

    def _sizes_for(self, end: int) -> Iterator[int]:
        """Yield the sizes of the steps that prefill a text of `end` tokens."""
        start = 0
        while start < end:
            yield (size := self._size(start, end))
            start += size

    def _size(self, start: int, end: int) -> int:
        """Return the size of the next step from token `start` of a text of `end` tokens."""
        room = self.length - start
        return max(size for size in self._sizes if self._suits(size, end - start, room))

    def _suits(self, size: int, rest: int, room: int) -> bool:
        """Return True if a step fits the rest of a text.

        At least half of it, or a part of its last microbatch, must be text, and the rows that it
        writes must fit into the cache.
        """
        part = SIZES[-1]
        min_tokens = size - part + 1 if size > part else size / 2
        return min_tokens <= rest and size <= room

    def _decide(self) -> None:
        """Decide the placement of layers, unless it is set, and the sizes of steps."""
        if self._sizes:
            return
        self._without = set(self._scheduler.failed_devices)
        self._sizes = sizes_of(self.length)
        self._cache = self._placement_cache()
        if self._user_placement is None:
            about = self._scheduler, self._model, self._cache, self._sizes, self._full
            layer_placement = place_layers(*about, self._overflow.precision(self._asked))
            self.placement = layer_placement.placement if layer_placement else {}
            self.away = layer_placement.n_cpu_moe if layer_placement else 0
            part = SIZES[-1]
            longer = (n for n in MICROBATCHES if n * part <= self.length)
            flowing = [
                n for n in longer if layer_placement and layer_placement.flows(n, self.length)
            ]
            self._parts = {n * part: n for n in flowing}
            if not flowing and self.length >= WIDE and self._has_a_card():
                self._parts = {WIDE: 1}
            self._sizes += self._parts
        self._decide_types()

    def _decide_types(self) -> None:
        """Decide the precision, and the element types of the KV cache, by the layers' devices."""
        topology = self._scheduler.topology
        placed = {
            key: self._scheduler.graphs.device_name(name)
            for key, name in (self.placement or {}).items()
        }
        if self._overflow.is_exact:
            self._precision = {"*": SINGLE}
        elif isinstance(self._asked, str) and self._asked in (AUTO, FAST):
            is_later = self._was_decided and bool(self._without)
            self._precision = precision_by_name(self._asked, placed, topology, is_later)
        if self._cache_type is None:
            layers = self._model.hyper.layers
            types = cache_types_by_layer(placed, topology, layers, self._precision)
            kind = min(types.values())
            others = {layer: each for layer, each in types.items() if each != kind}
            self._cache = self._model.cache(self.length, kind, others)
        self._was_decided = True

    def _placement_cache(self) -> KeyValueCache:
        """Return the KV cache by which layers are placed."""
        asked = self._scheduler.topology, self._overflow.precision(self._asked)
        kind = self._cache_type or placement_cache_type(*asked)
        return self._model.cache(self.length, self._overflow.cache_type(kind))

    def _run(self, size: int) -> CompiledGraph:
        if size not in self._runs:
            self._runs[size] = self._compiled(size)
            self._stop_background_tasks()  # the device holds the weights
        return self._runs[size]

    def _step(self, size: int, is_cached: bool) -> DeferredGraph:
        parts, is_scaled = self._parts.get(size, 1), self._overflow.level == SCALED_ROWS
        return deferred_step(self._model, self._cache, size, parts, is_cached, is_scaled)

    def _compiled(self, size: int) -> CompiledGraph:
        """Return a compiled step; steps of a single device are cached on disk."""
        parts = self._parts.get(size, 1)
        step = self._step(size, parts == 1 and self._fits_one_device())
        with resting_collector(NODES_PER_LAYER * self._model.hyper.layers * parts):
            run = self._scheduler.compile(
                step, self.placement, self._progress, precision=self._precision
            )
        run.leave_overflow_check()
        return run

    def _fits_one_device(self) -> bool:
        """Return True if one device holds the whole model without a search for a placement."""
        if self.placement:
            return False
        cpu_alone = len(self._scheduler.devices) == 1
        return cpu_alone or takes_all(self._scheduler, self._model, self._cache)

    def _has_a_card(self) -> bool:
        """Return True if one device holds the whole model and is not a CPU driver."""
        spec = self._scheduler.topology.devices[0]
        return spec.kind == "vulkan" and not spec.limits.software and self._fits_one_device()

    def _stop_background_tasks(self) -> None:
        if self._background_task is not None:
            self._background_task.close()
            self._background_task = None

    def close(self) -> None:
        """Free everything; devices that were out of memory are considered again."""
        self._full.clear()
        self._was_decided = False
        self.forget()

    def forget(self) -> None:
        """Free the compiled steps and the KV cache; the next text is prefilled from its first
        token.
        """
        self._stop_background_tasks()
        for run in self._runs.values():
            run.close()
        for state in self._cache.states.values():
            self._scheduler.delete_state(state)
        self.tokens.clear()
        self._runs.clear()
        self._sizes.clear()
        self._parts.clear()


def _is_finite(logits: NDArray) -> bool:
    """Return True if all logits are finite; a sum of squares is the fastest check."""
    with np.errstate(all="ignore"):
        return math.isfinite(float(np.dot(logits, logits))) or bool(np.isfinite(logits).all())


def _common_prefix(known: list[int], text: Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences.

    One comparison suffices if all cached tokens match, as they do while an answer grows.
    """
    if known == list(text[: len(known)]):
        return len(known)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(known, text, strict=False))
    return sum(1 for _ in same)
