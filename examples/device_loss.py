"""A GPU dies in the middle of a batch: what it did not finish runs on the other one, on its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.runtime.device import Device

RUNS = 6


def with_a_faulty_one(names: Sequence[str]) -> list[str | Device]:
    """Return two devices, simulated ones where there is no GPU; the first one is lost at its
    fourth submission.
    """
    if names[0] == "cpu":
        clock = vs.SimulatedClock()
        first, second = (
            vs.SimulatedDevice(vs.DeviceSpec(f"null:{i}", "null"), clock) for i in range(2)
        )
        return [vs.FaultInjectionDevice(first, at=3), second]
    return [vs.FaultInjectionDevice(names[0], at=3), names[-1]]


def main(devices: Sequence[str] | None = None) -> tuple[list[NDArray], list[NDArray], list[str]]:
    """Return the results, what they should be, and the warnings."""
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((64, 64), dtype=np.float32) / 8 for _ in range(2)]
    x = vs.input("x", (16, 64))
    hidden = vs.relu(x @ vs.weight(matrices[0], name="w0"))
    y = hidden @ vs.weight(matrices[1], name="w1")

    inputs = [rng.standard_normal((16, 64), dtype=np.float32) for _ in range(RUNS)]
    with vs.Scheduler(with_a_faulty_one(devices or pick_devices(2))) as sched:
        first, second = (device.name for device in sched.devices[:2])
        run = sched.compile(y, placement={"w0": first, "w1": second})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = [np.asarray(run(x=batch)) for batch in inputs]  # nothing to catch or repeat
        texts = [str(warning.message) for warning in caught]
        print(*texts, f"failed: {dict(sched.failed_devices)}", sep="\n")
        print(run.plan.explain())
    expected = [np.maximum(batch @ matrices[0], 0) @ matrices[1] for batch in inputs]
    worst = max(np.abs(r - e).max() for r, e in zip(results, expected, strict=True))
    print(f"largest difference from numpy: {worst:.1e}")
    return results, expected, texts


if __name__ == "__main__":
    main()
