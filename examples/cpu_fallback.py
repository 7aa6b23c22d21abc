"""What a GPU cannot run goes to numpy, the rest stays there: the device of each tensor, and why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray

ROWS = 5000


def main(devices: Sequence[str] | None = None) -> tuple[NDArray, NDArray, vs.Plan]:
    """Return the result, what it should be, and the plan."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((ROWS, 1, 2, 1, 2, 1, 2, 1), dtype=np.float32)
    other = rng.standard_normal((1, 2, 1, 2, 1, 2, 1, 2), dtype=np.float32)

    a = vs.input("a", data.shape)
    scaled = vs.exp(a, name="scaled")
    # eight axes, each broadcast on one side only: a kernel would need two launches for every row
    chosen = vs.where(scaled > 1.0, scaled, vs.weight(other, name="b"), name="chosen")
    total = vs.reduce_sum(vs.reshape(chosen, (ROWS, -1)), 1, name="total")

    with vs.Scheduler(devices or pick_devices(1)) as sched:
        gpu = sched.devices[0].name
        run = sched.compile(total, placement={"scaled": gpu, "total": gpu})
        for node, placed in zip(run.plan.graph.nodes, run.plan.placements, strict=True):
            device = run.plan.topology.devices[placed.device].name
            print(f"{node.name:>8} {node.type!s:<32} {device:<10} {placed.reason}")
        result = run(a=data)
        assert isinstance(result, np.ndarray)
    e = np.exp(data)
    expected = np.where(e > 1, e, other).reshape(ROWS, -1).sum(axis=1)
    print(f"largest difference from numpy: {np.abs(result - expected).max():.1e}")
    return result, expected, run.plan


if __name__ == "__main__":
    main()
