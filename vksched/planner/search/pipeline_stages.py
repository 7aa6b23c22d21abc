"""Stages: a graph cut into stretches, one a device, so that a stream flows.

Problem: in a stream each device works on another run. The period is the load of the fullest device,
and each transfer costs the host. A schedule that only balances loads scatters node groups over
devices. Method: node groups stay in topological order, and each device takes one stretch of them.
For a given period each set of devices reaches as far as its last one gets from where the others
end. The least period at which all devices reach the end is found by halving.

    node groups   0 1 2 | 3 4 5 6 7 | 8 9       gpu:1 takes 0-2, gpu:0 the next five, gpu:2 the rest

The same with bytes in the place of seconds spreads weights evenly over devices. Of many devices
those that take the same of each node group count as a kind, of which only the number in use
matters. Complexity: sets of kinds * kinds * log(node groups) for each of HALVINGS; of devices that
are all unlike there are 2**devices sets, at most 2**MOST. Examples: tests/planner/test_stages.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul

MOST = 8
"""Devices that take a stretch where they are all unlike, the fastest ones."""
SETS = 1 << MOST
HALVINGS = 40


def find_stages(loads: Sequence[Mapping[str, float]], devices: Sequence[str]) -> list[str] | None:
    """Return a device for each node group, with the least largest load of a device; None where no
    order of stretches exists.

    loads: for each node group, in topological order, what it takes of each device that can run it.
    """
    totals = {d: sum(load.get(d, 0.0) for load in loads) for d in devices}
    supports = {d: sum(d in load for load in loads) for d in devices}
    kinds = _kinds(loads, sorted(devices, key=lambda d: (-supports[d], totals[d])))
    lanes = [_Lane(loads, kind[0], len(kind)) for kind in kinds]
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
    left = [iter(kind) for kind in kinds]
    stretches = [(next(left[lane]), end - start) for lane, start, end in found]
    return [device for device, count in stretches for _ in range(count)]


def _kinds(loads: Sequence[Mapping[str, float]], ranked: Sequence[str]) -> list[list[str]]:
    """Return the first devices by kind, so many that there are at most SETS sets of them. Few
    devices have a kind each.
    """
    kinds: dict[object, list[str]] = {}
    for device in ranked:
        few = len(ranked) <= MOST
        key = device if few else tuple(load.get(device) for load in loads)
        sizes = [len(kind) + (kind is kinds.get(key)) for kind in kinds.values()]
        if prod(size + 1 for size in (*sizes, *(() if key in kinds else (1,)))) > SETS:
            break
        kinds.setdefault(key, []).append(device)
    return list(kinds.values())


class _Lane:
    """What devices of a kind take of all node groups before each one, and where their next gap
    is.
    """

    def __init__(self, loads: Sequence[Mapping[str, float]], device: str, count: int) -> None:
        self.count = count
        self.sums = [0.0, *accumulate(load.get(device, 0.0) for load in loads)]
        self.gap = [len(loads)] * (len(loads) + 1)
        for at in reversed(range(len(loads))):
            self.gap[at] = at if device not in loads[at] else self.gap[at + 1]

    def end(self, start: int, most: float) -> int:
        """Return how far the device gets from a node group on within a load."""
        limit = self.sums[start] + most * (1 + 1e-12)
        return min(self.gap[start], bisect_right(self.sums, limit, start + 1) - 1)


def _reach(lanes: Sequence[_Lane], count: int, most: float) -> list[tuple[int, int, int]] | None:
    """Return a lane and a stretch for each stage, with no load above one; None where the end is
    not reached.

    A set has a digit for each lane, as large as the number of its devices that are in use.
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
