"""Random graphs, shapes and placements drawn by hypothesis: every set of devices equals numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray

SETTINGS = settings(
    max_examples=examples(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def sched(devices: list[str]) -> Iterator[vs.Scheduler]:
    with vs.Scheduler(devices) as opened:
        yield opened


def run_on(sched: vs.Scheduler, y: Any, placement: Any = None, **feeds: NDArray) -> Any:
    run = sched.compile(y, placement=placement)
    try:
        return run(**feeds)
    finally:
        run.close()


def values(shape: tuple[int, ...], seed: int = 0) -> NDArray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


@SETTINGS
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=8, max_side=3, min_side=0),
    st.sampled_from(["add", "sub", "mul", "maximum", "less", "equal"]),
)
def test_broadcasting_is_numpys(
    sched: vs.Scheduler, shapes: hnp.BroadcastableShapes, op: str
) -> None:
    left, right = shapes.input_shapes
    a, b = values(left).round(), values(right, 1).round()
    names = {"sub": "subtract", "mul": "multiply"}
    expected = getattr(np, names.get(op, op))(a, b)
    y = getattr(vs, op)(vs.input("a", left), vs.input("b", right))
    got = run_on(sched, y, a=a, b=b)
    assert got.shape == shapes.result_shape and np.array_equal(got, expected)


@SETTINGS
@given(st.data())
def test_indexing_is_numpys(sched: vs.Scheduler, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=5, max_side=6))
    key = data.draw(hnp.basic_indices(shape, max_dims=8, allow_newaxis=True))
    x = values(shape)
    expected = np.asarray(x[key])
    got = run_on(sched, vs.input("x", shape)[key] * 1.0, x=x)
    assert got.shape == expected.shape and np.array_equal(got, expected)


@SETTINGS
@given(st.data())
def test_transposes_and_reductions_are_numpys(sched: vs.Scheduler, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=6, max_side=5))
    order = data.draw(st.permutations(range(len(shape))))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    keep = data.draw(st.booleans())
    x = values(shape)
    moved = vs.transpose(vs.input("x", shape), order)
    y = [
        vs.reduce_sum(moved, sorted(axes), keepdims=keep),
        vs.reduce_max(moved, sorted(axes), keepdims=keep),
    ]
    total, largest = run_on(sched, y, x=x)
    expected = x.transpose(order).astype(np.float64)
    assert np.allclose(total, expected.sum(tuple(axes), keepdims=keep), atol=1e-5)
    assert np.array_equal(largest, expected.max(tuple(axes), keepdims=keep))


def draw_graph(data: st.DataObject, dtype: str) -> tuple[list[vs.Tensor], int]:
    """A random graph whose values stay small, so that rounding stays small too."""
    width, inputs = 12, data.draw(st.integers(1, 3))
    pool = [vs.input(f"x{i}", (8, width), dtype) for i in range(inputs)]
    arrays = [(values((width, width), i) / 4).astype(dtype) for i in range(3)]
    weights = [vs.weight(array, name=f"w{i}") for i, array in enumerate(arrays)]
    pick = st.integers(0, 99)
    for i in range(data.draw(st.integers(2, 14))):
        a, b = (pool[data.draw(pick) % len(pool)] for _ in range(2))
        kind = data.draw(st.sampled_from(["weight", "pair", "norm", "part", "turn", "unary"]))
        if kind == "weight":
            new = vs.tanh(a @ weights[data.draw(pick) % 3], name=f"n{i}")
        elif kind == "pair":
            new = vs.mul(a + b, 0.5, name=f"n{i}")
        elif kind == "norm":
            new = vs.softmax(a, name=f"n{i}")
        elif kind == "part":
            new = vs.concat([a[4:], b[:4]], name=f"n{i}")
        elif kind == "turn":
            new = vs.transpose(vs.reshape(a, (width, 8)), name=f"n{i}")
        else:
            new = vs.gelu(a, name=f"n{i}")
        pool.append(new)
    return pool[-3:], inputs


@SETTINGS
@given(st.data())
def test_graphs_placed_anyhow_equal_numpy(sched: vs.Scheduler, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    outputs, inputs = draw_graph(data, dtype)
    feeds = {f"x{i}": values((8, 12), 10 + i).astype(dtype) for i in range(inputs)}
    graph, _ = vs.build_graph(outputs)
    used = {n.name: feeds[n.name] for n in graph.inputs}
    names = [d.name for d in sched.devices]
    placement = {
        n.name: data.draw(st.sampled_from(names))
        for n in graph.ops
        if n.id not in graph.views and data.draw(st.booleans())
    }
    run = sched.compile(outputs, placement=placement)
    try:
        first, again = run.submit(**used), run.submit(**used)
        got, twice = first.result(), again.result()
    finally:
        run.close()
    with vs.Scheduler(["cpu"]) as numpy:
        expected = numpy.compile(outputs)(**used)
    for a, b, c in zip(got, twice, expected, strict=True):
        error = 1e-5 if dtype == "float32" else 2e-2
        assert a.dtype == c.dtype and np.allclose(a, c, atol=error), run.plan.explain()
        assert np.array_equal(a, b)
