"""Values whose squares leave float32: what is right then, and nothing is worse than onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

SIZES = (1e-30, 1e-25, 1e-17, 1e-12, 1.0, 1e12, 1e20, 1e30, 1e38)
"""Squares of these are no denormal numbers, which devices may take for 0."""
ONES = np.ones(3, np.float32)
OPS: dict[str, tuple[dict[str, object], tuple[NDArray, ...]]] = {
    "ReduceL2": ({}, (np.array([1]),)),
    "ReduceSumSquare": ({}, (np.array([1]),)),
    "ReduceL1": ({}, (np.array([1]),)),
    "ReduceMean": ({}, (np.array([1]),)),
    "ReduceLogSumExp": ({}, (np.array([1]),)),
    "LpNormalization": ({"axis": 1, "p": 2}, ()),
    "MeanVarianceNormalization": ({"axes": [0, 2]}, ()),
    "InstanceNormalization": ({}, (ONES, 0 * ONES)),
    "LayerNormalization": ({}, (np.ones(5, np.float32),)),
    "BatchNormalization": ({"training_mode": 1}, (ONES, 0 * ONES, 0 * ONES, ONES)),
}


def values(size: float) -> NDArray:
    """(4, 3, 5) of both signs, none near 0."""
    rng = np.random.default_rng(7)
    x = rng.uniform(0.5, 1.5, (4, 3, 5)) * rng.choice([-1.0, 1.0], (4, 3, 5))
    return np.asarray(x * size, np.float32)


def model(op: str) -> bytes:
    """A model of one node."""
    attributes, others = OPS[op]
    weights = [numpy_helper.from_array(value, f"w{i}") for i, value in enumerate(others)]
    results = ["y", "mean", "variance"] if op == "BatchNormalization" else ["y"]
    node = helper.make_node(op, ["x", *(w.name for w in weights)], results, **attributes)
    graph_input = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 3, 5))
    built = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([node], "g", [graph_input], built, weights)
    opsets = [helper.make_opsetid("", 18)]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(whole.SerializeToString())


def exact(op: str, x: NDArray) -> list[NDArray]:
    """The same in float64, where no square leaves the range."""
    w = x.astype(np.float64)
    along = {"axis": (0, 2), "keepdims": True}
    mean, variance = np.mean(w, **along), np.var(w, **along)
    own = w - w.mean((2,), keepdims=True)
    l2 = np.sqrt(np.sum(w * w, 1, keepdims=True))
    eps = 1e-5
    normed = own / np.sqrt(np.mean(own * own, 2, keepdims=True) + eps)
    return {
        "ReduceL2": [l2],
        "ReduceSumSquare": [l2 * l2],
        "ReduceL1": [np.sum(np.abs(w), 1, keepdims=True)],
        "ReduceMean": [np.mean(w, 1, keepdims=True)],
        "ReduceLogSumExp": [np.logaddexp.reduce(w, 1, keepdims=True)],
        "LpNormalization": [w / l2],
        "MeanVarianceNormalization": [(w - mean) / (np.sqrt(variance) + 1e-9)],
        "InstanceNormalization": [normed],
        "LayerNormalization": [normed],
        "BatchNormalization": [
            (w - mean) / np.sqrt(variance + eps),
            mean.ravel() * 0.1,
            0.9 + variance.ravel() * 0.1,
        ],
    }[op]


def right(got: NDArray, wanted: NDArray) -> NDArray:
    """Where a result is right; what float32 cannot hold is infinite, or 0, or nearly so."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = wanted.astype(np.float32)
    near = np.isclose(got, nearest, rtol=1e-4, atol=1e-37)
    return np.asarray(near | (np.isinf(nearest) & (got == nearest)))


@pytest.mark.parametrize("op", OPS)
def test_nothing_is_worse_than_onnxruntime(op: str, devices: list[str]) -> None:
    data = model(op)
    other = InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in other.get_outputs()]
    with vs.Scheduler(devices) as sched:
        ours = sched.compile(vs.load(data))
        for size in SIZES:
            x = values(size)
            found = ours(x=x)
            wanted = exact(op, x)
            for name, theirs, each in zip(names, other.run(None, {"x": x}), wanted, strict=True):
                worse = right(theirs, each) & ~right(np.asarray(found[name]), each)
                assert not worse.any(), (name, size)


@pytest.mark.parametrize(
    "op",
    ["ReduceL1", "LpNormalization", "InstanceNormalization", "LayerNormalization"],
)
def test_what_scales_its_rows_is_right_in_the_whole_range(op: str, devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.load(model(op)))
        for size in SIZES[:-1]:
            x = values(size)
            assert right(np.asarray(run(x=x)["y"]), exact(op, x)[0]).all(), size


def test_what_squares_its_values_overflows_as_documented(devices: list[str]) -> None:
    x = vs.input("x", (4, 3, 5))
    small = vs.reduce_l2(x * 2.0**-64)
    with vs.Scheduler(devices) as sched:
        run = sched.compile({"l2": vs.reduce_l2(x), "std": vs.reduce_std(x), "small": small})
        fine, lost = run(x=values(1e18)), run(x=values(1e20))
        assert np.isfinite(fine["l2"]) and np.isfinite(fine["std"])
        assert np.isinf(lost["l2"]) and np.isinf(lost["std"])
        wanted = np.sqrt(np.sum(np.square(values(1e20).astype(np.float64)))) / 2.0**64
        np.testing.assert_allclose(lost["small"], wanted, rtol=1e-5)
