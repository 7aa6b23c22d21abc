"""Batches flow through a network whose halves lie on two devices: with copies, the first half works
on a batch while the second is still on the one before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray

BATCHES = 12
WIDTH = 256
LAYERS = 4


def network() -> vs.Tensor:
    """Return layers of product and relu."""
    rng = np.random.default_rng(0)
    h = vs.input("x", (64, WIDTH))
    for i in range(LAYERS):
        with vs.name_scope(f"layer.{i}"):
            w = vs.weight(rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 16, name="w")
            h = vs.relu(h @ w)
    return h


def main(devices: Sequence[str] | None = None) -> dict[int, list[NDArray]]:
    """Return the results by number of copies; they agree."""
    rng = np.random.default_rng(1)
    batches = [rng.standard_normal((64, WIDTH), dtype=np.float32) for _ in range(BATCHES)]
    y, results, first_s = network(), {}, 0.0
    for copies in (1, 2, 3, 4):
        with vs.Scheduler(devices or pick_devices(2), copies=copies) as sched:
            front, back = ([d.name for d in sched.devices] * 2)[:2]
            half = {f"layer.{i}.w": front if i < LAYERS // 2 else back for i in range(LAYERS)}
            run = sched.compile(y, placement=half)
            run(x=batches[0])  # what is only done once is done now
            start = time.perf_counter()
            futures = [run.submit(x=batch) for batch in batches]
            results[copies] = [np.asarray(future.result()) for future in futures]
            seconds = time.perf_counter() - start
        first_s = first_s or seconds
        rate, gain = BATCHES / seconds, first_s / seconds
        print(f"copies={copies}: {rate:.0f} batches/s over {front} and {back}, {gain:.2f} x")
    return results


if __name__ == "__main__":
    main()
