"""Words made ahead: the same as ever, whoever comes, and nothing where the file is not whole."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf_models import Tiny, write

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.ops.lowering import native_kernels
from vksched.ops.quantized import weight_repack
from vksched.ops.quantized.gguf_formats import FORMATS, Repacked, pack_u32, repack
from vksched.ops.quantized.weight_repack import WeightRepackThread
from vksched.storage.lazy_array import LazyArray, as_array
from vksched.storage.model_file import FLAGS, FileBytes, ModelFile, UnchangedFile, content_of
from vksched.testing.op_cases.linalg.quantized_linear import blocks

PACKED = [name for name in FORMATS if name not in ("f16", "bf16")]
native = pytest.mark.skipif(
    not native_kernels.has_repack_file(), reason="no native loops that read files"
)


def file_of(folder: Path, content: bytes) -> ModelFile:
    path = folder / f"{len(list(folder.iterdir()))}.bin"
    path.write_bytes(content)
    file = os.open(path, FLAGS)
    try:
        unchanged = UnchangedFile(file, str(path), "[test] file")
        return ModelFile(content_of(file, str(path), "[test] file", True), unchanged)
    finally:
        os.close(file)


def lazy_arrays_of(
    folder: Path, names: list[str], files: int = 1
) -> Iterator[tuple[str, NDArray, Repacked]]:
    """Yield formats, the blocks of weights, and these in files, 3 bytes from the beginning."""
    for part in range(files):
        raws = [blocks(name, 7 + part, 512) for name in names]
        file = file_of(folder, b"123" + b"".join(raw.tobytes() for raw in raws) + bytes(1 << 17))
        at = 3
        for name, raw in zip(names, raws, strict=True):
            here = file.part(at, at + raw.nbytes)
            assert isinstance(here, FileBytes)
            lazy = pack_u32(name, here, (7 + part, 512))
            assert isinstance(lazy, Repacked)
            yield name, raw, lazy
            at += raw.nbytes


def nobody() -> None:
    """Helps with nothing."""


def refused(start: int, out: NDArray) -> None:
    raise AssertionError("is there already")


@native
def test_words_are_there_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_repack, "BATCH_BYTES", 1 << 14)
    found = list(lazy_arrays_of(tmp_path, PACKED, files=2))
    thread = WeightRepackThread([lazy for _, _, lazy in found])
    thread.wait()
    for name, raw, lazy in found:
        monkeypatch.setattr(lazy, "_make", refused)
        words = as_array(lazy)
        assert not words.flags.writeable
        assert np.array_equal(words, repack(name, raw, (len(words), 512))), name


@native
def test_nothing_is_retained_when_it_is_closed(tmp_path: Path) -> None:
    ((_, _, lazy),) = lazy_arrays_of(tmp_path, ["q8_0"])
    thread = WeightRepackThread([lazy])
    thread.wait()
    stored = weakref.ref(as_array(lazy))
    assert stored() is not None
    thread.close()
    gc.collect()
    assert stored() is None
    assert as_array(lazy).size  # made anew


@native
def test_nothing_is_created_when_the_interpreter_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, _, lazy),) = lazy_arrays_of(tmp_path, ["q8_0"])
    ended = SimpleNamespace(is_alive=lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "main_thread", lambda: ended)
        thread = WeightRepackThread([lazy])
        thread.wait()
    assert lazy.begin(nobody)
    lazy.end(False)


@native
def test_who_has_words_keeps_them_and_who_needs_them_waits(tmp_path: Path) -> None:
    (_, _, first), (_, _, second) = lazy_arrays_of(tmp_path, ["q8_0", "q4_K"])
    mine = as_array(first)
    assert not first.begin(nobody) and second.begin(nobody) and not second.begin(nobody)
    second.end(False)
    thread = WeightRepackThread([first, second])
    thread.wait()
    assert as_array(first) is mine


@native
@pytest.mark.parametrize("how", ["cut off", "changed"])
def test_file_that_is_not_whole(how: str, tmp_path: Path) -> None:
    found = list(lazy_arrays_of(tmp_path, ["q8_0", "q4_K"]))
    path = tmp_path / "0.bin"
    if how == "cut off":
        os.truncate(path, 5000)
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))
    thread = WeightRepackThread([lazy for _, _, lazy in found])
    thread.wait()
    for _, _, lazy in found:
        with pytest.raises(vs.ModelFormatError, match=r"0\.bin"):
            as_array(lazy)


@native
def test_nobody_reads_once_it_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, raw, lazy),) = lazy_arrays_of(tmp_path, ["q8_0"])
    ended: list[bool] = []

    class Failing:
        """Fails for want of memory before it takes a row."""

        def __init__(self, parts: Any) -> None:
            self.job = native_repacking(parts)

        def work(self, most_bytes: int) -> bool:
            raise MemoryError

        def end(self) -> bool:
            ended.append(self.job.end())
            return ended[-1]

    native_repacking = native_kernels.repack_job
    monkeypatch.setattr(native_kernels, "repack_job", Failing)
    thread = WeightRepackThread([lazy])
    thread.wait()
    assert ended == [False], "helpers have nothing to do from then on"
    assert np.array_equal(as_array(lazy), repack(name, raw, (len(raw), 512)))


@native
def test_rows_are_written_in_one_call_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(lazy_arrays_of(tmp_path, PACKED, files=2))
    found[1][2].place = None  # of a file that native loops do not read
    parts = [
        (lazy, 2, np.zeros((len(raw) - 3) * lazy.shape[-1], np.uint32)) for _, raw, lazy in found
    ]
    calls: list[int] = []
    repack_file = native_kernels.repack_file
    monkeypatch.setattr(
        native_kernels, "repack_file", lambda some: calls.append(len(some)) or repack_file(some)
    )
    Repacked.write_rows(parts)
    assert calls == [len(PACKED) - 1, len(PACKED)]
    for (name, raw, _), (_, _, out) in zip(found, parts, strict=True):
        expected = repack(name, raw, (len(raw), 512))[2:-1]
        assert np.array_equal(out.reshape(expected.shape), expected), name


@native
def test_files_end_where_they_end(tmp_path: Path) -> None:
    ((_, raw, lazy),) = lazy_arrays_of(tmp_path, ["q8_0"])
    assert isinstance(lazy, Repacked) and lazy.place is not None
    file, start = lazy.place
    out = np.zeros(lazy.shape, np.uint32)
    part = lazy.part(out)
    size = os.fstat(file).st_size
    last = (file, size - raw.nbytes, *part[2:])
    beyond = (file, size - raw.nbytes + 1, *part[2:])
    assert native_kernels.repack_file([part, last, beyond, part]) == 2
    assert native_kernels.repack_file([]) == 0
    with pytest.raises(KeyError):
        native_kernels.repack_file([(file, start, "q9_9", *part[3:])])
    for wrong in (part[3] + 1, 2 * part[3], 0):
        with pytest.raises(ValueError, match="expected"):
            native_kernels.repack_file([(file, start, "q8_0", wrong, out)])
    with pytest.raises(ValueError, match="expected"):
        native_kernels.repack_file([(file, start, "q8_0", part[3], out.astype(np.float32))])


@native
@pytest.mark.parametrize("threads", [1, 5])
def test_threads_repack_parts_of_files_together(tmp_path: Path, threads: int) -> None:
    """Each takes rows until none are left, here a piece at a time."""
    found = list(lazy_arrays_of(tmp_path, PACKED, files=2))
    parts = [lazy.part(np.zeros(lazy.shape, np.uint32)) for _, _, lazy in found]
    job = native_kernels.repack_job(parts)

    def work() -> None:
        while job.work(1):
            pass

    helpers = [threading.Thread(target=work) for _ in range(threads)]
    for each in helpers:
        each.start()
    for each in helpers:
        each.join()
    assert job.end() and not job.work(1 << 30) and job.end()
    for (name, raw, _), (*_, words) in zip(found, parts, strict=True):
        assert np.array_equal(words, repack(name, raw, (len(words), 512))), name


@native
def test_work_that_ends_early_or_lacks_bytes_is_not_whole(tmp_path: Path) -> None:
    ((_, _, lazy),) = lazy_arrays_of(tmp_path, ["q8_0"])
    part = lazy.part(np.zeros(lazy.shape, np.uint32))
    begun = native_kernels.repack_job([part, part])
    assert begun.work(1) and not begun.end() and not begun.work(1 << 30)
    assert native_kernels.repack_job([]).end()
    size = (tmp_path / "0.bin").stat().st_size
    cut = native_kernels.repack_job([part, (part[0], size - 1, *part[2:]), part])
    assert not cut.work(1 << 30) and not cut.end()
    with pytest.raises(KeyError):
        native_kernels.repack_job([(*part[:2], "q9_9", *part[3:])])
    with pytest.raises(ValueError, match="expected"):
        native_kernels.repack_job([(*part[:3], part[3] + 1, part[4])])


@native
def test_who_needs_words_helps_to_make_them(tmp_path: Path) -> None:
    ((_, raw, lazy),) = lazy_arrays_of(tmp_path, ["q8_0"])
    buffer = lazy.buffer()
    job = native_kernels.repack_job([lazy.part(buffer)])
    helped: list[bool] = []

    def help() -> None:
        helped.append(job.work(1 << 30))
        lazy.end(job.end())

    assert lazy.begin(help)
    assert as_array(lazy) is buffer and helped == [False] and not buffer.flags.writeable
    assert np.array_equal(buffer, repack("q8_0", raw, (len(buffer), 512)))


def test_what_is_in_no_file_is_left_alone() -> None:
    lazy = pack_u32("q8_0", blocks("q8_0", 4, 64), (4, 64))
    thread = WeightRepackThread([lazy, np.zeros((3, 4), np.uint32)])
    thread.wait()
    thread.close()
    assert isinstance(lazy, LazyArray) and lazy.begin(nobody)
    lazy.end(False)


def test_readers_on_the_cpu_make_words_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Tiny(kind="Q8_0"), tmp_path / "m.gguf", np.random.default_rng(5))
    logits = []
    for wanted in (True, False):
        if not wanted:
            monkeypatch.setattr(native_kernels, "has_repack_file", lambda: False)
        model = vs.load(tmp_path / "m.gguf")
        assert isinstance(model, LanguageModel)
        with vs.Scheduler(["cpu"]) as sched:
            reader = SlotSteps(sched, model, 16, 1)
            assert isinstance(reader.steps._background_task, WeightRepackThread)
            reader.steps._background_task.wait()
            words = model.weights.take("blk.0.ffn_up.weight", (512, 256)).inputs[0].held
            assert isinstance(words, LazyArray)
            there = wanted and native_kernels.has_repack_file()
            assert (words._materialized() is not None) is there
            logits.append(reader.prefill(0, [3, 1, 4], 0))
            assert reader.steps._background_task is None
    assert np.array_equal(*logits)


def test_a_reader_that_forgets_before_its_first_step_makes_no_more(tmp_path: Path) -> None:
    write(Tiny(kind="Q8_0"), tmp_path / "m.gguf", np.random.default_rng(5))
    model = vs.load(tmp_path / "m.gguf")
    assert isinstance(model, LanguageModel)
    with vs.Scheduler(["cpu"]) as sched:
        reader = SlotSteps(sched, model, 16, 1)
        built = reader.steps._background_task
        assert isinstance(built, WeightRepackThread)
        reader.forget()
        built.wait()
        assert built._closed and not built._held_buffers and reader.steps._background_task is None
