"""Microbatches along any axis, and losses that no microbatch can compute alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_shard import applied, check, random

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.parallel.pipeline.batch_axes import regroup

TIME, BATCH, WIDTH = 5, 8, 16


def config(batches: int, axis: int, schedule: str = "zb-h1") -> dict[str, Any]:
    """Two stages on two devices."""
    about = {"stages": ["s.0", "s.1"], "microbatches": batches, "schedule": schedule, "axis": axis}
    return {"pipeline": about | {"devices": ["g0", "g1"]}}


def recurrent(flat: bool) -> tuple[dict[str, NDArray], vs.Tensor, dict[str, vs.Tensor]]:
    """Feeds, outputs and parameters of two layers over (time, batch, width). flat: the second one
    sees time and batch as one axis, with dropout, and has the loss of a classifier.
    """
    h = x = vs.input("x", (TIME, BATCH, WIDTH))
    target = vs.input("target", (TIME, BATCH), "int32", bounds=(0, WIDTH - 1))
    params: dict[str, vs.Tensor] = {}
    for i in range(2):
        with vs.signal(f"s.{i}"):
            if i and flat:
                h = vs.dropout(vs.reshape(h, (TIME * BATCH, WIDTH)), 0.3, seed=1)
            w = params[f"w{i}"] = vs.state(random(i, WIDTH, WIDTH) / 4, "w")
            b = params[f"b{i}"] = vs.state(random(i, WIDTH), "b")
            h = vs.tanh(vs.linear(h, w, b))
    loss = vs.losses.cross_entropy(vs.reshape(h, (-1, WIDTH)), vs.reshape(target, (-1,)))
    rng = np.random.default_rng(0)
    feeds = {"x": random(3, *x.shape), "target": rng.integers(0, WIDTH, (TIME, BATCH))}
    return feeds | {"target": feeds["target"].astype(np.int32)}, loss, params | {"h": h}


@pytest.mark.parametrize("flat", [False, True], ids=["apart", "flat"])
@pytest.mark.parametrize("batches", [1, 2, 4])
def test_a_batch_that_is_not_the_first_axis(flat: bool, batches: int) -> None:
    feeds, loss, params = recurrent(flat)
    outputs = {"loss": loss, "h": params.pop("h"), **vs.grad(loss, params)}
    updates = vs.optim.sgd(params, vs.grad(loss, params), lr=0.1)
    built = check(config(batches, 1), feeds, outputs, updates)
    tanhs = [n for n in built.graph.nodes if n.op == "tanh"]
    assert {n.type.size for n in tanhs} == {TIME * BATCH * WIDTH // batches}


axes = st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=4)


@given(axes, st.data())
def test_a_reshape_moves_runs_of_examples(before: list[int], data: st.DataObject) -> None:
    shape, count = tuple(before), data.draw(st.sampled_from((2, 3)))
    axis = data.draw(st.integers(0, len(before) - 1))
    outer = data.draw(st.sampled_from((1, 2)))
    whole = np.arange(math.prod(shape)).reshape(shape)
    shardings = data.draw(st.permutations([*before, 1]))
    joined = data.draw(st.integers(0, len(shardings) - 2))
    after = (
        *shardings[:joined],
        shardings[joined] * shardings[joined + 1],
        *shardings[joined + 2 :],
    )
    if shape[axis] % (outer * count):
        return
    found = regroup(shape, after, axis, outer, count)
    if found is None:
        return
    new = found.factor.result
    assert isinstance(new, int)
    for part in range(count):
        attrs = found.factor.attrs(part, 1)
        got = ranged(whole, axis, outer, count, part).reshape(attrs["shape"])  # type: ignore[arg-type]
        np.testing.assert_array_equal(
            got, ranged(whole.reshape(after), new, found.outer, count, part)
        )


def ranged(whole: NDArray, axis: int, outer: int, count: int, part: int) -> NDArray:
    """A part of an array: a run in each of some blocks of an axis."""
    before, after = whole.shape[:axis], whole.shape[axis + 1 :]
    runs = whole.reshape(*before, outer, count, -1, *after)
    return np.take(runs, part, axis + 1).reshape(*before, -1, *after)


def two_layers(x: vs.Tensor) -> tuple[vs.Tensor, dict[str, vs.Tensor]]:
    params: dict[str, vs.Tensor] = {}
    h = x
    for i in range(2):
        with vs.signal(f"s.{i}"):
            w = params[f"w{i}"] = vs.state(random(i, WIDTH, WIDTH) / 4, "w")
            h = vs.tanh(h @ w)
    return h, params


@pytest.mark.parametrize("kind", ["weighted", "two", "each"])
def test_losses_that_are_sums_and_means(kind: str) -> None:
    x, weights = vs.input("x", (BATCH, WIDTH)), vs.input("weights", (BATCH,))
    h, params = two_layers(x)
    each = vs.reduce_mean(h * h, (1,))
    loss = vs.reduce_sum(each * weights) / BATCH
    if kind == "two":
        loss = loss + vs.losses.mse(h, x)
    outputs = {"loss": loss, **vs.grad(loss, params)}
    if kind == "each":
        outputs["each"] = each
    feeds = {"x": random(4, BATCH, WIDTH), "weights": np.abs(random(5, BATCH))}
    check(config(4, 0), feeds, outputs)


@pytest.mark.parametrize("kind", ["count", "max", "norm"])
def test_losses_that_need_the_whole_batch_are_errors(kind: str) -> None:
    x, mask = vs.input("x", (BATCH, WIDTH)), vs.input("mask", (BATCH,))
    if kind == "norm":
        ones, zeros = vs.weight(np.ones(WIDTH, np.float32)), vs.weight(np.zeros(WIDTH, np.float32))
        with vs.signal("s.0"):
            x = vs.batch_norm_training(x, ones, zeros, zeros, ones)[0]
    h, params = two_layers(x)
    each = vs.reduce_mean(h * h, (1,))
    if kind == "max":
        loss = vs.reduce_max(each)
    else:
        loss = vs.reduce_sum(each * mask) / vs.reduce_sum(mask)
    with pytest.raises(vs.PlanError, match=r"got \S+, an? \w+, which mixes the examples"):
        applied(config(4, 0), loss, vs.optim.sgd(params, vs.grad(loss, params), lr=0.1))
