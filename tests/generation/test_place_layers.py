"""Layers of language models on several devices: where they lie, what crosses, what is lost."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from gguf_models import Tiny, write
from test_chat import GREEDY, PROMPT, TEMPLATE, answer_with, greedy
from text_reader import TextReader
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation.layer_placement.place_layers import LayerPlacement, lay_out, place_layers
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.plan.types.plan_types import HOST
from vksched.runtime.device import Device
from vksched.topology.device_spec import MIB, DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.presets import card
from vksched.topology.topology import Topology

SIZES = (1, 8, 32)
LIMITS = Limits(storage_buffers=8)
CPU = DeviceSpec("cpu", "cpu", flops_per_s=1e9, bytes_per_s=1e9)
TINY = Tiny(layers=4, vocabulary=261)
"""Layers of 2.2 MiB, 0.1 MiB of keys and values, 0.3 MiB each for embedding and output."""


def build_model(folder: Path, tiny: Tiny = TINY) -> tuple[LanguageModel, dict[str, NDArray]]:
    tokens = {**byte_pair(), "tokenizer.chat_template": TEMPLATE}
    weights = write(tiny, folder / "tiny.gguf", np.random.default_rng(0), tokens)
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model, weights


def cards(*mib: float, **spec: float) -> list[DeviceSpec]:
    return [
        DeviceSpec(f"null:{i}", "null", limits=LIMITS, memory_bytes=int(size * MIB), **spec)  # type: ignore[arg-type]
        for i, size in enumerate(mib)
    ]


def layout(model: LanguageModel, *specs: DeviceSpec) -> LayerPlacement:
    return lay_out(model, model.cache(64), SIZES, Topology((*specs, CPU)))


@dataclass
class PlacedBy:
    """A scheduler as layer placement sees it."""

    topology: Topology
    policy: str = "auto"
    with_cpu: bool = True


def where(found: LayerPlacement) -> str:
    return "".join(map(str, found.partition.devices))


def devices_of(*specs: DeviceSpec) -> list[Device]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(spec, clock) for spec in specs]


def test_layers_lie_where_they_fit_and_take_least(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    assert where(layout(model, *cards(40, 40))) == "000000"
    slow, fast = cards(40, 40)
    assert where(layout(model, slow, replace(fast, bytes_per_s=4e10))) == "111111"
    both = where(layout(model, *cards(7, 7)))
    assert set(both) == {"0", "1"} and list(both) == sorted(both)
    rest = where(layout(model, *cards(4, 4)))
    assert set(rest) == {"0", "1", "2"}, "what has no room is on the CPU"
    assert where(layout(model, *cards(0.1, 40))) == "111111"
    assert where(layout(model, *cards(0.1))) == "111111"


def test_layers_are_placed_by_the_precision_of_their_device(tmp_path: Path) -> None:
    """A card was measured to be ten times as fast in mixed; the CPU stays in float32."""
    model, _ = build_model(tmp_path, replace(TINY, kind="Q8_0"))
    measured = {"*": 1.0, "quantized_linear+mixed": 0.1, "quantized_linear+epilogue+mixed": 0.1}
    curves = [
        Curve(f"{call}/{bound}", ((-20.0, factor),))
        for call, factor in measured.items()
        for bound in ("bytes", "flops")
    ]
    fast = replace(card("rtx3060").spec("vulkan:0"), costs=PerfModel(tuple(curves), calls=1))
    topology = Topology((fast, CPU))
    scheduler = PlacedBy(topology)
    costs = {}
    for precision in ("float32", "mixed", "auto"):
        about = scheduler, model, model.cache(64), SIZES, {"null:9"}
        found = place_layers(*about, precision)
        assert found is not None
        costs[precision] = {layer.name: layer for layer in found.layers}["blk.1"]
    single, mixed, auto = costs.values()
    assert mixed.read_s[0] < single.read_s[0]
    assert auto.read_s == (mixed.read_s[0], single.read_s[1])
    assert auto.weights == single.weights and auto.cache_bytes == single.cache_bytes


def test_a_device_that_cannot_run_the_model_keeps_it_from_no_other(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    unable, able = cards(40, 40)
    unable = replace(unable, max_buffer_bytes=1 << 16)
    assert where(layout(model, unable, able)) == "111111"
    assert where(layout(model, replace(unable, disabled_reason="it failed"), able)) == "111111"
    twice = [replace(spec, memory_node="one", memory_bytes=7 * MIB) for spec in (able, unable)]
    twice[1] = replace(able, name="null:2", memory_node="one", memory_bytes=7 * MIB)
    assert set(where(layout(model, *twice))) == {"0", "2"}, "two names of one memory are one device"


def test_memory_is_as_planned_and_all_steps_have_one_placement(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    specs = cards(7, 7)
    cache = model.cache(64)
    found = lay_out(model, cache, SIZES, Topology((*specs, CPU)))
    work = [0, 0]
    with vs.Scheduler(devices_of(*specs)) as sched:
        for size in SIZES:
            step = model.step(cache, size)
            run = sched.compile(step.logits, found.placement, updates=step.updates)
            for layer_range in found.partition.layer_ranges:
                memory = run.plan.memory[layer_range.device]
                assert memory.state_bytes == found.cache_bytes(layer_range)
                assert found.weight_bytes(layer_range) <= memory.weight_bytes
                assert memory.weight_bytes < found.weight_bytes(layer_range) + 16384, (
                    "tables of angles"
                )
                work[layer_range.device] += (
                    memory.peak_bytes - memory.weight_bytes - memory.state_bytes
                )
            assert run.plan.memory[2].states == () and not run.plan.memory[2].weights
    for layer_range in found.partition.layer_ranges:
        assert work[layer_range.device] <= 1.01 * found.work_bytes(layer_range)
        held = found.weight_bytes(layer_range) + found.cache_bytes(layer_range)
        assert held + found.work_bytes(layer_range) <= specs[layer_range.device].memory_bytes


def test_only_hidden_states_and_angles_cross_for_a_token(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    cache = model.cache(64)
    found = lay_out(model, cache, SIZES, Topology((*cards(7, 7), CPU)))
    with vs.Scheduler(devices_of(*cards(7, 7))) as sched:
        step = model.step(cache, 1)
        plan = sched.compile(step.logits, found.placement, updates=step.updates).plan
    transfer = [
        plan.graph.nodes[copy.node]
        for split in plan.splits
        for copy in split.uploads
        if copy.source != HOST
    ]
    assert [n.type.shape for n in transfer].count((1, 1, TINY.width)) == 1
    assert all(n.type.size in (TINY.width, TINY.rotary_size // 2, 1) for n in transfer)
    assert sum(n.type.device_bytes for n in transfer) < 1300


@pytest.mark.parametrize("index", [0, 1])
def test_an_answer_survives_each_device_of_an_automatic_placement(
    index: int, tmp_path: Path
) -> None:
    model, weights = build_model(tmp_path)
    specs = cards(7, 7)
    wanted, counter, _ = answer_with(None, index, model, devices_of(*specs), placed=False)
    assert wanted == greedy(weights, model.tokenizer.encode(PROMPT, bos=True), 6, TINY)
    count = counter.calls["submit"]
    assert count > 6, "both devices have layers"
    for at in sorted({0, count // 3, count // 2, count - 1}):
        got, _, lost = answer_with(at, index, model, devices_of(*specs), placed=False)
        assert got == wanted
        assert lost or at == count - 1, "keys and values lie on both"


@pytest.mark.parametrize(
    ("call", "at", "others"),
    [("prepare", 0, True), ("prepare", 1, True), ("submit", 3, True), ("prepare", 0, False)],
)
def test_a_device_without_memory_gets_no_layers_any_more(
    call: str, at: int, others: bool, tmp_path: Path
) -> None:
    """Its keys and values are there, and the next step has no memory beside them."""
    model, weights = build_model(tmp_path)
    full, *rest = devices_of(*cards(*[40] * (1 + others)))
    full = vs.FaultInjectionDevice(full, at, "memory", call)
    with vs.Scheduler([full, *rest]) as sched, pytest.warns(vs.VkschedWarning) as caught:
        chat = vs.Chat(sched, model)
        answer = chat.generate(PROMPT, 6, GREEDY)
        list(answer)
        assert chat.layers == {"null:1" if others else "cpu": TINY.layers}
        assert not sched.failed_devices
    text = model.tokenizer.encode(PROMPT, bos=True)
    assert list(answer.tokens) == greedy(weights, text, 6, TINY)
    assert any("null:0 gets no more layers" in str(warning.message) for warning in caught)
    full = vs.FaultInjectionDevice(devices_of(*cards(40))[0], at, "memory", call)
    with warnings.catch_warnings(), vs.Scheduler([full]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        placed = vs.Chat(sched, model, placement={"*": "null:0"}).generate(PROMPT, 6, GREEDY)
        with pytest.raises(vs.OutOfMemory, match="expected memory on null:0, where the state"):
            list(placed)


def test_a_chat_that_was_closed_asks_a_device_for_memory_again(tmp_path: Path) -> None:
    model, weights = build_model(tmp_path)
    full = vs.FaultInjectionDevice(devices_of(*cards(40))[0], 1, "memory", "prepare", times=2)
    with vs.Scheduler([full]) as sched:
        chat = vs.Chat(sched, model)
        with pytest.warns(vs.VkschedWarning):
            list(chat.generate(PROMPT, 6, GREEDY))
        list(chat.generate(PROMPT, 2, GREEDY))
        assert chat.layers == {"cpu": TINY.layers}
        chat.close()
        list(answer := chat.generate(PROMPT, 6, GREEDY))
        assert chat.layers == {"null:0": TINY.layers}
        text = model.tokenizer.encode(PROMPT, bos=True)
        assert list(answer.tokens) == greedy(weights, text, 6, TINY)


def test_a_device_without_layers_does_not_empty_the_cache(tmp_path: Path) -> None:
    """It fails in another graph, and returns; then a device with layers does so."""
    model, _ = build_model(tmp_path)
    fast, slow = cards(7, 7, bytes_per_s=1e12), cards(0, 0, 40, bytes_per_s=1e9)
    devices = [vs.FaultInjectionDevice(each, at=None) for each in devices_of(*fast, *slow[2:])]
    x = vs.input("x", (4,))
    with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        reader = SlotSteps(sched, model, 64, 2)
        text = model.tokenizer.encode(PROMPT, bos=True)

        def lose(name: str) -> None:
            run = sched.compile(x * 2, {"*": name})
            device = next(each for each in sched.devices if each.name == name)
            assert isinstance(device, vs.FaultInjectionDevice)
            device.at = 0
            run(x=np.ones(4, np.float32))
            assert set(sched.failed_devices) == {name}

        logits = reader.prefill(0, text, 0)
        assert set(reader.steps.layers) == {"null:0", "null:1"}
        lose("null:2")
        assert np.isfinite(reader.prefill(0, text[-1:], len(text) - 1)).all()
        sched.restore_device("null:2")
        reader.prefill(1, text, 0)
        lose("null:1")
        with pytest.raises(vs.StateLost):
            reader.prefill(1, text, 0)
        np.testing.assert_allclose(reader.prefill(1, text, 0), logits, rtol=1e-3, atol=1e-3)
        assert set(reader.steps.layers) == {"null:0", "null:2"}
        sched.restore_device("null:1")
        with pytest.raises(vs.StateLost):
            reader.prefill(1, text, 0)
        np.testing.assert_allclose(reader.prefill(1, text, 0), logits, rtol=1e-3, atol=1e-3)
        assert set(reader.steps.layers) == {"null:0", "null:1"}
        reader.close()


def test_a_device_of_the_users_placement_gets_its_layers_back(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    devices = [vs.FaultInjectionDevice(each, at=None) for each in devices_of(*cards(40, 40))]
    with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        reader = SlotSteps(sched, model, 64, 2, {"*": "null:1"})
        text = model.tokenizer.encode(PROMPT, bos=True)
        logits = reader.prefill(0, text, 0)
        assert set(reader.steps.layers) == {"null:1"}
        devices[1].at = devices[1].calls["submit"]
        with suppress(vs.StateLost):
            reader.prefill(0, text, 0)
        reader.prefill(0, text, 0)
        assert set(sched.failed_devices) == {"null:1"}
        assert "null:1" not in reader.steps.layers
        sched.restore_device("null:1")
        with pytest.raises(vs.StateLost):
            reader.prefill(0, text, 0)
        np.testing.assert_allclose(reader.prefill(0, text, 0), logits, rtol=1e-3, atol=1e-3)
        assert set(reader.steps.layers) == {"null:1"}
        reader.close()


def test_layers_are_placed_anew_for_what_is_left(tmp_path: Path) -> None:
    model, weights = build_model(tmp_path)
    fast, slow = cards(7, 7, bytes_per_s=1e12), cards(0, 0, 40, bytes_per_s=1e9)
    devices = devices_of(*fast, *slow[2:])
    devices[1] = lost = vs.FaultInjectionDevice(devices[1], at=None, times=1)
    with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        reader = SlotSteps(sched, model, 64, 1)
        texts = TextReader(reader)
        text = model.tokenizer.encode(PROMPT, bos=True)

        def used() -> set[str]:
            reader.prepare_prompt()
            return set((reader.steps.placement or {}).values())

        assert reader.steps.layers == {}
        texts.read(text)
        assert used() == {"null:0", "null:1"}
        layers = reader.steps.layers
        assert set(layers) == used() and sum(layers.values()) == TINY.layers
        lost.at = lost.calls["submit"]
        text += greedy(weights, text, 1, TINY)
        assert [int(texts.read(text).argmax())] == greedy(weights, text, 1, TINY)
        assert set(sched.failed_devices) == {"null:1"} and used() == {"null:0", "null:2"}
        assert set(reader.steps.layers) == used()
