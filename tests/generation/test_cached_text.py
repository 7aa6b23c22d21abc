"""Steps of a language model: what they cost does not grow with the cache, and nothing is torn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import language
import numpy as np
import pytest
from conftest import Scheds
from gguf_models import Tiny, logits_of, write
from language import convert
from selection import spread
from test_executor import null_devices

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.kv_cache import KINDS as CACHE_TYPES
from vksched.importers.gguf.model import LanguageModel
from vksched.plan.plan import Plan
from vksched.plan.verify.happens_before import check_plan
from vksched.runtime.simulated.fault_injection import KINDS

pytestmark = pytest.mark.one_set

TINY = Tiny(layers=2, vocabulary=61)
KNOWN = {"state", "attention_with_kvcache", "dynamic_update_slice", "assign", "gather"}
"""What may have an operand as long as the cache; gather, of angles and of rows that are picked."""
ATTENTION = "attention_with_kvcache"
MODES = ((1, True), (1, False), (2, False))
"""The parts of a step, and True for the logits of all tokens."""
TEXT = [3, 1, 4, 15, 9, 26, 5, 35, 8, 9, 7, 9]


def build_model(folder: Path) -> tuple[LanguageModel, dict[str, NDArray]]:
    weights = write(TINY, folder / "tiny.gguf", np.random.default_rng(5))
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model, weights


def ops_on_all_of(plan: Plan, length: int) -> set[str]:
    """What runs with an operand or a result as long as the cache."""
    graph = plan.graph
    return {
        node.op
        for node in graph.ops
        if any(length in graph.nodes[i].type.shape for i in (*node.inputs, node.id))
    } - {"reshape"}


def test_the_last_layer_computes_the_row_of_the_last_token(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    step = model.step(model.cache(53), 8)
    graph, _ = vs.build_graph(step.logits, step.updates)
    rows = {
        layer: [n.type.shape[1] for n in graph.ops if f"blk.{layer}" in n.name and n.op == "matmul"]
        for layer in (0, 1)
    }
    assert rows == {0: [8] * 7, 1: [8, 8, 8, 1, 1, 1, 1]}
    every, last = (n for n in graph.ops if n.op == ATTENTION)
    heads, size = TINY.heads, TINY.head_size
    assert every.type.shape == (1, heads, 8, size) and last.type.shape == (1, heads, 1, size)
    flops = [n.declaration.work(graph.input_types(n), n.type, n.attrs).flops for n in (every, last)]
    assert flops[0] == 8 * flops[1], "the last layer attends with one query of eight"
    written = [n.type.shape[2] for n in graph.ops if n.op == "dynamic_update_slice"]
    assert written == [53] * 4, "the cache gets the rows of all tokens in both layers"


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "llama4", "deepseek2"])
def test_the_last_token_has_the_logits_of_a_step_for_all_tokens(
    name: str, scheds: Scheds, tmp_path: Path
) -> None:
    convert.write(language.load(name), tmp_path / "tiny.gguf")
    model = vs.load(tmp_path / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    cache = model.cache(40)
    steps = [model.step(cache, 8, parts=parts, all_logits=every) for parts, every in MODES]
    runs = [scheds[0].compile(step.logits, updates=step.updates) for step in steps]
    ids = np.array([TEXT[:8]], np.int32) % model.hyper.vocabulary
    for start, count in ((0, 8), (0, 5), (5, 7), (12, 8)):
        wanted = runs[0](ids=ids, start=start)[0, count - 1]
        for run in runs[1:]:
            logits = run(ids=ids, start=start, count=count)[0]
            np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache_type", spread(CACHE_TYPES, 1))
def test_nothing_but_attention_goes_through_the_cache(
    cache_type: str, scheds: Scheds, tmp_path: Path
) -> None:
    model, weights = build_model(tmp_path)
    cache = model.cache(53, cache_type)
    for tokens in (1, 8):
        step = model.step(cache, tokens)
        run = scheds[0].compile(step.logits, updates=step.updates)
        plan = check_plan(run.plan).verify()
        assert len(plan.in_place) == 2 * TINY.layers
        assert ops_on_all_of(plan, 53) <= KNOWN
        assert not any(plan.graph.nodes[n].op == "assign" for s in plan.splits for n in s.nodes)
        for start in (0, 8):
            ids = np.zeros((1, tokens), np.int32)
            part = TEXT[start : start + tokens]
            ids[0, : len(part)] = part
            logits = run(ids=ids, start=start, count=len(part))
        if tokens == 8:
            wanted = logits_of(TINY, weights, np.array(TEXT))[-1]
            off = np.abs(logits[0] - wanted).max() / np.abs(wanted).max()
            assert off < {"f32": 1e-3, "f16": 5e-3, "q8_0": 0.1}[cache_type]


@pytest.mark.each_value
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("name", ["gpt-oss", "llama4"])
def test_nor_does_anything_of_layers_that_pick_rows(
    name: str, cache_type: str, scheds: Scheds, tmp_path: Path
) -> None:
    convert.write(language.load(name), tmp_path / "tiny.gguf")
    model = vs.load(tmp_path / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    step = model.step(model.cache(53, cache_type), 1)
    plan = scheds[0].compile(step.logits, updates=step.updates).plan
    assert len(plan.in_place) == len(step.updates)
    assert ops_on_all_of(plan, 53) <= KNOWN
    assert not any(plan.graph.nodes[n].op == "assign" for s in plan.splits for n in s.nodes)


def test_keys_and_values_may_be_retained_as_float16(scheds: Scheds, tmp_path: Path) -> None:
    model, weights = build_model(tmp_path)
    cache = model.cache(64, "f16")
    step = model.step(cache, 4)
    run = scheds[0].compile(step.logits, updates=step.updates)
    assert {state.dtype for state in step.updates} == {"float16"}
    assert len(run.plan.in_place) == 2 * TINY.layers
    for start in range(0, 12, 4):
        ids = np.array([TEXT[start : start + 4]], np.int32)
        logits = run(ids=ids, start=start, count=4)[0]
    wanted = logits_of(TINY, weights, np.array(TEXT))[-1]
    assert 0 < np.abs(logits - wanted).max() < 5e-3 * np.abs(wanted).max()
    for state in step.updates:
        held = scheds[0].read(state)
        assert held.dtype == np.float16 and np.abs(held).sum((0, 1, 3)).astype(bool).sum() == 12
    with pytest.raises(vs.DTypeError, match="a cache of f32, f16, q8_0, got 'q4_0'"):
        model.cache(64, "q4_0")


def test_prepare_compiles_all_steps_and_these_are_few(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        read = SlotSteps(sched, model, 64, 1)
        read.prepare_prompt()
        first_runs = dict(read.steps.runs)
        assert len(first_runs) <= 12
        for end in (1, 3, 12, 12, 9):
            read.prefill(0, TEXT[:end], 0)
        assert read.steps.runs == first_runs


@pytest.mark.parametrize(
    ("tokens", "sizes"), [(1, [1]), (3, [1]), (5, [8]), (12, [8]), (45, [32, 8])]
)
def test_prepare_for_a_text_compiles_the_steps_that_read_it(
    tokens: int, sizes: list[int], tmp_path: Path
) -> None:
    model, _ = build_model(tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        read = SlotSteps(sched, model, 64, 1)
        read.prepare_prompt(tokens)
        assert [size.tokens for size in read.steps.runs] == sizes
        read.prefill(0, [1] * tokens, 0)
        assert [size.tokens for size in read.steps.runs] == sizes


def state_of(sched: vs.Scheduler, step: Any) -> list[NDArray]:
    return [sched.read(state) for state in step.updates]


@pytest.mark.each_value
@pytest.mark.parametrize("cache_type", ["f32", "q8_0"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [0, 1])
def test_a_step_that_fails_tears_no_cache(
    index: int, kind: str, cache_type: str, tmp_path: Path
) -> None:
    """Whatever submission fails: all rows of the steps before, and none of this one."""
    model, _ = build_model(tmp_path)
    failed = lost = 0
    for at in range(12):
        devices = null_devices(2)[1]
        names = [device.name for device in devices]
        devices[index] = faulty = vs.FaultInjectionDevice(devices[index], None, kind, times=1)
        placement = {"blk.0.*": names[0], "blk.1.*": names[1], "output*": names[1]}
        with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
            warnings.simplefilter("ignore", vs.VkschedWarning)
            step = model.step(model.cache(16, cache_type), 2)
            run = sched.compile(step.logits, placement, updates=step.updates)
            assert len(run.plan.in_place) == 4
            faulty.at = faulty.calls["submit"] + at
            for start in range(0, 6, 2):
                before = state_of(sched, step)
                try:
                    run(ids=np.array([TEXT[start : start + 2]], np.int32), start=start, count=2)
                except vs.VkschedError:
                    pass
                seen = [now for state in step.updates if (now := whole(sched, state)) is not None]
                if len(seen) < len(before):
                    lost += 1
                    break
                rows = {np.flatnonzero(np.abs(now).sum((0, 1, 3))).size for now in seen}
                assert rows in ({start}, {start + 2}), "of a step all states have the rows, or none"
                for now, old in zip(seen, before, strict=True):
                    assert np.array_equal(now[:, :, :start], old[:, :, :start])
            failed += faulty.failed
    assert failed and (lost or kind == "memory")


def whole(sched: vs.Scheduler, state: vs.Tensor) -> NDArray | None:
    try:
        return sched.read(state)
    except vs.StateLost:
        return None
