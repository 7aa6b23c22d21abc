"""Two cards of speeds 3 : 1 that share a model come near 4/3 of the fast one alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.runtime.device import Device
from vksched.topology.device_spec import DeviceSpec

SPEEDS = (3e9, 1e9)

Model = Callable[[], tuple[vs.Tensor, Any, dict[str, NDArray]]]


def mlp() -> tuple[vs.Tensor, Any, dict[str, NDArray]]:
    """A training step of two layers."""
    batch, width = 1024, 64
    h = x = vs.input("x", (batch, width))
    params: dict[str, vs.Tensor] = {}
    for i in range(2):
        with vs.signal(f"layer.{i}"):
            up = params[f"up{i}"] = vs.state(np.ones((width, 4 * width), np.float32), "up")
            down = params[f"down{i}"] = vs.state(np.ones((4 * width, width), np.float32), "down")
            h = h + vs.relu(h @ up) @ down
    loss = vs.losses.mse(h, x)
    updates = vs.optim.sgd(params, vs.grad(loss, params), lr=1e-3)
    return loss, updates, {"x": np.zeros(x.shape, np.float32)}


def transformer(training: bool = False) -> tuple[vs.Tensor, Any, dict[str, NDArray]]:
    """A layer of a transformer: attention of 8 heads, then two products, a norm before each."""
    batch, length, width, heads = 4, 64, 128, 8
    params: dict[str, vs.Tensor] = {}

    def param(name: str, *shape: int) -> vs.Tensor:
        make = vs.state if training else vs.weight
        params[name] = make(np.full(shape, 1 / width, np.float32), name)
        return params[name]

    def norm(h: vs.Tensor, name: str) -> vs.Tensor:
        return vs.layer_norm(h, param(f"{name}.gain", width), param(f"{name}.bias", width))

    x = vs.input("x", (batch, length, width))
    with vs.signal("layer.0"):
        h, split = norm(x, "first"), (batch, length, heads, width // heads)
        qkv = [h @ param(name, width, width) for name in "qkv"]
        q, k, v = (vs.transpose(vs.reshape(each, split), (0, 2, 1, 3)) for each in qkv)
        mixed = vs.transpose(vs.attention(q, k, v), (0, 2, 1, 3))
        x = x + vs.reshape(mixed, (batch, length, width)) @ param("out", width, width)
        h = vs.gelu(norm(x, "second") @ param("up", width, 4 * width) + param("bias", 4 * width))
        y = x + h @ param("down", 4 * width, width)
    loss = vs.reduce_mean(y * y)
    updates = vs.optim.sgd(params, vs.grad(loss, params), lr=1e-3) if training else None
    return loss, updates, {"x": np.zeros((batch, length, width), np.float32)}


def seconds(model: Model, shard: Any, speeds: tuple[float, ...]) -> float:
    """What a run takes on null devices with a link between them."""
    clock, (loss, updates, feeds) = vs.SimulatedClock(), model()
    devices: list[Device] = [
        vs.SimulatedDevice(
            DeviceSpec(f"n{i}", "null", flops_per_s=speed, bytes_per_s=4 * speed, submit_s=1e-5),
            clock,
            vs.Link(1e9, 1e-5),
        )
        for i, speed in enumerate(speeds)
    ]
    section = {"devices": [d.name for d in devices], "shard": shard}
    config = {"layer.*": section} if shard else None
    with vs.Scheduler(devices, config=config) as sched:
        step = sched.compile(loss, updates=updates)
        step(**feeds)
        begin = clock.now()
        step(**feeds)
        return clock.now() - begin


@pytest.mark.parametrize("ratio", ["3:1", "auto"])
@pytest.mark.parametrize(
    ("model", "shard"),
    [
        (mlp, {"axis": 0}),
        (transformer, {"weights": "columns"}),
        (lambda: transformer(training=True), {"weights": "columns"}),
    ],
    ids=["data", "columns", "columns-training"],
)
def test_both_come_within_a_tenth_of_their_sum(model: Model, shard: Any, ratio: str) -> None:
    alone = seconds(model, None, SPEEDS[:1])
    both = seconds(model, shard | {"ratio": ratio}, SPEEDS)
    assert 0.9 * 4 / 3 <= alone / both <= 4 / 3 + 1e-6


def test_auto_is_not_slower_than_what_is_asked_for() -> None:
    named = [seconds(transformer, {"weights": "columns", "ratio": "auto"}, SPEEDS)]
    named += [seconds(transformer, {"axis": 0, "ratio": "auto"}, SPEEDS)]
    assert seconds(transformer, "auto", SPEEDS) <= 1.001 * min(named)
