"""LazyArray arrays: the same words wherever they are made, and none where nobody has them."""

from __future__ import annotations

import gc
import os
import re
import signal
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ops.quantized.gguf_formats import pack_u32, repack
from vksched.storage.lazy_array import LazyArray, as_array, buffer_of, drop_mapped_pages
from vksched.storage.model_file import open_model
from vksched.testing.op_cases.linalg.quantized_linear import blocks


class Counting(LazyArray):
    """A table of rows, which counts how often all of it was made."""

    def __init__(self, table: NDArray) -> None:
        self.rows = 0

        def make(start: int, out: NDArray) -> None:
            self.rows += len(out)
            out[:] = table[start : start + len(out)]

        super().__init__(table.shape, make)


@given(
    rows=st.integers(1, 9), row=st.integers(1, 7), ends=st.tuples(st.floats(0, 1), st.floats(0, 1))
)
def test_any_part_is_that_of_the_whole(rows: int, row: int, ends: tuple[float, float]) -> None:
    table = np.arange(rows * row, dtype=np.uint32).reshape(rows, row)
    start, end = sorted(round(end * table.size) for end in ends)
    out = np.full(table.size + 2, 7, np.uint32)
    Counting(table).write_to(out[1 : 1 + end - start], start)
    assert np.array_equal(out[1 : 1 + end - start], table.reshape(-1)[start:end])
    assert out[0] == 7 and (out[1 + end - start :] == 7).all()


def test_rows_of_several_arrays_are_written() -> None:
    tables = [np.arange(12, dtype=np.uint32).reshape(3, 4) + 100 * i for i in range(2)]
    out = np.zeros((2, 8), np.uint32)
    Counting.write_rows([(Counting(table), 1, out[i]) for i, table in enumerate(tables)])
    assert np.array_equal(out, [table[1:].reshape(-1) for table in tables])


def test_an_array_is_built_once_for_those_who_have_it() -> None:
    lazy = Counting(np.arange(12, dtype=np.uint32).reshape(3, 4))
    first, again = np.asarray(lazy), as_array(lazy)
    assert again is first and lazy.rows == 3 and not first.flags.writeable
    gone = weakref.ref(first)
    del first, again
    gc.collect()
    assert gone() is None
    assert as_array(lazy)[2, 3] == 11 and lazy.rows == 6


def test_an_array_has_a_room_before_it_is_built() -> None:
    lazy = Counting(np.arange(12, dtype=np.uint32).reshape(3, 4))
    buffer = lazy.buffer()
    assert lazy.buffer(np.zeros((3, 4), np.uint32)) is buffer is buffer_of(lazy) and lazy.rows == 0
    assert as_array(lazy) is buffer and lazy.rows == 3 and not buffer.flags.writeable
    del buffer
    gc.collect()
    offered = np.zeros((3, 4), np.uint32)
    assert lazy.buffer(offered) is offered and lazy.rows == 3
    assert as_array(lazy) is offered and offered[2, 3] == 11 and lazy.rows == 6


def test_words_are_built_of_the_blocks_as_they_are() -> None:
    raw = blocks("q4_K", 6, 512)
    lazy = pack_u32("q4_K", raw, (2, 3, 512))
    assert isinstance(lazy, LazyArray) and lazy.shape == (2, 3, lazy.shape[-1])
    assert np.array_equal(as_array(lazy), repack("q4_K", raw, (2, 3, 512)))
    floats = pack_u32("f16", blocks("f16", 3, 64), (3, 64))
    assert isinstance(floats, np.ndarray)


def test_host_keeps_no_words_but_for_the_cpu(devices: list[str]) -> None:
    w = vs.quantized_weight(blocks("q8_0", 64, 256), "q8_0", (64, 256))
    (words,) = w.inputs
    lazy = words.held
    assert isinstance(lazy, LazyArray)
    x = np.ones((3, 256), np.float32)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.linear(vs.input("x", (3, 256)), w))
        expected = run(x=x)
        assert (lazy._materialized() is not None) == (devices == ["cpu"])
        run.close()
        del run
        gc.collect()
        assert lazy._materialized() is None
        again = sched.compile(vs.linear(vs.input("x", (3, 256)), w))
        assert np.array_equal(again(x=x), expected)  # made anew of the same blocks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_what_was_being_built() -> None:
    lazy = Counting(np.arange(6, dtype=np.uint32).reshape(2, 3))
    assert lazy.begin(pytest.fail)
    child = os.fork()
    if not child:
        signal.alarm(60)  # where it waits for ever
        total = 0
        try:
            total = int(as_array(lazy).sum())
        finally:
            os._exit(total)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 15
    lazy.end(False)
    assert lazy.begin(pytest.fail)
    lazy.end(False)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="no account of mapped pages")
def test_pages_of_mapped_files_are_let_go(tmp_path: Path) -> None:
    path, size = tmp_path / "m.gguf", 1 << 22
    path.write_bytes(b"ab" * (size // 2))
    file = open_model(path, "test")
    assert np.frombuffer(file.content, np.uint8).max() == ord("b")

    def resident_kib() -> int:
        reported = Path("/proc/self/smaps").read_text().split(str(path))[1]
        return int(re.findall(r"Rss: +([0-9]+) kB", reported)[0])

    assert resident_kib() == size >> 10
    drop_mapped_pages()
    assert resident_kib() == 0
    assert bytes(file.content[:4]) == b"abab"
