"""Weights that are uploaded prefetcher: once, to the device that takes all, and given back."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from gguf_models import Tiny, write
from test_weight_repack import PACKED, lazy_arrays_of

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.ops.lowering import native_kernels
from vksched.ops.quantized.gguf_formats import repack
from vksched.plan.types.offsets import aligned
from vksched.runtime.device import PrefetchesWeights
from vksched.runtime.vulkan import staging
from vksched.runtime.vulkan.staging import _rows, _write
from vksched.runtime.vulkan.zero_pages import Zeros
from vksched.storage.lazy_array import LazyArray

NAMES = vulkan_names()
on_device = pytest.mark.skipif(not NAMES, reason="no Vulkan device")
one_device = pytest.mark.parametrize("name", NAMES[-1:])


def loaded(folder: Path, kind: str = "Q8_0") -> LanguageModel:
    write(Tiny(kind=kind), folder / "m.gguf", np.random.default_rng(5))
    model = vs.load(folder / "m.gguf")
    assert isinstance(model, LanguageModel)
    return model


def store_of(sched: vs.Scheduler) -> Any:
    device: Any = sched.devices[0]
    return device.weights


def uploads_of(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list of the keys that are uploaded from now on."""
    keys: list[object] = []
    upload = store._upload

    def noted(items: Any, *others: Any) -> Any:
        keys.extend(key for key, _ in items)
        return upload(items, *others)

    monkeypatch.setattr(store, "_upload", noted)
    return keys


@pytest.mark.parametrize("size", [1, 100, 1000, 10**6])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("looks", [True, False])
def test_parts_put_every_word_at_its_place_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, fast: bool, looks: bool
) -> None:
    if not fast:
        monkeypatch.setattr(native_kernels, "has_repack_file", lambda: False)
    found = list(lazy_arrays_of(tmp_path, PACKED, files=2))
    plain = np.arange(777, dtype=np.float32)
    arrays = [held for _, _, held in found[:9]] + [plain] + [held for _, _, held in found[9:]]
    right = [repack(name, raw, (held.shape[0], 512)) for name, raw, held in found]
    right.insert(9, plain.view(np.uint32))
    words = np.full(sum(aligned(r.size) for r in right), 7, np.uint32)
    for parts in _rows(arrays, size):
        assert sum(part.end - part.start for part in parts[:-1]) < max(size, 1)
        _write(words, parts, Zeros(words) if looks else None)
    at = 0
    for each in right:
        assert np.array_equal(words[at : at + each.size], each.reshape(-1))
        assert (words[at + each.size : at + aligned(each.size)] == 7).all()
        at += aligned(each.size)


@one_device
def test_the_first_plan_takes_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model, logits = loaded(tmp_path), []
    for prefetcher in (True, False):
        with vs.Scheduler([name]) as sched:
            if not prefetcher:
                monkeypatch.setattr("vksched.generation.compiled_steps.takes_all", lambda *_: False)
            reader, store = SlotSteps(sched, model, 16, 1), store_of(sched)
            assert (reader.steps._background_task is not None) is prefetcher
            if reader.steps._background_task is not None:
                reader.steps._background_task.wait()
                there = store.resident_bytes
                words = model.weights.words()
                assert there >= sum(4 * held.size for held in words.values())
                assert all(sched.devices[0].holds(key) for key in words)
                uploaded = uploads_of(store, monkeypatch)
            logits.append(reader.prefill(0, [3, 1, 4], 0))
            if prefetcher:
                assert not words.keys() & set(uploaded)
            assert reader.steps._background_task is None
            reader.forget()
            assert store.resident_bytes == 0
    assert np.array_equal(*logits)


@one_device
def test_a_reader_that_reads_nothing_gives_back_what_there_is(tmp_path: Path, name: str) -> None:
    model = loaded(tmp_path)
    with vs.Scheduler([name]) as sched:
        reader = SlotSteps(sched, model, 16, 1)
        reader.forget()
        assert store_of(sched).resident_bytes == 0 and reader.steps._background_task is None


@on_device
def test_a_device_that_closes_waits_for_no_more_than_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "STAGING_WORDS", 64)
    monkeypatch.setattr(staging, "PIECES_AT_ONCE", 1)
    begun, go_on, rows = threading.Event(), threading.Event(), []

    def make(first: int, out: NDArray) -> None:
        rows.append(first)
        begun.set()
        go_on.wait(60)
        out[:] = 1

    with vs.Scheduler([NAMES[0]]) as sched:
        device, store = sched.devices[0], store_of(sched)
        assert isinstance(device, PrefetchesWeights)
        prefetcher: Any = device.prefetch_weights([("a", LazyArray((50, 64), make))])
        begun.wait(60)
        closer = threading.Thread(target=device.close)
        closer.start()
        while not prefetcher.closing:
            closer.join(0.01)
        go_on.set()
        closer.join(60)
        assert rows == [0] and not store.holds("a") and not prefetcher._pages


@one_device
def test_what_fails_ahead_fails_again_with_its_reason(tmp_path: Path, name: str) -> None:
    model = loaded(tmp_path)
    with vs.Scheduler([name]) as sched:
        later = (tmp_path / "m.gguf").stat().st_mtime_ns + 10**9
        os.utime(tmp_path / "m.gguf", ns=(later, later))
        reader = SlotSteps(sched, model, 16, 1)
        assert reader.steps._background_task is not None
        reader.steps._background_task.wait()
        assert store_of(sched).resident_bytes == 0
        with pytest.raises(vs.ModelFormatError, match=r"m\.gguf"):
            reader.prefill(0, [3, 1, 4], 0)


@on_device
@pytest.mark.parametrize("how", ["several", "with the cpu", "placed", "another policy", "full"])
def test_nothing_is_uploaded_where_it_is_not_clear_for_which_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    model = loaded(tmp_path)
    names = {"several": [NAMES[0]] * 2, "with the cpu": [NAMES[0], "cpu"]}.get(how, [NAMES[0]])
    if how == "full":
        monkeypatch.setattr(
            "vksched.generation.layer_placement.place_layers.MIN_FREE_BYTES", math.inf
        )
    with vs.Scheduler(names, policy="priority" if how == "another policy" else "auto") as sched:
        reader = SlotSteps(sched, model, 16, 1, {"*": NAMES[0]} if how == "placed" else None)
        assert reader.steps._background_task is None
