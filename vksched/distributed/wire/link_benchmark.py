"""Link benchmark: measure latency and bandwidth to another host by echo messages.

    echo of 64 B, 64 KiB, 1 MiB, 8 MiB --fastest of each--> round-trip seconds --fit--> Link

The model of a transfer is latency_s + bytes / bytes_per_s; the fit minimizes relative errors, so
that small and large messages have equal weight. Examples: tests/distributed/test_measuring.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np

from ...topology.links import Link
from .channel import Channel

TRIES = {64: 20, 1 << 16: 10, 1 << 20: 5, 1 << 23: 3}
"""Number of messages of each size."""
ANSWER_S = 60.0
MIN_S = 1e-9


def measure_link(channel: Channel, tries: Mapping[int, int] = TRIES) -> Link:
    """Measure and return the link to the peer of a channel.

    Raises
    ------
    HostLost, DeviceTimeout
        The peer does not answer.
    """
    return fit_link({size: _fastest(channel, size, times) for size, times in tries.items()})


def fit_link(seconds: Mapping[int, float]) -> Link:
    """Return the link that fits one-way transfer times by size."""
    sizes, took = np.array(list(seconds)), np.maximum(list(seconds.values()), MIN_S)
    parts = np.stack([1 / took, sizes / took], axis=1)
    latency_s, per_byte_s = np.linalg.lstsq(parts, np.ones(len(took)), rcond=None)[0]
    return Link(1 / max(float(per_byte_s), 1e-15), max(float(latency_s), 0.0))


def _fastest(channel: Channel, size: int, times: int) -> float:
    """Return the one-way seconds of a message of this size, the fastest of several."""
    sent, back = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    found = math.inf
    for _ in range(times):
        begin = time.perf_counter()
        channel.ask("echo", {}, [sent], ANSWER_S, memoryview(back))  # type: ignore[arg-type]
        found = min(found, (time.perf_counter() - begin) / 2)
    return found
