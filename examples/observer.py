"""An observer looks at values in the middle of a run, and stops it when they go wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray

LAYERS = 6


def main(devices: Sequence[str] | None = None) -> tuple[list[str], str]:
    """Return the layers seen in a run that was stopped, and the message that the caller got."""
    rng = np.random.default_rng(0)
    h = vs.input("x", (4, 32))
    for i in range(LAYERS):
        with vs.name_scope(f"layer.{i}"):
            w = vs.weight(rng.standard_normal((32, 32), dtype=np.float32), name="w")
            h = vs.relu(vs.matmul(h, w, name="product"), name="out")

    seen: list[str] = []

    def watch(name: str, value: NDArray) -> bool:
        seen.append(name)
        print(f"{name}: largest value {value.max():.1f}")
        return bool(value.max() < 500)  # False stops the run

    with vs.Scheduler(devices or pick_devices(1)) as sched:
        run = sched.compile(h, observe={"layer.*.out": watch})
        run(x=np.full((4, 32), 0.001, np.float32))  # small enough to pass all layers
        assert len(seen) == LAYERS
        seen.clear()
        message = ""
        try:
            run(x=np.ones((4, 32), np.float32))
        except vs.RunCancelled as error:
            message = str(error)
        print(f"stopped: {message}")
        stopped_at = list(seen)
        run(x=np.zeros((4, 32), np.float32))  # the graph is as good as before
    return stopped_at, message


if __name__ == "__main__":
    main()
