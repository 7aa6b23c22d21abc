"""Weights in files of a node: only below its folders, only what has the hash, only as it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import needs_linux, needs_posix

from vksched.common.dtypes import NDArray
from vksched.common.errors import DeviceError, ModelFormatError, VkschedError
from vksched.distributed.worker.local_weights import ModelFolders, file_document
from vksched.distributed.worker.weight_cache import WeightCache, hash_of
from vksched.distributed.worker.weight_registry import WeightRegistry
from vksched.ops.quantized.gguf_formats import pack_u32
from vksched.storage.content_hash import digest_of
from vksched.storage.lazy_array import LazyArray, lazy_bytes, origin_of
from vksched.storage.model_file import open_model

SIZE = 1 << 18
LITTLE: NDArray = np.zeros(8, np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of numbers, below a folder of the node, with a secret beside that folder."""
    path = tmp_path / "models" / "sub" / "w.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    (tmp_path / "secret.bin").write_bytes(path.read_bytes())
    return path


def asked(of: Path, **changes: object) -> tuple[str, dict[str, Any]]:
    """Return the hash of a weight in the middle of a file, and what a driver asks for it."""
    part = open_model(of, "test").part(4096, 4096 + 1024)
    held = lazy_bytes(part, (16, 16), np.float32)  # type: ignore[arg-type]
    origin = origin_of(held)
    assert origin is not None
    name = digest_of(held)
    return name, {"hash": name, "file": {**file_document(origin), **changes}}


def holding(*folders: Path, cache: Path | None = None) -> WeightRegistry:
    return WeightRegistry(WeightCache(cache), ModelFolders(folders), digest_of)


def test_a_weight_is_read_where_the_end_of_its_path_is(file: Path, tmp_path: Path) -> None:
    name, reported = asked(file)
    for folder in (tmp_path, tmp_path / "models", file.parent):
        built = holding(tmp_path / "models" / "sub" / "..", folder)
        assert built.missing(1, [reported]) == []
        found = built.require(1, name)
        assert isinstance(found, LazyArray) and found.shape == (16, 16)
        want = np.fromfile(file, np.float32, 256, offset=4096)
        assert np.array_equal(found.materialize().reshape(-1), want, equal_nan=True)
    assert holding().missing(1, [reported]) == [name]


def test_blocks_are_repacked_where_they_lie(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "q.bin"
    path.write_bytes(rng.integers(0, 60, SIZE, np.uint8).tobytes())
    part = open_model(path, "test").part(144 * 3, 144 * 11)
    held = pack_u32("q4_K", part, (4, 512))
    origin = origin_of(held)
    assert origin is not None and origin.blocks == "q4_K"
    name, built = digest_of(held), holding(tmp_path)
    assert built.missing(1, [{"hash": name, "file": file_document(origin)}]) == []
    assert digest_of(built.require(1, name)) == name == digest_of(held.materialize())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "models/../../secret.bin",
        "/etc/passwd",
        "",
        ".",
        "sub",
        "sub/w.bin/",
        "a\0b",
        "link.bin",
        "folder/secret.bin",
        "x/" * 5000 + "w.bin",
    ],
)
@needs_posix
def test_nothing_outside_the_folders_is_opened(file: Path, path: str) -> None:
    models = file.parent.parent
    (models / "link.bin").symlink_to(models.parent / "secret.bin")
    (models / "folder").symlink_to(models.parent)
    name, reported = asked(models.parent / "secret.bin", path=path)
    assert asked(file)[0] == name, "it would be taken"
    opened = ModelFolders([models]).open(path, SIZE)
    if opened is not None:  # of the end of the path, which is here
        assert opened.file is not None and opened.file.path == str(file)
        return
    assert holding(models).missing(1, [reported]) == [name]


