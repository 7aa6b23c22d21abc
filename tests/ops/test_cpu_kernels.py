"""The CPU backend's own ways of computing, against the references: in pieces of any size, on
several threads, in memory that is used again.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType, numpy_dtype
from vksched.ir import cpu_kernel
from vksched.ir.attrs import Attrs
from vksched.ir.evaluate import compute_into
from vksched.ir.op import all_ops, view_offset
from vksched.ops.attention import attention_cpu
from vksched.ops.elementwise import UNARY
from vksched.ops.linalg import matmul_blocks
from vksched.ops.lowering import blas
from vksched.runtime.cpu.evaluate import CpuWeights
from vksched.runtime.cpu.helper_backoff import HelperBackoff
from vksched.runtime.cpu.worker_pool import MIN_PIECE_BYTES, Buffers, Workers
from vksched.testing.kernel_runner import check
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES, DOUBLES, FP16, LONGS, UNSIGNED

WITH_CPU_KERNEL = [
    case
    for case in (*CASES, *FP16, *DOUBLES, *LONGS, *UNSIGNED)
    if case.declaration.cpu is not None
    and case.result_type().size
    and not case.large
    # a view is never computed
    and view_offset(case.declaration, case.types, Attrs(case.attrs)) is None
    # nor does a pass make a chain of int64
    and not (case.op == "fused_elementwise" and any(t.dtype == "int64" for t in case.types))
]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernel, "BLOCK", 5)
    for name in blas.CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)
    for name in ("LEAST", "MIN_VECTOR", "ROWS", "COLUMNS"):
        monkeypatch.setattr(matmul_blocks, name, 1)
    monkeypatch.setattr(matmul_blocks, "UNITS", (1, 1))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    pool = Workers("test", 3)
    yield pool
    pool.close()


def run(case: OpSample, workers: Workers) -> NDArray:
    """The case by its op's CPU kernel, into memory full of a value that no case has."""
    kernel, attrs, result = case.declaration.cpu, Attrs(case.attrs), case.result_type()
    assert kernel is not None
    out = np.empty(result.shape, numpy_dtype(result.dtype))
    out.view(np.uint8 if out.ndim else out.dtype)[...] = 77
    workers.each(
        lambda inputs, part: compute_into(case.declaration, inputs, attrs, part),
        kernel.cut(case.inputs, attrs, out),
    )
    return out


@pytest.mark.parametrize("op", sorted({case.op for case in WITH_CPU_KERNEL}))
def test_cpu_kernels_equal_the_references(
    op: str, workers: Workers, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case for case in WITH_CPU_KERNEL if case.op == op]
    assert cases
    for case in cases:
        with np.errstate(over="ignore"):  # of errors squared
            check(case, run(case, workers), case.expected(), "numpy in pieces")


@pytest.mark.parametrize("op", [op for op, dtype in UNARY if dtype == "int32"])
def test_cpu_kernels_of_one_operand_take_integers(op: str) -> None:
    """Those that change none, too, though a view is never computed."""
    declared, x = all_ops()[op], np.arange(1, 9, dtype=np.int32)
    assert declared.cpu is not None
    attrs = Attrs(next(case.attrs for case in CASES if case.op == op))
    got = np.empty(8, numpy_dtype(declared.infer((TensorType((8,), "int32"),), attrs).dtype))
    declared.cpu.compute((x,), attrs, got)
    np.testing.assert_array_equal(got, declared.reference((x,), attrs))


def test_what_matters_has_a_cpu_kernel() -> None:
    ops = {name for name, op in all_ops().items() if op.cpu is not None}
    assert ops >= {"add", "gelu", "softmax", "layer_norm", "matmul", "conv", "attention"}
    assert ops >= {"reduce_sum", "where", "clip", "relu"}


def test_attention_of_many_scores_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cpu, "REFERENCE_SCORES", 8)
    case = next(c for c in WITH_CPU_KERNEL if c.op == "attention" and c.result_type().size > 100)
    check(case, run(case, Workers("test", 1)), case.expected(), "numpy by parts")


