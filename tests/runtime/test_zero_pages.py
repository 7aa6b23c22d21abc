"""Zeros in memory: found wherever they lie, and pages that nobody has touched are not looked at."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.runtime.vulkan import zero_pages
from vksched.runtime.vulkan.zero_pages import Zeros

WORDS = mmap.PAGESIZE // 4
PAGES = 64
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no pagemap")


@pytest.fixture(params=["own", "shared", "of a file", "not told"])
def memory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NDArray]:
    """Memory of zeros, which begins and ends within a page."""
    size = PAGES * mmap.PAGESIZE
    if request.param == "not told":
        monkeypatch.setattr(zero_pages, "PAGEMAP", str(tmp_path / "nothing"))
    if request.param == "of a file":
        path = tmp_path / "file"
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            built = mmap.mmap(file.fileno(), size)
    elif request.param == "shared" or sys.platform != "linux":
        built = mmap.mmap(-1, size)
    else:
        built = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    yield np.frombuffer(built, np.uint32)[3:-5]


def test_every_word_that_is_not_0_is_seen(memory: NDArray) -> None:
    rng = np.random.default_rng(1)
    with closing(Zeros(memory)) as seen:
        assert seen.lie_in(0, memory.size) and seen.lie_in(7, 7)
        for _ in range(40):
            at = int(rng.integers(memory.size))
            memory[at] = rng.integers(1, 2**32, dtype=np.uint32)
            start, end = sorted(rng.integers(memory.size + 1, size=2).tolist())
            assert seen.lie_in(start, end) == (not memory[start:end].any())
            assert seen.lie_in(0, at) == (not memory[:at].any()) and not seen.lie_in(at, at + 1)
            memory[at] = 0
        edges = [0, WORDS - 4, WORDS - 3, memory.size - 1]
        for at in edges:
            memory[at] = 1
            assert not seen.lie_in(0, memory.size) and not seen.lie_in(at, at + 1)
            memory[at] = 0


@on_linux
def test_pages_that_nobody_has_touched_are_not_looked_at() -> None:
    built = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        built.madvise(mmap.MADV_NOHUGEPAGE)  # of which a touch takes the neighbours, too
    memory: NDArray = np.frombuffer(built, np.uint32)
    for page in (5, 6, 40):
        memory[page * WORDS] = 0
    with closing(Zeros(memory)) as seen:
        if seen._pages is None:
            pytest.skip("this system does not tell")
        whole = [(5 * WORDS, 7 * WORDS), (40 * WORDS, 41 * WORDS)]
        assert list(seen._touched(0, memory.size)) == whole
        assert list(seen._touched(5 * WORDS + 1, 6 * WORDS)) == [(5 * WORDS + 1, 6 * WORDS)]
        assert list(seen._touched(8 * WORDS, 30 * WORDS)) == []


@on_linux
def test_memory_of_others_is_looked_at(tmp_path: Path) -> None:
    """A file's pages may have words that this process has not read yet."""
    path = tmp_path / "file"
    path.write_bytes(np.ones(PAGES * WORDS, np.uint32).tobytes())
    with path.open("rb") as file:
        for how in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            built = mmap.mmap(file.fileno(), 0, flags=how, prot=mmap.PROT_READ)
            with closing(Zeros(np.frombuffer(built, np.uint32))) as seen:
                assert not seen.lie_in(0, PAGES * WORDS)


class PageInfo(NamedTuple):
    """What a system tells: the text of maps, and what reading entries of pages gives."""

    maps: str | None
    entries: Callable[[int], bytes]


def refused(size: int) -> bytes:
    raise PermissionError(1, "not permitted")


@on_linux
@pytest.mark.parametrize(
    "info",
    [
        pytest.param(PageInfo(None, refused), id="entries are refused"),
        pytest.param(PageInfo(None, lambda size: b""), id="no entries"),
        pytest.param(PageInfo(None, bytes), id="those of another process"),
        pytest.param(PageInfo("", bytes), id="no maps"),
        pytest.param(
            PageInfo("0x1000 0x2000 rw- 3 1 0xff NCOW\n", bytes), id="maps of another system"
        ),
        pytest.param(PageInfo("12 34\n", bytes), id="short maps"),
    ],
)
def test_systems_that_tell_otherwise_are_not_believed(
    info: PageInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory: NDArray = np.frombuffer(built, np.uint32)
    memory[9 * WORDS] = 1
    if info.maps is not None:
        (tmp_path / "maps").write_text(info.maps)
        monkeypatch.setattr(zero_pages, "MAPS", str(tmp_path / "maps"))
    monkeypatch.setattr(os, "pread", lambda pages, size, at: info.entries(size))
    with closing(Zeros(memory)) as seen:
        assert not seen.lie_in(0, memory.size) and seen.lie_in(0, 9 * WORDS)


@on_linux
def test_entries_that_are_refused_later_mean_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    built = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory: NDArray = np.frombuffer(built, np.uint32)
    memory[9 * WORDS] = 1
    with closing(Zeros(memory)) as seen:
        monkeypatch.setattr(os, "pread", lambda pages, size, at: refused(size))
        assert not seen.lie_in(0, memory.size) and seen.lie_in(0, 9 * WORDS)
