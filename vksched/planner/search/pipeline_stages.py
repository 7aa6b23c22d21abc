"""Pipeline stages: divide a graph into one contiguous stage per device for throughput.

Problem: in a stream each device works on another run. The period is the load of the most loaded
device, and each transfer costs the host. A schedule that only balances loads scatters node groups
over devices. Method: node groups stay in topological order, and each device gets one contiguous
range of them. For a given period, dynamic programming over sets of devices finds how far each set
reaches. Bisection finds the shortest period at which all node groups are covered.

    node groups   0 1 2 | 3 4 5 6 7 | 8 9       gpu:1 takes 0-2, gpu:0 the next five, gpu:2 the rest

With bytes instead of seconds this spreads weights evenly over devices. Devices with equal loads for
all node groups form a kind, of which only the number in use matters. Complexity: sets of kinds *
kinds * log(node groups) for each of BISECTIONS; n devices that all differ have 2**n sets, at most
2**MAX_DEVICES. Examples: tests/planner/test_stages.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul

MAX_DEVICES = 8
"""Maximum number of devices with stages if all differ; the fastest ones are used."""
MAX_SETS = 1 << MAX_DEVICES
BISECTIONS = 40


def find_stages(loads: Sequence[Mapping[str, float]], devices: Sequence[str]) -> list[str] | None:
    """Return a device for each node group that minimizes the largest load of a device; None if no
    order of stages exists.

    loads: for each node group, in topological order, its load on each device that can run it.
    """
    totals = {d: sum(load.get(d, 0.0) for load in loads) for d in devices}
    supports = {d: sum(d in load for load in loads) for d in devices}
    kinds = _kinds(loads, sorted(devices, key=lambda d: (-supports[d], totals[d])))
    lanes = [_Lane(loads, kind[0], len(kind)) for kind in kinds]
    low, high = 0.0, sum(max(load.values()) for load in loads)
    found = _reach(lanes, len(loads), high)
    for _ in range(BISECTIONS if found is not None else 0):
        middle = (low + high) / 2
        cuts = _reach(lanes, len(loads), middle)
        if cuts is None:
            low = middle
        else:
            found, high = cuts, middle
    if found is None:
        return None
    left = [iter(kind) for kind in kinds]
    stretches = [(next(left[lane]), end - start) for lane, start, end in found]
    return [device for device, count in stretches for _ in range(count)]


def _kinds(loads: Sequence[Mapping[str, float]], ranked: Sequence[str]) -> list[list[str]]:
    """Return the first devices by kind, with at most MAX_SETS sets of them."""
    kinds: dict[object, list[str]] = {}
    for device in ranked:
        few = len(ranked) <= MAX_DEVICES
        key = device if few else tuple(load.get(device) for load in loads)
        sizes = [len(kind) + (kind is kinds.get(key)) for kind in kinds.values()]
        if prod(size + 1 for size in (*sizes, *(() if key in kinds else (1,)))) > MAX_SETS:
            break
        kinds.setdefault(key, []).append(device)
    return list(kinds.values())


class _Lane:
    """The cumulative loads of a kind of devices, and the next unsupported group by position."""

    def __init__(self, loads: Sequence[Mapping[str, float]], device: str, count: int) -> None:
        self.count = count
        self.sums = [0.0, *accumulate(load.get(device, 0.0) for load in loads)]
        self.gap = [len(loads)] * (len(loads) + 1)
        for at in reversed(range(len(loads))):
            self.gap[at] = at if device not in loads[at] else self.gap[at + 1]

    def end(self, start: int, most: float) -> int:
        """Return the node group up to which a device gets from `start` within a load."""
        limit = self.sums[start] + most * (1 + 1e-12)
        return min(self.gap[start], bisect_right(self.sums, limit, start + 1) - 1)


def _reach(lanes: Sequence[_Lane], count: int, most: float) -> list[tuple[int, int, int]] | None:
    """Return (lane, start, end) for each stage so that no load exceeds `most`; None if the end is
    not reached.

    A set is encoded as a mixed-radix number with a digit for each lane: the number of its devices
    in use.
    """
    steps = list(accumulate((lane.count + 1 for lane in lanes), mul, initial=1))
    ends = [0] * steps[-1]
    last = [-1] * len(ends)
    for used in range(1, len(ends)):
        for lane, each in enumerate(lanes):
            if used // steps[lane] % (each.count + 1):
                end = each.end(ends[used - steps[lane]], most)
                if end > ends[used] or last[used] < 0:
                    ends[used], last[used] = end, lane
        if ends[used] == count:
            return _back(ends, last, used, steps)
    return None


def _back(
    ends: list[int], last: list[int], used: int, steps: list[int]
) -> list[tuple[int, int, int]]:
    out: list[tuple[int, int, int]] = []
    while used:
        before = used - steps[last[used]]
        out.append((last[used], ends[before], ends[used]))
        used = before
    return out[::-1]
