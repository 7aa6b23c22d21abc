"""Steps over a KV cache with slots: the engine's view of a model on a scheduler."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import language
import numpy as np
import pytest
from conftest import Scheds, vulkan_names
from gguf_files import Type
from gguf_models import Tiny, logits_of, write
from language.convert import write as write_golden
from test_executor import null_devices
from test_scaled_rows import TEXT, build_model, oracle

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ShapeError, StateLost
from vksched.generation import cache_rows
from vksched.generation.compiled_steps import StepSize
from vksched.generation.equal_rows import cached_attention_variants
from vksched.generation.slot_steps import SlotSteps
from vksched.generation.step_runner import StepRunner
from vksched.importers.gguf.architectures.attention_sinks import SINK_ELEMENTS
from vksched.importers.gguf.architectures.token_layout import AttentionMask
from vksched.importers.gguf.cached_sequence import CachedSequence
from vksched.importers.gguf.kv_cache import KeyValueCache
from vksched.importers.gguf.model import LanguageModel
from vksched.ops import concat, zeros
from vksched.ops.lowering import native_kernels

pytestmark = pytest.mark.one_set

TINY = Tiny(layers=2, vocabulary=61)
HALF = replace(TINY, kind="F16")
CLOSE = {"rtol": 1e-3, "atol": 1e-3}
TEXTS = {
    slot: [int(t) for t in np.random.default_rng(slot).integers(0, 61, count)]
    for slot, count in ((0, 12), (2, 45), (1, 9))
}


@pytest.fixture
def model_and_weights(tmp_path: Path) -> tuple[LanguageModel, dict[str, NDArray]]:
    weights = write(HALF, tmp_path / "tiny.gguf", np.random.default_rng(5))
    model = vs.load(tmp_path / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model, weights


@pytest.fixture
def steps(
    scheds: Scheds, model_and_weights: tuple[LanguageModel, dict[str, NDArray]]
) -> Iterator[SlotSteps]:
    opened = SlotSteps(scheds[0], model_and_weights[0], 64, 3)
    yield opened
    opened.close()


def skip_without(device: str) -> None:
    """Skip a test of equal bits."""
    if not native_kernels.has_programs() or device not in ("cpu", *vulkan_names()):
        pytest.skip(f"no native loops, or no {device}")


def wanted(model_and_weights: tuple[LanguageModel, dict[str, NDArray]], text: list[int]) -> NDArray:
    return logits_of(HALF, model_and_weights[1], np.array(text))


def test_prompts_and_answers_of_several_slots(
    steps: SlotSteps, model_and_weights: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    runner: StepRunner = steps
    assert (runner.slots, runner.length, runner.vocabulary) == (3, 64, 61)
    assert runner.chunk_sizes == (1, 8, 32) and runner.row_counts == (1, 2, 4)
    for slot, text in TEXTS.items():
        logits = runner.prefill(slot, text[:-2], 0)
        np.testing.assert_allclose(logits, wanted(model_and_weights, text[:-2])[-1], **CLOSE)
    for back in (2, 1):
        found = runner.decode(
            list(TEXTS),
            [text[-back] for text in TEXTS.values()],
            [len(text) - back for text in TEXTS.values()],
        )
        for own, text in zip(found, TEXTS.values(), strict=True):
            all_of = wanted(model_and_weights, text)
            np.testing.assert_allclose(own, all_of[len(text) - back], **CLOSE)


def test_logits_of_all_tokens(
    steps: SlotSteps, model_and_weights: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    text = TEXTS[2]
    steps.prefill(1, text[:10], 0)
    found = steps.prefill(1, text[10:], 10, all_logits=True)
    np.testing.assert_allclose(found, wanted(model_and_weights, text)[10:], **CLOSE)


@pytest.mark.each_value
@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
def test_rows_go_to_other_slots_and_to_the_host(
    cache_type: str,
    scheds: Scheds,
    model_and_weights: tuple[LanguageModel, dict[str, NDArray]],
) -> None:
    steps, text = SlotSteps(scheds[0], model_and_weights[0], 64, 3, cache_type=cache_type), TEXTS[2]
    steps.prefill(2, text[:-1], 0)
    rows_of_host = steps.read_rows(2, len(text) - 1)
    assert all(rows.shape[1] == len(text) - 1 for rows in rows_of_host)
    steps.copy_rows(2, 0, len(text) - 1)
    last = steps.decode([2], text[-1:], [len(text) - 1])
    np.testing.assert_array_equal(steps.decode([0], text[-1:], [len(text) - 1]), last)
    for one, other in zip(
        steps.read_rows(0, len(text)), steps.read_rows(2, len(text)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    steps.steps.user_placement = steps.steps.placement  # other devices have other bits
    steps.forget()
    steps.write_rows(1, rows_of_host)
    np.testing.assert_array_equal(steps.decode([1], text[-1:], [len(text) - 1]), last)
    steps.close()


def test_copies_move_the_rows_that_a_slot_lacks(
    scheds: Scheds,
    model_and_weights: tuple[LanguageModel, dict[str, NDArray]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the first missing row on, in whole blocks: earlier rows are those of the slot."""
    monkeypatch.setattr(cache_rows, "BLOCK", 8)
    text, present = TEXTS[2][:30], 11
    for sched in scheds:
        steps = SlotSteps(sched, model_and_weights[0], 64, 3)
        steps.prefill(2, text, 0)
        source = steps.read_rows(2, len(text))
        for slot in (0, 1):
            steps.prefill(slot, text[::-1], 0)
        own = steps.read_rows(0, present)
        steps.copy_rows(2, 0, len(text), present)
        steps.write_rows(1, source, present)
        for slot in (0, 1):
            found = steps.read_rows(slot, len(text))
            for rows, first, rest in zip(found, own, source, strict=True):
                np.testing.assert_array_equal(rows[:, :present], first)
                np.testing.assert_array_equal(rows[:, present:], rest[:, present:])
        steps.close()


