"""Long prompts in parts: the same logits, and devices that work on several parts at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Scheds, vulkan_names
from gguf_models import Tiny, logits_of, write

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation import compiled_steps
from vksched.generation.batching import chunk_grid
from vksched.generation.compiled_steps import CompiledSteps, StepSize
from vksched.generation.layer_placement import partition_layers
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.plan.simulation.simulate_plan import simulate
from vksched.topology.device_spec import MIB, DeviceSpec
from vksched.topology.limits import Limits

pytestmark = pytest.mark.one_set

TINY = Tiny(layers=2, vocabulary=61)


def build_model(folder: Path, tiny: Tiny = TINY) -> tuple[LanguageModel, dict[str, NDArray]]:
    weights = write(tiny, folder / "tiny.gguf", np.random.default_rng(0))
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model, weights


def test_parts_have_the_logits_of_the_whole(scheds: Scheds, tmp_path: Path) -> None:
    model, weights = build_model(tmp_path)
    text = np.random.default_rng(1).integers(0, 61, (1, 32)).astype(np.int32)
    wanted = logits_of(TINY, weights, text[0])
    cache = model.cache(40)
    step, one = model.step(cache, 24, parts=3), model.step(cache, 1)
    run = scheds[0].compile(step.logits, updates=step.updates)
    after = scheds[0].compile(one.logits, updates=one.updates)
    for begin, count in ((0, 17), (0, 24), (5, 20), (8, 24)):
        for at in range(begin if begin != 5 else 0):  # what came before, a token at a time
            after(ids=text[:, at : at + 1], start=at, count=1)
        got = run(ids=text[:, begin : begin + 24], start=begin, count=count)
        np.testing.assert_allclose(got[0], wanted[begin + count - 1], rtol=1e-3, atol=1e-3)
    got = after(ids=text[:, 20:21], start=20, count=1)
    np.testing.assert_allclose(got[0], wanted[20], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("card", [False, True])
def test_one_card_reads_long_texts_in_wide_steps(
    card: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights = build_model(tmp_path)
    steps: list[tuple[int, int]] = []
    compiled = CompiledSteps._compiled

    def note(self: CompiledSteps, size: StepSize) -> object:
        steps.append((size.tokens, self._parts_of(size)))
        return compiled(self, size)

    monkeypatch.setattr(compiled_steps, "SIZES", (1, 8))
    monkeypatch.setattr(compiled_steps, "WIDE", 32)
    monkeypatch.setattr(CompiledSteps, "_compiled", note)
    monkeypatch.setattr(CompiledSteps, "_has_a_card", lambda self: card)
    text = [int(token) for token in np.random.default_rng(1).integers(0, 61, 60)]
    with vs.Scheduler(["cpu"]) as sched:
        got = SlotSteps(sched, model, 64, 1).prefill(0, text, 0)
    wanted = logits_of(TINY, weights, np.array(text, np.int32))
    np.testing.assert_allclose(got, wanted[-1], rtol=1e-3, atol=1e-3)
    assert ((32, 1) in steps) == card and all(parts == 1 for _, parts in steps)


def test_what_is_a_card(tmp_path: Path) -> None:
    """Drivers on the CPU are none; numpy is none."""
    model, _ = build_model(tmp_path)
    for name in ("cpu", *vulkan_names()):
        with vs.Scheduler([name]) as sched:
            hardware = name != "cpu" and not sched.topology.devices[0].limits.software
            assert SlotSteps(sched, model, 64, 1).steps._has_a_card() == hardware


def test_parts_share_the_angles_of_all_positions(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    cache, held = model.cache(48), []
    for parts in (1, 3):
        step = model.step(cache, 24, parts)
        graph, _ = vs.build_graph(step.logits, updates=step.updates)
        held.append([n.type for n in graph.nodes if n.op == "constant" and 48 in n.type.shape])
    assert held[0] == held[1] and len(held[0]) == 2


def small(**sizes: int) -> Tiny:
    return Tiny(**{"width": 64, "heads": 2, "kv_heads": 2, "inner": 128, "context": 256} | sizes)


def cards(
    count: int, mib: float, **spec: float
) -> tuple[vs.SimulatedClock, list[vs.SimulatedDevice]]:
    """Cards whose arithmetic takes long enough for a pipeline to pay."""
    clock, limits = vs.SimulatedClock(), Limits(storage_buffers=8)
    speeds = {"flops_per_s": 1e6, "bytes_per_s": 1e9, "memory_bytes": int(mib * MIB)} | spec
    specs = [DeviceSpec(f"null:{i}", "null", limits=limits, **speeds) for i in range(count)]
    return clock, [vs.SimulatedDevice(each, clock) for each in specs]


def prompt_s(model: LanguageModel, count: int, parts: int) -> float:
    """Return the seconds of a prompt on as many cards, on the clock that they share."""
    clock, devices = cards(count, 64)
    layers = {f"blk.{i}.*": f"null:{count * (i + 1) // 10}" for i in range(9)}
    placement = {"*": "null:0", "output*": f"null:{count - 1}", **layers}
    with vs.Scheduler(list(devices), trace=vs.Trace(clock, [])) as sched:
        step = model.step(model.cache(8 * parts), 8 * parts, parts)
        run = sched.compile(step.logits, placement, updates=step.updates)
        assert {split.device for split in run.plan.splits if split.nodes} >= set(range(count))
        run(ids=np.zeros((1, 8 * parts), np.int32), start=0, count=8 * parts)
        taken_s = clock.now()
        assert taken_s == pytest.approx(simulate(run.plan).seconds)
    return taken_s


def test_two_devices_read_a_long_prompt_1_8_times_as_fast(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path, small(layers=9))
    assert prompt_s(model, 1, 16) > 1.8 * prompt_s(model, 2, 16)
    assert prompt_s(model, 1, 4) > 1.5 * prompt_s(model, 2, 4)
    whole_s = prompt_s(model, 1, 1)
    assert prompt_s(model, 2, 1) == pytest.approx(whole_s, rel=0.05), "one part flows nowhere"


def test_long_prompts_flow_where_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_steps, "SIZES", (1, 8))
    monkeypatch.setattr(chunk_grid, "GRID", 8)  # the largest size, as of real steps
    monkeypatch.setattr(partition_layers, "WRITTEN", 1)  # prompts count for more
    tiny = small(layers=3)
    model, weights = build_model(tmp_path, tiny)
    text = list(np.random.default_rng(2).integers(0, 61, 150))

    def check(devices: list[vs.SimulatedDevice], *sizes: int) -> None:
        with vs.Scheduler(list(devices)) as sched:
            read, sizes_run = SlotSteps(sched, model, 160, 1), list[int]()
            run = read.steps.run

            def counted(size: StepSize) -> object:
                sizes_run.append(size.tokens)
                return run(size)

            monkeypatch.setattr(read.steps, "run", counted)
            wanted = logits_of(tiny, weights, np.array(text))[-1]
            np.testing.assert_allclose(read.prefill(0, text, 0), wanted, rtol=1e-3, atol=1e-3)
            assert sizes_run == list(sizes)

    check(cards(2, 64)[1], 128, 8, 8, 8)
    text = text[:123]
    check(cards(2, 64)[1], 128)
    text = text[:120]
    check(cards(2, 64)[1], 32, 32, 32, 8, 8, 8)
    check(cards(2, 64, flops_per_s=1e12)[1], *[8] * 15)
    check(cards(1, 64)[1], *[8] * 15)
