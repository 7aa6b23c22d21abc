"""Runs are submitted without waiting: the program prepares the next input while devices work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray

RUNS = 6


def main(devices: Sequence[str] | None = None) -> tuple[list[NDArray], list[NDArray]]:
    """Return the results and what they should be."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((256, 256), dtype=np.float32) / 16
    x = vs.input("x", (32, 256))
    w = vs.weight(matrix, name="w")
    y = vs.relu(x @ w) @ w

    with vs.Scheduler(devices or pick_devices(1), copies=2) as sched:  # two runs under way at once
        run = sched.compile(y)
        inputs, futures = [], []
        for i in range(RUNS):
            batch = rng.standard_normal((32, 256), dtype=np.float32)
            futures.append(run.submit(x=batch))  # returns at once; the batch may be reused
            inputs.append(batch)
            print(f"run {i} submitted, {sum(f.done() for f in futures)} done")
        results = [np.asarray(future.result()) for future in futures]
    expected = [np.maximum(batch @ matrix, 0) @ matrix for batch in inputs]
    worst = max(np.abs(r - e).max() for r, e in zip(results, expected, strict=True))
    print(f"largest difference from numpy: {worst:.1e}")
    return results, expected


if __name__ == "__main__":
    main()
