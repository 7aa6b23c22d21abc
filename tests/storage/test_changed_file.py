"""A model's file that changes while it is in use: one clear error, and never other weights."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from gguf_models import Tiny, write

import vksched as vs
from vksched.importers.gguf.model import LanguageModel
from vksched.storage import model_file
from vksched.storage.lazy_array import ConcatBytes, LazyArray, as_array
from vksched.storage.model_file import FileBytes, open_model

KINDS = ["Q8_0", "F16", "F32"]
IDS = np.array([[3, 1, 4, 15]], np.int32)


def build_model(path: Path, kind: str) -> LanguageModel:
    write(Tiny(kind=kind, layers=1), path, np.random.default_rng(5))
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def overwritten(path: Path) -> None:
    """Write into a file, at a time that no clock has to give."""
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(64))
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "message"), [(overwritten, "was written to since"), (cut_off, "bytes, got ")]
)
def test_weights_of_a_changed_file_are_refused(
    kind: str, change: object, message: str, devices: list[str], tmp_path: Path
) -> None:
    model = build_model(tmp_path / "model.gguf", kind)
    logits = model.logits(vs.input("ids", IDS.shape, "int32"))
    with vs.Scheduler(devices) as sched:
        run = sched.compile(logits)
        run(ids=IDS)
        run.close()
        del run
        gc.collect()  # nobody has the words of weights any more
        change(tmp_path / "model.gguf")  # type: ignore[operator]
        with pytest.raises(vs.ModelFormatError, match=message) as caught:
            sched.compile(logits)
        assert "model.gguf" in str(caught.value) and "load the model again" in str(caught.value)
        x = vs.input("x", (3,))
        assert np.array_equal(sched.compile(x + 1.0)(x=np.ones(3, np.float32)), [2, 2, 2])


def test_vectors_are_read_and_not_found_in_the_map(tmp_path: Path) -> None:
    """What a cut off file leaves of a map ends the process that touches it."""
    models = [build_model(tmp_path / f"{number}.gguf", "Q8_0") for number in range(2)]
    name = "blk.0.attn_norm.weight"
    tensors = [model.file.tensors[name] for model in models]
    expected = np.array(tensors[0].to_numpy())
    for tensor in tensors:
        assert isinstance(tensor.blocks, FileBytes)
        tensor.blocks.content = memoryview(b"")
    found = models[0].weights.take(name, expected.shape).held
    assert found is not None and np.array_equal(as_array(found), expected)
    cut_off(tmp_path / "1.gguf")
    with pytest.raises(vs.ModelFormatError, match="bytes, got "):
        models[1].weights.take(name, expected.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_file_in_the_place_of_another_changes_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = build_model(path, kind)
    logits = model.logits(vs.input("ids", IDS.shape, "int32"))
    with vs.Scheduler(["cpu"]) as sched:
        expected = np.array(sched.compile(logits)(ids=IDS))
    (tmp_path / "new").write_bytes(bytes(path.stat().st_size))
    os.replace(tmp_path / "new", path)
    gc.collect()
    with vs.Scheduler(["cpu"]) as sched:
        assert np.array_equal(sched.compile(logits)(ids=IDS), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_file_are_those_of_its_map(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(tmp_path / "model.gguf", kind)
    tensor = model.file.tensors["blk.0.ffn_up.weight"]
    assert isinstance(tensor.blocks, FileBytes) and tensor.blocks.size == tensor.nbytes
    held = model.weights.take(tensor.name, tensor.shape)
    held = held.inputs[0] if held.op == "dequantize" else held
    assert isinstance(held.held, LazyArray) and held.held.dtype.name == held.dtype
    whole = as_array(held.held).reshape(-1).view(np.uint32)
    for read in (True, False):
        if not read:  # as on Windows
            monkeypatch.delattr(model_file.os, "preadv")
        part = np.empty(whole.size - 3, np.uint32)
        held.held.write_to(part, 2)
        assert np.array_equal(part, whole[2:-1])
        both, out = ConcatBytes([tensor.blocks] * 3), np.empty(2 * tensor.nbytes, np.uint8)
        both.read(tensor.nbytes - 5, out)
        data = np.frombuffer(tensor.data, np.uint8)
        assert np.array_equal(out, np.concatenate([data[-5:], data, data[:-5]]))


def test_small_files_are_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"0123456789")
    opened = open_model(path, "gguf")
    cut_off(path)
    assert opened.file is None and bytes(opened.part(2, 5)) == b"234"  # type: ignore[arg-type]
