"""Recurrent states of a KV cache: new sequences begin with zeros, and neither padding, nor idle
rows, nor other slots change a state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Scheds

import vksched as vs
from vksched.common.dtypes import INT32, NDArray
from vksched.engine.executable import CompiledGraph
from vksched.generation.cache_states import CacheStates
from vksched.importers.gguf.architectures.mixer import MixerLayer
from vksched.importers.gguf.architectures.token_layout import FullSequence
from vksched.importers.gguf.cached_sequence import CachedSequence
from vksched.importers.gguf.kv_cache import KeyValueCache
from vksched.ir.tensor import Tensor

pytestmark = pytest.mark.one_set

CHANNELS, TAPS, SLOTS, TOKENS = 3, 2, 3, 4


def mixed(layer: MixerLayer, x: Tensor) -> Tensor:
    """Return the sum of all earlier inputs, and the input of TAPS tokens before."""
    rows, tokens, _ = x.shape

    def delayed(before: Tensor) -> tuple[Tensor, Tensor]:
        joined = vs.concat([before, x], axis=1)
        return joined[:, :tokens], layer.last_inputs(joined, TAPS)

    def summed(before: Tensor) -> tuple[Tensor, Tensor]:
        sums = vs.cumsum(layer.without_padding(x), 1) + vs.reshape(before, (rows, 1, CHANNELS))
        return sums, sums[:, -1]

    late = layer.recur("conv_state", rows, delayed, (TAPS, CHANNELS))
    return vs.concat([layer.recur("sum_state", rows, summed, (CHANNELS,)), late], axis=2)


def wanted(x: NDArray) -> NDArray:
    late = np.concatenate([np.zeros((TAPS, CHANNELS), np.float32), x])[: len(x)]
    return np.concatenate([np.cumsum(x, 0), late], axis=1)


class Steps:
    """Steps of `mixed` over one cache, in one part or two."""

    def __init__(self, sched: vs.Scheduler, slots: int) -> None:
        self._sched, self.cache = sched, KeyValueCache(16, slots=slots)
        self._runs: dict[tuple[int, int], CompiledGraph] = {}

    def _compiled(self, rows: int, parts: int) -> CompiledGraph:
        several = self.cache.slots > 1
        shape, each = ((rows,) if several else ()), TOKENS // parts
        x = vs.input("x", (rows, TOKENS, CHANNELS))
        slot = vs.input("slot", shape, INT32, bounds=(-1, SLOTS - 1)) if several else None
        start = vs.input("start", shape, INT32, bounds=(0, 12))
        count = vs.input("count", shape, INT32, bounds=(1, TOKENS)) - (TOKENS - each)
        text: CachedSequence | None = None
        out: list[Tensor] = []
        for part in range(parts):
            own = count if part == parts - 1 else None
            text = CachedSequence(self.cache, each, start, None, text, slots=slot, count=own)
            mine = x[:, part * each : (part + 1) * each]
            out.append(mixed(MixerLayer(0, None, text), mine))  # type: ignore[arg-type]
        assert text is not None
        return self._sched.compile(vs.concat(out, axis=1), updates=text.updates)

    def __call__(self, x: NDArray, parts: int = 1, **places: Any) -> NDArray:
        rows = len(x)
        if (rows, parts) not in self._runs:
            self._runs[rows, parts] = self._compiled(rows, parts)
        padded = np.full((rows, TOKENS, CHANNELS), 1e9, np.float32)
        padded[:, : x.shape[1]] = x
        feeds = {name: np.asarray(value, np.int32) for name, value in places.items()}
        return np.asarray(self._runs[rows, parts](x=padded, **feeds))


def values(tokens: int, seed: int) -> NDArray:
    return np.random.default_rng(seed).integers(-9, 9, (tokens, CHANNELS)).astype(np.float32)


def test_texts_in_slots_are_those_of_whole_texts(scheds: Scheds) -> None:
    step, texts = Steps(scheds[0], SLOTS), {slot: values(9, slot) for slot in range(SLOTS)}
    for slot, x in texts.items():
        out = step(x[None, :3], slot=[slot], start=[0], count=[3])
        np.testing.assert_array_equal(out[0, :3], wanted(x)[:3])
    for at in (3, 4, 5):  # two slots, an idle row, and padding of different lengths
        some = np.stack([texts[2][at : at + 1], texts[0][:1], texts[1][at : at + 1]])
        out = step(some, slot=[2, -1, 1], start=[at, 0, at], count=[1, 1, 1])
        np.testing.assert_array_equal(out[0, 0], wanted(texts[2])[at])
        np.testing.assert_array_equal(out[2, 0], wanted(texts[1])[at])
    out = step(texts[0][None, 3:7], slot=[0], start=[3], count=[4])
    np.testing.assert_array_equal(out[0], wanted(texts[0])[3:7])
    new = values(2, 9)  # another text in a slot that was used
    out = step(new[None], slot=[2], start=[0], count=[2])
    np.testing.assert_array_equal(out[0, :2], wanted(new))


def test_parts_of_a_step_pass_their_states_on(scheds: Scheds) -> None:
    step, x = Steps(scheds[0], 1), values(11, 5)
    out = step(x[None, :4], 2, start=0, count=4)
    np.testing.assert_array_equal(out[0], wanted(x)[:4])
    out = step(x[None, 4:7], 2, start=4, count=3)
    np.testing.assert_array_equal(out[0, :3], wanted(x)[4:7])
    out = step(x[None, 7:], start=7, count=4)
    np.testing.assert_array_equal(out[0], wanted(x)[7:])


def test_whole_texts_begin_with_zeros(scheds: Scheds) -> None:
    x = values(6, 3)
    layer = MixerLayer(0, None, FullSequence(6))  # type: ignore[arg-type]
    out = scheds[0].compile(mixed(layer, vs.input("x", (2, 6, CHANNELS))))(x=np.stack([x, x]))
    np.testing.assert_array_equal(out[1], wanted(x))


def test_states_are_read_and_restored(scheds: Scheds) -> None:
    step, x = Steps(scheds[0], SLOTS), values(9, 1)
    step(x[None, :4], slot=[1], start=[0], count=[4])
    states = CacheStates(
        step.cache, lambda out, updates, _: scheds[0].compile(out, updates=updates)
    )
    stored = states.read(1)
    step(x[None, 4:6], slot=[1], start=[4], count=[2])
    for slot in (1, 2):
        states.write(slot, stored)
        out = step(x[None, 4:8], slot=[slot], start=[4], count=[4])
        np.testing.assert_array_equal(out[0], wanted(x)[4:8])
    states.close()
