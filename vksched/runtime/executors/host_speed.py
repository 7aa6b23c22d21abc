"""Host speeds: how fast workers execute their parts of plans, including waits of their hosts.

Problem: a host that is stalled often, or busy with other programs, is slow, although its devices
are not: they report device time, and a split between two stalls takes its usual time. Method: the
wall time from a host's first copy or split of a run to its last one includes stalls. The mean over
its last runs, divided by the simulated time, is the pace of the host. The mean is used because a
stall in one run of four does not change the median. The longest run is dropped, so that a single
outlier changes nothing.

    node1   [ split 0 ]        8 ms simulated
    runs    8 8 88 8 8 8 88 8 8 88 ...   mean without the longest: 24 ms, the pace is 3

Waits for other hosts are in both times. Parts shorter than MIN_S are ignored, because Python's
overhead takes as long. Complexity: O(splits) for each run, and a simulated run for each plan.
Examples: tests/runtime/test_host_speed.py.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...plan.simulation.simulate_plan import simulate
from ...plan.types.plan_types import PlanValue
from ...topology.host_names import DRIVER, host_of
from ..run_stats import RunStats

LAST, FEWEST = 16, 8
"""Number of recent runs in the mean, and the minimum."""
MIN_S = 1e-3
HALF_S = 120.0
"""Half of a host's slowness is forgotten after this time without runs."""


@dataclass(slots=True)
class _Host:
    """The recent runs of a host. times: ratios to the expected time. seen_s: end of the last
    run.
    """

    times: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))
    seen_s: float = 0.0

    def pace(self) -> float:
        """Return the pace as a logarithm: how many times longer than expected the host takes."""
        if len(self.times) < FEWEST:
            return 0.0
        mean = (sum(self.times) - max(self.times)) / (len(self.times) - 1)
        return max(0.0, math.log(mean))


class HostSpeeds:
    """The paces of other hosts. Thread-safe."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._plans: weakref.WeakKeyDictionary[PlanValue, Mapping[str, float]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def of(self, device: str, now_s: float) -> float:
        """Return the pace of a device's host as a logarithm; 0 for the driver's devices."""
        with self._lock:
            host = self._hosts.get(host_of(device))
            if host is None:
                return 0.0
            idle_s = max(0.0, now_s - host.seen_s)
            return host.pace() * float(0.5 ** (idle_s / HALF_S))

    def see(self, plan: PlanValue, stats: RunStats) -> None:
        """Record the measured times of a run."""
        if len(plan.topology.hosts) == 1:
            return
        with self._lock:
            expected = self._plans.get(plan)
            if expected is None:
                self._plans[plan] = _expected(plan)
                return  # the first run pays for lazy work
            taken = _taken(plan, stats)
            for name, expected_s in expected.items():
                if name in taken:
                    host = self._hosts.setdefault(name, _Host())
                    host.times.append(taken[name] / expected_s)
                    host.seen_s = stats.end_s


def _expected(plan: PlanValue) -> dict[str, float]:
    """Return the expected seconds of each other host from its first copy or split to its last one,
    at the devices' initial paces.
    """
    devices, first, last = plan.topology.devices, dict[str, float](), dict[str, float]()
    at_first = [replace(spec, costs=spec.costs.at_pace({})) for spec in devices]
    topology = replace(plan.topology, devices=tuple(at_first))
    spans = simulate(replace(plan, topology=topology)).spans
    for span in (span for span in spans if span.kind != "wait"):
        host = host_of(devices[span.device].name)
        first[host] = min(span.start_s, first.get(host, math.inf))
        last[host] = max(span.finish_s, last.get(host, 0.0))
    took = {host: last[host] - start_s for host, start_s in first.items() if host != DRIVER}
    return {host: seconds for host, seconds in took.items() if seconds >= MIN_S}


def _taken(plan: PlanValue, stats: RunStats) -> dict[str, float]:
    """Return the measured seconds of each other host from its first copy or split to its
    last one.
    """
    devices, splits = plan.topology.devices, plan.splits
    times = [(split.device, split.begin_s, split.end_s) for split in stats.splits]
    times += [(devices[splits[at].device].name, a, b) for _, at, a, b in stats.spans]
    first, last = dict[str, float](), dict[str, float]()
    for device, start_s, end_s in times:
        host = host_of(device)
        first[host] = min(start_s, first.get(host, math.inf))
        last[host] = max(end_s, last.get(host, -math.inf))
    return {host: last[host] - start_s for host, start_s in first.items()}
