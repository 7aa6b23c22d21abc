"""Placement by hand: by tensor and by name pattern. It never changes the result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray


def build(rng: np.random.Generator) -> tuple[vs.Tensor, vs.Tensor]:
    """Return a network of three layers and the weight of its last one."""
    y: vs.Tensor = vs.input("x", (16, 64))
    w = y
    for i in range(3):
        with vs.name_scope(f"layer.{i}"):
            w = vs.weight(rng.standard_normal((64, 64), dtype=np.float32) / 8, name="w")
            y = vs.gelu(y @ w)
    return vs.softmax(y, name="probabilities"), w


def main(devices: Sequence[str] | None = None) -> tuple[NDArray, NDArray, list[tuple[str, str]]]:
    """Return the results of two placements, and op by op where the second one ran."""
    rng = np.random.default_rng(0)
    y, last = build(rng)
    data = rng.standard_normal((16, 64), dtype=np.float32)
    with vs.Scheduler(devices or pick_devices(2)) as sched:
        first, second = ([device.name for device in sched.devices] * 2)[:2]
        automatic = sched.compile(y)
        # the pattern takes a layer, the tensor pulls the ops that use it, "cpu" is always there
        by_hand = sched.compile(
            y, placement={"layer.1.*": second, last: first, "probabilities": "cpu"}
        )
        print(by_hand.plan.explain())
        where = [
            (node.name, by_hand.plan.topology.devices[placed.device].name)
            for node, placed in zip(by_hand.plan.graph.nodes, by_hand.plan.placements, strict=True)
        ]
        return np.asarray(automatic(x=data)), np.asarray(by_hand(x=data)), where


if __name__ == "__main__":
    main()
