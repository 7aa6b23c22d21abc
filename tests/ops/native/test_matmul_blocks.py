"""Products in blocks: which there are, and that they have the bits of the whole product."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType, broadcast_shapes
from vksched.ir.attrs import Attrs
from vksched.ir.op import all_ops
from vksched.ops.elementwise.epilogue import epilogue_attrs
from vksched.ops.linalg import matmul_blocks
from vksched.ops.linalg.matmul_blocks import COLUMNS, LEAST, MOST, ROWS, Parts, blocks, divide
from vksched.ops.linalg.matmul_native import matmul_program
from vksched.ops.lowering import blas, native_kernels
from vksched.runtime.cpu import worker_pool

Shape = tuple[int, ...]
SIZES = st.integers(1, 3000)


@pytest.fixture(autouse=True)
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in blas.CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)


# -- the division --------------------------------------------------------------------------------


@given(st.integers(1, 40), SIZES, SIZES, SIZES)
def test_blocks_cover_the_result_once(batches: int, m: int, n: int, k: int) -> None:
    parts = divide(batches, m, n, k)
    assert 1 <= math.prod(parts) <= MOST
    some = list(matmul_blocks.examples(batches, parts))
    assert [i for each in some for i in range(batches)[each]] == list(range(batches))
    rows, columns = (dict.fromkeys((s.start, s.stop) for s in each) for each in _sides(m, n, parts))
    for spans, size in ((rows, m), (columns, n)):
        assert [i for span in spans for i in range(*span)] == list(range(size))
    found = Counter((r.start, c.start) for r, c in blocks(m, n, parts))
    assert found == Counter((r[0], c[0]) for r in rows for c in columns)


def _sides(m: int, n: int, parts: Parts) -> tuple[list[slice], list[slice]]:
    every = list(blocks(m, n, parts))
    return [rows for rows, _ in every], [columns for _, columns in every]


@given(st.integers(1, 40), st.integers(2, 3000), st.integers(2, 3000), SIZES)
@example(1, 128, 43, 477)  # rows in units of 12
@example(1, 133, 43, 477)
def test_blocks_are_worth_a_thread_each(batches: int, m: int, n: int, k: int) -> None:
    """Nor does the library have kernels for so few that sum in another order."""
    parts = divide(batches, m, n, k)
    pieces = math.prod(parts)
    assert batches * m * n * k >= (pieces**2 - 1) * LEAST or pieces == 1
    for rows, columns in blocks(m, n, parts):
        assert rows.stop - rows.start >= min(m, ROWS)
        assert columns.stop - columns.start >= min(n, COLUMNS)
        if parts.rows * parts.columns > 1:
            of_block = (rows.stop - rows.start) * (columns.stop - columns.start) * k
            assert of_block * len(range(batches)) // parts.batches > 1e6


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ((1, 128, 384, 384), (1, 1, 4)),
        ((1, 128, 1536, 384), (1, 1, 8)),
        ((1, 1024, 64, 1024), (1, 8, 1)),
        ((1, 256, 512, 512), (1, 2, 4)),
        ((1, 1024, 1024, 1024), (1, 8, 4)),
        ((12, 512, 512, 64), (12, 1, 1)),
        ((1, 4096, 4096, 4096), (1, 32, 2)),
        ((1, 1, 4096, 4096), (1, 1, 8)),
        ((1, 4096, 1, 4096), (1, 8, 1)),
        ((1, 64, 64, 64), (1, 1, 1)),
    ],
)
def test_parts(sizes: tuple[int, int, int, int], parts: Shape) -> None:
    assert divide(*sizes) == parts


@pytest.mark.parametrize("name", blas.CHOSEN_BY)
def test_who_sets_a_number_of_threads_has_whole_products(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    assert divide(8, 1024, 1024, 1024) == (1, 1, 1)
    assert list(matmul_blocks.heads(8, 12, 1e9)) == [(slice(0, 8), slice(0, 12))]


@pytest.mark.skipif(not native_kernels.has_programs(), reason="no native loops")
def test_loops_have_the_units_of_the_division() -> None:
    assert native_kernels.native.gemm_block_units == matmul_blocks.UNITS


# -- the bits ------------------------------------------------------------------------------------

CALLS = [  # a, b; a and b as they are read where they are transposed
    ((128, 384), (384, 384)),
    ((197, 768), (768, 768)),
    ((300, 257), (257, 1000)),
    ((1000, 200), (200, 72)),
    ((2, 5, 60, 500), (500, 300)),
    ((3, 128, 256), (3, 256, 130)),
    ((7, 200, 500), (1, 500, 64)),
    ((1, 2000), (2000, 1536)),  # OpenBLAS sums the last few results of others in another order
    ((1536, 2000), (2000, 1)),
    ((6, 1, 700), (6, 700, 900)),
]


def operands(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool, bias: bool) -> list[NDArray]:
    rng = np.random.default_rng(0)
    built = [
        np.ascontiguousarray(np.swapaxes(rng.standard_normal(s, dtype=np.float32), -1, -2))
        if transposed
        else rng.standard_normal(s, dtype=np.float32)
        for s, transposed in ((a, transpose_a), (b, transpose_b))
    ]
    return [*built, *([rng.standard_normal(b[-1], dtype=np.float32)] if bias else [])]


def by_numpy(inputs: list[NDArray], attrs: Attrs, shape: Shape) -> NDArray:
    """The whole product by one thread of the library, as numpy calls it."""
    kernel, out = all_ops()["matmul"].cpu, np.empty(shape, np.float32)
    assert kernel is not None
    with threadpool_limits(1, "blas"):
        kernel.compute(tuple(inputs), attrs, out)
    return out


def in_pieces(inputs: list[NDArray], attrs: Attrs, shape: Shape) -> tuple[NDArray, int]:
    kernel, out = all_ops()["matmul"].cpu, np.full(shape, np.nan, np.float32)
    assert kernel is not None
    pieces = list(kernel.cut(tuple(inputs), attrs, out))
    with threadpool_limits(1, "blas"):
        for arrays, part in reversed(pieces):
            kernel.compute(arrays, attrs, part)
    return out, len(pieces)


def by_loops(inputs: list[NDArray], attrs: Attrs, shape: Shape, helpers: int) -> NDArray:
    types, out = tuple(TensorType(x.shape) for x in inputs), np.full(shape, np.nan, np.float32)
    native_program = matmul_program(types, TensorType(shape), attrs)
    assert native_program is not None and native_program.calls_blas
    (loop,) = native_program.loops
    step = (
        loop.name,
        [*loop.operands, len(inputs)],
        loop.int_params,
        loop.float_params,
        loop.pieces,
    )
    program = native_kernels.native.Program([step], [x.nbytes for x in (*inputs, out)], [])
    for slot, array in enumerate((*inputs, out)):
        program.bind(slot, array)
    threads = [threading.Thread(target=program.help) for _ in range(helpers)]

    def begin() -> None:
        for thread in threads:
            thread.start()

    with threadpool_limits(1, "blas"):
        program.run([], begin)
    for thread in threads:
        thread.join()
    return out


@pytest.mark.parametrize(("a", "b"), CALLS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("transpose_a", "transpose_b"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_blocks_have_the_bits_of_the_whole(
    a: Shape, b: Shape, transpose_a: bool, transpose_b: bool, bias: bool
) -> None:
    """With kernels of AVX-512. Others sum rows and columns at the end of a block in another order,
    so there results of OpenBLAS depend on its threads; those of blocks do not.
    """
    inputs = operands(a, b, transpose_a, transpose_b, bias)
    attrs = Attrs({"transpose_a": transpose_a, "transpose_b": transpose_b})
    shape = (*broadcast_shapes("matmul", a[:-2], b[:-2]), a[-2], b[-1])
    expected, (found, pieces) = by_numpy(inputs, attrs, shape), in_pieces(inputs, attrs, shape)
    assert pieces > 1
    if {pool.architecture for pool in blas.libraries()} <= {"SkylakeX", "Cooperlake"}:
        assert found.tobytes() == expected.tobytes()
    np.testing.assert_allclose(found, expected, 1e-4, 1e-3)
    if blas.is_in_loops():
        for helpers in (0, 3):
            assert by_loops(inputs, attrs, shape, helpers).tobytes() == found.tobytes()


def networks() -> dict[str, tuple[Any, Shape]]:
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return vs.weight(rng.standard_normal(shape, dtype=np.float32) / 16)

    x = vs.input("x", (160, 256))
    y = vs.gelu(vs.matmul(x, weight(256, 512), weight(512)))
    y = vs.layer_norm(vs.matmul(y, weight(512, 256)) + x)
    heads = [vs.reshape(vs.matmul(y, weight(256, 256)), (1, 160, 4, 64)) for _ in range(3)]
    seen = vs.attention(*(vs.transpose(h, (0, 2, 1, 3)) for h in heads))
    q = vs.input("x", (2, 6, 700, 48))
    k = vs.input("k", (2, 3, 700, 48))
    return {
        "layer": (vs.softmax(vs.reshape(vs.transpose(seen, (0, 2, 1, 3)), (160, 256))), x.shape),
        "attention": (vs.attention(q, k, k, causal=True), q.shape),
        "large epilogue": (
            vs.relu(vs.matmul(vs.input("x", (700, 300)), weight(300, 640), weight(640))),
            (700, 300),
        ),
    }


@pytest.mark.parametrize("name", networks())
def test_results_do_not_depend_on_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    y, shape = networks()[name]
    rng, found = np.random.default_rng(1), dict[tuple[int, bool], bytes]()
    feeds = {"x": rng.standard_normal(shape, dtype=np.float32)}
    if name == "attention":
        feeds["k"] = rng.standard_normal((2, 3, 700, 48), dtype=np.float32)
    for cores in (1, 2, 5):
        for in_loops in (True, False):
            with monkeypatch.context() as patch:
                patch.setattr(worker_pool, "usable_cores", lambda cores=cores: cores)
                if not in_loops:
                    patch.setattr(blas, "is_in_loops", lambda: False)
                with vs.Scheduler(["cpu"]) as sched:
                    run = sched.compile(y)
                    results = {np.asarray(run(**feeds)).tobytes() for _ in range(3)}
            assert len(results) == 1
            found[cores, in_loops] = results.pop()
    for in_loops in (True, False):
        assert len({found[cores, in_loops] for cores in (1, 2, 5)}) == 1


def test_attention_in_pieces_is_that_of_all_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With heads that share keys, a mask that is broadcast, and lengths before heads."""
    monkeypatch.setattr(matmul_blocks, "LEAST", 1)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((3, 9, 6, 8), dtype=np.float32)
    k, v = (rng.standard_normal((3, 2, 11, 8), dtype=np.float32) for _ in range(2))
    mask = rng.standard_normal((9, 11), dtype=np.float32)
    declared = all_ops()["attention"]
    reported = vs.attention(
        vs.transpose(vs.constant(q), (0, 2, 1, 3)), *map(vs.constant, (k, v)), mask=mask
    )
    attrs = Attrs({**reported.attrs, "is_bshd": (1, 0, 0, 1)})
    assert declared.cpu is not None
    out = np.full((3, 9, 6, 8), np.nan, np.float32)
    pieces = list(declared.cpu.cut((q, k, v, mask), attrs, out))
    assert len(pieces) == 6
    for inputs, part in pieces:
        declared.cpu.compute(inputs, attrs, part)
    np.testing.assert_allclose(out, declared.reference((q, k, v, mask), attrs), 1e-5, 1e-6)


@pytest.mark.parametrize("change", ["swapped", "flipped", "broadcast"])
def test_residuals_that_lie_otherwise_are_cut_as_the_result_is(change: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 200, 300), dtype=np.float32), rng.standard_normal((300, 640))
    base = rng.standard_normal((4, 640, 200), dtype=np.float32).swapaxes(-1, -2)
    residual = {
        "swapped": base,
        "flipped": np.ascontiguousarray(base)[..., ::-1],
        "broadcast": np.broadcast_to(base[:1, :1], base.shape),
    }[change]
    kernel, out = all_ops()["matmul"].cpu, np.full(base.shape, np.nan, np.float32)
    assert kernel is not None
    ends = epilogue_attrs(2, (("add", (0, 1), ()),), ())
    attrs = Attrs({"transpose_a": False, "transpose_b": False, **ends})
    inputs = a, b.astype(np.float32), residual
    pieces = list(kernel.cut(inputs, attrs, out))
    assert len(pieces) > 1
    for operands_, part in pieces:
        kernel.compute(operands_, attrs, part)
    np.testing.assert_allclose(out, a @ inputs[1] + residual, rtol=1e-4, atol=1e-3)
