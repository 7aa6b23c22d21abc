"""A state tensor: the keys and values of earlier tokens stay on the device from run to run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pick import pick_devices

import vksched as vs
from vksched.common.dtypes import NDArray

HEADS, SIZE, LENGTH, STEPS = 4, 16, 32, 6


def main(devices: Sequence[str] | None = None) -> tuple[NDArray, NDArray, vs.RunStats]:
    """Return the attention of all steps, the expected one, and the statistics of the last run."""
    width = HEADS * SIZE
    tokens = np.random.default_rng(0).standard_normal((STEPS, 3, width), dtype=np.float32)
    empty = np.zeros((LENGTH, width), np.float32)
    keys = vs.state(empty, name="keys", backup=False)  # no copy on the host after each run
    values = vs.state(empty, name="values", backup=False)
    count = vs.state(np.int32(0), name="count")  # how many tokens are in the cache

    query, key, value = (vs.input(name, (1, width)) for name in ("query", "key", "value"))
    row = vs.reshape(count, (1, 1))
    all_keys = vs.scatter_nd(keys, row, key)  # the cache with this token
    all_values = vs.scatter_nd(values, row, value)
    seen = vs.less_equal(vs.constant(np.arange(LENGTH, dtype=np.int32)), count)
    batch = (vs.reshape(t, (1, -1, width)) for t in (query, all_keys, all_values))
    y = vs.attention(*batch, mask=seen, num_heads=HEADS)

    with vs.Scheduler(devices or pick_devices(1)) as sched:
        after = {keys: all_keys, values: all_values, count: count + 1}
        run = sched.compile(vs.reshape(y, (width,)), updates=after)
        steps = [run(query=q[None], key=k[None], value=v[None]) for q, k, v in tokens]
        got = np.stack([np.asarray(step) for step in steps])
        print(f"{sched.read(count)} tokens in the cache, of {run.plan.memory[0].state_bytes} bytes")
        stats = run.stats
    assert stats is not None
    print(f"each run took in {stats.input_bytes} bytes and gave out {stats.output_bytes}")
    expected = np.stack([attend(tokens[: i + 1]) for i in range(STEPS)])
    print(f"largest difference from numpy: {np.abs(got - expected).max():.1e}")
    return got, expected, stats


def attend(tokens: NDArray) -> NDArray:
    """The last token's attention over all of them, by numpy."""
    q, k, v = (tokens[:, i].reshape(-1, HEADS, SIZE) for i in range(3))
    scores = np.einsum("hd,nhd->hn", q[-1], k) / np.sqrt(SIZE)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("hn,nhd->hd", weights, v).reshape(-1)


if __name__ == "__main__":
    main()
