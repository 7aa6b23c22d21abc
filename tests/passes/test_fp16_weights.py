"""Weights held as float16: which, and that results stay what their precision allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.precision import MIXED, as_bfloat16, precision_of
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.fp16_weights import MIN_LANES
from vksched.passes.set_precision import set_precision
from vksched.topology.limits import Limits

CONSTRAINTS = RewriteConstraints(limits=Limits(storage_buffers=8), memory_bytes=1 << 30)
K, N = 256, 192


def values(*shape: int, seed: int = 3) -> NDArray:
    size = shape[0] ** 0.5
    return (np.random.default_rng(seed).standard_normal(shape) / size).astype(np.float32)


W = values(K, N)


def ops_of(
    *outputs: vs.Tensor, word: str = MIXED, constraints: RewriteConstraints = CONSTRAINTS
) -> list[str]:
    graph, _ = vs.build_graph(list(outputs))
    mixed = set_precision(graph, dict.fromkeys(range(len(graph.nodes)), word))
    return [node.op for node in optimize(mixed, constraints).ops]


def few(rows: int = 3) -> vs.Tensor:
    return vs.input("x", (rows, K))


def test_weights_of_few_rows_are_halved() -> None:
    bias = vs.weight(values(N))
    assert ops_of(few() @ vs.weight(W)) == ["quantized_linear"]
    assert ops_of(vs.linear(few(), vs.weight(W.T.copy()), bias)) == ["quantized_linear"]
    assert ops_of(few() @ vs.weight(W), word="float16") == ["quantized_linear"]
    assert ops_of(few() @ vs.weight(W), word="bfloat16") == ["quantized_linear"]


def test_weights_of_many_rows_are_halved_for_gpus() -> None:
    assert ops_of(few(9) @ vs.weight(W)) == ["quantized_linear"]
    driver = Limits(storage_buffers=8, software=True, subgroup_size=8)
    constraints = replace(CONSTRAINTS, limits=driver)
    assert ops_of(few(8) @ vs.weight(W), constraints=constraints) == ["quantized_linear"]
    for word in ("mixed", "bfloat16"):
        assert ops_of(few(9) @ vs.weight(W), word=word) == ["quantized_linear"]
        assert ops_of(few(9) @ vs.weight(W), word=word, constraints=constraints) == ["matmul"]


def test_others_stay() -> None:
    w = vs.weight(W)
    assert ops_of(few() @ w, word="float32") == ["matmul"]
    assert ops_of(few() @ vs.input("w", (K, N))) == ["matmul"]
    assert ops_of(few() @ w, constraints=RewriteConstraints()) == ["matmul"]  # numpy alone
    assert ops_of(few() @ vs.weight(W[:, :4])) == ["matmul"]
    assert "matmul" in ops_of(few() @ w, vs.relu(w))  # it would be there twice
    assert ops_of(few() @ vs.weight(values(K + 1, N))[:K]) != ["quantized_linear"]


@pytest.mark.parametrize("bad", [7e4, np.inf, np.nan])
def test_what_float16_does_not_hold_stays(bad: float) -> None:
    spoiled = W.copy()
    spoiled[3, 4] = bad
    assert ops_of(few() @ vs.weight(spoiled)) == ["matmul"]
    held = ops_of(few() @ vs.weight(spoiled), word="bfloat16")
    assert held == ["quantized_linear" if np.isfinite(bad) else "matmul"]


def test_it_keeps_the_precision_and_takes_an_epilogue() -> None:
    graph, _ = vs.build_graph(vs.relu(few() @ vs.weight(W)))
    mixed = set_precision(graph, dict.fromkeys(range(len(graph.nodes)), MIXED))
    (node,) = optimize(mixed, CONSTRAINTS).ops
    assert (node.op, precision_of(node.attrs)) == (
        "quantized_linear",
        MIXED,
    ) and "epilogue" in node.attrs


@pytest.fixture(params=vulkan_names() or [None])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    if request.param is None:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler([request.param], precision=MIXED) as sched:
        yield sched


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_results_and_bytes(rows: int, sched: vs.Scheduler) -> None:
    x, w = values(rows, K, seed=5), vs.weight(W)
    mixed = sched.compile(few(rows) @ w)
    exact = sched.compile(few(rows) @ w, precision="float32")
    expected = x.astype(np.float64) @ W.astype(np.float16)
    plain = x.astype(np.float64) @ W
    few_lanes = mixed.plan.topology.devices[0].limits.subgroup_size < MIN_LANES
    near = plain if few_lanes else expected
    np.testing.assert_allclose(mixed(x=x), near, rtol=1e-4, atol=1e-5)
    assert np.abs(plain - expected).max() > 1e-4
    np.testing.assert_allclose(exact(x=x), plain, rtol=1e-4, atol=1e-5)
    device = mixed.plan.topology.devices[0].name
    halved, whole = (run.plan.buffers()[device].weight_bytes for run in (mixed, exact))
    assert halved == (4 if few_lanes else 2) * K * N and whole == 4 * K * N


@pytest.mark.parametrize("rows", [1, 8])
def test_bfloat16_is_held_by_every_device(rows: int, sched: vs.Scheduler) -> None:
    wide = W * np.exp2(np.arange(N) - N // 2).astype(np.float32)  # float16 does not hold it
    x = values(rows, K, seed=5)
    run = sched.compile(few(rows) @ vs.weight(wide), precision="bfloat16")
    held = as_bfloat16(wide).astype(np.float64)
    error = np.abs(run(x=x) - x.astype(np.float64) @ held) / (np.abs(x) @ np.abs(held))
    assert error.max() < 1e-6
    device = run.plan.topology.devices[0].name
    assert run.plan.buffers()[device].weight_bytes == 2 * K * N


def test_graphs_share_them(sched: vs.Scheduler) -> None:
    w = vs.weight(W)
    first, second = (sched.compile(few(rows) @ w) for rows in (1, 2))
    one, other = (
        {run.plan.graph.keys[n.id] for n in run.plan.graph.weights} for run in (first, second)
    )
    assert one == other