@needs_posix
def test_a_pipe_a_folder_and_a_device_are_no_model_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    folders = ModelFolders([tmp_path])
    assert [folders.open(name, 0) for name in ("pipe", "folder")] == [None, None]
    for wrong in (tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(VkschedError, match="expected a folder of models"):
            ModelFolders([wrong])


@pytest.mark.parametrize(
    "changes",
    [
        {"start": -4},
        {"start": SIZE - 8},
        {"start": 1 << 62},
        {"size": 0},
        {"size": -1},
        {"size": 1 << 62},
        {"shape": []},
        {"shape": [-16, -16]},
        {"shape": [1 << 40, 1 << 40]},
        {"shape": [1] * 99},
        {"shape": [16, 17]},
        {"dtype": "object"},
        {"dtype": "S9"},
        {"blocks": "q4_K"},
        {"blocks": "../x"},
        {"bytes": SIZE - 1},
        {"start": 4100},
    ],
)
def test_what_a_caller_tells_wrongly_is_asked_for(file: Path, changes: dict[str, Any]) -> None:
    name, reported = asked(file, **changes)
    assert holding(file.parent).missing(1, [reported]) == [name]


@pytest.mark.parametrize("change", ["cut off", "written", "longer"])
def test_a_file_that_is_not_the_same_is_not_used(file: Path, tmp_path: Path, change: str) -> None:
    name, reported = asked(file)
    data = bytearray(file.read_bytes())
    data[4100] ^= change == "written"
    data += bytes(change == "longer")
    file.write_bytes(data[: -1 if change == "cut off" else None])
    assert holding(file.parent).missing(1, [reported]) == [name]


@needs_posix
def test_a_file_that_changes_while_it_is_used_is_an_error_and_no_crash(file: Path) -> None:
    name, reported = asked(file)
    built = holding(file.parent)
    assert built.missing(1, [reported]) == []
    found = built.require(1, name)
    os.truncate(file, 4000)
    with pytest.raises(ModelFormatError, match="expected .* bytes, got 4000"):
        found.materialize()  # type: ignore[union-attr]
    assert built.missing(2, [reported]) == [], "what a plan holds is held"
    built.forget(1)
    built.forget(2)
    assert built.missing(3, [reported]) == [name]


def test_weights_go_with_the_last_plan_that_needs_them(tmp_path: Path) -> None:
    built = holding(cache=None)
    names = []
    for number in range(3):
        data: NDArray = np.full(8, number, np.uint8)
        names.append(hash_of([data]))
        assert built.missing(number, [{"hash": names[-1]}]) == names[-1:]
        built.add(number, names[-1], data)
    both = [{"hash": name} for name in names[:2]]
    assert built.missing(7, both) == []
    built.forget(0)
    assert built.missing(8, both) == [], "plan 7 holds them"
    built.forget(7)
    built.forget(8)
    assert built.missing(9, both) == names[:1]
    with pytest.raises(DeviceError, match="was not sent"):
        built.require(9, names[0])
    built.forget(1)
    built.forget(2)
    built.forget(9)
    assert built._plans == {}


@pytest.mark.parametrize("end", ["forget", "close"])
def test_what_is_found_for_a_plan_that_was_abandoned_is_not_held(file: Path, end: str) -> None:
    read: list[str] = []

    def refused(held: Any) -> str:
        registry.close() if end == "close" else registry.forget(1)
        read.append(digest_of(held))
        return read[-1]

    registry = WeightRegistry(WeightCache(None), ModelFolders([file.parent]), refused)
    first, other = asked(file), asked(file, start=8192)
    many = [{**other[1], "hash": f"{number:064x}"} for number in range(20)]
    with pytest.raises(DeviceError, match="a plan that needs some, got those of plan 1"):
        registry.missing(1, [first[1], *many])
    assert registry._plans == {} and len(read) <= 4, "one for each thread, and no more"
    with pytest.raises(DeviceError, match="driver has gone|plan that needs some"):
        registry.add(1, hash_of([LITTLE]), LITTLE)
    if end == "close":
        with pytest.raises(DeviceError, match="driver has gone"):
            registry.missing(2, [first[1]])


@needs_linux
def test_a_file_of_many_paths_is_open_once(file: Path) -> None:
    counts: list[int] = []

    def counting(held: Any) -> str:
        counts.append(len(os.listdir("/proc/self/fd")))
        return digest_of(held)

    registry = WeightRegistry(WeightCache(None), ModelFolders([file.parent]), counting)
    reported, before = asked(file)[1], len(os.listdir("/proc/self/fd"))
    many = [asked(file, path=f"{number}/{file.name}")[1] for number in range(200)]
    for number, each in enumerate(many):
        each["hash"] = f"{number:064x}"
    assert registry.missing(1, [reported, *many]) == [each["hash"] for each in many]
    assert max(counts) < before + 100