@pytest.mark.parametrize("size", [1e-30, 1, 1e30])
@pytest.mark.parametrize("spread", [1, 30])
@pytest.mark.parametrize("keywords", [{}, {"causal": True, "past_len": 3}, {"window": (2, 1)}])
@pytest.mark.parametrize("heads_of_keys", [1, 2, 6])
def test_attention_of_all_heads_is_exact_for_scores_of_any_size(
    spread: float, size: float, keywords: dict[str, Any], heads_of_keys: int
) -> None:
    rng = np.random.default_rng(0)
    sizes = (2, 6, 5, 8), (2, heads_of_keys, 7, 8), (2, heads_of_keys, 7, 8)
    q, k, v = (rng.standard_normal(size).astype(np.float32) for size in sizes)
    q *= spread
    v *= np.float32(size)
    reported = vs.attention(*map(vs.constant, (q, k, v)), scale=1.0, **keywords)
    declared, attrs, out = (
        all_ops()[reported.op],
        Attrs(reported.attrs),
        np.empty(reported.shape, np.float32),
    )
    assert declared.cpu is not None
    declared.cpu.compute((q, k, v), attrs, out)
    wide = tuple(x.astype(np.float64) for x in (q, k, v))
    wanted = np.asarray(declared.reference(wide, attrs))
    np.testing.assert_allclose(out, wanted, 2e-5 * spread, 1e-6 * size)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_of_long_rows_keep_their_digits(op: str) -> None:
    x = (np.random.default_rng(0).standard_normal((1, 1 << 20))).astype(np.float32)
    reported = getattr(vs, op)(vs.constant(x))
    declared, attrs, out = all_ops()[op], Attrs(reported.attrs), np.empty_like(x)
    assert declared.cpu is not None
    declared.cpu.compute((x,), attrs, out)
    wanted = np.asarray(declared.reference((x.astype(np.float64),), attrs))
    np.testing.assert_allclose(out, wanted, 3e-7, 5e-7)


# -- threads and memory ------------------------------------------------------------------------


def test_an_error_on_any_thread_reaches_the_caller_when_all_have_ended(workers: Workers) -> None:
    done: list[int] = []

    def fail(number: int) -> None:
        if number == 7:
            raise ValueError("seven")
        done.append(number)

    with pytest.raises(ValueError, match="seven"):
        workers.each(fail, ((i,) for i in range(64)))
    count = len(done)
    workers.each(done.append, ((i,) for i in range(3)))
    assert len(done) == count + 3


def test_pieces_are_shared_by_threads() -> None:
    meet = threading.Barrier(3, timeout=30)  # broken where fewer threads come
    pool = Workers("test", 3, HelperBackoff())
    try:
        pool.each(lambda _: meet.wait(), ((i,) for i in range(6)))
    finally:
        pool.close()


