"""The hash of a weight is computed once for each file, as long as nobody changes it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_posix

import vksched.storage.content_hash as digests
from vksched.storage.content_hash import digest_of
from vksched.storage.lazy_array import LazyArray, lazy_bytes
from vksched.storage.model_file import open_model

SIZE = 1 << 17


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that were read to be hashed; files may have been changed just now."""
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    out: list[int] = []
    write_to = LazyArray.write_to

    def noting(self: LazyArray, to: np.ndarray, start: int = 0) -> None:
        out.append(to.nbytes)
        write_to(self, to, start)

    monkeypatch.setattr(LazyArray, "write_to", noting)
    return out


def weight(path: Path, start: int = 0) -> LazyArray:
    part = open_model(path, "test").part(start, start + 1024)
    return lazy_bytes(part, (4, 64), np.float32)  # type: ignore[arg-type]


def write(path: Path, seed: int = 0) -> bytes:
    data = np.random.default_rng(seed).bytes(SIZE)
    path.write_bytes(data)
    return data


def test_it_is_known_to_the_next_process_and_reported_that_place_alone(
    tmp_path: Path, read: list[int]
) -> None:
    data = write(tmp_path / "w")
    for start in (0, 4096, 0, 4096):  # each time a new array, as in a new process
        want = hashlib.sha256(data[start : start + 1024]).hexdigest()
        assert digest_of(weight(tmp_path / "w", start)) == want
    assert sum(read) == 2 * 1024
    lazy = weight(tmp_path / "w", 8192)
    assert digest_of(lazy) == digest_of(lazy)
    assert sum(read) == 3 * 1024


@pytest.mark.parametrize("way", ["written", "replaced", "its time set back"])
def test_a_file_that_changed_is_read_again(tmp_path: Path, read: list[int], way: str) -> None:
    path = tmp_path / "w"
    write(path)
    before, about = digest_of(weight(path)), path.stat()
    if way == "replaced":
        write(tmp_path / "new", 1)
        os.replace(tmp_path / "new", path)
    else:
        write(path, 1)
    if way == "its time set back":
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert digest_of(weight(path)) == hashlib.sha256(path.read_bytes()[:1024]).hexdigest() != before


@needs_posix
def test_hashes_that_others_may_write_are_not_believed(tmp_path: Path, read: list[int]) -> None:
    """Whoever gives a weight the hash of another one decides what a node computes with."""
    path = tmp_path / "w"
    write(path)
    digest_of(weight(path))
    (hashes,) = (tmp_path / "cache" / "hashes").iterdir()
    hashes.chmod(0o666)
    where, _ = hashes.read_text().rsplit(" ", 1)
    hashes.write_text(f"{where} {'0' * 64}\n")
    assert digest_of(weight(path)) == hashlib.sha256(path.read_bytes()[:1024]).hexdigest()


def test_what_may_change_within_a_tick_is_not_retained(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_NS", 10**12)
    write(tmp_path / "w")
    for _ in range(2):
        digest_of(weight(tmp_path / "w"))
    assert sum(read) == 2 * 1024


@pytest.mark.parametrize("damage", ["cut off", "garbage", "no folder"])
def test_damaged_notes_are_no_notes(tmp_path: Path, read: list[int], damage: str) -> None:
    data = write(tmp_path / "w")
    digest_of(weight(tmp_path / "w"))
    (notes,) = (tmp_path / "cache" / "hashes").iterdir()
    text = notes.read_bytes()
    notes.write_bytes({"cut off": text[:-9], "garbage": bytes(range(256)) * 9}.get(damage, b""))
    if damage == "no folder":
        notes.unlink()
        notes.parent.rmdir()
        notes.parent.touch()
    assert digest_of(weight(tmp_path / "w")) == hashlib.sha256(data[:1024]).hexdigest()
    assert sum(read) == 2 * 1024


def test_no_more_is_retained_of_a_file_than_is_read(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MAX_TEXT", 200)
    write(tmp_path / "w")
    for start in range(0, 8192, 1024):
        digest_of(weight(tmp_path / "w", start))
    (notes,) = (tmp_path / "cache" / "hashes").iterdir()
    assert 200 <= notes.stat().st_size < 400