def test_prepare_compiles_all_graphs(steps: SlotSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first reused prefix, or the first prompt with log-probabilities, delays answers."""
    steps.prepare()

    def fail(*arguments: object) -> None:
        raise AssertionError(f"compiled after prepare: {arguments}")

    for name in ("_compiled", "compile_graph"):
        monkeypatch.setattr(steps.steps, name, fail)
    text = TEXTS[2]
    for part in (text[:32], text[:8], text[:1]):
        steps.prefill(2, part, 0)
        steps.prefill(2, part, 0, all_logits=True)
    steps.decode([0, 2], text[:2], [0, 1])
    steps.write_rows(1, steps.read_rows(2, 2))
    steps.copy_rows(1, 0, 2)


def test_measured_times_choose_the_rows(steps: SlotSteps) -> None:
    times, counts = steps._times, steps.row_counts
    assert times.plan(3, counts) == (4,) and times.plan(2, counts) == (2,)
    steps.prepare()
    assert set(times._seconds) == {1, 2, 4}
    times._seconds = {1: 1.0, 2: 2.9, 4: 2.5}
    assert [times.plan(n, counts) for n in (1, 2, 3)] == [(1,), (1, 1), (4,)]
    times._seconds = {1: 1.0, 2: 1.5, 4: 3.5}
    assert sorted(times.plan(3, counts)) == [1, 2]


def test_int8_activations_have_equal_rows(tmp_path: Path) -> None:
    write(replace(TINY, kind="Q8_0", width=320), tmp_path / "q8.gguf", np.random.default_rng(5))
    model, text = vs.load(tmp_path / "q8.gguf"), TEXTS[0]
    assert isinstance(model, LanguageModel)
    with vs.Scheduler(["cpu"], precision="int8") as sched:
        steps = SlotSteps(sched, model, 64, 8)
        assert steps.row_counts == ((1, 2, 4, 8) if native_kernels.has_programs() else (1,))
        for slot in range(8):
            steps.prefill(slot, text[slot:], 0)
        ids, starts = list(range(3, 11)), [len(text) - slot for slot in range(8)]
        alone = [steps.decode([slot], [ids[slot]], [starts[slot]])[0].copy() for slot in range(8)]
        together = steps.decode(range(8), ids, starts)
        np.testing.assert_array_equal(together, alone)
        steps.close()


VERIFIED = [
    ("cpu", "f32", "F16", 1),
    ("cpu", "f16", "Q8_0", 3),
    ("cpu", "q8_0", "F16", 3),
    ("vulkan:0", "f32", "Q8_0", 3),
    ("vulkan:0", "f16", "Q8_0", 1),
    ("vulkan:0", "q8_0", "F16", 3),
    ("vulkan:0+cpu", "f16", "Q8_0", 3),
]
"""Devices of the layers, types of the KV cache and of weights, and slots."""


@pytest.mark.parametrize(("device", "cache_type", "kind", "slots"), VERIFIED)
def test_verified_tokens_have_the_bits_of_decode_steps(
    device: str, cache_type: str, kind: str, slots: int, tmp_path: Path
) -> None:
    """Also over rows that wrong guesses left, and in the next decode step."""
    first, last = device.split("+")[0], device.split("+")[-1]
    skip_without(first)
    tiny = replace(TINY, kind=kind, layers=1 + (first != last))
    write(tiny, tmp_path / "tiny.gguf", np.random.default_rng(5))
    model, text, slot = vs.load(tmp_path / "tiny.gguf"), TEXTS[2], slots - 1
    assert isinstance(model, LanguageModel)
    with vs.Scheduler([first]) as sched:
        placement = {"*": last, "blk.0.*": first}
        steps = SlotSteps(sched, model, 64, slots, placement, cache_type=cache_type)
        steps.prefill(slot, text[:5], 0)
        wanted = [steps.decode([slot], [text[at]], [at])[0].copy() for at in range(5, 30)]
        assert steps.verify_sizes == (2, 4, 8)
        for size in steps.verify_sizes:
            steps.prefill(slot, text[:5], 0)
            for at in range(5, 29 - size, size):
                steps.verify(slot, [1] * size, at)  # wrong guesses
                verified = steps.verify(slot, text[at : at + size], at)
                np.testing.assert_array_equal(verified, wanted[at - 5 : at - 5 + size])
            one = steps.decode([slot], [text[at + size]], [at + size])[0]
            np.testing.assert_array_equal(one, wanted[at + size - 5])
        with pytest.raises(ShapeError, match="a number of tokens of"):
            steps.verify(slot, [1, 2, 3], 5)
        steps.close()


@pytest.mark.parametrize("device", ["cpu", "vulkan:0"])
@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(0.3),
        AttentionMask(0.3, window=3),
        AttentionMask(0.3, window=3, sink=True),
        AttentionMask(0.3, window=4, chunked=True),
        AttentionMask(0.3, softcap=2.0, sink=True),
    ],
    ids=["all", "window", "sink in window", "chunk", "sink"],
)
@pytest.mark.each_value
def test_rows_of_one_text_attend_as_in_steps_of_their_own(
    mask: AttentionMask, cache_type: str, device: str
) -> None:
    """A window and a chunk may end within the step."""
    skip_without(device)
    rng = np.random.default_rng(3)
    cache, size = KeyValueCache(32, cache_type, slots=2), 64
    feeds = {name: rng.standard_normal((12, 2, 1, size)).astype(np.float32) for name in "qkv"}
    found = {}
    with vs.Scheduler([device]) as sched:
        for rows in (1, 4):
            q, k, v = (vs.input(name, (rows, 2, 1, size)) for name in "qkv")
            if mask.sink:
                q, k = (concat([x, zeros((rows, 2, 1, SINK_ELEMENTS))], axis=3) for x in (q, k))
            start = vs.input("start", (rows,), "int32", bounds=(0, 31))
            slots = vs.input("slot", (rows,), "int32", bounds=(-1, 1))
            part = CachedSequence(cache, 1, start, None, slots=slots, is_one_text=rows > 1)
            out = part.attend(0, q, k, v, mask)
            run = sched.compile(out, {"*": device}, updates=part.updates)
            found[rows] = np.concatenate(
                [
                    run(
                        start=np.arange(at, at + rows, dtype=np.int32),
                        slot=np.ones(rows, np.int32),
                        **{name: x[at : at + rows] for name, x in feeds.items()},
                    )
                    for at in range(0, 12, rows)
                ]
            )
    np.testing.assert_array_equal(found[4], found[1])


def test_a_step_of_one_text_has_rows_of_one_token(
    model_and_weights: tuple[LanguageModel, dict[str, NDArray]],
) -> None:
    model = model_and_weights[0]
    for tokens, rows in ((2, 2), (1, None)):
        with pytest.raises(ShapeError, match="rows of one token"):
            model.step(model.cache(8), tokens, rows=rows, one_text=True)


def test_other_attention_kernels_of_decode_steps_verify_nothing(
    steps: SlotSteps, model_and_weights: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    """Tuning may select one where examples have no slots: its sums have another order."""
    steps.steps.decide()
    plan = steps.steps.run(StepSize(1, 1)).plan
    on_vulkan = {spec.kind for spec in plan.topology.devices} & {"vulkan"}
    assert bool(cached_attention_variants(plan)) <= bool(on_vulkan)


def test_large_float32_matrices_on_a_cpu_have_steps_of_one_row(tmp_path: Path) -> None:
    several = 1, 2, 4
    for kind, inner, rows in (
        ("F32", 8200, (1,)),
        ("F32", TINY.inner, several),
        ("F16", TINY.inner, several),
        ("Q8_0", TINY.inner, several),
    ):
        tiny = replace(TINY, kind=kind, inner=inner)
        write(tiny, tmp_path / kind, np.random.default_rng(5))
        model = vs.load(tmp_path / kind)
        assert isinstance(model, LanguageModel)
        with vs.Scheduler(["cpu"]) as sched:
            steps = SlotSteps(sched, model, 64, 3)
            assert steps.row_counts == (rows if native_kernels.has_programs() else (1,))
            texts = list(TEXTS.items())
            for slot, text in texts:
                steps.prefill(slot, text[:-1], 0)
            last = [(slot, text[-1], len(text) - 1) for slot, text in texts]
            alone = [steps.decode([s], [t], [at])[0] for s, t, at in last]
            together = steps.decode(*map(list, zip(*last, strict=True)))
            np.testing.assert_array_equal(together, alone)
            steps.close()


def test_experts_on_a_cpu_have_steps_of_several_rows(tmp_path: Path) -> None:
    """A row has the bits that it has alone: small matrices select its experts."""
    for name in ("qwen3moe", "gpt-oss", "llama_experts"):
        for kind in (Type.F32, Type.Q8_0):
            write_golden(language.load(name), tmp_path / name, kind=kind)
            model = vs.load(tmp_path / name)
            assert isinstance(model, LanguageModel)
            texts = np.random.default_rng(1).integers(0, model.hyper.vocabulary, (5, 9)).tolist()
            with vs.Scheduler(["cpu"]) as sched:
                steps = SlotSteps(sched, model, 16, 5)
                assert steps.row_counts == ((1, 2, 4, 8) if native_kernels.has_programs() else (1,))
                for slot, text in enumerate(texts):
                    steps.prefill(slot, text[:-1], 0)
                last = [text[-1] for text in texts]
                alone = [steps.decode([slot], [last[slot]], [8])[0].copy() for slot in range(5)]
                together = steps.decode(range(5), last, [8] * 5)
                np.testing.assert_array_equal(together, alone, str((name, kind)))
                steps.close()


def test_a_lost_device_empties_the_slots(
    model_and_weights: tuple[LanguageModel, dict[str, NDArray]],
) -> None:
    model, text = model_and_weights[0], TEXTS[0]
    lost = vs.FaultInjectionDevice(null_devices(1)[1][0], at=None, times=1)
    with warnings.catch_warnings(), vs.Scheduler([lost]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        steps = SlotSteps(sched, model, 64, 2)
        first = steps.prefill(0, text, 0)
        assert set(steps.steps.layers) == {lost.name}
        lost.at = 0
        with pytest.raises(StateLost):
            steps.prefill(1, text, 0)
        again = steps.prefill(1, text, 0)
        np.testing.assert_allclose(again, first, **CLOSE)
        assert set(steps.steps.layers) == {"cpu"}
        steps.close()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_full_device_gets_no_layers(
    is_empty: bool, model_and_weights: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    text = TEXTS[0]
    full = vs.FaultInjectionDevice(null_devices(1)[1][0], None, "memory", "prepare")
    with vs.Scheduler([full]) as sched, pytest.warns(vs.VkschedWarning) as caught:
        steps = SlotSteps(sched, model_and_weights[0], 64, 2)
        full.at = 1
        if is_empty:
            steps.prepare()
        else:
            steps.prefill(1, text[:8], 0)
            with pytest.raises(StateLost, match="moved to other devices"):
                steps.decode([1], [3], [8])
        found = steps.prefill(1, text, 0)
        np.testing.assert_allclose(found, wanted(model_and_weights, text)[-1], **CLOSE)
        assert set(steps.steps.layers) == {"cpu"}
        steps.close()
    assert any("gets no more layers" in str(warning.message) for warning in caught)


def test_slots_and_starts_are_checked(steps: SlotSteps) -> None:
    for slot, start, count in ((3, 0, 1), (-1, 0, 1), (0, 60, 5), (0, -1, 1), (0, 0, 0)):
        with pytest.raises(ShapeError, match="slot"):
            steps.prefill(slot, [1] * count, start)
    with pytest.raises(ShapeError, match="different slots"):
        steps.decode([1, 1], [1, 2], [0, 0])


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_an_overflow_in_the_cache_of_a_full_slot_is_found(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = build_model(tmp_path, {"attn_k.bias": 2.0**20}, monkeypatch)
    found = {}
    with warnings.catch_warnings(), vs.Scheduler(["cpu"]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        for cache_type in ("f16", "f32"):
            steps = SlotSteps(sched, model, 8, 1, None, None, cache_type, precision)
            found[cache_type] = steps.prefill(0, [*TEXT, 5, 8], 0).copy()
            assert steps.steps.cache_types == {"f32"}
            steps.close()
    np.testing.assert_allclose(found["f16"], found["f32"], 0.02, 0.02)


def test_the_cache_of_each_chunk_is_checked_until_a_token_is_decoded(
    model_and_weights: tuple[LanguageModel, dict[str, NDArray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXTS[2]
    with vs.Scheduler(["cpu"]) as sched:
        steps = SlotSteps(sched, model_and_weights[0], len(text), 1, cache_type="f16")
        starts, run = [], steps._run

        def noted(
            size: StepSize, slots: Sequence[int], parts: Any, at: Sequence[int], *more: Any
        ) -> NDArray:
            starts.append((at[0], size.tokens))
            return run(size, slots, parts, at, *more)

        monkeypatch.setattr(steps, "_run", noted)
        steps.prefill(0, text[:8], 0)
        steps.prefill(0, text[8:40], 8)
        steps.prefill(0, text[40:], 40)
        last = [(at, 1) for at in range(40, 45)]
        assert starts == [(0, 8), (8, 1), (8, 32), (40, 1), *last]
        steps.forget()
        starts.clear()
        steps.prefill(0, text[:8], 0)
        steps.decode([0], text[8:9], [8])
        steps.prefill(0, text[9:17], 9)
        assert starts == [(0, 8), (8, 1), (8, 1), (9, 8)]
        steps.close()


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_overflow_of_float16_empties_the_slots(
    is_empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of the first chunk is checked, too: keys beyond float16's range are NaN there."""
    activations = {"ffn_up": 2.0**18, "ffn_down": 2.0**-10}
    for factors, cache_type in ((activations, "f32"), ({"attn_k.bias": 2.0**20}, "f16")):
        model, weights = build_model(tmp_path, factors, monkeypatch)
        with warnings.catch_warnings(record=True) as caught, vs.Scheduler(["cpu"]) as sched:
            warnings.simplefilter("always", vs.VkschedWarning)
            steps = SlotSteps(sched, model, 16, 2, None, None, cache_type, "mixed")
            lost = 0
            for _ in range(3):
                steps._is_empty = is_empty  # or another slot holds tokens
                try:
                    found = steps.prefill(1, TEXT, 0)
                    break
                except StateLost:
                    lost += 1
            assert (lost > 0) is not is_empty
            assert any("rows are scaled" in str(warning.message) for warning in caught)
            np.testing.assert_allclose(found, oracle(weights), 0.02, 0.02)
            steps.close()
        monkeypatch.undo()
