"""Keys and values in q8_0: steps give what they would of rows that `gguf` rounds, and no others."""

from __future__ import annotations

from pathlib import Path

import gguf
import language
import numpy as np
import pytest
from conftest import Scheds
from language.convert import write
from selection import spread
from test_gguf_golden import BESIDES

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.gguf.kv_cache import KINDS, KeyValueCache
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
ROUNDED = 3e-5
"""The squared error of a normally distributed row: a step is 1/127 of the largest of 32 values,
2.4 deviations, and an error is anywhere in half a step to both sides.
"""
MOST, LEAST = 10 * ROUNDED, ROUNDED / 10
"""The same of logits behind a few layers, of which the worst was seen with 3.3 times ROUNDED."""
STEPS = ((8, 5), (1, 1), (8, 7), (1, 1), (1, 1))


def build_model(name: str, folder: Path) -> tuple[language.Golden, LanguageModel]:
    golden = language.load(name)
    write(golden, folder / "tiny.gguf")
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return golden, model


def by_gguf(rows: NDArray) -> NDArray:
    """Rows (..., n) as `gguf` rounds them, in blocks of 32, the last one filled up with 0."""
    columns = rows.shape[-1]
    filled = np.zeros((*rows.shape[:-1], -(-columns // 32) * 32), np.float32)
    filled[..., :columns] = rows
    kind = gguf.GGMLQuantizationType.Q8_0
    built = gguf.quants.dequantize(gguf.quants.quantize(filled, kind), kind)
    return np.asarray(built)[..., :columns]


def in_steps(sched: vs.Scheduler, model: LanguageModel, ids: NDArray, cache_type: str) -> NDArray:
    """Logits after each step. kv "gguf": of float32, of which `gguf` rounds what is written."""
    cache, runs = model.cache(len(ids) + 3, "f32" if cache_type == "gguf" else cache_type), {}
    for size in (1, 8):
        step = model.step(cache, size)
        runs[size] = sched.compile(step.logits, updates=step.updates)
    out, start = [], 0
    for size, count in STEPS:
        values = np.zeros((1, size), np.int32)
        values[0, :count] = ids[start : start + count]
        out.append(runs[size](ids=values, start=start, count=count)[0])
        for state in cache.row_states.values() if cache_type == "gguf" else ():
            held = np.array(sched.read(state))
            held[:, :, start : start + size] = by_gguf(held[:, :, start : start + size])
            sched.write(state, held)
        start += count
    return np.array(out)


def squared_error(got: NDArray, wanted: NDArray) -> float:
    return float(((got - wanted) ** 2).sum() / (wanted**2).sum())


CACHED = [name for name in language.NAMES if name not in BESIDES]
LIGHT = ("jais", "minicpm", "minicpm3", "mpt")
"""Models with large or scaled embeddings: attention is a small share of the logits."""


@pytest.mark.parametrize("name", spread(CACHED, 20))
def test_logits_are_those_of_rows_that_gguf_rounds(name: str, tmp_path: Path) -> None:
    golden, model = build_model(name, tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        got = in_steps(sched, model, golden.ids, "q8_0")
        np.testing.assert_allclose(got, in_steps(sched, model, golden.ids, "gguf"), **CLOSE)
    ends = np.cumsum([count for _, count in STEPS]) - 1
    # recurrent states have float32, and compressed rows are expanded with their error
    least = 0.0 if model.is_recurrent else LEAST / 20 if name in LIGHT else LEAST
    most = 2 * MOST if "kv_lora_rank" in golden.config else MOST
    assert least < squared_error(got[1:], golden.wanted[ends][1:]) < most


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_so_they_are_on_devices(name: str, scheds: Scheds, tmp_path: Path) -> None:
    golden, model = build_model(name, tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        wanted = in_steps(sched, model, golden.ids, "gguf")
    got = in_steps(scheds[0], model, golden.ids, "q8_0")
    assert squared_error(got, wanted) < LEAST, "codes at the border of two may differ"


@pytest.mark.parametrize("size", [64, 128, 256, 80])
def test_a_cache_takes_eight_and_a_half_bits(size: int) -> None:
    states = {
        cache_type: KeyValueCache(100, cache_type).rows("blk.0.keys", (3, size))
        for cache_type in KINDS
    }
    bits = {
        cache_type: 8 * state.type.device_bytes / (300 * size)
        for cache_type, state in states.items()
    }
    assert (bits["f32"], bits["f16"]) == (32, 16)
    assert bits["q8_0"] == (8.5 if size % 64 == 0 else 8.8)
