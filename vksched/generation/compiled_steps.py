"""CompiledSteps: the compiled steps of a language model over one KV cache, on a scheduler.

    decide: placement of layers --> precision, types of the KV cache --> sizes of steps
                                                                            |
    run(size, rows): a graph, compiled at its first use <-------------------'

    a device is lost or full, or float16 overflows --> forget, decide again

`SlotSteps` runs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..common.dtypes import Progress
from ..common.errors import OutOfMemory
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
    cache_types_by_layer,
    placement_cache_type,
    precision_by_name,
)
from .equal_rows import max_equal_rows
from .layer_placement.place_layers import LayerPlacement, LayerScheduler, place_layers, takes_all
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

SIZES = (1, 8, 32, 128)
"""The sizes of steps in tokens. Each is a graph, compiled at its first use."""
WIDE = 512
"""The size of the largest step if one card holds the whole model: GEMMs of fewer rows do not
saturate a large card, and each step dequantizes the weights again.
"""
NODES_PER_LAYER = 40
"""The approximate number of nodes of a layer."""
OUTPUT, EMBEDDING = "output.weight", "token_embd"
"""The name of the matrix for logits, and the begin of the names of nodes of the embedding."""
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
    """The interface of a scheduler that compiled steps use."""

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
        ahead: bool = False,
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


class StepSize(NamedTuple):
    """The size of a step. rows: None for the step of one sequence, whose cache has one slot.
    all_logits, one_text, picture: as in `LanguageModel.step`.
    """

    tokens: int
    rows: int | None = None
    all_logits: bool = False
    one_text: bool = False
    picture: bool = False


class CompiledSteps:
    """The compiled steps of a model, and the decisions that all of them share.

    length, slots: the capacity of the KV cache in tokens of a slot, and its slots. placement: the
    user's placement; None selects the fastest one before the first step is compiled. cache_type:
    the element type of the KV cache; None selects it by the layers' devices, and "f32" in other
    modes than "mixed" and "float16". precision: a precision mode, AUTO or FAST; None selects the
    scheduler's mode, or AUTO if it has none. prefetch: False to read no weights before a step is
    compiled. in_flight: the number of groups of slots that share the layers' devices; each has a
    `CompiledSteps` of its own. reads_pictures: texts may have pictures, after which positions of a
    model with M-RoPE differ from indices.
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
        slots: int = 1,
        in_flight: int = 1,
        reads_pictures: bool = False,
    ) -> None:
        if isinstance(precision, str):
            check_precision(precision, "chat", CHAT_PRECISIONS)
        self.scheduler = scheduler
        self.model = model
        self.length = length
        self.slots = slots
        self._in_flight = in_flight
        self.is_shifted = reads_pictures and model.has_mrope
        """True if steps have the positions of their tokens as inputs."""
        self._asked: Precision = precision or scheduler.precision or AUTO
        self._precision = self._asked
        """The precision of all steps, once it is decided."""
        self._cache_type = cache_type
        self._overflow = OverflowFallback()
        self.cache = self._placement_cache()
        self.user_placement = self.placement = placement
        self.layer_placement: LayerPlacement | None = None
        """The decided placement of layers; None if there was no choice."""
        self._progress = progress
        self._was_decided = False
        self.sizes: list[int] = []
        """The sizes of steps in tokens, once the placement is decided."""
        self._parts: dict[int, int] = {}
        """The numbers of microbatches of longer steps, by size."""
        self.away = 0
        """The number of layers whose experts are on the CPU but whose KV cache is not."""
        self.without: set[str] = set()
        """The failed devices that the placement takes into account."""
        self._full: set[str] = set()
        """The devices that ran out of memory."""
        self.runs: dict[StepSize, CompiledGraph] = {}
        self._background_task: BackgroundTask | None = None
        if prefetch:
            model.file.read_ahead()
            self._background_task = _start_repacking(scheduler, model, self._fits_one_device)

    # -- decisions -------------------------------------------------------------------------------

    def decide(self) -> None:
        """Decide the placement of layers, unless it is set, the types and the sizes of steps."""
        if self.sizes:
            return
        self.without = set(self.scheduler.failed_devices)
        self.cache = self._placement_cache()
        self.sizes = sizes_of(self.length)
        if self.user_placement is None:
            layer_placement = self.layer_placement = self._place_layers()
            self.placement = layer_placement.placement if layer_placement else {}
            self.away = layer_placement.n_cpu_moe if layer_placement else 0
            part = SIZES[-1]
            longer = (n for n in MICROBATCHES if n * part <= self.length)
            flowing = [
                n
                for n in longer
                if self._in_flight == 1  # else other groups use the devices meanwhile
                and layer_placement
                and layer_placement.flows(n, self.length)
            ]
            self._parts = {n * part: n for n in flowing}
            if not flowing and self.length >= WIDE and self._has_a_card():
                self._parts = {WIDE: 1}
            self.sizes += self._parts
        self._decide_types()

    def _place_layers(self) -> LayerPlacement | None:
        sizes, cache = sizes_of(self.length), self._placement_cache()
        about = self.scheduler, self.model, cache, sizes, self._full
        return place_layers(*about, self._overflow.precision(self._asked), self._in_flight)

    def is_outdated(self) -> bool:
        """Return True if a device with layers failed since the placement was decided, or one
        returned that would get layers; `forget` must follow. With a user's placement only named
        devices that returned count, because compiled graphs handle failures themselves.
        """
        failed = set(self.scheduler.failed_devices)
        if not self.sizes or failed == self.without:
            return False
        lost, back = failed - self.without, self.without - failed
        names = (self.placement or {}).values()
        named = {self.scheduler.graphs.device_name(name) for name in names}
        if self.user_placement is not None:
            outdated = not back.isdisjoint(named)
        else:  # without a choice there is one device
            outdated = bool(lost and not named) or not lost.isdisjoint(named)
            outdated = outdated or bool(back) and self._would_use(back)
        if not outdated:
            self.without = failed
        return outdated

    def _would_use(self, names: Set[str]) -> bool:
        """Return True if a new placement has layers on one of some devices."""
        found = self._place_layers()
        return found is None or not names.isdisjoint(found.placement.values())

    def _decide_types(self) -> None:
        """Decide the precision, and the element types of the KV cache, by the layers' devices."""
        topology = self.scheduler.topology
        placed = {
            key: self.scheduler.graphs.device_name(name)
            for key, name in (self.placement or {}).items()
        }
        if self._overflow.is_exact:
            self._precision = {"*": SINGLE}
        elif isinstance(self._asked, str) and self._asked in (AUTO, FAST):
            is_later = self._was_decided and bool(self.without)
            self._precision = precision_by_name(self._asked, placed, topology, is_later)
        if self._cache_type is None:
            layers = self.model.hyper.layers
            types = cache_types_by_layer(placed, topology, layers, self._precision)
            kind = min(types.values())
            others = {layer: each for layer, each in types.items() if each != kind}
            self.cache = self.model.cache(self.length, kind, others, slots=self.slots)
        self._was_decided = True

    def _placement_cache(self) -> KeyValueCache:
        """Return the KV cache by which layers are placed."""
        asked = self.scheduler.topology, self._overflow.precision(self._asked)
        kind = self._cache_type or placement_cache_type(*asked)
        return self.model.cache(self.length, self._overflow.cache_type(kind), slots=self.slots)

    @property
    def cache_types(self) -> set[str]:
        """The element types of the KV cache."""
        return {self.cache.kind, *self.cache.by_layer.values()}

    def handle_overflow(self) -> bool:
        """Return True if steps are computed in another way after logits that are not finite, as
        they may be due to float16; warn in any case. `forget` must follow.
        """
        if not self._overflow.advance(self._precision, self.cache_types):
            notes = self._overflow.notes
            if notes and notes[-1] != DAMAGED:
                notes.append(DAMAGED)
                warn_user(f"[chat] {DAMAGED}")
            return False
        warn_user(f"[chat] {self._overflow.notes[-1]}")
        return True

    def handle_full_device(self, error: OutOfMemory) -> bool:
        """Return True, after a warning, if the device that ran out of memory gets no layers from
        now on. `forget` must follow.
        """
        name = error.holder
        if self.user_placement is not None or not name or name in self._full:
            return False
        warn_user(f"[chat] {name} gets no more layers: {error}")
        self._full.add(name)
        return True

    # -- steps -----------------------------------------------------------------------------------

    def run(self, size: StepSize) -> CompiledGraph:
        """Return a compiled step."""
        if size not in self.runs:
            self.runs[size] = self._compiled(size)
            self._stop_background_tasks()  # the device holds the weights
        return self.runs[size]

    def plans(self) -> Iterator[Plan]:
        """Yield the plans of the steps of one sequence without allocating anything: that of a
        token, then those of prompts, the longest first.
        """
        self.decide()
        one, *longer = sorted(self.sizes)
        for size in (one, *reversed(longer)):
            yield self.reserve(StepSize(size))

    def reserve(self, size: StepSize) -> Plan:
        """Return the plan of a step without allocating anything."""
        self.decide()
        outputs, updates = self._step(size, is_cached=False).build()
        return self.scheduler.reserve(
            outputs, self.placement, updates=updates, precision=self._precision
        )

    def _step(self, size: StepSize, is_cached: bool) -> DeferredGraph:
        return deferred_step(
            self.model,
            self.cache,
            *(size.tokens, self._parts_of(size), is_cached),
            scale_rows=self.scales_rows,
            rows=size.rows,
            all_logits=size.all_logits,
            one_text=size.one_text,
            picture=size.picture,
            shifted=self.is_shifted,
        )

    def _parts_of(self, size: StepSize) -> int:
        return 1 if size.all_logits or size.picture else self._parts.get(size.tokens, 1)

    def _compiled(self, size: StepSize) -> CompiledGraph:
        """Return a compiled step; steps of a single device are cached on disk."""
        parts = self._parts_of(size)
        step = self._step(size, parts == 1 and self._fits_one_device())
        with resting_collector(NODES_PER_LAYER * self.model.hyper.layers * parts):
            run = self.scheduler.compile(
                step,
                placement_of(size, self.placement, self.model),
                self._progress,
                precision=self._precision,
            )
        run.disable_overflow_check()
        return run

    def compile_graph(
        self, outputs: Outputs, updates: Updates, names: Iterable[str]
    ) -> CompiledGraph:
        """Return a compiled graph of these states of the KV cache, on the devices of the steps, at
        least one of which is compiled.
        """
        plan = next(iter(self.runs.values())).plan
        placement = {f"{name.rpartition('.')[0]}.*": plan.device_of(name) for name in names}
        return self.scheduler.compile(outputs, placement, updates=updates)

    @property
    def precision(self) -> Precision:
        """The precision of all steps, once it is decided."""
        return self._precision

    @property
    def scales_rows(self) -> bool:
        """True if steps scale rows beyond float16's range."""
        return self._overflow.level == SCALED_ROWS

    @property
    def layers(self) -> dict[str, int]:
        """The number of layers whose KV cache is on each device, once a step is compiled."""
        if not self.runs:
            return {}
        plan = next(iter(self.runs.values())).plan
        one = {name.rpartition(".")[0]: name for name in self.cache.states}
        return dict(Counter(map(plan.device_of, one.values())))

    @property
    def max_equal_rows(self) -> int:
        """The number of rows up to which products on CPUs have the bits of one row, once a step is
        compiled.
        """
        return max_equal_rows(next(iter(self.runs.values())).plan)

    def _fits_one_device(self) -> bool:
        """Return True if one device holds the whole model without a search for a placement."""
        if self.placement:
            return False
        cpu_alone = len(self.scheduler.devices) == 1
        return cpu_alone or takes_all(self.scheduler, self.model, self.cache)

    def _has_a_card(self) -> bool:
        """Return True if one device holds the whole model and is not a CPU driver."""
        spec = self.scheduler.topology.devices[0]
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
        """Free the compiled steps and the KV cache; the next step decides the placement again."""
        self._stop_background_tasks()
        while self.runs:  # an interrupt leaves no closed step
            self.runs.popitem()[1].close()
        for state in self.cache.states.values():
            self.scheduler.delete_state(state)
        self.sizes.clear()
        self._parts.clear()


def placement_of(
    size: StepSize, placement: Placements | None, model: LanguageModel
) -> Placements | None:
    """Return the placement of a step. That of a picture has no embedding, unless logits are
    computed with the same matrix.
    """
    if not size.picture or placement is None or OUTPUT not in model.weights:
        return placement
    return {
        key: device
        for key, device in placement.items()
        if not (isinstance(key, str) and key.startswith(EMBEDDING))
    }


def _start_repacking(
    scheduler: CompilingScheduler, model: LanguageModel, fits_one_device: Callable[[], bool]
) -> BackgroundTask | None:
    """Start to repack weights in the background if their device is known."""
    first, *others = scheduler.devices
    if not others:
        return WeightRepackThread(model.weights.held())
    if isinstance(first, PrefetchesWeights) and fits_one_device():
        return first.prefetch_weights(list(model.weights.words().items()))
    return None
