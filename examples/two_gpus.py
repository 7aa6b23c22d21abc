"""Two GPUs each multiply a pair of matrices at the same time; the first adds the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray

SIZE = 192


def main(devices: Sequence[str] | None = None) -> tuple[NDArray, NDArray, vs.RunStats]:
    """Return the sum, what it should be, and what the run cost."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((SIZE, SIZE), dtype=np.float32) for name in "abcd"}
    a, b, c, d = (vs.input(name, (SIZE, SIZE)) for name in "abcd")
    left = vs.matmul(a, b, name="left")
    right = vs.matmul(c, d, name="right")

    with vs.Scheduler(devices or pick_devices(2)) as sched:
        first, second = ([device.name for device in sched.devices] * 2)[:2]
        total = vs.add(left, right, name="total")
        run = sched.compile(total, placement={"left": first, "right": second, "total": first})
        result = run(**arrays)
        print(run.plan.explain())
        assert run.stats is not None and isinstance(result, np.ndarray)
        for device, seconds in run.stats.device_seconds.items():
            print(f"{device}: {1e3 * seconds:.2f} ms")
        print(f"{run.stats.fence_waits} fences, {run.stats.transfer_bytes} bytes crossed")
        expected = arrays["a"] @ arrays["b"] + arrays["c"] @ arrays["d"]
        print(f"largest difference from numpy: {np.abs(result - expected).max():.1e}")
        return result, expected, run.stats


if __name__ == "__main__":
    main()
