"""Steps of several texts over one KV cache: each has the logits that it has alone, to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import language
import numpy as np
import pytest
from conftest import Scheds
from language import convert

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ShapeError
from vksched.engine.executable import CompiledGraph
from vksched.importers.gguf.kv_cache import KINDS as CACHE_TYPES
from vksched.importers.gguf.kv_cache import KeyValueCache
from vksched.importers.gguf.model import LanguageModel
from vksched.ops.lowering import native_kernels

pytestmark = pytest.mark.one_set

FAMILIES = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt-oss", "llama4", "gpt2"),
    *("qwen3next", "lfm2", "mamba", "falcon-h1"),
)
"""Full attention, windows, attention sinks, chunks, learned positions, and recurrent states with
attention in other layers, in none and in the same layers.
"""
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
LENGTH, SLOTS, CHUNK = 41, 5, 8


def golden_model(name: str, folder: Path) -> tuple[LanguageModel, language.Golden]:
    golden = language.load(name)
    convert.write(golden, folder / "tiny.gguf")
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model, golden


class Rows:
    """The steps of a model over one cache, by their rows and tokens."""

    def __init__(self, sched: vs.Scheduler, model: LanguageModel, cache: KeyValueCache) -> None:
        self.sched, self.model, self.cache = sched, model, cache
        names = [device.name for device in sched.devices]
        self._placement = {"*": names[0], "blk.1.*": names[-1]}
        """The same for all numbers of rows: other devices compute other bits."""
        self._runs: dict[tuple[int, int], CompiledGraph] = {}

    def __call__(
        self, rows: int, tokens: int, texts: Mapping[int, tuple[NDArray, int]]
    ) -> dict[int, NDArray]:
        """Run a step. texts: by slot, the new tokens and the number of cached ones; other rows are
        idle.
        """
        if (rows, tokens) not in self._runs:
            step = self.model.step(self.cache, tokens, rows=rows)
            self._runs[rows, tokens] = self.sched.compile(
                step.logits, updates=step.updates, placement=self._placement
            )
        ids = np.zeros((rows, tokens), np.int32)
        slot, start, count = (np.full(rows, fill, np.int32) for fill in (-1, 0, 1))
        for row, (own, (new, cached)) in enumerate(texts.items()):
            ids[row, : len(new)] = new
            slot[row], start[row], count[row] = own, cached, len(new)
        out = self._runs[rows, tokens](ids=ids, slot=slot, start=start, count=count)
        return {own: np.asarray(out)[row] for row, own in enumerate(texts)}


def texts_of(golden: language.Golden, vocabulary: int) -> dict[int, NDArray]:
    """Return texts of different lengths, by slot; that of slot 3 is the golden one."""
    ids = golden.ids
    return {
        3: ids,
        0: (ids[:11] + 5) % vocabulary,
        4: np.append(ids[::-1], ids[:9]),
        1: (ids[3:17] + 9) % vocabulary,
    }


def read_prompts(step: Rows, texts: Mapping[int, NDArray], slots: list[int]) -> dict[int, int]:
    """Read the texts but for their last 3 tokens in chunks; return the cached tokens by slot."""
    done = dict.fromkeys(slots, 0)
    for slot in slots:
        end = len(texts[slot]) - 3
        while done[slot] < end:
            part = texts[slot][done[slot] : min(done[slot] + CHUNK, end)]
            step(1, CHUNK, {slot: (part, done[slot])})
            done[slot] += len(part)
    return done


def decode(
    step: Rows, rows: int, texts: Mapping[int, NDArray], done: dict[int, int]
) -> dict[int, list[NDArray]]:
    """Append the last 3 tokens of each text; return the logits after each."""
    out: dict[int, list[NDArray]] = {slot: [] for slot in done}
    for _ in range(3):
        new = {slot: (texts[slot][at : at + 1], at) for slot, at in done.items()}
        for slot, logits in step(rows, 1, new).items():
            out[slot].append(logits)
            done[slot] += 1
    return out


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_a_text_do_not_depend_on_other_rows(
    name: str, scheds: Scheds, tmp_path: Path
) -> None:
    model, golden = golden_model(name, tmp_path)
    texts = texts_of(golden, model.hyper.vocabulary)
    alone: dict[int, list[NDArray]] = {}
    for slot in texts:
        step = Rows(scheds[0], model, model.cache(LENGTH, slots=SLOTS))
        alone |= decode(step, 1, texts, read_prompts(step, texts, [slot]))
    assert golden.wanted.std() > 0.5
    np.testing.assert_allclose(np.stack(alone[3]), golden.wanted[-3:], **CLOSE)
    together = Rows(scheds[0], model, model.cache(LENGTH, slots=SLOTS))
    done = read_prompts(together, texts, list(texts))
    some = {slot: done[slot] for slot in (3, 0)}
    found = decode(together, 2, texts, dict(some))
    if not native_kernels.has_programs():
        pytest.skip("products of numpy depend on the number of rows")
    for rows in (4, 8):
        if model.is_recurrent:  # its states are those after the decoded tokens
            read_prompts(together, texts, list(texts))
        again = decode(together, rows, texts, dict(done))
        for slot in done:
            np.testing.assert_array_equal(again[slot], alone[slot], f"slot {slot}, {rows} rows")
    for slot in some:
        np.testing.assert_array_equal(found[slot], alone[slot], f"slot {slot}, 2 rows")


@pytest.mark.each_value
@pytest.mark.parametrize("cache_type", [each for each in CACHE_TYPES if each != "f32"])
@pytest.mark.parametrize("name", ["llama", "gpt-oss", "llama4"])
def test_narrow_caches_have_slots(
    name: str, cache_type: str, scheds: Scheds, tmp_path: Path
) -> None:
    model, golden = golden_model(name, tmp_path)
    texts = texts_of(golden, model.hyper.vocabulary)
    alone: dict[int, list[NDArray]] = {}
    for slot in texts:
        step = Rows(scheds[0], model, model.cache(LENGTH, cache_type, slots=SLOTS))
        alone |= decode(step, 1, texts, read_prompts(step, texts, [slot]))
    step = Rows(scheds[0], model, model.cache(LENGTH, cache_type, slots=SLOTS))
    if not native_kernels.has_programs():
        pytest.skip("products of numpy depend on the number of rows")
    found = decode(step, 4, texts, read_prompts(step, texts, list(texts)))
    for slot, logits in alone.items():
        np.testing.assert_array_equal(found[slot], logits, f"slot {slot}")
    off = np.abs(alone[3][-1] - golden.wanted[-1]).max() / np.abs(golden.wanted[-1]).max()
    assert 0 < off < {"f16": 5e-3, "q8_0": 0.1}[cache_type]


def test_chunks_of_several_texts_and_all_logits(scheds: Scheds, tmp_path: Path) -> None:
    for name in ("llama4", "gpt-oss"):
        model, golden = golden_model(name, tmp_path)
        texts = texts_of(golden, model.hyper.vocabulary)
        cache = model.cache(LENGTH, slots=SLOTS)
        step = Rows(scheds[0], model, cache)
        first = {slot: (text[:7], 0) for slot, text in texts.items()}
        step(4, CHUNK, first)
        second = step(4, CHUNK, {slot: (text[7:11], 7) for slot, text in texts.items()})
        np.testing.assert_allclose(second[3], golden.wanted[10], **CLOSE)
        every = model.step(cache, CHUNK, rows=2, all_logits=True)
        run = scheds[0].compile(every.logits, updates=every.updates)
        ids = np.zeros((2, CHUNK), np.int32)
        ids[1, :5] = golden.ids[7:12]
        slot, start = np.array([-1, 3], np.int32), np.array([0, 7], np.int32)
        logits = np.asarray(run(ids=ids, slot=slot, start=start))[1, :5]
        np.testing.assert_allclose(logits, golden.wanted[7:12], **CLOSE)


def test_idle_rows_write_nothing(scheds: Scheds, tmp_path: Path) -> None:
    model, golden = golden_model("llama", tmp_path)
    cache = model.cache(LENGTH, slots=2)
    step = Rows(scheds[0], model, cache)
    step(4, CHUNK, {1: (golden.ids[:6], 0)})
    for state in cache.states.values():
        held = scheds[0].read(state)
        assert held.shape[0] == 2 and not held[0].any()
        assert np.abs(held[1]).sum((0, 2)).astype(bool).sum() == CHUNK  # with those of padding


def test_rows_and_slots_are_checked(tmp_path: Path) -> None:
    model, _ = golden_model("llama", tmp_path)
    for slots in (0, -1):
        with pytest.raises(ShapeError, match="1 or more slots"):
            model.cache(8, slots=slots)
    with pytest.raises(ShapeError, match="1 or more rows for a cache of 3 slots, got None"):
        model.step(model.cache(8, slots=3), 1)
    with pytest.raises(ShapeError, match="1 or more rows"):
        model.step(model.cache(8), 1, rows=0)
