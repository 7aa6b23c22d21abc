"""Stages: a graph cut into stretches, one a device, so that a stream flows.

Problem: in a stream each device works on another run. The period is the load of the fullest device,
and each crossing costs the host. A schedule that only balances loads scatters bundles over devices.
Method: bundles stay in topological order, and each device takes one stretch of them. For a given
period each set of devices reaches as far as its last one gets from where the others end. The least
period at which all devices reach the end is found by halving.

    bundles   0 1 2 | 3 4 5 6 7 | 8 9        gpu:1 takes 0-2, gpu:0 the next five, gpu:2 the rest

The same with bytes in the place of seconds spreads weights evenly over devices.
Complexity: 2**devices * devices * log(bundles) for each of HALVINGS, at most MOST devices.
Examples: tests/plan/test_stages.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

MOST = 8
"""Devices that take a stretch, the fastest ones."""
HALVINGS = 40


def find_stages(loads: Sequence[Mapping[str, float]], devices: Sequence[str]) -> list[str] | None:
    """Returns a device for each bundle, with the least largest load of a device; None where no
    order of stretches exists.

    loads: for each bundle, in topological order, what it takes of each device that can run it.
    """
    totals = {d: sum(load.get(d, 0.0) for load in loads) for d in devices}
    can = {d: sum(d in load for load in loads) for d in devices}
    used = sorted(devices, key=lambda d: (-can[d], totals[d]))[:MOST]
    lanes = [_Lane(loads, device) for device in used]
    low, high = 0.0, sum(max(load.values()) for load in loads)
    found = _reach(lanes, len(loads), high)
    for _ in range(HALVINGS if found is not None else 0):
        middle = (low + high) / 2
        cuts = _reach(lanes, len(loads), middle)
        if cuts is None:
            low = middle
        else:
            found, high = cuts, middle
    if found is None:
        return None
    return [used[lane] for lane, start, end in found for _ in range(start, end)]


class _Lane:
    """What a device takes of all bundles before each one, and where its next gap is."""

    def __init__(self, loads: Sequence[Mapping[str, float]], device: str) -> None:
        self.sums = [0.0, *accumulate(load.get(device, 0.0) for load in loads)]
        self.gap = [len(loads)] * (len(loads) + 1)
        for at in reversed(range(len(loads))):
            self.gap[at] = at if device not in loads[at] else self.gap[at + 1]

    def end(self, start: int, most: float) -> int:
        """Returns how far the device gets from a bundle on within a load."""
        limit = self.sums[start] + most * (1 + 1e-12)
        return min(self.gap[start], bisect_right(self.sums, limit, start + 1) - 1)


def _reach(lanes: Sequence[_Lane], count: int, most: float) -> list[tuple[int, int, int]] | None:
    """Returns a lane and a stretch for each stage, with no load above one; None where the end is
    not reached.
    """
    ends = [0] * (1 << len(lanes))
    last = [-1] * len(ends)
    for used in range(1, len(ends)):
        for lane, each in enumerate(lanes):
            if used >> lane & 1:
                end = each.end(ends[used ^ 1 << lane], most)
                if end > ends[used] or last[used] < 0:
                    ends[used], last[used] = end, lane
        if ends[used] == count:
            return _back(ends, last, used)
    return None


def _back(ends: list[int], last: list[int], used: int) -> list[tuple[int, int, int]]:
    out: list[tuple[int, int, int]] = []
    while used:
        before = used ^ 1 << last[used]
        out.append((last[used], ends[before], ends[used]))
        used = before
    return out[::-1]
