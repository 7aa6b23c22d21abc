"""Run a small graph on a device, to see that an installed vksched works there.

    python scripts/wheel/try_wheel.py vulkan:0

Ends with an error where the device is not used or a number is wrong.
"""

from __future__ import annotations

import sys

import numpy as np

import vksched as vs


def main(device: str) -> int:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((48, 48), dtype=np.float32) for _ in range(2))
    y = vs.softmax(vs.relu(vs.input("x", a.shape) @ vs.weight(b, name="w")), axis=-1)
    with vs.Scheduler([device]) as scheduler:
        run = scheduler.compile(y)
        got = run(x=a)
        used = {scheduler.devices[split.device].name for split in run.plan.splits}
    scores = np.maximum(a.astype(np.float64) @ b, 0)
    wanted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted /= wanted.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    if used != {device}:
        print(f"expected all of it on {device}, got {', '.join(sorted(used))}", file=sys.stderr)
        return 1
    print(f"{vs.__file__}: right on {device}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
