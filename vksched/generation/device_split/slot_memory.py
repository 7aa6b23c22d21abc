"""The number of slots for which the devices of a model's layers have memory.

    vulkan:0: weights of its layers | keys and values of its layers, for each slot | free
    vulkan:1: weights of its layers | ...                                                the least
    --------------------------------------------------------------------------------> of all devices

A draft model has weights and a slot for each of them, too.
Examples: tests/generation/device_split/test_slot_memory.py.
"""

from __future__ import annotations

from collections import Counter

from ...common.errors import OutOfMemory
from ..batching.slots_for_memory import MAX_SLOTS, slots_for_memory
from ..compiled_steps import CompiledSteps
from ..layer_placement.place_layers import cache_bytes_of

CACHE_FRACTION = 0.5
"""The fraction of the memory left by the weights that slots may use; work buffers need the rest."""


def slots_by_memory(
    steps: CompiledSteps,
    engines: int = 1,
    most: int = MAX_SLOTS,
    draft: CompiledSteps | None = None,
    draft_engines: int = 1,
) -> int:
    """Return the number of slots of an engine; at least 1, because layers without memory on a GPU
    run on the CPU.

    Parameters
    ----------
    steps
        The steps of one of the engines; its placement of layers is decided.
    engines
        The number of engines whose caches are on the same devices.
    most
        The maximum number of slots.
    draft, draft_engines
        The same for the draft model.
    """
    weights: Counter[str] = Counter()
    caches: Counter[str] = Counter()
    memory: dict[str, int] = {}
    for each, count in ((steps, engines), (draft, draft_engines)):
        if each is not None:
            weights_of, caches_of = _bytes_by_device(each)
            weights.update(weights_of)
            caches.update({name: count * size for name, size in caches_of.items()})
            memory |= {spec.name: spec.memory_bytes for spec in each.scheduler.topology.devices}
    free = {
        name: max(0, int(CACHE_FRACTION * (memory[name] - size))) for name, size in weights.items()
    }
    try:
        return slots_for_memory(caches, free, most)
    except OutOfMemory:
        return 1


def _bytes_by_device(steps: CompiledSteps) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of weights, and of the keys and values of one slot, by device."""
    topology, placed = steps.scheduler.topology, steps.layer_placement
    if placed is None:
        working = [spec for spec in topology.devices if not spec.disabled_reason]
        name = working[0].name
        cache = cache_bytes_of(steps.model, steps.cache) // steps.slots
        return {name: steps.model.device_bytes}, {name: cache}
    weights: dict[str, int] = {}
    caches: dict[str, int] = {}
    for layer_range in placed.partition.layer_ranges:
        name = placed.topology.devices[layer_range.device].name
        weights[name] = weights.get(name, 0) + placed.weight_bytes(layer_range)
        slot_bytes = placed.cache_bytes(layer_range) // steps.slots
        caches[name] = caches.get(name, 0) + slot_bytes
    return weights, caches