@pytest.mark.parametrize("started", [0, 1])
def test_pieces_are_done_by_who_is_there_when_the_interpreter_ends(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, asked, done = ThreadPoolExecutor.submit, iter(range(9)), list[int]()

    def refuse(pool: ThreadPoolExecutor, call: Callable[[], None]) -> Future[None]:
        if next(asked) < started:
            return submit(pool, call)
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    pool = Workers("test", 3, HelperBackoff())
    try:
        pool.each(done.append, ((i,) for i in range(64)))
    finally:
        pool.close()
    assert sorted(done) == list(range(64))


def test_nobody_works_on_when_the_start_of_a_helper_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, begun, inside = ThreadPoolExecutor.submit, threading.Event(), list[int]()

    def interrupted(pool: ThreadPoolExecutor, call: Callable[[], None]) -> None:
        submit(pool, call)
        begun.wait(30)
        raise KeyboardInterrupt  # as in Thread.start, when the thread runs already

    def piece(number: int) -> None:
        inside.append(number)
        begun.set()
        time.sleep(0.01)
        inside.remove(number)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    pool = Workers("test", 2, HelperBackoff())
    with pytest.raises(KeyboardInterrupt):
        pool.each(piece, ((i,) for i in range(64)))
    assert not inside
    time.sleep(0.05)
    assert not inside
    pool.close()


def test_memory_is_used_again_once_no_array_shows_it() -> None:
    buffers, dtype = Buffers(), np.dtype(np.float32)
    first = buffers.take((MIN_PIECE_BYTES,), dtype)
    place = first.ctypes.data
    view = first.reshape(2, -1)[1, 3:]
    del first
    gc.collect()
    second = buffers.take((MIN_PIECE_BYTES,), dtype)
    assert second.ctypes.data != place  # a view still shows it
    del view
    gc.collect()
    assert buffers.take((MIN_PIECE_BYTES - 5,), dtype).ctypes.data == place


def test_results_do_not_change_with_later_runs() -> None:
    """Results, and what an observer keeps, are not written to by later runs."""
    x = vs.input("x", (64, 1024))
    doubled = vs.add(x, x, name="doubled")
    total = vs.reduce_sum(vs.exp(vs.transpose(doubled)), axis=0)
    stored: list[NDArray] = []
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((64, 1024)).astype(np.float32) for _ in range(4)]
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(
            [doubled, total], observe={doubled: lambda name, value: stored.append(value)}
        )
        results = [run(x=feed) for feed in feeds]
    for feed, (twice, sums), seen in zip(feeds, results, stored, strict=True):
        np.testing.assert_array_equal(twice, 2 * feed)
        np.testing.assert_array_equal(seen, 2 * feed)
        np.testing.assert_allclose(sums, np.exp(2.0 * feed).sum(axis=1), rtol=1e-5)


def test_every_unary_cpu_kernel_takes_an_array_without_axes() -> None:
    x = np.array(0.3, np.float32)
    taken = {name for name, dtype in UNARY if dtype == "float32"} - {"reduce_precision"}
    for name in sorted(taken):
        declared = all_ops()[name]
        attrs = Attrs(dict.fromkeys(("alpha", "beta", "gamma", "low", "high"), 0.5))
        with np.errstate(all="ignore"):
            out = np.empty((), declared.reference((x,), attrs).dtype)
        with np.errstate(all="ignore"):
            compute_into(declared, (x,), attrs, out)
            np.testing.assert_allclose(out, declared.reference((x,), attrs), 1e-5)


@pytest.mark.parametrize("odd", [True, False])
def test_weights_that_lie_at_odd_addresses_are_moved(odd: bool) -> None:
    """As in model files, where numpy's products take tens of times longer."""
    raw = np.zeros(4 * 6 + 8, np.uint8)
    start = -raw.ctypes.data % 4 + odd
    found = raw[start : start + 24].view(np.float32).reshape(2, 3)
    found[:] = np.arange(6).reshape(2, 3)
    assert found.flags.aligned is not odd
    graph, _ = vs.build_graph(vs.neg(vs.weight(found, name="w")))
    (leaf,) = graph.weights
    held = CpuWeights(graph)[leaf.id]
    assert held.flags.aligned and np.array_equal(held, found)
    assert np.shares_memory(held, found) is not odd


def test_errors_of_cpu_kernels_name_the_node() -> None:
    at, table = vs.input("at", (1,), "int32"), np.zeros((3, 2), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.gather(table, at, name="mine"))
        with pytest.raises(vs.IndexOutOfRange, match=r"\(in mine\)"):
            run(at=np.array([3], np.int32))


@pytest.mark.parametrize(("m", "k", "n"), [(3, 0, 4), (3, 5, 0), (0, 5, 4)])
def test_products_of_a_batch_may_be_empty(m: int, k: int, n: int) -> None:
    a, b = vs.input("a", (2, m, k)), vs.input("b", (k, n))
    feeds = {"a": np.ones((2, m, k), np.float32), "b": np.ones((k, n), np.float32)}
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.matmul(a, b))(**feeds)
    assert np.array_equal(found, np.zeros((2, m, n), np.float32))
