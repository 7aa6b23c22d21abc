"""Scales and shifts behind convolutions: which become weights and bias, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fused import ops_of, optimized
from graphs import numpy_outputs

import vksched as vs
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.set_precision import set_precision
from vksched.topology.limits import Limits

RNG = np.random.default_rng(4)
W = RNG.standard_normal((6, 4, 3, 3)).astype(np.float32)
ROW = RNG.standard_normal(6).astype(np.float32)
Build = Callable[[vs.Tensor], vs.Tensor]


def leaf(values: Any, name: str | None = None) -> vs.Tensor:
    return vs.weight(np.asarray(values, np.float32), name)


def conv(w: Any = W, **more: Any) -> vs.Tensor:
    return vs.conv(vs.input("x", (2, 4 if w is W else 6, 9, 8)), leaf(w, "w"), **more)


def column(values: Any = ROW) -> vs.Tensor:
    return leaf(values).reshape((-1, 1, 1))


FOLDED: dict[str, Build] = {
    "scale": lambda y: y * column(),
    "scale first": lambda y: column() * y,
    "shift": lambda y: y + column(),
    "both": lambda y: y * column() + column(),
    "numbers": lambda y: y * 0.5 + 2.0,
    "batch norm": lambda y: vs.batch_norm(y, leaf(ROW), leaf(ROW), leaf(ROW), leaf(ROW**2)),
    "twice": lambda y: (y + column()) * column() + column(),
}


@pytest.mark.parametrize("build", FOLDED.values(), ids=FOLDED)
def test_scale_and_shift_become_weights_and_bias(build: Build) -> None:
    for more in ({}, {"bias": leaf(ROW)}, {"stride": 2, "padding": 1}):
        graph = optimized(build(conv(**more)))  # type: ignore[arg-type]
        assert ops_of(graph) == ["conv"], more


def test_each_channel_has_a_window_of_its_own() -> None:
    w = RNG.standard_normal((6, 1, 3, 3)).astype(np.float32)
    assert ops_of(optimized(conv(w, groups=6) * column() + column())) == ["conv"]


def test_what_follows_becomes_part_of_it_on_a_device_too() -> None:
    graph = optimized(
        vs.relu(conv() * column() + column()),
        limits=Limits(storage_buffers=8),
        memory_bytes=1 << 30,
    )
    assert ops_of(graph) == ["conv"]


STAY: dict[str, Build] = {
    "read twice": lambda y: y * column() + vs.neg(y),
    "no row of channels": lambda y: y * leaf(RNG.standard_normal((1, 6, 7, 1))),
    "a row of columns": lambda y: y * leaf(RNG.standard_normal(6)),
    "unknown": lambda y: y * vs.input("s", (6, 1, 1)),
    "too large": lambda y: y * column(np.full(6, 3e38)),
    "infinite": lambda y: y + column([0, 0, np.inf, 0, 0, 0]),
}


@pytest.mark.parametrize("build", STAY.values(), ids=STAY)
def test_all_else_stays(build: Build) -> None:
    graph = optimize(vs.build_graph(build(conv()))[0], RewriteConstraints())
    (first,) = (n for n in graph.ops if n.op == "conv")
    stored = graph.data[first.inputs[1]]
    np.testing.assert_array_equal(np.asarray(stored), W)
    assert len(first.inputs) == 2


def test_weights_stay_that_would_vanish_or_that_their_type_would_not_hold() -> None:
    small = vs.conv(vs.input("x", (2, 4, 9, 8)), leaf(W * 1e-10))
    for row, folds in ((np.full(6, 1e-30), False), ([1, 1, 0, 1e-40, 1, 1], True)):
        graph = optimize(vs.build_graph(small * column(row))[0], RewriteConstraints())
        assert (ops_of(graph) == ["conv"]) == folds
    graph = vs.build_graph(conv() * column(np.full(6, 1e5)))[0]
    for word, folds in (("float32", True), ("mixed", False), ("float16", False)):
        set_ = set_precision(graph, {node.id: word for node in graph.nodes})
        assert (ops_of(optimize(set_, RewriteConstraints())) == ["conv"]) == folds, word


def test_weights_that_the_user_placed_stay() -> None:
    graph = optimize(
        vs.build_graph(conv() * column())[0], RewriteConstraints(pinned_devices={"w": "cpu"})
    )
    assert "conv" in ops_of(graph) and len(graph.ops) > 1


def test_values_that_are_observed_are_there() -> None:
    graph = vs.build_graph(vs.conv(vs.input("x", (1, 4, 9, 8)), leaf(W), name="y") * column())[0]
    assert len(optimize(graph, RewriteConstraints(observed=frozenset(("y",)))).ops) > 1


def test_graphs_that_share_a_weight_share_what_is_built_of_it() -> None:
    w, row = leaf(W), column()

    def graph(size: int) -> Graph:
        x = vs.input("x", (1, 4, size, size))
        return optimize(vs.build_graph(vs.conv(x, w) * row)[0], RewriteConstraints())

    one, other = graph(9), graph(12)
    (a,), (b,) = one.weights, other.weights
    assert one.keys[a.id] is other.keys[b.id]
    assert np.shares_memory(np.asarray(one.data[a.id]), np.asarray(other.data[b.id]))
    (got,) = numpy_outputs(other, {"x": np.ones((1, 4, 12, 12), np.float32)})
    wanted = W.sum((1, 2, 3)) * ROW
    np.testing.assert_allclose(got[0, :, 4, 4], wanted, 1e-4, 1e-4)
