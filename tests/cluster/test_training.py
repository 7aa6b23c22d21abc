"""Training over two nodes: the losses of one process, by parts of a batch and as a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_nodes import Nodes, on_cpus

import vksched as vs

STEPS = 8
DEVICES = ["node1/cpu", "node2/cpu"]
CONFIGS: dict[str, dict[str, Any]] = {
    "data parallel": {"layer.*": {"devices": DEVICES, "shard": {"axis": 0}}},
    "layers": {"layer.0": {"devices": DEVICES[:1]}, "layer.1": {"devices": DEVICES[1:]}},
    "pipeline": {
        "layer.0": {"devices": DEVICES[:1]},
        "layer.1": {"devices": DEVICES[1:]},
        "pipeline": {"stages": ["layer.0", "layer.1"], "microbatches": 4, "schedule": "1f1b"},
    },
}


def losses(sched: vs.Scheduler, xs: np.ndarray[Any, Any], ys: np.ndarray[Any, Any]) -> list[float]:
    x, target = vs.input("x", xs.shape), vs.input("target", ys.shape)
    params, h = {}, x
    rng = np.random.default_rng(5)
    for i in range(2):
        with vs.signal(f"layer.{i}"):
            first = rng.standard_normal((16, 16)).astype(np.float32) / 4
            w = params[f"w{i}"] = vs.state(first, "w")
            h = vs.relu(h @ w)
    loss = vs.losses.mse(h, target)
    updates = vs.optim.adamw(params, vs.grad(loss, params), lr=0.01)
    step = sched.compile(loss, updates=updates)
    used = {step.plan.topology.devices[split.device].name for split in step.plan.splits}
    assert used == {d.name for d in sched.devices if "/" in d.name} or used == {"cpu"}
    return [float(step(x=xs, target=ys)) for _ in range(STEPS)]


@pytest.mark.parametrize("way", list(CONFIGS))
def test_losses_are_those_of_one_process(start: Nodes, way: str, rng: np.random.Generator) -> None:
    xs, ys = (rng.standard_normal((32, 16), np.float32) for _ in range(2))
    with vs.Scheduler(["cpu"]) as sched:
        want = losses(sched, xs, ys)
    assert want[-1] < want[0]
    nodes = [start("node1"), start("node2")]
    with on_cpus(nodes, config=CONFIGS[way]) as sched:
        found = losses(sched, xs, ys)
    np.testing.assert_allclose(found, want, rtol=1e-4)
