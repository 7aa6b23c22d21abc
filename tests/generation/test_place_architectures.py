"""Layers of each architecture on two devices; experts that have no room are on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import language
import numpy as np
import pytest
from test_gguf_golden import CLOSE, build_golden
from test_place_layers import CPU, cards, devices_of

import vksched as vs
from vksched.generation import compiled_steps
from vksched.generation.layer_placement.forecast import Forecaster
from vksched.generation.layer_placement.layer_costs import USED_SHARE
from vksched.generation.layer_placement.place_layers import LayerPlacement, lay_out
from vksched.generation.slot_steps import SlotSteps
from vksched.topology.device_spec import MIB, DeviceSpec
from vksched.topology.topology import Topology

SIZES = (1, 8, 32)


def room_bytes(found: LayerPlacement) -> float:
    """What a model takes of the device that it lies on."""
    (layer_range,) = found.partition.layer_ranges
    return (
        found.weight_bytes(layer_range)
        + found.cache_bytes(layer_range)
        + found.work_bytes(layer_range)
    )


def with_room(size_bytes: float, count: int = 1) -> list[DeviceSpec]:
    return cards(*[size_bytes / USED_SHARE / MIB] * count)


@pytest.mark.parametrize("name", ["gemma2", "gpt2", "phi3", "qwen2moe", "qwen3moe", "glm4moe"])
def test_logits_on_two_cards_that_hold_a_part_each(name: str, tmp_path: Path) -> None:
    golden = language.load(name)
    model = build_golden(golden, tmp_path)
    whole = lay_out(model, model.cache(32), SIZES, Topology((*cards(64), CPU)))
    shared = whole.measured.shared_bytes  # one card is too small even if all experts are elsewhere
    specs = with_room(shared + 0.65 * (room_bytes(whole) - shared), 2)
    with vs.Scheduler(devices_of(*specs)) as sched:
        reader = SlotSteps(sched, model, 32, 1)
        for count in (5, 6, len(golden.ids)):
            got = reader.prefill(0, [int(token) for token in golden.ids[:count]], 0)
            np.testing.assert_allclose(got, golden.wanted[count - 1], **CLOSE)
        assert set((reader.steps.placement or {}).values()) >= {"null:0", "null:1"}


def test_experts_go_to_the_cpu_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = language.load("qwen3moe")
    model = build_golden(golden, tmp_path)
    whole = lay_out(model, model.cache(32), SIZES, Topology((*cards(64), CPU)))
    experts = [layer.experts.size_bytes if layer.experts else 0 for layer in whole.layers]
    assert experts[0] == experts[-1] == 0 and min(experts[1:-1]) > 0
    slow = replace(CPU, bytes_per_s=1e7, flops_per_s=1e7)
    specs = with_room(room_bytes(whole) - 0.9 * experts[-2])
    found = lay_out(model, model.cache(32), SIZES, Topology((*specs, slow)))
    (layer_range,) = found.partition.layer_ranges
    assert (layer_range.device, layer_range.experts) == (0, len(experts) - 2)
    last = whole.layers[-2].name
    on_host = {pattern for pattern, device in found.placement.items() if device == "cpu"}
    assert on_host == {f"{last}.*_exps*", f"{last}.experts.*"}
    with vs.Scheduler(devices_of(*specs)) as sched:
        step = model.step(model.cache(32), 8)
        run = sched.compile(step.logits, found.placement, updates=step.updates)
        nodes, memory = run.plan.graph.nodes, run.plan.memory
        on_cpu = {nodes[w].name for w in memory[1].weights if nodes[w].type.rank == 3}
        assert on_cpu == {f"{last}.ffn_{which}_exps.weight" for which in ("gate", "up", "down")}
        assert memory[0].peak_bytes <= specs[0].memory_bytes
        got = run(ids=golden.ids[None, :8].astype(np.int32), start=0, count=8)
        np.testing.assert_allclose(got[0], golden.wanted[7], **CLOSE)
        monkeypatch.setattr(compiled_steps, "place_layers", lambda *about: found)
        read = SlotSteps(sched, model, 32, 1)
        read.prefill(0, [int(token) for token in golden.ids[:8]], 0)
        assert read.steps.layers == {"null:0": len(experts) - 2} and read.steps.away == 1
    reported = Forecaster(model, 32, SIZES).forecast(Topology((*specs, slow)))
    assert reported is not None and [held.away for held in reported.held] == [1]
